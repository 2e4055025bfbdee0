"""The conformance kit: every trainer resumes exactly, and the kit notices one that does not."""

import json
from collections import Counter
from pathlib import Path

import pytest

import penstock.testing.conformance.__main__ as command
from penstock.errors import ConfigError
from penstock.testing.conformance import EVENTS, Launch
from penstock.testing.conformance.engines import ENGINES
from penstock.testing.conformance.launches import SCORED
from penstock.testing.conformance.script import Record, judge

FORKED = [name for name, engine in ENGINES.items() if engine.start is None]
EXACT = {"chunked": set(EVENTS), "stream": set(EVENTS), "replay": set(EVENTS[:7])}


def results(commands, folder, *arguments, program=command.__file__):
    file = folder / "results.json"
    done = commands.program(folder, program, *arguments, "--json", file)
    found = {tuple(key): found for *key, found in json.loads(file.read_text())}
    return done, found


def test_every_trainer_on_two_ranks_killed_and_resumed_on_other_numbers_of_ranks(
    commands, tmp_path
):
    options = ["--ranks", "2", "--loaders", "chunked", "--events", "mid-chunk", "other ranks"]
    done, found = results(commands, tmp_path, *FORKED, *options)
    assert done.code == 0, done.err[-3000:]
    assert set(found) == {(ENGINES[name].name, "chunked", 2) for name in FORKED}
    assert all(each == {"mid-chunk": "exact", "other ranks": "exact"} for each in found.values())
    assert "| accelerate | chunked | 2 | exact | exact |" in done.out


@pytest.mark.proof
@pytest.mark.parametrize("name", ENGINES)
def test_every_trainer_through_every_event(commands, tmp_path, name):
    loaders = ["chunked", "stream"] if name == "ray" else EXACT
    done, found = results(commands, tmp_path, name, "--loaders", *loaders)
    assert done.code == 0, done.err[-3000:]
    for (_, loader, _), events in found.items():
        exact = {event for event, text in events.items() if text == "exact"}
        if name == "huggingface" and loader != "replay":  # counts steps
            assert exact == set(EVENTS) - {"other batch"}
        elif name in ("huggingface", "lightning") and loader == "replay":  # refused at start
            assert not exact
        else:
            assert exact == EXACT[loader]


def test_a_trainer_of_ones_own_that_loses_its_place_is_found(commands, tmp_path):
    done, found = results(commands, tmp_path, program=Path(__file__).with_name("forgetful.py"))
    assert done.code == 1
    assert found["forgetful", "chunked", 1]["uninterrupted"] == "exact"
    assert found["forgetful", "chunked", 1]["end"].startswith("wrong: batch 9 is ")
    assert "validated samples [1, 1, 0, 0, 0, 0, 0]" in found["careless", "chunked", 1]["end"]


# -- what is compared

NONE = Counter()
FIRST = Launch(Path(), "chunked", 2, 2, until=3, killed_at=3)
SECOND = Launch(Path(), "chunked", 2, 2, until=4, first=2)


def records(*steps, **changes):
    first = {"failed": True, "steps": [[0, 1, 2, 3], [5, 4, 6, 7], [8, 9, 10, 11]]}
    before = Record(FIRST, **{"scores": NONE, "refusal": None} | first | changes)
    return [before, Record(SECOND, False, list(steps), NONE, None)]


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (records([8, 9, 10, 11], [12, 13]), "exact"),
        (records([8, 9, 10, 11], [13, 14]), "wrong: batch 4 is [13, 14], expected [12, 13]"),
        (records([8, 9, 10, 11]), "wrong: launch 1 trained 1 batches of 2"),
        (records([12, 13], [14]), "wrong: batch 3 is [12, 13], expected [8, 9]"),
        (records([8], [9], failed=False), "wrong: launch 0 survived"),
        (records([8], [9], refusal="no"), "refused: no"),
        (records([8], [9], scores=Counter(SCORED[1:])), "wrong: launch 0 validated samples"),
    ],
)
def test_a_result_says_what_is_wrong(found, sentence):
    assert judge(found, range(100)).startswith(sentence)


def test_the_table_joins_equal_rows_and_numbers_the_reasons():
    found = {("one", "chunked", world): {"end": "exact"} for world in (1, 2)}
    found |= {("two", "stream", 1): {"end": "refused: because"}}
    lines = command.table(found, ["torch 2"]).splitlines()
    assert lines[2:6] == [
        "| one | chunked | 1, 2 | exact |",
        "| two | stream | 1 | refused (1) |",
        "",
        "1. because",
    ]
    with pytest.raises(ConfigError, match="no engine is called 'three': use plain, torchrun, dcp"):
        command.find_engine("three")
