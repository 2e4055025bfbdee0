"""Arguments of `StreamLoader`: those of torch's loader that it does not have, and what it opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.arguments import a_path, choice, function, whole_number
from penstock.errors import PlanError, SourceError
from penstock.registry import did_you_mean
from penstock.sources import open_source
from penstock.sources.base import Field, Source
from penstock.sources.combine import seams_of
from penstock.streaming.placement import BadBlocks
from penstock.transforms.base import Transform

ON_ERROR: Final = ("raise", "replace")
_ORDER: Final = (
    "the order is computed from the seed; pass shuffle=, block_samples= or window_blocks= to "
    "change it, or use ChunkedDataLoader, which takes {name}="
)
_PROCESSES: Final = "reader threads do the reading, not worker processes; leave it out"

NOT_OURS: Final[Mapping[str, str]] = {
    "num_workers": "reader threads do the reading; pass threads= for another number of them",
    "prefetch_factor": "pass memory_budget= to bound how much is read ahead",
    "persistent_workers": "reader threads live until close(); leave it out",
    "multiprocessing_context": _PROCESSES,
    "worker_init_fn": _PROCESSES,
    "executor": _PROCESSES,
    "pin_memory": 'batches are page-locked when they go to an accelerator; pass device="cuda"',
    "pin_memory_device": "pass device= for where batches go",
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "order": _ORDER,
    "generator": "pass seed= for the order and for transform",
    "in_order": "batches always come in order; leave it out",
    "limit_batches": "pass chunk_size= for the number of batches of an iteration",
    "dataset": "pass the data as the first argument, source",
    "path": "pass it as the first argument, source",
}
OURS: Final = (
    *("source", "batch_size", "fields", "block_samples", "window_blocks", "chunk_size"),
    *("shuffle", "seed", "drop_last", "steps", "device", "memory_budget", "transform"),
    *("collate_fn", "evaluation", "rank", "world_size", "lanes", "threads", "timeout", "collate"),
    *("on_error", "quarantine"),
)


def refuse_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments that `StreamLoader` does not have, with what to pass instead.

    >>> refuse_arguments({"num_workers": 4})
    Traceback (most recent call last):
    ...
    penstock.errors.PlanError: StreamLoader has no num_workers: reader threads do the reading; ...
    """
    for name in given:
        if name in NOT_OURS:
            raise PlanError(f"StreamLoader has no {name}: {NOT_OURS[name].format(name=name)}")
        meant = did_you_mean(name, OURS, otherwise="it takes")
        raise TypeError(f"StreamLoader has no argument {name!r}{meant}")


def optional_number(name: str, value: Any, **bounds: Any) -> int | None:
    """``value`` as `whole_number` gives it; None stays None."""
    return None if value is None else whole_number(name, value, **bounds)


def one_of(
    collate_fn: Callable[[Any], Any] | None, collate: Callable[[Any], Any] | None
) -> Callable[[Any], Any] | None:
    """The function that was passed by either of its names."""
    if collate_fn is not None and collate is not None:
        raise PlanError("collate is another name for collate_fn: pass one of them")
    if collate is not None:
        return function("collate", collate)
    return function("collate_fn", collate_fn)


def bad_blocks(on_error: str, quarantine: str | PathLike[str] | None) -> BadBlocks | None:
    """Where blocks that cannot be read are reported; None where the error is raised."""
    path = None if quarantine is None else a_path("quarantine", quarantine)
    if choice("on_error", on_error, ON_ERROR) == "replace":
        return BadBlocks(path)
    if path is not None:
        raise PlanError('quarantine lists replaced blocks: pass on_error="replace" with it')
    return None


def opened(source: Any, fields: Sequence[str] | None) -> Source:
    """The source of whatever holds the samples."""
    if isinstance(source, Dataset) and not isinstance(source, Source):
        name = type(source).__name__
        raise SourceError(
            f"StreamLoader reads storage block by block, and {name} is a torch Dataset, which "
            "gives single samples: use ChunkedDataLoader(dataset, batch_size), or pass the path "
            "or the arrays that it reads"
        )
    return open_source(source) if fields is None else open_source(source, fields=fields)


def check_samples(source: Source, steps: int) -> int:
    """How many samples of ``steps`` rows a source has, refused where there is none."""
    seams = seams_of(source) if steps > 1 else []
    if seams:
        raise PlanError(
            f"steps={steps} needs rows that follow each other, and this source is joined from "
            f"{len(seams) + 1} pieces (the first ends after {seams[0]:,} rows): use one "
            "StreamLoader for each piece, or steps=1"
        )
    samples = len(source) - steps + 1
    if samples < 1:
        raise PlanError(f"{len(source)} rows hold no sample of {steps} consecutive rows")
    return samples


def check_transform(transform: object, fields: Mapping[str, Field]) -> None:
    """Refuse a transform of one array for a source that has several."""
    if isinstance(transform, Transform) and fields.keys() != {""}:
        raise PlanError(
            f"{type(transform).__name__} changes one array, the source has fields {list(fields)}: "
            "use a function transform(batch, rng) that applies it to the field it is for"
        )


def check_fields(fields: Mapping[str, Field]) -> None:
    """Refuse what torch has no tensor for."""
    for name, field in fields.items():
        try:
            torch.from_numpy(np.empty(0, field.dtype))
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"field {name!r} has dtype {field.dtype}, which torch has no tensor for: "
                "convert it, or name the other fields with fields=[...]"
            ) from error
        if field.nbytes == 0:
            raise PlanError(f"field {name!r} has samples of no bytes, shape {field.shape}")


def brief(source: Source) -> str:
    """A source in a few words, for messages.

    >>> brief(open_source(np.arange(3)))
    'MemorySource(...)'
    """
    text = repr(source)
    return text if len(text) <= 80 else text[:77] + "..."
