"""To the accelerator, on a side stream, while the batch before is used."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

import torch

from penstock.errors import PlanError
from penstock.streaming.pipeline import Pipeline

Tensors: TypeAlias = dict[str, torch.Tensor]
Sent: TypeAlias = tuple[Tensors, torch.Event]


class Transfer:
    """Copies batches to a device one ahead: the copy overlaps the training step before.

    Host memory must be page-locked. A copy's host tensors are held until it has happened, and its
    device tensors are recorded on the stream that uses them, so neither is recycled too early.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._side = torch.Stream(device)
        self._held: deque[tuple[Tensors, torch.Event]] = deque()
        self._lock = threading.Lock()  # a thread may send while another receives

    def ahead(self, batches: Iterator[Tensors], pipeline: Pipeline) -> Iterator[Tensors]:
        """The batches on the device; the next one is sent early where it is there already."""
        following = self.send(next(batches))
        while True:
            sent, early = following, pipeline.is_ready
            if early:
                following = self.send(next(batches))
            yield self.receive(sent)
            if not early:
                following = self.send(next(batches))

    def send(self, host: Tensors) -> Sent:
        """Begin to copy a batch; its host tensors are held until that has happened."""
        self._let_go()
        with self._side:
            moved = {name: t.to(self.device, non_blocking=True) for name, t in host.items()}
            done = self._side.record_event()
        self._held.append((host, done))
        return moved, done

    def receive(self, sent: Sent) -> Tensors:
        """The batch on the device, for the stream in use now."""
        moved, done = sent
        using = torch.accelerator.current_stream(self.device)
        using.wait_event(done)
        for tensor in moved.values():
            tensor.record_stream(using)
        self._let_go()
        return moved

    def _let_go(self) -> None:
        """Hold no more what was copied: its slot may go back."""
        with self._lock:
            while self._held and self._held[0][1].query():
                self._held.popleft()


def transfer_to(device: torch.device | str | None) -> Transfer | None:
    """A transfer to an accelerator; None where batches stay on the CPU, with no copy."""
    if device is None or torch.device(device).type == "cpu":
        return None
    return Transfer(torch.device(device))


def check_device(device: torch.device | str | None) -> torch.device | str | None:
    """The device, refused where torch knows none of that name."""
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
