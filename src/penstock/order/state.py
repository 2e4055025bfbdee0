"""States of loaders: small, flat and versioned; an error says why one does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.arguments import LARGEST_INTEGER, LARGEST_SEED, whole_number
from penstock.errors import StateError
from penstock.order.orders import Order, places_of
from penstock.order.plan import NO_SKIPS, Skips
from penstock.order.steps import Cursor

FORMAT: Final = "penstock/1"
FORMAT_WITH_SKIPS: Final = "penstock/2"  # so that releases that ignore skips refuse it

WORDS: Final = {
    "order": "{!r} order",
    "samples": "{:,} samples",
    "seed": "seed {}",
    "block": "blocks of {:,} samples",
    "window": "windows of {:,} blocks",
    "lanes": "{} lanes",
    "cut": "batches of {0[1]:,} {0[0]}",
    "sorted": "sorted windows of {:,} samples",
}
ARGUMENTS: Final = {"cut": "batch_size or max_tokens", "sorted": "window"}

SMALLEST: Final = {  # value of each number that a state may have
    **dict.fromkeys(("epoch", "position", "seed", "overlap", "chunks", "chunk_done"), 0),
    **dict.fromkeys(("samples", "places", "block", "window", "lanes"), 1),
    **dict.fromkeys(("chunk", "align", "chunk_size"), 1),
}
TEXTS: Final = ("order", "fingerprint")
CHUNK: Final = {"chunks", "chunk_size", "chunk_done"}  # where chunks differ in size


def to_state(
    cursor: Cursor, order: Order, fingerprint: str | None = None, skips: Skips = NO_SKIPS
) -> dict[str, Any]:
    """Return the state of a loader: its cursor, and the identity of its order and data.

    The cursor counts kept positions; the state has the position in the order.

    >>> from penstock.order.orders import ShuffledOrder
    >>> to_state(Cursor(3, 480), ShuffledOrder(1000, seed=7))  # doctest: +NORMALIZE_WHITESPACE
    {'format': 'penstock/1', 'epoch': 3, 'position': 480,
     'order': 'shuffled', 'samples': 1000, 'seed': 7}
    """
    if skips:  # a range that goes past the end of its epoch stands for its end
        end, cursor = places_of(order, cursor.epoch), skips.to_order(cursor)
        cursor = Cursor(cursor.epoch, min(cursor.position, end))
    state: dict[str, Any] = {"format": FORMAT, "epoch": cursor.epoch, "position": cursor.position}
    state |= order.identity()
    if skips:
        state |= {"format": FORMAT_WITH_SKIPS, "skipped": [list(each) for each in skips.ranges]}
    if fingerprint is not None:
        state["fingerprint"] = fingerprint
    return state


def check_format(state: Mapping[str, Any]) -> None:
    """Raise a `StateError` if this is not a state, or a field has a wrong type or range."""
    found = state.get("format") if isinstance(state, Mapping) else None
    if found is None:
        raise StateError(
            f"this is not a loader state: it has no 'format' field, got {_brief(state)}; "
            "pass the result of state_dict() to load_state_dict()"
        )
    if found == FORMAT_WITH_SKIPS and not state.get("skipped"):
        raise StateError(
            "the state skips positions, but does not say which: torch.distributed.checkpoint loads "
            "only entries that the loader already has; call loader.skip as before, then load"
        )
    if not isinstance(found, str) or found not in (FORMAT, FORMAT_WITH_SKIPS):
        raise StateError(
            f"the state has format {_brief(found)}, this release reads {FORMAT!r}: "
            "load it with the release of Penstock that wrote it"
        )
    for name in TEXTS:
        if not isinstance(state.get(name), str | None):
            raise StateError(f"the state's {name} must be a string, got {_brief(state[name])}")
    for name in SMALLEST:
        if name in ("epoch", "position") or state.get(name) is not None:
            number_of(state, name)
    skips_of(state)
    of_a_chunk = {name for name in CHUNK if state.get(name) is not None}
    if of_a_chunk and of_a_chunk != CHUNK:
        missing = sorted(of_a_chunk ^ CHUNK)
        raise StateError(f"the state of a chunk has no {' and no '.join(missing)}: it is damaged")


def skips_of(state: Mapping[str, Any]) -> Skips:
    """Return the skips of a state.

    >>> skips_of({"skipped": [[3, 100, 200]]}).ranges
    ((3, 100, 200),)
    """
    ranges = state.get("skipped") or []
    each_fits = isinstance(ranges, list) and all(
        isinstance(each, list) and len(each) == 3 and all(type(part) is int for part in each)
        and 0 <= each[0] and 0 <= each[1] <= each[2] <= LARGEST_INTEGER
        for each in ranges
    )  # fmt: skip
    if not each_fits:
        raise StateError(
            "the state's skipped must be a list of [epoch, start, stop], with positions from "
            f"start to stop, got {_brief(ranges)}"
        )
    return Skips([(epoch, start, stop) for epoch, start, stop in ranges])


def refuse_skips(state: Mapping[str, Any], what: str) -> None:
    """Raise a `StateError` if a state has skips; ``what`` is a loader that cannot skip."""
    if state.get("skipped"):
        raise StateError(
            f"the state skips positions {_brief(state['skipped'])}, which a {what} cannot do: load "
            "it into a ChunkedDataLoader or a StreamLoader"
        )


def number_of(state: Mapping[str, Any], name: str) -> int:
    """Return a number of a state; raise a `StateError` if it has a wrong type or range.

    >>> number_of({"epoch": 3}, "epoch")
    3
    """
    return whole_number(
        f"the state's {name}",
        state.get(name),
        minimum=SMALLEST[name],
        maximum=LARGEST_SEED if name == "seed" else LARGEST_INTEGER,
        error=StateError,
    )


def cursor_of(state: Mapping[str, Any]) -> Cursor:
    """Return the cursor of a state."""
    epoch, position = number_of(state, "epoch"), number_of(state, "position")
    counted = "samples" if state.get("places") is None else "places"
    size = number_of(state, counted)
    if position > size:
        raise StateError(f"the state's position {position:,} is past its {size:,} {counted}")
    return Cursor(epoch, position)


def check_identity(state: Mapping[str, Any], order: Order) -> None:
    """Raise a `StateError` that says what differs if a state belongs to another order."""
    # a mixture accepts states from before a change of its weights
    identity_for = getattr(order, "identity_for", None)
    ours = order.identity() if identity_for is None else identity_for(state)
    theirs = {name: state.get(name) for name in ours}
    if theirs == ours:
        return
    differing = [name for name in ours if theirs[name] != ours[name]]
    raise StateError(
        f"the state belongs to {_words(theirs, differing)}, this loader has "
        f"{_words(ours, differing)}: {_advice(differing)}"
    )


def check_data(state: Mapping[str, Any], fingerprint: str | None) -> None:
    """Raise a `StateError` if the data changed; an unknown fingerprint is accepted."""
    theirs = state.get("fingerprint")
    if theirs is not None and fingerprint is not None and theirs != fingerprint:
        raise StateError(
            f"the data changed since the state was taken (fingerprint {theirs!r}, now "
            f"{fingerprint!r}): restore it, or pass allow_changed_data=True to load_state_dict"
        )


def _words(identity: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(
        WORDS.get(name, name + " {!r}").format(identity[name])
        if identity[name] is not None
        else f"no {name}"
        for name in names
    )


def _advice(differing: list[str]) -> str:
    if "samples" in differing:
        return "the dataset changed; restore it, or start over with seek(epoch)"
    return "build the loader with the same " + ", ".join(ARGUMENTS.get(n, n) for n in differing)


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
