"""The site: built without a warning, every link followed, every page opened in a browser."""

import functools
import itertools
import subprocess
import sys
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from docs.make import versions
from tests import browser

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.proof  # building takes a minute


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """As `make docs`: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    return folder


class Page(HTMLParser):
    """The anchors of a page, and what it refers to."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found.get("id"), found.get("name")} - {None}
        self.links += [found[name] for name in ("href", "src") if found.get(name)]


def test_every_link_leads_to_a_page_and_an_anchor(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 60 and (site / "search/search_index.js").stat().st_size > 100_000
    broken, followed = [], 0
    for path, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if ":" in address.partition("/")[0] or path.name == "404.html":  # another host
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            followed += 1
            if not target.exists() or (
                anchor and target in pages and unquote(anchor) not in pages[target].anchors
            ):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert followed > 5000 and broken == []


SCHEME = "document.body.getAttribute('data-md-color-scheme')"


def test_every_page_opens_without_an_error_or_a_request(site):
    looks = itertools.cycle(itertools.product(browser.WIDTHS.values(), (False, True)))
    with browser.started() as chromium:
        for path in sorted(site.rglob("*.html")):
            if path.name == "404.html":
                continue
            width, dark = next(looks)
            drawn = browser.draw(chromium, path.as_uri(), width=width, dark=dark, script=SCHEME)
            assert drawn.errors == drawn.requests == [], path
            # a redirect has no colours
            assert drawn.value in ("slate" if dark else "default", None), path
            assert drawn.width <= width, path


SEARCH = """(async () => {
  const field = document.querySelector("[data-md-component=search-query]");
  field.focus();
  field.value = "resume";
  field.dispatchEvent(new Event("keyup", {bubbles: true}));
  field.dispatchEvent(new Event("input", {bubbles: true}));
  for (let turn = 0; turn < 100; turn++) {
    const found = document.querySelectorAll(".md-search-result__item").length;
    if (found) return found;
    await new Promise(done => setTimeout(done, 100));
  }
  return 0;
})()"""


def test_search_works_from_a_folder(site):
    with browser.started() as chromium:
        drawn = browser.draw(chromium, (site / "quickstart.html").as_uri(), script=SEARCH)
    assert drawn.value > 3 and drawn.errors == drawn.requests == []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_published_versions_have_a_menu(site, tmp_path):
    versions.publish("0.3", tmp_path)
    for older in ("0.2", "0.10"):
        (tmp_path / older).symlink_to(site)
    versions.list_versions(tmp_path)
    handler = functools.partial(Quiet, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, browser.started() as chromium:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        menu = "[...document.querySelectorAll('.md-version__link')].map(each => each.innerText)"
        wait = f"new Promise(done => setTimeout(() => done({menu}), 2000))"
        drawn = browser.draw(chromium, f"{address}/0.3/index.html", script=wait)
        first = browser.draw(chromium, address, script="location.pathname")
        server.shutdown()
        thread.join()
    assert [each.strip() for each in drawn.value] == ["0.10", "0.3", "0.2"]
    assert first.value in ("/", "/0.10/index.html") and drawn.errors == []
