"""What a training task is: its kind, modality, fields and sizes, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from penstock.arguments import mapping, shown
from penstock.errors import ConfigError
from penstock.registry import Registry, unknown_name

# task type -> the family of model it usually trains. `CollatorRegistry.register` adds to both.
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
# modality -> the fields its samples usually have.
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
    """A task, described independently of any model; only ``name`` and ``task_type`` are needed.

    Sizes in ``input_schema`` and ``output_schema`` are hints: data of another size or with more
    classes is never refused (text is cut to ``max_seq_len``). ``modality``, ``model_family`` and
    ``input_fields`` follow from the task type where they are left empty.

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
            raise ConfigError(
                f"a task needs a name that is a non-empty str, got {shown(self.name)}"
            )
        for name in ("task_type", "modality", "model_family", "loss_type"):
            if not isinstance(value := getattr(self, name), str):
                raise ConfigError(f"{name} must be a str, got {shown(value)}")
        if self.target_field is not None and not isinstance(self.target_field, str):
            raise ConfigError(f"target_field must be a str, got {shown(self.target_field)}")
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
        usual = MODALITIES.find(self.modality)
        self.model_family = self.model_family or family
        self.input_fields = list(self.input_fields or usual)
        self.metrics = list(self.metrics)

    @property
    def task_name(self) -> str:
        """The name, as some callers spell it."""
        return self.name

    def is_text(self) -> bool:
        """Is the data text?"""
        return self.modality == "text"

    def is_vision(self) -> bool:
        """Is the data images?"""
        return self.modality == "vision"

    def is_audio(self) -> bool:
        """Is the data sound?"""
        return self.modality == "audio"

    def is_tabular(self) -> bool:
        """Is the data tables?"""
        return self.modality == "tabular"

    def get_input_shape(self) -> list[int] | None:
        """The hinted shape of one sample: ``[C, H, W]``, ``[max_seq_len]``, or None."""
        image_size = self.input_schema.get("image_size")
        if image_size is not None:
            return list(image_size)
        max_seq_len = self.input_schema.get("max_seq_len")
        return None if max_seq_len is None else [max_seq_len]

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain data, for JSON or YAML."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskSpec:
        """The task that `to_dict` described; a field left out, or None, gets its default."""
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
        """A small causal language model: 128 tokens of 50,257."""
        return cls.from_dict(PRESETS["lm_tiny"])

    @classmethod
    def cls_tiny(cls) -> TaskSpec:
        """Classification of texts of 128 tokens into 2 classes."""
        return cls.from_dict(PRESETS["cls_tiny"])

    @classmethod
    def seq2seq_tiny(cls) -> TaskSpec:
        """Text to text, 128 tokens each."""
        return cls.from_dict(PRESETS["seq2seq_tiny"])

    @classmethod
    def vision_tiny(cls) -> TaskSpec:
        """Classification of 3x32x32 images into 4 classes."""
        return cls.from_dict(PRESETS["vision_tiny"])


def check_task_spec(task_spec: Any) -> None:
    """Refuse what is no `TaskSpec` and not None."""
    if task_spec is not None and not isinstance(task_spec, TaskSpec):
        raise ConfigError(f"task_spec must be a TaskSpec, got {shown(task_spec)}")


def get_default_task_specs() -> dict[str, TaskSpec]:
    """The presets by name, new ones at each call.

    >>> list(get_default_task_specs())
    ['lm_tiny', 'cls_tiny', 'seq2seq_tiny', 'vision_tiny']
    """
    return {name: TaskSpec.from_dict(preset) for name, preset in PRESETS.items()}


_TOKENS = {"max_seq_len": 128, "vocab_size": 50257}

PRESETS: dict[str, dict[str, Any]] = {
    "lm_tiny": {
        "name": "lm_tiny",
        "task_type": "lm",
        "metrics": ["loss", "perplexity", "accuracy"],
        "special_tokens": {"pad_token_id": 0},
        "additional_config": {"shift_labels": True},
        "input_schema": _TOKENS,
        "output_schema": {"vocab_size": 50257},
    },
    "cls_tiny": {
        "name": "cls_tiny",
        "task_type": "classification",
        "metrics": ["loss", "accuracy"],
        "special_tokens": {"pad_token_id": 0},
        "additional_config": {"num_classes": 2},
        "input_schema": _TOKENS,
        "output_schema": {"num_classes": 2},
    },
    "seq2seq_tiny": {
        "name": "seq2seq_tiny",
        "task_type": "seq2seq",
        "input_fields": ["input_ids", "attention_mask", "decoder_input_ids"],
        "special_tokens": {"pad_token_id": 0},
        "additional_config": {"teacher_forcing": True},
        "input_schema": _TOKENS,
        "output_schema": {"vocab_size": 50257},
    },
    "vision_tiny": {
        "name": "vision_tiny",
        "task_type": "vision_classification",
        "metrics": ["loss", "accuracy"],
        "additional_config": {"num_classes": 4},
        "input_schema": {"image_size": [3, 32, 32], "channels_first": True},
        "output_schema": {"num_classes": 4},
    },
}
