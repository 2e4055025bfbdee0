"""No gap at chunk ends: the next chunk is read while this one trains and while it is validated."""

from __future__ import annotations

import multiprocessing
import threading

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from penstock.integrations.lightning import ChunkedTraining
from penstock.loaders import ChunkedDataLoader, StreamLoader
from penstock.testing import WatchedSource
from tests.integrations.lightning.fits import fit

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

PATIENCE_SECONDS = 20
FORK = multiprocessing.get_context("fork")


class Announcing(Dataset):
    """Counts how often each sample is read, and tells when one of them is."""

    def __init__(self, samples, watched, event):
        self.counts, self.watched, self.event = FORK.Array("i", samples), watched, event

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        with self.counts.get_lock():
            self.counts[index] += 1
        if index == self.watched:
            self.event.set()
        return (torch.tensor(index),)


class Waiting(pl.Callback):
    """Looks whether the next chunk is on its way, in one of the validations."""

    def __init__(self, event, validation=0):
        self.event, self.validation, self.came = event, validation, []

    def on_validation_start(self, trainer, pl_module):
        if not trainer.sanity_checking and trainer.current_epoch == self.validation:
            self.came.append(self.event.wait(PATIENCE_SECONDS))


EXECUTORS = {
    "threads": ({"executor": "threads", "threads": 2}, threading.Event),
    "processes": ({"num_workers": 2}, FORK.Event),
}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_next_chunk_is_read_while_validation_runs(executor):
    options, make_event = EXECUTORS[executor]
    watched = int(ChunkedDataLoader(torch.arange(40), 2, 4).samples_at(step=4)[0])
    waiting = Waiting(make_event())
    dataset = Announcing(40, watched, waiting.event)
    with ChunkedDataLoader(dataset, 2, 4, **options) as loader:
        run = fit(ChunkedTraining(), loader, callbacks=[waiting], max_epochs=3)
    assert waiting.came == [True] and run.train_batches == [4, 4, 4]
    assert set(dataset.counts[:]) == {0, 1}  # what was read ahead was used, not read again


def test_a_stream_reads_the_next_chunk_while_validation_runs():
    read, enough, lock = [], threading.Event(), threading.Lock()

    def count(start, stop):
        with lock:
            read.append((start, stop))
            if sum(stop - start for start, stop in read) > 40:  # more than two chunks
                enough.set()

    waiting = Waiting(enough, validation=1)
    geometry = {"block_samples": 20, "window_blocks": 2, "chunk_size": 5}
    source = WatchedSource(np.arange(4000), count)
    with StreamLoader(source, 4, collate=lambda batch: [batch], **geometry) as loader:
        run = fit(ChunkedTraining(), loader, callbacks=[waiting], max_epochs=3)
    assert waiting.came == [True] and run.train_batches == [5, 5, 5]
    assert len(read) == len(set(read))  # what was read ahead was used, not read again


def test_the_summary_tells_the_wait_at_chunk_ends_from_the_others():
    with ChunkedDataLoader(Announcing(40, 0, threading.Event()), 2, 4) as loader:
        summary = fit(ChunkedTraining(), loader, max_epochs=5).callback.summary()
    assert 0 < summary.chunk_start_seconds < summary.waiting_seconds
    counted = 4 * summary.chunk_start_seconds + 15 * summary.batch_seconds
    assert counted < summary.waiting_seconds  # the very first batch is in the total alone
