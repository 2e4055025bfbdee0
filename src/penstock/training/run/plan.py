"""`penstock plan`: what a run reads and when. `penstock train --dry-run`: what it costs."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import ConcatDataset, Subset

from penstock.arguments import format_bytes, whole_number
from penstock.datamodules.inputs import flat_loaders
from penstock.datasets.mixture import Mixture
from penstock.errors import ConfigError, PlanError, StateError
from penstock.extras import optional
from penstock.integrations.lightning.callback import ChunkedTraining
from penstock.integrations.lightning.loaders import (
    as_training_loader,
    as_validation_loader,
    skip_positions,
)
from penstock.integrations.lightning.resume import KEY
from penstock.loaders import ChunkedDataLoader, Loader
from penstock.loaders.chunk_report import counted, counted_passes, coverage_of, passes_after
from penstock.loaders.pass_through import has_position
from penstock.metrics import bytes_of
from penstock.order import Cursor, Occurrence, Steps, Topology
from penstock.sources import Source
from penstock.training.build import build
from penstock.training.build.objects import as_list
from penstock.training.config import Settings
from penstock.training.run.callbacks import AtomicCheckpointIO
from penstock.training.run.directory import KEPT, RunPaths, last_readable
from penstock.training.run.train import make_trainer, unlimited_epochs

callbacks = optional("lightning.pytorch.callbacks", extra="train")
dummies = optional("lightning.pytorch.loggers.logger", extra="train")

ROWS = 12  # of the table of chunks; the middle of more is left out


class PlannedLoaders(NamedTuple):
    """The loaders of training and validation, and the number of ranks of the run."""

    train: Loader
    validation: list[Any]
    world: int


@contextmanager
def planned_loaders(settings: Settings) -> Iterator[PlannedLoaders]:
    """Yield the loaders of a configuration, as `ChunkedTraining` will use them."""
    job, chunks = build(settings), settings.chunks
    data = job.module if job.data is None else job.data
    for hook, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        getattr(data, hook, lambda *_: None)(*arguments)
    train, validation = data.train_dataloader(), flat_loaders(data.val_dataloader())
    if chunks.sized:
        train = as_training_loader(train, chunks, name="train_dataloader")
        validation = [as_validation_loader(v, chunks, name="val_dataloader") for v in validation]
    if not has_position(train):
        raise ConfigError(
            f"the order of a {type(train).__name__} is unknown: set train.train_chunk_size"
        )
    limit = job.trainer_kwargs.get("limit_train_batches")
    if limit is not None and limit != 1.0 and train.position.chunk is None:
        train.position.use(limit=limit)
    devices, nodes = (job.trainer_kwargs.get(name, 1) for name in ("devices", "num_nodes"))
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        devices = len(devices)
    world = int(nodes) * (max(1, int(devices)) if str(devices).isdigit() else 1)
    with ExitStack() as opened:
        for loader in (train, *validation):
            if isinstance(loader, Loader):
                opened.enter_context(loader)
                if has_position(loader):
                    loader.position.use(topology=Topology(0, world))
        skip_positions(train, chunks)
        yield PlannedLoaders(train, validation, world)


def plan_text(settings: Settings) -> str:
    """Return a page: what is read and when, how much of the dataset is seen, memory."""
    with planned_loaders(settings) as (loader, validation, _):
        lines = [loader.describe(), "", *table(loader), ""]
        for each in validation:
            lines.append(f"validation after each chunk: {counted(len(each), 'batch')} on each rank")
        lines += [] if validation else ["validation: none"]
        lines.append(length_text(loader, chunks_of(settings, loader)))
        batch = loader.peek()
        size = bytes_of(batch)
        lines.append(f"a batch: {shapes_of(batch)}, {format_bytes(size)}")
        if isinstance(loader, ChunkedDataLoader):  # a stream describes its buffers itself
            ahead = 1 + loader.num_workers * (loader.prefetch_factor or 0)
            held = f"{counted(ahead, 'batch')} at once on each rank, {format_bytes(ahead * size)}"
            lines.append(f"memory: up to {held}")
    return "\n".join(lines)


def step_text(settings: Settings, step: int) -> str:
    """Return the samples of a step (counted from 0 over all passes) by rank, without reading."""
    whole_number("--step", step, minimum=0, error=ConfigError)
    with planned_loaders(settings) as (loader, _, world):
        epoch, within = epoch_of_step(loader, step)
        steps = loader.plan.steps.of(epoch)
        place = f"epoch {epoch}, step {within:,} of {steps.count:,}"
        if steps.chunk is not None:
            chunk, batch = divmod(within, steps.chunk)
            place += f", chunk {chunk + 1}/{steps.total_chunks}, batch {batch:,}"
        lines = [f"step {step:,}: {place}", *accumulation_lines(settings, steps, step)]
        for rank in range(world):
            loader.position.use(topology=Topology(rank, world))
            at = f"  rank {rank}  " if world > 1 else "  "
            samples = loader.samples_at(within, epoch).tolist()
            lines += [at + located(loader, index) for index in samples]
    return "\n".join(lines)


def sample_text(settings: Settings, sample: int) -> str:
    """Return when a sample was seen, up to the last checkpoint of the run, and when it is next.

    Steps of past epochs are those of the configuration's batch size and ranks.
    """
    whole_number("--sample", sample, minimum=0, error=ConfigError)
    with planned_loaders(settings) as (loader, *_):
        here = resume_in(loader, settings)
        try:
            found = loader.when(sample, range(here.epoch + 3))
        except PlanError as error:
            raise ConfigError(f"--{error}") from error
        seen = [each for each in found if Cursor(each.epoch, each.position) < here]
        ahead = [each for each in found[len(seen) :] if each.step is not None]
        lines = [f"seen in {place_text(each)}" for each in seen] or ["not seen yet"]
        after = "skipped or dropped in the next epochs"
        after = f"next in {place_text(ahead[0])}" if ahead else after
        return "\n".join([located(loader, sample), *lines]) + f"; {after}"


def place_text(found: Occurrence) -> str:
    """Return where a sample is delivered.

    >>> place_text(Occurrence(3, 9, step=48213, rank=2, row=17))
    'epoch 3, step 48,213, rank 2, row 17'
    """
    if found.step is None:
        return f"no step of epoch {found.epoch}: it was skipped or dropped"
    return f"epoch {found.epoch}, step {found.step:,}, rank {found.rank}, row {found.row}"


def skip_text(settings: Settings, steps: str) -> str:
    """Return the positions of steps ``A:B`` (counted from 0 over all passes, without B)."""
    first, colon, last = steps.partition(":")
    if not (colon and first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise ConfigError(f"--skip-steps must be A:B, such as 48000:48200, got {steps!r}")
    with planned_loaders(settings) as (loader, *_):
        position, here = loader.position, resume_in(loader, settings)
        begin, end = epoch_of_step(loader, int(first)), epoch_of_step(loader, int(last) - 1)
        ranges: list[tuple[int, int, int]] = []
        for epoch in range(begin[0], end[0] + 1):
            if count := loader.plan.steps.of(epoch).count:
                start = position.span(begin[1] if epoch == begin[0] else 0, epoch)[0]
                stop = position.span(end[1] if epoch == end[0] else count - 1, epoch)[1]
                ranges += [(epoch, *run) for run in loader.plan.skips.runs(epoch, start, stop)]
        lines = [f"steps {int(first):,} to {int(last) - 1:,} are now:"]
        for epoch, start, stop in ranges:
            late = " (already delivered in part)" if Cursor(epoch, start) < here else ""
            lines.append(f"  epoch {epoch}, positions {start:,} to {stop - 1:,}{late}")
        merged = [list(each) for each in position.skips.union(ranges).ranges]
        text = str(merged).replace(" ", "")
        return "\n".join(
            [
                *lines,
                "skip them for good, on any ranks and with any batch size:",
                f"  in the configuration   train: {{skip: {merged}}}",
                f"  on the command line    penstock train ... 'train.skip={text}'",
                *(f"  in Python              loader.skip{each}" for each in ranges),
            ]
        )


def resume_in(loader: Loader, settings: Settings) -> Cursor:
    """Go to the last checkpoint of the run; return its position in the order, or the start."""
    saved = last_readable(RunPaths(settings.run_dir), first_rank=False)
    state = {} if saved is None else saved.content.get(KEY, {}).get("progress", {}).get("loader")
    if not state:
        return Cursor()
    try:
        loader.load_state_dict(state)
    except StateError as error:
        raise ConfigError(
            f"run_dir={settings.run_dir} holds a run of other data or settings: set run_dir= to "
            f"plan another one ({error})"
        ) from error
    return Cursor(state["epoch"], state["position"])


def epoch_of_step(loader: Loader, step: int) -> tuple[int, int]:
    """Return the epoch of a step counted over all passes, and its number there."""
    steps, epoch = loader.plan.steps, 0
    if steps.is_constant:
        return divmod(step, steps.count)
    while step >= (count := steps.of(epoch).count):
        epoch, step = epoch + 1, step - count
    return epoch, step


def accumulation_lines(settings: Settings, steps: Steps, step: int) -> Iterator[str]:
    """Yield a line with the optimizer step of a batch, if batches are accumulated."""
    together = accumulated(settings)
    if together == 1:
        return
    size = steps.chunk or steps.count
    of_a_chunk = -(-size // together)  # the last batch of a chunk always makes a step
    rest_of_a_pass = -(-(steps.count % size) // together)
    of_a_pass = steps.count // size * of_a_chunk + rest_of_a_pass
    epoch, within = divmod(step, steps.count)
    chunk, batch = divmod(within, size)
    into = epoch * of_a_pass + chunk * of_a_chunk + batch // together
    yield (
        f"accumulate_grad_batches={together}: a step is a batch here; checkpoints and metrics "
        f"count optimizer steps, and this batch is in optimizer step {into:,}, counted from 0"
    )


def accumulated(settings: Settings) -> int:
    """Return the number of batches per optimizer step."""
    return int(settings.trainer.get("accumulate_grad_batches") or 1)


def table(loader: Loader) -> Iterator[str]:
    """Yield a line for each chunk of the first epoch; of many, for the first and last ones."""
    steps, progress = loader.plan.steps.of(0), loader.position.progress
    if progress is not None:
        yield f"chunks: {progress.schedule}"
        return
    yield "chunk   steps                     batches     samples"
    size = steps.chunk or steps.count
    count = -(-steps.count // size)
    ends = (*range(ROWS - 4), *range(count - 3, count))
    for chunk in range(count) if count <= ROWS else ends:
        if chunk == count - 3 and count > ROWS:
            yield "  ..."
        first, end = chunk * size, min((chunk + 1) * size, steps.count)
        samples = steps.stop(steps.start(end - 1)) - steps.start(first)
        span = f"{first:,} to {end - 1:,}"
        yield f"{chunk + 1:>5}   {span:<22} {end - first:>10,} {samples:>11,}"


def chunks_of(settings: Settings, loader: Loader) -> float:
    """Return the number of chunks of the run; infinite where nothing ends it."""
    steps, passes = loader.plan.steps, settings.chunks.passes
    epochs, most = settings.trainer.get("max_epochs"), settings.trainer.get("max_steps")
    ends = [math.inf] if passes is None else [passes * steps.total_chunks]
    if epochs is not None and epochs >= 0:
        ends.append(epochs)
    if most is not None and most >= 0:
        ends.append(most * accumulated(settings) / (steps.chunk or steps.count))
    return min(ends)


def length_text(loader: Loader, chunks: float) -> str:
    """Return the length of training, and how much of the dataset it sees."""
    plan, steps = loader.position.plan, loader.plan.steps
    if math.isinf(chunks):
        return "training has no end: set trainer.max_epochs, or train.max_passes"
    if steps.limit is not None:
        epochs = f"{counted(chunks, 'epoch')} of {counted(steps.count, 'batch')}"
        return f"training: {epochs}, the first ones of a new shuffle each time"
    if loader.position.progress is not None:
        return f"training: {counted(chunks, 'chunk')} of different sizes"
    epoch, rest = divmod(chunks, steps.total_chunks)
    step = min(int(rest * (steps.chunk or steps.count)), steps.count)
    here = Cursor(int(epoch), steps.start(step) if step else 0)
    share = coverage_of(plan, [(Cursor(), here)])
    return (
        f"training: {counted(chunks, 'chunk')} = {counted_passes(passes_after(steps, chunks))}, "
        f"{share:.1%} of {steps.size:,} samples seen"
    )


def located(loader: Any, sample: int) -> str:
    """Return the number of a sample, and where it is stored if that is known."""
    data = getattr(loader, "mixture", None)
    where = locate(getattr(loader, "dataset", None) if data is None else data, sample)
    return f"sample {sample:,}" + (f"  {where}" if where else "")


def locate(dataset: Any, index: int) -> str | None:
    """Return where a sample is stored; None where that is unknown.

    A dataset may define a method ``locate(index)``. Nothing is read.

    >>> class Lines:
    ...     def locate(self, index):
    ...         return f"book.txt:{index + 1}"
    >>> locate(Subset(Lines(), [7, 8]), 1)
    'book.txt:9'
    """
    if isinstance(dataset, Mixture):
        ((member, inner),) = dataset.locate([index])
        return f"{member} {inner:,}"
    if isinstance(dataset, Source):
        return None
    if isinstance(dataset, Subset):
        return locate(dataset.dataset, int(dataset.indices[index]))
    if isinstance(dataset, ConcatDataset):
        part = bisect_right(dataset.cumulative_sizes, index)
        before = dataset.cumulative_sizes[part - 1] if part else 0
        return locate(dataset.datasets[part], index - before)
    method = getattr(dataset, "locate", None)
    return str(method(index)) if callable(method) else None


def format_duration(seconds: float) -> str:
    """Return a duration with a unit.

    >>> [format_duration(seconds) for seconds in (0.0421, 75, 7500, math.inf)]
    ['0.042 s', '1 min 15 s', '2 h 5 min', 'without end']
    """
    if math.isinf(seconds):
        return "without end"
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.1f} days"


def shapes_of(batch: Any) -> str:
    """Return the types and shapes in a batch.

    >>> shapes_of((torch.zeros(4, 2), {"y": torch.zeros(4, dtype=torch.int64)}))
    '(float32 4x2, {y: int64 4})'
    """
    if isinstance(batch, torch.Tensor):
        kind = str(batch.dtype).removeprefix("torch.")
        return f"{kind} {'x'.join(map(str, batch.shape)) or 'scalar'}"
    if isinstance(batch, dict):
        return "{" + ", ".join(f"{key}: {shapes_of(each)}" for key, each in batch.items()) + "}"
    if isinstance(batch, list | tuple):
        return "(" + ", ".join(map(shapes_of, batch)) + ")"
    return type(batch).__name__


STEPS: Final = 5  # timed steps, after a first one that warms up
SECONDS: Final = 20.0  # stop timing after this long
VALIDATION_BATCHES: Final = 2


class MeasuredEnough(BaseException):
    """Ends the dry run when everything is measured."""


class Stopwatch(callbacks.Checkpoint):  # type: ignore[misc, name-defined]
    """Times steps and validation batches, writes one checkpoint, and ends training.

    It is a checkpoint callback, so that Lightning adds none of its own.
    """

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._file, self._clock = folder / "one.ckpt", clock
        self.steps: list[float] = []
        self.validation: list[float] = []
        self.batch, self.batch_bytes, self.checkpoint_bytes = "", 0, 0
        self._began = self._last = 0.0

    def on_validation_batch_start(self, *_: Any) -> None:
        """Start timing."""
        self._last = self._clock()

    def on_validation_batch_end(self, *_: Any) -> None:
        """Record the time."""
        self.validation.append(self._clock() - self._last)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start timing."""
        self._began = self._last = self._clock()

    def on_train_batch_end(self, trainer: Any, _: Any, __: Any, batch: Any, *___: Any) -> None:
        """Record the time of a step; end when there are enough."""
        now = self._clock()
        self.steps.append(now - self._last)
        self._last = now
        self.batch, self.batch_bytes = shapes_of(batch), bytes_of(batch)
        if len(self.steps) > STEPS or now - self._began > SECONDS:
            self._leave(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End with fewer steps, where the dataset has fewer batches."""
        self._leave(trainer)

    def _leave(self, trainer: Any) -> None:
        trainer.save_checkpoint(self._file, weights_only=False)
        self.checkpoint_bytes = self._file.stat().st_size
        raise MeasuredEnough


def forecast(settings: Settings, clock: Callable[[], float] = time.monotonic) -> str:
    """Build everything, take a few steps in one process, and return the cost of a run as text."""
    with tempfile.TemporaryDirectory(prefix="penstock-dry-run-") as folder:
        job, chunked = build(settings), ChunkedTraining(settings)
        watch = Stopwatch(Path(folder), clock)
        kwargs = dict(job.trainer_kwargs) | {
            "callbacks": [chunked, watch],
            "plugins": [*as_list(job.trainer_kwargs.get("plugins")), AtomicCheckpointIO()],
            "logger": dummies.DummyLogger(),
            "default_root_dir": folder,
            "num_sanity_val_steps": VALIDATION_BATCHES,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "devices": 1,
            "num_nodes": 1,
            "strategy": "auto",
        }
        trainer = make_trainer(kwargs | unlimited_epochs(kwargs, chunked))
        with suppress(MeasuredEnough):
            trainer.fit(job.module, datamodule=job.data)
    loader, batches, chunks, waited = chunked.loader, trainer.num_training_batches, math.inf, 0.0
    if loader is not None:
        steps = loader.plan.steps
        batches, chunks = steps.chunk or steps.count, chunks_of(settings, loader)
        waited = loader.waited_seconds / max(1, len(watch.steps))
    if not watch.steps:
        raise ConfigError("nothing can be estimated: the trainer's limits leave no batch to train")
    step = median(watch.steps[1:] or watch.steps)  # the first one warms up
    validated = int(sum(trainer.num_val_batches))
    chunk = int(batches) * step + validated * median(watch.validation or [0.0])
    number = "chunks without end" if math.isinf(chunks) else counted(chunks, "chunk")
    size, here = watch.checkpoint_bytes, settings.run_dir.absolute()
    disk = (KEPT + 2) * size  # those kept, the best, and one being written
    free = shutil.disk_usage(next(p for p in (here, *here.parents) if p.is_dir())).free
    return "\n".join(
        [
            "dry run: nothing was trained, nothing is kept",
            f"  a batch       {watch.batch}, {format_bytes(watch.batch_bytes)}",
            f"  a step        {format_duration(step)}, of which {format_duration(waited)} waiting "
            "for its batch",
            f"  a chunk       {counted(int(batches), 'step')} and {counted(validated, 'batch')} of "
            f"validation, {format_duration(chunk)}",
            f"  the run       {number}, {format_duration(chunks * chunk)}",
            f"  a checkpoint  {format_bytes(size)}; all that are kept {format_bytes(disk)}, "
            f"{format_bytes(free)} are free" + (": NOT ENOUGH" if disk > free else ""),
        ]
    )
