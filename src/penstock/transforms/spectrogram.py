"""Power spectrograms of waveforms."""

from __future__ import annotations

import torch

from penstock.arguments import whole_number

MOST_SAMPLES = 1 << 24  # of a window: its length is allocated


class Spectrogram:
    """The power spectrogram ``(..., n_fft // 2 + 1, frames)`` of a waveform ``(..., time)``.

    Hann window, centred frames, reflected at the borders: torchaudio's ``Spectrogram`` with its
    defaults. A waveform too short to be reflected (up to ``n_fft // 2`` long) continues as zeros;
    an empty one counts as one sample of silence.

    Args:
        n_fft: samples in a window.
        hop_length: samples between windows; None is half a window.

    >>> Spectrogram(n_fft=512)(torch.zeros(2, 16000)).shape
    torch.Size([2, 257, 63])
    """

    def __init__(self, n_fft: int = 400, hop_length: int | None = None) -> None:
        self.n_fft = whole_number("n_fft", n_fft, minimum=2, maximum=MOST_SAMPLES, unit="sample")
        hop = self.n_fft // 2 if hop_length is None else hop_length
        self.hop_length = whole_number("hop_length", hop, minimum=1, unit="sample")

    def __call__(self, waveform: torch.Tensor) -> torch.Tensor:
        """The spectrogram, float32 unless the waveform is float64."""
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
        """How many frames a waveform of ``length`` samples has."""
        return 1 + (max(length, 1) + 2 * (self.n_fft // 2) - self.n_fft) // self.hop_length

    def __repr__(self) -> str:
        return f"Spectrogram(n_fft={self.n_fft}, hop_length={self.hop_length})"
