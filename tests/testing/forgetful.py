"""Trainers that lose the loader's place, one step of it, or a validation: for tests.

python forgetful.py --json RESULTS
"""

import sys

import torch

from penstock.testing.conformance import Engine
from penstock.testing.conformance.__main__ import main
from penstock.testing.conformance.launches import forever


def forget(run):
    """Resume at the beginning."""
    train(run, run.make_loader())


def lose_a_step(run):
    """Resume one batch too late."""
    loader = run.make_loader()
    if run.launch.resume_from is not None:
        loader.load_state_dict(torch.load(run.launch.resume_from, weights_only=True))
        next(iter(loader))
    train(run, loader)


def score_half(run):
    for batch in list(run.make_validation())[:1]:
        run.scored(batch)
    forget(run)


def train(run, loader):
    for batch in forever(loader):
        run.trained(batch)
        if run.due is not None:
            torch.save(loader.state_dict(), run.due)
        if run.done:
            break
    loader.close()


forgetful = Engine("forgetful", forget)
hasty = Engine("hasty", lose_a_step)
careless = Engine("careless", score_half)

if __name__ == "__main__":
    options = ["--ranks", "1", "--loaders", "chunked", "--events", "uninterrupted", "end"]
    engines = [f"__main__:{name}" for name in ("forgetful", "hasty", "careless")]
    sys.exit(main([*engines, *options, *sys.argv[1:]]))
