from __future__ import annotations

import pytest
import torch

from penstock.collate import (
    AudioCollator,
    CollatorRegistry,
    DefaultCollator,
    LanguageModelingDataCollator,
    TaskSpec,
    TextCollator,
    VisionCollator,
    VisionDataCollator,
)
from penstock.errors import ConfigError


def images(count=2):
    return [{"pixel_values": torch.ones(3, 32, 32), "labels": i} for i in range(count)]


def test_all_share_one_registry_until_it_is_reset(shared_registry):
    assert CollatorRegistry.get_instance() is shared_registry
    CollatorRegistry.reset()
    assert CollatorRegistry.get_instance() is not shared_registry


def test_a_new_registry_holds_the_built_in_ones_and_is_apart_from_others():
    one, other = CollatorRegistry(), CollatorRegistry()
    one.register("mine", modality="text")(lambda: list)
    assert [info.name for info in one.list_collators()] == [
        "text",
        "vision",
        "audio",
        "default",
        "mine",
    ]
    assert "mine" not in [info.name for info in other.list_collators()]


def test_a_custom_collator_is_listed_and_found(shared_registry):
    @shared_registry.register("custom", modality="text", description="Custom collator")
    def create(**kwargs):
        return lambda batch: batch

    (info,) = [each for each in shared_registry.list_collators() if each.name == "custom"]
    assert (info.factory, info.modality, info.description) == (create, "text", "Custom collator")
    assert shared_registry.get_collator(collator_name="custom")([1, 2]) == [1, 2]


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (TaskSpec.lm_tiny(), TextCollator),
        (TaskSpec.cls_tiny(), TextCollator),
        (TaskSpec.seq2seq_tiny(), TextCollator),
        (TaskSpec("mask", "masked_lm"), TextCollator),
        (TaskSpec.vision_tiny(), VisionCollator),
        (TaskSpec("sounds", "audio_classification"), AudioCollator),
        (TaskSpec("rows", "classification", modality="tabular"), DefaultCollator),
    ],
)
def test_the_collator_follows_from_the_task(spec, kind, masking):
    assert type(CollatorRegistry().get_collator(task_spec=spec, tokenizer=masking)) is kind


def test_a_text_batch_has_the_three_keys(padding):
    collator = CollatorRegistry().get_collator(TaskSpec.lm_tiny(), tokenizer=padding)
    batch = collator([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6, 7, 8]}])
    assert sorted(batch) == ["attention_mask", "input_ids", "labels"]


def test_a_vision_batch_is_stacked():
    batch = CollatorRegistry().get_collator(TaskSpec.vision_tiny())(images())
    assert batch["pixel_values"].shape == (2, 3, 32, 32)
    assert batch["labels"].tolist() == [0, 1]


def test_the_tasks_preprocessing_is_used_even_when_set_later():
    spec = TaskSpec.vision_tiny()
    spec.preprocessing_config = {"normalize": True, "mean": [0.5] * 3, "std": [0.5] * 3}
    batch = CollatorRegistry().get_collator(task_spec=spec)(images())
    assert torch.equal(batch["pixel_values"], torch.ones(2, 3, 32, 32))


def test_masked_lm_can_be_reached_by_task_and_by_argument(masking):
    registry = CollatorRegistry()
    for collator in (
        registry.get_collator(TaskSpec("mask", "masked_lm"), tokenizer=masking),
        registry.get_collator(TaskSpec.lm_tiny(), tokenizer=masking, mlm=True),
        registry.get_collator(collator_name="text", tokenizer=masking, mlm=True),
    ):
        assert collator.mlm


def test_the_latest_registration_for_a_modality_wins():
    registry = CollatorRegistry()
    registry.register("first", modality="vision")(lambda: "first")
    registry.register("second", modality="vision")(lambda: "second")
    assert registry.get_collator(TaskSpec.vision_tiny()) == "second"
    registry.register("first", modality="vision")(lambda: "first again")
    assert registry.get_collator(TaskSpec.vision_tiny()) == "first again"


def test_a_registration_for_the_task_type_wins_over_the_modality():
    registry = CollatorRegistry()
    registry.register("captions", task_type="lm")(lambda: "captions")
    registry.register("texts", modality="text")(lambda: "texts")
    assert registry.get_collator(TaskSpec.lm_tiny()) == "captions"
    assert registry.get_collator(TaskSpec.cls_tiny()) == "texts"


def test_a_registration_for_both_must_fit_both():
    registry = CollatorRegistry()
    registry.register("both", modality="vision", task_type="classification")(lambda: "both")
    assert type(registry.get_collator(TaskSpec.cls_tiny(), tokenizer=object())) is TextCollator
    spec = TaskSpec("pictures", "classification", modality="vision")
    assert registry.get_collator(spec) == "both"


def test_a_collator_for_any_modality_replaces_the_default():
    registry = CollatorRegistry()
    registry.register("mine", modality="any")(lambda: "mine")
    spec = TaskSpec("rows", "classification", modality="tabular")
    assert registry.get_collator(spec) == "mine"
    assert type(registry.get_collator(TaskSpec.vision_tiny())) is VisionCollator


def test_a_factory_gets_only_the_arguments_it_accepts(plain):
    registry = CollatorRegistry()

    @registry.register("audio", modality="audio")
    def create(task_spec=None, sample_rate=16000, n_fft=512):
        return task_spec.name, sample_rate, n_fft

    spec = TaskSpec("speech", "classification", modality="audio")
    made = registry.get_collator(task_spec=spec, tokenizer=plain, sample_rate=22050)
    assert made == ("speech", 22050, 512)


def test_a_factory_with_kwargs_gets_them_all(plain):
    registry = CollatorRegistry()
    registry.register("open")(lambda **kwargs: kwargs)
    made = registry.get_collator(collator_name="open", tokenizer=plain, x=1)
    assert made == {"task_spec": None, "tokenizer": plain, "x": 1}


@pytest.mark.parametrize("error", [TypeError, ValueError, KeyError, ImportError])
def test_a_factorys_own_errors_come_through(error):
    registry = CollatorRegistry()

    @registry.register("broken", modality="vision")
    def create(task_spec=None):
        raise error("its own")

    with pytest.raises(error, match="its own"):
        registry.get_collator(task_spec=TaskSpec.vision_tiny())


def test_both_names_of_a_collator_are_one_class():
    assert LanguageModelingDataCollator is TextCollator
    assert VisionDataCollator is VisionCollator


def test_an_unknown_name_is_refused_with_what_there_is():
    with pytest.raises(ValueError, match=r"did you mean 'vision'.*text, vision, audio, default"):
        CollatorRegistry().get_collator(collator_name="vison")


def test_neither_task_nor_name_is_refused():
    with pytest.raises(ValueError, match="task_spec= or collator_name="):
        CollatorRegistry().get_collator()


@pytest.mark.parametrize("how", [{"collator_name": "text"}, {"task_spec": TaskSpec.lm_tiny()}])
def test_text_without_a_tokenizer_is_refused(how):
    with pytest.raises(ValueError, match="tokenizer required"):
        CollatorRegistry().get_collator(**how)


def test_a_misspelled_argument_is_refused():
    with pytest.raises(ConfigError, match="takes no 'normalise': did you mean 'normalize'"):
        CollatorRegistry().get_collator(collator_name="vision", normalise=False)


def test_a_collator_without_a_name_is_refused():
    with pytest.raises(ConfigError, match="non-empty"):
        CollatorRegistry().register("")(lambda: list)
