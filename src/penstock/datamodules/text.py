"""Raw text in a dataset: which column it is, and which of its rows hold any."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.datamodules.kinds import is_hugging_face
from penstock.datamodules.splitting import chosen

log = logging.getLogger("penstock")

ROWS = 1000  # looked at together


def without_empty_text(data: Any, fields: Sequence[str]) -> Any:
    """The data less the rows whose text is empty or blank, as line-by-line corpora have them.

    Looks at Hugging Face datasets and lists; anything else would have to be read as a whole, and
    is given back as it is. How many were dropped is logged.
    """
    name = text_column(data, fields)
    if name is None:
        return data
    kept = np.flatnonzero(np.concatenate([*_filled(data, name)]))
    if len(kept) == len(data):
        return data
    log.info("%d of %d rows have no text and are left out", len(data) - len(kept), len(data))
    return chosen(data, kept.tolist())


def text_column(data: Any, fields: Sequence[str]) -> str | None:
    """The first of ``fields`` that holds strings; "" for a list of strings; None for neither."""
    if is_hugging_face(data):
        found = [name for name in fields if _is_strings(data.features.get(name))]
        return found[0] if found else None
    if not isinstance(data, list | tuple) or not data:
        return None
    if isinstance(data[0], str):
        return ""
    if isinstance(data[0], Mapping):
        return next((name for name in fields if isinstance(data[0].get(name), str)), None)
    return None


def _is_strings(feature: Any) -> bool:
    return getattr(feature, "dtype", None) in ("string", "large_string")


def _filled(data: Any, name: str) -> Iterator[npt.NDArray[np.bool_]]:
    """Which rows have text, some rows at a time."""
    rows = data.select_columns([name]).with_format(None) if is_hugging_face(data) else data
    for start in range(0, len(data), ROWS):
        some = rows[start : start + ROWS]
        if is_hugging_face(data):
            texts = some[name]
        else:
            texts = [row[name] if name else row for row in some]
        yield np.array([bool(text and text.strip()) for text in texts], bool)
