from __future__ import annotations

import pickle

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from penstock.collate import NORMALIZATIONS, TaskSpec, VisionCollator
from penstock.errors import ConfigError

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalised(image, mean, std):
    """torchvision's Normalize, written out."""
    mean, std = (torch.tensor(each, dtype=image.dtype).view(-1, 1, 1) for each in (mean, std))
    return (image - mean) / std


def pictures(count, channels=3, height=5, width=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def forms_of(picture):
    """One HxWxC uint8 picture in every form a dataset may give it."""
    grey = picture.shape[2] == 1
    first = np.ascontiguousarray(picture.transpose(2, 0, 1))
    yield "array, channels last", picture
    yield "array, channels first", first
    yield "tensor, channels last", torch.from_numpy(picture)
    yield "tensor, channels first", torch.from_numpy(first)
    yield "PIL", Image.fromarray(picture[..., 0] if grey else picture)
    if grey:
        yield "array without channels", picture[..., 0]
        yield "tensor without channels", torch.from_numpy(picture[..., 0])


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(1, 4),
    channels=st.sampled_from([1, 3]),
    height=st.integers(5, 9),
    width=st.integers(5, 9),
    seed=st.integers(0, 99),
    normalize=st.booleans(),
)
def test_every_form_of_an_image_gives_the_same_batch_and_undoing_it_gives_it_back(
    count, channels, height, width, seed, normalize
):
    batch_of = pictures(count, channels, height, width, seed)
    mean, std = (each[:channels] for each in IMAGENET)
    expected = torch.from_numpy(batch_of).permute(0, 3, 1, 2).float() / 255
    if normalize:
        expected = torch.stack([normalised(image, mean, std) for image in expected])
    for forms in zip(*(forms_of(picture) for picture in batch_of), strict=True):
        samples = [{"pixel_values": image} for _, image in forms]
        got = VisionCollator(normalize)(samples)["pixel_values"]
        assert got.dtype == torch.float32 and got.is_contiguous()
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6, msg=forms[0][0])
    factor, shift = (std, mean) if normalize else ((1,), (0,))
    undone = got * torch.tensor(factor).view(-1, 1, 1) + torch.tensor(shift).view(-1, 1, 1)
    assert np.array_equal((undone * 255).round().byte().permute(0, 2, 3, 1).numpy(), batch_of)


def test_floats_are_normalised_as_torchvision_does():
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    got = VisionCollator(mean=IMAGENET[0], std=IMAGENET[1])([{"pixel_values": i} for i in images])
    expected = torch.stack([normalised(image, *IMAGENET) for image in images])
    torch.testing.assert_close(got["pixel_values"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.bfloat16])
def test_floats_keep_their_dtype(dtype):
    image = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    got = VisionCollator()([{"pixel_values": image}])["pixel_values"]
    assert got.dtype == dtype
    assert torch.equal(got[0], normalised(image, *IMAGENET))


def test_unnormalised_floats_are_unchanged():
    image = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(VisionCollator(False)([image])["pixel_values"][0], image)


@pytest.mark.parametrize(("dtype", "full"), [(np.uint8, 255), (np.uint16, 65535), (np.bool_, 1)])
def test_integers_are_scaled_to_one(dtype, full):
    white = np.full((5, 5), full, dtype)
    got = VisionCollator(normalize=False)([white])["pixel_values"]
    assert torch.equal(got, torch.ones(1, 1, 5, 5))
    assert torch.isfinite(VisionCollator()([white])["pixel_values"]).all()


@pytest.mark.parametrize(
    ("normalize", "expected"),
    [(True, "imagenet"), ("imagenet", "imagenet"), ("cifar10", "cifar10")],
)
def test_normalisations_have_names(normalize, expected):
    collator = VisionCollator(normalize)
    assert (collator.normalize, (collator.mean, collator.std)) == (
        True,
        NORMALIZATIONS.find(expected),
    )


def test_half_maps_white_to_one_and_grey_to_zero():
    collator = VisionCollator(mean=[0.5] * 3, std=[0.5] * 3)
    batch = collator([torch.ones(3, 4, 4), torch.full((3, 4, 4), 0.5)])["pixel_values"]
    assert torch.equal(batch[0], torch.ones(3, 4, 4))
    assert torch.equal(batch[1], torch.zeros(3, 4, 4))


@pytest.mark.parametrize("config", [None, {}])
def test_an_empty_preprocessing_config_leaves_the_defaults(config):
    spec = TaskSpec.vision_tiny()
    spec.preprocessing_config = config
    collator = VisionCollator(task_spec=spec)
    assert (collator.mean, collator.std) == IMAGENET


def test_the_tasks_preprocessing_config_wins():
    spec = TaskSpec.vision_tiny()
    spec.preprocessing_config = {"normalize": False, "mean": [0.1] * 3, "std": [0.2] * 3}
    collator = VisionCollator(True, [0.5] * 3, [0.5] * 3, spec)
    assert (collator.normalize, collator.mean, collator.std) == (False, (0.1,) * 3, (0.2,) * 3)


@pytest.mark.parametrize("image_name", ["pixel_values", "image", "img", "photo"])
@pytest.mark.parametrize("label_name", ["labels", "label"])
def test_images_and_labels_are_found_under_their_usual_names(image_name, label_name):
    spec = TaskSpec("mine", "vision_classification", input_fields=["photo"])
    samples = [{image_name: picture, label_name: i} for i, picture in enumerate(pictures(3))]
    batch = VisionCollator(task_spec=spec)(samples)
    assert sorted(batch) == ["labels", "pixel_values"]
    assert torch.equal(batch["labels"], torch.arange(3))


def test_a_hugging_face_dataset_of_pil_images_and_class_labels_works_straight_away():
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    images = [Image.fromarray(picture) for picture in pictures(4, 3, 32, 32)]
    dataset = datasets.Dataset.from_dict({"img": images, "label": [0, 1, 1, 0]}, features=features)
    batch = VisionCollator("cifar10", task_spec=TaskSpec.vision_tiny())(
        [dataset[i] for i in range(4)]
    )
    assert batch["pixel_values"].shape == (4, 3, 32, 32)
    assert batch["labels"].tolist() == [0, 1, 1, 0]


def test_a_presets_sizes_are_hints():
    samples = [{"pixel_values": torch.rand(3, 224, 224), "labels": i} for i in (0, 9)]
    batch = VisionCollator(task_spec=TaskSpec.vision_tiny())(samples)
    assert batch["pixel_values"].shape == (2, 3, 224, 224)
    assert batch["labels"].tolist() == [0, 9]


def test_where_the_shape_does_not_tell_the_channels_the_task_does():
    spec = TaskSpec("mine", "vision_classification", input_schema={"channels_first": False})
    five = torch.rand(6, 7, 5)
    assert VisionCollator(False, task_spec=spec)([five])["pixel_values"].shape == (1, 5, 6, 7)
    assert VisionCollator(False)([five])["pixel_values"].shape == (1, 6, 7, 5)
    assert VisionCollator(False)([five.numpy()])["pixel_values"].shape == (1, 5, 6, 7)


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA", "CMYK"])
def test_other_pil_modes_become_rgb_and_so_does_grey_beside_them(mode):
    colour = Image.fromarray(pictures(1)[0]).convert(mode)
    assert VisionCollator()([colour])["pixel_values"].shape == (1, 3, 5, 6)
    assert VisionCollator()([colour.convert("L"), colour])["pixel_values"].shape == (2, 3, 5, 6)
    assert VisionCollator()([colour.convert("1")])["pixel_values"].shape == (1, 1, 5, 6)


def test_labels_are_absent_where_samples_have_none():
    assert sorted(VisionCollator()([{"pixel_values": torch.rand(3, 4, 4)}])) == ["pixel_values"]


@pytest.mark.parametrize("vector", [[0, 1, 1], np.array([0, 1, 1]), torch.tensor([0.0, 1.0, 1.0])])
def test_multilabel_vectors_are_floats(vector):
    spec = TaskSpec("tags", "vision_multilabel")
    samples = [{"pixel_values": torch.rand(3, 4, 4), "labels": vector} for _ in range(2)]
    labels = VisionCollator(task_spec=spec)(samples)["labels"]
    assert torch.equal(labels, torch.tensor([[0.0, 1.0, 1.0]] * 2))


def test_vectors_without_a_task_keep_what_they_are():
    def labels(vector):
        return VisionCollator()([(torch.rand(3, 4, 4), vector)])["labels"]

    assert torch.equal(labels(torch.tensor([0.0, 1.0])), torch.tensor([[0.0, 1.0]]))
    assert torch.equal(labels([0, 1]), torch.tensor([[0, 1]]))
    assert labels(torch.tensor(3)).tolist() == [3]


def test_other_fields_are_batched_as_they_are():
    batch = VisionCollator()([{"img": torch.rand(3, 4, 4), "id": 5, "file": "a.png"}])
    assert (batch["id"].tolist(), batch["file"]) == ([5], ["a.png"])


def test_the_images_of_the_dataset_are_never_changed():
    image = torch.rand(3, 8, 8)
    before = image.clone()
    VisionCollator()([image, image])
    assert torch.equal(image, before)


def test_read_only_arrays_work():
    array = np.ones((3, 8, 8), np.float32)
    array.flags.writeable = False
    assert VisionCollator(False)([array])["pixel_values"].sum() == array.sum()


def test_a_collator_survives_pickling():
    collator = pickle.loads(
        pickle.dumps(VisionCollator("cifar10", task_spec=TaskSpec.vision_tiny()))
    )
    assert collator.mean == NORMALIZATIONS.find("cifar10")[0]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "empty batch"),
        ([torch.rand(3, 4, 4), torch.rand(3, 5, 5)], "Inconsistent pixel_values shapes: sample 1"),
        ([torch.rand(4, 6, 6)], r"Number of channels \(4\) doesn't match"),
        ([torch.rand(3, 4, 4), torch.rand(3, 4, 4).double()], "sample 1 .*float64"),
        ([torch.zeros(3, 4, 4, dtype=torch.int32)], "full scale is unknown"),
        ([torch.rand(2, 3, 4, 4)], "sample 0, 'pixel_values', has shape"),
        ([{"x": 1}], "no image"),
        ([{"img": "cat.png"}], "sample 0, 'pixel_values', is a str"),
        ([(torch.rand(3, 4, 4), None)], "sample 0, 'labels', is None"),
        ([(torch.rand(3, 4, 4), "cat")], "map the classes to integers"),
        (
            [{"img": torch.rand(3, 4, 4), "label": 1}, {"img": torch.rand(3, 4, 4)}],
            "sample 0 has the field 'label', sample 1 does not",
        ),
    ],
)
def test_samples_that_cannot_form_a_batch_are_refused(samples, message):
    with pytest.raises(ValueError, match=message):
        VisionCollator()(samples)


def test_multilabel_classes_that_are_no_vectors_are_refused():
    collator = VisionCollator(task_spec=TaskSpec("tags", "vision_multilabel"))
    with pytest.raises(ValueError, match="one 0 or 1 per class"):
        collator([(torch.rand(3, 4, 4), 1)])
    with pytest.raises(ValueError, match="sample 1, 'labels'"):
        collator([(torch.rand(3, 4, 4), [1]), (torch.rand(3, 4, 4), [1, 2])])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5)}, "mean and std must have same length"),
        ({"normalize": "cifar-10"}, "did you mean 'cifar10'"),
        ({"std": [0.5, 0, 0.5]}, "above 0"),
        ({"mean": []}, "one value per channel"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        VisionCollator(**options)
