"""torchrun with members that join, leave and are lost: every sample exactly once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import TCPStore

PROGRAM = Path(__file__).with_name("torchrun_program.py")
EPOCHS, LARGEST = 3, 4


class Cluster:
    """Agents of torchrun on this machine, each of which stands for one; the store is ours."""

    def __init__(self, folder, port):
        self.folder, self.port, self.names = folder, port, 0
        self.agents, self.gone = [], []

    def join(self):
        self.names += 1
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{LARGEST}"),
            *("--nproc-per-node=1", "--max-restarts=9", "--monitor-interval=0.2"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=run"),
            "--rdzv-conf=is_host=false,last_call_timeout=1",
            *("--local-addr=127.0.0.1", str(PROGRAM), str(self.folder)),
        ]
        with (self.folder / f"agent-{self.names}.log").open("w") as log:
            environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            environment["OMP_NUM_THREADS"] = "1"
            self.agents.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, start_new_session=True, env=environment
                )
            )

    def leave(self, rng):
        """A member ends, and its rank with it."""
        agent = self._remove(rng)
        agent.terminate()
        agent.wait(60)

    def lose(self, rng):
        """A machine is gone, with everything on it."""
        agent = self._remove(rng)
        for pid in [*children(agent.pid), agent.pid]:
            os.kill(pid, signal.SIGKILL)
        agent.wait(60)

    def kill(self, rng):
        """A rank is killed; its member stays."""
        workers = [pid for agent in self.agents for pid in children(agent.pid)]
        os.kill(rng.choice(workers), signal.SIGKILL)

    def _remove(self, rng):
        agent = self.agents.pop(rng.randrange(len(self.agents)))
        self.gone.append(agent)
        return agent

    def close(self):
        for agent in [*self.agents, *self.gone]:
            for pid in children(agent.pid) if agent.poll() is None else []:
                os.kill(pid, signal.SIGKILL)
            agent.kill()
            agent.wait()


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in found.read_text().split()] if found.exists() else []


def wait_until(done, cluster, seconds=150):
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < deadline, logs(cluster)
        assert any(agent.poll() is None for agent in cluster.agents), logs(cluster)
        time.sleep(0.05)
    return found


def logs(cluster):
    return "\n".join(file.read_text()[-1500:] for file in cluster.folder.glob("agent-*.log"))


def read(folder, number):
    """What the ranks of an attempt wrote: [[first line, steps...], ...]; None before all did."""
    files = sorted((folder / f"attempt-{number}").glob("rank-*.jsonl"))
    ranks = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    ranks = [rank for rank in ranks if rank]
    return ranks if ranks and len(ranks) == ranks[0][0][1] else None


def newest_at_gate(folder, settings, after):
    number = len(list(folder.glob("attempt-*"))) - 1
    ranks = read(folder, number) if number > after else None
    gate = settings["gates"][number % len(settings["gates"])]
    waits = ranks and all(len(rank) == gate + 1 for rank in ranks)
    return (number, len(ranks)) if waits else None


def run_schedule(folder, seed, events=(None,) * 4):
    """Ranks come and go, at random where an event is None; each sample must come once."""
    rng = random.Random(seed)
    settings = {
        "samples": 5 * rng.randrange(50, 70) + rng.choice([0, 4]),  # never fewer left than ranks
        "chunk": rng.choice([None, 7]),
        "every": rng.choice([1, 2, 3]),
        "epochs": EPOCHS,
        "gates": [rng.randrange(1, 7) for _ in range(7)],
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    cluster, happened, number = Cluster(folder, store.port), [], -1
    try:
        for _ in range(rng.randrange(1, 3)):
            cluster.join()
        for event in events:
            at_gate = partial(newest_at_gate, folder, settings, number)
            number, world = wait_until(at_gate, cluster)
            members = len(cluster.agents)
            choices = ["kill"] + ["join"] * (members < LARGEST) + ["leave", "lose"] * (members > 1)
            event = event or rng.choice(choices)
            happened.append((event, world))
            getattr(cluster, event)(*([] if event == "join" else [rng]))
            if event in ("leave", "lose"):  # who is left notices it in the next step
                (folder / f"go-on-{number}").touch()
            wait_until((folder / f"attempt-{number + 1}").exists, cluster)
        (folder / "go-on").touch()
        for agent in cluster.agents:
            agent.wait(150)
        assert [agent.returncode for agent in cluster.agents] == [0] * len(cluster.agents), logs(
            cluster
        )
    finally:
        cluster.close()
    check(folder, settings, most_lost=settings["every"])
    return happened


def check(folder, settings, most_lost):
    attempts = [read(folder, number) for number in range(len(list(folder.glob("attempt-*"))))]
    begins = [tuple(ranks[0][0][2:]) for ranks in attempts if ranks] + [(EPOCHS, 0)]
    seen = [Counter() for _ in range(EPOCHS)]
    for ranks, begin, until in zip([a for a in attempts if a], begins, begins[1:], strict=False):
        assert begin <= until
        for _, *steps in ranks:
            for epoch, position, ids in steps:
                if (epoch, position) <= until:
                    seen[epoch - (position == 0)].update(ids)
        lost = [step for step in ranks[0][1:] if tuple(step[:2]) > until]
        assert len(lost) <= most_lost  # at most the steps since the last checkpoint
    assert seen == [Counter(range(settings["samples"]))] * EPOCHS


def test_a_member_joins_and_one_is_lost(tmp_path):
    (_, before), (_, joined) = run_schedule(tmp_path, 0, ("join", "lose"))
    assert joined == before + 1


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(20))
def test_members_of_torchrun_come_and_go_and_every_sample_comes_once(tmp_path, seed):
    assert len(run_schedule(tmp_path, seed)) == 4
