"""Copies to an accelerator: in order, early, and never recycled too soon."""

import numpy as np
import pytest
import torch

from penstock.domains.recording import RandomChunkLoader
from penstock.domains.recording.chunk_loader import ChunkPipeline
from penstock.loaders.stream import StreamLoader
from penstock.streaming.pipeline import Transfer, transfer_to
from penstock.testing import WatchedSource, assert_resumes_everywhere

DATA = np.arange(6000, dtype="f4").reshape(1000, 6)

accelerated = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.accelerator.is_available(), reason="this machine has no accelerator"
    ),
]


def device():
    return torch.accelerator.current_accelerator()


def test_on_the_cpu_nothing_is_copied():
    assert transfer_to(None) is None
    assert transfer_to("cpu") is None
    assert transfer_to(torch.device("cpu")) is None


class ToHost(Transfer):
    """A transfer whose other side is host memory too: the same verbs, and a count."""

    def __init__(self):
        self.sent = 0

    def send(self, host):
        self.sent += 1
        return {name: tensor.clone() for name, tensor in host.items()}, None

    def receive(self, sent):
        return sent[0]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_chunks_go_through_a_transfer_in_order(prefetch):
    transfer = ToHost()
    host = ChunkPipeline(lambda a, b: DATA[a:b], longest=50, ahead=prefetch, transfer=None)
    loading = ChunkPipeline(lambda a, b: DATA[a:b], longest=50, ahead=prefetch, transfer=None)
    loading._transfer = transfer
    spans = [(start, start + 50) for start in range(0, 1000, 50)]
    for (one,), (other,) in zip(host.chunks(spans), loading.chunks(spans), strict=True):
        assert torch.equal(one, other)
    assert transfer.sent == 20
    assert loading.stats()["chunks_transferred"] == 20
    assert loading.stats()["device_bytes"] == 2 * 50 * 6 * 4
    host.close()
    loading.close()


@pytest.mark.parametrize("ready", [True, False])
def test_a_batch_that_is_there_is_sent_before_the_one_before_it_is_used(ready):
    transfer = ToHost()
    batches = ({"x": torch.tensor(i)} for i in range(100))
    there = transfer.ahead(batches, lambda: ready)
    for i in range(20):
        assert int(next(there)["x"]) == i
        assert transfer.sent == i + 1 + ready  # where it is not there, nobody waits for it


def test_an_error_before_the_transfer_arrives_after_it():
    def load(start, end):
        if start == 150:
            raise OSError("broken")
        return DATA[start:end]

    loading = ChunkPipeline(load, longest=50, ahead=1, transfer=None)
    loading._transfer = ToHost()
    chunks = loading.chunks([(start, start + 50) for start in range(0, 1000, 50)])
    for _ in range(3):
        next(chunks)
    with pytest.raises(OSError, match="broken"):
        next(chunks)
    loading.close()


# -- with an accelerator


@pytest.mark.parametrize("shuffle", [True, False])
class TestOnAnAccelerator:
    pytestmark = accelerated

    def test_batches_equal_those_on_the_cpu(self, shuffle):
        options = {"block_samples": 10, "window_blocks": 5, "shuffle": shuffle}
        with (
            StreamLoader(WatchedSource(DATA), 32, **options) as host,
            StreamLoader(WatchedSource(DATA), 32, device=device(), **options) as there,
        ):
            for _ in range(3):
                for one, other in zip(host, there, strict=True):
                    assert other.device.type == device().type
                    assert torch.equal(one, other.cpu())

    def test_kept_batches_are_never_overwritten(self, shuffle):
        options = {"block_samples": 10, "window_blocks": 5, "shuffle": shuffle}
        with StreamLoader(DATA, 25, device=device(), drop_last=False, **options) as loader:
            kept = [(batch, batch * 1) for _ in range(4) for batch in loader]
        assert all(torch.equal(batch, copy) for batch, copy in kept)

    def test_resuming_is_exact(self, shuffle):
        options = {"block_samples": 10, "window_blocks": 2, "shuffle": shuffle}
        assert_resumes_everywhere(lambda: StreamLoader(DATA[:200], 16, device=device(), **options))


class TestChunksOnAnAccelerator:
    pytestmark = accelerated

    @pytest.mark.parametrize("prefetch", [1, 3])
    def test_chunks_equal_those_on_the_cpu(self, prefetch):
        def load(start, end):
            return DATA[start:end], DATA[start:end] * 2

        with RandomChunkLoader(load, 1000, 90, device(), prefetch, seed=1) as loader:
            for _ in range(3):
                loader.start_epoch(12)
                while (chunk := loader.get_next_chunk())[0] is not None:
                    data, double = (tensor.cpu() for tensor in chunk)
                    start = int(data[0, 0]) // 6
                    assert np.array_equal(data, DATA[start : start + len(data)])
                    assert torch.equal(double, data * 2)

    def test_at_most_two_chunks_are_on_the_device(self):
        big = np.zeros((40, 1 << 18), "f4")  # a megabyte a row
        with RandomChunkLoader(lambda a, b: big[a:b], 40, 4, device(), seed=1) as loader:
            torch.accelerator.reset_peak_memory_stats()
            before = torch.accelerator.memory_allocated()
            loader.start_epoch(10)
            for _ in range(10):
                chunk = loader.get_next_chunk()
                chunk[0].sum().item()
            peak = torch.accelerator.max_memory_allocated() - before
        assert peak <= 2 * (4 << 20) + (1 << 20)

    def test_host_memory_is_page_locked_and_copying_until_copied(self):
        transfer = Transfer(device())
        host = {"x": torch.arange(1 << 22, dtype=torch.float32).pin_memory()}
        sent = transfer.send(host)
        assert len(transfer._copying) == 1
        moved = transfer.receive(sent)["x"]
        torch.accelerator.synchronize()
        transfer._drop_copied()
        assert not transfer._copying
        assert torch.equal(moved.cpu(), host["x"])
