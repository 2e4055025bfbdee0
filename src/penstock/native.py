"""The functions of `native.c`, if they were compiled at installation.

They run without the interpreter's lock. Their arguments are addresses, which are not checked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Native(NamedTuple):
    """The compiled functions; `native.c` documents each of them."""

    copy: Callable[..., int]
    copy_boxes: Callable[..., int]
    join: Callable[..., None]
    decode: Callable[..., int]
    lookup: Callable[..., None]
    dense_rows: Callable[..., None] | None = None  # None if compiled from an older `native.c`


def _load() -> Native | None:
    address, number = ctypes.c_void_p, ctypes.c_int64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "copy": (number, [address, number, address, address, number, address, *[number] * 4]),
        "copy_boxes": (
            number,
            [*[address, number, address] * 2, number, number, number, address, number, number],
        ),
        "join": (None, [address, address, address, number]),
        "decode": (number, [*[address] * 6, number, number]),
        "lookup": (None, [address, address, number, address, number]),
        "dense_rows": (None, [address, number, address, address, number, address, number, number]),
    }
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("libnative.so")))
        if not hasattr(library, "penstock_dense_rows"):
            del signatures["dense_rows"]
        functions = {name: library[f"penstock_{name}"] for name in signatures}
    except (OSError, AttributeError):  # not compiled, or from an earlier version of the file
        return None
    for name, (found, arguments) in signatures.items():
        functions[name].restype, functions[name].argtypes = found, arguments
    return Native(**functions)


native = _load()  # None if there was no C compiler, see hatch_build.py
