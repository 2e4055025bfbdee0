from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.collate import CollatorRegistry, TaskSpec, get_default_task_specs
from penstock.collate.task_spec import MODALITIES, TASK_TYPES
from penstock.errors import ConfigError

NAMES = ["lm_tiny", "cls_tiny", "seq2seq_tiny", "vision_tiny"]


@given(
    task_type=st.sampled_from(list(TASK_TYPES)),
    modality=st.sampled_from(["", *MODALITIES]),
    metrics=st.lists(st.text(max_size=5), max_size=3),
    target=st.none() | st.text(max_size=5),
    schema=st.dictionaries(st.text(max_size=5), st.integers() | st.lists(st.integers())),
    preprocessing=st.none() | st.just({"normalize": True, "mean": [0.5]}),
)
def test_a_task_survives_json(task_type, modality, metrics, target, schema, preprocessing):
    spec = TaskSpec(
        "any",
        task_type,
        target_field=target,
        metrics=metrics,
        modality=modality,
        input_schema=schema,
        preprocessing_config=preprocessing,
    )
    assert TaskSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_class_methods_and_listed_by_name(name):
    spec = getattr(TaskSpec, name)()
    assert spec == get_default_task_specs()[name]
    assert spec.name == spec.task_name == name
    assert TaskSpec.from_dict(spec.to_dict()) == spec


def test_presets_are_what_was_promised():
    lm, classes, seq2seq, vision = (get_default_task_specs()[name] for name in NAMES)
    assert (lm.task_type, lm.model_family, lm.modality) == ("lm", "decoder_only", "text")
    assert lm.input_fields == ["input_ids", "attention_mask"]
    assert lm.target_field == "labels"
    assert lm.loss_type == "cross_entropy"
    assert lm.metrics == ["loss", "perplexity", "accuracy"]
    assert lm.special_tokens == {"pad_token_id": 0}
    assert lm.additional_config == {"shift_labels": True}
    assert lm.input_schema == {"max_seq_len": 128, "vocab_size": 50257}
    assert (classes.task_type, classes.model_family) == ("classification", "encoder_only")
    assert classes.output_schema == {"num_classes": 2}
    assert (seq2seq.task_type, seq2seq.model_family) == ("seq2seq", "encoder_decoder")
    assert seq2seq.input_fields == ["input_ids", "attention_mask", "decoder_input_ids"]
    assert seq2seq.additional_config == {"teacher_forcing": True}
    assert (vision.task_type, vision.modality) == ("vision_classification", "vision")
    assert vision.input_fields == ["pixel_values"]
    assert vision.input_schema == {"image_size": [3, 32, 32], "channels_first": True}
    assert vision.output_schema == {"num_classes": 4}


def test_a_preset_changed_by_one_caller_is_new_for_the_next():
    TaskSpec.lm_tiny().input_schema["max_seq_len"] = 1
    assert TaskSpec.lm_tiny().get_input_shape() == [128]


def test_fields_come_in_the_promised_order():
    assert list(TaskSpec.__dataclass_fields__) == [
        "name",
        "task_type",
        "model_family",
        "input_fields",
        "target_field",
        "loss_type",
        "metrics",
        "special_tokens",
        "additional_config",
        "modality",
        "input_schema",
        "output_schema",
        "preprocessing_config",
    ]


def test_a_name_and_a_task_type_are_enough():
    spec = TaskSpec(name="speech_recognition", modality="audio", task_type="classification")
    assert (spec.model_family, spec.loss_type) == ("encoder_only", "cross_entropy")
    assert spec.is_audio() and not (spec.is_text() or spec.is_vision() or spec.is_tabular())
    assert spec.get_input_shape() is None
    assert spec.preprocessing_config is None


@pytest.mark.parametrize(
    ("task_type", "modality", "family"),
    [
        ("lm", "text", "decoder_only"),
        ("masked_lm", "text", "encoder_only"),
        ("seq2seq", "text", "encoder_decoder"),
        ("text_classification", "text", "encoder_only"),
        ("vision_multilabel", "vision", "encoder_only"),
        ("audio_classification", "audio", "encoder_only"),
    ],
)
def test_modality_and_family_follow_from_the_task_type(task_type, modality, family):
    spec = TaskSpec("any", task_type)
    assert (spec.modality, spec.model_family) == (modality, family)


def test_the_input_shape_is_that_of_images_or_of_token_rows():
    assert TaskSpec.vision_tiny().get_input_shape() == [3, 32, 32]
    assert TaskSpec.lm_tiny().get_input_shape() == [128]


def test_a_registered_task_type_becomes_a_valid_one():
    with pytest.raises(ConfigError):
        TaskSpec("boxes", "detection_of_boxes")
    CollatorRegistry().register("boxes", task_type="detection_of_boxes")(lambda: list)
    assert TaskSpec("boxes", "detection_of_boxes", modality="vision").is_vision()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task_type": "clasification"}, "did you mean 'classification'"),
        ({"task_type": "lm", "modality": "visoin"}, "did you mean 'vision'"),
        ({"task_type": "zzzz"}, "available are lm, masked_lm"),
        ({"task_type": "lm", "name": ""}, "non-empty"),
    ],
)
def test_what_no_task_can_be_is_refused_with_what_was_meant(arguments, message):
    with pytest.raises(ValueError, match=message):
        TaskSpec(**{"name": "any", **arguments})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "x", "task_type": "lm", "los_type": "mse"}, "did you mean 'loss_type'"),
        ({"name": "x"}, "needs 'task_type'"),
        ({"task_type": "lm"}, "needs 'name'"),
    ],
)
def test_a_dict_that_describes_no_task_is_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        TaskSpec.from_dict(data)
