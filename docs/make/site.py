"""A hook of mkdocs: lists pages that the navigation lacks; links out of docs/ become text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?:examples|notebooks|benchmarks|tests|[A-Z]+\.md)[^)]*\)"
)


def _pages(nav: list[Any]) -> set[str]:
    found: set[str] = set()
    for entry in nav:
        each = next(iter(entry.values())) if isinstance(entry, dict) else entry
        found |= _pages(each) if isinstance(each, list) else {each}
    return found


def on_config(config: Any) -> Any:
    """Add pages that the navigation does not name: decisions, and new ones."""
    listed = _pages(config.nav)
    rest = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    rest = [page for page in rest if page not in listed]
    decisions = [page for page in rest if page.startswith("decisions/")]
    config.nav.append(
        {"More": [*(p for p in rest if p not in decisions), {"Decisions": decisions}]}
    )
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with links to files of the repository as plain text."""
    return OUTSIDE.sub(r"\1", markdown)
