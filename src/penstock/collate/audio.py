"""The audio collator: waveforms of unequal length become one padded batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from penstock.arguments import function, whole_number
from penstock.collate.default import (
    CollateError,
    Columns,
    at,
    batch_memory,
    collate_values,
    columns_of,
    describe,
    label_tensor,
    take_field,
    take_target,
    tensor_of,
)
from penstock.collate.task_spec import TaskSpec, check_task_spec
from penstock.errors import ConfigError

FIELDS = ("waveform", "audio", "input_values", "array")
FULL_SCALE = {torch.int16: 32768.0, torch.int32: 2147483648.0}


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
        columns = columns_of(samples, ("waveform", "labels"))
        waveforms = self._waveforms(columns)
        target = take_target(columns, self.task_spec)
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

    def _waveforms(self, columns: Columns) -> list[torch.Tensor]:
        named = () if self.task_spec is None else tuple(self.task_spec.input_fields)
        values = take_field(columns, (*named, *FIELDS), "waveform")
        rates = [v.get("sampling_rate") if isinstance(v, Mapping) else None for v in values]
        if "sampling_rate" in columns:
            rates = [int(each) for each in columns["sampling_rate"]]
        wanted = next((rate for rate in (self.sample_rate, *rates) if rate is not None), None)
        for number, rate in enumerate(rates):
            if rate is not None and rate != wanted:
                raise CollateError(
                    f"sample {number} has {rate} samples a second, expected {wanted}: resample "
                    "the recordings to one rate first"
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
        raise CollateError(
            f"{where} has shape {tuple(array.shape)}, expected (time,) or (channels, time)"
        )
    if array.is_floating_point():
        return array.to(torch.float32) if array.dtype == torch.float64 else array
    if array.dtype not in FULL_SCALE:
        raise CollateError(
            f"{where} is {array.dtype}, whose full scale is unknown: give int16, int32 or floats"
        )
    return array.to(torch.float32).div_(FULL_SCALE[array.dtype])
