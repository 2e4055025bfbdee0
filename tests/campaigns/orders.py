"""The loaders of the campaigns whose orders are composed, and what changes while they train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import ChunkedDataLoader, Mixture, StreamLoader, pack
from tests.campaigns.storages import ROWS, Storages

SHARES = [[6, 3, 1], [1, 1, 2], [2, 0, 1]]  # of three parts of the rows, by stage
PARTS = [0, 300, 420, ROWS]
STAGES = [0, 250, ROWS + 130]  # places; the last stage is added while training
HOLES = [(0, 50, 171), (1, 24, 96), (1, 90, 130)]  # epoch, start, stop
LENGTHS = np.random.default_rng(0).integers(1, 60, ROWS)
WEIGHTS = [np.random.default_rng(seed).gamma(0.7, size=ROWS) for seed in (1, 2)]
KEPT = np.random.default_rng(3).random(ROWS) < 0.6
DOCUMENTS = [np.random.default_rng(seed).integers(1, 90, 90 * seed) for seed in (1, 2)]
SEQUENCE, SEQUENCES = 16, 360  # tokens of a sequence, sequences of an epoch
PACKED_SHARES = [[3, 1], [1, 1], [1, 4]]  # of two corpora, by stage
PACKED_STAGES = [0, 150, SEQUENCES + 130]  # the last stage is added while training


class AnotherStage:
    """A loader whose mixture gets a stage in epoch 0; a start after that adds it by itself."""

    data: Mixture
    last: tuple[int, list[int]] = STAGES[2], SHARES[2]  # place and shares

    def __iter__(self) -> Any:
        if self.state_dict()["epoch"] == 0:  # type: ignore[attr-defined]
            self.data.then(*self.last)
        return super().__iter__()  # type: ignore[misc]

    def load_state_dict(self, state_dict: dict[str, Any], **options: Any) -> None:
        if len(state_dict["stages"]) > 2:
            self.data.then(*self.last)
        super().load_state_dict(state_dict, **options)  # type: ignore[misc]


class MixedLoader(AnotherStage, ChunkedDataLoader):  # type: ignore[type-arg]
    """Of any dataset."""


class MixedStream(AnotherStage, StreamLoader):
    """From storage."""


class SameSkips:
    """A loader that skips the same positions at every start, as a script does."""

    def __iter__(self) -> Any:
        for hole in HOLES:
            self.skip(*hole)  # type: ignore[attr-defined]
        return super().__iter__()  # type: ignore[misc]


class SkippingLoader(SameSkips, ChunkedDataLoader):  # type: ignore[type-arg]
    """Of any dataset."""


class SkippingStream(SameSkips, StreamLoader):
    """From storage."""


class OtherWeights:
    """Gets other weights after its first chunk, which are saved and loaded as files."""

    folder: Any

    def __iter__(self) -> Any:
        state = self.state_dict()  # type: ignore[attr-defined]
        if 0 < state["epoch"] * ROWS + state["position"] <= ROWS:  # from epoch 1 on
            self.set_weights(WEIGHTS[1])  # type: ignore[attr-defined]
            self.save_weights(self.folder)  # type: ignore[attr-defined]
        return super().__iter__()  # type: ignore[misc]

    def load_state_dict(self, state_dict: dict[str, Any], **options: Any) -> None:
        self.load_weights(self.folder)  # type: ignore[attr-defined]
        super().load_state_dict(state_dict, **options)  # type: ignore[misc]


class WeightedLoader(OtherWeights, ChunkedDataLoader):  # type: ignore[type-arg]
    """Of any dataset."""


class WeightedStream(OtherWeights, StreamLoader):
    """From storage."""


def mixture_of(storages: Storages, storage: str) -> Mixture:
    """Three parts of the rows in shares that change at a place of epoch 0."""
    source = storages.source(storage)
    parts = {str(i): source.select(range(*PARTS[i : i + 2])) for i in range(3)}
    return Mixture(parts, SHARES[0], until=ROWS).then(STAGES[1], SHARES[1])


def packed_of(number: int) -> Any:
    """Documents packed into other sequences in every pass; every token is another number."""
    lengths, first = DOCUMENTS[number], 100_000 * number
    tokens = np.arange(first, first + lengths.sum())
    return pack(tokens, SEQUENCE, lengths=lengths, seed=number)


def tokens(batch: dict[str, Any]) -> list[int]:
    """The tokens of packed sequences."""
    found: list[int] = batch["tokens"][batch["segment_ids"] > 0].tolist()
    return found


def _options(options: Any) -> dict[str, Any]:
    ranks = {"rank": options.rank, "world_size": options.world, "drop_last": False}
    return {"seed": options.seed, "chunk_size": options.chunk, **ranks}


def mixture(storages: Storages, storage: str, options: Any) -> Any:
    """A mixture with a planned change of its weights, and one while training."""
    data = mixture_of(storages, storage)
    loader = MixedLoader(data, options.batch, **_options(options))
    loader.data = data
    return loader


def mixture_stream(storages: Storages, storage: str, options: Any) -> Any:
    """The same from storage."""
    geometry = {"block_samples": 7, "window_blocks": 6, "lanes": 12}
    data = mixture_of(storages, storage)
    loader = MixedStream(data, options.batch, **_options(options), **geometry)
    loader.data = data
    return loader


def weights(storages: Storages, storage: str, options: Any) -> Any:
    """Weights that change with the second epoch."""
    given = {"weights": WEIGHTS[0], "epoch_samples": ROWS, **_options(options)}
    loader = WeightedLoader(storages.source(storage), options.batch, **given)
    loader.folder = storages.folder / "weights"
    return loader


def weights_stream(storages: Storages, storage: str, options: Any) -> Any:
    """The same from storage."""
    given = {"weights": WEIGHTS[0], "epoch_samples": ROWS, **_options(options)}
    geometry = {"block_samples": 7, "window_blocks": 6, "lanes": 12}
    loader = WeightedStream(storages.source(storage), options.batch, **given, **geometry)
    loader.folder = storages.folder / "weights"
    return loader


def skips(storages: Storages, storage: str, options: Any) -> Any:
    """A shuffle with holes."""
    given = {"shuffle": True, **_options(options)}
    return SkippingLoader(storages.source(storage), options.batch, **given)


def skips_stream(storages: Storages, storage: str, options: Any) -> Any:
    """The same from storage."""
    geometry = {"block_samples": 7, "window_blocks": 6, "lanes": 12}
    source = storages.source(storage)
    return SkippingStream(source, options.batch, **_options(options), **geometry)


def lengths(storages: Storages, storage: str, options: Any) -> Any:
    """Batches of similar length under a budget of tokens."""
    cut = {"lengths": LENGTHS, "max_tokens": 200, "window": 120, "group": 12}
    return ChunkedDataLoader(storages.source(storage), options.batch, **_options(options), **cut)


def packing(storages: Storages, storage: str, options: Any) -> Any:
    """Packed documents of two corpora in shares of tokens, which change as those of `mixture`."""
    members = {"a": packed_of(0), "b": packed_of(1)}
    data = Mixture(members, PACKED_SHARES[0], until=SEQUENCES)
    data.then(PACKED_STAGES[1], PACKED_SHARES[1])
    loader = MixedLoader(data, options.batch, **_options(options))
    loader.data, loader.last = data, (PACKED_STAGES[2], PACKED_SHARES[2])
    return loader


def packing_stream(storages: Storages, storage: str, options: Any) -> Any:
    """Packed documents, in blocks."""
    geometry = {"block_samples": 5, "window_blocks": 4, "lanes": 12}
    return StreamLoader(packed_of(1), options.batch, **_options(options), **geometry)


def select_stream(storages: Storages, storage: str, options: Any) -> Any:
    """A part of the rows, in blocks of the storage."""
    geometry = {"block_samples": 7, "window_blocks": 6, "lanes": 12}
    part = storages.source(storage).select(KEPT)
    return StreamLoader(part, options.batch, **_options(options), **geometry)


ORDERS: dict[str, Callable[[Storages, str, Any], Any]] = {
    "mixture": mixture,
    "mixture, stream": mixture_stream,
    "weights": weights,
    "weights, stream": weights_stream,
    "skips": skips,
    "skips, stream": skips_stream,
    "lengths": lengths,
    "packing": packing,
    "packing, stream": packing_stream,
    "select, stream": select_stream,
}
