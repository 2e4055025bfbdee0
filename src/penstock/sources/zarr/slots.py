"""A small memory without locks: what was last put in a place stays until another takes it."""

from __future__ import annotations

from typing import Generic, TypeVar

Value = TypeVar("Value")


class Slots(Generic[Value]):
    """At most ``count`` values by number; numbers that differ by ``count`` push each other out.

    One list item is replaced at a time, which is atomic in Python: threads need no lock, and
    a fork cannot leave one locked.

    >>> slots = Slots[str](2)
    >>> slots.put(0, "a"); slots.put(1, "b"); slots.put(2, "c")
    >>> slots.get(0), slots.get(1), slots.get(2)
    (None, 'b', 'c')
    """

    def __init__(self, count: int) -> None:
        self._kept: list[tuple[int, Value] | None] = [None] * count

    def get(self, number: int) -> Value | None:
        """The value of ``number``, if it is still there."""
        kept = self._kept[number % len(self._kept)]
        return kept[1] if kept is not None and kept[0] == number else None

    def put(self, number: int, value: Value) -> None:
        """Keep ``value`` until another takes its place."""
        self._kept[number % len(self._kept)] = (number, value)

    def __reduce__(self) -> tuple[type[Slots[Value]], tuple[int]]:
        return type(self), (len(self._kept),)  # what is kept belongs to this process
