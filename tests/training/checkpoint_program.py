"""Saves checkpoints in a child that is killed, again and again, and tells what was left.

python checkpoint_program.py DIRECTORY KILLS SEED
"""

import json
import os
import random
import select
import signal
import sys
from pathlib import Path

import torch

from penstock.training import CheckpointManager

PATIENCE_SECONDS = 60.0


class Weights(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = torch.nn.Parameter(torch.full((20_000,), float(value)))


def save_forever(directory, first, confirmed):
    """Save checkpoint after checkpoint, and say so after each."""
    manager = CheckpointManager(directory, keep_best_k=1, keep_last_n=2)
    number = first
    while True:
        model = Weights(number)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # the first one is the best for ever: it must never go
        manager.save(model, optimizer, None, number, {"val_loss": float(number)})
        os.write(confirmed, number.to_bytes(4, "big"))
        number += 1


def run_and_kill(directory, first, rng):
    """The last checkpoint the child said it had saved, before it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        save_forever(directory, first, writing)
    os.close(writing)
    saved, told = first - 1, rng.randrange(3)
    for _ in range(told):  # killed while it saves the next one, whichever that is
        select.select([reading], [], [], PATIENCE_SECONDS)
        saved = int.from_bytes(os.read(reading, 4), "big")
    select.select([], [], [], rng.random() * 0.012)  # a moment within a save
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while rest := os.read(reading, 4):
        saved = int.from_bytes(rest, "big")
    os.close(reading)
    return saved


def main(directory, kills, seed):
    rng, confirmed, moments = random.Random(seed), 0, {"whole": 0, "unfinished": 0}
    torch.set_num_threads(1)
    manager = CheckpointManager(directory, keep_best_k=1, keep_last_n=2)
    model = Weights(0)
    manager.save(model, torch.optim.SGD(model.parameters(), lr=0.1), None, 0, {"val_loss": 0.0})
    for _ in range(kills):
        confirmed = run_and_kill(directory, confirmed + 1, rng)
        unfinished = [*Path(directory).glob(".*.tmp")]
        moments["unfinished" if unfinished else "whole"] += 1
        manager = CheckpointManager(directory, keep_best_k=1, keep_last_n=2)
        state = manager.load(manager.get_latest())
        found = state["epoch"]
        assert found in (confirmed, confirmed + 1), (found, confirmed)
        assert (state["model_state_dict"]["value"] == found).all()
        best = manager.load(manager.get_best())
        assert best["epoch"] == 0 and (best["model_state_dict"]["value"] == 0).all()
        for path in Path(directory).glob("checkpoint_*.pt"):
            manager.load(path)  # what has its name is whole
        confirmed = found
    print(json.dumps({"kills": kills, "saves": confirmed, **moments}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
