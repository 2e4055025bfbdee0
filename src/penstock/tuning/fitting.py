"""A configuration made to fit a dataset: what it costs, where it can go, what memory allows."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset, TensorDataset

from penstock.errors import ConfigError
from penstock.loaders.chunked import ChunkedDataLoader
from penstock.loaders.machine import this_machine
from penstock.loaders.pickling import unpicklable_part
from penstock.loaders.worker_init import worker_init_fn
from penstock.sizes import format_bytes, parse_bytes
from penstock.tuning.costs import SampleCost, measure_cost

log = logging.getLogger("penstock")

OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
TORCHS_AHEAD = 2  # batches a worker reads ahead where nothing is said


def fit(
    dataset: Any,
    batch_size: int,
    chosen: Mapping[str, Any],
    given: Mapping[str, Any],
    budget: int | str,
) -> tuple[dict[str, Any], str]:
    """The configuration for this dataset, and why; what is given is never changed."""
    left_out = _left_out(dataset, given)
    kept = {name: value for name, value in chosen.items() if name not in left_out}
    config = {**kept, **given}
    if isinstance(dataset, IterableDataset):
        config["num_workers"] = given.get("num_workers", 0)
        return config, "each worker would read all of an iterable dataset"
    if given.get("executor") in ("inline", "threads"):
        config["num_workers"] = given.get("num_workers", 0)
    if not config["num_workers"] or left_out:  # a sampler's keys are not ours to read with
        return config, f"{this_machine().cores} cores"
    cost, why = measure_cost(dataset), f"{this_machine().cores} cores, {len(dataset):,} samples"
    if "num_workers" not in given:
        config["num_workers"], why = _workers_for(cost, config["num_workers"], why)
    allowed = parse_bytes(budget, "memory_budget")
    return _within(allowed, cost.nbytes * batch_size, config, given), why


def _left_out(dataset: Any, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Choices of ours that torch refuses beside what is given."""
    if given.get("batch_sampler") is not None:
        return "shuffle", "evaluation", "drop_last"
    if given.get("sampler") is not None or isinstance(dataset, IterableDataset):
        return "shuffle", "evaluation"
    return ()


def _workers_for(cost: SampleCost, workers: int, why: str) -> tuple[int, str]:
    if cost.is_cheap:
        return 0, f"samples are {cost}: workers would only copy them"
    if cost.is_costly and this_machine().cores > 1:
        workers = max(1, workers)
    return workers, f"{why}, each {cost}"


def _within(
    budget: int, batch_bytes: int, config: dict[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The configuration, reading ahead no further than the budget, unless that was asked for."""
    workers, ahead = config["num_workers"], config.get("prefetch_factor") or TORCHS_AHEAD
    needed = workers * ahead * batch_bytes
    if needed <= budget:
        return config
    asked = f"{ahead} batches ahead of {workers} workers are {format_bytes(needed)}"
    if "prefetch_factor" in given:
        log.warning("%s, over the budget of %s: kept, as given", asked, format_bytes(budget))
        return config
    if "num_workers" not in given:
        workers = min(workers, budget // batch_bytes)
    ahead = max(1, budget // (max(1, workers) * batch_bytes))
    log.warning(
        "%s, over the budget of %s: reduced to %d ahead of %d",
        *(asked, format_bytes(budget), ahead, workers),
    )
    return config | {"num_workers": workers, "prefetch_factor": ahead}


def build(dataset: Any, options: Mapping[str, Any], why: str) -> ChunkedDataLoader:
    """The loader of these options, without workers where the dataset cannot go to them.

    One line is logged: the settings, and why.
    """
    options = dict(options)
    if options["num_workers"] and (unfit := unfit_for_workers(dataset, options)) is not None:
        warnings.warn(f"{unfit}; num_workers=0 is used", stacklevel=4)
        options["num_workers"], why = 0, "the dataset cannot go to workers"
        if options.get("executor") == "processes":
            options["executor"] = None
    if options["num_workers"]:
        options["persistent_workers"] = options.get("persistent_workers") is not False
        options["worker_init_fn"] = options.get("worker_init_fn") or worker_init_fn
    else:
        options = {name: value for name, value in options.items() if name not in OF_WORKERS}
    shown = (f"{name}={value!r}" for name, value in options.items() if _is_plain(value))
    log.info("loader of %s: %s (%s)", type(dataset).__name__, ", ".join(shown), why)
    return ChunkedDataLoader(dataset, **options)


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def unfit_for_workers(dataset: Any, options: Mapping[str, Any]) -> str | None:
    """Why a dataset, or what works on it, cannot go to worker processes; None where it can."""
    parts = {name: options.get(name) for name in ("collate_fn", "worker_init_fn")}
    for name, part in {"dataset": dataset, **parts}.items():
        culprit = unpicklable_part(part, name)
        if culprit is not None:
            return f"{culprit} cannot be sent to a worker process: {culprit.mend}"
    return None


def stacked(dataset: Any) -> Any:
    """A list of tensors as one dataset of tensors; anything else as it is."""
    if not isinstance(dataset, list | tuple) or not dataset:
        return dataset
    if not all(isinstance(sample, torch.Tensor) for sample in dataset):
        return dataset
    shapes = {(tuple(sample.shape), sample.dtype): i for i, sample in enumerate(dataset)}
    if len(shapes) > 1:
        (one, i), (other, j) = list(shapes.items())[:2]
        raise ConfigError(
            f"tensors of different kinds make no batch: sample {i} is {one[0]} {one[1]}, sample "
            f"{j} {other[0]} {other[1]}; give a data_collator that pads, or a task_spec"
        )
    return TensorDataset(torch.stack(list(dataset)))
