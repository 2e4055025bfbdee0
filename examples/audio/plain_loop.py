"""The same chunks of the same data in a plain PyTorch loop, without Lightning or a configuration.

    python examples/audio/plain_loop.py data/musdb18mono

``loader.load_state_dict(state)`` continues a loop that was stopped at any batch. Here this is done
after every chunk, with a new loader; the result is that of a loop that was never stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from small_sashimi import LevelEncoder, SmallSashimi, mixture_of_logistics

from penstock import QuantizedAutoregressiveAudio

WIDTH, LAYERS, CHUNKS = 12, 6, 4


def open_corpus(folder: Path) -> QuantizedAutoregressiveAudio:
    data = QuantizedAutoregressiveAudio(
        "qautoaudio",
        data_dir=folder,
        train_chunk_size=10,
        val_chunk_size=2,
        bits=16,
        sample_len=8192,
        drop_last=True,
        output_head="dml",
        n_mixtures=5,
    )
    data.setup()
    return data


def main(folder: Path) -> list[float]:
    torch.manual_seed(0)
    data = open_corpus(folder)
    model = torch.nn.Sequential(
        LevelEncoder(WIDTH, data.n_tokens),
        SmallSashimi(WIDTH, n_layers=LAYERS),
        torch.nn.Linear(WIDTH, data.d_output),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.004)
    val_loader = data.val_dataloader(batch_size=2)
    state, scores = None, []
    for chunk in range(CHUNKS):
        loader = open_corpus(folder).train_dataloader(batch_size=2)
        if state is not None:
            loader.load_state_dict(state)
        batches = loader.remaining
        for x, y, _ in loader:  # the next chunk, then it stops
            optimizer.zero_grad()
            mixture_of_logistics(model(x), y).backward()
            optimizer.step()
        state = loader.state_dict()
        with torch.no_grad():
            losses = [float(mixture_of_logistics(model(x), y)) for x, y, _ in val_loader]
        scores.append(sum(losses) / len(losses))
        print(f"chunk {chunk + 1}: {batches} batches, then {len(losses)}: {scores[-1]:.4f}")
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
