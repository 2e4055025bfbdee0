"""The public callables of Penstock, one valid call of each, and what their arguments refuse.

An argument has a *kind*: the values of it that must be refused. `test_argument_sweep.py` passes
each of them to an otherwise valid call. An argument that takes any object is listed as such, with
the reason, so that a new argument cannot be forgotten.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import penstock
from penstock.integrations.ray import RayTraining

HUGE = 10**30
Kind = tuple[Any, ...]

NOT_INTEGERS: Kind = (True, 1.5, "3", [3], object())
NOT_NUMBERS: Kind = (True, "0.5", [1], math.nan, math.inf, object())


def count(*, minimum: int = 1, optional: bool = False, huge: bool = True) -> Kind:
    """An integer of at least ``minimum``."""
    low = (minimum - 1, -(10**9))
    return (*NOT_INTEGERS, *low, *((HUGE,) if huge else ()), *(() if optional else (None,)))


def natural(*, optional: bool = False, huge: bool = True) -> Kind:
    """An integer of at least 0."""
    return count(minimum=0, optional=optional, huge=huge)


def real(*bad: float, optional: bool = False) -> Kind:
    """A number, with further ones that are out of range."""
    return (*NOT_NUMBERS, *bad, *(() if optional else (None,)))


def seed(*, optional: bool = True) -> Kind:
    """A seed: an integer from 0 on."""
    return natural(optional=optional)


FLAG: Kind = ("yes", 2, 1.0, None, [])
OPTIONAL_FLAG: Kind = ("yes", 2, 1.0, [])
CHOICE: Kind = ("no such", 3, 1.5, [], None)
OPTIONAL_CHOICE: Kind = ("no such", 3, 1.5, [])
TEXT: Kind = (3, 1.5, True, [], None)
OPTIONAL_TEXT: Kind = (3, 1.5, True, [])
PATH: Kind = (3, 1.5, True, [], None)
OPTIONAL_PATH: Kind = (3, 1.5, True, [])
FUNCTION: Kind = (3, "no function", [])
DATASET: Kind = ("x.zarr", Path("x.zarr"), b"x", 3, None)
MAPPING: Kind = (3, "text", [1], None)
OPTIONAL_MAPPING: Kind = (3, "text", [1])
BYTES: Kind = (True, 1.5, [], None, "many", "-1GB", -1, 0, HUGE)
ARRAY_OF_NUMBERS: Kind = (object(), "text", [1], [-1] * 12, ["a"] * 12, [math.nan] * 12, 3)
DEVICE: Kind = (1.5, [], "no such device", True)


@dataclass(frozen=True)
class Call:
    """One public callable with a valid call of it.

    Args:
        name: As users write it: ``"ChunkedDataLoader"``, ``"Loader.seek"``.
        call: What is called, with keyword arguments.
        good: A valid call's arguments.
        kinds: By argument: the values that are refused.
        free: By argument: why it takes any object.
    """

    name: str
    call: Callable[..., Any]
    good: Callable[[], dict[str, Any]]
    kinds: dict[str, Kind] = field(default_factory=dict)
    free: dict[str, str] = field(default_factory=dict)

    def cases(self) -> Iterator[tuple[str, Any]]:
        """Every argument with every value that is refused."""
        for argument, values in self.kinds.items():
            for value in values:
                yield argument, value


def rows(n: int = 12) -> torch.Tensor:
    """A dataset of ``n`` samples."""
    return torch.arange(n)


class Squares(torch.utils.data.Dataset[Any]):
    """Spectrogram-like samples with their label."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((1, 8, 8), float(index)), index % 2


def chunked(**options: Any) -> penstock.ChunkedDataLoader:
    return penstock.ChunkedDataLoader(rows(), 2, 3, **options)


def stream() -> penstock.StreamLoader:
    return penstock.StreamLoader(rows(), 2, chunk_size=3, block_samples=2)


def method(make: Callable[[], Any], name: str) -> Callable[..., Any]:
    """A method of an object that is made for the call, and closed after it."""

    def call(**arguments: Any) -> Any:
        made = make()
        try:
            return getattr(made, name)(**arguments)
        finally:
            getattr(made, "close", lambda: None)()

    return call


def iterate(make: Callable[..., Any]) -> Callable[..., Any]:
    """A loader that is made, iterated once and closed: an argument may be used that late."""

    def call(**arguments: Any) -> Any:
        with make(**arguments) as loader:
            return next(iter(loader))

    return call


LOADER = {"dataset": rows}
RANKS = {"rank": natural(optional=True), "world_size": count(optional=True)}
TORCHS = {
    "num_workers": natural(optional=True),  # None is torch's default
    "prefetch_factor": count(optional=True),
    "timeout": real(-1.0, optional=True),
    "persistent_workers": OPTIONAL_FLAG,
    "pin_memory": OPTIONAL_FLAG,
    "collate_fn": FUNCTION,
    "worker_init_fn": FUNCTION,
    "multiprocessing_context": (3, "no such method", []),
}
POSITIONS = {
    "seek": {"epoch": natural(), "step": natural()},
    "set_epoch": {"epoch": natural()},
    "set_batch_size": {"batch_size": count()},
    "set_chunk_size": {"chunk_size": count()},
    "samples_at": {"step": natural(), "epoch": natural(optional=True)},
    "load_state_dict": {"state_dict": (3, "text", None, []), "allow_changed_data": FLAG},
}
GOOD_POSITIONS: dict[str, dict[str, Any]] = {
    "seek": {"epoch": 1, "step": 1},
    "set_epoch": {"epoch": 1},
    "set_batch_size": {"batch_size": 3},
    "set_chunk_size": {"chunk_size": 2},
    "samples_at": {"step": 1, "epoch": 0},
}


def loaders() -> Iterator[Call]:
    yield Call(
        "ChunkedDataLoader",
        iterate(penstock.ChunkedDataLoader),
        lambda: {"dataset": rows(), "batch_size": 2},
        {
            "dataset": DATASET,
            "batch_size": tuple(v for v in count() if v is not None),  # None is torch's own
            "chunk_size": count(optional=True),
            "limit_batches": (True, "3", [3], -1, 1.5, -0.5, math.nan),
            "shuffle": OPTIONAL_FLAG,
            "seed": seed(),
            "drop_last": FLAG,
            "order": ("block", 3, []),
            "evaluation": FLAG,
            "weights": ARRAY_OF_NUMBERS,
            "epoch_samples": count(optional=True),
            "lengths": ARRAY_OF_NUMBERS,
            "max_tokens": count(optional=True),
            "window": count(optional=True),
            "group": count(optional=True),
            "executor": OPTIONAL_CHOICE,
            "threads": count(optional=True),
            "tune": OPTIONAL_CHOICE,
            "memory_budget": BYTES,
            **RANKS,
            **TORCHS,
        },
        {"dataloader_kwargs": "torch's own; those it knows are swept above"},
    )
    yield Call(
        "Mixture",
        penstock.Mixture,
        lambda: {"members": {"a": rows(), "b": rows()}},
        {
            "members": (*MAPPING, {}, {"members": 3}),
            "weights": (3, "text", [1], [-1, 2], [0, 0], {"weights": 1}, [math.nan, 1]),
            "until": ("last", 0, 1.5, True, None, [], HUGE),
            "label": OPTIONAL_TEXT,
        },
    )
    yield Call(
        "Mixture.then",
        method(lambda: penstock.Mixture({"a": rows(), "b": rows()}), "then"),
        lambda: {"at": 4, "weights": [1, 2]},
        {"at": natural(), "weights": (3, "text", [1], [-1, 2])},
    )
    yield Call(
        "Mixture.locate",
        method(lambda: penstock.Mixture({"a": rows()}), "locate"),
        lambda: {"indices": [1]},
        {"indices": (object(), "x", [1.5], [99], [-1], [[1], [2, 3]])},
    )
    yield Call(
        "balanced",
        penstock.balanced,
        lambda: {"data": rows(), "labels": [0, 1] * 6},
        {"data": (3, None), "labels": (3, "x", [1], object()), "until": ("last", 0, 1.5, True)},
    )
    yield Call(
        "pack",
        penstock.pack,
        lambda: {"data": rows(), "length": 4},
        {
            "data": (3, None, object(), torch.zeros(3), [["x"]]),
            "length": count(),
            "lengths": ARRAY_OF_NUMBERS,
            "split": FLAG,
            "seed": (-1, 1.5, "x", True, 2**64),
        },
    )
    yield Call(
        "ChunkedDataLoader.set_weights",
        method(lambda: chunked(weights=[1] * 12), "set_weights"),
        lambda: {"weights": [2] * 12},
        {"weights": (*ARRAY_OF_NUMBERS, None)},
    )
    for name in ("save_weights", "load_weights"):
        yield Call(
            f"ChunkedDataLoader.{name}",
            method(lambda: chunked(weights=[1] * 12), name),
            lambda: {"directory": tempfile.mkdtemp()},
            {"directory": PATH},
        )
    yield Call(
        "StreamLoader",
        iterate(penstock.StreamLoader),
        lambda: {"source": rows(), "batch_size": 2},
        {
            "source": (3, None, object(), True),
            "batch_size": count(),
            "fields": (3, "no such", ["no such"], True),
            "block_samples": count(optional=True),
            "window_blocks": count(optional=True),
            "chunk_size": count(optional=True),
            "shuffle": FLAG,
            "seed": seed(),
            "drop_last": FLAG,
            "steps": count(),
            "device": DEVICE,
            "memory_budget": BYTES,
            "transform": FUNCTION,
            "collate_fn": FUNCTION,
            "collate": FUNCTION,
            "evaluation": FLAG,
            "lanes": count(optional=True),
            "mixing": (*real(0, 1, 2.0, optional=True),),
            "threads": count(optional=True),
            "tune": OPTIONAL_CHOICE,
            "timeout": real(-1.0),
            "on_error": CHOICE,
            "quarantine": OPTIONAL_PATH,
            "weights": ARRAY_OF_NUMBERS,
            "epoch_samples": count(optional=True),
            **RANKS,
        },
    )
    yield Call(
        "ReplayLoader",
        penstock.ReplayLoader,
        lambda: {"dataset": list(range(12)), "batch_size": 2},
        {
            "dataset": (3, None, object(), True),
            "batch_size": count(),
            "num_workers": natural(),
            "collate_fn": FUNCTION,
            "collate": FUNCTION,
            "seed": seed(),
            "evaluation": FLAG,
        },
    )
    yield Call(
        "ChunkedSampler",
        penstock.ChunkedSampler,
        lambda: {"dataset_size": 12, "chunk_size": 4},
        {"dataset_size": natural(), "chunk_size": count(), "seed": seed(), "shuffle": FLAG},
    )
    for owner, make in (("ChunkedDataLoader", chunked), ("StreamLoader", stream)):
        for name, kinds in POSITIONS.items():
            good = GOOD_POSITIONS.get(name) or {"state_dict": make().state_dict()}
            yield Call(f"{owner}.{name}", method(make, name), lambda good=good: dict(good), kinds)
    yield Call(
        "ChunkedDataLoader.set_chunk",
        method(chunked, "set_chunk"),
        lambda: {"chunk_idx": 1},
        {"chunk_idx": natural()},
    )
    for name in ("get_chunk_indices", "set_chunk"):
        yield Call(
            f"ChunkedSampler.{name}",
            method(lambda: penstock.ChunkedSampler(12, 4), name),
            lambda: {"chunk_idx": 1},
            {"chunk_idx": natural()},
        )
    yield Call(
        "ChunkedSampler.set_epoch",
        method(lambda: penstock.ChunkedSampler(12, 4), "set_epoch"),
        lambda: {"epoch": 1},
        {"epoch": natural()},
    )
    yield Call(
        "ChunkedSampler.load_state_dict",
        method(lambda: penstock.ChunkedSampler(12, 4), "load_state_dict"),
        lambda: {"state_dict": penstock.ChunkedSampler(12, 4).state_dict()},
        {"state_dict": POSITIONS["load_state_dict"]["state_dict"]},
    )
    yield Call(
        "RandomChunkLoader",
        penstock.RandomChunkLoader,
        lambda: {
            "load_fn": lambda start, end: np.zeros(end - start),
            "total_timesteps": 100,
            "chunk_size": 10,
        },
        {
            "load_fn": (*FUNCTION, None),
            "total_timesteps": count(),
            "chunk_size": count(),
            "device": DEVICE,
            "prefetch": natural(),
            "seed": seed(),
            "sampling": CHOICE,
            "align": count(),
            "overlap": natural(),
            **RANKS,
        },
    )
    yield Call(
        "calculate_chunk_params",
        penstock.calculate_chunk_params,
        lambda: {
            "total_timesteps": 1000,
            "chunk_size": 100,
            "batch_size": 10,
            "data_passes_per_epoch": 1,
        },
        dict.fromkeys(
            ("total_timesteps", "chunk_size", "batch_size", "data_passes_per_epoch"), count()
        ),
    )


def tuning() -> Iterator[Call]:
    yield Call(
        "DataLoaderConfig",
        penstock.DataLoaderConfig,
        dict,
        {
            "batch_size": count(),
            "shuffle": FLAG,
            "num_workers": natural(),
            "pin_memory": OPTIONAL_FLAG,
            "prefetch_factor": count(optional=True),
            "persistent_workers": OPTIONAL_FLAG,
            "drop_last": FLAG,
            "seed": seed(),
            "collate_fn": FUNCTION,
            "executor": OPTIONAL_CHOICE,
            "threads": count(optional=True),
        },
    )
    yield Call(
        "DataLoaderFactory.get_optimal_config",
        penstock.DataLoaderFactory.get_optimal_config,
        lambda: {"dataset_size": 100},
        {
            "dataset_size": natural(),
            "has_augmentation": FLAG,
            "has_standardization": FLAG,
            "machine": (3, "large"),
        },
    )
    for name in ("create_training_loader", "create_validation_loader"):
        yield Call(
            f"DataLoaderFactory.{name}",
            iterate(getattr(penstock.DataLoaderFactory, name)),
            lambda: {"dataset": rows(), "batch_size": 2, "num_workers": 0},
            {
                "dataset": DATASET,
                "batch_size": tuple(v for v in count() if v is not None),
                "num_workers": natural(optional=True),
            },
            {"kwargs": "those of ChunkedDataLoader"},
        )
    yield Call(
        "DataLoaderFactory.create_dataloader",
        iterate(penstock.DataLoaderFactory.create_dataloader),
        lambda: {"dataset": rows(), "config": penstock.DataLoaderConfig(num_workers=0)},
        {
            "dataset": DATASET,
            "config": (3, None, "fast", {}),
            "task_spec": (3, "text"),
            "data_collator": FUNCTION,
        },
        {"tokenizer": "any object with a pad_token_id"},
    )
    monitor = penstock.DataLoaderPerformanceMonitor
    yield Call(
        "DataLoaderPerformanceMonitor.time_batch_loading",
        method(monitor, "time_batch_loading"),
        lambda: {"dataloader": chunked(), "num_batches": 2},
        {"dataloader": (3, None, "x.zarr"), "num_batches": count()},
    )
    yield Call(
        "DataLoaderPerformanceMonitor.benchmark_configurations",
        method(monitor, "benchmark_configurations"),
        lambda: {
            "dataset": rows(),
            "batch_size": 2,
            "configs": [{"num_workers": 0}],
            "num_batches": 2,
        },
        {
            "dataset": DATASET,
            "batch_size": count(),
            "configs": (3, "fast", [3]),
            "num_batches": count(),
        },
    )
    yield Call(
        "DataLoaderPerformanceMonitor.ceiling",
        method(monitor, "ceiling"),
        lambda: {"dataloader": chunked(), "step": len, "num_batches": 2},
        {"dataloader": (3, None, "x.zarr"), "step": (*FUNCTION, None), "num_batches": count()},
    )
    yield Call(
        "tune",
        penstock.tune,
        lambda: {
            "dataset": rows(),
            "batch_size": 2,
            "budget_seconds": 0.2,
            "cached": False,
            "verbose": False,
        },
        {
            "dataset": DATASET,
            "batch_size": count(),
            "collate_fn": FUNCTION,
            "budget_seconds": real(-1.0),
            "memory_budget": BYTES,
            "step_seconds": real(-1.0),
            "cached": FLAG,
            "verbose": FLAG,
        },
    )
    yield Call(
        "Machine",
        penstock.Machine,
        lambda: {"cores": 2, "accelerator": False},
        {"cores": count(), "accelerator": FLAG, "memory_bytes": count()},
    )


def order() -> Iterator[Call]:
    yield Call(
        "Permutation",
        penstock.Permutation,
        lambda: {"length": 10, "key": 7},
        {"length": count(), "key": (1.5, "7", None, [])},
    )
    yield Call(
        "SequentialOrder",
        penstock.SequentialOrder,
        lambda: {"size": 10},
        {"size": natural(), "seed": seed(optional=False)},
    )
    yield Call(
        "ShuffledOrder",
        penstock.ShuffledOrder,
        lambda: {"size": 10, "seed": 1},
        {"size": natural(), "seed": seed(optional=False)},
    )
    yield Call(
        "BlockOrder",
        penstock.BlockOrder,
        lambda: {"size": 10, "seed": 1, "block": 2, "window": 2},
        {
            "size": natural(),
            "seed": seed(optional=False),
            "block": count(),
            "window": count(),
            "lanes": count(),
        },
    )
    yield Call(
        "Steps",
        penstock.Steps,
        lambda: {"size": 10, "batch": 2},
        {
            "size": count(),
            "batch": count(),
            "world": count(),
            "lanes": count(),
            "drop_last": FLAG,
            "limit": natural(optional=True),
            "chunk": count(optional=True),
        },
        {"sizes": "a function of an order"},
    )
    yield Call(
        "Topology",
        penstock.Topology,
        dict,
        {"rank": natural(), "world": count()},
    )
    yield Call(
        "Plan",
        penstock.Plan,
        lambda: {"order": penstock.SequentialOrder(10), "steps": penstock.Steps(10, 2)},
        {"order": (3, "block", None), "steps": (3, None), "rank": natural()},
        {"skips": "made by a loader; skip and load_state_dict check what users pass"},
    )
    made = "made for every batch; seek and load_state_dict check what users pass"
    yield Call("Cursor", penstock.Cursor, dict, {}, {"epoch": made, "position": made})
    yield Call(
        "derive_key",
        lambda seed, path=(): penstock.derive_key(seed, *path),
        lambda: {"seed": 1},
        {"seed": (1.5, None, []), "path": ((1.5,), (None,), ([],))},
    )
    yield Call(
        "keyed_generator",
        lambda seed, path=(): penstock.keyed_generator(seed, *path),
        lambda: {"seed": 1},
        {"seed": (1.5, None, []), "path": ((1.5,), (None,), ([],))},
    )
    yield Call(
        "sample_key",
        lambda sample, seed=1, purpose=(): penstock.sample_key(sample, *purpose, seed=seed),
        lambda: {"sample": 3},
        {"sample": natural(), "seed": (1.5, []), "purpose": ((1.5,), (None,))},
    )
    yield Call(
        "sample_generator",
        lambda sample, seed=1, purpose=(): penstock.sample_generator(sample, *purpose, seed=seed),
        lambda: {"sample": 3},
        {"sample": natural(), "seed": (1.5, []), "purpose": ((1.5,), (None,))},
    )
    yield Call(
        "sample_keys",
        lambda samples, seed=1, purpose=(): penstock.sample_keys(samples, *purpose, seed=seed),
        lambda: {"samples": np.arange(3)},
        {"samples": ("abc", None, [1.5], object()), "seed": (1.5, []), "purpose": ((1.5,),)},
    )
    yield Call(
        "current_epoch",
        penstock.current_epoch,
        dict,
        {"default": (*NOT_INTEGERS, None)},
    )


def sources(folder: Path) -> Iterator[Call]:
    np.save(folder / "rows.npy", np.arange(12))
    import zarr

    zarr.create_array(str(folder / "rows.zarr"), data=np.arange(12), chunks=(4,))
    source = penstock.MemorySource(rows())
    sentence = "any object; what cannot be opened is refused with the kinds that can"
    yield Call(
        "open_source",
        penstock.open_source,
        lambda: {"where": str(folder / "rows.zarr")},
        {
            "decode": FLAG,
            "along": (1.5, 1, True, [], "no such"),
            "fields": (3, True),
            "dtype": ("uint16", "no such", 3),
        },
        {"where": sentence, "options": "those of the source that is opened"},
    )
    yield Call(
        "MemorySource",
        penstock.MemorySource,
        lambda: {"data": rows()},
        {"along": (True, 1.5, 99)},
        {"data": sentence},
    )
    yield Call(
        "NpySource",
        penstock.NpySource,
        lambda: {"path": folder / "rows.npy"},
        {"path": PATH, "along": (1.5, 99, True, [], HUGE, "no such")},
    )
    yield Call(
        "ZarrSource",
        penstock.ZarrSource,
        lambda: {"path": folder / "rows.zarr"},
        {
            "path": PATH,
            "fields": (3, ["no such"], "x", True),
            "axis": (1.5, True, [], HUGE, "no such"),
            "along": (1.5, 1, -2, True, [], HUGE, "no such"),
            "direct": FLAG,
            "decode": FLAG,
            "missing": CHOICE,
        },
    )
    yield Call(
        "concatenate",
        penstock.concatenate,
        lambda: {"sources": [source, source]},
        {"sources": (3, None, [], "text", source)},
    )
    yield Call(
        "zip_sources",
        penstock.zip_sources,
        lambda: {"sources": {"a": source}},
        {
            "sources": (3, None, {}, [source], {3: source}),
            "rates": (3, {"no such": 1}, {"a": 2 / 3}, {"a": -1}, {"a": "x"}, {"a": True}),
        },
    )
    yield Call(
        "MemorySource.select",
        source.select,
        lambda: {"indices_or_mask": [1, 3]},
        {
            "indices_or_mask": (
                3,
                None,
                "x",
                [-1],
                [HUGE],
                [0.5],
                [1, 1],
                [True],
                [[1]],
                range(HUGE),
            )
        },
    )
    yield Call(
        "MemorySource.windows",
        source.windows,
        lambda: {"length": 2},
        {"length": count(), "stride": count(), "offsets": (3, [], ["x"], {}, {"a": 3}, [0])},
    )
    yield Call(
        "MemorySource.patches",
        penstock.MemorySource(np.zeros((9, 4))).patches,
        lambda: {"sizes": (2,)},
        {
            "sizes": (3, None, (), {}, (0,), ("x",), {"no such": 1}, (1, 1)),
            "stride": (0, True, 1.5, (), {}, (0,), ("x",), {"no such": 1}, (1, 1)),
            "random": FLAG,
        },
    )
    yield Call(
        "MemorySource.split",
        source.split,
        lambda: {"parts": {"a": 0.5, "b": 0.5}},
        {
            "parts": (3, None, {}, {"a": 0.5}, {"a": "x"}, {"a": 2, "b": -1}),
            "by": CHOICE,
            "groups": (3, "no such", [1]),
            "seed": seed(optional=False),
        },
    )
    yield Call(
        "MemorySource.statistics",
        source.statistics,
        dict,
        {"per": (1.5, True, [], "no such"), "progress": FLAG},
    )
    yield Call(
        "write_recording",
        penstock.write_recording,
        lambda: {"path": folder / "recording", "columns": {"VOLTAGE": np.zeros((9, 3), "f4")}},
        {"path": PATH, "columns": (3, None, {}, [1]), "chunk_timesteps": count()},
        {"metadata": "an array; its shape is checked"},
    )
    yield Call(
        "DataSplit",
        penstock.DataSplit,
        lambda: {
            "train_start": 0,
            "train_end": 5,
            "validation_start": 5,
            "validation_end": 9,
        },
        {
            "train_start": natural(),
            "train_end": count(),
            "validation_start": natural(),
            "validation_end": count(),
        },
    )


def transforms() -> Iterator[Call]:
    yield Call(
        "SpecAugment",
        penstock.SpecAugment,
        dict,
        {
            "time_mask_param": natural(),
            "freq_mask_param": natural(),
            "num_time_masks": natural(),
            "num_freq_masks": natural(),
            "mask_value": real(),
            "p": real(-0.1, 1.1),
        },
    )
    yield Call(
        "GaussianNoise",
        penstock.GaussianNoise,
        dict,
        {
            "std": real(-1.0),
            "p": real(-0.1, 1.1),
            "clamp": (3, "01", (1,), (1, 0), ("a", "b"), (math.nan, 1.0)),
        },
    )
    yield Call(
        "Standardize",
        penstock.Standardize,
        lambda: {"mean": 0.0, "std": 1.0},
        {
            "mean": ("text", None, object(), math.nan, math.inf, {"x": {}}, {"x": 3}),
            "std": ("text", None, object(), math.nan, -1.0),
            "axis": (-1, 1.5, "text", None, True),
            "nan": ("text", object(), True),
        },
    )
    yield Call(
        "Compose",
        penstock.Compose,
        lambda: {"transforms": [penstock.GaussianNoise()]},
        {"transforms": (3, None, [3], "text")},
    )
    yield Call(
        "Spectrogram",
        penstock.Spectrogram,
        dict,
        {"n_fft": count(), "hop_length": count(optional=True)},
    )
    yield Call(
        "recommended_augmentation",
        penstock.recommended_augmentation,
        lambda: {"samples": 100, "classes": 3},
        {
            "samples": count(),
            "classes": count(),
            "shape": (3, (1,), ("a", "b"), None, (-1, 2)),
            "aggressive": FLAG,
        },
    )


def collators() -> Iterator[Call]:
    yield Call(
        "TextCollator",
        penstock.TextCollator,
        lambda: {"tokenizer": SimpleNamespace(pad_token_id=0)},
        {
            "mlm": FLAG,
            "mlm_probability": real(-0.1, 1.1),
            "padding_side": CHOICE,
            "task_spec": (3, "text"),
            "label_padding": (1.5, "no such", None, []),
            "pad_to_multiple_of": count(optional=True),
            "max_length": count(optional=True),
            "text_field": OPTIONAL_TEXT,
            "seed": seed(),
        },
        {"tokenizer": "any object with a pad_token_id"},
    )
    yield Call(
        "VisionCollator",
        penstock.VisionCollator,
        dict,
        {
            "normalize": (3, None, []),
            "mean": (3, "text", ["a"]),
            "std": (3, "text", ["a"], [0.0, 1.0, 1.0], [-1.0, 1.0, 1.0]),
            "task_spec": (3, "text"),
        },
    )
    yield Call(
        "AudioCollator",
        penstock.AudioCollator,
        dict,
        {"spectrogram": FUNCTION, "sample_rate": count(optional=True), "task_spec": (3, "text")},
    )
    yield Call(
        "TaskSpec",
        penstock.TaskSpec,
        lambda: {"name": "mine", "task_type": "classification"},
        {"name": TEXT, "task_type": TEXT, "model_family": TEXT, "target_field": OPTIONAL_TEXT},
        dict.fromkeys(
            (
                *("input_fields", "loss_type", "metrics", "special_tokens", "additional_config"),
                *("modality", "input_schema", "output_schema", "preprocessing_config"),
            ),
            "carried along; checked by the collator that reads it",
        ),
    )
    registry = penstock.CollatorRegistry
    yield Call(
        "CollatorRegistry.get_collator",
        method(registry, "get_collator"),
        lambda: {"collator_name": "default"},
        {"task_spec": (3, "text"), "collator_name": (3, [], 1.5)},
        {"kwargs": "those of the collator"},
    )
    yield Call(
        "CollatorRegistry.register",
        method(registry, "register"),
        lambda: {"name": "mine"},
        {
            "name": TEXT,
            "modality": OPTIONAL_TEXT,
            "description": TEXT,
            "task_type": OPTIONAL_TEXT,
        },
    )


def checks() -> Iterator[Call]:
    spec = penstock.TensorSpec()
    yield Call(
        "TensorSpec",
        penstock.TensorSpec,
        dict,
        {
            "shape": (3, "text", (1.5,), (-1,), (True,)),
            "dtype": ("float32", 3, float),
            "low": (True, "0", math.nan, []),
            "high": (True, "0", math.nan, []),
            "finite": FLAG,
        },
        {"labels": "any set of integers"},
    )
    yield Call(
        "BatchSchema",
        penstock.BatchSchema,
        lambda: {"fields": {"x": spec}},
        {"fields": (3, None, {"x": 3}, {3: spec}, [spec]), "sizes": (3, {"n": "3"}), "exact": FLAG},
    )
    schema = penstock.BatchSchema({"": spec})
    yield Call(
        "checked",
        penstock.checked,
        lambda: {"loader": chunked(), "schema": schema},
        {"loader": (3, None), "schema": (3, None, {}), "share": real(-0.1, 1.1)},
    )


def datasets(folder: Path) -> Iterator[Call]:
    yield Call(
        "StandardizedDataset",
        penstock.StandardizedDataset,
        lambda: {"base_dataset": Squares(), "indices": [0, 1], "mean": 0.0, "std": 1.0},
        {
            "base_dataset": DATASET,
            "indices": (3, None, "text", [1.5], [99], [-1], [True]),
            "mean": ("text", None, math.nan),
            "std": ("text", None, math.nan, -1.0),
        },
    )
    yield Call(
        "AugmentedDataset",
        penstock.AugmentedDataset,
        lambda: {"base_dataset": Squares(), "augment_params": {}},
        {
            "base_dataset": DATASET,
            "augment_params": (3, "text", [1]),
            "training": FLAG,
            "seed": seed(optional=False),
        },
    )
    yield Call(
        "create_augmented_dataset_wrapper",
        penstock.create_augmented_dataset_wrapper,
        lambda: {"dataset": Squares()},
        {
            "dataset": DATASET,
            "use_spec_augment": FLAG,
            "use_gaussian_noise": FLAG,
            "augment_params": (3, "text", [1]),
            "training": FLAG,
        },
    )
    yield Call(
        "compute_standardization",
        penstock.compute_standardization,
        lambda: {"dataset": Squares(), "progress": False},
        {
            "dataset": DATASET,
            "indices": (3, "text", [1.5], [99], [-1], []),
            "per_channel": FLAG,
            "progress": OPTIONAL_FLAG,
        },
    )
    yield Call(
        "ReplacingDataset",
        penstock.ReplacingDataset,
        lambda: {"base_dataset": Squares()},
        {
            "base_dataset": DATASET,
            "on_error": CHOICE,
            "seed": seed(optional=False),
            "quarantine": OPTIONAL_PATH,
        },
    )
    steering = penstock.build_steering_directory(folder / "steering", pairs=20)
    yield Call(
        "JASPERSteeringDataset",
        penstock.JASPERSteeringDataset,
        lambda: {"dataset_dir": steering, "split": "train"},
        {
            "dataset_dir": PATH,
            "split": CHOICE,
            "epoch": natural(),
            "device": DEVICE,
            "storage_format": CHOICE,
            "use_mmap": OPTIONAL_FLAG,
            "seed": seed(),
        },
    )
    yield Call(
        "create_loader",
        iterate(penstock.create_loader),
        lambda: {"dataset_dir": steering, "split": "train", "batch_size": 2},
        {
            "dataset_dir": PATH,
            "split": CHOICE,
            "batch_size": count(),
            "num_workers": natural(),
            "distributed": FLAG,
            "epoch": natural(),
            "drop_last": OPTIONAL_FLAG,
            "pin_memory": FLAG,
            "dataset": (3, "x"),
            "seed": seed(),
        },
        {"options": "those of ChunkedDataLoader"},
    )
    yield Call(
        "validate_dataset",
        penstock.validate_dataset,
        lambda: {"dataset_dir": steering},
        {"dataset_dir": PATH, "storage_format": CHOICE},
    )
    yield Call(
        "convert_to_hdf5",
        penstock.convert_to_hdf5,
        lambda: {"dataset_dir": steering, "target_dir": folder / "steering-hdf5"},
        {"dataset_dir": PATH, "target_dir": OPTIONAL_PATH, "compression": OPTIONAL_CHOICE},
    )
    yield Call(
        "build_steering_directory",
        penstock.build_steering_directory,
        lambda: {"directory": folder / "more", "pairs": 20},
        {
            "directory": PATH,
            "pairs": count(),
            "embedding_dim": count(),
            "n_neg": count(),
            "clusters": count(),
            "keywords": count(),
            "seed": seed(optional=False),
            "config": OPTIONAL_MAPPING,
        },
    )
    yield Call(
        "set_epoch",
        penstock.set_epoch,
        lambda: {"loader": chunked(), "epoch": 1},
        {"loader": (3, None), "epoch": natural()},
    )


def modules(folder: Path) -> Iterator[Call]:
    yield Call(
        "UniversalDataModule",
        penstock.UniversalDataModule,
        lambda: {"train_data": rows(), "num_workers": 0},
        {
            "train_data": (3, None, object()),
            "val_data": (3, object()),
            "task_spec": (3, "text"),
            "data_collator": FUNCTION,
            "batch_size": count(),
            "val_split": real(-0.1, 1.1),
            "num_workers": natural(),
            "seed": seed(),
            "collator_registry": (3, "text"),
            "test_data": (3, object()),
            "text_field": OPTIONAL_TEXT,
            "keep_empty_text": FLAG,
            "executor": OPTIONAL_CHOICE,
        },
        {"tokenizer": "any object with a pad_token_id"},
    )
    yield Call(
        "TrainerLoader",
        penstock.TrainerLoader,
        lambda: {"loader": penstock.ChunkedDataLoader(rows(), 2)},
        {"loader": (3, None, "x", [1])},
        {"trainer": "a Trainer of transformers"},
    )
    yield Call(
        "integrations.ray.RayTraining",
        RayTraining,
        lambda: {"loader": penstock.ChunkedDataLoader(rows(), 2)},
        {"loader": (3, None, "x", [1], torch.utils.data.DataLoader(rows()))},
    )
    yield Call(
        "ChunkedTraining",
        penstock.ChunkedTraining,
        lambda: {"train_chunk_size": 2},
        {
            "train_chunk_size": (True, 1.5, "3", -1, 0, HUGE),
            "val_chunk_size": count(optional=True),
            "seed": seed(),
            "shuffle": FLAG,
            "order": CHOICE,
            "val_cycle": FLAG,
            "cycle": FLAG,
            "max_passes": count(optional=True),
            "start_chunk": natural(optional=True),
            "validate_every": (*count(optional=True), {"min": 1}),
            "skip": (3, "all", [3], [[0, 1]], [[0, 3, 1]], {"epoch": 0}),
        },
    )


def training(folder: Path) -> Iterator[Call]:
    yield Call(
        "TrainingConfig",
        lambda **fields: penstock.TrainingConfig(**fields).validate(),
        dict,
        {
            "batch_size": count(),
            "epochs": count(),
            "learning_rate": real(0.0, -1.0),
            "random_seed": seed(),
            "weight_decay": real(-1.0),
            "max_grad_norm": real(-1.0, optional=True),
            "warmup_ratio": real(-0.1, 1.1),
            "gradient_accumulation_steps": count(),
            "early_stopping_patience": count(optional=True),
            "validation_split": real(-0.1, 1.1),
            "checkpoint_dir": PATH,
        },
    )
    yield Call(
        "CheckpointManager",
        penstock.CheckpointManager,
        lambda: {"checkpoint_dir": folder / "checkpoints"},
        {
            "checkpoint_dir": PATH,
            "keep_best_k": natural(),
            "keep_last_n": natural(),
            "monitor": TEXT,
            "mode": CHOICE,
            "save_interval_epochs": count(),
            "drive_backup": FLAG,
            "drive_backup_path": OPTIONAL_PATH,
        },
    )
    yield Call(
        "TrainingEngine",
        penstock.TrainingEngine,
        lambda: {"model_class": torch.nn.Linear, "num_classes": 2},
        {
            "model_class": (*FUNCTION, None),
            "num_classes": count(),
            "config": OPTIONAL_MAPPING,
            "run_directory": OPTIONAL_PATH,
            "progress": OPTIONAL_FLAG,
        },
    )


def every_call(folder: Path) -> list[Call]:
    """The whole table."""
    parts = (
        *(loaders(), tuning(), order(), sources(folder), transforms(), collators(), checks()),
        *(datasets(folder), modules(folder), training(folder)),
    )
    return [call for part in parts for call in part]
