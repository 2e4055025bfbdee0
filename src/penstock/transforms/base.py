"""What a transform promises."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from penstock.order.keys import Keys
from penstock.transforms.draws import draw_keys


class Transform(ABC):
    """A change of samples whose randomness comes from one 64-bit key a sample.

    A sample changed alone and the same sample within a batch come out equal, bit by bit.
    """

    @abstractmethod
    def batch(self, batch: torch.Tensor, keys: Keys) -> torch.Tensor:
        """A new batch: each sample changed as its key says; ``batch`` itself stays as it is."""

    def __call__(self, sample: torch.Tensor, rng: torch.Generator | None = None) -> torch.Tensor:
        """One sample, changed; drawn from torch's default generator where ``rng`` is None."""
        return self.batch(sample.unsqueeze(0), draw_keys(1, rng)).squeeze(0)
