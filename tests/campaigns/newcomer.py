"""The path of a newcomer, timed: a clone, `make demo`, the quickstart line by line, every guide.

    python -m tests.campaigns.newcomer [FOLDER] [--only STEP ...] [--without STEP ...]

Only what is written down is done: a page has an environment of its own, and every command and
every line of Python on it is run as it stands there. A step that fails is reported, and the next
one begins. Prints a line of JSON a step, and a table. Needs Python 3.11 or later, git and make.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parents[2]
GUIDES = sorted(page.stem for page in ROOT.glob("docs/guides/*.md") if page.stem != "index")
STEPS = ["demo", "quickstart", *GUIDES, "test"]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.M | re.S)
TYPIST = """
import codeop, json, re, subprocess, sys
from code import InteractiveConsole
from pathlib import Path


class Console(InteractiveConsole):
    def showtraceback(self):
        super().showtraceback()
        sys.exit(1)

    showsyntaxerror = showtraceback


console = Console({"__name__": "__main__"})
for language, block in json.loads(Path(sys.argv[1]).read_text()):
    if language == "console":
        for line in re.findall(r"^\\$ (.*)$", block, re.M):
            print("$", line, flush=True)
            subprocess.run(line, shell=True, check=True)
        continue
    for line in [*block.splitlines(), "pass"]:
        ended = console.buffer and codeop.compile_command("\\n".join(console.buffer) + "\\n")
        if ended and not line.strip():
            continue  # an empty line would end the function
        if ended and not re.match(r"\\s|else|elif|except|finally", line):
            console.push("")
        console.push(line)
"""


class Newcomer:
    """Somebody with a folder, an interpreter, and the pages.

    Args:
        folder: Where everything is kept; what a step made before is made again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.clone = folder, folder / "penstock"
        self.times: dict[str, str] = {}
        kept = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment |= {k: v for k, v in os.environ.items() if k.startswith("PIP_")}

    def run(self, command: str, *, cwd: Path | None = None, **variables: str) -> None:
        """Run a command, whose output goes to a file.

        Args:
            command: As the shell takes it.
            cwd: Where; None for the folder.
            variables: Added to the environment.
        """
        with (self.folder / "output.txt").open("w+") as output:
            run = subprocess.run(
                command,
                shell=True,
                cwd=cwd or self.folder,
                env=self.environment | variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if run.returncode:
                output.seek(0)
                print(output.read()[-5000:], file=sys.stderr)
                raise RuntimeError(f"{command} ended with {run.returncode}")

    def step(self, name: str, work: Callable[[], None]) -> None:
        """Do some work, and print how long it took, or that it failed."""
        begin = perf_counter()
        try:
            work()
            result: dict[str, object] = {"seconds": round(perf_counter() - begin, 1)}
        except RuntimeError as error:
            result = {"failed": str(error)}
        self.times[name] = str(result.get("seconds", "**failed**"))
        print(json.dumps({"step": name, **result}), flush=True)

    def get_clone(self) -> None:
        """Clone the repository, with what is committed now."""
        shutil.rmtree(self.clone, ignore_errors=True)
        self.run(f"git clone -q {shlex.quote(str(ROOT))} penstock")

    def make_base(self) -> None:
        """Make the environment that those of all pages are copies of: it has torch, and pip."""
        shutil.rmtree(self.folder / "base", ignore_errors=True)
        self.run(f"{shlex.quote(sys.executable)} -m venv base")
        self.run("base/bin/pip install -q -c penstock/constraints.txt torch numpy")

    def install(self) -> None:
        """Install Penstock as the quickstart says; a guide then says what it needs besides."""
        self.run("base/bin/pip install -q ./penstock")

    def read(self, page: Path, *, typed: bool) -> None:
        """Do all that a page says, in a folder with nothing but a clone.

        Args:
            page: The page.
            typed: Whether its lines are typed one by one, or are one program after the commands.
        """
        own, work = self.folder / f"env-{page.stem}", self.folder / f"work-{page.stem}"
        for each in (own, work):
            shutil.rmtree(each, ignore_errors=True)
        self.run(f"cp -al base env-{page.stem}")  # links: torch is large
        work.mkdir()
        (work / "penstock").symlink_to(self.clone)
        blocks = BLOCK.findall(page.read_text())
        path = f"{own / 'bin'}:{self.environment['PATH']}"
        if not typed:
            program = "\n\n".join(text for language, text in blocks if language == "python")
            (work / "page.py").write_text(program)
            blocks = [each for each in blocks if each[0] == "console"]
        (work / "typist.py").write_text(TYPIST)
        (work / "blocks.json").write_text(json.dumps(blocks))
        # `pip` of a copied environment would be the one of the original
        (own / "bin/pip").unlink()
        (own / "bin/pip").write_text(f'#!/bin/sh\nexec {own}/bin/python -m pip "$@"\n')
        (own / "bin/pip").chmod(0o755)
        self.run("python typist.py blocks.json", cwd=work, PATH=path)
        if not typed:
            self.run("python page.py", cwd=work, PATH=path)


def main() -> None:
    """Go the whole path, or some steps of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", help="kept; without it, a temporary one is used")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS, metavar="STEP")
    parser.add_argument("--without", nargs="+", choices=STEPS, default=[], metavar="STEP")
    given = parser.parse_args()
    wanted = [step for step in STEPS if step in given.only and step not in given.without]
    with tempfile.TemporaryDirectory(prefix="newcomer-") as temporary:
        someone = Newcomer(Path(given.folder or temporary).absolute())
        someone.folder.mkdir(parents=True, exist_ok=True)
        go(someone, wanted)
    print("\n| step | seconds |\n|---|---|")
    for name, seconds in someone.times.items():
        print(f"| {name} | {seconds} |")
    if "**failed**" in someone.times.values():
        raise SystemExit(1)


def go(someone: Newcomer, wanted: list[str]) -> None:
    """Go these steps of the path."""
    begin = perf_counter()
    python = f"PYTHON={shlex.quote(sys.executable)}"
    someone.step("git clone", someone.get_clone)
    if "demo" in wanted:
        demo = partial(someone.run, f"make demo {python}", cwd=someone.clone)
        someone.step("make demo, with its environment", demo)
        someone.step("make demo again", demo)
    pages = {name: someone.clone / f"docs/guides/{name}.md" for name in GUIDES}
    pages["quickstart"] = someone.clone / "docs/quickstart.md"
    chosen = [name for name in wanted if name in pages]
    if chosen:
        someone.step("an environment with torch", someone.make_base)
    for name in chosen:
        read = partial(someone.read, pages[name], typed=name == "quickstart")
        if name == "quickstart":
            someone.step("quickstart, typed", read)
            continue
        if "pip install ./penstock" not in someone.times:
            someone.step("pip install ./penstock", someone.install)
        someone.step(f"guide {name}", read)
    if "test" in wanted:
        someone.step("make test", partial(someone.run, f"make test {python}", cwd=someone.clone))
    someone.times["all"] = str(round(perf_counter() - begin, 1))


if __name__ == "__main__":
    main()
