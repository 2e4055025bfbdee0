"""The conformance kit: every trainer resumes exactly, and the kit notices one that does not."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import penstock.testing.conformance.__main__ as command
from penstock.errors import ConfigError
from penstock.testing.conformance import EVENTS, Launch
from penstock.testing.conformance.engines import ENGINES
from penstock.testing.conformance.launches import LOADERS, SCORED
from penstock.testing.conformance.script import Record, judge

FORKED = [name for name, engine in ENGINES.items() if engine.start is None]
EXACT = {"chunked": set(EVENTS), "stream": set(EVENTS), "replay": set(EVENTS[:7])}


def results(commands, folder, *arguments, program=command.__file__):
    file = folder / "results.json"
    done = commands.program(folder, program, *arguments, "--json", file)
    found = {row: found for row, (_, found) in json.loads(file.read_text()).items()}
    return done, found


def test_every_trainer_on_two_ranks_killed_and_resumed_on_other_numbers_of_ranks(
    commands, tmp_path
):
    options = ["--ranks", "2", "--loaders", "chunked", "--events", "mid-chunk", "other ranks"]
    done, found = results(commands, tmp_path, *FORKED, *options)
    assert done.code == 0, done.err[-3000:]
    assert set(found) == {f"{ENGINES[name].name}, chunked, 2" for name in FORKED}
    refused = found.pop(f"{ENGINES['huggingface-alone'].name}, chunked, 2")
    assert all(text.startswith("refused: cannot ") for text in refused.values())
    assert all(each == {"mid-chunk": "exact", "other ranks": "exact"} for each in found.values())
    assert "| accelerate | chunked | 2 | exact | exact |" in done.out


def test_the_table_in_the_docs_has_every_trainer_loader_rank_and_event_and_nothing_wrong():
    page = Path(__file__).parents[2] / "docs" / "trainers.md"
    before, after = command.around_table(page)
    text = page.read_text().removeprefix(before).removesuffix(after)
    rows = re.findall(r"^\| (.*) \|$", text, re.M)
    assert rows[0].split(" | ")[3:] == list(EVENTS)
    found = [row.split(" | ")[:3] for row in rows[2:]]
    ran = [(name, kind, int(rank)) for name, kind, ranks in found for rank in ranks.split(", ")]
    names = [(engine.name, loader) for engine in ENGINES.values() for loader in LOADERS]
    assert ran == [(name, loader, rank) for name, loader in names for rank in (1, 2, 3)]
    cells = [cell for row in rows[2:] for cell in row.split(" | ")[3:]]
    assert all(re.fullmatch(r"exact|refused \(\d+\)", cell) for cell in cells)


@pytest.mark.proof
@pytest.mark.parametrize("name", ENGINES)
def test_every_trainer_through_every_event(commands, tmp_path, name):
    done, found = results(commands, tmp_path, name)
    assert done.code == 0, done.err[-3000:]
    for row, events in found.items():
        loader = row.split(", ")[-2]
        exact = {event for event, text in events.items() if text == "exact"}
        if name == "huggingface-alone" or (name == "lightning-alone" and loader == "replay"):
            assert exact == {"uninterrupted"}
        elif name == "lightning-alone":
            assert exact == set(EVENTS) - {"accumulated", "end", "other batch"}
        elif name == "huggingface" and loader != "replay":  # counts steps
            assert exact == set(EVENTS) - {"other batch"}
        elif name in ("huggingface", "lightning") and loader == "replay":  # refused at start
            assert not exact
        else:
            assert exact == EXACT[loader]


def test_a_trainer_of_ones_own_that_loses_its_place_or_a_step_is_found(commands, tmp_path):
    page, program = tmp_path / "page.md", Path(__file__).with_name("forgetful.py")
    page.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    done, found = results(commands, tmp_path, "--write", page, program=program)
    assert done.code == 1
    found = {row.split(", ")[0]: events for row, events in found.items()}
    assert found["forgetful"]["uninterrupted"] == found["hasty"]["uninterrupted"] == "exact"
    assert found["forgetful"]["end"].startswith("wrong: batch 9 is ")
    assert found["hasty"]["end"].startswith("wrong: batch 9 is ")
    assert "validated samples [1, 1, 0, 0, 0, 0, 0]" in found["careless"]["end"]
    written = page.read_text()
    assert written.startswith(f"before\n{command.BEGIN}\n\n| trainer | loader | ranks |")
    assert written.endswith(f"{command.END}\nafter\n") and "old" not in written
    assert "| hasty | chunked | 1 | exact | wrong (2) |" in written
    assert re.search(r"6 results: 2 exact, 0 refused, 4 wrong\. Run on 20\d\d-\d\d-\d\d", written)


def test_the_trainer_of_the_guide_runs_as_the_guide_says(commands, tmp_path):
    guide = (
        (Path(__file__).parents[2] / "docs" / "testing.md").read_text().partition("own trainer")[2]
    )
    (code,) = re.findall(r"^```python\n(.*?)^```", guide, re.M | re.S)
    (shell,) = re.findall(r"^```sh\npython -m (penstock.*?)\n^```", guide, re.M | re.S)
    module, *arguments = shell.split()
    (tmp_path / "mine.py").write_text(code)
    program = tmp_path / "program.py"  # what `python -m` does, in a fork
    program.write_text(f"import runpy; runpy.run_module({module!r}, run_name='__main__')")
    few = ["--loaders", "chunked", "--events", "mid-chunk", "other ranks", "other batch"]
    done = commands.program(tmp_path, program, *arguments, *few)
    assert done.code == 0, done.err[-3000:]
    assert "| mine | chunked | 1, 2 | exact | exact | exact |" in done.out


def test_a_page_without_a_place_for_the_table_is_refused_before_the_run(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no table")
    with pytest.raises(ConfigError, match=r"page\.md has no place for the table: add two lines"):
        command.main(["plain", "--write", str(page)])


def test_results_of_the_same_code_are_kept(tmp_path, capsys, monkeypatch):
    file, exact, ran = tmp_path / "results.json", {"end": "exact"}, []
    monkeypatch.setattr(command, "check", lambda *row: ran.append(row[1:3]) or dict(exact))
    few = ["plain", "--loaders", "chunked", "--events", "end", "--json", str(file)]
    versions = command.versions_of([ENGINES["plain"]])
    file.write_text(json.dumps({"plain loop, chunked, 1": [versions, exact]}))
    assert command.main([*few, "--ranks", "1", "2"]) == 0
    assert ran == [("chunked", 2)]
    assert "| plain loop | chunked | 1, 2 | exact |" in capsys.readouterr().out
    file.write_text(json.dumps({"plain loop, chunked, 1": [["Penstock 0"], exact]}))
    assert command.main([*few, "--ranks", "1"]) == 0
    assert ran == [("chunked", 2), ("chunked", 1)]
    assert (
        "plain loop, chunked, 1 was run with Penstock 0 and is run again" in capsys.readouterr().err
    )


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


def test_a_launch_that_failed_shows_the_end_of_its_log(tmp_path):
    (tmp_path / "rank-0.log").write_text("")
    (tmp_path / "rank-1.log").write_text("word " * 100 + "\nValueError: no such file\n")
    task = Launch(tmp_path, "chunked", 2, 2)
    found = judge([Record.read(task)], range(100))
    assert found.startswith("wrong: launch 0 failed: word ")
    assert found.endswith("word ValueError: no such file") and len(found.split()) == 64
    (tmp_path / "rank-1.log").unlink()
    assert judge([Record.read(task)], range(100)) == "wrong: launch 0 failed: no log"


def test_the_table_joins_equal_rows_and_numbers_the_reasons():
    found = {("one", "chunked", world): {"end": "exact"} for world in (1, 2)}
    found |= {("two", "stream", 1): {"end": "refused: because"}}
    text = command.table(found, ["torch 2"])
    assert re.search(
        r"3 results: 2 exact, 1 refused, 0 wrong. Run on 20\d\d-\d\d-\d\d with torch 2", text
    )
    lines = text.splitlines()
    assert lines[2:6] == [
        "| one | chunked | 1, 2 | exact |",
        "| two | stream | 1 | refused (1) |",
        "",
        "1. because",
    ]
    with pytest.raises(ConfigError, match="no engine is called 'three': use plain, torchrun, dcp"):
        command.find_engine("three")
