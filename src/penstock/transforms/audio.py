"""Waveforms as integer levels, and as power spectrograms."""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p

import torch

from penstock.arguments import choice, flag, whole_number

QUANTIZATIONS = ("linear", "mu-law", None)
SPREAD = 1e-6  # avoids a division by zero for constant windows
MOST_SAMPLES = 1 << 24  # per window: memory of that size is allocated


@dataclass(frozen=True, slots=True)
class Quantize:
    """Quantization of windows of a waveform to integer levels from 0 to ``2**bits - 1``.

    Every window is scaled by its own minimum and maximum first, over length and channels. Silence
    (a constant window) becomes the zero level.

    Args:
        bits: From 1 to 24; usually 8 or 16.
        quantization: ``"linear"``, ``"mu-law"``, or None to return the waveform itself.
        keep_silence_low: Whether silence becomes level 0 instead, as in the code that trained the
            published models.

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
        """Number of levels."""
        return 1 << self.bits

    @property
    def zero(self) -> int:
        """The level of silence."""
        return self.levels // 2

    def __call__(self, window: torch.Tensor) -> torch.Tensor:
        """Return the levels of one window of any shape, as int64."""
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
        """Return the waveform of some levels, in [-1, 1); its original scale is lost.

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


class Spectrogram:
    """The power spectrogram ``(..., n_fft // 2 + 1, frames)`` of a waveform ``(..., time)``.

    Equal to torchaudio's ``Spectrogram`` with its defaults: Hann window, centred frames, reflected
    at the borders. A waveform too short to be reflected (up to ``n_fft // 2`` long) is padded with
    zeros; an empty one counts as one sample of silence.

    Args:
        n_fft: Samples per window.
        hop_length: Samples between windows; None for half a window.

    >>> Spectrogram(n_fft=512)(torch.zeros(2, 16000)).shape
    torch.Size([2, 257, 63])
    """

    def __init__(self, n_fft: int = 400, hop_length: int | None = None) -> None:
        self.n_fft = whole_number("n_fft", n_fft, minimum=2, maximum=MOST_SAMPLES, unit="sample")
        hop = self.n_fft // 2 if hop_length is None else hop_length
        self.hop_length = whole_number("hop_length", hop, minimum=1, unit="sample")

    def __call__(self, waveform: torch.Tensor) -> torch.Tensor:
        """Return the spectrogram, float32 unless the waveform is float64."""
        if not waveform.is_floating_point():
            waveform = waveform.to(torch.float32)
        if waveform.shape[-1] == 0:
            waveform = waveform.new_zeros((*waveform.shape[:-1], 1))
        half = self.n_fft // 2
        mode = "reflect" if waveform.shape[-1] > half else "constant"
        rows = waveform.reshape(-1, 1, waveform.shape[-1])
        padded = torch.nn.functional.pad(rows, (half, half), mode=mode).squeeze(1)
        spectrum = torch.stft(
            padded,
            self.n_fft,
            self.hop_length,
            window=torch.hann_window(self.n_fft, dtype=padded.dtype, device=padded.device),
            center=False,
            return_complex=True,
        )
        power = spectrum.real.square() + spectrum.imag.square()
        return power.reshape(*waveform.shape[:-1], *power.shape[-2:])

    def frames(self, length: int) -> int:
        """Return the number of frames for a waveform of ``length`` samples."""
        return 1 + (max(length, 1) + 2 * (self.n_fft // 2) - self.n_fft) // self.hop_length

    def __repr__(self) -> str:
        return f"Spectrogram(n_fft={self.n_fft}, hop_length={self.hop_length})"
