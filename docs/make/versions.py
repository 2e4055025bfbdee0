"""Adds a version to a published site: ``python -m docs.make.versions 0.2 FOLDER``.

A web server serves FOLDER. It has a folder for each version; ``versions.json``, from which the
pages of all versions make their menu; and a page that leads to the newest version.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION = re.compile(r"\d+(\.\d+)*")
FIRST_PAGE = (
    '<!DOCTYPE html><meta http-equiv="refresh" content="0; url={0}/index.html">'
    '<a href="{0}/index.html">{0}</a>\n'
)


def publish(version: str, folder: Path) -> None:
    """Build the site of the current tree as a version; one with the same number is replaced."""
    if not VERSION.fullmatch(version):
        raise SystemExit(f"a version is numbers with dots, such as 0.2, got {version!r}")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder / version)]
    # the menu needs a server, so that only published pages have it
    subprocess.run(command, cwd=ROOT, env=os.environ | {"SITE_VERSIONS": "mike"}, check=True)
    list_versions(folder)


def list_versions(folder: Path) -> None:
    """Write the list of versions, the newest first, and the page that leads to it."""
    found = [path.name for path in folder.iterdir() if VERSION.fullmatch(path.name)]
    found.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    entries = [{"version": name, "title": name, "aliases": []} for name in found]
    (folder / "versions.json").write_text(json.dumps(entries, indent=1) + "\n")
    (folder / "index.html").write_text(FIRST_PAGE.format(found[0]))


if __name__ == "__main__":
    publish(sys.argv[1], Path(sys.argv[2]).absolute())
