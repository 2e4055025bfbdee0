"""Stock loaders, replaced on two ranks: every sample once a pass, the same chunks on both."""

from __future__ import annotations

import json
from pathlib import Path

PROGRAM = Path(__file__).with_name("ranks_program.py")


def test_two_ranks_share_the_chunks_of_replaced_loaders(commands, tmp_path):
    results = tmp_path / "results.json"
    done = commands.ranks(2, tmp_path, PROGRAM, results)
    assert done.code == 0, done.err[-3000:]
    ranks = json.loads(results.read_text())
    lengths = [[len(chunk) for chunk in rank["chunks"]] for rank in ranks]
    assert lengths == [[3, 3, 3, 3]] * 2  # 22 samples are 6 steps of 2 * 2
    one_pass = [x for rank in ranks for chunk in rank["chunks"][:2] for b in chunk for x in b]
    assert sorted(one_pass) == [*range(22)]
    scored = [sorted(ranks[0]["scored"][k] + ranks[1]["scored"][k]) for k in range(4)]
    assert scored == [scored[0]] * 4 and len(set(scored[0])) == 4
    assert [rank["sizes"] for rank in ranks] == [[3, 1]] * 2
    assert [rank["samples"] for rank in ranks] == [44, 44]
