"""Map-style datasets, delivered in chunks that together cover the dataset."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Subset, default_collate

from penstock.arguments import flag
from penstock.datasets.gather import by_index, fingerprint_of, gather_of, parts_of
from penstock.errors import PlanError
from penstock.loaders.base import Batch, Stream
from penstock.loaders.batch_transport import ReadDataset, begin_with_own_dataset, hand_over
from penstock.loaders.chunk_schedule import ChunkSize
from penstock.loaders.composed import ComposedOrders, OrderOptions
from penstock.loaders.executors import InlineStream, Read, ThreadStream, Workers, reader
from penstock.loaders.options import (
    MOST_READERS,
    check_batch_size,
    check_budget,
    check_dataset,
    check_executor,
    check_limit,
    check_order,
    check_threads,
    check_torch_options,
    check_tune,
    refuse_unknown,
    size_of,
)
from penstock.loaders.pass_through import (
    PassThrough,
    pass_through_reason,
    preserve_random_state,
    refuse_planned_arguments,
)
from penstock.loaders.plan_settings import OrderFactory, make_order, order_factory
from penstock.loaders.position import Position
from penstock.loaders.torch_loader import RankSampler, TorchLoader
from penstock.loaders.worker_errors import safe_context
from penstock.loaders.workers import end_workers
from penstock.metrics import bytes_of
from penstock.order import Cursor, Order, Plan, PlannedBatch
from penstock.ranks import Seed, current_topology
from penstock.sources.contract import DatasetLike
from penstock.streaming.budget import usable_cores


class ChunkedDataLoader(ComposedOrders[Batch], TorchLoader):
    """A resumable ``DataLoader`` whose chunks continue where the last one ended.

    With a ``chunk_size`` every ``iter()`` gives the next ``chunk_size`` batches of a shuffle of the
    *whole* dataset; the last chunk of an epoch is short, then the next epoch begins. Without one
    every ``iter()`` is an epoch. In both cases `state_dict` gives the exact batch, and any number
    of workers or ranks delivers the same samples.

    It is a ``DataLoader``, so trainers recognise it. Without a chunk size, ``sampler``,
    ``batch_sampler``, ``generator``, an ``IterableDataset`` and ``batch_size=None`` pass through to
    torch; such a loader has no state. ``docs/chunked.md`` lists where it differs from torch's.

    If the size of the dataset changes, the next epoch has the new size. Persistent workers keep
    the copy of the dataset they started with.

    Args:
        dataset: A map-style dataset. Batches of tensors, arrays and ``TensorDataset`` are read in
            one operation; ``__getitems__`` is used if the dataset has it.
        batch_size: Samples of this rank's batch.
        chunk_size: Batches of a chunk; None for the whole epoch. Overrides ``limit_batches``.
            Sizes that change are ``{"start", "end", "over_chunks"}``, a list of ``[first chunk,
            batches]``, or a duration such as ``"10min"``.
        limit_batches: Batches of an epoch: an int, or a share of it (a float), as Lightning's
            ``limit_train_batches``.
        shuffle: None shuffles with a ``chunk_size``, and does not without, as torch.
        seed: Seed of the shuffle and of all that is keyed by sample; None draws one and logs it.
        drop_last: Drop the last batch of an epoch if it is not full on every rank.
        order: An `Order` in place of the shuffle: a ``BlockOrder`` for data that is slow to read
            at random, also with ``lengths`` and ``max_tokens``: then each batch is of one lane, so
            that ranks read their own blocks. Or a factory, see `penstock.loaders.position`.
        evaluation: Every ``iter()`` is the same epoch from its start, in order, nothing dropped.
        weights: One number per sample: in every epoch, a sample is delivered
            ``epoch_samples * weight / sum(weights)`` times, rounded up or down. `set_weights`
            changes them.
        epoch_samples: Samples per epoch, over all ranks; by default those of the dataset. The next
            epoch continues in the same shuffle, so that nothing is lost.
        lengths: Tokens of each sample, for batches of samples of similar length.
        max_tokens: Tokens of a batch, including padding; ``batch_size`` is then not used. None for
            at most ``batch_size`` samples of similar length.
        window: Samples that are sorted by length together; 131,072 by default.
        group: Batches of similar length that stay together; a multiple of the number of ranks, 64
            by default. Resuming on a number of ranks that divides it splits no batch.
        rank: This rank; pass it together with ``world_size``. By default both are those of
            ``torch.distributed``, or 0 of 1.
        world_size: Number of ranks.
        executor: ``"inline"``, ``"processes"`` (the default if there are workers), or
            ``"threads"``, for datasets whose reading releases the interpreter's lock.
        threads: Threads of that executor; None for one per core. Use more for slow storage.
        tune: ``"online"`` finds the fastest number of threads during use; it changes no batch.
        memory_budget: Limit of what ``tune`` lets threads read ahead: bytes, or ``"1GB"``.
        **dataloader_kwargs: Arguments of torch's loader. Workers are persistent unless you pass
            ``persistent_workers=False``.

    >>> loader = ChunkedDataLoader(torch.arange(10), batch_size=2, chunk_size=2)
    >>> [len(list(loader)) for _ in range(4)]
    [2, 2, 1, 2]
    >>> loader.state_dict()["epoch"], loader.current_chunk, loader.total_chunks
    (1, 1, 3)
    """

    pass_through: PassThrough | None = None  # where torch decides the order

    def __init__(
        self,
        dataset: DatasetLike,
        batch_size: int | None = 1,
        chunk_size: ChunkSize | None = None,
        *,
        limit_batches: int | float | None = None,
        shuffle: bool | None = None,
        seed: Seed | int | None = 42,
        drop_last: bool = False,
        order: Order | OrderFactory | None = None,
        evaluation: bool = False,
        weights: npt.ArrayLike | None = None,
        epoch_samples: int | None = None,
        lengths: npt.ArrayLike | None = None,
        max_tokens: int | None = None,
        window: int | None = None,
        group: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        executor: str | None = None,
        threads: int | None = None,
        tune: str | None = None,
        memory_budget: int | str = "1GB",
        **dataloader_kwargs: Any,
    ) -> None:
        check_dataset(dataset)
        inits = ChunkedDataLoader.__init__, DataLoader.__init__
        refuse_unknown("ChunkedDataLoader", dataloader_kwargs, *inits)
        data = by_index(dataset)
        chosen = OrderOptions(weights, epoch_samples, lengths, max_tokens, window, group)
        composes = chosen.composes(data)
        options, drawn = check_torch_options(dataloader_kwargs), Seed.of(seed)
        self.limit_batches = None if limit_batches is None else check_limit(limit_batches)
        self.executor = check_executor(executor, options.get("num_workers", 0))
        self.threads = check_threads(threads, self.executor)
        self._online = check_tune(tune, self.executor)
        self._budget = check_budget(memory_budget)
        self._workers: Workers | None = None
        self._seen: tuple[list[int], Any] | None = None  # ids of the settings, and the settings
        if shuffle is None:
            shuffle = (chunk_size is not None or composes) and not evaluation
        shuffle, drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        reason = pass_through_reason(
            data, batch_size, options, shuffle=shuffle, chunked=chunk_size is not None
        )
        if reason is not None:
            given = {"chunk_size": chunk_size, "order": order, "rank": rank, "executor": executor}
            refuse_planned_arguments(reason, given | {"world_size": world_size} | chosen.given)
            if reason == "batch_sampler" and batch_size is None:
                batch_size = 1  # torch's default, which it requires beside a batch_sampler
            self.pass_through = PassThrough(reason, data, self.limit_batches)
            super().__init__(data, batch_size, shuffle or None, drop_last=drop_last, **options)
            self.pass_through.split_iterable(self)
            return
        size = size_of(data)
        if composes:
            if order is None:
                order = chosen.factory(data, size, shuffle)
                self._remember(data, order)
            else:
                order = check_order(chosen.in_lanes(data, order), size)
        elif order is None:
            order = order_factory(partial(make_order, shuffle=shuffle))
        elif isinstance(order, Order | type) or not callable(order):
            check_order(order, size)
        batch_size = check_batch_size(batch_size)
        self._position = Position(
            order,
            samples=size,
            topology=partial(current_topology, rank, world_size),
            batch=batch_size,
            drop_last=drop_last,
            chunk=chunk_size,
            limit=limit_batches if chunk_size is None else None,
            evaluation=evaluation,
            fingerprint=partial(fingerprint_of, data),
            seed=drawn,
        )
        options.setdefault("persistent_workers", options.get("num_workers", 0) > 0)
        sampler = RankSampler(data, self._position)
        self._present(data, batch_size, sampler, drop_last=drop_last, **options)

    def __repr__(self) -> str:
        return self.pass_through.summary(self) if self.pass_through else super().__repr__()

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """Iterate over the rest of the current chunk (or epoch)."""
        if self._workers is not None and not self._workers.alive:
            self.close()  # torch's signal handler raised in the user's code
        return self.pass_through.iterate(self) if self.pass_through else self._iterate()

    def __len__(self) -> int:
        """Return the batches of the current chunk (or epoch) on this rank, also inside it."""
        return self.pass_through.length(self) if self.pass_through else super().__len__()

    @property
    def remaining(self) -> int:
        """The number of batches that the next ``iter()`` yields."""
        return self.pass_through.length(self) if self.pass_through else super().remaining

    @property
    def position(self) -> Position:
        """The position: the cursor, the settings of the plan, and a way to replace them."""
        if self.pass_through is not None:
            self.pass_through.refuse_position(self)
        if self._position.live is None:  # an epoch has one size until its end
            self._follow_dataset()
        return self._position

    # -- the dataset, which may change between epochs

    def _follow_dataset(self) -> None:
        """Use the dataset's size now, if the next ``iter()`` begins an epoch."""
        position, size = self._position, self._size
        if size != position.samples and position.follows_size and not position.start.position:
            position.resize(size)
        self._follow_stages(position)

    @property
    def _size(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def _check_size(self) -> None:
        """Refuse a dataset that has another size than at the start of its epoch."""
        size, planned, epoch = self._size, self._position.samples, self._position.cursor.epoch
        if size == planned:
            return
        if not self._position.follows_size:
            raise PlanError(
                f"the dataset has {size:,} samples now, the order has {planned:,}: "
                f"build the loader again, with an order of {size:,} samples"
            )
        raise PlanError(
            f"the dataset has {size:,} samples now, but epoch {epoch} began with "
            f"{planned:,}: restore it to finish the epoch, or begin an epoch of the new "
            f"size with loader.seek({epoch + 1})"
        )

    def _begin(self) -> None:
        """Use the dataset and the settings as they are now, as torch's loader does."""
        self._follow_dataset()
        self._check_size()
        settings, before, position = self._settings(), self._seen, self._position
        seen = [*map(id, settings), position.samples, position.seed.value]
        if before is not None and seen != before[0]:
            self.close()  # what was read ahead, and the workers, have the old settings
            position.forget_fingerprint()
        elif isinstance(self._stream, InlineStream):
            self._stream.read = self._read  # nothing was read ahead
        self._seen = seen, settings  # keeps the objects alive, so that their ids stay unique

    def _settings(self) -> tuple[Any, ...]:
        """Return the objects that batches depend on; the user may replace each of them."""
        workers = self.num_workers, self.prefetch_factor, self.multiprocessing_context
        return (
            *(self.collate_fn, self.worker_init_fn, self.pin_memory, self.timeout, *workers),
            *parts_of(self.dataset),
        )

    @property
    def _keeps_stream(self) -> bool:
        return self.num_workers == 0 or self.persistent_workers

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether accelerate's ``save_state`` saves the position of this loader."""
        return self.pass_through is None and not self._position.evaluation

    # -- chunks

    @property
    def use_chunked(self) -> bool:
        """Whether there is a chunk size."""
        return self.chunk_size is not None

    @property
    def effective_chunk_size(self) -> int | None:
        """Batches of a full ``iter()``; None for the whole epoch."""
        return None if self.pass_through else self.chunk_size or self.plan.steps.limit

    @property
    def chunk_size(self) -> int | None:
        """Batches of a chunk; None for whole epochs."""
        return None if self.pass_through else self._position.chunk

    @property
    def current_chunk(self) -> int:
        """The chunk of this epoch that the position is in; of all epochs if sizes differ."""
        position = self.position
        if position.progress is not None:
            return position.progress.chunks
        return position.plan.steps.of(position.cursor.epoch).chunk_of(position.cursor.position)

    @property
    def total_chunks(self) -> int:
        """Chunks of an epoch; the last may be short. If sizes differ, of the size now."""
        position = self.position
        if position.progress is not None:
            count = position.plan.steps.of(position.cursor.epoch).count
            return -(-count // position.progress.size)
        return self.position.plan.steps.of(self.position.cursor.epoch).total_chunks

    def set_chunk(self, chunk_idx: int) -> None:
        """Start the next ``iter()`` at a chunk of this epoch.

        Args:
            chunk_idx: The chunk, counted from 0; past the last chunk, one of a later epoch.
        """
        self.position.set_chunk(chunk_idx)

    # -- moving and state

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; do nothing if the loader is inside that epoch already.

        Args:
            epoch: The epoch, counted from 0.
        """
        if self.pass_through is None:
            super().set_epoch(epoch)
        else:
            self.pass_through.set_epoch(self, epoch)

    def set_batch_size(self, batch_size: int) -> None:
        """Use another batch size from the next ``iter()`` on, which continues at the position.

        Args:
            batch_size: Samples of this rank's batch.
        """
        super().set_batch_size(batch_size)
        batch_size = self._position.batch
        object.__setattr__(self, "batch_size", batch_size)  # torch's own setter refuses it
        self.batch_sampler.batch_size = batch_size  # type: ignore[union-attr]

    def load_state_dict(
        self, state_dict: dict[str, Any], *, allow_changed_data: bool = False
    ) -> None:
        """Continue exactly where a state was taken, from the next ``iter()`` on; takes O(1).

        Args:
            state_dict: What `state_dict` returned.
            allow_changed_data: Accept a state whose data had another fingerprint.
        """
        position = self.position
        with self._undone_if_refused():
            self._adopt_weights(state_dict)
            position.load(state_dict, allow_changed_data=allow_changed_data, samples=self._size)

    # -- executing

    def _open(self, plan: Plan, cursor: Cursor) -> Stream:
        if self.executor == "threads":
            steps = plan.steps.of(cursor.epoch)
            left = steps.left_in_chunk if self._position.evaluation else steps.steps_from
            batches = islice(self._batches(plan, cursor), left(cursor.position))
            n = self._tuner.readers if self._tuner else self._reader_limits(None)[0]
            return ThreadStream(plan, cursor, batches, self._read, threads=n, timeout=self.timeout)
        if self.num_workers == 0 and not self._pins:
            return self._open_inline(plan, cursor)
        if self._workers is None:
            self._workers = self._start_workers(plan.order.seed)
        return self._workers.open(plan, cursor, self._batches(plan, cursor))

    def _reader_limits(self, batch: Any) -> tuple[int, int]:
        most = self._budget // (2 * max(1, bytes_of(batch)))  # two batches ahead for each
        return self.threads or max(2, usable_cores()), min(MOST_READERS, most)

    def _open_inline(self, plan: Plan, cursor: Cursor) -> Stream:
        return InlineStream(plan, cursor, self._batches(plan, cursor), self._read)

    @property
    def _read(self) -> Read:
        return reader(self.dataset, self._gather, self.collate_fn)

    def _batches(self, plan: Plan, cursor: Cursor) -> Iterator[PlannedBatch]:
        """Return the batches from ``cursor`` on, without end."""
        return self._position.walk(plan, cursor)

    def peek(self) -> Batch:
        """Return the batch the next ``iter()`` begins with; the position does not move.

        It is read in this process, and no random number is drawn.
        """
        if self.pass_through is not None:
            return self.pass_through.peek(self)  # type: ignore[no-any-return]
        position = self.position
        self._check_size()
        if not position.remaining:
            return super().peek()  # which raises the error
        with preserve_random_state():  # a user's dataset may draw from global generators
            return next(self._open_inline(position.plan, position.start))[1]  # type: ignore[no-any-return]

    @property
    def _gather(self) -> Any:
        """The vectorised read, if the dataset has one and the collation is torch's default."""
        return gather_of(self.dataset) if self.collate_fn is default_collate else None

    @property
    def _pins(self) -> bool:
        return self.pin_memory and torch.accelerator.is_available()

    def _start_workers(self, seed: int) -> Workers:
        gathers = self._gather is not None
        options: dict[str, Any] = {"dataset": self.dataset, "collate_fn": self.collate_fn}
        options["worker_init_fn"] = self.worker_init_fn
        if gathers or type(self.dataset) is Subset:  # torch's own would not announce its indices
            options["dataset"] = ReadDataset(self.dataset, gathers=gathers)
            options["collate_fn"] = hand_over if gathers else self.collate_fn
            options["worker_init_fn"] = partial(begin_with_own_dataset, self.worker_init_fn)
        if self.num_workers:
            options["prefetch_factor"] = self.prefetch_factor
            options["persistent_workers"] = self.persistent_workers
        return Workers(
            **options,
            seed=seed,
            num_workers=self.num_workers,
            pin_memory=self._pins,
            timeout=self.timeout,
            multiprocessing_context=safe_context(self.multiprocessing_context, self.num_workers),
        )

    def close(self) -> None:
        """End all worker processes of this loader; it may be iterated again."""
        super().close()
        if self._workers is not None:
            self._workers.close()
        end_workers(self._iterator)  # of torch's own loader, if this one passes through
        self._workers = self._iterator = None

    def describe(self) -> str:
        """Return one readable page: order, executor, memory, and the reasons."""
        if self.pass_through is not None:
            return self.pass_through.describe()
        plan, position = self.plan, self.position
        cursor, steps = position.skips.to_order(position.cursor), plan.steps
        gather = "one gather a batch" if self._gather is not None else "sample by sample"
        if self._gather is None and hasattr(self.dataset, "__getitems__"):
            gather = "batched (__getitems__)"
        chunks = f"{steps.total_chunks:,} chunks of {self.chunk_size} batches"
        if position.progress is not None:
            chunks = f"{position.progress.schedule}, now {self.chunk_size:,} batches"
        executor = f"{self.num_workers} worker processes" if self.num_workers else self.executor
        threads = self._reader_limits(None)[0] if self.executor == "threads" else 0
        ahead = (self.prefetch_factor or 0) * self.num_workers or 2 * threads
        memory = f"the dataset's own, and up to {ahead:,} batches that are read ahead"
        lines = [
            f"ChunkedDataLoader over {steps.size:,} samples of {type(self.dataset).__name__}",
            f"  order     {plan.order.kind}, seed {plan.order.seed}",
            f"  batches   {steps.count:,} an epoch on {steps.world} ranks, {plan.batch_limit}",
            f"  chunks    {chunks if self.use_chunked else 'none: every iter() is an epoch'}",
            f"  remainder {'dropped' if steps.drop_last else 'delivered, in short last batches'}",
            f"  executor  {executor}, {gather}",
            f"  memory    {memory if ahead else 'of the dataset, and one batch at a time'}",
            *self.position.skipped_lines(),
            f"  cursor    epoch {cursor.epoch}, position {cursor.position:,}, "
            f"chunk {self.current_chunk}, {self.remaining:,} batches to come",
        ]
        return "\n".join(lines)
