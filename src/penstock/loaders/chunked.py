"""Map-style datasets in chunks that cycle through all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from penstock.arguments import flag
from penstock.datasets.gather import fingerprint_of, gather_of, parts_of
from penstock.errors import PlanError, StateError
from penstock.loaders.base import Batch, Loader, Stream, current_topology
from penstock.loaders.executors import InlineStream, Read, Workers, reader
from penstock.loaders.gathered import GatheredDataset, begin_with_own_dataset, hand_over
from penstock.loaders.machine import this_machine
from penstock.loaders.options import (
    check_dataset,
    check_executor,
    check_order,
    check_threads,
    check_torchs,
    refuse_ours,
    size_of,
    torchs_own,
)
from penstock.loaders.peeking import first_of_torch, undisturbed
from penstock.loaders.position import (
    Position,
    check_batch_size,
    check_epoch,
    check_limit,
    share_of,
)
from penstock.loaders.processes import end_workers, safe_context
from penstock.loaders.sampler import RankSampler, make_order
from penstock.loaders.seeds import HeldOrder, Seed
from penstock.loaders.sharding import check_workers, share_of_rank
from penstock.loaders.threads import ThreadStream
from penstock.loaders.timed import TimedIterator
from penstock.loaders.torch_loader import TorchLoader
from penstock.order import Cursor, Order, Plan, PlannedBatch
from penstock.order.state import check_format


class ChunkedDataLoader(Loader[Batch], TorchLoader):
    """torch's ``DataLoader`` in chunks, each continuing where the last one ended; resumable.

    With a ``chunk_size`` every ``iter()`` gives the next ``chunk_size`` batches of a shuffle of the
    *whole* dataset; the last chunk of an epoch is short, then the next epoch begins. Without one
    every ``iter()`` is an epoch. Either way `state_dict` gives the exact batch, and any number of
    workers or ranks delivers the same samples.

    It is a ``DataLoader``, so trainers recognise it. Without a chunk size, ``sampler``,
    ``batch_sampler``, ``generator``, an ``IterableDataset`` and ``batch_size=None`` pass through to
    torch; such a loader has no state. ``docs/chunked.md`` lists where it differs from torch's.

    The dataset is looked at again at every ``iter()``: where its size changed, the epoch that
    begins has the new one. Persistent workers keep the copy of the dataset they started with.

    Args:
        dataset: Map-style. Tensors, arrays and ``TensorDataset`` are gathered batch by batch in
            one operation; ``__getitems__`` is used where there is one.
        batch_size: Samples of this rank's batch.
        chunk_size: Batches of a chunk; beats ``limit_batches``.
        limit_batches: Batches of an epoch: an int, or a share of it (a float), as Lightning's
            ``limit_train_batches``.
        shuffle: None is True when chunked, and torch's False when not.
        seed: For the shuffle and for what is keyed by sample; None draws one and logs it.
        drop_last: Drop the last batch of an epoch if it is not full on every rank.
        order: Any `Order` instead: a ``BlockOrder``, say, for data slow to read at random.
        evaluation: Always the same epoch, in order, nothing dropped, from the beginning.
        rank: Of ``world_size`` ranks; both default to ``torch.distributed``'s, else 0 of 1.
        world_size: Number of ranks.
        executor: ``"inline"``, ``"processes"`` (the default where there are workers), or
            ``"threads"``, for datasets whose reading releases the interpreter's lock.
        threads: Of that executor; None for one per core. Use more for storage that answers late.
        **dataloader_kwargs: torch's own. Workers are persistent unless you pass
            ``persistent_workers=False``.

    >>> loader = ChunkedDataLoader(torch.arange(10), batch_size=2, chunk_size=2)
    >>> [len(list(loader)) for _ in range(4)]
    [2, 2, 1, 2]
    >>> loader.state_dict()["epoch"], loader.current_chunk, loader.total_chunks
    (1, 1, 3)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        chunk_size: int | None = None,
        *,
        limit_batches: int | float | None = None,
        shuffle: bool | None = None,
        seed: Seed | int | None = 42,
        drop_last: bool = False,
        order: Order | HeldOrder | None = None,
        evaluation: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        executor: str | None = None,
        threads: int | None = None,
        **dataloader_kwargs: Any,
    ) -> None:
        check_dataset(dataset)
        options, drawn = check_torchs(dataloader_kwargs), Seed.of(seed)
        self.chunk_size = chunk_size
        self.limit_batches = None if limit_batches is None else check_limit(limit_batches)
        self.executor = check_executor(executor, options.get("num_workers", 0))
        self.threads = check_threads(threads, self.executor)
        self._workers: Workers | None = None
        self._seen: tuple[Any, ...] | None = None  # of what an iteration reads with
        if shuffle is None:
            shuffle = chunk_size is not None and not evaluation
        shuffle, drop_last = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self._passes_through = torchs_own(
            dataset, batch_size, options, shuffle=shuffle, chunked=chunk_size is not None
        )
        if self._passes_through is not None:
            ours = {"chunk_size": chunk_size, "order": order, "rank": rank, "executor": executor}
            refuse_ours(self._passes_through, ours | {"world_size": world_size})
            if self._passes_through == "batch_sampler" and batch_size is None:
                batch_size = 1  # torch's way of saying that the batch sampler decides
            super().__init__(dataset, batch_size, shuffle or None, drop_last=drop_last, **options)
            self._given = dataset  # torch wraps some
            self._share_iterable()
            return
        size = size_of(dataset)
        if order is None:
            make = partial(make_order, shuffle=shuffle)
            self._held = HeldOrder.following(drawn, size, make)
        else:
            held = order if isinstance(order, HeldOrder) else None
            check_order(order if held is None else held.order, size)
            self._held = held or HeldOrder(order)  # type: ignore[arg-type]
        self._planned = Position(
            self._held,
            topology=partial(current_topology, rank, world_size),
            batch=check_batch_size(batch_size),
            drop_last=drop_last,
            chunk=chunk_size,
            limit=limit_batches if chunk_size is None else None,
            evaluation=evaluation,
            fingerprint=partial(fingerprint_of, dataset),
            seed=self._held.seed,
        )
        self._planned.replan()  # refuses what cannot be, now and not at the first batch
        self.chunk_size, batch_size = self._planned.chunk, self._planned.batch
        options.setdefault("persistent_workers", options.get("num_workers", 0) > 0)
        sampler = RankSampler(dataset, self._planned)
        self._present(dataset, batch_size, sampler, drop_last=drop_last, **options)

    def __repr__(self) -> str:
        if self._passes_through is None:
            return super().__repr__()
        what = f"{type(self.dataset).__name__}, batch_size={self.batch_size}"
        return f"<{type(self).__name__}: {what}, order of torch ({self._passes_through})>"

    @property
    def _order(self) -> Order:
        return self._held.order

    # -- what torch does itself where its own arguments pass through

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        """The rest of the current chunk (or epoch), then stop."""
        if self._workers is not None and not self._workers.alive:
            self.close()  # torch's signal handler said so in the middle of the user's code
        if self._passes_through is None:
            return super().__iter__()
        self._share_iterable()
        limit = len(self) if isinstance(self.limit_batches, float) else self.limit_batches
        return TimedIterator(self, partial(DataLoader.__iter__, self), limit)

    def _share_iterable(self) -> None:
        """Have this rank, and each of its workers, read a part of its own; or refuse."""
        if isinstance(self._given, IterableDataset):
            check_workers(self._given, self.num_workers, self.worker_init_fn)
            share = share_of_rank(self._given, current_topology(None, None))
            if share is not self._given:
                object.__setattr__(self, "dataset", share)  # torch's own setter refuses it

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
    def position(self) -> Position:
        """The plan and the position in it."""
        if self._passes_through is not None:
            raise StateError(
                f"this loader has no state: {self._passes_through} is torch's own, and its order "
                "cannot be known in advance; leave it out, and use seed= and order= instead"
            )
        if self._planned.live is None:  # an epoch keeps the size it began with
            self._follow_dataset()
        return self._planned

    # -- the dataset, which may change between epochs

    def _follow_dataset(self) -> None:
        """Order the samples there are now, where the next ``iter()`` begins an epoch."""
        size = self._size
        if size != self._order.size and self._held.resizes and not self._planned.start.position:
            self._held.resize(size)
            self._planned.reorder()

    @property
    def _size(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def _check_size(self) -> None:
        """Refuse a dataset that has another size than the rest of its epoch."""
        size, epoch = self._size, self._planned.cursor.epoch
        if size == self._order.size:
            return
        if not self._held.resizes:
            raise PlanError(
                f"the dataset has {size:,} samples now, the order has {self._order.size:,}: "
                f"build the loader again, with an order of {size:,} samples"
            )
        raise PlanError(
            f"the dataset has {size:,} samples now, but epoch {epoch} began with "
            f"{self._order.size:,}: restore it to finish the epoch, or begin an epoch of the new "
            f"size with loader.seek({epoch + 1})"
        )

    def _begin(self) -> None:
        """Look at the dataset and the settings again, as torch's loader does."""
        self._follow_dataset()
        self._check_size()
        seen, before = self._settings(), self._seen
        if before is not None and [*map(id, seen)] != [*map(id, before)]:
            self.close()  # what was read ahead, and workers, are of what was replaced
            self._planned.forget_fingerprint()
        elif isinstance(self._stream, InlineStream):
            self._stream.read = self._read  # nothing was read ahead
        self._seen = seen

    def _settings(self) -> tuple[Any, ...]:
        """The objects that batches are made of and with; each may be replaced by another."""
        workers = self.num_workers, self.prefetch_factor, self.multiprocessing_context
        return (
            *(self.collate_fn, self.worker_init_fn, self.pin_memory, self.timeout, *workers),
            *(self._order, *parts_of(self.dataset)),
        )

    @property
    def _keeps_stream(self) -> bool:
        return self.num_workers == 0 or self.persistent_workers

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
        return self.position.plan.steps.limit

    @property
    def current_chunk(self) -> int:
        """The chunk of this epoch that the cursor is in."""
        return self.position.plan.steps.chunk_of(self.position.cursor.position)

    @property
    def total_chunks(self) -> int:
        """Chunks of an epoch; the last may be short."""
        return self.position.plan.steps.total_chunks

    def set_chunk(self, chunk_idx: int) -> None:
        """The next ``iter()`` starts at this chunk of the epoch; past the last, of a later one."""
        self.position.set_chunk(chunk_idx)

    # -- moving and state

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; inside it already, nothing happens."""
        if self._passes_through is None:
            super().set_epoch(epoch)
        else:
            getattr(self.sampler, "set_epoch", lambda _: None)(check_epoch(epoch))

    def set_batch_size(self, batch_size: int) -> None:
        """Use another batch size from the next ``iter()`` on, which continues at the position.

        Args:
            batch_size: Samples of this rank's batch.
        """
        super().set_batch_size(batch_size)
        batch_size = self._planned.batch
        object.__setattr__(self, "batch_size", batch_size)  # torch's own setter refuses it
        self.batch_sampler.batch_size = batch_size  # type: ignore[union-attr]

    def load_state_dict(
        self, state_dict: dict[str, Any], *, allow_changed_data: bool = False
    ) -> None:
        """Continue exactly where a state was taken, from the next ``iter()`` on; takes O(1).

        Args:
            state_dict: What `state_dict` returned.
            allow_changed_data: Accept a state of data that has another fingerprint.
        """
        seed = self.position.seed  # refused where the order is torch's own
        saved, before = seed.save(), self._order
        if not seed.given:
            self._adopt_seed(state_dict)
        try:
            if self._held.resizes and self._size != self._order.size:
                self._held.resize(self._size)
                self._planned.replan()
            super().load_state_dict(state_dict, allow_changed_data=allow_changed_data)
        except (PlanError, StateError):
            seed.go_back(saved)
            self._held.order = before
            self._planned.replan()
            raise

    def _adopt_seed(self, state: dict[str, Any]) -> None:
        check_format(state)
        seed = state.get("seed")
        if state.get("order") == self._order.kind and isinstance(seed, int):
            self.position.seed.restore(seed)
            self.position.replan()

    # -- executing

    def _open(self, plan: Plan, cursor: Cursor) -> Stream:
        if self.executor == "threads":
            left = plan.steps.left_in_chunk if self._planned.evaluation else plan.steps.steps_from
            batches = islice(self._batches(plan, cursor), left(cursor.position))
            threads = self.threads or max(2, this_machine().cores)
            options: dict[str, Any] = {"threads": threads, "timeout": self.timeout}
            return ThreadStream(plan, cursor, batches, self._read, **options)
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
        return self._planned.walk(plan, cursor)

    def peek(self) -> Batch:
        """The batch the next ``iter()`` begins with, read here and apart: nothing moves."""
        if self._passes_through is not None:
            self._share_iterable()
            return first_of_torch(self)  # type: ignore[no-any-return]
        course = self.position
        self._check_size()
        if not course.remaining:
            return super().peek()
        with undisturbed():  # a dataset of the user's own may draw from ambient generators
            return next(self._open_inline(course.plan, course.start))[1]  # type: ignore[no-any-return]

    @property
    def _gather(self) -> Any:
        """The vectorised batch, where the dataset has one and the collation is torch's default."""
        return gather_of(self.dataset) if self.collate_fn is default_collate else None

    @property
    def _pins(self) -> bool:
        return self.pin_memory and torch.accelerator.is_available()

    def _start_workers(self, seed: int) -> Workers:
        gather = self._gather
        options: dict[str, Any] = {"dataset": self.dataset, "collate_fn": self.collate_fn}
        options["worker_init_fn"] = self.worker_init_fn
        if gather is not None:
            options = {"dataset": GatheredDataset(self.dataset), "collate_fn": hand_over}
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
        steps, cursor = self.position.plan.steps, self.position.cursor
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
