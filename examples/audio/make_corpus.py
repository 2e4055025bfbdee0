"""Makes a small corpus to train on: plucked strings, one melody per file, 16 bits and mono.

python examples/audio/make_corpus.py data/musdb18mono
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import soundfile

RATE, SECONDS, FILES = 16_000, 1.1, 50
SCALE = 220.0 * 2 ** (np.array([0, 2, 4, 7, 9, 12]) / 12)  # pentatonic: any two notes harmonize


def melody(rng: np.random.Generator) -> np.ndarray:
    """Return notes of a quarter of a second, each with overtones that fade."""
    time = np.arange(RATE // 4) / RATE
    notes = []
    for pitch in rng.choice(SCALE, size=int(SECONDS * 4) + 1):
        overtones = sum(np.sin(2 * np.pi * pitch * k * time) / k**2 for k in (1, 2, 3))
        notes.append(overtones * np.exp(-6 * time))
    wave = np.concatenate(notes)[: int(SECONDS * RATE)]
    return (0.8 * wave / np.abs(wave).max()).astype(np.float32)


def make_corpus(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        wave = melody(np.random.default_rng(number))
        soundfile.write(folder / f"melody-{number:02d}.wav", wave, RATE, subtype="PCM_16")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    make_corpus(parser.parse_args().folder)
