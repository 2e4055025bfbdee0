"""Checkpoints of a run: model, optimizer, scheduler, random generators, and data position."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from penstock.arguments import a_path, choice, flag, shown, text, whole_number
from penstock.atomic_files import remove_unfinished, replace_file
from penstock.errors import ConfigError
from penstock.training import checkpoint_files as files

log = logging.getLogger("penstock")


class Stateful(Protocol):
    """A loader, a data module, or anything else with a state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state."""
        ...


class CheckpointManager:
    """A directory of checkpoints, of which the best and the last ones are kept.

    A checkpoint is written completely or not at all: a process killed while it saves leaves the
    previous one. One process writes (rank 0); any may load. Files load with ``weights_only=True``.

    Args:
        checkpoint_dir: The directory; created if it does not exist.
        keep_best_k: Number of best checkpoints to keep. The best one is always kept.
        keep_last_n: Number of latest checkpoints to keep. The latest one is always kept.
        monitor: Metric that decides which checkpoint is the best.
        mode: ``"min"`` if lower values of it are better, ``"max"`` if higher ones are.
        save_interval_epochs: `should_save` is true for one of this number of epochs.
        drive_backup: Also copy every checkpoint to ``drive_backup_path``.
        drive_backup_path: A directory; created if it does not exist.

    >>> import torch
    >>> from tempfile import TemporaryDirectory
    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with TemporaryDirectory() as directory:
    ...     manager = CheckpointManager(directory)
    ...     path = manager.save(model, optimizer, None, epoch=5, metrics={"val_loss": 0.38})
    ...     manager.load(path)["metrics"]
    {'val_loss': 0.38}
    """

    def __init__(
        self,
        checkpoint_dir: str | Path,
        keep_best_k: int = 3,
        keep_last_n: int = 5,
        monitor: str = "val_loss",
        mode: str = "min",
        save_interval_epochs: int = 1,
        drive_backup: bool = False,
        drive_backup_path: str | Path | None = None,
    ) -> None:
        a_directory = partial(a_path, error=ConfigError)
        self.checkpoint_dir = a_directory("checkpoint_dir", checkpoint_dir)
        whole = partial(whole_number, error=ConfigError)
        self.keep_best_k = whole("keep_best_k", keep_best_k, minimum=0)
        self.keep_last_n = whole("keep_last_n", keep_last_n, minimum=0)
        self.monitor = text("monitor", monitor, error=ConfigError)
        self.mode = choice("mode", mode, ("min", "max"), error=ConfigError)
        self.save_interval_epochs = whole("save_interval_epochs", save_interval_epochs, minimum=1)
        self.drive_backup = flag("drive_backup", drive_backup, error=ConfigError)
        if drive_backup and drive_backup_path is None:
            raise ConfigError("drive_backup=True needs a drive_backup_path, got None")
        path = drive_backup_path
        self.drive_backup_path = None if path is None else a_directory("drive_backup_path", path)
        files.make_directory("checkpoint_dir", self.checkpoint_dir)

    # -- saving

    def should_save(self, epoch: int) -> bool:
        """Return whether it is one of every ``save_interval_epochs`` epochs.

        Args:
            epoch: The epoch.
        """
        return epoch % self.save_interval_epochs == 0

    def save(
        self,
        model: Stateful,
        optimizer: Stateful | None,
        scheduler: Stateful | None,
        epoch: int,
        metrics: Mapping[str, Any],
        global_step: int | None = None,
        custom_state: dict[str, Any] | None = None,
        *,
        loaders: Stateful | Mapping[str, Stateful] | None = None,
    ) -> Path:
        """Save a checkpoint, then delete those that need not be kept; return its path.

        Args:
            model: The model, or anything with a ``state_dict()``.
            optimizer: The optimizer; None if there is none.
            scheduler: The scheduler; None if there is none.
            epoch: The epoch that ended.
            metrics: Numbers, or tensors of one, by name; the one of ``monitor`` is required.
            global_step: Optimizer steps so far; None for ``epoch``.
            custom_state: Tensors and plain values of your own.
            loaders: A loader, a data module, or several by name; `load` restores their positions.

        Raises:
            ConfigError: An argument is invalid, or could be saved but not loaded again.
            CheckpointError: The file cannot be written; earlier checkpoints are kept.
        """
        epoch = whole_number("epoch", epoch, minimum=0, error=ConfigError)
        step = epoch if global_step is None else global_step
        step = whole_number("global_step", step, minimum=0, error=ConfigError)
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        for name, part in parts.items():
            missing_is_fine = part is None and name != "model"
            if not missing_is_fine and not callable(getattr(part, "state_dict", None)):
                raise ConfigError(f"{name} must have a state_dict(), got {shown(part)}")
        # read first: a directory that cannot be listed must not get another checkpoint
        entries = files.read_registry(self.checkpoint_dir)
        state = {
            "epoch": epoch,
            "global_step": step,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": None if optimizer is None else optimizer.state_dict(),
            "scheduler_state_dict": None if scheduler is None else scheduler.state_dict(),
            "loader_states": {name: each.state_dict() for name, each in _named(loaders).items()},
            "metrics": (numbers := self._numbers(metrics)),
            "monitor": self.monitor,
            "monitor_value": numbers[self.monitor],
            "rng_state": files.random_state(),
            "timestamp": datetime.now(UTC).isoformat(),
            "git_commit": files.git_commit(Path.cwd()),
            "custom_state": custom_state,
            "sequence": 1 + max((entry.sequence for entry in entries), default=0),
        }
        files.check_loadable({name: each for name, each in state.items() if name != "rng_state"})
        remove_unfinished(self.checkpoint_dir)
        path = self._new_path(epoch, step)
        for each in _named(loaders).values():  # weights of samples are too large for a state
            getattr(each, "save_weights", lambda _: None)(self.checkpoint_dir)
        files.write_checkpoint(path, state)
        self._tidy([*entries, files.metadata_of(path.name, state)])
        if self.drive_backup:
            self._back_up(path)
        return path

    def _numbers(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        if not isinstance(metrics, Mapping):
            raise ConfigError(f"metrics must be numbers by name, got {shown(metrics)}")
        if self.monitor not in metrics:
            raise ConfigError(
                f"monitor {self.monitor!r} not found in metrics {sorted(map(str, metrics))}: add "
                "it, or watch another one with monitor="
            )
        try:
            return {str(name): float(value) for name, value in metrics.items()}
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ConfigError(f"metrics must be single numbers: {error}") from error

    def _new_path(self, epoch: int, step: int) -> Path:
        moment = datetime.now(UTC).strftime("%Y%m%d_%H%M%S")
        stem = f"checkpoint_epoch{epoch:04d}_step{step:06d}_{moment}"
        path, number = self.checkpoint_dir / f"{stem}.pt", 1
        while path.exists():  # saved twice within a second
            number += 1
            path = self.checkpoint_dir / f"{stem}_{number}.pt"
        return path

    def _tidy(self, entries: list[files.CheckpointMetadata]) -> None:
        """Delete what is not kept; the registry first, so that it never names what is gone."""
        stay = files.kept(entries, best=self.keep_best_k, last=self.keep_last_n, mode=self.mode)
        files.write_registry(self.checkpoint_dir, stay)
        for entry in entries:
            if entry not in stay:
                (self.checkpoint_dir / entry.file).unlink(missing_ok=True)

    def _back_up(self, path: Path) -> None:
        assert self.drive_backup_path is not None
        try:
            self.drive_backup_path.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as saved:
                copy = partial(shutil.copyfileobj, saved)
                replace_file(self.drive_backup_path / path.name, copy)
        except OSError as error:  # the checkpoint itself is safe: training continues
            log.warning("no backup of %s in %s: %s", path.name, self.drive_backup_path, error)

    # -- finding

    def list_checkpoints(self) -> list[files.CheckpointMetadata]:
        """Return all checkpoints, the latest epoch first."""
        entries = files.read_registry(self.checkpoint_dir)
        return sorted(entries, key=lambda e: (e.epoch, e.global_step, e.sequence), reverse=True)

    def get_best(self) -> Path | None:
        """Return the checkpoint with the best value of ``monitor``; None if there is none."""
        entries = files.ranked(files.read_registry(self.checkpoint_dir), self.mode)
        return self.checkpoint_dir / entries[0].file if entries else None

    def get_latest(self) -> Path | None:
        """Return the checkpoint saved last; None if there is none."""
        entries = files.read_registry(self.checkpoint_dir)
        return self.checkpoint_dir / entries[-1].file if entries else None

    # -- loading

    def load(
        self,
        path: str | Path | None = None,
        loaders: Stateful | Mapping[str, Stateful] | None = None,
        *,
        restore_rng: bool = True,
    ) -> dict[str, Any]:
        """Return the state saved at ``path``, with the positions of ``loaders`` restored.

        Args:
            path: The checkpoint; None for the best one.
            loaders: As passed to `save`.
            restore_rng: Also restore the states of Python's, numpy's and torch's generators.

        Raises:
            NoCheckpointError: There is no such checkpoint.
            CheckpointError: It is damaged, or cannot be read now.
        """
        chosen = self.get_best() if path is None else Path(path)
        if chosen is None:
            where = self.checkpoint_dir
            raise files.NoCheckpointError(f"No checkpoints found in {where}: save one first")
        try:
            state = files.read_checkpoint(chosen)
        except files.DamagedCheckpointError as error:
            raise files.DamagedCheckpointError(f"{error}; {self._recovery(chosen)}") from error
        self._restore_loaders(_named(loaders), state, chosen.parent)
        if restore_rng and "rng_state" in state:
            _restore_random_state(chosen, state["rng_state"])
        return state

    def _restore_loaders(
        self, loaders: Mapping[str, Stateful], state: dict[str, Any], folder: Path
    ) -> None:
        states = state.get("loader_states") or {}
        if not isinstance(states, Mapping):
            raise files.DamagedCheckpointError(f"loader_states must be by name, found {states!r}")
        for name, loader in loaders.items():
            if name not in states:
                missing = f"no state of the loader {name!r}, only of {sorted(states)}"
                raise files.CheckpointError(f"the checkpoint has {missing}")
            getattr(loader, "load_weights", lambda _: None)(folder)
            loader.load_state_dict(states[name])

    def _recovery(self, damaged: Path) -> str:
        for entry in reversed(files.read_registry(self.checkpoint_dir)):
            path = self.checkpoint_dir / entry.file
            if path != damaged and _reads(path):
                return (
                    f"recovery: load({str(path)!r}), saved at epoch {entry.epoch}, step "
                    f"{entry.global_step}, and delete the corrupted file"
                )
        backup = f" in {self.drive_backup_path}" if self.drive_backup else ""
        return f"recovery: no other checkpoint is intact; restore a backup{backup}, or start again"


def _named(loaders: Stateful | Mapping[str, Stateful] | None) -> Mapping[str, Stateful]:
    if loaders is None:
        return {}
    return loaders if isinstance(loaders, Mapping) else {"": loaders}


def _restore_random_state(path: Path, state: Any) -> None:
    try:
        files.restore_random_state(state)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise files.CheckpointError(
            f"checkpoint {path.name!r} has states of random generators that cannot be restored "
            f"({files.reason_of(error)}): pass restore_rng=False to load it without them"
        ) from error


def _reads(path: Path) -> bool:
    try:
        files.read_checkpoint(path)
    except (files.CheckpointError, files.NoCheckpointError):
        return False
    return True
