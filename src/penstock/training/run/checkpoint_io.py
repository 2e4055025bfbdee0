"""How Lightning writes and reads files of a run: whole or not at all, and nothing in them runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.extras import optional
from penstock.training.checkpoint_files import check_loadable, read_checkpoint, write_checkpoint

plugins = optional("lightning.pytorch.plugins.io", extra="train")


class WholeFiles(plugins.TorchCheckpointIO):  # type: ignore[misc, name-defined]
    """Lightning's checkpoints, written beside and renamed, read with every byte checked.

    Killed at any moment, there is the file before or the new one. What could be saved but not be
    loaded again (an object that is not made of tensors and plain values) is refused at the first
    checkpoint, which is written before the first step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._checked = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Make the file at ``path`` this checkpoint."""
        if not self._checked:
            check_loadable(checkpoint)
            self._checked = True
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(Path(path), checkpoint)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """What is saved at ``path``, on the CPU."""
        return read_checkpoint(Path(path))
