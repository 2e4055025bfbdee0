"""The commands of docs/commands.md print what the page says; measured numbers may differ."""

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.commands import app

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
CONSOLE = re.findall(r"^```console\n\$ penstock (.*)\n((?:.*\n)*?)```", PAGE, re.M)
SIZE = re.compile(r" +[\d.,]+ ?(GB/s|MB/s|GB|MB|kB|ms|%)?")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory with the files of the page."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
            exec(block, {})
    return folder


@pytest.mark.parametrize(("command", "said"), CONSOLE, ids=[command for command, _ in CONSOLE])
def test_a_command_prints_what_the_page_says(files, monkeypatch, command, said):
    monkeypatch.chdir(files)
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = CliRunner().invoke(app, command.split())
    sys.modules.pop("my_project", None)
    assert done.exit_code == int("finding" in said and "nothing" not in said), done.output
    if command.startswith("bench"):  # advice depends on how busy the machine is
        printed, said = (SIZE.sub(" #", text).split("advice")[0] for text in (done.stdout, said))
        assert printed.split() == said.split()
    else:
        assert done.stdout == said


def test_every_command_has_a_place_on_the_page():
    names = {each.name or each.callback.__name__ for each in app.registered_commands}
    assert not {name for name in names if f"penstock {name}" not in PAGE}
    assert len(CONSOLE) == 4
