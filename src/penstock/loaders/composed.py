"""The orders that loaders make from their arguments: weights, lengths, mixtures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.arguments import a_path, whole_number
from penstock.atomic_files import replace_file
from penstock.datasets.mixture import Mixture, mixture_of
from penstock.errors import PlanError, StateError
from penstock.fingerprints import digest_of
from penstock.loaders.base import Batch, Loader
from penstock.loaders.plan_settings import OrderFactory, OrderRequest, make_order, order_factory
from penstock.loaders.position import Position
from penstock.order import BlockOrder, Indices, Order
from penstock.order.block_rounds import BlockRounds, OrderInRounds
from penstock.order.mixed_blocks import MixedBlocks
from penstock.order.mixture import MixtureOrder
from penstock.order.permutation import LARGEST
from penstock.order.state import check_identity
from penstock.order.weighted import Reweighted, WeightedBlocks, WeightedOrder, fixed_point

WINDOW, GROUP = 131_072, 64  # samples sorted together: 0.1 % padding; worlds that divide 64


@dataclass(frozen=True, slots=True)
class InRounds:
    """How a `StreamLoader` makes an order that is read in rounds of blocks.

    Args:
        samples: Samples of the source.
        shuffle: Whether blocks and samples are shuffled.
        places: Samples delivered per epoch; None for those of the source or the mixture.
        mixture: The mixture that is read, if it is one.
        weights: The weights of the samples, if they have any.
    """

    samples: int
    shuffle: bool
    places: int | None
    mixture: Mixture | None
    weights: WeightedOrders | None

    @property
    def most(self) -> int:
        """The most samples of an epoch; `LARGEST` if they are unknown."""
        until = self.samples if self.mixture is None else self.mixture.until
        return self.places or (LARGEST if isinstance(until, str) else until)

    def blocks(self, rows: int, block: int) -> int:
        """Return the most blocks that this number of rows of a lane can be from in a round."""
        if self.weights is not None:
            return min(rows, -(-self.samples // block))
        # for each member: a block that is cut at either end, one where a pass begins, a short one
        # where it ends, and one that is left from an earlier stage
        return min(rows, -(-rows // block) + 5 * len(self._starts))

    def make(self, request: OrderRequest, block: int, window: int, lanes: int) -> BlockRounds:
        """Return the order with these samples per block, blocks per window, and lanes."""
        seed, places, mixture = request.seed, self.places or self.samples, self.mixture
        if self.weights is not None:
            return WeightedBlocks(self.weights(request), block, window, lanes)
        if self.shuffle and mixture is None:
            return MixedBlocks([self.samples], [(0, [1])], seed, block, window, lanes, places)
        if self.shuffle and mixture is not None:
            return mixture.block_order(seed, block, window, lanes, self.places)
        if mixture is None:
            order = _repeated(False, places, self.samples, seed)
        else:
            order = mixture.make_order(seed, shuffle=False, until=self.places)
        return OrderInRounds(order, block, window, self._starts)

    @property
    def _starts(self) -> Indices:
        return np.zeros(1, np.int64) if self.mixture is None else self.mixture.starts


def round_rows(most: int, more: int, block: int, window: int, lanes: int) -> int:
    """Return the most samples of a round of equal size, over all lanes.

    Args:
        most: Samples of an epoch.
        more: Blocks by which a round of a lane can be longer.
        block: Samples per block.
        window: Blocks per window.
        lanes: Number of lanes.
    """
    return min(block * (window + more), -(-most // lanes)) * lanes


@dataclass(frozen=True, slots=True, eq=False)
class OrderOptions:
    """The arguments of a loader that choose its order, checked together.

    Args:
        weights: One number per sample.
        epoch_samples: Samples delivered per epoch.
        lengths: Tokens of each sample.
        max_tokens: Tokens of a batch, including padding.
        window: Samples that are sorted by length together.
        group: Batches of similar length that stay together.
    """

    weights: npt.ArrayLike | None
    epoch_samples: int | None
    lengths: npt.ArrayLike | None = None
    max_tokens: int | None = None
    window: int | None = None
    group: int | None = None

    def __post_init__(self) -> None:
        if self.epoch_samples is not None:
            whole_number("epoch_samples", self.epoch_samples, minimum=1, unit="sample")
        for name in ("max_tokens", "window", "group") if self.lengths is None else ():
            if getattr(self, name) is not None:
                raise PlanError(f"{name} is for batches by length: pass lengths= too")
        if self.max_tokens is not None:
            whole_number("max_tokens", self.max_tokens, minimum=1, unit="token")

    @property
    def given(self) -> dict[str, Any]:
        """The arguments by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def composes(self, dataset: Any) -> bool:
        """Return whether the order is anything but a plain shuffle or sequence."""
        given = (self.weights, self.epoch_samples, self.lengths)
        return any(each is not None for each in given) or mixture_of(dataset) is not None

    def factory(self, dataset: Any, samples: int, shuffle: bool) -> OrderFactory:
        """Return the factory of the order."""
        mixture = mixture_of(dataset)
        if self.lengths is not None:
            if mixture is not None or self.weights is not None or self.epoch_samples is not None:
                raise PlanError(
                    "lengths= cannot be combined with a Mixture, weights= or epoch_samples=: "
                    "batches by length need every sample once an epoch"
                )
            from penstock.order.length_batches import checked_lengths  # here: few loaders have them

            lengths = checked_lengths(self.lengths, samples)
            return partial(_by_length, lengths, self, shuffle)
        if self.weights is not None:
            return self._weighted(mixture, samples, shuffle)
        if mixture is not None:
            return partial(_mixed, mixture, shuffle, self.epoch_samples)
        return order_factory(partial(_repeated, shuffle, self.epoch_samples or samples))

    def in_lanes(self, dataset: Any, order: Any) -> Order:
        """Return an order of batches by length within each lane of a block order."""
        others = (self.weights, self.epoch_samples, self.group, mixture_of(dataset))
        cut = self.max_tokens is not None and all(each is None for each in others)
        if self.lengths is None or not cut or not isinstance(order, BlockOrder):
            raise PlanError(
                "pass order=, or weights, lengths or a Mixture, not both; only lengths= with "
                "max_tokens= and without group= can be combined with order=BlockOrder(...)"
            )
        from penstock.order.length_batches import LaneBatches  # here: few loaders have them

        window = WINDOW if self.window is None else self.window
        return LaneBatches(order, self.lengths, window, budget=self.max_tokens or 0)

    def stored(self, source: Any, samples: int, shuffle: bool) -> InRounds | None:
        """Return how `StreamLoader` makes the order; None for a plain shuffle or sequence."""
        mixture = source if isinstance(source, Mixture) else None
        weights = None
        if self.weights is not None:
            weights = self._weighted(mixture, samples, shuffle)
        elif mixture is None and self.epoch_samples is None:
            return None
        return InRounds(samples, shuffle, self.epoch_samples, mixture, weights)

    def _weighted(self, mixture: Mixture | None, samples: int, shuffle: bool) -> WeightedOrders:
        if mixture is not None:
            raise PlanError("weights= with a Mixture: give the weights to the Mixture itself")
        if not shuffle:
            raise PlanError(
                "weights= draws samples in a shuffle, without a fixed order: leave out "
                "shuffle=False and evaluation=True, or the weights"
            )
        assert self.weights is not None
        return WeightedOrders(self.weights, self.epoch_samples, samples)


def _by_length(lengths: Any, asked: OrderOptions, shuffle: bool, request: OrderRequest) -> Order:
    order = make_order(request.samples, request.seed, shuffle=shuffle)
    budget, window = asked.max_tokens, WINDOW if asked.window is None else asked.window
    count, group = request.batch_size if budget is None else None, asked.group
    group = max(1, min(GROUP, request.samples // 2)) if group is None else group
    from penstock.order.length_batches import LengthBatches  # here: few loaders have them

    return LengthBatches(order, lengths, window, budget=budget, count=count, group=group)


def _mixed(mixture: Any, shuffle: bool, until: int | None, request: OrderRequest) -> Order:
    found: Order = mixture.make_order(request.seed, shuffle=shuffle, until=until)
    return found


def _repeated(shuffle: bool, places: int, samples: int, seed: int) -> MixtureOrder:
    """Return an order whose epochs are parts of passes through all samples."""
    return MixtureOrder(
        [make_order(samples, seed, shuffle=shuffle)], [(0, [1])], seed, until=places
    )


class WeightedOrders:
    """The weights of a loader, by the epoch they begin at; a factory of orders.

    Args:
        weights: One number per sample.
        places: Samples delivered per epoch; None for as many as the dataset has.
        samples: Samples of the dataset.
    """

    def __init__(self, weights: npt.ArrayLike, places: int | None, samples: int) -> None:
        self.places, self.known = places, dict[str, npt.NDArray[np.uint64]]()
        self.versions = [(0, self.add(weights, samples))]
        self._made: dict[tuple[str, int, int], WeightedOrder] = {}

    def add(self, weights: npt.ArrayLike, samples: int) -> str:
        """Keep weights; return their digest."""
        units = fixed_point(weights)
        if len(units) != samples:
            raise PlanError(f"{len(units):,} weights for {samples:,} samples: pass one per sample")
        name = digest_of(units)
        self.known[name] = units
        return name

    def begin(self, epoch: int, name: str) -> None:
        """Use known weights from an epoch on."""
        self.versions = [*(each for each in self.versions if each[0] < epoch), (epoch, name)]

    def adopt(self, state: Mapping[str, Any]) -> None:
        """Use the weights that a state names.

        Raises:
            StateError: Weights of the state's epoch or of a later one are not known.
        """
        found = state.get("weights")
        try:
            versions = [(epoch, name) for epoch, name in found or ()]
            valid = bool(versions) and all(
                type(e) is int and e >= 0 and isinstance(n, str) for e, n in versions
            )
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise StateError(f"the state has weights {found!r}: it belongs to another loader")
        here = state.get("epoch")
        past = sum(first <= here for first, _ in versions) - 1 if type(here) is int else 0
        missing = [name for _, name in versions[max(0, past) :] if name not in self.known]
        if missing:
            raise StateError(
                f"the state was taken with weights of digest {', '.join(missing)}, this loader has "
                f"{', '.join(self.known)}: pass those weights, or call "
                "loader.load_weights(directory) with the directory of loader.save_weights"
            )
        self.versions = versions

    def __call__(self, request: OrderRequest) -> Reweighted:
        """Return the order for a request."""
        orders = [(e, self._order(n, request) if n in self.known else n) for e, n in self.versions]
        return Reweighted(orders)

    def _order(self, name: str, request: OrderRequest) -> WeightedOrder:
        places = self.places or request.samples
        key = name, places, request.seed
        if key not in self._made:
            if len(self.known[name]) != request.samples:
                raise PlanError(
                    f"{len(self.known[name]):,} weights for {request.samples:,} samples: the "
                    "dataset changed; call set_weights with one weight per sample"
                )
            self._made[key] = WeightedOrder(self.known[name], places, request.seed)
        return self._made[key]

    def save(self, directory: str | Path) -> list[Path]:
        """Write the weights that are in use into a directory, by their digests."""
        where, paths = a_path("directory", directory), []
        for _, name in self.versions:
            path = where / f"weights-{name}.npy"
            if name in self.known and not path.exists():
                where.mkdir(parents=True, exist_ok=True)
                units = self.known[name]
                replace_file(path, lambda file, units=units: np.save(file, units))  # type: ignore[misc]
            paths.append(path)
        return paths

    def load(self, directory: str | Path) -> None:
        """Read all weights of a directory, so that a state may name them."""
        where = a_path("directory", directory)
        for path in sorted(where.glob("weights-*.npy")):
            units = np.load(path, allow_pickle=False)
            if f"weights-{digest_of(units)}.npy" != path.name:
                raise StateError(f"{path.name} is damaged: its contents have another digest")
            self.known[digest_of(units)] = units


def use_new_stages(position: Position) -> None:
    """Make the plan again; refuse stages that change what was delivered already."""
    state = position.state()
    position.rebuild_plan()
    try:
        check_identity(state, position.plan.order)
    except StateError as error:
        here = state["epoch"] * state["places"] + state["position"]
        raise PlanError(
            f"Mixture.then changes weights before sample {here:,}, up to which samples were "
            f"delivered already: use at={here} or more"
        ) from error


class ComposedOrders(Loader[Batch]):
    """The part of a loader that changes weights during training."""

    _position: Position
    _orders: Any = None  # of a `StreamLoader`, with the geometry of its blocks
    _weights: WeightedOrders | None = None
    mixture: Mixture | None = None
    _stages: list[Any] = []  # noqa: RUF012 - of the mixture when the plan was made; never changed

    def _remember(self, dataset: Any, order: object) -> None:
        self._weights = order if isinstance(order, WeightedOrders) else None
        self.mixture = mixture_of(dataset)
        self._stages = [] if self.mixture is None else self.mixture.all_stages

    def set_weights(self, weights: npt.ArrayLike) -> None:
        """Use other weights from the next epoch on; nothing of the current epoch is lost.

        At the start of an epoch, they are used for that epoch.

        Args:
            weights: One number per sample.
        """
        own, position = self._weights, self.position
        if own is None:
            raise PlanError("this loader has no weights: pass weights= when you create it")
        name, here = own.add(weights, position.samples), position.start
        begun = here.position > 0 or position.live is not None
        own.begin(here.epoch + begun, name)
        position.rebuild_plan()

    def save_weights(self, directory: str | Path) -> list[Path]:
        """Write the weights that the state names, beside a checkpoint; return their paths.

        A state has only the digests of weights. Files are named by digest, and written once. If the
        loader has no weights, nothing is written. `CheckpointManager` calls this.

        Args:
            directory: Where the checkpoint is; created if it does not exist.
        """
        return [] if self._weights is None else self._weights.save(directory)

    def load_weights(self, directory: str | Path) -> None:
        """Read the weights that `save_weights` wrote, so that `load_state_dict` finds them.

        Args:
            directory: Where the checkpoint is.
        """
        if self._weights is not None:
            self._weights.load(directory)

    @contextmanager
    def _undone_if_refused(self) -> Iterator[None]:
        """Return a context whose changes of weights and geometry are undone if one is refused."""
        changed = ((self._weights, "versions"), (self._orders, "adopted"))
        saved = [(each, name, getattr(each, name)) for each, name in changed if each is not None]
        try:
            yield
        except BaseException:
            for each, name, value in saved:
                setattr(each, name, value)
            self._position.rebuild_plan()
            raise

    def _adopt_weights(self, state: Any) -> None:
        """Use the weights that a state names."""
        if self._weights is not None and isinstance(state, Mapping) and "weights" in state:
            self._weights.adopt(state)
            self._position.rebuild_plan()

    def _follow_stages(self, position: Position) -> None:
        """Use the stages that were added to the mixture, if they are still to come."""
        stages = [] if self.mixture is None else self.mixture.all_stages
        if stages == self._stages:
            return
        if stages[1:] != self._stages[1:] and position.plan.order.kind == MixtureOrder.kind:
            raise PlanError(
                "Mixture.then was called after the loader was created, on a mixture inside another "
                "one: call it before, or read from storage with a StreamLoader that shuffles"
            )
        use_new_stages(position)
        self._stages = stages
