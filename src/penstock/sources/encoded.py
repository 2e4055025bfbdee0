"""Samples that are encoded one by one: files of arrays, images and sound, and members of archives.

`Decoder` turns the bytes of one sample into an array. `EncodedSource` stores where the bytes of
every sample are, by field; `sample_files.py` finds them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.arguments import image_shape, text
from penstock.errors import SourceError
from penstock.extras import optional
from penstock.sources.base import BaseSource
from penstock.sources.contract import Arrays, Field, Indices, Rows
from penstock.sources.npy import parse_header
from penstock.sources.storage import changed_file, read_exactly, reading, stamp
from penstock.sources.thread_buffers import Bytes, thread_buffer

LEAVE_OUT = "write or copy it again, or leave it out"
MOST_PIXELS = 1 << 28  # of an image; more is treated as a damaged header
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif")
OGG_HEADER, OGG_LAST = 27, 4  # bytes before the sizes of a page's parts; mark of the last page
NUMBERS = (".cls", ".cls2", ".class", ".count", ".index", ".inx", ".id")  # as webdataset has them


class Probed(NamedTuple):
    """The contents of a sample's header: shape, dtype, and the rate of sound (0 otherwise)."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    rate: int = 0

    def __str__(self) -> str:
        rate = f" at {self.rate} Hz" if self.rate else ""
        return f"shape {self.shape} of {self.dtype}{rate}"


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

    def __call__(self, step: Callable[[Bytes], Any], raw: Bytes, name: str) -> Any:
        """Return what `probe` or `decode` returns; an error of a library is a `SourceError`."""
        with reading(f"{name} as {self.name}", advice=LEAVE_OUT, errors=(Exception,)):
            return step(raw)


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

    def open(self, raw: Bytes) -> tuple[Any, str]:
        """Return an image that is not decoded yet, and the mode to read it in."""
        image = optional("PIL.Image", extra="arrow").open(io.BytesIO(raw.data))
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise ValueError(f"its header declares {width} x {height} pixels")
        return image, self.mode or (
            image.mode if image.mode not in ("P", "CMYK", "YCbCr") else "RGB"
        )

    def probe(self, raw: Bytes) -> Probed:
        """Return the shape of an image."""
        image, mode = self.open(raw)
        # an image of one pixel shows the shape and dtype that numpy gives to its mode
        one = np.asarray(optional("PIL.Image", extra="arrow").new(mode, (1, 1)))
        height, width = self.size or image.size[::-1]
        return Probed((height, width, *one.shape[2:]), one.dtype)

    def decode(self, raw: Bytes) -> Rows:
        """Return an image as an array."""
        image, mode = self.open(raw)
        image = image if image.mode == mode else image.convert(mode)
        return np.asarray(image if self.size is None else image.resize(self.size[::-1]))


def decoder_for(suffix: str, images: ImageOptions) -> Decoder:
    """Return the decoder for a suffix; if it is unknown, a sample is the bytes of its file."""
    suffix = suffix.lower()
    if suffix in IMAGES:
        return Decoder("image", images.probe, images.decode)
    if suffix in SOUNDS:
        return Decoder("sound", _probe_sound, _decode_sound)
    if suffix in NUMBERS:
        return NUMBER
    return ARRAY if suffix == ".npy" else BYTES


def _probe_npy(raw: Bytes) -> Probed:
    header = parse_header(io.BytesIO(raw.data))
    if header.dtype.hasobject or header.nbytes > raw.size:
        raise ValueError(f"it holds {header.shape} of dtype {header.dtype} in {raw.size} bytes")
    return Probed(header.shape, header.dtype.newbyteorder("="))


def _decode_npy(raw: Bytes) -> Rows:
    found = _probe_npy(raw)  # before memory is allocated
    array: Rows = np.load(io.BytesIO(raw.data), allow_pickle=False)
    return array.astype(found.dtype, copy=False)


def _probe_sound(raw: Bytes) -> Probed:
    # libsndfile reads a truncated file as a shorter one
    said = _sound_bytes(raw)
    if raw.size < said:
        raise ValueError(f"it has {raw.size} of {said} bytes")
    found = optional("soundfile", extra="audio").info(io.BytesIO(raw.data))
    shape = (found.frames,) if found.channels == 1 else (found.frames, found.channels)
    return Probed(shape, np.dtype(np.float32), found.samplerate)


def _sound_bytes(raw: Bytes) -> int:
    """Return the minimum size of a sound file, from its header; 0 if that does not declare it."""
    start = raw[:4].tobytes()
    if start in (b"RIFF", b"FORM"):  # WAV and AIFF
        said = int.from_bytes(raw[4:8].tobytes(), "little" if start == b"RIFF" else "big") + 8
        return said if said < 0xFFFFFFFF else 0  # a stream does not say its size
    if start != b"OggS":
        return 0
    page = raw[raw.tobytes().rindex(start) :]
    if page.size > OGG_HEADER and page[5] & OGG_LAST:
        ends = OGG_HEADER + int(page[OGG_HEADER - 1])
        return raw.size - page.size + ends + int(page[OGG_HEADER:ends].sum())
    raise ValueError("its last page is missing")


def _decode_sound(raw: Bytes) -> Rows:
    sound = optional("soundfile", extra="audio").read(io.BytesIO(raw.data), dtype="float32")
    array: Rows = sound[0]
    return array


ARRAY = Decoder("array", _probe_npy, _decode_npy)
BYTES = Decoder("bytes", lambda raw: Probed((raw.size,), raw.dtype), lambda raw: raw)
NUMBER = Decoder(
    "number",
    lambda raw: Probed((), np.dtype(np.int64)),
    lambda raw: np.array(int(raw.tobytes()), np.int64),
)


# -- a field of encoded samples


@dataclass(frozen=True, slots=True)
class Members:
    """The encoded samples of one field.

    Attributes:
        suffix: The suffix of their names, which selects the decoder.
        images: How images are read.
        field: The field; ragged if the lengths differ.
        paths: The file of each sample, or the one file of all of them.
        changed: When each of these files was written last, in nanoseconds.
        begins: Where the bytes of each sample begin in its file.
        sizes: The number of bytes of each sample.
        lengths: The length of each sample's first axis.
    """

    suffix: str
    images: ImageOptions
    field: Field
    paths: Sequence[Path] | Path
    changed: Indices
    begins: Indices
    sizes: Indices
    lengths: Indices

    def path(self, sample: int) -> Path:
        """Return the file of a sample."""
        return self.paths if isinstance(self.paths, Path) else self.paths[sample]

    def read(self, sample: int) -> Rows:
        """Return a sample, if it still has the shape that it had when it was indexed."""
        decoder = decoder_for(self.suffix, self.images)
        raw = thread_buffer("encoded", int(self.sizes[sample]))
        path = self.path(sample)
        read_exactly(path, raw, int(self.begins[sample]))
        if stamp(path)[1] != self.changed[sample % len(self.changed)]:
            raise changed_file(path)
        name, field = f"sample {sample} in {path}", self.field
        array: Rows = decoder(decoder.decode, raw, name)
        shape = (int(self.lengths[sample]), *field.shape) if field.ragged else field.shape
        if array.shape != shape or array.dtype != field.dtype:
            raise SourceError(
                f"{name} has shape {array.shape} of {array.dtype}, and had {shape} of "
                f"{field.dtype} when it was indexed: the file has changed; open the source again"
            )
        return array


def one_field(
    shapes: Iterable[tuple[str, Probed]], what: str, *, ragged: bool = False
) -> tuple[Field, Indices]:
    """Return the field of samples, and the length of each one's first axis.

    Samples of one shape are arrays, and samples that differ in their first axis only are ragged.

    Args:
        shapes: Name and header of each sample, at least one.
        what: The folder or archive, for messages.
        ragged: Whether samples of one shape are ragged too.
    """
    first: tuple[str, Probed] | None = None
    same, lengths = not ragged, []
    for name, found in shapes:
        first = first or (name, found)
        if (
            found[1:] != first[1][1:]
            or found.shape[1:] != first[1].shape[1:]
            or (len(found.shape) != len(first[1].shape))
        ):
            raise SourceError(
                f"{name} has {found}, and {first[0]} has {first[1]}: samples of "
                f"{what} may differ in their first axis only; convert them, or for images pass "
                "size=(height, width) and mode='RGB'"
            )
        same = same and found.shape == first[1].shape
        lengths.append(found.shape[0] if found.shape else 0)
    assert first is not None
    shape = first[1].shape if same else first[1].shape[1:]
    return Field(shape, first[1].dtype, ragged=not same), np.array(lengths, np.int64)


class EncodedSource(BaseSource):
    """Samples that are decoded one by one.

    Args:
        members: Where the samples of each field are; all fields have the same number.
        name: The folder or archive, for messages.
    """

    def __init__(self, members: dict[str, Members], name: str) -> None:
        self._members = members
        offsets = {
            field: np.append(0, np.cumsum(each.lengths))
            for field, each in members.items()
            if each.field.ragged
        }
        samples = len(next(iter(members.values())).sizes)
        fields = {field: each.field for field, each in members.items()}
        super().__init__(samples, fields, name, offsets)

    @property
    def files(self) -> list[Path]:
        """The file of each sample."""
        members = next(iter(self._members.values()))
        return [members.path(sample) for sample in range(len(self))]

    def _read(self, start: int, stop: int, out: Arrays) -> None:
        self._take(np.arange(start, stop), out)

    def _take(self, indices: Indices, out: Arrays) -> None:
        for name, rows in out.items():
            members, end = self._members[name], 0
            for row, sample in enumerate(indices.tolist()):
                array = members.read(sample)
                if members.field.ragged:
                    end, first = end + len(array), end
                    rows[first:end] = array
                else:
                    rows[row] = array
