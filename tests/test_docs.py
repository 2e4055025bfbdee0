"""Every Python block of the README and of the guides runs, page by page, from top to bottom."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from penstock import CollatorRegistry

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCE = re.compile(r"^( *)```(.*)$", re.M)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
LANGUAGES = {"python", "yaml", "toml", "json", "console", "bash", "sh", "text", ""}


def test_there_are_pages():
    names = {page.name for page in PAGES}
    assert {"README.md", "chunked.md", "randomness.md", "reliability.md", "testing.md"} <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_block_of_a_page_is_left_out(page):
    """A block is found by its fence: another spelling, or an indented one, would never run."""
    fences = FENCE.findall(page.read_text())
    assert len(fences) % 2 == 0
    begins, ends = fences[::2], fences[1::2]
    assert {language for _, language in begins} <= LANGUAGES
    assert {language for _, language in ends} <= {""}
    assert {indent for indent, _ in fences} <= {""}


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # Lightning's own
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: page.stem
)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    """As a reader pastes them, in an empty directory: every name is defined on the page."""
    monkeypatch.chdir(tmp_path)
    CollatorRegistry.reset()  # a page may register collators
    module = ModuleType(f"docs_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # pickle looks for classes there
    for block in BLOCK.finditer(page.read_text()):
        line = page.read_text()[: block.start()].count("\n") + 1
        source = "\n" * line + block.group(1)  # so that an error names the line of the page
        exec(compile(source, str(page), "exec"), vars(module))
