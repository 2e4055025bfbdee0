"""A loader for one part of the data, by the sections ``loader`` and ``train``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from penstock.errors import ConfigError
from penstock.loaders import ChunkedDataLoader, StreamLoader
from penstock.loaders.partition import validation_loader
from penstock.loaders.position import order_factory
from penstock.ranks import ranks
from penstock.seeds import Seed
from penstock.loaders.chunk_settings import ChunkSettings
from penstock.datamodules.inputs import is_source
from penstock.datamodules.ranges import SelectedRanges, split_ranges
from penstock.order import derive_key
from penstock.sources.base import Source
from penstock.training.config.keys import LOADER, STREAM_LOADER

BATCH_SIZE = 32  # samples, where the configuration does not say


@dataclass(frozen=True, slots=True)
class PartLoaders:
    """Makes loaders: with chunk sizes where either is given, plain ones where none is."""

    options: dict[str, Any]  # the section `loader`, with its objects made
    chunks: ChunkSettings

    @property
    def batch_size(self) -> int:
        """Samples of a rank's batch."""
        size: int = self.options.get("batch_size", BATCH_SIZE)
        return size

    @property
    def idle_in_streams(self) -> list[str]:
        """Keys that are given and that only loaders of datasets know."""
        known = {*STREAM_LOADER, "batch_size", "drop_last"}
        return [name for name in self.options if name not in known]

    def training(self, data: Any) -> Any:
        """Shuffled batches; the next chunk each time where training is chunked."""
        if is_source(data):
            return self._stream(data, chunk_size=self._train_chunk(len(data)), **self._shuffle)
        options = self._of_torch()
        if isinstance(data, IterableDataset):
            return ChunkedDataLoader(data, self.batch_size, self.chunks.train_chunk_size, **options)
        options |= {"order": order_factory(self.chunks.order_of), "seed": self.chunks.seed}
        return ChunkedDataLoader(data, self.batch_size, self._train_chunk(len(data)), **options)

    def validation(self, data: Any) -> Any:
        """The same batches each time, or the next chunk where validation cycles."""
        size = self.chunks.val_chunk_size
        if is_source(data):
            return self._validation_stream(data, size)
        options = self._of_torch(drop_last=False)
        if isinstance(data, IterableDataset):
            return ChunkedDataLoader(data, self.batch_size, size, **options)
        options |= {"seed": self.chunks.seed, "cycle": self.chunks.val_cycle}
        return validation_loader(
            data, self.batch_size, size or self._inferred(len(data)), **options
        )

    def testing(self, data: Any) -> Any:
        """All of it, in order: tests are never chunked."""
        if is_source(data):
            return self._stream(data, evaluation=True)
        options = self._of_torch(drop_last=False)
        if isinstance(data, IterableDataset):
            return ChunkedDataLoader(data, self.batch_size, **options)
        return validation_loader(data, self.batch_size, seed=self.chunks.seed, **options)

    # -- chunk sizes

    def _train_chunk(self, samples: int) -> int | None:
        return self.chunks.train_chunk_size or self._inferred(samples)

    def _inferred(self, samples: int) -> int | None:
        """The whole of a partition, in batches of this rank; None where nothing is chunked."""
        if not self.chunks.sized:
            return None
        return -(-samples // (self.batch_size * ranks()))

    # -- streams

    def _validation_stream(self, source: Source, size: int | None) -> StreamLoader:
        if size is None:
            return self._stream(source, evaluation=True)
        if self.chunks.val_cycle:
            return self._stream(source, chunk_size=size, shuffle=False, drop_last=False)
        samples = size * self.batch_size * ranks()
        seed = Seed.of(self.chunks.seed)
        if samples < len(source):
            source = self._chosen(source, samples, seed)
            seed = seed.fixed("validation samples were chosen")
        return self._stream(source, chunk_size=size, evaluation=True, seed=seed)

    def _chosen(self, source: Source, samples: int, seed: Seed) -> Source:
        steps = self.options.get("steps", 1)
        if steps > 1:
            raise ConfigError(
                f"train.val_chunk_size with loader.steps={steps}: a fixed part of the validation "
                f"data has gaps, and samples of {steps} consecutive rows would reach over them; "
                "set train.val_cycle=true, or leave out train.val_chunk_size"
            )
        key = derive_key(seed.for_ranks(ranks()), "validation")
        ranges, _ = split_ranges(len(source), samples, source.block_samples, key)
        return SelectedRanges(source, sorted(ranges))

    @property
    def _shuffle(self) -> dict[str, Any]:
        return {"shuffle": self.chunks.shuffle and self.chunks.order != "sequential"}

    def _stream(self, source: Source, **options: Any) -> StreamLoader:
        kept = {n: v for n, v in self.options.items() if n in STREAM_LOADER or n == "drop_last"}
        kept |= {"seed": self.chunks.seed}
        return StreamLoader(source, self.batch_size, **(kept | options))

    def _of_torch(self, **options: Any) -> dict[str, Any]:
        kept = {n: v for n, v in self.options.items() if n in LOADER and n != "batch_size"}
        return kept | options
