"""Pages in a headless Chromium, through its debugging protocol: errors, sizes, pictures."""

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import aiohttp
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
    return asyncio.run(_draw(address, url, width, dark, script, picture))


async def _draw(address, url, width, dark, script, picture):
    drawn = Drawn()
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(address, max_msg_size=0) as socket:
            call = _Caller(socket, drawn)
            target = await call("Target.createTarget", url="about:blank")
            attached = await call("Target.attachToTarget", flatten=True, **target)
            call.session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                await call(f"{domain}.enable")
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
            await call("Emulation.setDeviceMetricsOverride", **size)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            await call("Emulation.setEmulatedMedia", features=[scheme])
            begin = perf_counter()
            await call("Page.navigate", url=url)
            await call.event("Page.loadEventFired")
            # two frames: what the page draws is on the screen
            frames = "new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))"
            await call("Runtime.evaluate", expression=frames, awaitPromise=True)
            drawn.seconds = perf_counter() - begin
            asked = {"returnByValue": True, "awaitPromise": True}
            found = await call("Runtime.evaluate", expression=script, **asked)
            drawn.value = found["result"].get("value")
            wide = "document.documentElement.scrollWidth"
            drawn.width = (await call("Runtime.evaluate", expression=wide))["result"]["value"]
            if picture is not None:
                shot = await call("Page.captureScreenshot", captureBeyondViewport=True)
                Path(picture).write_bytes(base64.b64decode(shot["data"]))
            await call("Target.closeTarget", **target)
    return drawn


class _Caller:
    """Calls methods of the protocol, and notes errors and requests that arrive in between."""

    def __init__(self, socket, drawn):
        self.socket, self.drawn, self.session, self.number = socket, drawn, None, 0
        self.events = set()

    async def __call__(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        await self.socket.send_str(json.dumps(message | self._session()))
        while (answer := await self._receive()).get("id") != self.number:
            pass
        assert "error" not in answer, (method, answer)
        return answer["result"]

    async def event(self, name):
        while name not in self.events:
            await self._receive()

    def _session(self):
        return {} if self.session is None else {"sessionId": self.session}

    async def _receive(self):
        message = json.loads((await self.socket.receive(timeout=60)).data)
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
