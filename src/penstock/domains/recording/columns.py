"""The columns of a fly-visual-system recording, and where each layout keeps them."""

from __future__ import annotations

from enum import IntEnum

from penstock.arguments import whole_number
from penstock.errors import PlanError
from penstock.registry import did_you_mean


class FlyVisSim(IntEnum):
    """Columns of a recording; dynamic ones change with time, static ones describe a neuron.

    >>> FlyVisSim["VOLTAGE"].value, FlyVisSim.TYPE.is_static
    (3, True)
    """

    INDEX = 0
    XPOS = 1
    YPOS = 2
    VOLTAGE = 3
    STIMULUS = 4
    GROUP_TYPE = 5
    TYPE = 6
    CALCIUM = 7
    FLUORESCENCE = 8

    @property
    def is_static(self) -> bool:
        """Whether the column is the same at all times."""
        return self in STATIC


STATIC = (
    FlyVisSim.INDEX,
    FlyVisSim.XPOS,
    FlyVisSim.YPOS,
    FlyVisSim.GROUP_TYPE,
    FlyVisSim.TYPE,
)
DYNAMIC = (FlyVisSim.VOLTAGE, FlyVisSim.STIMULUS, FlyVisSim.CALCIUM, FlyVisSim.FLUORESCENCE)


class StaticColumnError(PlanError, AssertionError):
    """A column that does not change with time was asked for at some times."""


def dynamic_column(column: FlyVisSim | int | str) -> FlyVisSim:
    """The column by number or name, if it changes with time.

    >>> dynamic_column("VOLTAGE"), dynamic_column(4)
    (<FlyVisSim.VOLTAGE: 3>, <FlyVisSim.STIMULUS: 4>)
    """
    chosen = _named(column) if isinstance(column, str) else _numbered(column)
    if chosen.is_static:
        raise StaticColumnError(
            f"column {chosen.name} is static, it has no timesteps: read it with load_metadata(path)"
        )
    return chosen


def _named(name: str) -> FlyVisSim:
    if name not in FlyVisSim.__members__:
        known = [column.name for column in FlyVisSim]
        raise PlanError(f"a recording has no column {name!r}{did_you_mean(name, known)}")
    return FlyVisSim[name]


def _numbered(number: int) -> FlyVisSim:
    try:
        return FlyVisSim(whole_number("column", number))
    except PlanError:
        raise
    except ValueError as error:
        raise PlanError(f"a recording has columns 0 to 8, got {number!r}") from error
