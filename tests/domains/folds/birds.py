"""A small population of birds: spectrograms whose class can be heard, by several authors."""

import numpy as np
import torch
from torch import nn

CLASSES = 3


def birds(per_author=4, authors=8, shape=(8, 10), seed=0, loud=1.5):
    """Features, labels, authors and recordings; a class has a louder band of its own."""
    rng = np.random.default_rng(seed)
    labels = np.tile(np.repeat(np.arange(CLASSES), per_author), authors)
    names = np.repeat([f"author {i}" for i in range(authors)], per_author * CLASSES)
    features = rng.normal(0.5, 1.0, (len(labels), 1, *shape)).astype(np.float32)
    for i, label in enumerate(labels):
        features[i, 0, 2 * label : 2 * label + 2] += loud
    halves = np.arange(len(labels)) // 2 % 2
    recordings = np.array([f"{n} {c} {h}" for n, c, h in zip(names, labels, halves, strict=True)])
    return features, labels, names, recordings


class Listener(nn.Module):
    """A small network with dropout, which draws from torch's default generator."""

    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(80, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, num_classes)
        )

    def forward(self, x):
        return self.layers(x)


class Normed(nn.Module):
    """A network with running statistics, which are part of its weights."""

    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(80, num_classes))

    def forward(self, x):
        return self.layers(x)


class Interrupted(Listener):
    """A listener whose training is interrupted at a given step; `ends_at` counts all folds'."""

    steps = 0
    ends_at = 10**9

    def forward(self, x):
        if self.training:
            cls = type(self)
            cls.steps += 1
            if cls.steps == cls.ends_at:
                raise KeyboardInterrupt
        return super().forward(x)


def same_result(one, other):
    """Equal in all but how long it took."""
    if isinstance(one, dict):
        keys = set(one) - {"training_time", "performance"}
        return keys == set(other) - {"training_time", "performance"} and all(
            same_result(one[key], other[key]) for key in keys
        )
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool((one == other).all())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_result, one, other))
    return one == other
