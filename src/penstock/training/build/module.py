"""The LightningModule of a configuration: encoder, model and decoder, with loss and metrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from penstock.errors import BatchError
from penstock.extras import optional

if TYPE_CHECKING:
    from penstock.training.build.registries import Task

lightning = optional("lightning.pytorch", extra="lightning")


def accepted(function: Callable[..., Any], extras: dict[str, Any]) -> dict[str, Any]:
    """Return those of ``extras`` that a function takes by name; all if it has ``**kwargs``.

    >>> accepted(lambda x, lengths: None, {"lengths": 3, "rate": 1})
    {'lengths': 3}
    """
    if not extras:
        return extras
    names = _parameter_names(getattr(function, "__func__", function))
    return extras if names is None else {n: v for n, v in extras.items() if n in names}


@lru_cache(maxsize=256)  # keyed by functions: bound methods would keep their modules alive
def _parameter_names(function: Callable[..., Any]) -> frozenset[str] | None:
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return None
    return frozenset(parameters)


class Chain(nn.Module):
    """Modules one after the other; each gets those extras that it takes by name.

    A module returns a tensor, or a tuple whose second item may be a dict of further extras.
    """

    def __init__(self, *modules: nn.Module | None) -> None:
        super().__init__()
        self.steps = nn.ModuleList(each for each in modules if each is not None)

    def forward(self, x: Any, **extras: Any) -> tuple[Any, dict[str, Any]]:
        """Return the output of the last module, and all extras."""
        for step in self.steps:
            found = step(x, **accepted(step.forward, extras))
            if isinstance(found, tuple):
                further = found[1] if len(found) > 1 and isinstance(found[1], dict) else {}
                found, extras = found[0], extras | further
            x = found
        return x, extras


class TaskModule(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A LightningModule that trains a model on a task.

    Batches are ``(x, y)``, ``(x, y, dict)`` or a dict with ``x`` and ``y``; further entries of the
    dict (``lengths``, ``rate``) are passed by name to every module and loss that takes them. Scores
    are logged as ``train/loss``, ``val/accuracy``, ``test/...``; those of a second validation
    loader as ``val/1/loss``, or by its name.

    Args:
        model: ``model(x)`` returns outputs, or a tuple of outputs and a state.
        task: The loss and metrics, and perhaps an encoder and decoder of its own.
        encoder: Runs before the model, after the task's encoder.
        decoder: Runs after the model, before the task's decoder; may take the ``state``.
        optimize: Returns what ``configure_optimizers`` returns, for this module.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        encoder: Chain,
        decoder: Chain,
        optimize: Callable[[nn.Module], Any],
    ) -> None:
        super().__init__()
        self.encoder, self.model, self.decoder = encoder, model, decoder
        self.loss, self.loss_val = task.loss, task.loss_val  # attributes: losses may have weights
        self._task, self._optimize = task, optimize

    def forward(self, x: Any, **extras: Any) -> Any:
        """Return the decoder's output."""
        x, extras = self.encoder(x, **extras)
        found = self.model(x, **accepted(self.model.forward, extras))
        if isinstance(found, tuple):
            x, extras = found[0], extras | {"state": found[1] if len(found) > 1 else None}
        else:
            x = found
        return self.decoder(x, **extras)[0]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch, and log its scores."""
        return self._log_scores(batch, "train", self.loss)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log the scores of a batch."""
        self._log_scores(batch, self._prefix("val", dataloader_idx), self.loss_val)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log the scores of a batch."""
        self._log_scores(batch, self._prefix("test", dataloader_idx), self.loss_val)

    def configure_optimizers(self) -> Any:
        """Return the optimizer and scheduler of the configuration."""
        return self._optimize(self)

    def _log_scores(self, batch: Any, prefix: str, loss_of: Callable[..., Tensor]) -> Tensor:
        x, y, extras = parts_of(batch)
        outputs = self(x, **extras)
        loss = loss_of(outputs, y, **accepted(loss_of, extras))
        scores = self._task.scores(outputs.detach(), y, loss.detach(), extras)
        training = prefix == "train"
        for values, prog_bar in (({"loss": loss}, True), (scores, False)):
            self.log_dict(
                {f"{prefix}/{name}": value for name, value in values.items()},
                on_step=training,
                on_epoch=not training,
                prog_bar=prog_bar,
                batch_size=len(y),
                sync_dist=not training,
                add_dataloader_idx=False,
            )
        return loss

    def _prefix(self, part: str, number: int) -> str:
        loaders = getattr(self.trainer, f"{part}_dataloaders", None)
        if isinstance(loaders, Mapping):
            name = list(loaders)[number]
            return part if name is None else f"{part}/{name}"
        return f"{part}/{number}" if number else part


def parts_of(batch: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return x, y, and the further entries of a batch by name.

    >>> parts_of((1, 2, {"lengths": 3}))
    (1, 2, {'lengths': 3})
    >>> parts_of({"x": 1, "y": 2, "rate": 4})
    (1, 2, {'rate': 4})
    """
    if isinstance(batch, Mapping) and "x" in batch and "y" in batch:
        return batch["x"], batch["y"], {n: v for n, v in batch.items() if n not in ("x", "y")}
    if isinstance(batch, tuple | list) and len(batch) in (2, 3):
        x, y, *further = batch
        if all(isinstance(each, Mapping) for each in further):
            return x, y, dict(further[0]) if further else {}
    found = f"a dict of {sorted(batch)}" if isinstance(batch, Mapping) else type(batch).__name__
    raise BatchError(
        f"a task needs batches (x, y), (x, y, dict) or a dict with x and y, got {found}: make the "
        "dataset return these, or train your own LightningModule"
    )
