"""A dataset that replaces unreadable samples, so that every rank has the same steps."""

from __future__ import annotations

import logging
import os
from typing import Any

from torch.utils.data import Dataset

from penstock.arguments import LARGEST_SEED, a_path, choice, map_style, whole_number
from penstock.atomic_files import append_entry, read_entries
from penstock.errors import SourceError
from penstock.keyed import current_epoch
from penstock.order import derive_key
from penstock.sources.contract import Indexed

log = logging.getLogger("penstock")

POLICIES = ("raise", "replace", "warn", "skip")
TRIES = 16


class ReplacingDataset(Dataset[Any]):
    """The base dataset, with unreadable samples replaced by others, the same on every rank.

    The replacement is keyed by (seed, epoch, sample): no step is lost, no rank waits for another,
    and a resumed run makes the same replacements. Each replacement is recorded.

    Args:
        base_dataset: A map-style dataset.
        on_error: ``"raise"``: raise the error. ``"replace"`` (``"skip"``): replace the sample.
            ``"warn"``: replace it and log a warning.
        seed: The seed of the choice of replacements.
        quarantine: A file that lists replaced samples, one JSON object per line; needed if worker
            processes or ranks must write to one list.

    >>> class Flawed(Dataset):
    ...     def __len__(self):
    ...         return 10
    ...     def __getitem__(self, index):
    ...         return 1 / (index - 3)
    >>> dataset = ReplacingDataset(Flawed(), on_error="replace")
    >>> dataset[3] == dataset[3], dataset.replaced[0]["sample"], dataset.replaced[0]["error"]
    (True, 3, 'ZeroDivisionError: division by zero')
    """

    def __init__(
        self,
        base_dataset: Indexed,
        *,
        on_error: str = "replace",
        seed: int = 42,
        quarantine: str | os.PathLike[str] | None = None,
    ) -> None:
        self.base_dataset = map_style("base_dataset", base_dataset)
        self.on_error = choice("on_error", on_error, POLICIES)
        self.seed = whole_number("seed", seed, minimum=0, maximum=LARGEST_SEED)
        self.quarantine = None if quarantine is None else a_path("quarantine", quarantine)
        self._replaced: list[dict[str, Any]] = []

    def __len__(self) -> int:
        return len(self.base_dataset)

    def __getitem__(self, index: int) -> Any:
        if self.on_error == "raise":
            return self.base_dataset[index]
        try:
            return self.base_dataset[index]
        except Exception as error:
            if not -len(self) <= index < len(self):  # iteration by index ends with an IndexError
                raise
            return self._replace(index % len(self), error)

    def _replace(self, index: int, error: Exception) -> Any:
        # by epoch too, so that one sample is not seen twice as often in all of them
        key = derive_key(self.seed, "replacement", current_epoch(), int(index))
        for attempt in range(TRIES):
            other = derive_key(key, attempt) % len(self)
            try:
                sample = self.base_dataset[other]
            except Exception:  # noqa: BLE001 - try the next one; an error is raised if none works
                continue
            self._record(index, other, error)
            return sample
        raise SourceError(
            f"sample {index} cannot be read, nor can {TRIES} others in its place: "
            "check the storage with on_error='raise'"
        ) from error

    def _record(self, index: int, other: int, error: Exception) -> None:
        entry = {
            "sample": int(index),
            "replaced_by": other,
            "epoch": current_epoch(),
            "error": f"{type(error).__name__}: {error}",
        }
        if self.on_error == "warn":
            log.warning("sample %(sample)d is replaced by %(replaced_by)d: %(error)s", entry)
        if self.quarantine is None:
            self._replaced.append(entry)
            return
        append_entry(self.quarantine, entry)

    @property
    def replaced(self) -> list[dict[str, Any]]:
        """The replacements: all in the quarantine file, or else those of this object."""
        if self.quarantine is None:
            return list(self._replaced)
        return read_entries(self.quarantine)
