"""Every Python block of the guides runs, page by page, from top to bottom."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def test_there_are_pages():
    assert {"chunked.md", "randomness.md", "testing.md"} <= {page.name for page in PAGES}


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # Lightning's own
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": f"docs_{page.stem}"}
    for block in BLOCK.finditer(page.read_text()):
        line = page.read_text()[: block.start()].count("\n") + 1
        source = "\n" * line + block.group(1)  # so that an error names the line of the page
        exec(compile(source, str(page), "exec"), names)
