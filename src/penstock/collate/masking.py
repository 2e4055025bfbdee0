"""Masked language modelling: which tokens are hidden, and behind what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.collate.padding import Mask, Ragged, Tokens
from penstock.order import derive_key
from penstock.order.keys import Keys

IGNORED = -100  # what torch's losses and Hugging Face's models leave out
SHOWN_AS_MASK, SHOWN_AS_RANDOM = 0.8, 0.1  # of the chosen ones; the rest stays as it is


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What hiding a token needs to know of its vocabulary."""

    size: int
    mask_id: int
    special_ids: tuple[int, ...]


def hide_tokens(
    tokens: Ragged, allowed: Mask, keys: Keys, *, share: float, vocabulary: Vocabulary
) -> tuple[Tokens, Tokens]:
    """The tokens as the model sees them, and its labels: the token where hidden, else -100.

    Each allowed token is chosen with probability ``share``. Of the chosen, 80 % become the mask,
    10 % a random token, 10 % stay. Draws are of (row key, place in row) alone: neither padding
    nor the other rows of the batch change them.
    """
    draws = np.asarray(derive_key(np.repeat(keys, tokens.lengths), tokens.positions()))
    chosen = np.flatnonzero(allowed & (_unit(draws) < share))
    originals = tokens.flat[chosen]
    labels = np.full(len(tokens.flat), IGNORED, np.int64)
    labels[chosen] = originals

    fate = _unit(np.asarray(derive_key(draws[chosen], 1)))
    others = np.asarray(derive_key(draws[chosen], 2)) % np.uint64(vocabulary.size)
    replaced = np.where(fate < SHOWN_AS_MASK, vocabulary.mask_id, others.astype(np.int64))
    shown = tokens.flat.copy()
    shown[chosen] = np.where(fate < SHOWN_AS_MASK + SHOWN_AS_RANDOM, replaced, originals)
    return shown, labels


def _unit(draws: Keys) -> npt.NDArray[np.float64]:
    """Draws as floats in [0, 1)."""
    return (draws >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)
