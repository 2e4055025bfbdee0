"""The collators of images and of waveforms: scaled, normalised or padded to one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from penstock.arguments import array_of, flag, function, real_number, shown, whole_number
from penstock.collate.default import (
    CollateError,
    Columns,
    at,
    batch_memory,
    collate_values,
    describe,
    label_tensor,
    take_inputs,
    tensor_of,
)
from penstock.collate.task_spec import TaskSpec, check_task_spec
from penstock.errors import ConfigError
from penstock.registry import Registry

PerChannel: TypeAlias = tuple[float, ...]

# Mean and std of each channel of well-known datasets, for values in [0, 1]; users may add theirs.
NORMALIZATIONS: Registry[tuple[PerChannel, PerChannel]] = Registry(
    "normalization",
    {
        "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    },
)
PIXEL_SCALE = {torch.uint8: 255.0, torch.uint16: 65535.0, torch.bool: 1.0}
IMAGE_FIELDS = ("pixel_values", "image", "img")
CHANNELS = (1, 3, 4)  # sizes that a dimension of channels may have
DIRECT_MODES = ("L", "RGB", "F", "I;16")  # PIL modes whose pixels are used without conversion

WAVE_FIELDS = ("waveform", "audio", "input_values", "array")
WAVE_SCALE = {torch.int16: 32768.0, torch.int32: 2147483648.0}


class VisionCollator:
    """Collator that returns ``pixel_values`` (B, C, H, W) and, where samples have them, ``labels``.

    A sample is a dict with an image under ``pixel_values``, ``image`` or ``img`` (or a field named
    in the task's ``input_fields``) and a label under ``labels`` or ``label``; a tuple
    ``(image, label)``; or an image. Images are PIL images, arrays or tensors, grey or RGB,
    channels first or last, all of the same size. Integers become float32 in [0, 1], with or
    without normalisation; floats keep their dtype.

    Labels are int64 classes, or float32 vectors for a ``vision_multilabel`` task.

    Args:
        normalize: True or a name (``"imagenet"``, ``"cifar10"``): subtract the mean and divide by
            the std. True without ``mean`` and ``std`` uses ImageNet's. Grey images use the values
            of the first channel.
        mean: One value per channel, for values in [0, 1]; takes precedence over the name.
        std: Like ``mean``.
        task_spec: Its ``preprocessing_config`` (normalize, mean, std) takes precedence over the
            arguments.

    >>> batch = VisionCollator("cifar10")([(torch.zeros(3, 2, 2, dtype=torch.uint8), 7)])
    >>> batch["pixel_values"].shape, batch["labels"]
    (torch.Size([1, 3, 2, 2]), tensor([7]))
    """

    def __init__(
        self,
        normalize: bool | str = True,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        task_spec: TaskSpec | None = None,
    ) -> None:
        check_task_spec(task_spec)
        config = (task_spec.preprocessing_config if task_spec is not None else None) or {}
        normalize = config.get("normalize", normalize)
        if not isinstance(normalize, str):
            flag("normalize", normalize, error=ConfigError)
        named = NORMALIZATIONS.find(normalize if isinstance(normalize, str) else "imagenet")
        self.normalize = bool(normalize)
        self.mean = _per_channel("mean", config.get("mean", mean), named[0])
        self.std = _per_channel("std", config.get("std", std), named[1])
        if len(self.mean) != len(self.std):
            raise ConfigError(f"mean and std must have same length, got {self.mean} and {self.std}")
        if not all(each > 0 for each in self.std):
            raise ConfigError(f"std must be above 0 in every channel, got {self.std}")
        self.task_spec = task_spec

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch of ``samples``."""
        spec = self.task_spec
        columns, values, target = take_inputs(samples, IMAGE_FIELDS, "image", spec)
        first = None if spec is None else spec.input_schema.get("channels_first")
        images = image_tensors(values, channels_first=first)
        batch: dict[str, Any] = {"pixel_values": self._pixels(images)}
        if target is not None:
            multilabel = spec is not None and spec.task_type == "vision_multilabel"
            batch["labels"] = label_tensor(target, multilabel=multilabel)
        return batch | {name: collate_values(each, name) for name, each in columns.items()}

    def _pixels(self, images: list[torch.Tensor]) -> torch.Tensor:
        first = images[0]
        scale = PIXEL_SCALE.get(first.dtype)
        if scale is None and not first.is_floating_point():
            raise CollateError(f"pixel_values are {first.dtype}, whose full scale is unknown")
        dtype = torch.float32 if scale is not None else first.dtype
        pixels = batch_memory((len(images), *first.shape), dtype, first.device)
        scale_by = scale or 1.0
        mean, std = self._normalization(first) if self.normalize else ((0.0,), (1.0,))
        offset, unit = (
            _as_array(torch.tensor([scale_by * v for v in values], dtype=torch.float64).to(pixels))
            for values in (mean, std)
        )
        # image by image: each is still in the cache for the next operation
        for pixel, image in zip(_as_array(pixels), images, strict=True):
            pixel[...] = image
            if self.normalize:
                pixel -= offset.reshape(-1, 1, 1)
            if self.normalize or scale is not None:
                pixel /= unit.reshape(-1, 1, 1)
        return pixels

    def _normalization(self, image: torch.Tensor) -> tuple[PerChannel, PerChannel]:
        channels = image.shape[0]
        if channels not in (1, len(self.mean)):
            raise CollateError(
                f"Number of channels ({channels}) doesn't match mean and std of "
                f"{len(self.mean)}: give one value per channel, or normalize=False"
            )
        return self.mean[:channels], self.std[:channels]


VisionDataCollator = VisionCollator  # the name in code written for other engines


def _as_array(tensor: torch.Tensor) -> Any:
    """Return the tensor's memory as an array, where numpy supports its device and dtype.

    For one image, numpy's single thread is as fast as torch's thread pool on idle cores, and many
    times faster than the pool on busy ones.
    """
    supported = tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
    return tensor.numpy() if supported else tensor


def _per_channel(name: str, given: Any, default: PerChannel) -> PerChannel:
    if given is None:
        return default
    values = array_of(name, given, error=ConfigError)
    if values.ndim > 1 or not values.size or values.dtype.kind not in "iuf":
        raise ConfigError(f"{name} needs one value per channel, got {shown(given)}")
    numbers = values.reshape(-1).tolist()
    return tuple(real_number(name, each, error=ConfigError) for each in numbers)


# -- images as tensors


def image_tensors(images: Sequence[Any], *, channels_first: bool | None) -> list[torch.Tensor]:
    """Return every image as a CxHxW tensor, sharing memory where possible; all must be alike.

    PIL images that are neither grey nor RGB become RGB, and so do grey ones in a batch with
    others. The channels of an array or tensor are the first or last dimension, the one whose size
    is 1, 3 or 4.

    Args:
        images: PIL images, arrays or tensors.
        channels_first: Where the channels are if both or neither dimension have such a size;
            None: first in tensors, last in arrays.
    """
    if _is_pil(images[0]):
        tensors = _pil_tensors(images)
    else:
        tensors = [_tensor(image, n, channels_first) for n, image in enumerate(images)]
    first = tensors[0]
    for number, image in enumerate(tensors):
        if image.shape != first.shape:
            raise CollateError(
                f"Inconsistent pixel_values shapes: sample {number} is {tuple(image.shape)}, "
                f"sample 0 is {tuple(first.shape)}; resize or crop them to one size"
            )
        if image.dtype != first.dtype:
            raise CollateError(f"sample {number} has pixels of {image.dtype}, not of {first.dtype}")
    return tensors


def _is_pil(image: Any) -> bool:
    # recognised by methods, because Pillow may not be installed
    return hasattr(image, "convert") and hasattr(image, "getbands")


def _pil_tensors(images: Sequence[Any]) -> list[torch.Tensor]:
    for number, image in enumerate(images):
        if not _is_pil(image):
            raise CollateError(f"{at('pixel_values', number)} is {describe(image)}, no PIL image")
    # a batch has one number of channels: unequal modes become RGB
    modes = {i.mode if i.mode in DIRECT_MODES else "L" if i.mode == "1" else "RGB" for i in images}
    mode = modes.pop() if len(modes) == 1 else "RGB"
    arrays = [np.array(image if image.mode == mode else image.convert(mode)) for image in images]
    tensors = map(torch.from_numpy, arrays)
    return [t.unsqueeze(0) if t.ndim == 2 else t.permute(2, 0, 1) for t in tensors]


def _tensor(image: Any, number: int, channels_first: bool | None) -> torch.Tensor:
    is_tensor = isinstance(image, torch.Tensor)
    array = image if is_tensor else np.asarray(image)
    if not is_tensor and array.dtype.kind not in "biuf":
        raise CollateError(f"{at('pixel_values', number)} is {describe(image)}, not an image")
    tensor: torch.Tensor = image if is_tensor else tensor_of(array)
    if tensor.ndim == 2:
        return tensor.unsqueeze(0)
    if tensor.ndim != 3:
        raise CollateError(
            f"{at('pixel_values', number)} has shape {tuple(tensor.shape)}, not CxHxW, HxWxC or HxW"
        )
    first, last = tensor.shape[0] in CHANNELS, tensor.shape[2] in CHANNELS
    if first == last:
        first = is_tensor if channels_first is None else channels_first
    return tensor if first else tensor.permute(2, 0, 1)


class AudioCollator:
    """Collator that returns ``waveforms``, ``lengths`` and, where samples have them, ``labels``.

    A sample is a dict with a waveform of shape ``(time,)`` or ``(channels, time)`` under
    ``waveform``, ``audio``, ``input_values`` or ``array`` (or a field named in the task's
    ``input_fields``), also in Hugging Face's form ``{"array": ..., "sampling_rate": ...}``; a tuple
    ``(waveform, label)``; or a waveform. Shorter waveforms are padded with zeros at the end;
    integers are scaled to [-1, 1).

    Args:
        spectrogram: A function of a waveform ``(..., time)``, such as
            ``penstock.transforms.Spectrogram(n_fft=512)``. Adds ``spectrograms`` and
            ``spectrogram_lengths`` (frames) to the batch, computed before padding.
        sample_rate: Samples per second that every waveform must have, checked where samples
            contain their rate. None only checks that the rates are equal.
        task_spec: Names the fields.

    >>> batch = AudioCollator()([{"waveform": torch.ones(3)}, {"waveform": torch.ones(2)}])
    >>> batch["waveforms"].tolist(), batch["lengths"].tolist()
    ([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]], [3, 2])
    """

    def __init__(
        self,
        spectrogram: Callable[[torch.Tensor], torch.Tensor] | None = None,
        sample_rate: int | None = None,
        task_spec: TaskSpec | None = None,
    ) -> None:
        if sample_rate is not None:
            whole_number("sample_rate", sample_rate, minimum=1, error=ConfigError)
        function("spectrogram", spectrogram, error=ConfigError)
        check_task_spec(task_spec)
        self.spectrogram, self.sample_rate, self.task_spec = spectrogram, sample_rate, task_spec

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return the batch of ``samples``."""
        columns, values, target = take_inputs(samples, WAVE_FIELDS, "waveform", self.task_spec)
        waveforms = self._waveforms(values, columns)
        batch: dict[str, Any] = {"waveforms": pad_last(waveforms, "waveform")}
        batch["lengths"] = torch.tensor([each.shape[-1] for each in waveforms])
        if self.spectrogram is not None:
            if len({each.shape[-1] for each in waveforms}) == 1:
                spectrograms = list(self.spectrogram(batch["waveforms"]).unbind())
            else:
                spectrograms = [self.spectrogram(each) for each in waveforms]
            batch["spectrograms"] = pad_last(spectrograms, "spectrogram")
            batch["spectrogram_lengths"] = torch.tensor([s.shape[-1] for s in spectrograms])
        if target is not None:
            batch["labels"] = label_tensor(target)
        return batch | {name: collate_values(each, name) for name, each in columns.items()}

    def _waveforms(self, values: list[Any], columns: Columns) -> list[torch.Tensor]:
        rates = [v.get("sampling_rate") if isinstance(v, Mapping) else None for v in values]
        if "sampling_rate" in columns:
            rates = list(collate_values(columns["sampling_rate"], "sampling_rate"))
        wanted = next((rate for rate in (self.sample_rate, *rates) if rate is not None), None)
        for number, rate in enumerate(rates):
            if rate is not None and rate != wanted:
                raise CollateError(
                    f"sample {number} has {rate} samples per second, expected {wanted}"
                )
        return [_waveform(each, at("waveform", number)) for number, each in enumerate(values)]


def pad_last(tensors: Sequence[torch.Tensor], path: str) -> torch.Tensor:
    """Return the tensors as one batch, with zeros after the end of shorter ones.

    >>> pad_last([torch.tensor([1.0]), torch.tensor([2.0, 3.0])], "x")
    tensor([[1., 0.],
            [2., 3.]])
    """
    first = tensors[0]
    for number, each in enumerate(tensors):
        if each.shape[:-1] != first.shape[:-1] or each.dtype != first.dtype:
            raise CollateError(
                f"{at(path, number)} is {each.dtype} of shape {tuple(each.shape)}, sample 0 has "
                f"{first.dtype} of shape {tuple(first.shape)}: only the last dimension may differ"
            )
    longest = max(each.shape[-1] for each in tensors)
    out = batch_memory((len(tensors), *first.shape[:-1], longest), first.dtype)
    for row, each in zip(out.unbind(), tensors, strict=True):
        row[..., : each.shape[-1]] = each
        row[..., each.shape[-1] :] = 0
    return out


def _waveform(value: Any, where: str) -> torch.Tensor:
    if isinstance(value, Mapping):
        value = value.get("array")
    array = value
    if not isinstance(array, torch.Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "iuf":
            raise CollateError(f"{where} is {describe(value)}, expected numbers")
        array = tensor_of(array)
    if array.ndim not in (1, 2):
        raise CollateError(f"{where} is {tuple(array.shape)}, expected (time,) or (channels, time)")
    if array.is_floating_point():
        return array.to(torch.float32) if array.dtype == torch.float64 else array
    if array.dtype not in WAVE_SCALE:
        raise CollateError(f"{where} is {array.dtype}, whose full scale is unknown")
    return array.to(torch.float32).div_(WAVE_SCALE[array.dtype])
