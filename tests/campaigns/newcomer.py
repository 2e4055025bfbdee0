"""The path of a newcomer, timed: a clone, `make demo`, the quickstart line by line, every guide.

    python -m tests.campaigns.newcomer [FOLDER]

Only what is written down is done: a guide has the packages that its first block installs, in an
environment of its own. Needs Python 3.11 or later, git and make; prints a line of JSON a step.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parents[2]
INSTALL = re.compile(r"^\$ pip install (.*?)(?: *#.*)?$", re.M)
TYPIST = """
import codeop, re, sys
from code import InteractiveConsole
from pathlib import Path


class Console(InteractiveConsole):
    def showtraceback(self):
        super().showtraceback()
        sys.exit(1)

    showsyntaxerror = showtraceback


console, text = Console({"__name__": "__main__"}), Path(sys.argv[1]).read_text()
for block in re.findall(r"^```python\\n(.*?)^```", text, re.M | re.S):
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
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.clone = folder, folder / "penstock"
        kept = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        self.environment |= {k: v for k, v in os.environ.items() if k.startswith("PIP_")}

    def step(self, name: str, *commands: list[str], cwd: Path | None = None) -> None:
        """Run commands, and print how long they took; end if one fails."""
        begin = perf_counter()
        for command in commands:
            run = subprocess.run(
                command,
                cwd=cwd or self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if run.returncode:
                print(run.stdout[-3000:], run.stderr[-3000:], file=sys.stderr)
                raise SystemExit(f"{name}: {' '.join(command)} ended with {run.returncode}")
        print(json.dumps({"step": name, "seconds": round(perf_counter() - begin, 1)}), flush=True)

    def python_for(self, page: Path) -> tuple[str, list[list[str]]]:
        """Return the interpreter for a page, and the commands that make it what the page says."""
        base, own = self.folder / "base", self.folder / f"env-{page.stem}"
        python = str(own / "bin/python")
        found = INSTALL.search(page.read_text())
        wanted = (found[1] if found else "penstock").replace('"', "").replace("'", "").split()
        names = [each.replace("penstock", str(self.clone)) for each in wanted]
        copy = ["cp", "-al", str(base), str(own)]  # links: torch is large
        return python, [copy, [python, "-m", "pip", "install", "-q", *names]]

    def read(self, page: Path, *, typed: bool) -> None:
        """Install what a page says, and run its Python in an empty folder."""
        python, install = self.python_for(page)
        self.step(f"install for {page.stem}", *install)
        work = self.folder / f"work-{page.stem}"
        work.mkdir()
        if typed:
            (work / "typist.py").write_text(TYPIST)
            self.step(f"{page.stem}, typed", [python, "typist.py", str(page)], cwd=work)
            return
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
        (work / "page.py").write_text("\n\n".join(blocks))
        self.step(f"{page.stem}", [python, "page.py"], cwd=work)


def main() -> None:
    """Go the whole path."""
    given = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="newcomer-") as temporary:
        someone = Newcomer(Path(given[0] if given else temporary).absolute())
        someone.folder.mkdir(parents=True, exist_ok=True)
        begin = perf_counter()
        someone.step("git clone", ["git", "clone", "-q", str(ROOT), str(someone.clone)])
        make = ["make", "demo", f"PYTHON={sys.executable}"]
        someone.step("make demo, with its environment", make, cwd=someone.clone)
        someone.step("make demo again", make, cwd=someone.clone)
        pip = [str(someone.folder / "base/bin/python"), "-m", "pip", "install", "-q"]
        pins = str(someone.clone / "constraints.txt")
        someone.step(
            "an environment with torch",
            [sys.executable, "-m", "venv", str(someone.folder / "base")],
            [*pip, "-c", pins, "torch", "numpy"],
        )
        someone.read(someone.clone / "docs/quickstart.md", typed=True)
        for page in sorted((someone.clone / "docs/guides").glob("*.md")):
            if page.stem != "index":
                someone.read(page, typed=False)
        print(json.dumps({"step": "all", "seconds": round(perf_counter() - begin, 1)}))


if __name__ == "__main__":
    main()
