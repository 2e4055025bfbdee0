"""`TaskSpec`: the type, modality, fields and sizes of a training task, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from penstock.arguments import instance, mapping, shown
from penstock.errors import ConfigError
from penstock.registry import Registry, unknown_name

# The usual model family of each task type. `CollatorRegistry.register` adds to both tables.
TASK_TYPES: Registry[str] = Registry(
    "task_type",
    {
        "lm": "decoder_only",
        "masked_lm": "encoder_only",
        "classification": "encoder_only",
        "seq2seq": "encoder_decoder",
        "text_classification": "encoder_only",
        "vision_classification": "encoder_only",
        "vision_multilabel": "encoder_only",
        "audio_classification": "encoder_only",
    },
)
# The usual fields of the samples of each modality.
MODALITIES: Registry[tuple[str, ...]] = Registry(
    "modality",
    {
        "text": ("input_ids", "attention_mask"),
        "vision": ("pixel_values",),
        "audio": ("waveform",),
        "tabular": (),
    },
)


@dataclass(slots=True)
class TaskSpec:
    """Description of a task, independent of any model.

    Sizes in ``input_schema`` and ``output_schema`` are hints: data of another size or with more
    classes is accepted (text is cut to ``max_seq_len``).

    Args:
        name: Name of the task.
        task_type: "lm", "masked_lm", "classification", "seq2seq", ..., or a registered one.
        model_family: "decoder_only", "encoder_only" or "encoder_decoder"; by default that of the
            task type.
        input_fields: Fields of a sample that are inputs; by default those of the modality.
        target_field: The field that holds the target; None if there is none.
        loss_type: Name of the loss.
        metrics: Names of the metrics.
        special_tokens: Token ids by name, such as ``pad_token_id``.
        additional_config: Anything else about the task.
        modality: "text", "vision", "audio", "tabular", or a registered one; by default that of
            the task type.
        input_schema: Sizes of the input: ``max_seq_len``, ``image_size``, ``channels_first``, ...
        output_schema: Sizes of the output: ``num_classes``, ``vocab_size``, ...
        preprocessing_config: Arguments of the collator; takes precedence over those passed to it.

    >>> spec = TaskSpec("sentiment", "text_classification", output_schema={"num_classes": 2})
    >>> spec.modality, spec.model_family, spec.input_fields
    ('text', 'encoder_only', ['input_ids', 'attention_mask'])
    >>> TaskSpec.from_dict(spec.to_dict()) == spec
    True
    >>> TaskSpec("sentiment", "clasification")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: unknown task_type 'clasification': did you mean ...
    """

    name: str
    task_type: str
    model_family: str = ""
    input_fields: list[str] = field(default_factory=list)
    target_field: str | None = "labels"
    loss_type: str = "cross_entropy"
    metrics: list[str] = field(default_factory=lambda: ["loss"])
    special_tokens: dict[str, int] = field(default_factory=dict)
    additional_config: dict[str, Any] = field(default_factory=dict)
    modality: str = ""
    input_schema: dict[str, Any] = field(default_factory=dict)
    output_schema: dict[str, Any] = field(default_factory=dict)
    preprocessing_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"the name of a task must be a non-empty str, got {shown(self.name)}")
        for name in ("task_type", "modality", "model_family", "loss_type", "target_field"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "target_field" and value is None):
                raise ConfigError(f"{name} must be a str, got {shown(value)}")
        for name in ("input_fields", "metrics"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(isinstance(e, str) for e in value):
                raise ConfigError(f"{name} must be a list of str, got {shown(value)}")
        for name in ("special_tokens", "additional_config", "input_schema", "output_schema"):
            mapping(name, getattr(self, name), error=ConfigError)
        if self.preprocessing_config is not None:
            mapping("preprocessing_config", self.preprocessing_config, error=ConfigError)
        family = TASK_TYPES.find(self.task_type)
        prefix = self.task_type.partition("_")[0]
        self.modality = self.modality or (prefix if prefix in MODALITIES else "text")
        self.model_family = self.model_family or family
        self.input_fields = list(self.input_fields or MODALITIES.find(self.modality))
        self.metrics = list(self.metrics)

    @property
    def task_name(self) -> str:
        """An alias of ``name``."""
        return self.name

    def is_text(self) -> bool:
        """Return whether the modality is text."""
        return self.modality == "text"

    def is_vision(self) -> bool:
        """Return whether the modality is vision."""
        return self.modality == "vision"

    def is_audio(self) -> bool:
        """Return whether the modality is audio."""
        return self.modality == "audio"

    def is_tabular(self) -> bool:
        """Return whether the modality is tabular."""
        return self.modality == "tabular"

    def get_input_shape(self) -> list[int] | None:
        """Return the expected shape of a sample: ``[C, H, W]``, ``[max_seq_len]``, or None."""
        image_size = self.input_schema.get("image_size")
        if image_size is not None:
            return list(image_size)
        max_seq_len = self.input_schema.get("max_seq_len")
        return None if max_seq_len is None else [max_seq_len]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data, for JSON or YAML."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskSpec:
        """Return the task that `to_dict` described; a missing field, or None, gets its default."""
        data = mapping("a task", data, error=ConfigError)
        known = [each.name for each in fields(cls)]
        for key in data:
            if key not in known:
                raise ConfigError(unknown_name("field of a task", key, known))
        for key in ("name", "task_type"):
            if key not in data:
                raise ConfigError(f"a task needs {key!r}, got only {sorted(data)}")
        keep_none = {"target_field", "preprocessing_config"}
        given = {k: v for k, v in data.items() if v is not None or k in keep_none}
        return cls(**deepcopy(given))

    @classmethod
    def lm_tiny(cls) -> TaskSpec:
        """Return a small causal language model task: 128 tokens of 50,257."""
        return cls(
            "lm_tiny",
            "lm",
            metrics=["loss", "perplexity", "accuracy"],
            additional_config={"shift_labels": True},
            output_schema={"vocab_size": 50257},
            **_tiny_text(),
        )

    @classmethod
    def cls_tiny(cls) -> TaskSpec:
        """Return a task that classifies texts of 128 tokens into 2 classes."""
        return cls(
            "cls_tiny",
            "classification",
            metrics=["loss", "accuracy"],
            additional_config={"num_classes": 2},
            output_schema={"num_classes": 2},
            **_tiny_text(),
        )

    @classmethod
    def seq2seq_tiny(cls) -> TaskSpec:
        """Return a text-to-text task, 128 tokens each."""
        return cls(
            "seq2seq_tiny",
            "seq2seq",
            input_fields=["input_ids", "attention_mask", "decoder_input_ids"],
            additional_config={"teacher_forcing": True},
            output_schema={"vocab_size": 50257},
            **_tiny_text(),
        )

    @classmethod
    def vision_tiny(cls) -> TaskSpec:
        """Return a task that classifies 3x32x32 images into 4 classes."""
        return cls(
            "vision_tiny",
            "vision_classification",
            metrics=["loss", "accuracy"],
            additional_config={"num_classes": 4},
            input_schema={"image_size": [3, 32, 32], "channels_first": True},
            output_schema={"num_classes": 4},
        )


def _tiny_text() -> dict[str, Any]:
    return {
        "special_tokens": {"pad_token_id": 0},
        "input_schema": {"max_seq_len": 128, "vocab_size": 50257},
    }


def check_task_spec(task_spec: Any) -> None:
    """Raise an error if the argument is neither a `TaskSpec` nor None."""
    instance("task_spec", task_spec, TaskSpec, optional=True, error=ConfigError)


def get_default_task_specs() -> dict[str, TaskSpec]:
    """Return the presets by name, new objects at each call.

    >>> list(get_default_task_specs())
    ['lm_tiny', 'cls_tiny', 'seq2seq_tiny', 'vision_tiny']
    """
    presets = (TaskSpec.lm_tiny, TaskSpec.cls_tiny, TaskSpec.seq2seq_tiny, TaskSpec.vision_tiny)
    return {spec.name: spec for spec in (preset() for preset in presets)}
