"""Lightning: training in chunks, as one callback."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, astuple, replace
from typing import Any, Final

import torch

from penstock.distributed.agreement import agree
from penstock.errors import ConfigError, StateError
from penstock.integrations.lightning.bar import Bar
from penstock.integrations.lightning.chunk_rotation import Rotation
from penstock.integrations.lightning.chunk_waits import Waits
from penstock.integrations.lightning.loaders import SizedLoaders
from penstock.integrations.lightning.resume import KEY as KEY
from penstock.loaders.chunk_report import (
    ChunkSummary,
    Stretch,
    coverage_of,
    place_in_words,
    samples_between,
    samples_of_pass,
)
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.order import Cursor

log = logging.getLogger("penstock")

NO_POSITION: Final = (
    "there is no data position: no Penstock loader was trained on; call trainer.fit with "
    "ChunkedTraining in callbacks and a Penstock loader, or with a train_chunk_size"
)


class ChunkedTraining(SizedLoaders):
    """Makes every chunk of a loader an epoch of Lightning, and every checkpoint resume exactly.

    With it a ``Trainer`` validates after every chunk, whatever its length; ``max_epochs`` counts
    chunks. Chunk sizes are given here, or found in the loaders or the data module. One of them is
    enough: the other is the whole of its partition, and both can be read once the loaders are
    there. They beat ``limit_train_batches`` and ``limit_val_batches``; without any, those count
    and nothing is changed. ``test`` and ``predict`` are never chunked.

    With sizes given here, a stock ``DataLoader`` of a map-style dataset is replaced by one of
    Penstock with the same settings; loaders of Penstock stay. They come from ``fit`` or from hooks,
    which are then called once. A checkpoint, taken anywhere, goes on at the first batch that is
    not in the weights; another number of ranks or workers, another batch or chunk size may resume
    it. The sanity check moves nothing. Ranks that are about to train on different data are all
    stopped before the first step.

    Args:
        train_chunk_size: Batches of this rank between two validations. Or a configuration: what
            has a section ``train``, with all of these (``chunk_seed``, ``chunk_shuffle`` and
            ``chunk_order`` there).
        val_chunk_size: Batches of this rank that a validation has: a fixed, seeded choice.
        seed: Of the order of replaced loaders, and of that choice.
        shuffle: Of replaced training loaders, whatever they did themselves.
        order: ``"shuffled"``, ``"sequential"`` or ``"block"``.
        val_cycle: Validate on the next chunk each time; after a full rotation the mean of every
            score over all of it is logged too, as ``<score>_rotation``.
        cycle: False ends training after one pass.
        max_passes: Training ends after so many.
        start_chunk: The chunk to begin with, counted from 0 over all passes.

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
    ) -> None:
        said = {"seed": seed, "shuffle": shuffle, "order": order, "val_cycle": val_cycle}
        said |= {"cycle": cycle, "max_passes": max_passes, "val_chunk_size": val_chunk_size}
        super().__init__(settings_of(train_chunk_size, said, start_chunk))
        self._begin = self._since = Cursor()
        self._past: list[Stretch] = []  # that were trained on before another chunk was asked for
        self._limit: int | None = None  # batches that Lightning takes of every pass
        self._rotation, self._waits = Rotation(), Waits()
        self._bar: Bar | None = None
        self._first = True  # the next batch is a chunk's first
        self._loss: Any = None

    # -- what training does

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Count from where the run began, in this session or an earlier one."""
        restored = self._restored
        super().on_train_start(trainer, pl_module)
        if self._loader is None or self._progress is None:
            return
        agree(self._loader)
        here = cursor_of(self._progress.loader)
        self._begin = cursor_of(restored["begin"]) if "begin" in restored else here
        self._since = cursor_of(restored["since"]) if "since" in restored else self._begin
        self._past = [(Cursor(*one), Cursor(*other)) for one, other in restored.get("past", ())]
        if self._begins_elsewhere and restored:
            self._past.append((self._since, cursor_of(restored["progress"]["loader"])))
            self._since = here
        self._limit = None if self.chunked_training_enabled else trainer.num_training_batches
        self._rotation = Rotation()
        if restored.get("rotation"):
            self._rotation.load(restored["rotation"])
        self._waits, self._first = Waits(self._loader.waited_seconds), True
        if self.chunked_training_enabled:
            self._bar = Bar(trainer.progress_bar_callback, self._items)
        self._stop_when_done(trainer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note how long this batch was waited for."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self._loader is None:
            return
        self._waits.batch(self._loader.waited_seconds, first=self._first)
        if self._first and self._bar is not None:
            self._bar.title(self.place.capitalize())
        self._first = False

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note what is in the weights, if the optimizer stepped."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self._loss = outputs.get("loss") if isinstance(outputs, dict) else outputs

    def _items(self) -> dict[str, str]:
        items = {"waiting": f"{self._waits.chunk:.2f}s"}
        if isinstance(self._loss, torch.Tensor) and self._loss.numel() == 1:
            items["loss"] = f"{self._loss.item():.4g}"
        return items

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A chunk is finished, unless training stopped inside it."""
        super().on_train_epoch_end(trainer, pl_module)
        self._first = True
        if self._loader is None or not trainer.is_last_batch:
            return
        if self.chunked_training_enabled and trainer.is_global_zero:
            batches, waited = trainer.num_training_batches, self._waits.chunk
            log.info("%s: %d batches, waited %.2f s", self.place, batches, waited)
        self._stop_when_done(trainer)

    @property
    def place(self) -> str:
        """Where training is: ``epoch 3, chunk 7/16``."""
        if self._loader is None:
            raise StateError(NO_POSITION)
        course = self._loader.position
        return place_in_words(course.plan.steps, course.cursor)

    def _stop_when_done(self, trainer: Any) -> None:
        passes, loader = self.settings.passes, self._loader
        if passes is None or loader is None:
            return
        if loader.position.cursor.epoch >= self._begin.epoch + passes:
            trainer.should_stop = True

    def _close(self) -> None:
        super()._close()
        if self._bar is not None:
            self._bar.let_go()

    # -- what validation did

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """These weights are validated; a whole rotation gives scores of its own."""
        rotating = self._validation.rotating if self._validation is not None else None
        if trainer.state.fn == "fit" and not trainer.sanity_checking and rotating and self._unmoved:
            self._rotate(trainer, rotating, self._unmoved[0])
        if trainer.state.fn == "fit" and self._unmoved:
            # Lightning reads lengths once an epoch, but the next validation of this very epoch is
            # on another chunk, of another length: its samples would be left out
            trainer.fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch = float("-inf")
        super().on_validation_end(trainer, pl_module)

    def _rotate(self, trainer: Any, loader: Any, before: dict[str, Any]) -> None:
        begin, end = Cursor(before["epoch"], before["position"]), loader.position.cursor
        scores = self._rotation.add(
            trainer._results.metrics(on_step=False)["callback"],
            samples=samples_between(loader.position.plan.steps, begin, end),
            begins=begin.position == 0,
            ended=end.position == 0,
        )
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        for logger in trainer.loggers if scores else ():
            logger.log_metrics(scores, step=step)
        shown = {name: torch.tensor(score) for name, score in self._rotation.scores.items()}
        trainer.callback_metrics.update(shown)

    # -- checkpoints, and the end

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Save how far the weights are, whatever was delivered since."""
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if KEY in checkpoint:
            checkpoint[KEY] |= {
                "begin": asdict(self._begin),
                "since": asdict(self._since),
                "past": [[astuple(one), astuple(other)] for one, other in self._past],
                "rotation": self._rotation.to_state(),
            }

    def summary(self) -> ChunkSummary:
        """What is in the weights, over all sessions of the run, and what this one waited."""
        if self._loader is None or self._progress is None:
            raise StateError(NO_POSITION)
        plan = self._loader.position.plan
        seen = [*self._past, (self._since, cursor_of(self._progress.loader))]
        samples = sum(samples_between(plan.steps, *each, self._limit) for each in seen)
        return ChunkSummary(
            samples,
            passes=samples / samples_of_pass(plan.steps),
            coverage=coverage_of(plan, seen, self._limit),
            chunks=self._progress.chunks,
            waiting_seconds=self._waits.total,
            chunk_start_seconds=self._waits.chunk_start,
            batch_seconds=self._waits.other,
        )


def cursor_of(state: Mapping[str, Any]) -> Cursor:
    """The place in a loader's state."""
    return Cursor(state["epoch"], state["position"])


def settings_of(first: Any, said: dict[str, Any], start_chunk: int | None) -> ChunkSettings:
    """The settings of a call: each by its name, or all of them in a configuration."""
    if first is None or (not hasattr(first, "train") and not isinstance(first, Mapping)):
        return ChunkSettings(train_chunk_size=first, start_chunk=start_chunk, **said)
    plain = ChunkSettings()
    twice = [name for name, value in said.items() if value != getattr(plain, name)]
    if twice:
        raise ConfigError(f"{twice[0]} beside a configuration: give it in the configuration")
    found = ChunkSettings.of_config(first)
    return found if start_chunk is None else replace(found, start_chunk=start_chunk)
