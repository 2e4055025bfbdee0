"""Copies to an accelerator, on a separate stream, while the previous batch is in use."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch

from penstock.errors import PlanError
from penstock.metrics import Probe

Tensors: TypeAlias = dict[str, torch.Tensor]
Sent: TypeAlias = tuple[Tensors, torch.Event]


class Transfer:
    """Copies batches to a device one batch ahead, so that the copy overlaps with training.

    Host memory must be page-locked. Host tensors are kept alive until their copy has finished, and
    device tensors are recorded on the stream that uses them, so neither is reused too early.

    Args:
        device: The accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side = torch.Stream(device)
        self._copying: deque[tuple[Tensors, torch.Event]] = deque()
        self._lock = threading.Lock()  # one thread may send while another one receives

    def ahead(self, batches: Iterator[Tensors], is_ready: Callable[[], bool]) -> Iterator[Tensors]:
        """Yield the batches on the device.

        Args:
            batches: The batches in host memory.
            is_ready: Returns whether the next one is complete. Only then is it sent early: the
                caller must not wait for a batch that it has not asked for.
        """
        following = self.send(next(batches))
        while True:
            sent, early = following, is_ready()
            if early:
                following = self.send(next(batches))
            yield self.receive(sent)
            if not early:
                following = self.send(next(batches))

    def send(self, host: Tensors) -> Sent:
        """Start to copy a batch, and keep its host tensors alive until the copy has finished."""
        self._drop_copied()
        with Probe("transfer"), self._side:
            moved = {name: t.to(self.device, non_blocking=True) for name, t in host.items()}
            done = self._side.record_event()
        self._copying.append((host, done))
        return moved, done

    def receive(self, sent: Sent) -> Tensors:
        """Return the batch on the device, for use on the current stream."""
        moved, done = sent
        using = torch.accelerator.current_stream(self.device)
        using.wait_event(done)
        for tensor in moved.values():
            tensor.record_stream(using)
        self._drop_copied()
        return moved

    def _drop_copied(self) -> None:
        """Drop host tensors whose copy has finished, so that their slots become free."""
        with self._lock:
            while self._copying and self._copying[0][1].query():
                self._copying.popleft()


def transfer_to(device: torch.device | str | None) -> Transfer | None:
    """Return a transfer to an accelerator; None for the CPU, where nothing is copied."""
    if device is None or torch.device(device).type == "cpu":
        return None
    return Transfer(torch.device(device))


def check_device(device: torch.device | str | None) -> torch.device | str | None:
    """Return the device, if torch knows one of that name.

    Raises:
        PlanError: It does not.
    """
    if device is None:
        return None
    try:
        torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise PlanError(
            f"device must be a torch.device or its name, such as 'cuda' or 'cpu', got {device!r}: "
            f"{first}"
        ) from error
    return device
