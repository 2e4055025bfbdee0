"""Data modules that end what runs for their loaders."""

from __future__ import annotations

from typing import Self


class Closing:
    """Ends with its block, or where Lightning tears it down; a subclass says what `close` ends."""

    def close(self) -> None:
        """End every thread and process of the loaders; they may be iterated again."""

    def teardown(self, stage: str | None = None) -> None:
        """Lightning's word for `close`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
