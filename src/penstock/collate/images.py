"""Images as they come (PIL, arrays, tensors; channels first or last) as CxHxW tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.collate.columns import at
from penstock.collate.errors import CollateError
from penstock.collate.stacking import describe, tensor_of

CHANNELS = (1, 3, 4)  # what a channel dimension may be, where the other end is none of these
DIRECT_MODES = ("L", "RGB", "F", "I;16")  # PIL modes whose pixels are used as they are


def image_tensors(images: Sequence[Any], *, channels_first: bool | None) -> list[torch.Tensor]:
    """Every image as a CxHxW tensor of its own dtype, sharing memory where it can.

    PIL images that are neither grey nor RGB become RGB, and so do grey ones beside others. The
    channels of an array or tensor are the end of its shape that is 1, 3 or 4; where both ends or
    neither are, ``channels_first`` decides (None: first in tensors, last in arrays).
    """
    if is_pil(images[0]):
        return _pil_tensors(images)
    return [_tensor(image, number, channels_first) for number, image in enumerate(images)]


def is_pil(image: Any) -> bool:
    """Is this a PIL image? (Told by its methods: Pillow need not be installed to ask.)"""
    return hasattr(image, "convert") and hasattr(image, "getbands")


def _pil_tensors(images: Sequence[Any]) -> list[torch.Tensor]:
    for number, image in enumerate(images):
        if not is_pil(image):
            raise CollateError(
                f"{at('pixel_values', number)} is {describe(image)}, sample 0 has a PIL image"
            )
    modes = {_mode(image) for image in images}
    mode = modes.pop() if len(modes) == 1 else "RGB"
    arrays = [np.array(image if image.mode == mode else image.convert(mode)) for image in images]
    return [_channels_first(torch.from_numpy(array)) for array in arrays]


def _mode(image: Any) -> str:
    if image.mode in DIRECT_MODES:
        return str(image.mode)
    return "L" if image.mode == "1" else "RGB"


def _channels_first(image: torch.Tensor) -> torch.Tensor:
    return image.unsqueeze(0) if image.ndim == 2 else image.permute(2, 0, 1)


def _tensor(image: Any, number: int, channels_first: bool | None) -> torch.Tensor:
    is_tensor = isinstance(image, torch.Tensor)
    tensor = image if is_tensor else tensor_of(_array(image, number))
    if tensor.ndim == 2:
        return tensor.unsqueeze(0)
    if tensor.ndim != 3:
        raise CollateError(
            f"{at('pixel_values', number)} has shape {tuple(tensor.shape)}: an image is CxHxW, "
            "HxWxC or HxW"
        )
    first, last = tensor.shape[0] in CHANNELS, tensor.shape[2] in CHANNELS
    if first == last:
        first = is_tensor if channels_first is None else channels_first
    return tensor if first else tensor.permute(2, 0, 1)


def _array(image: Any, number: int) -> np.ndarray[Any, Any]:
    array = np.asarray(image)
    if array.dtype.kind not in "biuf":
        raise CollateError(
            f"{at('pixel_values', number)} is {describe(image)}: give a PIL image, an array or a "
            "tensor"
        )
    return array
