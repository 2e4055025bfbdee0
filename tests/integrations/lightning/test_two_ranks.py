"""Stock loaders, replaced on two ranks: every sample once a pass, the same chunks on both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("ranks_program.py")


def test_two_ranks_share_the_chunks_of_replaced_loaders(tmp_path):
    results = tmp_path / "results.json"
    home = str(PROGRAM.parents[3])  # so that both ranks find the modules of the tests
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": home}
    command = [sys.executable, str(PROGRAM), str(results)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = json.loads(results.read_text())
    lengths = [[len(chunk) for chunk in rank["chunks"]] for rank in ranks]
    assert lengths == [[3, 3, 3, 3]] * 2  # 22 samples are 6 steps of 2 * 2
    one_pass = [x for rank in ranks for chunk in rank["chunks"][:2] for b in chunk for x in b]
    assert sorted(one_pass) == [*range(22)]
    scored = [sorted(ranks[0]["scored"][k] + ranks[1]["scored"][k]) for k in range(4)]
    assert scored == [scored[0]] * 4 and len(set(scored[0])) == 4
    assert [rank["sizes"] for rank in ranks] == [[3, 1]] * 2
    assert [rank["samples"] for rank in ranks] == [44, 44]
