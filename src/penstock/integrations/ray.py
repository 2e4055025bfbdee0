"""Ray Train: the loader's position in its checkpoints, and the waiting time in its metrics."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.errors import ConfigError, StateError
from penstock.extras import optional
from penstock.metrics import Gauges
from penstock.ranks import text_of_rank_zero

FILE: Final = "penstock.json"
SNAPSHOT: Final = "checkpoint_manager_snapshot.json"  # Ray's list of the checkpoints of a run

RunConfig = TypeVar("RunConfig")

log = logging.getLogger("penstock")


def recoverable(run_config: RunConfig) -> RunConfig:
    """Return the configuration of a run that can be continued after any kill of its driver.

    Ray writes the list of its checkpoints in place. A driver that is killed meanwhile leaves a list
    that Ray refuses to read, and the run cannot be continued under its name. Such a list is renamed
    here, and `RayTraining.resume` finds the checkpoints in the storage. Call it on the driver.

    Args:
        run_config: A ``ray.train.RunConfig``.

    ::

        TorchTrainer(..., run_config=recoverable(RunConfig(name="run", storage_path=path))).fit()
    """
    config: Any = run_config
    if not all(hasattr(config, name) for name in ("name", "storage_path", "storage_filesystem")):
        raise ConfigError(f"run_config must be a ray.train.RunConfig, got {run_config!r}")
    if config.name is None or config.storage_path is None:
        return run_config
    path, storage = str(config.storage_path), config.storage_filesystem
    if storage is None:
        local = path if "://" in path else str(Path(path).expanduser().absolute())
        storage, path = optional("pyarrow.fs", extra="ray").FileSystem.from_uri(local)
    snapshot = f"{path}/{config.name}/{SNAPSHOT}"
    if storage.get_file_info(snapshot).is_file:
        with storage.open_input_stream(snapshot) as file:
            text = file.read()
        try:
            json.loads(text)
        except ValueError:
            storage.move(snapshot, f"{snapshot}.damaged")
            log.warning(
                "Ray's list of checkpoints was only partly written: renamed to %s.damaged", snapshot
            )
    return run_config


class RayTraining:
    """Reports of a training loop in Ray Train, with the position of its loader.

    ``TorchTrainer`` starts the loop again after a failure, or with a different number of workers,
    and `resume` continues at the last checkpoint. The position there is global: it fits any number
    of workers. Ray collects reports in the background and may lose the last ones before a kill;
    their checkpoints are in the storage of the run, and are used nevertheless if they are complete.

    Args:
        loader: The training loader of this worker.

    ::

        training = RayTraining(loader)
        with training.resume() as folder:  # None at the beginning
            if folder is not None:
                model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
        ...
        training.report({"loss": loss}, lambda folder: torch.save(..., folder / "model.pt"))
    """

    def __init__(self, loader: Any) -> None:
        if not all(hasattr(loader, name) for name in ("state_dict", "load_state_dict")):
            raise ConfigError(
                f"loader must be a Penstock loader, such as ChunkedDataLoader or StreamLoader: a "
                f"{type(loader).__name__} has no position to save"
            )
        loader.state_dict()  # a loader whose order torch decides is refused here
        self.loader, self._train = loader, optional("ray.train", extra="ray")
        self._number: int | None = None  # of the last checkpoint, on rank 0
        self._gauges = Gauges(loader)

    @contextmanager
    def resume(self, checkpoint: Any = None) -> Iterator[Path | None]:
        """Load the position of a checkpoint; the context has its directory, or None without one.

        All workers must call it together.

        Args:
            checkpoint: A ``ray.train.Checkpoint``; None for the last one of the run.
        """
        checkpoint = checkpoint or self._last_of_run()
        if checkpoint is None:
            yield None
            return
        with checkpoint.as_directory() as directory:
            file = Path(directory) / FILE
            if not file.exists():
                raise StateError(
                    f"the checkpoint {checkpoint.path} has no {FILE}, so the position of the "
                    "loader is unknown: save it with RayTraining.report"
                )
            self.loader.load_state_dict(json.loads(file.read_text())["loader"])
            yield Path(directory)

    def _last_of_run(self) -> Any:
        """Return the last complete checkpoint in the storage of the run, or Ray's own, or None."""
        reported, path = self._train.get_checkpoint(), ""
        if reported is not None and not _has_position(reported):
            return reported  # to be refused
        context = self._train.get_context()
        if context.get_world_rank() == 0:
            _, path = self._newest()
            if path and (reported is None or reported.path != path):
                log.warning("Ray lost the report of %s: the loop continues there", path)
        if not (path := text_of_rank_zero(path)):
            return None
        return self._train.Checkpoint(path, context.get_storage().storage_filesystem)

    def _newest(self) -> tuple[int, str]:
        """Return the number and the path of the last complete checkpoint; 0 without one."""
        try:
            storage = self._train.get_context().get_storage()
        except NotImplementedError:  # num_workers=0: in this process, without a storage
            return 0, ""
        found = _checkpoints(storage.storage_filesystem, storage.experiment_fs_path)
        return max(found, default=(0, ""))

    def report(
        self,
        metrics: dict[str, Any],
        save: Callable[[Path], object] | None = None,
        **options: Any,
    ) -> None:
        """Call ``ray.train.report`` with the share of the time that was spent waiting for data.

        All workers must call it together. The share is that since the last report.

        Args:
            metrics: Numbers by name; ``penstock/waiting_share`` is added.
            save: Writes the files of a checkpoint to a directory; called on rank 0. The position
                of the loader is added. None reports metrics alone.
            options: For ``ray.train.report``.
        """
        name = "penstock/waiting_share"
        metrics = metrics | {name: self._gauges.read()[name]}
        if save is None or self._train.get_context().get_world_rank() != 0:
            self._train.report(metrics, **options)
            return
        self._number = 1 + (self._newest()[0] if self._number is None else self._number)
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            save(folder)
            files = [file for file in folder.rglob("*") if file.is_file()]
            sizes = {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}
            position = {"loader": self.loader.state_dict(), "number": self._number, "files": sizes}
            (folder / FILE).write_text(json.dumps(position))
            checkpoint = self._train.Checkpoint.from_directory(directory)
            self._train.report(metrics, checkpoint=checkpoint, **options)


def _checkpoints(storage: Any, run: str) -> Iterator[tuple[int, str]]:
    """Yield the number and path of every complete checkpoint of a run: all files have their size.

    An upload or a deletion that was interrupted leaves a checkpoint without some of its files.
    """
    selector = optional("pyarrow.fs", extra="ray").FileSelector
    found = storage.get_file_info(selector(run, allow_not_found=True, recursive=True))
    sizes = {file.path: file.size for file in found}
    for path in [each for each in sizes if each.endswith(f"/{FILE}")]:
        with storage.open_input_stream(path) as file:
            text = file.read()
        try:
            saved = json.loads(text)
        except ValueError:  # partly uploaded
            continue
        folder = path.removesuffix(f"/{FILE}")
        if all(sizes.get(f"{folder}/{name}") == size for name, size in saved["files"].items()):
            yield saved["number"], folder


def _has_position(checkpoint: Any) -> bool:
    return bool(checkpoint.filesystem.get_file_info(f"{checkpoint.path}/{FILE}").is_file)
