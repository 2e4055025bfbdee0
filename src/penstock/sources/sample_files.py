"""Folders and globs of files that are one sample each, and WebDataset archives.

The contents of the headers are cached, see `cache.cached_index`; the names, sizes and times of the
files are checked every time.
"""

from __future__ import annotations

import glob
import logging
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.arguments import a_path
from penstock.errors import SourceError
from penstock.registry import did_you_mean
from penstock.sources.cache import Index, cached_index
from penstock.sources.contract import Field, Indices, checked_names
from penstock.sources.encoded import (
    BYTES,
    IMAGES,
    SOUNDS,
    EncodedSource,
    ImageOptions,
    Members,
    Probed,
    decoder_for,
    one_field,
)
from penstock.sources.storage import is_pattern, read_exactly, reading, stamp
from penstock.sources.thread_buffers import thread_buffer

log = logging.getLogger(__name__)

UNCOMPRESSED = "write it as a .tar without compression"
SUFFIXES = (".npy", *IMAGES, *SOUNDS)  # of files that are one sample each


class FolderSource(EncodedSource):
    """The files of a folder, or those that a pattern matches, in the order of their names.

    A file is one sample: an array (``.npy``), an image, or sound (float32). Files of one shape are
    arrays; files that differ in their first axis are ragged. ``files`` lists them in order.

    Args:
        path: A folder, which is searched with its subfolders, or a pattern such as
            ``"clips/*.wav"``. Hidden files are left out.
        size: Height and width that images are resized to.
        mode: The mode that images are converted to, such as ``"RGB"`` or ``"L"``.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, size: Any = None, mode: str | None = None
    ) -> None:
        where = str(a_path("path", path, error=SourceError))
        images = ImageOptions.checked(size, mode)
        files, kind = _samples_in(where, images)

        def build() -> Index:
            sizes, changed = np.array([stamp(file) for file in files], np.int64).T
            pairs = zip(files, sizes.tolist(), strict=True)
            headers = ((str(f), _probe(f.suffix, images, f, 0, size)) for f, size in pairs)
            return _packed(changed, np.zeros_like(sizes), sizes, *one_field(headers, where))

        index = cached_index("files-3", files, [kind, images.size, images.mode], build)
        super().__init__({"": _unpacked(index, "", files[0].suffix, images, files)}, where)


def has_samples(folder: Path) -> bool:
    """Return whether a folder or its subfolders have a file that is a sample."""
    return next(_walk(folder), None) is not None


def are_samples(paths: Sequence[str]) -> bool:
    """Return whether all files are samples by their suffixes."""
    return all(path.lower().endswith(SUFFIXES) for path in paths)


def _samples_in(where: str, images: ImageOptions) -> tuple[list[Path], str]:
    """Return the files in order, and their kind, which is the same for all."""
    if is_pattern(where):
        found = map(Path, glob.iglob(where, recursive=True))  # noqa: PTH207 - absolute ones too
        files = sorted(path for path in found if path.is_file())
    else:
        files = sorted(_walk(Path(where)))
    kinds: dict[str, Path] = {}
    for file in files:
        if file.suffix.lower() not in SUFFIXES:
            raise SourceError(
                f"{file} is not an array (.npy), an image or sound: narrow the pattern {where}"
            )
        kinds.setdefault(decoder_for(file.suffix, images).name, file)
    if len(kinds) > 1:
        shown = " and ".join(f"{kind}s ({file})" for kind, file in kinds.items())
        raise SourceError(f"{where} has {shown}: choose one kind with a pattern such as '*.npy'")
    if not kinds:
        raise SourceError(f"there are no files of samples in {where}")
    return files, next(iter(kinds))


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(parent, name)


def _probe(suffix: str, images: ImageOptions, path: Path, begin: int, size: int) -> Probed:
    raw, decoder = thread_buffer("encoded", size), decoder_for(suffix, images)
    read_exactly(path, raw, begin)
    found: Probed = decoder(decoder.probe, raw, str(path))
    return found


def _packed(
    changed: Indices, begins: Indices, sizes: Indices, field: Field, lengths: Indices
) -> Index:
    """Return where samples are, and what they are, as arrays that can be saved."""
    shape = np.array([field.ragged, *field.shape], np.int64)
    places = {"changed": changed, "begins": begins, "sizes": sizes, "lengths": lengths}
    return {**places, "shape": shape, "item": np.empty(0, field.dtype)}


def _unpacked(
    index: Index, prefix: str, suffix: str, images: ImageOptions, paths: Sequence[Path] | Path
) -> Members:
    ragged, *shape = index[f"{prefix}shape"].tolist()
    field = Field(tuple(shape), index[f"{prefix}item"].dtype, ragged=bool(ragged))
    places = (index[f"{prefix}{part}"] for part in ("changed", "begins", "sizes", "lengths"))
    return Members(suffix, images, field, paths, *places)


# -- WebDataset


class TarMember(NamedTuple):
    """A file in an archive: the sample it belongs to, its extension, and where its bytes are."""

    key: str
    extension: str
    begin: int
    size: int


class TarSource(EncodedSource):
    """A WebDataset archive (``.tar``): files of one name and several extensions are a sample.

    Each extension is a field: ``npy``, images and sound are decoded, ``cls`` and other numbers are
    int64, and anything else, such as ``txt`` and ``json``, are bytes (ragged). The archive is read
    once to index it; the index is cached.

    Args:
        path: The archive, without compression.
        columns: Extensions; all of them if None.
        size: Height and width that images are resized to.
        mode: The mode that images are converted to, such as ``"RGB"``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        size: Any = None,
        mode: str | None = None,
    ) -> None:
        file = a_path("path", path, error=SourceError)
        names, images = checked_names("columns", columns), ImageOptions.checked(size, mode)
        index = cached_index(
            "tar-3",
            [file],
            [names, images.size, images.mode],
            lambda: _index_tar(file, names, images),
        )
        members = {
            name: _unpacked(index, f"{name}/", _suffix(name), images, file)
            for name in index["fields"].tolist()
        }
        super().__init__(members, str(file))


def _suffix(extension: str) -> str:
    return f".{extension.rpartition('.')[2]}"


def _index_tar(file: Path, names: list[str] | None, images: ImageOptions) -> Index:
    samples: dict[str, dict[str, TarMember]] = {}
    changed = np.array(stamp(file)[1:], np.int64)
    for member in _tar_members(file):
        sample = samples.setdefault(member.key, {})
        if member.extension in sample:
            raise SourceError(f"{file} has two files {member.key}.{member.extension}: remove one")
        sample[member.extension] = member
    if not samples:
        raise SourceError(f"{file} has no files of samples, such as 000001.npy")
    fields = names or list(next(iter(samples.values())))
    index: Index = {"fields": np.array(fields)}
    for name in fields:
        members = [_named(file, key, sample, name) for key, sample in samples.items()]
        suffix = _suffix(name)
        shapes = (
            (f"{m.key}.{name}", _probe(suffix, images, file, m.begin, m.size)) for m in members
        )
        ragged = decoder_for(suffix, images) is BYTES
        begins, sizes = np.array([member[2:] for member in members], np.int64).T
        packed = _packed(changed, begins, sizes, *one_field(shapes, str(file), ragged=ragged))
        index |= {f"{name}/{part}": array for part, array in packed.items()}
    return index


def _named(file: Path, key: str, sample: dict[str, TarMember], name: str) -> TarMember:
    if name not in sample:
        raise SourceError(
            f"sample {key!r} of {file} has no file {key}.{name}{did_you_mean(name, sample)}: all "
            "samples need the same files; choose some with fields=[...]"
        )
    return sample[name]


def _tar_members(file: Path) -> Iterator[TarMember]:
    """Yield the files of an archive, without those that WebDataset ignores."""
    size = stamp(file)[0]
    with reading(file, advice=UNCOMPRESSED), tarfile.open(file, "r:") as archive:
        for member in archive:
            match = re.fullmatch(r"((?:.*/)?[^./][^./]*)\.([^/]+)", member.name)
            if member.isreg() and match is not None and not member.issparse():
                if member.offset_data + member.size > size:
                    raise SourceError(f"{file} is truncated: write or copy it again")
                yield TarMember(match[1], match[2].lower(), member.offset_data, member.size)
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
