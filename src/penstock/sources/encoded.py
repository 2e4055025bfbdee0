"""Samples that are encoded one by one: files of arrays, images and sound, and members of archives.

`Decoder` turns the bytes of one sample into an array. `EncodedSource` has for each field the place
of every sample's bytes; `sample_files.py` finds them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.arguments import image_shape, text
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.fingerprints import digest, field_facts, sampled_blocks
from penstock.sources.base import Arrays, BaseSource, Field, Indices, Rows
from penstock.sources.npy import parse_header
from penstock.sources.storage import new_memory, read_exactly
from penstock.sources.thread_buffers import Bytes, thread_buffer

MOST_PIXELS = 1 << 28  # of an image; more is taken for a damaged header
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif")
NUMBERS = (".cls", ".cls2", ".class", ".count", ".index", ".inx", ".id")  # as webdataset has them


class Probed(NamedTuple):
    """What the header of a sample says: shape, dtype, and the rate of sound (else 0)."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    rate: int = 0


@dataclass(frozen=True, slots=True)
class Decoder:
    """How the bytes of a sample become an array.

    Attributes:
        name: The kind of samples, such as ``"image"``.
        probe: Returns shape and dtype, from the header if possible.
        decode: Returns the array.
    """

    name: str
    probe: Callable[[Bytes], Probed]
    decode: Callable[[Bytes], Rows]


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How images are read: resized to (height, width), and converted to a mode such as "RGB"."""

    size: tuple[int, int] | None = None
    mode: str | None = None

    @classmethod
    def checked(cls, size: Any, mode: Any) -> ImageOptions:
        """Return the options, if they are valid."""
        return cls(
            None if size is None else image_shape("size", size, error=SourceError),
            None if mode is None else text("mode", mode, error=SourceError),
        )


def decoder_for(suffix: str, images: ImageOptions) -> Decoder | None:
    """Return the decoder of files with a suffix, or None if their bytes are the sample."""
    suffix = suffix.lower()
    if suffix == ".npy":
        return Decoder("array", _probe_npy, _decode_npy)
    if suffix in IMAGES:
        return Decoder("image", partial(_probe_image, images), partial(_decode_image, images))
    if suffix in SOUNDS:
        return Decoder("sound", _probe_sound, _decode_sound)
    if suffix in NUMBERS:
        return Decoder("number", _probe_number, _decode_number)
    return None


def _probe_bytes(raw: Bytes) -> Probed:
    return Probed((raw.size,), raw.dtype)


def _decode_bytes(raw: Bytes) -> Rows:
    return raw


BYTES = Decoder("bytes", _probe_bytes, _decode_bytes)


def _probe_npy(raw: Bytes) -> Probed:
    header = parse_header(io.BytesIO(raw.data))
    if header.dtype.hasobject or header.nbytes > raw.size:
        raise ValueError(f"it holds {header.shape} of {header.dtype} in {raw.size} bytes")
    return Probed(header.shape, header.dtype.newbyteorder("="))


def _decode_npy(raw: Bytes) -> Rows:
    found = _probe_npy(raw)  # before memory is allocated
    array: Rows = np.load(io.BytesIO(raw.data), allow_pickle=False)
    return array.astype(found.dtype, copy=False)


def _open_image(images: ImageOptions, raw: Bytes) -> Any:
    image = optional("PIL.Image", extra="arrow").open(io.BytesIO(raw.data))
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise ValueError(f"it says that it has {width} x {height} pixels")
    mode = images.mode or (image.mode if image.mode not in ("P", "CMYK", "YCbCr") else "RGB")
    return image, mode


def _probe_image(images: ImageOptions, raw: Bytes) -> Probed:
    image, mode = _open_image(images, raw)
    # an image of one pixel tells what numpy makes of its mode
    one = np.asarray(optional("PIL.Image", extra="arrow").new(mode, (1, 1)))
    height, width = images.size or image.size[::-1]
    return Probed((height, width, *one.shape[2:]), one.dtype)


def _decode_image(images: ImageOptions, raw: Bytes) -> Rows:
    image, mode = _open_image(images, raw)
    image = image if image.mode == mode else image.convert(mode)
    if images.size is not None:
        image = image.resize(images.size[::-1])
    return np.asarray(image)


def _probe_sound(raw: Bytes) -> Probed:
    found = optional("soundfile", extra="audio").info(io.BytesIO(raw.data))
    shape = (found.frames,) if found.channels == 1 else (found.frames, found.channels)
    return Probed(shape, np.dtype(np.float32), found.samplerate)


def _decode_sound(raw: Bytes) -> Rows:
    sound = optional("soundfile", extra="audio").read(io.BytesIO(raw.data), dtype="float32")
    array: Rows = sound[0]
    return array


def _probe_number(raw: Bytes) -> Probed:
    return Probed((), np.dtype(np.int64))


def _decode_number(raw: Bytes) -> Rows:
    return np.array(int(raw.tobytes()), np.int64)


# -- a field of encoded samples


@dataclass(frozen=True, slots=True)
class Members:
    """The encoded samples of one field.

    Attributes:
        decoder: Turns bytes into arrays.
        paths: The file of each sample.
        begins: Where the bytes of each sample begin in its file.
        sizes: The number of bytes of each sample.
        lengths: The length of each sample's first axis.
        field: The field; ragged if the lengths differ.
    """

    decoder: Decoder
    paths: Sequence[Path]
    begins: Indices
    sizes: Indices
    lengths: Indices
    field: Field

    def raw(self, sample: int, allocate: Callable[[int], Bytes]) -> Bytes:
        """Return the bytes of a sample."""
        into = allocate(int(self.sizes[sample]))
        read_exactly(self.paths[sample], into, int(self.begins[sample]))
        return into

    def read(self, sample: int) -> Rows:
        """Return a sample, if it still has the shape that it had when it was indexed."""
        path = self.paths[sample]
        raw = self.raw(sample, lambda nbytes: thread_buffer("encoded", nbytes))
        array: Rows = decoded(self.decoder.decode, raw, f"sample {sample} in {path}", self.decoder)
        field = self.field
        shape = (int(self.lengths[sample]), *field.shape) if field.ragged else field.shape
        if array.shape != shape or array.dtype != field.dtype:
            raise SourceError(
                f"sample {sample} in {path} has shape {array.shape} of {array.dtype}, and had "
                f"{shape} of {field.dtype} when it was indexed: the file has changed; open the "
                "source again"
            )
        return array


def decoded(step: Callable[[Bytes], Any], raw: Bytes, name: str, decoder: Decoder) -> Any:
    """Return what a step of a decoder returns; any error of its library is a `SourceError`."""
    try:
        return step(raw)
    except (SourceError, ImportError):
        raise
    except Exception as error:
        why = re.sub(r" ?<[^>]*>", "", " ".join(str(error).split()))[:200] or type(error).__name__
        raise SourceError(
            f"{name} is not a readable {decoder.name} ({why}): write or copy it again, or leave "
            "it out"
        ) from error


def one_field(
    shapes: Iterable[tuple[str, Probed]], what: str, *, ragged: bool = False
) -> tuple[Field, Indices]:
    """Return the field of samples, and the length of each one's first axis.

    Samples of one shape are arrays, and samples that differ in their first axis only are ragged.

    Args:
        shapes: Name and header of each sample.
        what: The folder or archive, for messages.
        ragged: Whether samples of one shape are ragged too.
    """
    first: tuple[str, Probed] | None = None
    same, lengths = not ragged, []
    for name, found in shapes:
        first = first or (name, found)
        inner = found.shape[1:], found.dtype, found.rate, len(found.shape)
        if inner != (first[1].shape[1:], first[1].dtype, first[1].rate, len(first[1].shape)):
            raise SourceError(
                f"{name} has {_shown(found)}, and {first[0]} has {_shown(first[1])}: samples of "
                f"{what} may differ in their first axis only; convert them, or for images pass "
                "size=(height, width) and mode='RGB'"
            )
        same = same and found.shape == first[1].shape
        lengths.append(found.shape[0] if found.shape else 0)
    if first is None:
        raise SourceError(f"there are no samples in {what}")
    shape = first[1].shape if same else first[1].shape[1:]
    return Field(shape, first[1].dtype, ragged=not same), np.array(lengths, np.int64)


def _shown(found: Probed) -> str:
    rate = f" at {found.rate} Hz" if found.rate else ""
    return f"shape {found.shape} of {found.dtype}{rate}"


class EncodedSource(BaseSource):
    """Samples that are decoded one by one.

    Args:
        members: Where the samples of each field are; all fields have as many.
        name: The folder or archive, for messages.
    """

    def __init__(self, members: dict[str, Members], name: str) -> None:
        self._members, self._name = members, name
        self._ends = {
            field: np.concatenate([[0], np.cumsum(each.lengths)])
            for field, each in members.items()
            if each.field.ragged
        }
        samples = len(next(iter(members.values())).sizes)
        super().__init__(samples, {name: each.field for name, each in members.items()})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, {len(self)} samples of {list(self.fields)})"

    @property
    def files(self) -> list[Path]:
        """The file of each sample."""
        return list(next(iter(self._members.values())).paths)

    def offsets(self, name: str) -> Indices:
        """Return where each sample's items of a ragged field begin."""
        return self._ends[name] if name in self._ends else super().offsets(name)

    def fingerprint(self) -> str:
        """Return an identity: number and size of samples, and the bytes of a few of them."""
        facts: list[Any] = [len(self), field_facts(self._fields)]
        for each in self._members.values():
            sizes = each.sizes.astype("<i8").tobytes()
            facts.append(digest([], [sizes, each.lengths.astype("<i8").tobytes()]))
        chosen = sampled_blocks(len(self))
        parts = (m.raw(sample, new_memory) for m in self._members.values() for sample in chosen)
        return digest(facts, parts)

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        self._fill(range(start, stop), out)

    def _take(self, indices: Indices, out: Arrays) -> None:
        self._fill(indices.tolist(), out)

    def _fill(self, samples: Iterable[int], out: Arrays) -> None:
        ends = dict.fromkeys(out, 0)
        for row, sample in enumerate(samples):
            for name, rows in out.items():
                array = self._members[name].read(sample)
                if self._fields[name].ragged:
                    first = ends[name]
                    ends[name] = first + len(array)
                    rows[first : ends[name]] = array
                else:
                    rows[row] = array
