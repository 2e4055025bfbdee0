"""The neurons of a recording: their positions and types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.domains.recording.layout import STATIC, FlyVisSim
from penstock.errors import SourceError

Whole = TypeVar("Whole", bound=np.integer[Any])

_NAMES = """
    Am C2 C3 CT1(Lo1) CT1(M10) L1 L2 L3 L4 L5 Lawf1 Lawf2
    Mi1 Mi10 Mi11 Mi12 Mi13 Mi14 Mi15 Mi2 Mi3 Mi4 Mi9 R1 R2 R3 R4 R5 R6 R7 R8
    T1 T2 T2a T3 T4a T4b T4c T4d T5a T5b T5c T5d
    Tm1 Tm16 Tm2 Tm20 Tm28 Tm3 Tm30 Tm4 Tm5Y Tm5a Tm5b Tm5c Tm9
    TmY10 TmY13 TmY14 TmY15 TmY18 TmY3 TmY4 TmY5a TmY9
"""
TYPE_NAMES = tuple(_NAMES.split())


@dataclass(frozen=True, slots=True, eq=False)
class NeuronData:
    """The neurons of a recording, one row each, and the indices of each type's neurons.

    Args:
        ix: Index of each neuron.
        pos: Position of each neuron, (neurons, 2).
        group_type: Number of each neuron's group of types.
        type: Number of each neuron's type; see ``TYPE_NAMES``.
        indices_per_type: For each type, the rows of its neurons.

    >>> metadata = np.array([[0, 0.5, 1.5, 2, 1], [1, 0.25, 0, 2, 0]], np.float32)
    >>> neurons = NeuronData.from_metadata(metadata)
    >>> neurons.type.tolist(), [i.tolist() for i in neurons.indices_per_type]
    ([1, 0], [[1], [0]])
    """

    ix: npt.NDArray[np.int32]
    pos: npt.NDArray[np.float32]
    group_type: npt.NDArray[np.uint8]
    type: npt.NDArray[np.uint8]
    indices_per_type: tuple[npt.NDArray[np.int64], ...]

    @classmethod
    def from_metadata(cls, metadata: npt.NDArray[np.float32]) -> NeuronData:
        """Return the neurons described by an array of `load_metadata`.

        Args:
            metadata: Static columns, (neurons, 5).

        Raises:
            SourceError: The shape is wrong, or types are not exactly 0 to K-1.
        """
        if not isinstance(metadata, np.ndarray) or metadata.dtype.kind not in "fiu":
            raise SourceError(
                f"metadata must be an array of numbers, got {type(metadata).__name__}"
            )
        if metadata.ndim != 2 or metadata.shape[1] != len(STATIC):
            raise SourceError(
                f"metadata must have shape (neurons, {len(STATIC)}), got {metadata.shape}"
            )
        kind = _whole(metadata, FlyVisSim.TYPE, np.uint8)
        present = np.unique(kind)
        if not np.array_equal(present, np.arange(len(present))):
            raise SourceError(
                f"neuron types must be exactly 0 to {len(present) - 1}, found {present.tolist()}"
            )
        return cls(
            ix=_whole(metadata, FlyVisSim.INDEX, np.int32),
            pos=np.ascontiguousarray(metadata[:, [1, 2]], np.float32),
            group_type=_whole(metadata, FlyVisSim.GROUP_TYPE, np.uint8),
            type=kind,
            indices_per_type=tuple(np.flatnonzero(kind == each) for each in present),
        )


def _whole(
    metadata: npt.NDArray[np.float32], column: FlyVisSim, dtype: type[Whole]
) -> npt.NDArray[Whole]:
    """Return a column as integers; raise an error if that would change a value."""
    values = metadata[:, STATIC.index(column)]
    limits = np.iinfo(dtype)
    fits = (values == np.floor(values)) & (values >= limits.min) & (values <= limits.max)
    if not fits.all():
        row = int(np.flatnonzero(~fits)[0])
        raise SourceError(
            f"column {column.name} of neuron {row} is {values[row]!r}: "
            f"expected a whole number from {limits.min} to {limits.max}"
        )
    return values.astype(dtype)
