"""Draws the pictures of the pages about orders: ``python -m docs.make.pictures``.

Every dot, cell and bar shows what the library returns; only its place in the picture is set here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from penstock import (
    BlockOrder,
    ChunkedDataLoader,
    Mixture,
    Order,
    SequentialOrder,
    ShuffledOrder,
    StreamLoader,
    open_source,
    pack,
)

FOLDER = Path(__file__).parents[1] / "pictures"
COLOURS = ("#2a78b5", "#e08a1e", "#3c9d5d", "#b5508c", "#7a6fc2", "#a8803a", "#2fa3a0", "#c9544f")
PALE, DARK = "#e3e7ec", "#28323d"
WIDTH = 720


class Drawing:
    """An SVG picture on a white card, readable on light and dark pages."""

    def __init__(self, title: str) -> None:
        self.title, self.items, self.bottom = title, list[str](), 0.0

    def rect(self, x: float, y: float, w: float, h: float, fill: str, more: str = "") -> None:
        """Add a rectangle."""
        box = f'x="{x:.4g}" y="{y:.4g}" width="{w:.4g}" height="{h:.4g}"'
        self.items.append(f'<rect {box} fill="{fill}"{more}/>')
        self.bottom = max(self.bottom, y + h)

    def text(self, x: float, y: float, words: object, fill: str = DARK, size: int = 13) -> None:
        """Add a line of text that begins at ``x``."""
        place = f'x="{x:.4g}" y="{y:.4g}" fill="{fill}" font-size="{size}"'
        self.items.append(f"<text {place}>{escape(str(words))}</text>")
        self.bottom = max(self.bottom, y + 4)

    def cells(
        self, x: float, y: float, colours: Sequence[str], *, w: float = 12, h: float = 14
    ) -> None:
        """Add a row of cells."""
        for n, colour in enumerate(colours):
            self.rect(x + n * w, y, w - 1, h, colour)

    def svg(self) -> str:
        """Return the picture."""
        height = self.bottom + 12
        head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.4g}" role="img"'
        card = f'<rect width="{WIDTH}" height="{height:.4g}" rx="8" fill="#ffffff"/>'
        body = "\n".join([f"<title>{escape(self.title)}</title>", card, *self.items])
        return f'<svg {head} font-family="sans-serif">\n{body}\n</svg>\n'


def shuffles() -> Drawing:
    """Draw the sample at each position, for three orders."""
    size, block, height = 160, 20, 150
    drawing = Drawing("Samples by position in an epoch, for three orders")
    orders: list[tuple[str, Order]] = [
        ("sequential", SequentialOrder(size)),
        ("blocks of 20, windows of 4", BlockOrder(size, 1, block, window=4)),
        ("full shuffle", ShuffledOrder(size, 1)),
    ]
    for n, (name, order) in enumerate(orders):
        left = 16 + n * 236
        drawing.text(left, 24, name)
        drawing.rect(left, 34, 216, height, "#f5f7f9")
        for position, sample in enumerate(order.at(0, np.arange(size)).tolist()):
            x, y = left + 216 * position / size, 34 + height * (1 - (sample + 1) / size)
            drawing.rect(x, y, 2.6, 2.6, COLOURS[sample // block])
    drawing.text(
        16, 34 + height + 20, "position in the epoch →; vertical: the sample; a colour: a block"
    )
    return drawing


def mixtures() -> Drawing:
    """Draw the member of every row of the first steps, before and after a stage."""
    members = {"web": torch.zeros(400), "code": torch.zeros(150), "books": torch.zeros(60)}
    mixture = Mixture(members, weights={"web": 0.6, "code": 0.3, "books": 0.1})
    mixture.then(at=240, weights={"web": 0.2, "code": 0.4, "books": 0.4})
    loader = ChunkedDataLoader(mixture, batch_size=10)
    colour = dict(zip(members, COLOURS, strict=False))
    drawing = Drawing("The member of each row, by step, with a stage from sample 240 on")
    for step in range(46):
        for row, (name, _) in enumerate(mixture.locate(loader.samples_at(step))):
            drawing.rect(16 + step * 15, 34 + row * 11, 13, 10, colour[name])
    drawing.text(16, 24, "weights 6 : 3 : 1")
    drawing.text(16 + 24 * 15, 24, "from sample 240 on, 2 : 4 : 4")
    for n, (name, each) in enumerate(colour.items()):
        drawing.rect(16 + n * 90, 156, 12, 12, each)
        drawing.text(34 + n * 90, 167, name)
    drawing.text(320, 167, "a column: a step of 10 rows")
    return drawing


def weights() -> Drawing:
    """Draw how often each sample comes in an epoch, and how often its weight asks for."""
    size, asked = 48, np.linspace(0.2, 4, 48)
    loader = ChunkedDataLoader(torch.arange(size), 12, weights=asked, epoch_samples=96)
    order = np.concatenate([loader.samples_at(step) for step in range(len(loader))])
    drawing = Drawing("How often each of 48 samples comes in an epoch of 96")
    due = 96 * asked / asked.sum()
    for sample, count in enumerate(np.bincount(order, minlength=size).tolist()):
        x = 16 + sample * 14
        for time in range(count):
            drawing.rect(x, 130 - 24 * (time + 1), 12, 22, COLOURS[0])
        drawing.rect(x, 130 - 24 * due[sample], 12, 2.5, COLOURS[1])
    drawing.text(16, 152, "samples, by weight →")
    drawing.rect(200, 142, 12, 12, COLOURS[0])
    drawing.text(218, 152, "one time in the epoch")
    drawing.rect(400, 146, 12, 3, COLOURS[1])
    drawing.text(418, 152, "epoch_samples · weight / sum of weights")
    return drawing


def subsets() -> Drawing:
    """Draw the selected samples in storage, and the order in which a stream delivers them."""
    size, block = 96, 12
    chosen = np.flatnonzero(np.random.default_rng(4).random(size) < 0.4)
    source = open_source(np.arange(size)).select(chosen)
    with StreamLoader(source, 6, block_samples=block, window_blocks=2, drop_last=False) as loader:
        order = np.concatenate([loader.samples_at(step) for step in range(len(loader))])
    colour = [COLOURS[n // block % 8] if n in chosen else PALE for n in range(size)]
    drawing = Drawing("Selected samples in storage, and in an epoch")
    drawing.text(
        16, 24, f"storage: {size} samples; {len(chosen)} are selected, a colour for each chunk"
    )
    drawing.cells(16, 34, colour, w=7)
    drawing.text(
        16, 76, "an epoch of the selection: each chunk is read once, 24 samples or more are mixed"
    )
    drawing.cells(16, 86, [colour[chosen[n]] for n in order.tolist()], w=14)
    return drawing


def skips() -> Drawing:
    """Draw the steps of an epoch, and of the same epoch with positions left out."""
    plain, skipping = (ChunkedDataLoader(torch.arange(160), 16, shuffle=True) for _ in range(2))
    skipping.skip(0, 48, 96)
    drawing = Drawing("Steps of 16 samples, before and after positions 48 to 96 are skipped")
    step_of = {}
    for step in range(len(plain)):
        step_of |= {int(sample): step for sample in plain.samples_at(step)}
    for row, (name, loader) in enumerate((("as planned", plain), ("skip(0, 48, 96)", skipping))):
        top = 20 + row * 108
        drawing.text(16, top + 8, name)
        for step in range(len(loader)):
            colours = [COLOURS[step_of[int(sample)] % 8] for sample in loader.samples_at(step)]
            left = 16 + step * 68
            drawing.text(left, top + 28, f"step {step}", size=11)
            for n, colour in enumerate(colours):
                drawing.rect(left + n % 4 * 15, top + 34 + n // 4 * 13, 14, 12, colour)
    drawing.text(16, 234, "a colour: a step of the first plan; three of them are skipped")
    return drawing


def lengths() -> Drawing:
    """Draw batches of a plain shuffle, and of similar length; padding is pale."""
    sizes = np.random.default_rng(2).integers(4, 60, 96)
    plain = ChunkedDataLoader(torch.arange(96), 8, shuffle=True)
    sorted_ = ChunkedDataLoader(torch.arange(96), lengths=sizes, max_tokens=320, group=2)
    drawing = Drawing("Rows of batches with their padding")
    for row, (name, loader) in enumerate((("a plain shuffle", plain), ("lengths=", sorted_))):
        top, left = 34 + row * 96, 16.0
        batches = [sizes[loader.samples_at(step)] for step in range(len(loader))]
        batches = batches[:14]
        padding = 1 - sum(map(sum, batches)) / sum(len(b) * max(b) for b in batches)
        drawing.text(16, top - 10, f"{name}: {padding:.0%} padding")
        for n, batch in enumerate(batches):
            width = float(max(batch))
            if left + width > WIDTH - 16:
                break
            for k, size in enumerate(batch.tolist()):
                drawing.rect(left, top + k * 7, width, 6, PALE)
                drawing.rect(left, top + k * 7, size, 6, COLOURS[n % 8])
            left += width + 8
    return drawing


def packing() -> Drawing:
    """Draw documents in sequences, cut and whole."""
    rng = np.random.default_rng(5)
    documents = [
        torch.ones(int(n), dtype=torch.int64) * k for k, n in enumerate(rng.integers(5, 60, 22))
    ]
    drawing = Drawing("Documents packed into sequences of 64 tokens")
    for column, split in enumerate((True, False)):
        packed, left = pack(documents, 64, split=split), 16 + column * 356
        drawing.text(
            left, 24, f"split={split}: {len(packed)} sequences, {packed.filled:.0%} filled"
        )
        for row in range(len(packed)):
            sequence = packed[row]
            top = 34 + row * 15
            drawing.rect(left, top, 64 * 5.2, 12, PALE)
            ids, tokens = sequence["segment_ids"].numpy(), sequence["tokens"].numpy()
            for segment in range(1, ids.max() + 1):
                where = np.flatnonzero(ids == segment)
                colour = COLOURS[tokens[where[0]] % 8]
                drawing.rect(left + where[0] * 5.2, top, len(where) * 5.2 - 1, 12, colour)
    drawing.text(16, drawing.bottom + 18, "a colour: a document; pale: padding")
    return drawing


def chunks() -> Drawing:
    """Draw the number of batches of each chunk while sizes grow."""
    growing = {"start": 5, "end": 40, "over_chunks": 8}
    loader = ChunkedDataLoader(torch.arange(3000), 10, chunk_size=growing, shuffle=True)
    drawing = Drawing("Batches of each chunk, from 5 to 40")
    sizes = []
    for _ in range(16):
        sizes.append(len(loader))
        for _batch in loader:
            pass
    for n, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        left = 16 + n * 42
        drawing.rect(left, 150 - size * 2.8, 36, size * 2.8, COLOURS[(end - 1) // 300])
        drawing.text(left + 10, 144 - size * 2.8, size, size=11)
    drawing.text(
        16,
        170,
        "chunks →, with their batches; a colour: an epoch of 300 batches, which ends a chunk",
    )
    return drawing


def resume() -> Drawing:
    """Draw the samples of an uninterrupted run, and of one that was killed and resumed."""
    data, steps, stop = torch.arange(144), 9, 4

    def make(rank: int, ranks: int) -> ChunkedDataLoader[torch.Tensor]:
        size = {"rank": rank, "world_size": ranks}
        return ChunkedDataLoader(data, 12 // ranks, shuffle=True, **size)

    whole = make(0, 1)
    batches = iter(whole)
    for _ in range(stop):
        next(batches)
    state = whole.state_dict()
    colour = {int(s): COLOURS[k % 8] for k in range(steps) for s in whole.samples_at(k)}
    drawing = Drawing(
        "A run that is killed and resumed on two ranks has the batches of an uninterrupted run"
    )

    def draw(loader: ChunkedDataLoader[torch.Tensor], begin: int, end: int, top: int) -> None:
        for step in range(begin, end):
            for n, sample in enumerate(loader.samples_at(step).tolist()):
                left, y = 104 + step * 66 + n % 3 * 20, top + n // 3 * 17
                drawing.rect(left, y, 19, 16, colour[sample])
                drawing.text(left + 2, y + 12, sample, "#ffffff", 9)

    drawing.text(16, 60, "one rank")
    draw(whole, 0, steps, 24)
    drawing.text(16, 150, "rank 0")
    draw(make(0, 1), 0, stop, 112)
    for rank in range(2):
        other = make(rank, 2)
        other.load_state_dict(state)
        draw(other, stop, steps, 112 + 38 * rank)
    drawing.text(16, 187, "rank 1")
    drawing.rect(104 + stop * 66 - 4.5, 104, 2.5, 90, "#c0271f")
    drawing.text(104 + stop * 66 - 120, 208, "killed; resumed on 2 ranks", "#c0271f")
    for step in range(steps):
        drawing.text(104 + step * 66, 18, f"step {step}", size=11)
    return drawing


PICTURES: dict[str, Callable[[], Drawing]] = {
    each.__name__: each
    for each in (shuffles, mixtures, weights, subsets, skips, lengths, packing, chunks, resume)
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg())
