"""Objects by the ``_name_`` that a configuration gives; users register their own.

A registered function or class is called with the keys of its section. Parameters that the section
leaves out are filled in where their value is known: ``d_model``, ``d_input``, ``d_output``,
``l_output``, ``n_tokens``, and for tasks also ``model`` and ``dataset``.

>>> @encoders.register("doubled")
... def doubled(d_model):
...     return torch.nn.Linear(2, d_model)
>>> "doubled" in encoders
True
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.datamodules.sequence import SequenceDataset
from penstock.errors import ConfigError
from penstock.registry import Registry

Factories: TypeAlias = Registry[Callable[..., Any]]

datasets: Final = SequenceDataset.registry
models: Final[Factories] = Registry("model")
tasks: Final[Factories] = Registry("task")
encoders: Final[Factories] = Registry("encoder")
decoders: Final[Factories] = Registry("decoder")
optimizers: Final[Factories] = Registry("optimizer")
schedulers: Final[Factories] = Registry("scheduler")
losses: Final[Factories] = Registry("loss")
metrics: Final[Factories] = Registry("metric")
callbacks: Final[Factories] = Registry("callback")


MODES = ("last", "first", "pool", "sum")

PADDING = -100


@models.register("lstm")
class SequenceLSTM(nn.Module):
    """An LSTM over (batch, length, d_model).

    Args:
        d_model: Width of inputs and outputs.
        n_layers: Number of layers.
        dropout: Probability of dropping an output between two layers.
    """

    def __init__(self, d_model: int, n_layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.d_model = self.d_output = d_model
        self.rnn = nn.LSTM(d_model, d_model, n_layers, batch_first=True, dropout=dropout)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return the outputs of all steps, and the state after the last."""
        outputs, state = self.rnn(x, state)
        return outputs, state


encoders.add("id", nn.Identity)
decoders.add("id", nn.Identity)


@encoders.register("linear")
class LinearEncoder(nn.Linear):
    """A linear layer from channels to the width of the model.

    Args:
        d_input: Number of channels.
        d_model: Width of the model.
        bias: Whether it has a bias.
    """

    def __init__(self, d_input: int, d_model: int, bias: bool = True) -> None:
        super().__init__(d_input, d_model, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_input), or (batch, length) where d_input is 1, to (..., d_model)."""
        if self.in_features == 1 and (x.ndim < 2 or (x.ndim == 2 and x.shape[-1] != 1)):
            x = x.unsqueeze(-1)
        return super().forward(x.to(self.weight.dtype))


@encoders.register("embedding")
class EmbeddingEncoder(nn.Embedding):
    """An embedding of tokens in the width of the model.

    Args:
        n_tokens: Size of the vocabulary.
        d_model: Width of the model.
        scale: Factor of the vectors.
    """

    def __init__(self, n_tokens: int, d_model: int, scale: float = 1.0) -> None:
        super().__init__(n_tokens, d_model)
        self.scale = scale
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length) or (batch, length, 1) to (batch, length, d_model)."""
        x = super().forward(x.squeeze(-1) if x.ndim == 3 and x.shape[-1] == 1 else x)
        return x if self.scale == 1.0 else x * self.scale


@decoders.register("linear")
def linear_decoder(d_model: int, d_output: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer from the width of the model to the outputs that the data needs."""
    return nn.Linear(d_model, d_output, bias)


@decoders.register("sequence")
class SequenceDecoder(nn.Module):
    """Outputs for some steps of a sequence.

    Args:
        d_model: Width of the model's output.
        d_output: Outputs per step; None: those of the model.
        l_output: Number of steps; None: all; 0: one, without the axis of steps.
        use_lengths: Use each sequence only up to its entry in ``lengths``.
        mode: Which steps: ``"last"`` or ``"first"``; or the last steps of the running mean
            (``"pool"``) or of the running sum (``"sum"``).
    """

    def __init__(
        self,
        d_model: int,
        d_output: int | None = None,
        l_output: int | None = None,
        use_lengths: bool = False,
        mode: str = "last",
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise ConfigError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self.l_output, self.use_lengths, self.mode = l_output, use_lengths, mode
        self.output = nn.Identity() if d_output is None else nn.Linear(d_model, d_output)

    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        """Map (batch, length, d_model) to (batch, l_output, d_output), or (batch, d_output)."""
        if self.use_lengths and lengths is not None:
            rows = zip(x, torch.as_tensor(lengths).tolist(), strict=True)
            x = torch.stack([self._select_steps(row[:length]) for row, length in rows])
        else:
            x = self._select_steps(x)
        found: Tensor = self.output(x.squeeze(-2) if self.l_output == 0 else x)
        return found

    def _select_steps(self, x: Tensor) -> Tensor:
        steps = x.shape[-2] if self.l_output is None else max(1, self.l_output)
        if self.mode == "first":
            return x[..., :steps, :]
        if self.mode in ("pool", "sum"):
            x = x.cumsum(-2)
        if self.mode == "pool":
            x = x / torch.arange(1, x.shape[-2] + 1, device=x.device, dtype=x.dtype).unsqueeze(-1)
        return x[..., -steps:, :]


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


@tasks.register("base")
class Task:
    """A loss and metrics; a subclass may have an encoder and a decoder of its own.

    Args:
        loss: ``loss(outputs, targets)``; may take further entries of a batch by name.
        loss_val: Another one for validation and test.
        metrics: By name: ``metric(outputs, targets)``; may take the ``loss`` too.
    """

    encoder: nn.Module | None = None
    decoder: nn.Module | None = None

    def __init__(
        self,
        loss: Callable[..., Tensor],
        loss_val: Callable[..., Tensor] | None = None,
        metrics: Mapping[str, Callable[..., Tensor]] | None = None,
    ) -> None:
        self.loss, self.loss_val = loss, loss_val or loss
        self.metrics = dict(metrics or {})

    def scores(self, outputs: Tensor, y: Tensor, loss: Tensor, extras: Any) -> dict[str, Tensor]:
        """Return all metrics of a batch by name."""
        given = extras | {"loss": loss}
        found = self.metrics.items()
        return {name: each(outputs, y, **accepted(each, given)) for name, each in found}


@tasks.register("lm")
class LanguageModelling(Task):
    """Predicts tokens from tokens: an embedding before the model, a projection after it.

    Args:
        loss: ``loss(outputs, targets)``; a configuration's default is cross entropy.
        n_tokens: Size of the vocabulary.
        d_model: Width of the model.
        tied: Use the embedding's weights for the projection.
        rescale: Multiply embeddings by the square root of their width.
        **scores: ``loss_val`` and ``metrics`` of `Task`.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        n_tokens: int,
        d_model: int,
        tied: bool = False,
        rescale: bool = True,
        **scores: Any,
    ) -> None:
        super().__init__(loss, **scores)
        self.encoder = EmbeddingEncoder(n_tokens, d_model, math.sqrt(d_model) if rescale else 1.0)
        self.decoder = nn.Linear(d_model, n_tokens)
        if tied:
            self.decoder.weight = self.encoder.weight


# -- losses


@losses.register("cross_entropy")
def cross_entropy(logits: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Return the cross entropy of class logits in the last axis."""
    return F.cross_entropy(*_flat(logits, y), ignore_index=PADDING, **options)


@losses.register("bce")
@losses.register("binary_cross_entropy")
def binary_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the binary cross entropy of one logit per target."""
    return F.binary_cross_entropy_with_logits(_squeezed(logits, y), y.float())


@losses.register("mse")
@metrics.register("mse")
def mse(outputs: Tensor, y: Tensor, lengths: Any = None) -> Tensor:
    """Return the mean squared error, of the first ``lengths`` steps of each sequence if given."""
    return F.mse_loss(*_unpadded(_squeezed(outputs, y), y, lengths))


@losses.register("mae")
@losses.register("l1")
@metrics.register("mae")
def mae(outputs: Tensor, y: Tensor, lengths: Any = None) -> Tensor:
    """Return the mean absolute error, of the first ``lengths`` steps of each sequence if given."""
    return F.l1_loss(*_unpadded(_squeezed(outputs, y), y, lengths))


def _flat(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return logits.reshape(-1, logits.shape[-1]), y.reshape(-1)


def _squeezed(outputs: Tensor, y: Tensor) -> Tensor:
    """Drop a last axis of 1 that the targets lack: else torch would broadcast the two."""
    return outputs.squeeze(-1) if outputs.ndim == y.ndim + 1 and outputs.shape[-1] == 1 else outputs


def _unpadded(outputs: Tensor, y: Tensor, lengths: Any) -> tuple[Tensor, Tensor]:
    if lengths is None or outputs.ndim < 2:
        return outputs, y.to(outputs.dtype)
    steps = torch.arange(outputs.shape[1], device=outputs.device)
    mask = steps < torch.as_tensor(lengths, device=outputs.device).unsqueeze(-1)
    return outputs[mask], y[mask].to(outputs.dtype)


# -- metrics


@metrics.register("accuracy")
def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the share of targets whose class has the largest logit."""
    return accuracy_among(logits, y, count=1)


def accuracy_among(logits: Tensor, y: Tensor, count: int) -> Tensor:
    """Return the share of targets among the ``count`` largest logits (``accuracy@3``)."""
    logits, y = _flat(logits, y)
    logits, y = logits[y != PADDING], y[y != PADDING]
    best = logits.topk(min(count, logits.shape[-1])).indices
    return (best == y.unsqueeze(-1)).any(-1).float().mean()


@metrics.register("binary_accuracy")
def binary_accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the share of targets that the sign of their logit predicts."""
    return ((_squeezed(logits, y) >= 0) == y.bool()).float().mean()


@metrics.register("bpb")
def bits_per_byte(outputs: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """Return the loss in bits."""
    return torch.div(loss, math.log(2))


@metrics.register("ppl")
@metrics.register("perplexity")
def perplexity(outputs: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """Return the perplexity of the batch."""
    return torch.exp(loss)


@metrics.register("rmse")
def rmse(outputs: Tensor, y: Tensor, lengths: Any = None) -> Tensor:
    """Return the root of the batch's mean squared error."""
    return torch.sqrt(mse(outputs, y, lengths))
