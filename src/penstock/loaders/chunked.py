"""Map-style datasets in chunks that cycle through all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from penstock.datasets.gather import fingerprint_of, gather_of
from penstock.errors import PlanError, StateError
from penstock.loaders.base import Loader, Stream, current_topology
from penstock.loaders.course import Course, share_of
from penstock.loaders.executors import InlineStream, Read, Workers, reader
from penstock.loaders.gathered import GatheredDataset, hand_over
from penstock.loaders.machine import this_machine
from penstock.loaders.options import (
    check_batch_size,
    check_executor,
    check_threads,
    refuse_ours,
    torchs_own,
)
from penstock.loaders.peeking import first_of_torch, undisturbed
from penstock.loaders.processes import end_workers, safe_context
from penstock.loaders.sampler import RankSampler, make_order
from penstock.loaders.seeds import resolve_seed
from penstock.loaders.threads import ThreadStream
from penstock.order import Cursor, Order, Plan, PlannedBatch, Topology
from penstock.order.state import check_format


class ChunkedDataLoader(Loader, DataLoader[Any]):
    """torch's ``DataLoader`` in chunks, each going on where the last one ended; resumable.

    With a ``chunk_size`` every ``iter()`` gives the next so many batches of a shuffle of the
    *whole* dataset; the last chunk of an epoch is short, then the next epoch begins. Without one
    every ``iter()`` is an epoch. Either way `state_dict` tells the exact batch, and any number of
    workers or ranks delivers the same samples.

    It is a ``DataLoader``, so trainers recognise it. Without a chunk size, ``sampler``,
    ``batch_sampler``, ``generator``, an ``IterableDataset`` and ``batch_size=None`` pass through to
    torch; such a loader has no state.

    Args:
        dataset: Map-style. Tensors, arrays and ``TensorDataset`` are gathered batch by batch in
            one operation; ``__getitems__`` is used where there is one.
        batch_size: Samples of this rank's batch.
        chunk_size: Batches a chunk; beats ``limit_batches``.
        limit_batches: Batches an epoch: an int, or a share of it (a float), as Lightning's
            ``limit_train_batches``.
        shuffle: None is True when chunked, and torch's False when not.
        seed: Of the shuffle and of what is keyed by sample; None draws one and logs it.
        order: Any `Order` instead: a ``BlockOrder``, say, for data slow to read at random.
        evaluation: Always the same epoch, in order, nothing dropped, from the beginning.
        rank: Of ``world_size`` ranks; both default to ``torch.distributed``'s, else 0 of 1.
        executor: ``"inline"``, ``"processes"`` (the default where there are workers), or
            ``"threads"``, for datasets whose reading lets go of the interpreter's lock.
        threads: Of that executor; None: as many as there are cores. Storage that answers late
            wants more.
        **dataloader_kwargs: torch's own. Workers are persistent unless told otherwise.

    >>> loader = ChunkedDataLoader(torch.arange(10), batch_size=2, chunk_size=2)
    >>> [len(list(loader)) for _ in range(4)]
    [2, 2, 1, 2]
    >>> loader.state_dict()["epoch"], loader.current_chunk, loader.total_chunks
    (1, 1, 3)
    """

    # accelerate rebuilds a loader it does not know as prepared, and its cursor never moves then
    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        chunk_size: int | None = None,
        *,
        limit_batches: int | float | None = None,
        shuffle: bool | None = None,
        seed: int | None = 42,
        drop_last: bool = False,
        order: Order | None = None,
        evaluation: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        executor: str | None = None,
        threads: int | None = None,
        **dataloader_kwargs: Any,
    ) -> None:
        self.chunk_size, self.limit_batches = chunk_size, limit_batches
        self.executor = check_executor(executor, dataloader_kwargs.get("num_workers", 0))
        self.threads = check_threads(threads, self.executor)
        self._workers: Workers | None = None
        options = dict(dataloader_kwargs)
        if shuffle is None:
            shuffle = chunk_size is not None and not evaluation
        self._passes_through = torchs_own(
            dataset, batch_size, options, shuffle=shuffle, chunked=chunk_size is not None
        )
        if self._passes_through is not None:
            ours = {"chunk_size": chunk_size, "order": order, "rank": rank, "executor": executor}
            refuse_ours(self._passes_through, ours | {"world_size": world_size})
            if self._passes_through == "batch_sampler":
                batch_size = 1  # torch's way of saying that the batch sampler decides
            super().__init__(dataset, batch_size, shuffle or None, drop_last=drop_last, **options)
            return
        self._seed_given = seed is not None or order is not None
        order = order or make_order(len(dataset), resolve_seed(seed), shuffle=shuffle)
        self._held = HeldOrder(order)
        if self._order.size != len(dataset):
            raise PlanError(f"the order has {self._order.size} samples, the dataset {len(dataset)}")
        self._planned = Course(
            self._held,
            topology=partial(current_topology, rank, world_size),
            batch=check_batch_size(batch_size),
            drop_last=drop_last,
            chunk=chunk_size,
            limit=limit_batches if chunk_size is None else None,
            evaluation=evaluation,
            fingerprint=partial(fingerprint_of, dataset),
        )
        self._planned.replan()  # refuses what cannot be, now and not at the first batch
        options.setdefault("persistent_workers", options.get("num_workers", 0) > 0)
        sampler = RankSampler(dataset, self._planned)
        super().__init__(dataset, batch_size, sampler=sampler, drop_last=drop_last, **options)
        self._keeps_stream = self.num_workers == 0 or self.persistent_workers

    @property
    def _order(self) -> Order:
        return self._held.order

    # -- what torch does itself where its own arguments pass through

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """The rest of the current chunk (or epoch), then stop."""
        if self._workers is not None and not self._workers.alive:
            self.close()  # torch's signal handler said so in the midst of the user's code
        if self._passes_through is None:
            return super().__iter__()
        batches = DataLoader.__iter__(self)
        limit = self.limit_batches
        return islice(batches, len(self) if isinstance(limit, float) else limit)

    def __len__(self) -> int:
        """Batches of the current chunk (epoch) on this rank, the same all through it."""
        if self._passes_through is None:
            return super().__len__()
        batches = DataLoader.__len__(self)
        if isinstance(self.limit_batches, float):
            return share_of(batches, self.limit_batches)
        return batches if self.limit_batches is None else min(batches, self.limit_batches)

    @property
    def remaining(self) -> int:
        """Exactly what the next ``iter()`` yields."""
        return super().remaining if self._passes_through is None else len(self)

    @property
    def _course(self) -> Course:
        if self._passes_through is not None:
            raise StateError(
                f"this loader has no state: {self._passes_through} is torch's own, and its order "
                "cannot be known in advance; leave it out, and use seed= and order= instead"
            )
        return self._planned

    @property
    def use_stateful_dataloader(self) -> bool:
        """Accelerate's question: does its ``save_state`` save the place of this loader too?"""
        return self._passes_through is None and not self._planned.evaluation

    # -- chunks

    @property
    def use_chunked(self) -> bool:
        """Is there a chunk size?"""
        return self.chunk_size is not None

    @property
    def effective_chunk_size(self) -> int | None:
        """Batches a full ``iter()`` has; None for the whole epoch."""
        if self.chunk_size is not None or self._passes_through is not None:
            return self.chunk_size
        return self._course.plan.steps.limit

    @property
    def current_chunk(self) -> int:
        """The chunk of this epoch that the cursor is in."""
        return self._course.plan.steps.chunk_of(self._course.cursor.position)

    @property
    def total_chunks(self) -> int:
        """Chunks of an epoch; the last may be short."""
        return self._course.plan.steps.total_chunks

    def set_chunk(self, chunk_idx: int) -> None:
        """The next ``iter()`` starts at this chunk of the epoch; past the last, of a later one."""
        self._course.set_chunk(chunk_idx)

    # -- moving and state

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; inside it already, nothing happens."""
        if self._passes_through is None:
            super().set_epoch(epoch)
        else:
            getattr(self.sampler, "set_epoch", lambda _: None)(epoch)

    def set_batch_size(self, batch_size: int) -> None:
        """Another batch size from the next ``iter()`` on; the position stays."""
        self._course.set_batch_size(check_batch_size(batch_size))
        object.__setattr__(self, "batch_size", batch_size)  # torch's own setter refuses it
        self.batch_sampler.batch_size = batch_size  # type: ignore[union-attr]

    def load_state_dict(self, state: dict[str, Any], *, allow_changed_data: bool = False) -> None:
        """Go on exactly where a state was taken, from the next ``iter()`` on; takes O(1)."""
        before = self._course.plan.order  # refused where the order is torch's own
        if not self._seed_given:
            self._adopt_seed(state)
        try:
            super().load_state_dict(state, allow_changed_data=allow_changed_data)
        except StateError:
            self._use(before)
            raise

    def _adopt_seed(self, state: dict[str, Any]) -> None:
        check_format(state)
        seed = state.get("seed")
        if state.get("order") == self._order.kind and isinstance(seed, int):
            shuffle = self._order.kind == "shuffled"
            self._use(make_order(self._order.size, seed, shuffle=shuffle))

    def _use(self, order: Order) -> None:
        if order is not self._order:
            self._held.order = order
            self._course.replan()

    # -- executing

    def _open(self, plan: Plan, cursor: Cursor) -> Stream:
        if self.executor == "threads":
            read, threads = self._read, self.threads or max(2, this_machine().cores)
            return ThreadStream(plan, cursor, self._batches(plan, cursor), read, threads=threads)
        if self.num_workers == 0 and not self._pins:
            return self._open_inline(plan, cursor)
        if self._workers is None:
            self._workers = self._start_workers(plan.order.seed)
        return self._workers.open(plan, cursor, self._batches(plan, cursor))

    def _open_inline(self, plan: Plan, cursor: Cursor) -> Stream:
        return InlineStream(plan, cursor, self._batches(plan, cursor), self._read)

    @property
    def _read(self) -> Read:
        return reader(self.dataset, self._gather, self.collate_fn)

    def _batches(self, plan: Plan, cursor: Cursor) -> Iterator[PlannedBatch]:
        """What is read from ``cursor`` on, without end."""
        return self._course.walk(plan, cursor)

    def peek(self) -> Any:
        """The batch the next ``iter()`` begins with, read here and apart: nothing moves."""
        if self._passes_through is not None:
            return first_of_torch(self)
        course = self._course
        if not course.remaining:
            return super().peek()
        with undisturbed():  # a dataset of the user's own may draw from ambient generators
            return next(self._open_inline(course.plan, course.start))[1]

    @property
    def _gather(self) -> Any:
        """The vectorised batch, where the dataset has one and nobody collates otherwise."""
        return gather_of(self.dataset) if self.collate_fn is default_collate else None

    @property
    def _pins(self) -> bool:
        return self.pin_memory and torch.accelerator.is_available()

    def _start_workers(self, seed: int) -> Workers:
        gather = self._gather
        options: dict[str, Any] = {"dataset": self.dataset, "collate_fn": self.collate_fn}
        if gather is not None:
            dataset = GatheredDataset(gather, self._order.size)
            options = {"dataset": dataset, "collate_fn": hand_over}
        if self.num_workers:
            options["prefetch_factor"] = self.prefetch_factor
            options["persistent_workers"] = self.persistent_workers
        return Workers(
            **options,
            seed=seed,
            num_workers=self.num_workers,
            pin_memory=self._pins,
            timeout=self.timeout,
            worker_init_fn=self.worker_init_fn,
            multiprocessing_context=safe_context(self.multiprocessing_context, self.num_workers),
        )

    def close(self) -> None:
        """End every worker process of this loader; it may be iterated again."""
        super().close()
        if self._workers is not None:
            self._workers.close()
        end_workers(self._iterator)  # of torch's own loader, where that is what this is
        self._workers = self._iterator = None

    def describe(self) -> str:
        """One readable page: order, executor, and why."""
        if self._passes_through is not None:
            return f"ChunkedDataLoader: torch's own loader, because of {self._passes_through}"
        steps, cursor = self._course.plan.steps, self._course.cursor
        gather = "one gather a batch" if self._gather is not None else "sample by sample"
        if self._gather is None and hasattr(self.dataset, "__getitems__"):
            gather = "batched (__getitems__)"
        chunks = f"{steps.total_chunks:,} chunks of {self.chunk_size} batches"
        executor = f"{self.num_workers} worker processes" if self.num_workers else self.executor
        lines = [
            f"ChunkedDataLoader over {steps.size:,} samples of {type(self.dataset).__name__}",
            f"  order     {self._order.kind}, seed {self._order.seed}",
            f"  batches   {steps.count:,} an epoch of {steps.batch} on each of {steps.world} ranks",
            f"  chunks    {chunks if self.use_chunked else 'none: every iter() is an epoch'}",
            f"  remainder {'dropped' if steps.drop_last else 'delivered, in short last batches'}",
            f"  executor  {executor}, {gather}",
            f"  cursor    epoch {cursor.epoch}, position {cursor.position:,}, "
            f"chunk {self.current_chunk}, {self.remaining:,} batches to come",
        ]
        return "\n".join(lines)


class HeldOrder:
    """The order a loader has now.

    Its course asks this and not the loader, which would be a cycle: workers of a loader in a cycle
    are left to the garbage collector, and torch then waits five seconds for each.
    """

    def __init__(self, order: Order) -> None:
        self.order = order

    def __call__(self, topology: Topology) -> Order:
        """The order, the same for every topology."""
        return self.order
