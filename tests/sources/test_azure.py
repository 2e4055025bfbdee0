"""Zarr behind ``az://``: the Azurite emulator on this machine.

Runs where the program ``azurite-blob`` is found (``npm install azurite``); skipped elsewhere.
``PENSTOCK_AZURITE`` may name the folder that it is in.
"""

import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zarr

from penstock import StreamLoader
from penstock.errors import SourceError
from penstock.sources import open_source

AZURITE = shutil.which("azurite-blob", path=os.environ.get("PENSTOCK_AZURITE") or None)
# the public account of every Azurite, from its documentation
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
DATA = np.random.default_rng(0).standard_normal((100, 6)).astype("f4")

pytestmark = pytest.mark.skipif(AZURITE is None, reason="azurite-blob is not installed (npm)")


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    root = tmp_path_factory.mktemp("azure")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [AZURITE, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    command += ["--location", str(root / "store"), "--skipApiVersionCheck", "--disableTelemetry"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, server)
        yield {
            "endpoint": f"http://127.0.0.1:{port}/{ACCOUNT}",
            "account_name": ACCOUNT,
            "account_key": ACCOUNT_KEY,
            "retry_seconds": 10,
            "timeout_seconds": 5,
        }
    finally:
        server.kill()
        server.wait(10)


def wait_for(port, server):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.poll() is None:
        try:
            return socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            threading.Event().wait(0.1)
    raise RuntimeError("azurite did not start")


@pytest.fixture(scope="module")
def uploaded(options, tmp_path_factory):
    """A plain and a sharded array, and a group, in the container ``data``."""
    local = tmp_path_factory.mktemp("local")
    zarr.create_array(local / "plain", data=DATA, chunks=(10, 6))
    zarr.create_array(local / "sharded", data=DATA, chunks=(10, 6), shards=(50, 6))
    zarr.create_group(local / "group").create_array("in/x", data=DATA, chunks=(10, 6))
    put_all(local, options)
    return options


def put_all(folder: Path, options):
    import obstore
    from obstore.store import from_url

    create_container(options)
    chosen = {n: options[n] for n in ("endpoint", "account_name", "account_key")}
    store = from_url("az://data", client_options={"allow_http": True}, **chosen)
    for file in folder.rglob("*"):
        if file.is_file():
            obstore.put(store, str(file.relative_to(folder)), file.read_bytes())


def create_container(options):
    """Obstore writes blobs only; a container is made with one signed request."""
    import base64
    import email.utils
    import hashlib
    import hmac
    import urllib.request

    date = email.utils.formatdate(usegmt=True)
    head = f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
    text = "PUT" + "\n" * 12 + f"{head}/{ACCOUNT}/{ACCOUNT}/data\nrestype:container"
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(f"{options['endpoint']}/data?restype=container", method="PUT")
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", "2021-08-06")
    request.add_header("Content-Length", "0")
    request.add_header("Authorization", f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}")
    assert urllib.request.urlopen(request, timeout=10).status == 201


@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_arrays_are_read(uploaded, name):
    source = open_source(f"az://data/{name}", **uploaded)
    out = {"": np.empty_like(DATA)}
    source.read(0, 100, out)
    assert np.array_equal(out[""], DATA) and source.reader == "direct"


def test_groups_are_listed_and_streamed(uploaded):
    with StreamLoader(open_source("az://data/group", **uploaded), 20) as loader:
        batches = list(loader)
    assert sum(len(batch["in/x"]) for batch in batches) == 100


def test_what_is_not_there_and_wrong_keys_are_sentences(uploaded):
    with pytest.raises(SourceError, match="no Zarr array or group"):
        open_source("az://data/nothing", **uploaded)
    wrong = {**uploaded, "account_key": ACCOUNT_KEY[::-1].strip("=") + "=="}
    with pytest.raises(SourceError) as caught:
        open_source("az://data/plain", **wrong)
    assert "\n" not in str(caught.value) and wrong["account_key"] not in str(caught.value)
