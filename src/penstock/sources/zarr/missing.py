"""Chunks that are not stored: fill values, as long as the array itself is still there."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import SourceError
from penstock.sources.zarr.stored import StoredBytes, new_memory


@dataclass(frozen=True, slots=True)
class MissingChunks:
    """What to do about chunks of one array that are not stored.

    Attributes:
        stored: The store.
        metadata_key: The object that holds the array's metadata.
        refused: Whether a missing chunk is an error instead of the fill value.
    """

    stored: StoredBytes
    metadata_key: str
    refused: bool = False

    def report(self, key: str) -> None:
        """Note that the chunk in ``key`` is missing; an error where every chunk must be stored."""
        if self.refused:
            raise SourceError(
                f"there is no chunk {self.stored.name(key)}, and missing='error' was asked for: "
                "restore it from a copy, or use missing='fill' to read fill values there"
            )

    def verify(self) -> None:
        """Refuse fill values of an array that is gone: deleted, unmounted, or no longer served.

        Called once for each read that has met missing chunks, after them: where the metadata is
        found then, the store was there when the chunks were not.
        """
        if self.stored.fetch(self.metadata_key, new_memory) is None:
            raise SourceError(
                f"{self.stored.name(self.metadata_key)} is gone, so the array's missing chunks are "
                "not fill values: check that the storage is mounted and the store still exists"
            )
