"""A rank that fails ends the others, with its reason, whoever it is and wherever they are."""

import json
from pathlib import Path

import pytest

from penstock.distributed import RankError, together
from penstock.errors import WorkerError

PROGRAM = Path(__file__).with_name("failing_program.py")
REASON = "failed: NoMoreError: the 7th tap is dry"


@pytest.fixture(scope="module")
def ends(commands, tmp_path_factory):
    """Exit codes, what each rank raised, and what they said."""
    folder = tmp_path_factory.mktemp("failing")
    done = commands.program(folder, PROGRAM, folder)
    assert done.code == 0, done.err
    raised = {path.stem: json.loads(path.read_text()) for path in folder.glob("*-*.json")}
    return json.loads((folder / "codes.json").read_text()), raised, done.err


@pytest.mark.parametrize(("name", "failing"), [("raises", 1), ("keeper", 0), ("early", 2)])
def test_the_others_raise_the_reason_of_the_rank_that_failed(ends, name, failing):
    codes, raised, _ = ends
    assert codes[name] == [3, 3, 3]
    for rank in range(3):
        kind, message, seconds = raised[f"{name}-{rank}"]
        own = ["NoMoreError", "the 7th tap\nis dry"]
        assert [kind, message] == (own if rank == failing else ["RankError", message])
        assert rank == failing or message == f"rank {failing} {REASON}"
        assert seconds < 10


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", ["block", "sample"])
def test_data_that_one_rank_cannot_read_ends_all_of_them_with_its_reason(ends, name, world):
    codes, raised, _ = ends
    assert codes[f"{name}-{world}"] == [3] * world
    found = [raised[f"{name}-{world}-{rank}"][:2] for rank in range(world)]
    (failing,) = [rank for rank in range(world) if found[rank][0] == "SourceError"]
    assert "sample 40 is damaged" in found[failing][1]
    others = [each for rank, each in enumerate(found) if rank != failing]
    reason = f"rank {failing} failed: SourceError: {' '.join(found[failing][1].split())}"
    assert others == [["RankError", reason]] * (world - 1)


def test_a_killed_rank_has_no_reason_but_nobody_waits_for_it(ends):
    codes, raised, _ = ends
    assert codes["killed"] == [3, 3, -9]
    messages = [raised[f"killed-{rank}"][1] for rank in (0, 1)]
    assert all("onnection" in message and "by peer" in message for message in messages), messages
    assert sorted(raised[f"killed-{rank}"][0] for rank in (0, 1)) == ["RankError", "RuntimeError"]


def test_who_cannot_come_out_is_ended_and_says_why(ends):
    codes, raised, said = ends
    assert codes["stuck"] == [1, 3, 1]
    assert set(raised) & {"stuck-0", "stuck-1", "stuck-2"} == {"stuck-1"}
    for rank in (0, 2):
        assert f"penstock: rank {rank} exits: rank 1 {REASON}" in said


def test_where_nobody_fails_all_leave_together(ends):
    assert ends[0]["well"] == [0, 0, 0]


def test_one_process_keeps_its_own_error():
    assert issubclass(RankError, WorkerError)
    with pytest.raises(ZeroDivisionError), together():
        _ = 1 / 0
