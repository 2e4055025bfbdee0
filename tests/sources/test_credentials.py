"""What gives access is in no message, log, state, description or repr."""

import logging
import pickle

import numpy as np
import pytest
import zarr

from penstock import StreamLoader
from penstock.errors import PenstockError
from penstock.sources import open_source
from penstock.sources.storage import is_url, redacted
from tests.s3_server import KEY, SECRET, Server

SECRETS = ("hidden-key", "hidden-secret", "hidden-token", "hidden-sig")
URLS = [
    "{scheme}://hidden-key:hidden-secret@127.0.0.1:9/bucket/x.zarr",
    "{scheme}://hidden-secret@127.0.0.1:9/x.zarr",
    "{scheme}://127.0.0.1:9/x.zarr?token=hidden-token&X-Amz-Signature=hidden-sig",
    "{scheme}://hidden-key:hidden-secret@127.0.0.1:9/x.zarr?token=hidden-token#hidden-sig",
    "{scheme}://hidden-key:p@hidden-secret@127.0.0.1:9/x.zarr",
]
SCHEMES = ["s3", "S3", "gs", "az", "abfss", "http", "https", "HTTPS", "ftp", "hdfs", "file"]
QUICK = {"retry_seconds": 0, "timeout_seconds": 0.5}


def visible(text):
    return [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_error_about_a_url_shows_what_it_holds(scheme, url, caplog):
    address = url.format(scheme=scheme)
    options = QUICK if is_url(address) else {}
    with caplog.at_level(logging.DEBUG):
        for call in (
            lambda: open_source(address, **options),
            lambda: open_source([address], **options),
            lambda: open_source({"x": address}, **options),
            lambda: open_source({address}),
            lambda: open_source(address, fields=["x"], along="time", **options),
        ):
            with pytest.raises(PenstockError) as caught:
                call()
            chain, error = [], caught.value
            while error is not None:
                chain.append(str(error))
                error = error.__cause__ or (
                    None if error.__suppress_context__ else error.__context__
                )
            assert not visible(" ".join(chain)), chain
    assert not visible(caplog.text)


@pytest.mark.parametrize("url", URLS)
def test_redacting_keeps_the_rest(url):
    text = redacted(f"cannot open {url.format(scheme='s3')} now")
    assert not visible(text) and "127.0.0.1:9" in text and text.endswith("now")
    assert redacted("s3://bucket/x.zarr") == "s3://bucket/x.zarr"
    assert redacted("/data/a@b/x.zarr") == "/data/a@b/x.zarr"


def test_no_error_about_options_shows_their_values(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    hidden = {"secret_access_key": "hidden-secret", "access_key_id": "hidden-key"}
    for where in (tmp_path / "x.npy", np.arange(3), open_source(np.arange(3))):
        with pytest.raises(PenstockError) as caught:
            open_source(where, **hidden)
        assert not visible(str(caught.value)) and not visible(str(caught.value.__cause__))
    for wrong in ({"no_such_option": "hidden-secret"}, {"region": ["hidden-secret"]}):
        with pytest.raises(PenstockError) as caught:
            open_source("s3://bucket/x", **hidden, **wrong, **QUICK)
        assert not visible(str(caught.value)) and caught.value.__cause__ is None


def test_a_stream_from_a_url_shows_no_credentials(tmp_path):
    (tmp_path / "bucket").mkdir()
    zarr.create_array(tmp_path / "bucket/a", data=np.arange(100.0), chunks=(10,))
    server = Server(tmp_path)
    try:
        source = open_source(f"s3://{KEY}:{SECRET}@bucket/a?token=hidden-token", **server.options())
        with StreamLoader(source, 10) as loader:
            next(iter(loader))
            shown = [loader.describe(), repr(loader.source), str(loader.state_dict()), repr(loader)]
            assert not any(secret in " ".join(shown) for secret in (SECRET, "hidden-token"))
        assert repr(pickle.loads(pickle.dumps(source))) == repr(source)
    finally:
        server.kill()
