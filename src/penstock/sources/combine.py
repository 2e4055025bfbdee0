"""The layouts of sources made of several sources: one after the other, or side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from penstock.arguments import real_number
from penstock.errors import SourceError
from penstock.fingerprints import digest
from penstock.order.permutation import derive_key
from penstock.sources.boxes import Borders, Located, Output
from penstock.sources.contract import Indices
from penstock.sources.verbs import Draw, Layout, Offsets, Stored, refuse_ragged, zeros


def checked_rate(name: str, rate: float) -> Fraction:
    """Return a rate as n, 1/n or 0."""
    given = real_number(f"rates[{name!r}]", rate, minimum=0)
    found = Fraction(given).limit_denominator(10_000)
    if found.numerator != 1 and found.denominator != 1:
        raise SourceError(f"rates[{name!r}] must be n, 1/n or 0 for a whole number n, got {rate!r}")
    return found


class Concatenated(Layout):
    """One layout after the other, with a seam between neighbours.

    Args:
        parts: Layouts with the same outputs.
    """

    def __init__(self, parts: Sequence[Layout]) -> None:
        self.parts = list(parts)
        self.tiled = any(part.tiled for part in parts)
        for number, part in enumerate(parts):
            if described(part) != described(parts[0]):
                raise SourceError(
                    f"source {number} has fields {in_words(part)}, the first "
                    f"{in_words(parts[0])}: only sources with the same fields can be concatenated"
                )
        self._begins = np.append(0, np.cumsum([len(part) for part in parts]))
        self._leaf = np.append(0, np.cumsum([len(part.leaves) for part in parts])).tolist()
        self.leaves = tuple(leaf for part in parts for leaf in part.leaves)
        self.shared = any(part.shared for part in parts)
        self.outputs, self._first_leaf = {}, {}
        for name, output in parts[0].outputs.items():
            each = [
                [first + leaf for leaf in part.outputs[name].leaves]
                for first, part in zip(self._leaf, parts, strict=False)
            ]
            pitches = {part.outputs[name].pitch for part in parts}
            pitch = pitches.pop() if len(pitches) == 1 else None
            numbers = tuple(number for leaves in each for number in leaves)
            dims = {part.outputs[name].dims for part in parts if any(part.outputs[name].dims)}
            if len(dims) > 1:
                raise SourceError(
                    f"field {name!r} of concatenated sources has different dimensions: {dims}"
                )
            named = dims.pop() if dims else output.dims
            self.outputs[name] = replace(output, leaves=numbers, pitch=pitch, dims=named)
            self._first_leaf[name] = np.array([leaves[0] for leaves in each])
        begins = self._begins[:-1].tolist()
        self._plain = all(isinstance(part, Stored) for part in parts)
        runs = [begin + part.runs for begin, part in zip(begins, parts, strict=True)]
        self.runs = Borders.at(np.concatenate(runs), int(self._begins[-1])).array()
        self.cells = Borders.join(part.cells for part in parts)

    def locate(self, name: str, samples: Indices, draw: Draw) -> Located:
        """Return where output ``name`` of these samples is stored."""
        part = np.searchsorted(self._begins, samples, side="right") - 1
        mine, output, n = samples - self._begins[part], self.outputs[name], len(samples)
        if self._plain:  # each part is one leaf: no need to ask it
            return Located(self._first_leaf[name][part], mine, zeros(n, len(output.inner)))
        leaf, rows, corner = zeros(n), zeros(n, *output.steps), zeros(n, len(output.inner))
        for number in np.unique(part).tolist():
            here = np.flatnonzero(part == number)
            # samples of every part are numbered from 0: the key of a draw needs the part too
            own = Draw(derive_key(draw.seed, "part", number), draw.epoch, draw.share)
            found = self.parts[number].locate(name, mine[here], own)
            leaf[here] = found.leaf + self._leaf[number]
            rows[here], corner[here] = found.rows, found.corner
        return Located(leaf, rows, corner)

    def windows(self, offsets: Offsets, stride: int) -> Layout:
        """Return the windows of each part, if patches are to be made of them."""
        if not self.tiled:
            return super().windows(offsets, stride)
        return Concatenated([part.windows(offsets, stride) for part in self.parts])

    def fingerprint(self) -> str:
        """Return an identity of the data and of what the verbs did."""
        return digest(["concatenated", *(part.fingerprint() for part in self.parts)], [])

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.parts[:3])) + (", ..." if len(self.parts) > 3 else "")
        return f"concatenate({len(self.parts)} sources: [{shown}])"


class Zipped(Layout):
    """Outputs of several layouts side by side, each at its own rate.

    Rate 1/2: one of its rows for two samples. Rate 2: two rows a sample. Rate 0: always one row.

    Args:
        parts: Layouts by name, which becomes that of an unnamed field.
        rates: Rows for one sample, by the same names.
    """

    def __init__(self, parts: Mapping[str, Layout], rates: Mapping[str, Fraction]) -> None:
        self.parts, self.rates, self.leaves = dict(parts), dict(rates), ()
        self.tiled = any(part.tiled for part in parts.values())
        self.shared = any(part.shared for part in parts.values())
        size = common_length({name: len(part) for name, part in parts.items()}, rates)
        self._owner: dict[str, tuple[str, str, int]] = {}  # the part, its field, its first leaf
        self.outputs, self.cells, widest = {}, Borders.every(size, size), Fraction(-1)
        runs = [np.array([0, size])]
        for given, part in parts.items():
            rate, first = rates[given], len(self.leaves)
            if rate != 1:
                refuse_ragged(part.outputs, "other rates")
            self.leaves += part.leaves
            for field, output in part.outputs.items():
                name = field or given
                if name in self._owner:
                    raise SourceError(f"two zipped sources have a field {name!r}: rename one")
                self._owner[name] = given, field, first
                self.outputs[name] = at_rate(output, rate, first)
            if not rate:
                continue
            times, over = rate.denominator, rate.numerator
            if (part.runs % over).any():
                raise SourceError(
                    f"source {given!r} with rate {rate} has a seam inside of a sample, after "
                    f"{int(part.runs[part.runs % over > 0][0])} rows: zip the pieces on both sides "
                    "of it, then concatenate them"
                )
            runs.append(part.runs * times // over)
            weight = sum(output.nbytes for output in part.outputs.values()) * rate
            if weight > widest:
                widest = weight
                self.cells = part.cells.mapped(
                    lambda at, times=times, over=over: -(-at * times // over),  # type: ignore[misc]
                    size, times=times, over=over,
                )  # fmt: skip
        self.runs = Borders.at(np.concatenate(runs), size).array()

    def locate(self, name: str, samples: Indices, draw: Draw) -> Located:
        """Return where output ``name`` of these samples is stored."""
        given, field, first = self._owner[name]
        rate, output = self.rates[given], self.outputs[name]
        theirs = samples * rate.numerator // rate.denominator
        each = max(1, rate.numerator if rate.denominator == 1 else 1)
        if each > 1:
            theirs = (theirs[:, None] + np.arange(each)).ravel()
        found = self.parts[given].locate(field, theirs, draw)
        rows = found.rows.reshape(len(samples), *output.steps)
        return Located(found.leaf[::each] + first, rows, found.corner[::each])

    def fingerprint(self) -> str:
        """Return an identity of the data and of what the verbs did."""
        prints = {name: part.fingerprint() for name, part in self.parts.items()}
        rates = {name: str(rate) for name, rate in self.rates.items() if rate != 1}
        return digest(["zipped", prints, rates] if rates else ["zipped", prints], [])

    def __repr__(self) -> str:
        rates = {name: float(rate) for name, rate in self.rates.items() if rate != 1}
        return f"zip_sources({self.parts}" + (f", rates={rates})" if rates else ")")


def described(layout: Layout) -> dict[str, tuple[object, ...]]:
    """Return what the outputs of concatenated layouts must have in common."""
    return {
        name: (each.steps, each.inner, str(each.dtype), each.static, each.rate, each.ragged)
        for name, each in layout.outputs.items()
    }


def in_words(layout: Layout) -> dict[str, str]:
    """Return the dtype, shape and rate of each output, for messages."""
    return {
        name: f"{each.dtype} {[*each.steps, *each.inner]}"
        + (" of different lengths" if each.ragged else "")
        + (f" at rate {0.0 if each.static else float(each.rate)}" if each.rate != 1 else "")
        for name, each in layout.outputs.items()
    }


def common_length(lengths: Mapping[str, int], rates: Mapping[str, Fraction]) -> int:
    """Return the number of samples of zipped sources, which must be the same for all."""
    asked = {name: Fraction(lengths[name]) / rate for name, rate in rates.items() if rate}
    found = set(asked.values())
    if not asked:
        raise SourceError("zip_sources needs a source with a rate other than 0")
    static = {name: length for name, length in lengths.items() if not rates[name] and length != 1}
    if static:
        raise SourceError(f"sources with rate 0 must have one sample, got {static}")
    if len(found) > 1 or (length := found.pop()).denominator > 1:
        step = math.lcm(*(rate.denominator for rate in rates.values()))
        most = math.floor(min(asked.values())) // step * step
        cut = [
            f"select(range({int(most * rates[name])})) of {name!r}"
            for name, each in asked.items()
            if each != most
        ]
        raise SourceError(
            f"zipped sources must have matching lengths, got samples {dict(lengths)} with rates "
            f"{ {name: float(rate) for name, rate in rates.items()} }: pass other rates, or use "
            + " and ".join(cut)
        )
    return int(length)


def at_rate(output: Output, rate: Fraction, first: int) -> Output:
    """Return an output of a zipped source; its leaves are counted from ``first``."""
    steps, pitch = output.steps, output.pitch
    if not rate:
        pitch = 0
    elif rate < 1:
        pitch = None
    elif rate > 1:
        steps = (int(rate), *steps)
        pitch = None if pitch is None else pitch * int(rate)
    return replace(
        output,
        leaves=tuple(first + leaf for leaf in output.leaves),
        steps=steps,
        static=output.static or not rate,
        rate=output.rate * min(rate or Fraction(1), Fraction(1)),
        pitch=pitch,
    )
