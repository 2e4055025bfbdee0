"""Every Python block of the README and of the guides runs, page by page, from top to bottom.

Links lead somewhere, and what is made from pages and orders (notebooks, pictures) is current.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from docs.make import figures, notebooks, pictures
from penstock import CollatorRegistry
from tests.missing_domains import names_a_missing_domain

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
LINKED = [
    *PAGES,
    *(page for page in ROOT.glob("*.md") if page not in PAGES),
    ROOT / "docs/llms.txt",
]
FENCE = re.compile(r"^( *)```(.*)$", re.M)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")
LANGUAGES = {"python", "diff", "yaml", "toml", "json", "console", "bash", "sh", "text", ""}


def runs(text):
    """Return whether a page has Python blocks, and none of a domain that was deleted."""
    blocks = BLOCK.findall(text)
    return bool(blocks) and not any(map(names_a_missing_domain, blocks))


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
    "page", [page for page in PAGES if runs(page.read_text())], ids=lambda page: page.stem
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


def anchors_of(page):
    """Return the anchors of the headings of a page, as the site has them."""
    text = BLOCK.sub("", page.read_text())
    plain = [re.sub(r"[^\w\s-]", "", title) for title in re.findall(r"^#+ (.*)$", text, re.M)]
    return {re.sub(r"[-\s]+", "-", title.strip().lower()) for title in plain}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), link


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.stem)
def test_figures_of_speed_are_those_that_were_measured(page):
    """After a benchmark: ``python -m docs.make.figures``."""
    assert page.read_text() == figures.with_figures(page.read_text())
    assert len(figures.table().splitlines()) > 6


def test_another_result_is_another_page(tmp_path, monkeypatch):
    results = json.loads((figures.RESULTS / "bench_stores.json").read_text())
    line = next(each for each in results["lines"] if "times faster" in each.get("claim", ""))
    line["found"] += 1
    (tmp_path / "bench_stores.json").write_text(json.dumps(results))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    for page in figures.PAGES:
        assert page.read_text() != figures.with_figures(page.read_text())


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_what_the_orders_say(name):
    """After a change: ``python -m docs.make.pictures``."""
    kept = (pictures.FOLDER / f"{name}.svg").read_text()
    assert kept == pictures.PICTURES[name]().svg()


@pytest.mark.parametrize("page", notebooks.PAGES, ids=lambda page: page.stem)
def test_notebooks_are_their_pages(page):
    """A page that runs is a notebook that runs. After a change: python -m docs.make.notebooks"""
    assert notebooks.path_of(page).read_text() == notebooks.notebook(page)


@pytest.mark.parametrize("page", notebooks.PAGES, ids=lambda page: page.stem)
def test_a_guide_begins_with_what_to_install(page):
    before, _, rest = page.read_text().partition("```console\n$ pip install ")
    assert rest and "```python" not in before


@pytest.mark.proof
@pytest.mark.parametrize("page", notebooks.PAGES, ids=lambda page: page.stem)
def test_notebooks_run_in_a_process_of_their_own(page, tmp_path):
    cells = json.loads(notebooks.path_of(page).read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "notebook.py").write_text("\n\n".join(code))
    run = subprocess.run([sys.executable, "notebook.py"], cwd=tmp_path, timeout=120)
    assert run.returncode == 0
