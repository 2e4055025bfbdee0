"""A folder of spectrograms and its table, as users have them."""

import csv
import pickle
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from penstock import ChunkedDataLoader
from penstock.datasets import AugmentedDataset, StandardizedDataset, compute_standardization
from penstock.domains.spectrograms import SpectrogramFolder, read_pixel_table
from penstock.errors import SourceError
from penstock.testing import same_batch
from penstock.tuning.cost import measure_cost

IMAGES = np.random.default_rng(1).random((6, 12, 17)).astype(np.float32)
BYTES = (IMAGES * 255).astype(np.uint8)


def write_table(path, columns, rows):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(rows)


@pytest.fixture
def folder(tmp_path):
    rows = []
    for i in range(6):
        name = f"{i}.png" if i % 2 else f"{i}.npy"
        if i % 2:
            Image.fromarray(BYTES[i]).save(tmp_path / name)
        else:
            np.save(tmp_path / name, IMAGES[i])
        rows.append([name, i % 3, f"author {i // 2}", f"rec {i // 3}.ogg", 0])
    columns = ["filename", "class_id", "author", "original_audio", "segment_index"]
    write_table(tmp_path / "final.csv", columns, rows)
    return tmp_path


def test_a_sample_is_a_spectrogram_and_its_class(folder):
    dataset = SpectrogramFolder(folder)
    assert (len(dataset), dataset.shape, dataset.num_classes) == (6, (12, 17), 3)
    for i, (x, y) in enumerate(dataset[i] for i in range(6)):
        expected = BYTES[i].astype(np.float32) / 255 if i % 2 else IMAGES[i]
        assert (x.dtype, x.shape, y.dtype, y.shape) == (torch.float32, (1, 12, 17), torch.int64, ())
        assert torch.equal(x[0], torch.from_numpy(expected))
        assert y == i % 3


def test_the_table_tells_authors_and_recordings(folder):
    dataset = SpectrogramFolder(folder, folder / "final.csv")
    assert dataset.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert dataset.authors.tolist() == [f"author {i // 2}" for i in range(6)]
    assert dataset.recordings.tolist() == [f"rec {i // 3}.ogg" for i in range(6)]


def test_a_batch_equals_its_samples_with_and_without_workers(folder):
    dataset = pickle.loads(pickle.dumps(SpectrogramFolder(folder)))
    expected = list(DataLoader(dataset, 4))
    assert same_batch(list(ChunkedDataLoader(dataset, 4)), expected)
    with ChunkedDataLoader(dataset, 4, num_workers=2) as loader:
        assert same_batch(list(loader), expected)


@pytest.mark.parametrize(
    "other",
    [
        lambda image: image,
        lambda image: image[None],
        lambda image: image.astype(np.float64),
        lambda image: image.astype(">f4"),
        lambda image: np.asfortranarray(image),
        lambda image: (image * 255).astype(np.uint8),
    ],
)
@pytest.mark.parametrize("place", [0, 3])
def test_files_that_begin_alike_or_not_make_the_same_batches_as_one_by_one(tmp_path, other, place):
    for i in range(6):
        np.save(tmp_path / f"{i}.npy", other(IMAGES[i]) if i == place else IMAGES[i])
    rows = [[f"{i}.npy", i % 3, "a"] for i in range(6)]
    write_table(tmp_path / "metadata.csv", ["filename", "class_id", "author"], rows)
    dataset = SpectrogramFolder(tmp_path)
    samples = [dataset[i] for i in (5, 3, 0, 3)]
    images, labels = dataset.__getbatch__(np.array([5, 3, 0, 3]))
    assert torch.equal(images, torch.stack([x for x, _ in samples]))
    assert torch.equal(labels, torch.stack([y for _, y in samples]))


class Louder(SpectrogramFolder):
    """Samples of its own, as somebody may want them."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return 10 * x, y


def test_a_subclass_with_samples_of_its_own_is_read_by_them(folder):
    plain, louder = SpectrogramFolder(folder), Louder(folder)
    for expected, (x, _) in zip(
        ChunkedDataLoader(plain, 4), ChunkedDataLoader(louder, 4), strict=True
    ):
        assert torch.equal(x, 10 * expected[0])


def test_what_files_cost_is_measured_though_they_are_gathered(folder, monkeypatch):
    dataset = SpectrogramFolder(folder)
    assert not measure_cost(dataset).is_costly

    def late(self, indices):
        for _ in indices:
            threading.Event().wait(0.01)
        return []

    monkeypatch.setattr(SpectrogramFolder, "__getbatch__", late)
    cost = measure_cost(dataset)
    assert cost.is_costly and cost.waits and not cost.is_cheap


def test_a_whole_chain_runs_over_files(folder):
    base = SpectrogramFolder(folder)
    mean, std = compute_standardization(base, range(4))
    assert mean == pytest.approx(0.5, abs=0.05)
    chain = StandardizedDataset(AugmentedDataset(base, {"time_mask_param": 4}), range(4), mean, std)
    x, y = next(iter(ChunkedDataLoader(chain, 4)))
    assert x.shape == (4, 1, 12, 17) and y.tolist() == [0, 1, 2, 0]


def test_another_table_or_file_has_another_fingerprint(folder):
    before = SpectrogramFolder(folder).fingerprint()
    assert SpectrogramFolder(folder).fingerprint() == before
    np.save(folder / "0.npy", IMAGES[0] + 1)
    changed = SpectrogramFolder(folder).fingerprint()
    rows = [[f"{i}.npy", 1, "a"] for i in (0, 2, 4)]
    write_table(folder / "metadata.csv", ["filename", "class_id", "author"], rows)
    assert len({before, changed, SpectrogramFolder(folder).fingerprint()}) == 3


def test_pixels_of_a_table_lie_as_those_of_an_image(tmp_path):
    columns = ["label", "author", *(f"pixel_{i}" for i in range(12 * 17))]
    rows = [[i % 3, f"a{i}", *BYTES[i].flatten()] for i in range(6)]
    write_table(tmp_path / "training.csv", columns, rows)
    table = read_pixel_table(tmp_path / "training.csv", shape=(12, 17))
    assert table.features.shape == (6, 1, 12, 17)  # bins, then frames: as everywhere
    assert (table.features[:, 0] == BYTES.astype(np.float32) / 255).all()
    assert table.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert table.authors.tolist() == [f"a{i}" for i in range(6)]


# -- refusals


def test_a_table_of_pixels_of_another_shape_is_refused(tmp_path):
    write_table(tmp_path / "training.csv", ["label", "author", "p0", "p1"], [[0, "a", 1, 2]])
    with pytest.raises(
        SourceError, match=r"has 2 pixels per row, a spectrogram of 224 x 313 has 70,112"
    ):
        read_pixel_table(tmp_path / "training.csv")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["../secret.npy", 0, "a"], "line 2: '../secret.npy' is not a .npy or .png file in the"),
        (["/etc/passwd", 0, "a"], "'/etc/passwd' is not a"),
        (["0.pkl", 0, "a"], "'0.pkl' is not a .npy or .png"),
        (["9.npy", 0, "a"], "line 2: there is no file '9.npy'"),
        (["0.npy", "owl", "a"], "line 2: 'owl' is not a class"),
        (["0.npy", -1, "a"], "'-1' is not a class"),
        (["0.npy", 1.5, "a"], "'1.5' is not a class"),
    ],
)
def test_rows_that_cannot_be_are_refused_by_line(folder, row, message):
    write_table(folder / "metadata.csv", ["filename", "class_id", "author"], [row])
    with pytest.raises(SourceError, match=message):
        SpectrogramFolder(folder)


def test_a_missing_column_is_named(folder):
    write_table(folder / "metadata.csv", ["filename", "class_id"], [["0.npy", 1]])
    with pytest.raises(SourceError, match="has no column 'author'"):
        SpectrogramFolder(folder)


def test_a_folder_without_a_table_or_with_two_is_refused(folder):
    write_table(folder / "other.csv", ["filename"], [])
    with pytest.raises(SourceError, match=r"has 2 \.csv files: rename one to metadata.csv"):
        SpectrogramFolder(folder)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: np.save(p, IMAGES[0][:5]), r"'2.npy' has shape \(5, 17\), the others have"),
        (lambda p: np.save(p, IMAGES), "is not .bins, frames.: it has shape"),
        (
            lambda p: np.save(p, np.array([{}]), allow_pickle=True),
            "cannot be read as a spectrogram",
        ),
        (lambda p: np.save(p, np.ones((12, 17), int)), "values are int64, not float or 8-bit"),
        (lambda p: p.write_bytes(b""), "'2.npy' cannot be read"),
    ],
)
def test_a_file_that_is_no_spectrogram_is_named(folder, write, message):
    dataset = SpectrogramFolder(folder)
    write(folder / "2.npy")
    with pytest.raises(SourceError, match=message):
        dataset[2]
    with pytest.raises(SourceError, match=message):
        dataset.__getbatch__(np.array([0, 2]))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "'2.npy' cannot be read"),
        (lambda p: p.unlink(), "'2.npy' cannot be read"),
    ],
)
def test_a_file_that_is_cut_or_gone_is_named(folder, spoil, message):
    dataset = SpectrogramFolder(folder)
    spoil(folder / "2.npy")
    with pytest.raises(SourceError, match=message):
        dataset.__getbatch__(np.array([0, 2]))


def test_a_coloured_png_is_refused(folder):
    dataset = SpectrogramFolder(folder)
    Image.new("RGB", (17, 12)).save(folder / "1.png")
    with pytest.raises(SourceError, match="its mode is 'RGB', not 'L'"):
        dataset[1]
