"""Waveforms to levels and back: linear and mu-law."""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p

import torch

from penstock.arguments import choice, flag, whole_number

QUANTIZATIONS = ("linear", "mu-law", None)
SPREAD = 1e-6  # so that a constant window divides by something


@dataclass(frozen=True, slots=True)
class Quantize:
    """Windows of a waveform as integer levels ``0 .. 2**bits - 1``.

    Every window is scaled by its own minimum and maximum first, over length and channels. Silence
    (a constant window) becomes the zero level; ``keep_silence_low=True`` gives level 0 instead, as
    the codebases did that trained the published models.

    Args:
        bits: 8 or 16, or any number in between and below.
        quantization: ``"linear"``, ``"mu-law"``, or None: the waveform itself.

    >>> Quantize(8, "linear")(torch.tensor([[-1.0], [0.0], [1.0]])).flatten().tolist()
    [0, 127, 255]
    """

    bits: int = 8
    quantization: str | None = "linear"
    keep_silence_low: bool = False

    def __post_init__(self) -> None:
        whole_number("bits", self.bits, minimum=1, maximum=24)
        choice("quantization", self.quantization, QUANTIZATIONS)
        flag("keep_silence_low", self.keep_silence_low)

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return 1 << self.bits

    @property
    def zero(self) -> int:
        """The level of silence."""
        return self.levels // 2

    def __call__(self, window: torch.Tensor) -> torch.Tensor:
        """Levels of one window, of any shape, int64; the window itself without quantization."""
        if self.quantization is None:
            return window
        low, high = window.min(), window.max()
        unit = (window - low) / (high - low + SPREAD)
        if self.quantization == "mu-law":
            unit = (self._compress(2 * unit - 1) + 1) / 2
        levels = (unit * (self.levels - 0.01) + 0.005).to(torch.int64)
        if bool(low == high) and not self.keep_silence_low:
            levels.fill_(self.zero)
        return levels

    def _compress(self, amplitude: torch.Tensor) -> torch.Tensor:
        mu = self.levels - 1
        loud = torch.log1p(mu * (amplitude + 1e-8).abs()) / log1p(mu)
        return amplitude.sign() * loud

    def decode(self, levels: torch.Tensor) -> torch.Tensor:
        """The waveform that levels stand for, in [-1, 1); its own scale is gone.

        >>> Quantize(8, "linear").decode(torch.tensor([0, 128, 192])).tolist()
        [-1.0, 0.0, 0.5]
        """
        if self.quantization is None:
            return levels
        wave = levels.to(torch.float32) / self.zero - 1
        if self.quantization == "linear":
            return wave
        mu = self.levels - 1
        return wave.sign() * ((1 + mu) ** wave.abs() - 1) / mu
