"""ARCHITECTURE.md names every file that a row passes on its way from Zarr to a batch."""

import inspect
import re
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import zarr

import penstock
from penstock import StreamLoader

PACKAGE = Path(penstock.__file__).parent
PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"


@contextmanager
def calls():
    """Collect the files of the package that have a call, in any thread."""
    files = set()

    def note(frame, event, argument):
        code = frame.f_code
        body_of_a_class = not code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and not body_of_a_class and code.co_filename.startswith(str(PACKAGE)):
            files.add(Path(code.co_filename).relative_to(PACKAGE).as_posix())

    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])


def test_every_file_on_the_walk_of_a_row_is_named(tmp_path):
    rows = np.arange(4000, dtype="f4").reshape(1000, 4)
    zarr.create_array(tmp_path / "rows.zarr", data=rows, chunks=(50, 4))
    StreamLoader(tmp_path / "rows.zarr", batch_size=32).close()  # imports what it needs
    with calls() as walked, StreamLoader(tmp_path / "rows.zarr", batch_size=32) as loader:
        assert len(next(iter(loader))) == 32
    walk = PAGE.read_text().partition("## From a row")[2].partition("## From a map-style")[0]
    named = re.findall(r"`([\w/]+\.py)`", walk)
    assert len(walked) > 30
    assert not {file for file in walked if not any(f"/{file}".endswith(f"/{n}") for n in named)}
