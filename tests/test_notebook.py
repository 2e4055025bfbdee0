"""The notebook runs from top to bottom, and answers its four questions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "DataLoaderBenchmarking.ipynb"
QUESTIONS = ("gain", "deliver the same", "busy is the device", "an epoch take")
AFTERWARDS = """
import json, multiprocessing
assert multiprocessing.active_children() == []
print("ANSWERS " + json.dumps([results, same, busy, seconds, share, tuned.batch_size]))
"""


def cells(kind):
    notebook = json.loads(NOTEBOOK.read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_the_four_questions_are_asked():
    text = "\n".join(cells("markdown"))
    for number, question in enumerate(QUESTIONS, 1):
        assert any(
            line.startswith(f"## {number}. ") and question in line for line in text.splitlines()
        )


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What the cells, run one after the other as one program, have found."""
    folder = tmp_path_factory.mktemp("notebook")
    program = folder / "notebook.py"
    fork = "import multiprocessing; multiprocessing.set_start_method('fork')"  # it has no guard
    program.write_text("\n\n".join([fork, *cells("code"), AFTERWARDS]))
    run = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", program],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("ANSWERS ")]
    return json.loads(line.removeprefix("ANSWERS "))


def test_every_question_is_answered(answers):
    results, same, busy, seconds, share, batch_size = answers
    assert [each["num_samples"] > 0 for each in results.values()] == [True] * 4
    assert same == {"1": True, "2": True, "4": True, "8": True}
    assert set(busy) == {"torch's defaults", "tuned"} and all(0 < b <= 1 for b in busy.values())
    assert len(seconds) == 4
    assert 0.3 < share < 1  # with torch's defaults, loading is most of the time
    assert batch_size == 12


def test_the_tuned_loader_saves_time_where_loading_is_the_bottleneck(answers):
    _, _, busy, seconds, _, _ = answers
    assert seconds["tuned"] < seconds["torch's defaults"]
    assert busy["tuned"] > busy["torch's defaults"]
