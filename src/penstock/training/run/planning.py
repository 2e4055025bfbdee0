"""`penstock plan`: what a run will read and when, and which samples a step is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.arguments import whole_number
from penstock.errors import ConfigError
from penstock.loaders import ChunkedDataLoader, Loader
from penstock.loaders.chunk_report import counted, counted_passes, coverage, passes_after
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.metrics import bytes_of
from penstock.order import Cursor, Steps
from penstock.sizes import format_bytes
from penstock.training.build import build
from penstock.training.config import Settings
from penstock.training.run.locating import locate
from penstock.training.run.planned_loaders import PlannedLoaders, planned_loaders
from penstock.training.run.units import shapes_of

ROWS = 12  # of the table of chunks; the middle of more is left out


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A chunk of an epoch: which steps, and how many samples over all ranks."""

    chunk: int
    first_step: int
    batches: int
    samples: int


def plan_text(settings: Settings) -> str:
    """A page: what is read and when, in which sizes, how much of it is seen, in what memory."""
    chunks = ChunkSettings.of_config(settings)
    with planned_loaders(build(settings), chunks) as loaders:
        lines = [
            loaders.train.describe(),
            "",
            *table(steps_of(loaders.train)),
            "",
            *validation_lines(loaders),
            *length_lines(loaders.train, chunks_of(settings, loaders.train)),
            *memory_lines(loaders.train),
        ]
    return "\n".join(lines)


def step_text(settings: Settings, step: int) -> str:
    """The samples of a step, counted from 0 over all passes, rank by rank; nothing is read."""
    whole_number("--step", step, minimum=0, error=ConfigError)
    chunks = ChunkSettings.of_config(settings)
    with planned_loaders(build(settings), chunks) as loaders:
        steps = steps_of(loaders.train)
        epoch, within = divmod(step, steps.count)
        place = f"epoch {epoch}, step {within:,} of {steps.count:,}"
        if steps.chunk is not None:
            chunk, batch = divmod(within, steps.chunk)
            place += f", chunk {chunk + 1}/{steps.total_chunks}, batch {batch:,}"
        lines = [f"step {step:,}: {place}", *together_lines(settings, steps, step)]
        for rank in range(loaders.world):
            lines += rank_lines(loaders, rank, within, epoch)
    return "\n".join(lines)


def together_lines(settings: Settings, steps: Steps, step: int) -> Iterator[str]:
    """Which optimizer step a batch goes into, where several make one."""
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
        f"count optimizer steps, and it goes into number {into:,} of those, from 0"
    )


def accumulated(settings: Settings) -> int:
    """Batches that make an optimizer step."""
    return int(settings.trainer.get("accumulate_grad_batches") or 1)


def rank_lines(loaders: PlannedLoaders, rank: int, step: int, epoch: int) -> Iterator[str]:
    """The samples of a rank, each with where it is."""
    loader = loaders.on_rank(rank)
    dataset: Any = getattr(loader, "dataset", None)
    for index in loader.samples_at(step, epoch).tolist():
        where = locate(dataset, index)
        at = f"rank {rank}  " if loaders.world > 1 else ""
        yield f"  {at}sample {index:,}" + (f"  {where}" if where else "")


def steps_of(loader: Loader) -> Steps:
    """How a loader cuts its order."""
    return loader.position.plan.steps


def row_of(steps: Steps, chunk: int) -> ChunkRow:
    """One chunk of an epoch."""
    size = steps.chunk or steps.count
    first, end = chunk * size, min((chunk + 1) * size, steps.count)
    stop = steps.stop(steps.start(end - 1))
    return ChunkRow(chunk, first, end - first, stop - steps.start(first))


def table(steps: Steps) -> Iterator[str]:
    """The chunks in lines; of many, the first and the last."""
    yield "chunk   steps                     batches     samples"
    count = -(-steps.count // (steps.chunk or steps.count))
    head = range(count) if count <= ROWS else range(ROWS - 4)
    for chunk in (*head, *range(max(count - 3, head.stop), count)):
        if chunk == count - 3 and count > ROWS:
            yield "  ..."
        row = row_of(steps, chunk)
        span = f"{row.first_step:,} to {row.first_step + row.batches - 1:,}"
        yield f"{row.chunk + 1:>5}   {span:<22} {row.batches:>10,} {row.samples:>11,}"


def validation_lines(loaders: PlannedLoaders) -> Iterator[str]:
    """What a validation reads."""
    for loader in loaders.validation:
        yield f"validation after each chunk: {counted(len(loader), 'batch')} on each rank"
    if not loaders.validation:
        yield "validation: none"


def chunks_of(settings: Settings, loader: Loader) -> float:
    """Chunks that training will have; infinite where nothing ends it."""
    steps = steps_of(loader)
    ends = [math.inf]
    passes = ChunkSettings.of_config(settings).passes
    epochs, most = settings.trainer.get("max_epochs"), settings.trainer.get("max_steps", -1)
    if passes is not None:
        ends.append(passes * steps.total_chunks)
    if epochs is not None and epochs >= 0:
        ends.append(epochs)
    if most is not None and most >= 0:
        batches = most * accumulated(settings)
        ends.append(batches / (steps.chunk or steps.count))
    return min(ends)


def length_lines(loader: Loader, chunks: float) -> Iterator[str]:
    """How long training will be, and how much of the dataset it will see."""
    plan, steps = loader.position.plan, steps_of(loader)
    if math.isinf(chunks):
        yield "training has no end: give trainer.max_epochs, or train.max_passes"
        return
    if steps.limit is not None:
        epochs = f"{counted(chunks, 'epoch')} of {counted(steps.count, 'batch')}"
        yield f"training: {epochs}, the first ones of another shuffle each time"
        return
    epoch, rest = divmod(chunks, steps.total_chunks)
    step = min(int(rest * (steps.chunk or steps.count)), steps.count)
    end = Cursor(int(epoch), steps.start(step) if step else 0)
    share = coverage(plan, Cursor(), end)
    yield (
        f"training: {counted(chunks, 'chunk')} = {counted_passes(passes_after(steps, chunks))}, "
        f"{share:.1%} of {steps.size:,} samples seen"
    )


def memory_lines(loader: Loader) -> Iterator[str]:
    """What a batch is, and how much of them is held ahead."""
    batch = loader.peek()
    size = bytes_of(batch)
    yield f"a batch: {shapes_of(batch)}, {format_bytes(size)}"
    if isinstance(loader, ChunkedDataLoader):  # streams tell of their buffers themselves
        ahead = 1 + loader.num_workers * (loader.prefetch_factor or 0)
        held = f"{counted(ahead, 'batch')} at once on each rank, {format_bytes(ahead * size)}"
        yield f"memory: up to {held}"
