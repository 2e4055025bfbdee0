"""Collation of samples ``(x, y, *extras)`` into batches ``(x, y, {name: extra})``, as in S4.

Collation consists of class methods, so that worker processes find it by the name of its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from penstock.collate.default import CollateError, stack, unequal

IGNORED = -100  # the target that torch's cross-entropy ignores


class SequenceCollation:
    """Stacks samples to a batch; subclasses override one of the hooks.

    >>> SequenceCollation._collate_fn([(torch.zeros(3), 1), (torch.ones(3), 0)])
    (tensor([[0., 0., 0.],
            [1., 1., 1.]]), tensor([1, 0]), {})
    """

    _collate_arg_names: ClassVar[Sequence[str]] = ()  # names of the values after x and y
    collate_args: ClassVar[Sequence[str]] = ()  # loader arguments that are passed to the hooks

    @classmethod
    def _collate_callback(cls, x: Any, **collate_args: Any) -> Any:
        """Return the batched x; override it to transform x."""
        return x

    @classmethod
    def _return_callback(cls, batch: tuple[Any, ...], **collate_args: Any) -> tuple[Any, ...]:
        """Return the final batch, with the values after x and y in a dict by name."""
        x, y, *extras = batch
        if len(extras) != len(cls._collate_arg_names):
            raise CollateError(
                f"samples have {len(extras)} values beyond x and y, {cls.__name__} names "
                f"{list(cls._collate_arg_names)!r}: give _collate_arg_names one name for each"
            )
        return x, y, dict(zip(cls._collate_arg_names, extras, strict=True))

    @classmethod
    def _collate(cls, values: Sequence[Any], **collate_args: Any) -> Any:
        """Return the values of all samples as one tensor."""
        if isinstance(values[0], torch.Tensor):
            return cls._collate_callback(stack(values, "x"), **collate_args)
        try:
            arrays = isinstance(values[0], np.ndarray)
            return torch.tensor(np.stack(values) if arrays else values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise unequal(values, "x") from error

    @classmethod
    def _collate_fn(cls, samples: Sequence[Any], **collate_args: Any) -> tuple[Any, ...]:
        """Return the batch of ``samples``."""
        x, y, *extras = zip(*samples, strict=True)
        batch = (
            cls._collate(x, **collate_args),
            cls._collate(y),
            *(cls._collate(extra) for extra in extras),
        )
        return cls._return_callback(batch, **collate_args)


@dataclass(frozen=True, slots=True)
class PaddedCollation:
    """Batches ``(x, y, {"lengths": ...})`` of samples ``(x, y)`` with different lengths.

    x is padded to the next power of two, or to ``limit`` if that is shorter, and y with it, so
    that both end at the same step. Lengths are those of x before padding.

    Args:
        zero: Padding value of x.
        limit: Length that padding never exceeds; None for no limit.
        lead_steps: Steps by which every y is shorter than its x.
        ignored: Padding value of y.

    >>> samples = [(torch.tensor([1, 2, 3]), torch.tensor([[2], [3], [4]]))] * 2
    >>> x, y, extras = PaddedCollation(zero=128)(samples)
    >>> x[0], y[0, :, 0], extras["lengths"]
    (tensor([  1,   2,   3, 128]), tensor([   2,    3,    4, -100]), tensor([3, 3]))
    """

    zero: float
    limit: int | None = None
    lead_steps: int = 0
    ignored: int = IGNORED

    def __call__(self, samples: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """Return the batch of ``samples``."""
        x, y = zip(*samples, strict=True)
        lengths = torch.tensor([len(each) for each in x])
        steps = self.width(int(lengths.max()))
        targets = max(steps - self.lead_steps, *(len(each) for each in y))
        return _filled(x, steps, self.zero), _filled(y, targets, self.ignored), {"lengths": lengths}

    def width(self, longest: int) -> int:
        """Return the padded length of a batch whose longest x has ``longest`` steps.

        >>> [PaddedCollation(0, limit=100).width(steps) for steps in (5, 8, 70)]
        [8, 8, 100]
        """
        power = 1 << (longest - 1).bit_length()
        return max(longest, power if self.limit is None else min(power, self.limit))


def _filled(rows: Sequence[torch.Tensor], steps: int, fill: float) -> torch.Tensor:
    """Return rows (L, ...) as one tensor (B, steps, ...) with ``fill`` after their ends."""
    out = rows[0].new_full((len(rows), steps, *rows[0].shape[1:]), fill)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return out
