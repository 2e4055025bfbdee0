"""`penstock bench` and `penstock tune` measure, advise, and write settings."""

import json
import sys
from contextlib import chdir

import numpy as np
import pytest
import yaml
import zarr

from penstock import StreamLoader, open_source
from penstock.cli.measure import run_bench, run_tune, with_section
from penstock.cli.output import command_output
from penstock.errors import ConfigError
from penstock.tuning.bench import read_ceiling, tune_stream
from tests.cli.projects import new_project


@pytest.fixture
def recording(tmp_path):
    rows = np.random.default_rng(0).standard_normal((2000, 16)).astype(np.float32)
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("x", data=rows, chunks=(100, 16))
    return tmp_path / "x.zarr"


def bench(path, capsys, **options):
    options = {"batch_size": 64, "seconds": 0.2, "memory_budget": "1GB"} | options
    with command_output(debug=False):
        run_bench(str(path), **({"as_json": False} | options))
    return capsys.readouterr().out


def test_a_stream_is_compared_with_its_storage(recording, capsys):
    out = bench(recording, capsys)
    for said in ("2,000 samples of 64 B, 128 kB", "ceiling", "stream", "first batch", "advice: "):
        assert said in out
    found = json.loads(bench(recording, capsys, as_json=True))
    assert found["samples"] == 2000 and found["sample_bytes"] == 64
    assert found["ceiling"] > 0 and found["share"] == found["stream"] / found["ceiling"]


def test_the_advice_is_that_of_the_doctor(tmp_path, capsys):
    zarr.create_array(tmp_path / "x.zarr", data=np.zeros((50, 16)), chunks=(1, 16))
    assert "advice: every sample is a storage chunk of its own" in bench(
        tmp_path / "x.zarr", capsys
    )


def test_images_of_many_chunks_are_not_samples_of_one(tmp_path, capsys, monkeypatch):
    """As OME-Zarr has them; and the patches of a program are measured too."""
    image = np.random.default_rng(0).integers(0, 255, (4, 2, 128, 128), np.uint8)
    zarr.create_array(
        tmp_path / "image.zarr",
        data=image,
        chunks=(1, 1, 64, 64),
        dimension_names=["z", "c", "y", "x"],
    )
    assert "chunk of its own" not in bench(tmp_path / "image.zarr", capsys)
    (tmp_path / "cut_images.py").write_text(
        "from penstock import open_source\n"
        "def patches():\n"
        "    return open_source('image.zarr').patches({'y': 48, 'x': 48}, random=True)\n"
        "numbers = [1, 2, 3]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    out = bench("cut_images:patches", capsys)
    assert "16 samples of 4.61 kB" in out and "patches are parts of storage chunks" in out
    with pytest.raises(SystemExit):
        bench("cut_images:numbers", capsys)
    assert "cut_images:numbers is a list, not a source" in capsys.readouterr().err


def test_the_ceiling_counts_what_was_read(recording):
    rows, size = read_ceiling(open_source(recording), threads=2, seconds=0.0, block=100)
    assert rows == 200 and size == 200 * 64


def test_an_error_of_a_reading_thread_is_raised(recording):
    source = open_source(recording)
    for chunk in (recording / "x").glob("c/*/*"):
        chunk.write_bytes(b"damaged")
    with pytest.raises(OSError, match="x"):
        read_ceiling(source, threads=2, seconds=0.0, block=100)


def test_nothing_to_measure_is_refused(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros((0, 3)))
    with pytest.raises(SystemExit) as end:
        bench(tmp_path / "x.npy", capsys)
    assert end.value.code == 2 and "no samples" in capsys.readouterr().err


def test_the_settings_of_a_stream_are_tuned_within_a_budget(recording):
    said = []
    with StreamLoader(recording, 64, memory_budget="1MB", threads=2) as loader:
        options = {"seconds": 0.05, "report": said.append}
        best, figures = tune_stream(loader, most_bytes=2_000_000, **options)
        assert set(figures) == {"threads=1", "threads=2", "threads=4"}
        assert best["threads"] in (1, 2, 4) and len(said) == 6
        _, figures = tune_stream(loader, most_bytes=4_000_000, **options)
        assert "threads=1, memory_budget=4MB" in figures


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\n",
        "a: 1",
        "a: 1\nloader: {batch_size: 4, threads: 1}  # kept\n",
        "# kept\nloader:\n  batch_size: 4  # kept\n  threads: 1\na: 1\n",
        "loader:\n    threads: null\na: 1\n",
    ],
)
def test_keys_of_a_section_are_set_and_the_rest_stays(text):
    values = {"threads": 8, "executor": "threads", "memory_budget": "4GB"}
    changed = with_section(text, "loader", values)
    before = yaml.safe_load(text)
    expected = {**before, "loader": {**(before.get("loader") or {}), **values}}
    assert yaml.safe_load(changed) == expected
    assert changed.count("kept") == text.count("kept")
    assert with_section(changed, "loader", values) == changed


def test_a_section_that_is_no_mapping_is_refused():
    for text in ("loader: fast\n", "loader:\n"):
        with pytest.raises(ConfigError, match="'loader'"):
            with_section(text, "loader", {"threads": 1})


def test_a_configuration_is_tuned_and_written(tmp_path, capsys):
    project = new_project(tmp_path / "project")
    before = yaml.safe_load((project / "tiny.yaml").read_text())
    with chdir(project):
        options = {"seconds": 0.3}
        run_tune(project / "tiny.yaml", ["loader.num_workers=0"], write=False, **options)
        assert yaml.safe_load((project / "tiny.yaml").read_text()) == before
        run_tune(project / "tiny.yaml", [], write=True, **options)
    printed = capsys.readouterr()
    assert "samples/s" in printed.err and "written to" in printed.out
    found = yaml.safe_load((project / "tiny.yaml").read_text())
    assert found.pop("loader")["executor"] in ("inline", "threads", "processes")
    assert found == {name: each for name, each in before.items() if name != "loader"}
