"""Every trainer has a page of its own, with the same table."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "trainers").glob("*.md"))
ROWS = ["what it does to a loader", "what you add", "exact", "not exact", "refused"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_is_exact_and_has_the_lines_to_use_it(page):
    text = page.read_text()
    assert re.findall(r"^\| ([\w ]+) \| \S.* \|$", text, re.M)[:5] == ROWS
    assert re.search(r"^[^|\n].*:\n\n```python\n", text, re.M)  # the lines to use it


def test_every_page_is_in_the_table_and_in_the_navigation():
    table, navigation = (DOCS / "trainers.md").read_text(), (DOCS.parent / "mkdocs.yml").read_text()
    assert len(PAGES) == 6
    for page in PAGES:
        assert f"(trainers/{page.name})" in table and f"- trainers/{page.name}" in navigation
