"""Lightning: training in chunks, as one callback."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import torch

from penstock.distributed.agreement import agree
from penstock.errors import ConfigError, StateError
from penstock.integrations.lightning import compat, reporting
from penstock.integrations.lightning.fit_loaders import FitLoaders
from penstock.integrations.lightning.resume import KEY as KEY
from penstock.integrations.lightning.resume import ExactResume, Progress
from penstock.loaders import Loader
from penstock.loaders.chunk_report import ChunkSummary, describe_position, samples_between
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.metrics import Gauges, Snapshot, Verdict, merge, verdict_of
from penstock.metrics.verdict import percent
from penstock.ranks import gathered_texts, has_several_ranks

log = logging.getLogger("penstock")

SHOWN_STALLS: Final = 3
NO_POSITION: Final = (
    "there is no data position: no Penstock loader was trained on; call trainer.fit with "
    "ChunkedTraining in callbacks and a Penstock loader, or with a train_chunk_size"
)


class ChunkedTraining(compat.callbacks.Callback):  # type: ignore[misc]
    """Makes every chunk of a loader an epoch of Lightning, and every checkpoint resume exactly.

    A ``Trainer`` with it validates after every chunk, and ``max_epochs`` counts chunks. Chunk sizes
    are passed here, or found in the loaders or the data module. If only one is given, the other is
    its whole partition; both can be read when the fit has started. They override
    ``limit_train_batches`` and ``limit_val_batches``. Without any chunk size, the limits apply and
    nothing is changed. ``test`` and ``predict`` are never chunked.

    With sizes passed here, a torch ``DataLoader`` of a map-style dataset is replaced by a Penstock
    loader with the same settings; loaders of Penstock are used as they are. They come from ``fit``
    or from hooks, which are called once. A checkpoint resumes at the first batch that is not in the
    weights, even if the number of ranks or workers, the batch size or the chunk size differs. The
    sanity check does not change any position. If ranks are about to train on different data, all of
    them stop before the first step. Loggers get the figures of `penstock.metrics.Gauges` every
    ``log_every_n_steps``.

    Args:
        train_chunk_size: Batches of this rank between two validations. Sizes that change are
            ``{"start", "end", "over_chunks"}``, a list of ``[first chunk, batches]``, or a duration
            such as ``"10min"``. Or a configuration with a section ``train`` that contains all of
            these options (``chunk_seed``, ``chunk_shuffle`` and ``chunk_order`` there).
        val_chunk_size: Batches of this rank in a validation: a fixed, seeded choice.
        seed: Seed of the order of replaced loaders and of that choice.
        shuffle: Whether replaced training loaders shuffle, whatever they did before.
        order: ``"shuffled"``, ``"sequential"`` or ``"block"``.
        val_cycle: Validate on the next chunk each time. After a full rotation, the mean of every
            score over the rotation is logged as ``<score>_rotation``.
        cycle: False ends training after one pass over the dataset.
        max_passes: Training ends after this number of passes.
        start_chunk: The first chunk, counted from 0 over all passes.
        validate_every: Chunks between two validations, or ``{"min", "max", "loss_change"}``: after
            ``min`` chunks if the mean loss of a chunk changed by that share since the last
            validation, at the latest after ``max``. None validates after every chunk.
        skip: Positions of the training loader to leave out, each ``(epoch, start, stop)``.

    >>> from lightning.pytorch import Trainer
    >>> trainer = Trainer(callbacks=[ChunkedTraining(2000)], max_epochs=10, accelerator="cpu")
    """

    def __init__(
        self,
        train_chunk_size: Any = None,
        val_chunk_size: int | None = None,
        *,
        seed: int | None = 42,
        shuffle: bool = True,
        order: str = "shuffled",
        val_cycle: bool = False,
        cycle: bool = True,
        max_passes: int | None = None,
        start_chunk: int | None = None,
        validate_every: int | Mapping[str, float] | None = None,
        skip: Sequence[Sequence[int]] | None = None,
    ) -> None:
        given: dict[str, Any] = {"seed": seed, "shuffle": shuffle, "order": order, "skip": skip}
        given |= {"cycle": cycle, "max_passes": max_passes, "val_chunk_size": val_chunk_size}
        given |= {"validate_every": validate_every, "val_cycle": val_cycle}
        self.settings = read_settings(train_chunk_size, given, start_chunk)
        self._loaders = FitLoaders(self.settings)
        self._resume = ExactResume(self._loaders)
        self._history: reporting.RunHistory | None = None
        self._verdict: Verdict | None = None
        self._gauges: Gauges | None = None
        self._rotation, self._waits = reporting.Rotation(), reporting.BatchWaits()
        self._bar: reporting.ProgressBar | None = None
        self._first_batch = True  # the next batch is the first of a chunk
        self._loss: Any = None
        self._timing: reporting.ValidationTiming | None = None

    # -- chunk sizes

    @property
    def chunked_training_enabled(self) -> bool:
        """Whether there is a chunk size, for training or for validation."""
        return self._loaders.sizes.enabled

    @property
    def explicit_train_chunk_size(self) -> int | None:
        """The training chunk size given here, to the data module, or to the loader."""
        return self._loaders.sizes.explicit_train

    @property
    def explicit_val_chunk_size(self) -> int | None:
        """The validation chunk size given here, to the data module, or to the loader."""
        return self._loaders.sizes.explicit_val

    @property
    def train_chunk_size(self) -> int | None:
        """Batches of a chunk, now if they change; if inferred, known when the fit has started."""
        size = self._loaders.sizes.train
        if isinstance(size, int) or self.loader is None:
            return size
        return self.loader.chunk_size

    @property
    def val_chunk_size(self) -> int | None:
        """Batches of a validation; if inferred, known when the fit has started."""
        return self._loaders.sizes.val

    @property
    def loader(self) -> Loader | None:
        """The loader that is trained on; None if it is not of Penstock, or before the fit."""
        return self._loaders.loader

    # -- start and end

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Prepare a fit."""
        if stage == "fit":
            self._loaders.attach(trainer)
            self._resume = ExactResume(self._loaders)
            self._history = self._verdict = None
            interval = self.settings.validate_every
            self._timing = None if interval is None else reporting.ValidationTiming(interval)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the loaders and undo all changes of the Trainer."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Do what `teardown` does, which Lightning does not call after an exception."""
        self._close()

    def _close(self) -> None:
        self._loaders.close()
        self._gauges = None
        if self._bar is not None:
            self._bar.release()

    # -- training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count from the start of the run, in this session or an earlier one."""
        loader, restored = self.loader, self._resume.restored
        if loader is None:
            return
        progress = self._resume.start(trainer, loader)
        loader.metrics.pause()
        self._gauges = Gauges(loader)
        if self._timing is not None and restored.get("timing"):
            self._timing.load(restored["timing"])
            self._validate_if_due()
        if has_several_ranks():
            agree(loader)
        self._history = reporting.RunHistory(
            restored,
            reporting.cursor_of(progress.loader),
            elsewhere=self._loaders.starts_at_chunk,
            limit=None if self.chunked_training_enabled else trainer.num_training_batches,
        )
        self._rotation = reporting.Rotation(**restored.get("rotation", {}))
        self._waits, self._first_batch = reporting.BatchWaits(loader.waited_seconds), True
        if self.chunked_training_enabled:
            self._bar = reporting.ProgressBar(trainer.progress_bar_callback, self._bar_items)
        self._stop_if_done(trainer)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Note how long training waited for this batch."""
        self._resume.correct_logged_steps(trainer)
        if self.loader is None:
            return
        self._waits.add(self.loader.waited_seconds, first=self._first_batch)
        if self._first_batch and self._bar is not None:
            self._bar.show_title(self.position_text.capitalize())
        self._first_batch = False

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """Note the progress if the optimizer stepped."""
        self._loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        # batches since the last optimizer step are not in the weights, and come again
        stepped = self._resume.note(trainer)
        if stepped:
            self._log_figures(trainer)
        if self._timing is None:
            return
        self._timing.add(self._loss)
        if stepped:
            self._timing.note()
        if trainer.is_last_batch:
            self._timing.decide(trainer)
            self._validate_if_due()

    def _log_figures(self, trainer: Any) -> None:
        """Send waiting, throughput and position to all loggers, when Lightning logs a step."""
        step, every = compat.logged_steps(trainer), trainer.log_every_n_steps
        if self._gauges is None or not trainer.loggers or not every or (step + 1) % every:
            return
        figures = self._gauges.read()
        for logger in trainer.loggers:
            logger.log_metrics(figures, step=step)

    def _validate_if_due(self) -> None:
        assert self._timing is not None
        self._loaders.trainer_settings.validate_next(self._timing.due)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Complete a chunk, unless training stopped inside it."""
        self._resume.end_chunk(trainer)
        self._first_batch = True
        if self.loader is None or not trainer.is_last_batch:
            return
        if self.chunked_training_enabled and trainer.is_global_zero:
            batches, waited = trainer.num_training_batches, self._waits.chunk
            log.info("%s: %d batches, waited %.2f s", self.position_text, batches, waited)
        self._stop_if_done(trainer)

    def _bar_items(self) -> dict[str, str]:
        share = 0.0 if self.loader is None else self.loader.metrics.waiting
        items = {"waiting": f"{self._waits.chunk:.2f}s ({percent(share)})"}
        if isinstance(self._loss, torch.Tensor) and self._loss.numel() == 1:
            items["loss"] = f"{self._loss.item():.4g}"
        return items

    def _stop_if_done(self, trainer: Any) -> None:
        passes, loader, history = self.settings.passes, self.loader, self._history
        if passes is None or loader is None or history is None:
            return
        if loader.position.cursor.epoch >= history.begin.epoch + passes:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the verdict over all ranks."""
        if self.loader is None:
            return
        own = replace(self.loader.snapshot(), spans=[])
        found = [Snapshot.of_dict(json.loads(each)) for each in gathered_texts(own.json())]
        self._verdict = verdict_of(merge(found))
        if trainer.is_global_zero and any(each.batches for each in found):
            log.info("%s", self._verdict)
            for stall in self._verdict.stalls[:SHOWN_STALLS]:
                log.info("  stall %s", stall)

    @property
    def measured(self) -> bool:
        """Whether a batch of this fit was measured."""
        return self.loader is not None and self.loader.snapshot().batches > 0

    def verdict(self) -> Verdict:
        """Return whether training waits for data: over all ranks at its end, else on this one."""
        if self._verdict is not None:
            return self._verdict
        if self.loader is None:
            raise StateError(NO_POSITION)
        return self.loader.verdict()

    # -- validation

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Remember the position of validation loaders that move."""
        if self.loader is not None:
            self.loader.metrics.pause()  # a validation is not a step
        if trainer.state.fn == "fit":
            self._resume.begin_validation(trainer)

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        """Move validation loaders back."""
        self._resume.undo_validation()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Note that these weights are validated, and add up the scores of a rotation."""
        if trainer.state.fn != "fit":
            return
        states, rotating = self._resume.validation_states, self._loaders.validation.rotating
        if states:
            if rotating is not None and not trainer.sanity_checking:
                self._add_to_rotation(trainer, rotating, states[0])
            compat.read_validation_lengths_again(trainer)
        if not trainer.sanity_checking:
            self._resume.end_validation(trainer)

    def _add_to_rotation(self, trainer: Any, loader: Loader, before: dict[str, Any]) -> None:
        begin, end = reporting.cursor_of(before), loader.position.cursor
        scores = self._rotation.add(
            compat.epoch_metrics(trainer),
            samples=samples_between(loader.plan, begin, end),
            begins=begin.position == 0,
            ended=end.position == 0,
        )
        for logger in trainer.loggers if scores else ():
            logger.log_metrics(scores, step=compat.logged_steps(trainer))
        shown = {name: torch.tensor(score) for name, score in self._rotation.scores.items()}
        trainer.callback_metrics.update(shown)

    # -- checkpoints and reports

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Save what is in the weights, whatever was delivered since."""
        found = self._resume.save(trainer)
        if found is None:
            return
        if self._timing is not None:
            found["timing"] = self._timing.to_state()
        if self._history is not None:
            found |= self._history.to_state() | {"rotation": asdict(self._rotation)}
        # before training has started, also what an earlier session saved
        checkpoint[KEY] = self._resume.restored | found

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Restore the loaders together with Lightning's counters."""
        if trainer.state.fn == "fit":
            self._resume.load(trainer, checkpoint)

    @property
    def position_text(self) -> str:
        """The position of training: ``epoch 3, chunk 7/16``."""
        if self.loader is None:
            raise StateError(NO_POSITION)
        position = self.loader.position
        if position.progress is not None:
            chunk = max(1, position.progress.chunks + bool(position.progress.done))
            return f"epoch {position.cursor.epoch}, chunk {chunk} of the run"
        return describe_position(self.loader.plan.steps, position.cursor)

    def coverage(self) -> dict[str, Any]:
        """Return what is in the weights over all sessions, as numbers for a picture."""
        history, loader, progress = self._trained()
        return history.coverage(loader, progress)

    def summary(self) -> ChunkSummary:
        """Return what is in the weights over all sessions, and how long this one waited."""
        history, loader, progress = self._trained()
        return history.summary(loader, progress, self._waits)

    def _trained(self) -> tuple[reporting.RunHistory, Loader, Progress]:
        history, loader, progress = self._history, self.loader, self._resume.progress
        if history is None or loader is None or progress is None:
            raise StateError(NO_POSITION)
        return history, loader, progress


def read_settings(first: Any, given: dict[str, Any], start_chunk: int | None) -> ChunkSettings:
    """Return the settings of a call: passed one by one, or all in a configuration."""
    sizes = isinstance(first, Mapping) and {"start", "end", "over_chunks"} >= {*first} != set()
    if sizes or first is None or not (hasattr(first, "train") or isinstance(first, Mapping)):
        return ChunkSettings(train_chunk_size=first, start_chunk=start_chunk, **given)
    defaults = ChunkSettings()
    twice = [name for name, value in given.items() if value != getattr(defaults, name)]
    if twice:
        raise ConfigError(f"{twice[0]} was passed with a configuration: set it there instead")
    found = ChunkSettings.of_config(first)
    return found if start_chunk is None else replace(found, start_chunk=start_chunk)
