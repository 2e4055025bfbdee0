"""How fast are steering batches, against the straightforward per-sample dataset in torch's loader?

Control: one pair at a time and default collation, with 0, 2 and 4 workers. Ceiling: the bare
gathers of a batch into reused memory, nothing else. Further: a second loader of a loaded
directory, a whole validation, and what sampled batch checks cost a training loop.

    python benchmarks/bench_steering.py [--tiny] [--pairs 100000] [--dim 384] [--negatives 8]
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import arguments, claim, emit, interleaved, ratio, report, run
from torch.utils.data import DataLoader, Dataset

from penstock.checks import checked
from penstock.domains.steering import (
    JASPERSteeringDataset,
    build_steering_directory,
    create_loader,
    validate_dataset,
)

WORKERS = (0, 2, 4)


class OneByOne(Dataset):
    """What one writes first: index every tensor for every pair, draw the variant, collate."""

    def __init__(self, data: JASPERSteeringDataset) -> None:
        self.data = {name: getattr(data, name) for name in TABLES}
        self.rows = data._rows
        self.shares = list(data.steering_probs.values())
        self.rng = np.random.default_rng(42)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        data, row = self.data, int(self.rows[index])
        question, source = data["pair_index"][row].tolist()
        variant = int(self.rng.choice(4, p=self.shares))
        steering = (
            torch.zeros(data["question_embs"].shape[1])
            if variant == 0
            else data[STEERING[variant - 1]][row]
        )
        return {
            "question_emb": data["question_embs"][question],
            "target_source_emb": data["source_embs"][source],
            "steering": steering,
            "negative_embs": data["source_embs"][data["hard_negatives"][row]],
            "cluster_id": data["pair_cluster_id"][row],
            "relevance": data["pair_relevance"][row],
            "centroid_distance": data["centroid_distances"][row],
            "steering_variant": torch.tensor(variant),
            "negative_tiers": data["negative_tiers"][row],
        }


STEERING = ("steering_centroid", "steering_keyword_weighted", "steering_residual")
TABLES = (
    "question_embs source_embs pair_index pair_cluster_id pair_relevance hard_negatives "
    "negative_tiers centroid_distances " + " ".join(STEERING)
).split()


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def take(make: Callable[[], Any], count: int) -> Callable[[], float]:
    """Seconds of ``count`` batches once workers run; they end with it, and disturb nobody else."""

    def run() -> float:
        loader = make()
        batches = endless(loader)
        next(batches)
        begin = time.perf_counter()
        for _ in islice(batches, count):
            pass
        taken = time.perf_counter() - begin
        batches.close()
        getattr(loader, "close", gc.collect)()
        return taken

    return run


def bare_gathers(data: JASPERSteeringDataset, batch: int) -> Iterator[None]:
    """The ceiling: the vectors of a batch, gathered in this thread into reused memory."""
    rng, dim = np.random.default_rng(0), data.embedding_dim
    few = np.empty((batch, dim), np.float32)
    many = np.empty((batch, data.n_neg, dim), np.float32)
    questions, sources = data.question_embs.numpy(), data.source_embs.numpy()
    pairs, negatives = data.pair_index.numpy(), data.hard_negatives.numpy()
    steering = data.steering_centroid.numpy()
    while True:
        rows = rng.integers(len(pairs), size=batch)
        np.take(questions, pairs[rows, 0], axis=0, out=few, mode="clip")
        np.take(sources, pairs[rows, 1], axis=0, out=few, mode="clip")
        np.take(steering, rows, axis=0, out=few, mode="clip")
        np.take(sources, negatives[rows], axis=0, out=many, mode="clip")
        yield


def batches_a_second(directory: Path, size: int, batch: int, count: int, rounds: int) -> None:
    data = JASPERSteeringDataset(directory, "train")
    cases = {
        f"one by one, {w} workers": take(partial(stock, OneByOne(data), batch, w), count)
        for w in WORKERS
    }
    controls = list(cases)
    for w in WORKERS:
        make = partial(create_loader, directory, "train", batch, w, dataset=data)
        cases[f"penstock, {w} workers"] = take(make, count)
    cases["bare gathers"] = take(partial(bare_gathers, data, batch), count)
    seconds = interleaved(cases, rounds=rounds)
    report(seconds, pairs=size, batch=batch, batches=count)
    best = min(controls, key=lambda name: sorted(seconds[name])[rounds // 2])
    claim(f"times faster than {best}", ratio(seconds, "penstock, 0 workers", best), at_least=10)
    quickest = min(min(seconds[name]) for name in controls)  # of any round: a busy machine's least
    claim(
        "times faster, quickest round against quickest round of any control",
        quickest / min(seconds["penstock, 0 workers"]),
        at_least=10,
    )
    emit(share_of_the_ceiling=ratio(seconds, "penstock, 0 workers", "bare gathers"))
    each = sorted(seconds["penstock, 0 workers"])[rounds // 2] / count
    claim("milliseconds a batch", each * 1e3, at_most=1)
    least = min(seconds["penstock, 0 workers"]) / count
    claim("milliseconds a batch in the quickest round", least * 1e3, at_most=1)


def stock(dataset: Dataset, batch: int, workers: int) -> DataLoader:
    return DataLoader(
        dataset, batch, shuffle=True, drop_last=True, num_workers=workers
    )  # fmt: skip


def again_and_checks(directory: Path, batch: int, count: int, rounds: int) -> None:
    first = create_loader(directory, "train", batch)
    seconds = interleaved(
        {"second create_loader": lambda: create_loader(directory, "train", batch // 2)},
        rounds=rounds,
    )
    report(seconds)
    fastest = sorted(seconds["second create_loader"])[rounds // 2]
    claim("milliseconds of a second create_loader", fastest * 1e3, at_most=10)
    begin = time.perf_counter()
    findings = validate_dataset(directory).findings
    emit(case="validate_dataset", seconds=time.perf_counter() - begin, findings=len(findings))

    watched = checked(create_loader(directory, "train", batch), first.dataset_obj.schema())
    batches, begin = endless(watched), time.perf_counter()
    for _ in islice(batches, count * rounds * 4):
        pass
    share = watched.spent_seconds / (time.perf_counter() - begin)
    emit(case="checked", batches=watched.seen, checks=watched.checks)
    claim("share of the time that batch checks take", share, at_most=0.011)


def main() -> None:
    options = arguments(__doc__, rounds=7, pairs=100_000, dim=384, negatives=8, batch=64)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    torch.set_num_threads(1)  # on a busy machine torch's own threads only make the controls stall
    size, dim = (2_000, 16) if options.tiny else (options.pairs, options.dim)
    count, rounds = (5, 1) if options.tiny else (100, options.rounds)
    with tempfile.TemporaryDirectory() as directory:
        begin = time.perf_counter()
        build_steering_directory(
            directory, pairs=size, embedding_dim=dim, n_neg=options.negatives, clusters=20,
            keywords=500, config={"curriculum": {"mode": "linear"}},
        )  # fmt: skip
        emit(case="build", seconds=time.perf_counter() - begin)
        batches_a_second(Path(directory), size, options.batch, count, rounds)
        again_and_checks(Path(directory), options.batch, count, rounds)


if __name__ == "__main__":
    sys.exit(run(main, __file__))
