"""Ray Train: the loader's position in its checkpoints, and the waiting time in its metrics."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from penstock.errors import ConfigError, StateError
from penstock.extras import optional

FILE: Final = "penstock.json"


class RayTraining:
    """Reports of a training loop in Ray Train, with the position of its loader.

    ``TorchTrainer`` starts the loop again after a failure, or on another number of workers, and
    gives it the last checkpoint. The position there is global: it fits any number of workers.

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
        self._since, self._waited = perf_counter(), getattr(loader, "waited_seconds", 0.0)

    @contextmanager
    def resume(self, checkpoint: Any = None) -> Iterator[Path | None]:
        """Load the position of a checkpoint; the context has its directory, or None without one.

        Args:
            checkpoint: A ``ray.train.Checkpoint``; None for that of the run.
        """
        checkpoint = checkpoint or self._train.get_checkpoint()
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
            self.loader.load_state_dict(json.loads(file.read_text()))
            yield Path(directory)

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
        metrics = metrics | {"penstock/waiting_share": self._waiting_share()}
        if save is None or self._train.get_context().get_world_rank() != 0:
            self._train.report(metrics, **options)
            return
        with tempfile.TemporaryDirectory() as folder:
            save(Path(folder))
            (Path(folder) / FILE).write_text(json.dumps(self.loader.state_dict()))
            checkpoint = self._train.Checkpoint.from_directory(folder)
            self._train.report(metrics, checkpoint=checkpoint, **options)

    def _waiting_share(self) -> float:
        now, waited = perf_counter(), getattr(self.loader, "waited_seconds", 0.0)
        share = (waited - self._waited) / max(now - self._since, 1e-9)
        self._since, self._waited = now, waited
        return min(1.0, max(0.0, share))
