"""Writes the notebooks of the guides from their pages: ``python -m docs.make.notebooks``.

A page is the only place where a guide is edited. Text becomes cells of text, and each block of
Python a cell of code, so a page that runs is a notebook that runs.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
PAGES = [
    ROOT / "docs/quickstart.md",
    *(page for page in sorted(ROOT.glob("docs/guides/*.md")) if page.stem != "index"),
]
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.M | re.S)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#]+)")


def notebook(page: Path) -> str:
    """Return the notebook of a page, as JSON."""
    parts = BLOCK.split(page.read_text())  # text, code, text, ...
    cells = [_cell(n, part.strip("\n"), page) for n, part in enumerate(parts) if part.strip()]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, text: str, page: Path) -> dict[str, object]:
    cell: dict[str, object] = {"id": f"{page.stem}-{number}".replace("_", "-"), "metadata": {}}
    if number % 2:
        return cell | {
            "cell_type": "code",
            "source": text.splitlines(keepends=True),
            "execution_count": None,
            "outputs": [],
        }
    where = os.path.relpath(page.parent, FOLDER)
    text = LINK.sub(lambda link: f"]({os.path.normpath(f'{where}/{link[1]}')}", text)
    return cell | {"cell_type": "markdown", "source": text.splitlines(keepends=True)}


def path_of(page: Path) -> Path:
    """Return where the notebook of a page is kept."""
    return FOLDER / f"{page.stem}.ipynb"


if __name__ == "__main__":
    for each in PAGES:
        path_of(each).write_text(notebook(each))
