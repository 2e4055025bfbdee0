"""The shell completes commands, options and files; the version has a sentence."""

import os
import subprocess
import sys

import pytest

import penstock
from penstock.cli import commands, main
from tests.cli.projects import PENSTOCK


def completed(line, shell="bash"):
    """What a shell is offered for a line that is being typed."""
    words = line.split(" ")
    env = {"_PENSTOCK_COMPLETE": f"complete_{shell}", "COMP_WORDS": line,
           "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": line}  # fmt: skip
    run = subprocess.run(
        [sys.executable, str(PENSTOCK)], env={**os.environ, **env}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return run.stdout.split()


@pytest.mark.steady
def test_commands_and_options_are_completed():
    assert {"train", "plan", "validate", "convert", "demo"} <= set(completed("penstock "))
    assert completed("penstock tr") == ["train"]
    assert "--resume" in completed("penstock train --re")
    assert "--version" in completed("penstock --v")


@pytest.mark.steady
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_shown_by_what_typer_reads(shell):
    env = {**os.environ, "_PENSTOCK_COMPLETE": f"source_{shell}"}
    run = subprocess.run(
        [sys.executable, str(PENSTOCK)], env=env, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0 and "_PENSTOCK_COMPLETE=complete_" in run.stdout


@pytest.mark.steady
def test_help_is_made_of_sentences():
    run = subprocess.run(
        [sys.executable, str(PENSTOCK), "--help"], env={**os.environ, "COLUMNS": "200"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    for said in ("--install-completion", "--show-completion", "Show the version and exit."):
        assert said in run.stdout
    asked = subprocess.run(
        [sys.executable, str(PENSTOCK), "--version"], capture_output=True, text=True, timeout=120
    )
    assert asked.stdout == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tran", "penstock: No such command 'tran'. Did you mean 'train'? See 'penstock --help'"),
        ("train", "penstock: Missing argument 'config': see 'penstock train --help'"),
        ("report x --bogus", "penstock: No such option: --bogus: see 'penstock report --help'"),
        ("bench x --batch-size 0", "see 'penstock bench --help'"),
        ("report nowhere --debug", "penstock: 'nowhere' is not a directory"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["penstock", *arguments.split()])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr().err
    assert left.value.code == 2 and message in said
    assert len(said.splitlines()) == 1 or "--debug" in arguments, said


def test_validate_without_its_domain_is_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(commands, "load_extensions", lambda group: {})
    monkeypatch.setattr(sys, "argv", ["penstock", "validate", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2 and "is not installed" in capsys.readouterr().err


def test_the_exit_code_of_help_is_0_and_of_no_command_2(monkeypatch, capsys):
    for arguments, code in ((["--help"], 0), ([], 2), (["--version"], 0)):
        monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == code and capsys.readouterr().out
