"""How long chunks and training steps took."""

from __future__ import annotations

from functools import partial
from statistics import fmean

from penstock.arguments import real_number

_seconds = partial(real_number, minimum=0)


class ChunkLatencyStats:
    """Times of getting chunks and of the parts of training steps; given in seconds.

    >>> stats = ChunkLatencyStats()
    >>> stats.record_chunk_get(0.004)
    >>> stats.record_batch_times(forward=0.01, backward=0.02, step=0.001)
    >>> summary = stats.get_summary()
    >>> summary["chunk_get_mean_ms"], summary["num_batches_sampled"]
    (4.0, 1)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all records: call it at an epoch's start for figures of that epoch."""
        self._chunks: list[float] = []
        self._batches: list[tuple[float, float, float]] = []

    def record_chunk_get(self, seconds: float) -> None:
        """Record how long a chunk was waited for.

        Args:
            seconds: 0 or more.
        """
        self._chunks.append(_seconds("seconds", seconds))

    def record_batch_times(self, forward: float, backward: float, step: float) -> None:
        """Record how long the parts of a training step took.

        Args:
            forward: Seconds of the forward pass, 0 or more.
            backward: Seconds of the backward pass.
            step: Seconds of the optimizer's step.
        """
        self._batches.append(
            (
                _seconds("forward", forward),
                _seconds("backward", backward),
                _seconds("step", step),
            )
        )

    def get_summary(self) -> dict[str, float]:
        """Means and extremes in milliseconds; zeros where nothing was recorded."""
        chunks = [1e3 * seconds for seconds in self._chunks] or [0.0]
        parts = [[1e3 * seconds for seconds in part] for part in zip(*self._batches, strict=True)]
        forward, backward, step = (fmean(part) for part in parts or [[0.0]] * 3)
        return {
            "chunk_get_mean_ms": fmean(chunks),
            "chunk_get_max_ms": max(chunks),
            "chunk_get_min_ms": min(chunks),
            "batch_forward_mean_ms": forward,
            "batch_backward_mean_ms": backward,
            "batch_step_mean_ms": step,
            "num_chunks": len(self._chunks),
            "num_batches_sampled": len(self._batches),
        }

    def print_summary(self) -> None:
        """Print the summary, a line a figure."""
        for name, value in self.get_summary().items():
            print(f"{name:24} {value:10.3f}" if name.endswith("ms") else f"{name:24} {value:10}")
