"""Runs under `torchrun --max-restarts`, with ranks killed at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from tests.campaigns.kills import Watched, compare, draw_job, uninterrupted
from tests.campaigns.processes import HANG_SECONDS
from tests.campaigns.results import Outcome
from tests.campaigns.storages import Storages
from tests.campaigns.training import lines_of, train

RANKS, KILLS = 2, 2
ROOT = Path(__file__).parents[2]
SECONDS = 4 * HANG_SECONDS  # every start imports torch again


def kill_under_torchrun(storages: Storages, kind: str, storage: str, trial: str) -> Watched:
    """Kill a rank a random time after each start; torchrun starts all ranks again."""
    rng, room = random.Random(trial), Path(mkdtemp(dir=storages.folder))
    outcome = Outcome(kind, storage, f"{RANKS} (torchrun)", "SIGKILL", trial)
    job = replace(draw_job(kind, storage, rng), step_seconds=0.03)
    want, _ = uninterrupted(storages, replace(job, every=1), RANKS)
    with (room / "stderr").open("w") as output:
        run = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(RANKS), "--max-restarts", str(KILLS)),
                *("-m", "tests.campaigns.torchrun", str(storages.folder), str(room), trial),
            ],
            cwd=ROOT,
            stdout=output,
            stderr=output,
        )
        try:
            ends = time.monotonic() + SECONDS
            for start in range(KILLS):
                outcome.count += kill_rank(room, start, rng, run, ends)
            code = run.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            outcome.hangs += 1
            run.kill()
            code = run.wait()
    if code and not outcome.hangs:
        outcome.fail(f"torchrun ended with {code}: {(room / 'stderr').read_text()[-3000:]}")
    compare(outcome, room, want, ordered=True)
    return Watched(outcome).ended()


def kill_rank(
    room: Path, start: int, rng: random.Random, run: subprocess.Popen[bytes], ends: float
) -> bool:
    """SIGKILL a rank of a start, a random time after it wrote its first line."""
    diary = room / f"diary-{start}-{rng.randrange(RANKS)}"
    while not (diary.exists() and diary.read_text().endswith("\n")):
        if run.poll() is not None or time.monotonic() > ends:
            return False
        time.sleep(0.05)
    time.sleep(rng.uniform(0, 0.5))
    try:
        os.kill(lines_of(diary)[0]["pid"], signal.SIGKILL)
    except ProcessLookupError:  # it ended before
        return False
    return True


def main(folder: str, room: str, trial: str) -> None:
    """One rank, started by torchrun."""
    _, kind, storage, *_ = json.loads(trial)
    rng = random.Random(trial)
    job = replace(draw_job(kind, storage, rng), step_seconds=0.03)
    start, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
    train(Storages(Path(folder)), job, Path(room), start, rank, int(os.environ["WORLD_SIZE"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
