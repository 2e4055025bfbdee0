"""The vision collator: images to one scaled and normalised batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from penstock.arguments import array_of, flag, real_number, shown
from penstock.collate.columns import Columns, columns_of
from penstock.collate.default import collate_values
from penstock.collate.errors import CollateError
from penstock.collate.images import image_tensors
from penstock.collate.labels import label_tensor, take_target
from penstock.collate.stacking import batch_memory
from penstock.collate.task_spec import TaskSpec, check_task_spec
from penstock.errors import ConfigError
from penstock.registry import Registry

PerChannel: TypeAlias = tuple[float, ...]

# name -> mean and std of the data set's channels, of values in [0, 1]. Add your own.
NORMALIZATIONS: Registry[tuple[PerChannel, PerChannel]] = Registry(
    "normalization",
    {
        "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    },
)
FULL_SCALE = {torch.uint8: 255.0, torch.uint16: 65535.0, torch.bool: 1.0}
FIELDS = ("pixel_values", "image", "img")


class VisionCollator:
    """Batches of ``pixel_values`` (B, C, H, W) and, where samples have them, ``labels``.

    A sample is a dict with an image under ``pixel_values``, ``image`` or ``img`` (or what the
    task's ``input_fields`` name) and a label under ``labels`` or ``label``, a tuple
    ``(image, label)``, or an image. Images are PIL images, arrays or tensors, grey or RGB,
    channels first or last, all of one size. Integers are scaled to [0, 1] and become float32,
    whether or not they are normalised; floats keep their dtype.

    Labels are int64 classes; of a ``vision_multilabel`` task float32 vectors.

    Args:
        normalize: True or a name (``"imagenet"``, ``"cifar10"``): subtract mean, divide by std.
            True without ``mean`` and ``std`` is ImageNet. Grey images use the first channel's.
        mean: one value per channel, of values in [0, 1]; wins over the name.
        std: likewise.
        task_spec: its ``preprocessing_config`` (normalize, mean, std) wins over the arguments.

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
            raise ConfigError(
                f"mean and std must have same length, got {len(self.mean)} and {len(self.std)}"
            )
        if not all(each > 0 for each in self.std):
            raise ConfigError(f"std must be above 0 in every channel, got {self.std}")
        self.task_spec = task_spec

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        """The batch of ``samples``."""
        columns = columns_of(samples, ("pixel_values", "labels"))
        images = self._images(columns)
        target = take_target(columns, self.task_spec)
        batch: dict[str, Any] = {"pixel_values": self._pixels(images)}
        if target is not None:
            task_type = None if self.task_spec is None else self.task_spec.task_type
            batch["labels"] = label_tensor(target, multilabel=task_type == "vision_multilabel")
        return batch | {name: collate_values(each, name) for name, each in columns.items()}

    def _images(self, columns: Columns) -> list[torch.Tensor]:
        spec = self.task_spec
        wanted = FIELDS if spec is None else (*spec.input_fields, *FIELDS)
        hint = None if spec is None else spec.input_schema.get("channels_first")
        for name in wanted:
            if name in columns:
                images = image_tensors(columns.pop(name), channels_first=hint)
                _check_alike(images)
                return images
        raise CollateError(
            f"no image in samples with the fields {sorted(map(str, columns))}: give it under "
            f"one of {', '.join(dict.fromkeys(wanted))}"
        )

    def _pixels(self, images: list[torch.Tensor]) -> torch.Tensor:
        first = images[0]
        if not first.is_floating_point() and first.dtype not in FULL_SCALE:
            raise CollateError(
                f"pixel_values are {first.dtype}, whose full scale is unknown: give uint8, "
                "uint16, or floats in [0, 1]"
            )
        dtype = first.dtype if first.is_floating_point() else torch.float32
        pixels = _memory((len(images), *first.shape), dtype, first.device)
        _fill(pixels, images, self._channels(first), FULL_SCALE.get(first.dtype))
        return pixels

    def _channels(self, image: torch.Tensor) -> tuple[PerChannel, PerChannel] | None:
        if not self.normalize:
            return None
        channels = image.shape[0]
        if channels == 1:
            return self.mean[:1], self.std[:1]
        if channels != len(self.mean):
            raise CollateError(
                f"Number of channels ({channels}) doesn't match mean and std of "
                f"{len(self.mean)}: give one value per channel, or normalize=False"
            )
        return self.mean, self.std


def _fill(
    pixels: torch.Tensor,
    images: list[torch.Tensor],
    normalization: tuple[PerChannel, PerChannel] | None,
    full_scale: float | None,
) -> None:
    """Scale and normalise image by image, so that each is still in the cache for every step."""
    mean, std = normalization or ((0.0,), (1.0,))
    full = full_scale or 1.0
    offset, unit = (
        _worked_on(torch.tensor([full * each for each in values], dtype=torch.float64).to(pixels))
        for values in (mean, std)
    )
    for pixel, image in zip(_worked_on(pixels), images, strict=True):
        pixel[...] = image
        if normalization is not None:
            pixel -= offset.reshape(-1, 1, 1)
        if normalization is not None or full_scale is not None:
            pixel /= unit.reshape(-1, 1, 1)


def _worked_on(tensor: torch.Tensor) -> Any:
    """The same memory as an array, where numpy is at home in it.

    On one image numpy's single thread is as fast as torch's pool on idle cores, and many times
    faster than the pool when it has to fight for them.
    """
    at_home = tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
    return tensor.numpy() if at_home else tensor


def _memory(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return batch_memory(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=device)


def _check_alike(images: list[torch.Tensor]) -> None:
    first = images[0]
    for number, image in enumerate(images):
        if image.shape != first.shape:
            raise CollateError(
                f"Inconsistent pixel_values shapes: sample {number} is {tuple(image.shape)}, "
                f"sample 0 is {tuple(first.shape)}; resize or crop them to one size"
            )
        if image.dtype != first.dtype:
            raise CollateError(
                f"sample {number} has pixel_values of {image.dtype}, sample 0 of {first.dtype}: "
                "give all images of a batch in one dtype"
            )


def _per_channel(name: str, given: Any, usual: PerChannel) -> PerChannel:
    if given is None:
        return usual
    values = array_of(name, given, error=ConfigError)
    if values.ndim > 1 or not values.size or values.dtype.kind not in "iuf":
        raise ConfigError(f"{name} needs one value per channel, got {shown(given)}")
    numbers = values.reshape(-1).tolist()
    return tuple(real_number(name, each, error=ConfigError) for each in numbers)
