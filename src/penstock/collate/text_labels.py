"""Labels of text batches, one function for each kind of task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.collate.masking import IGNORED, Vocabulary, hide_tokens
from penstock.collate.padding import Mask, Ragged, Tokens, real_places, spread, width_of
from penstock.order.keys import Keys


@dataclass(frozen=True, slots=True)
class PaddedText:
    """Token rows, and where they lie in their rectangle.

    ``seen`` is flat like ``tokens.flat``: False where a sample's own mask hides a token from the
    model (padding the sample was stored with). ``real`` has the rectangle's shape.
    """

    tokens: Ragged
    seen: Mask
    ids: Tokens
    real: Mask


def causal_labels(text: PaddedText, *, fill: int, fill_unseen: bool) -> Tokens:
    """The tokens themselves; the model shifts them. ``fill`` at padding."""
    flat = text.tokens.flat
    return spread(np.where(text.seen, flat, fill) if fill_unseen else flat, text.real, fill)


def masked_text(
    text: PaddedText, special: Mask | None, keys: Keys, *, share: float, vocabulary: Vocabulary
) -> tuple[Tokens, Tokens]:
    """Input ids with tokens hidden, and labels that are -100 everywhere else.

    ``special`` (flat) says which tokens are never hidden; None: the vocabulary's special ids.
    """
    if special is None:
        special = np.isin(text.tokens.flat, vocabulary.special_ids)
    allowed = text.seen & ~special
    shown, labels = hide_tokens(text.tokens, allowed, keys, share=share, vocabulary=vocabulary)
    ids = text.ids.copy()
    ids[text.real] = shown
    return ids, spread(labels, text.real, IGNORED)


def decoder_text(
    targets: Ragged, *, start: int, pad: int, fill: int, multiple: int | None
) -> tuple[Tokens, Tokens]:
    """Labels of a target sequence and the decoder's inputs: ``start``, then all but the last.

    Both are padded on the right, whatever the encoder's side: a decoder reads from the start.

    >>> targets = Ragged(np.array([5, 6, 7, 8]), np.array([3, 1]))
    >>> labels, inputs = decoder_text(targets, start=1, pad=0, fill=-100, multiple=None)
    >>> labels.tolist(), inputs.tolist()
    ([[5, 6, 7], [8, -100, -100]], [[1, 5, 6], [1, 0, 0]])
    """
    real = real_places(targets.lengths, width_of(targets.lengths, multiple), "right")
    inputs = np.empty_like(targets.flat)
    inputs[1:] = targets.flat[:-1]
    inputs[targets.starts()[targets.lengths > 0]] = start
    inputs[inputs == IGNORED] = pad  # a target that is left out of the loss is still an input
    return spread(targets.flat, real, fill), spread(inputs, real, pad)
