"""Pages in a headless Chromium, through its debugging protocol: errors, sizes, pictures."""

import base64
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

import pytest

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--remote-debugging-port=0",
]
WIDTHS = {"desktop": 1280, "phone": 400}


@dataclass
class Drawn:
    """A page that was opened.

    ``errors`` are messages of its console and requests that failed; ``requests`` are addresses
    other than files; ``value`` is what a script returned.
    """

    seconds: float = 0.0
    errors: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    width: int = 0
    value: object = None


def executable():
    """Return the path of the browser; skip the test where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("chromium is not installed: the page was not drawn")
    return found


@contextmanager
def started():
    """Start a browser with a new profile; yield the address of its protocol."""
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        command = [executable(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        options = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        with subprocess.Popen(command, **options) as process:
            lines = (line for line in process.stderr if "DevTools listening on " in line)
            address = next(lines, None)
            try:
                assert address is not None, "chromium ended without saying where it listens"
                yield address.split()[-1]
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with its processes, which keep nothing
                process.wait(20)
                while _alive(process.pid):
                    time.sleep(0.02)


def _alive(group):
    """Return whether a process of a group runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def draw(address, url, *, width=1280, dark=False, script="null", picture=None):
    """Open a page and return what happened.

    Args:
        address: Of a browser that was `started`.
        url: The page.
        width: Of the window, in pixels.
        dark: Whether the user prefers dark pages.
        script: An expression whose value is wanted.
        picture: A file for a picture of the whole page.
    """
    with closing(_Socket(address)) as connection:
        return _draw(_Caller(connection, Drawn()), url, width, dark, script, picture)


class _Socket:
    """A WebSocket to the browser: messages of text, one way after the other (RFC 6455)."""

    def __init__(self, address):
        parts = urlsplit(address)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        lines = [f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "Upgrade: websocket"]
        lines += ["Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall("\r\n".join([*lines, f"Sec-WebSocket-Key: {key}", "\r\n"]).encode())
        self._file = self._socket.makefile("rb")
        assert b" 101 " in self._file.readline(), "chromium speaks no WebSocket"
        while self._file.readline().strip():
            pass

    def close(self):
        self._file.close()
        self._socket.close()

    def send(self, text):
        payload = text.encode()
        size = len(payload)
        form = ">BB" if size < 126 else ">BBH" if size < 1 << 16 else ">BBQ"
        code = size if size < 126 else 126 if size < 1 << 16 else 127
        head = struct.pack(form, 0x81, 0x80 | code, *([size] if code > 125 else []))
        # what a client sends is masked; a mask of zeros changes nothing
        self._socket.sendall(head + bytes(4) + payload)

    def receive(self):
        """Return the next message of text."""
        parts, final, kind = [], False, 1
        while not final or kind not in (0, 1):  # pings are not answered: the browser sends none
            first, size = self._file.read(2)
            final, kind = bool(first & 0x80), first & 0x0F
            assert kind != 8, "chromium closed the connection"
            if size > 125:
                size = int.from_bytes(self._file.read(2 if size == 126 else 8))
            parts.append(self._file.read(size))
        return b"".join(parts).decode()


def _draw(call, url, width, dark, script, picture):
    drawn = call.drawn
    target = call("Target.createTarget", url="about:blank")
    attached = call("Target.attachToTarget", flatten=True, **target)
    call.session = attached["sessionId"]
    for domain in ("Page", "Runtime", "Log", "Network"):
        call(f"{domain}.enable")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    call("Emulation.setDeviceMetricsOverride", **size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    call("Emulation.setEmulatedMedia", features=[scheme])
    begin = perf_counter()
    call("Page.navigate", url=url)
    call.event("Page.loadEventFired")
    # two frames: what the page draws is on the screen
    frames = "new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))"
    call("Runtime.evaluate", expression=frames, awaitPromise=True)
    drawn.seconds = perf_counter() - begin
    found = call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
    drawn.value = found["result"].get("value")
    wide = "document.documentElement.scrollWidth"
    drawn.width = call("Runtime.evaluate", expression=wide)["result"]["value"]
    if picture is not None:
        shot = call("Page.captureScreenshot", captureBeyondViewport=True)
        Path(picture).write_bytes(base64.b64decode(shot["data"]))
    call("Target.closeTarget", **target)
    return drawn


class _Caller:
    """Calls methods of the protocol, and notes errors and requests that arrive in between."""

    def __init__(self, socket, drawn):
        self.socket, self.drawn, self.session, self.number = socket, drawn, None, 0
        self.events = set()

    def __call__(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        self.socket.send(json.dumps(message | self._session()))
        while (answer := self._receive()).get("id") != self.number:
            pass
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def event(self, name):
        while name not in self.events:
            self._receive()

    def _session(self):
        return {} if self.session is None else {"sessionId": self.session}

    def _receive(self):
        message = json.loads(self.socket.receive())
        name, params = message.get("method", ""), message.get("params", {})
        self.events.add(name)
        if name == "Runtime.exceptionThrown":
            self.drawn.errors.append(params["exceptionDetails"].get("text", ""))
        elif name == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.drawn.errors.append(params["entry"]["text"] + params["entry"].get("url", ""))
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.drawn.errors.append(json.dumps(params["args"]))
        elif name == "Network.loadingFailed":
            self.drawn.errors.append(f"request failed: {params['errorText']}")
        elif name == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if not address.startswith(("file:", "data:", "blob:", "about:")):
                self.drawn.requests.append(address)
        return message
