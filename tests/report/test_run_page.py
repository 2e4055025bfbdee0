"""The page of a run: what is written is read back, and no text of a user becomes markup."""

import itertools
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from penstock import ChunkedDataLoader
from penstock.cli.commands import app
from penstock.errors import ConfigError, StateError
from penstock.metrics import STAGES, Recorder, Span, verdict_of
from penstock.report import Run, Session, page_of, run_page, write_report
from penstock.report.run_files import append_chunk, next_session, thinned, without_credentials
from tests import browser

ATTACK = "</script><script>alert(1)</script>"
COVERAGE = {
    "size": 100,
    "samples": 100,
    "chunk": 10,
    "share": 0.6,
    "epochs": [{"epoch": 0, "seen": [[0, 60]], "skipped": [[20, 30]]}],
    "parts": [0.5, 0.7],
    "members": [{"samples": 100, "seen": 1.0, "asked": 1.0}],
}


def recorded(rank=0, world=1, events=40, settings=None, who="thread <b>0</b>"):
    """Return a snapshot of so many reads, and of batches that were waited for."""
    recorder = Recorder()
    with recorder.work(""):
        recorder.request()
        recorder.receive(4)
    begin = time.perf_counter()
    for event in range(events):
        stage = STAGES[event % 7]
        recorder.arrivals.append(Span(stage, begin + event * 1e-3, 8e-4, 8e-4, who, (0, 4)))
        if event % 50_000 == 49_999:
            recorder.request()
            recorder.receive(4)
    recorder.note_memory(123_000_000)
    return recorder.snapshot(rank=rank, world=world, settings=settings)


def write_run(folder, *, ranks=2, sessions=1, state="done", config="seed: 1\n", **changes):
    """Write a run of several ranks and sessions; return its directory."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(config)
    for number in range(sessions):
        for rank in range(ranks):
            chunk = {"chunk": number, "step": 10, "loss": 0.5, "epoch": 0, "position": 40}
            made = Session(
                number,
                state,
                recorded(rank, ranks),
                chunks=[chunk | {"scores": {"val/loss": 0.25, "acc": None}}],
                coverage=COVERAGE if rank == 0 else None,
                environment={"penstock": "1", "torch": "2", "numpy": "2", "python": "3"},
            )
            replace(made, **changes).write(folder)
    return folder


class Elements(HTMLParser):
    """The elements of a page, and the JSON in it."""

    def __init__(self, text):
        super().__init__()
        self.found, self.data = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.found and self.found[-1][1].get("id") == "data":
            self.data += data


def figures_in(text):
    return json.loads(Elements(text).data)


@pytest.mark.steady
def test_sessions_of_two_ranks_are_read_back(tmp_path):
    run_dir = write_run(tmp_path / "run", sessions=2)
    run = Run.read(run_dir)
    found = [(each.number, each.snapshot.rank) for each in run.sessions]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert next_session(run_dir, 0) == next_session(run_dir, 1) == 2
    assert next_session(run_dir, 2) == 0
    merged = run.snapshot()
    assert merged.samples == 4 * 4 and [rank["rank"] for rank in merged.of_ranks()] == [0, 1]
    assert merged.of("read").count == sum(each.snapshot.of("read").count for each in run.sessions)
    reads = sum(count for count, _ in merged.workers.values())
    assert len(merged.workers) == 2 and reads == merged.of("read").count
    assert run.last.coverage == COVERAGE and run.last.state == "done"


@pytest.mark.steady
def test_the_page_has_verdict_stages_coverage_and_chunks(tmp_path):
    run_dir = write_run(tmp_path / "run", sessions=2)
    lines = write_report(run_dir)
    figures = figures_in((run_dir / "report.html").read_text())
    assert figures["verdict"] == str(verdict_of(Run.read(run_dir).snapshot()))
    assert lines.startswith(figures["verdict"]) and "report.html" in lines
    assert [stage["stage"] for stage in figures["stages"]][:7] == list(STAGES[:7])
    assert figures["coverage"] == COVERAGE and ["dataset seen", "60.0%"] in figures["cards"]
    assert [chunk["session"] for chunk in figures["chunks"]] == [0, 1]
    assert figures["state"] == "finished" and ["ranks", "2"] in figures["cards"]
    assert any("torchrun --nproc-per-node 2" in line for line in figures["reproduce"])


@pytest.mark.steady
def test_no_text_of_a_user_becomes_markup(tmp_path):
    run_dir = write_run(
        tmp_path / "run <img src=x onerror=alert(1)>",
        config=f"name: {ATTACK}\nother: __DATA__ <!-- \u2028\n",
        chunks=[{"chunk": 0, "step": 1, "loss": 1.0, "scores": {ATTACK: 1.0}}],
        environment={"python": ATTACK},
        state=ATTACK,
    )
    text = page_of(Run.read(run_dir))
    plain = page_of(Run.read(write_run(tmp_path / "plain")))
    tags = [tag for tag, _ in Elements(text).found]
    assert tags == [tag for tag, _ in Elements(plain).found]
    assert "alert(1)</script>" not in text and "<img" not in text and "<b>" not in text
    figures = figures_in(text)
    assert ATTACK in figures["config"] and figures["environment"] == {"python": ATTACK}
    script = text.rpartition("<script>")[2]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script)
    assert not re.search(r"(src|href)\s*=|@import|url\(|fetch\(", text.replace("img src=x", ""))


@pytest.mark.parametrize(
    "line",
    [
        "password: hunter2",
        "  aws_secret_access_key: 'hunter2'",
        "- token: hunter2",
        "storage: {name: a, api_key: 'x,hunter2', size: 3}",
        "secret: |\n  hunter2\n  hunter2\nrest: 1",
        "credentials:\n  user: hunter2\n  pass: hunter2\nrest: 1",
        "access_tokens:\n- hunter2\n- hunter2\nrest: 1",
        "url: https://me:p@hunter2@host/data",
        "url: https://host/data?X-Amz-Signature=hunter2&part=1",
        "account_key: >-\n  hunter2",
    ],
)
def test_credentials_become_stars(line):
    found = without_credentials(f"first: 1\n{line}\n")
    assert "hunter2" not in found and "***" in found and found.startswith("first: 1\n")
    assert ("rest: 1" in line) == ("rest: 1" in found) and ("size: 3" in line) == (
        "size: 3" in found
    )


def test_what_is_no_credential_stays():
    text = "tokenizer:\n  name: gpt2\nmax_tokens: 2048\npath: s3://bucket/tokens.bin\nkey: x\n"
    assert without_credentials(text) == text


@pytest.mark.steady
def test_a_trace_has_a_process_a_rank_and_exact_moments(tmp_path):
    run_dir = write_run(tmp_path / "run")
    trace = tmp_path / "trace.json"
    assert "perfetto" in write_report(run_dir, tmp_path / "page.html", trace)
    events = json.loads(trace.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {span["name"] for span in spans} == {*STAGES[:7], "wait"}
    assert {span["pid"] for span in spans} == {0, 1}
    assert all(span["dur"] >= 0 and span["ts"] >= 0 for span in spans)
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"rank 0", "rank 1", "thread <b>0</b>", run_page.CALLER}


@pytest.mark.steady
def test_moments_late_in_a_long_run_keep_their_microseconds(tmp_path):
    snapshot = recorded()
    span = ["read", 98765.432101, 0.000123, "", 0]
    write_run(tmp_path / "run", ranks=1, snapshot=replace(snapshot, spans=[span]))
    assert Run.read(tmp_path / "run").last.snapshot.spans == [span]


def test_a_run_in_progress_and_one_that_was_killed(tmp_path, monkeypatch):
    run_dir = write_run(tmp_path / "run", ranks=1, state="running")
    assert figures_in(page_of(Run.read(run_dir)))["state"] == "in progress"
    later = time.time() + 600
    monkeypatch.setattr(run_page.time, "time", lambda: later)
    assert figures_in(page_of(Run.read(run_dir)))["state"].startswith("no update for 10 min")


@pytest.mark.steady
def test_chunks_since_the_last_write_are_read_once_without_a_line_that_was_cut(tmp_path):
    run_dir = write_run(tmp_path / "run", ranks=1, state="running")
    for number in range(3):  # 0 is in the file of the session already
        append_chunk(run_dir, 0, 0, {"chunk": number, "step": number, "loss": float("nan")})
    later = run_dir / "metrics/session-0-rank-0.chunks"
    with later.open("a") as file:
        file.write('{"chunk": 3, "st')
    chunks = figures_in(page_of(Run.read(run_dir)))["chunks"]
    assert [(each["chunk"], each["loss"]) for each in chunks] == [(0, 0.5), (1, None), (2, None)]
    later.write_text("[]\n")
    with pytest.raises(StateError, match="move it away"):
        Run.read(run_dir)
    write_run(run_dir, ranks=1)
    assert not later.exists()


@pytest.mark.steady
def test_a_run_without_batches_or_figures_has_a_page(tmp_path):
    empty = Recorder().snapshot()
    run_dir = write_run(
        tmp_path / "run", ranks=1, snapshot=empty, chunks=[], coverage=None, environment={}
    )
    figures = figures_in(page_of(Run.read(run_dir)))
    assert figures["verdict"].startswith("unknown") and figures["coverage"] is None


@pytest.mark.steady
def test_values_that_json_has_no_name_for_are_left_out(tmp_path):
    chunk = {"chunk": 0, "step": 1, "loss": float("nan"), "scores": {"a": float("-inf")}}
    run_dir = write_run(tmp_path / "run", ranks=1, chunks=[chunk])
    (found,) = figures_in(page_of(Run.read(run_dir)))["chunks"]
    assert found["loss"] is None and found["scores"] == {"a": None}


@pytest.mark.steady
def test_what_is_no_run_is_refused_with_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="not a directory"):
        Run.read(tmp_path / "none")
    with pytest.raises(ConfigError, match="has no measurements in metrics/"):
        Run.read(tmp_path)
    run_dir = write_run(tmp_path / "run", ranks=1)
    with pytest.raises(ConfigError, match="there is no directory"):
        write_report(run_dir, tmp_path / "none" / "page.html")
    (run_dir / "metrics/notes.json").write_text("not ours: ignored")
    assert len(Run.read(run_dir).sessions) == 1


def damages(plain):
    snapshot = plain["snapshot"]
    yield from ("", "[]", "null", "[" * 100_000, json.dumps(plain)[:-9], '{"format": 1}')
    yield json.dumps({**plain, "format": 2})
    for name in ("number", "state", "snapshot", "chunks", "coverage", "environment", "written"):
        yield json.dumps({**plain, name: 0.5 if name != "written" else "x"})
    for name in ("spans", "slots", "stages", "stalls", "workers", "settings", "ranks", "first"):
        yield json.dumps({**plain, "snapshot": {**snapshot, name: "x"}})
    yield json.dumps({**plain, "snapshot": {**snapshot, "spans": [["none", 0, 1, "", 0]]}})
    yield json.dumps({**plain, "snapshot": {**snapshot, "slots": [[1.0]]}})
    yield json.dumps({**plain, "snapshot": {**snapshot, "workers": {"a": 1}}})
    yield json.dumps({**plain, "coverage": {**COVERAGE, "epochs": [{"epoch": 0}]}})
    yield json.dumps({**plain, "chunks": [{"loss": float("nan")}]})


@pytest.mark.steady
def test_a_damaged_file_is_refused_by_name(tmp_path):
    run_dir = write_run(tmp_path / "run", ranks=1)
    path = run_dir / "metrics/session-0-rank-0.json"
    for text in damages(json.loads(path.read_text())):
        path.write_text(text)
        with pytest.raises(StateError, match=r"session-0-rank-0.json' is not a file of"):
            write_report(run_dir)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(StateError, match="move it away"):
        write_report(run_dir)
    found = CliRunner().invoke(app, ["report", str(run_dir)])
    assert found.exit_code == 2 and "Traceback" not in found.output


@pytest.mark.steady
def test_the_command_writes_page_and_trace(tmp_path):
    run_dir, trace = write_run(tmp_path / "run"), tmp_path / "trace.json"
    found = CliRunner().invoke(app, ["report", str(run_dir), "--trace", str(trace)])
    assert found.exit_code == 0, found.output
    assert (run_dir / "report.html").is_file() and json.loads(trace.read_text())["traceEvents"]


@pytest.fixture(scope="module")
def million():
    """A snapshot of a million events, which takes seconds to record."""
    return recorded(events=1_000_000)


@pytest.mark.steady
def test_a_million_events_make_a_small_page(tmp_path, million):
    snapshot = million
    assert snapshot.of("read").count > 100_000
    chunks = [
        {"chunk": n, "step": n, "loss": 1 / (n + 1), "scores": {"val/loss": 0.123456}}
        for n in range(5000)
    ]
    run_dir = tmp_path / "run"
    for rank in range(8):
        write_run(run_dir, ranks=1, snapshot=replace(snapshot, rank=rank, world=8), chunks=chunks)
    write_report(run_dir)
    assert (run_dir / "report.html").stat().st_size < 10_000_000
    kept = thinned(chunks)
    assert len(kept) <= 1000 and kept[-1] == chunks[-1]


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # Lightning's own
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_a_trainer_writes_chunks_and_resumes_in_a_session_of_its_own(tmp_path):
    lightning = pytest.importorskip("lightning")
    from penstock.integrations.lightning.callback import ChunkedTraining
    from penstock.training.run.callbacks import RunEvents

    class Line(lightning.LightningModule):
        def __init__(self, fails=False):
            super().__init__()
            self.layer, self.fails = torch.nn.Linear(1, 1), fails

        def training_step(self, batch, batch_idx):
            if self.fails and self.global_step == 3:
                raise ValueError("as asked")
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(fails=False):
        chunked = ChunkedTraining(train_chunk_size=2)
        trainer = lightning.Trainer(
            max_epochs=3,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[chunked, RunEvents(tmp_path, chunked)],
        )
        data = TensorDataset(torch.arange(24.0).reshape(-1, 1))
        trainer.fit(Line(fails), ChunkedDataLoader(data, batch_size=4))

    fit()
    first = Run.read(tmp_path).last
    assert first.state == "done" and [chunk["step"] for chunk in first.chunks] == [2, 4, 6]
    assert all(chunk["loss"] > 0 for chunk in first.chunks)
    assert first.snapshot.samples == 24 and first.coverage["share"] == 1.0
    with pytest.raises(ValueError, match="as asked"):
        fit(fails=True)
    run = Run.read(tmp_path)
    assert [each.number for each in run.sessions] == [0, 1] and run.last.state == "ValueError"
    assert figures_in(page_of(run))["state"] == "failed: ValueError"


SHOWN = "document.getElementById('timeline').querySelectorAll('rect').length"


def test_a_browser_draws_the_page(tmp_path):
    run_dir = write_run(tmp_path / "run", sessions=2, config=f"name: {ATTACK}\n")
    write_report(run_dir)
    page, html = (run_dir / "report.html").as_uri(), "document.documentElement.outerHTML"
    colour = "getComputedStyle(document.body).backgroundColor"
    with browser.started() as chromium:
        for width, dark in itertools.product(browser.WIDTHS.values(), (False, True)):
            shown = {"width": width, "dark": dark}
            drawn = browser.draw(chromium, page, **shown, script=f"[{html}, {colour}]")
            assert drawn.errors == drawn.requests == []
            assert drawn.width <= width  # nothing is beside the screen
            text, shade = drawn.value
            assert (sum(map(int, re.findall(r"\d+", shade)[:3])) < 3 * 128) == dark
    found = Elements(text).found
    ids = {attrs["id"] for _, attrs in found if "id" in attrs}
    assert {"timeline", "coverage", "losses", "verdict", "stages", "end"} <= ids
    tags = [tag for tag, _ in found]
    assert tags.count("rect") > 100 and tags.count("script") == 2
    body = text.rpartition("</script>")[2]
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in body
    assert str(verdict_of(Run.read(run_dir).snapshot())) in body


def test_a_page_of_a_million_events_opens_in_three_seconds(tmp_path, million):
    run_dir = write_run(tmp_path / "run", ranks=1, snapshot=million)
    write_report(run_dir)
    page = run_dir / "report.html"
    assert page.stat().st_size < 10_000_000
    with browser.started() as chromium:
        drawn = [browser.draw(chromium, page.as_uri(), script=SHOWN) for _ in range(3)]
    assert all(each.value > 100 and not each.errors for each in drawn)
    assert min(each.seconds for each in drawn) < 3.0
