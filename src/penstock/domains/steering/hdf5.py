"""From .pt files to one HDF5 file."""

from __future__ import annotations

import json
import logging
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from penstock.arguments import a_path, choice
from penstock.atomic_files import replace_text, replacing
from penstock.checks import InvalidDataError
from penstock.domains.steering.config import read_config
from penstock.domains.steering.integrity import first_of, shape_faults
from penstock.domains.steering.layout import CONFIG, HDF5, KEYWORDS, SPLIT_TABLES, TABLES
from penstock.domains.steering.reading import PtReader, hdf5_library
from penstock.domains.steering.tables import dimensions_of

log = logging.getLogger("penstock")

COMPRESSIONS = ("gzip", "lzf", None)
BLOCK_BYTES = 16 << 20


def convert_to_hdf5(
    dataset_dir: str | PathLike[str],
    target_dir: str | PathLike[str] | None = None,
    *,
    compression: str | None = "gzip",
) -> Path:
    """The dataset.h5 written from the .pt files of a directory, beside them or elsewhere.

    The file appears when it is complete, never before. Tables are copied in blocks, so that
    memory does not grow with them. A ``target_dir`` gets dataset.h5 and config.json;
    ``compression`` is "gzip", "lzf", or None, which can be mapped into memory.
    """
    choice("compression", compression, COMPRESSIONS)
    library = hdf5_library()
    source = a_path("dataset_dir", dataset_dir)
    target = source if target_dir is None else a_path("target_dir", target_dir)
    config = read_config(source)
    reader = PtReader(source)
    target.mkdir(parents=True, exist_ok=True)
    with replacing(target / HDF5) as new, library.File(new, "x", libver="latest") as file:
        tables = {t.name: reader.column(t) for t in (*TABLES, *SPLIT_TABLES.values())}
        first_of(shape_faults(tables, dimensions_of(config), reader.place))
        for table in (*TABLES, *SPLIT_TABLES.values()):
            _copy(file, table.hdf5, tables[table.name], compression)
        _copy_keywords(file, reader, len(tables["pair_index"]))  # type: ignore[arg-type]
    if target_dir is not None:
        settings = dict(config.raw) | {"storage_format": "hdf5"}
        replace_text(target / CONFIG, json.dumps(settings, indent=2))
    log.info("%s written: %.1f MB", HDF5, (target / HDF5).stat().st_size / 1e6)
    return target / HDF5


def _copy(file: Any, name: str, tensor: Any, compression: str | None) -> None:
    whole = tensor.numel() == 0 or compression is None
    column = file.create_dataset(
        name,
        shape=tuple(tensor.shape),
        dtype=tensor.numpy().dtype,
        compression=None if whole else compression,
    )
    rows = max(1, BLOCK_BYTES // max(1, tensor[:1].nbytes))
    for start in range(0, len(tensor), rows):
        column[start : start + rows] = tensor[start : start + rows].numpy()


def _copy_keywords(file: Any, reader: PtReader, pairs: int) -> None:
    offsets, values = reader.keywords()
    if len(offsets) - 1 != pairs:
        raise InvalidDataError(
            f"{KEYWORDS.file} must have {pairs} lists, one for each pair, found {len(offsets) - 1}"
        )
    group = file.create_group(KEYWORDS.hdf5)
    for row, ids in enumerate(np.split(values.astype(np.int32), offsets[1:-1])):
        group.create_dataset(str(row), data=ids)
