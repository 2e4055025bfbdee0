"""The LightningModule of a configuration: encoder, model, decoder; loss and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from penstock.errors import BatchError
from penstock.extras import optional
from penstock.training.build.passing import Chain, accepted
from penstock.training.build.tasks import Task

lightning = optional("lightning.pytorch", extra="lightning")


class TaskModule(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Trains a model on a task.

    Batches are ``(x, y)``, ``(x, y, dict)`` or a dict with ``x`` and ``y``; what else is in the
    dict (``lengths``, ``rate``) goes by name to whoever takes it. Scores are logged as
    ``train/loss``, ``val/accuracy``, ``test/...``; of a second validation loader as ``val/1/loss``,
    or by its name.

    Args:
        model: ``model(x)`` gives outputs, or a tuple of them and a state.
        task: The loss and metrics, and perhaps heads of its own.
        encoder: Before the model, after the task's.
        decoder: After the model, before the task's; it may take the ``state``.
        optimize: What Lightning's ``configure_optimizers`` gives, for this module.
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
        self.loss, self.loss_val = task.loss, task.loss_val  # here, if they have weights
        self._task, self._optimize = task, optimize

    def forward(self, x: Any, **extras: Any) -> Any:
        """What the decoder makes of what the model makes of a batch's x."""
        x, extras = self.encoder(x, **extras)
        found = self.model(x, **accepted(self.model.forward, extras))
        if isinstance(found, tuple):
            x, extras = found[0], extras | {"state": found[1] if len(found) > 1 else None}
        else:
            x = found
        return self.decoder(x, **extras)[0]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        return self._scored(batch, "train", self.loss)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """The scores of a batch."""
        self._scored(batch, self._side("val", dataloader_idx), self.loss_val)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """The scores of a batch."""
        self._scored(batch, self._side("test", dataloader_idx), self.loss_val)

    def configure_optimizers(self) -> Any:
        """As the sections optimizer and scheduler say."""
        return self._optimize(self)

    def _scored(self, batch: Any, side: str, loss_of: Callable[..., Tensor]) -> Tensor:
        x, y, extras = parts_of(batch)
        outputs = self(x, **extras)
        loss = loss_of(outputs, y, **accepted(loss_of, extras))
        scores = self._task.scores(outputs.detach(), y, loss.detach(), extras)
        self._log(side, {"loss": loss}, len(y), prog_bar=True)
        self._log(side, scores, len(y), prog_bar=False)
        return loss

    def _log(self, side: str, scores: Mapping[str, Tensor], samples: int, prog_bar: bool) -> None:
        training = side == "train"
        self.log_dict(
            {f"{side}/{name}": value for name, value in scores.items()},
            on_step=training,
            on_epoch=not training,
            prog_bar=prog_bar,
            batch_size=samples,
            sync_dist=not training,
            add_dataloader_idx=False,
        )

    def _side(self, side: str, number: int) -> str:
        loaders = getattr(self.trainer, f"{side}_dataloaders", None)
        if isinstance(loaders, Mapping):
            name = list(loaders)[number]
            return side if name is None else f"{side}/{name}"
        return f"{side}/{number}" if number else side


def parts_of(batch: Any) -> tuple[Any, Any, dict[str, Any]]:
    """x, y, and what else a batch tells by name.

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
        f"a task needs batches (x, y), (x, y, dict) or a dict with x and y, got {found}: give the "
        "dataset these, or train your own LightningModule"
    )
