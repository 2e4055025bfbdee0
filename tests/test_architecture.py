"""What keeps the code base readable: layers, private names, sizes, and plain words.

The limits are ratchets: lower them when the code base shrinks, and raise one only with a reason in
``docs/decisions``. That the rest works without any one of the domains is checked in test_import.py.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "penstock"

MOST_PUBLIC_NAMES = 36
MOST_LINES = 500  # of a module
MOST_MODULES = 212

# access to private names that is left: by file, the names and why
ALLOWED = {
    "__init__.py": ("_getframe", "tells an import statement from hasattr, which must not raise"),
    "ranks.py": ("_get_default_store", "torch has no public way to the store of the ranks"),
    "distributed/failures.py": ("_exit", "the main thread is in a call that cannot be ended"),
    "loaders/workers.py": ("_exit _thread", "a forked worker must not run the parent's clean-up"),
    "testing/conformance/launches.py": ("_exit", "as above, of a forked rank"),
    "training/run/callbacks.py": ("_exit", "the second Ctrl-C ends a run that hangs"),
}

# private names of Lightning are in one file, which says the versions it was tested with
LIGHTNING = "integrations/lightning/compat.py"

# the words that the documentation and the code do without; the design has what to write instead
WORDS = """
whoever, anew, mend, mends, mended, mending, himself, herself, misfit, obituary, servant, dismiss,
dismissed, employ, employed, so many, is told, are told, is had, naming_the_dead, take_turn,
aloud, flavours, census, speaks, speaking, goes on, cannot be told, be told, as they lie, come about
"""
NAMES = "Course, _Desk, _Belt, _ROOMS, MODESTY, HeldOrder, LostTurnError, Servant"


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of the package by path."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text()) for p in paths}


def package_of(name: str) -> str:
    """Return the part of a path or module name below ``penstock`` that is a package, or empty."""
    parts = name.removeprefix("penstock.").replace(".py", "").replace("/", ".").split(".")
    return parts[0] if len(parts) > 1 or (PACKAGE / parts[0]).is_dir() else ""


def any_of(words: str) -> str:
    """Return a regular expression for words that are separated by commas."""
    return "|".join(each.strip() for each in words.split(","))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def names_defined(tree: ast.Module) -> set[str]:
    """Return what a module defines: functions, classes, variables, attributes of ``self``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # __slots__
            found.add(node.value)
    return found


def private_access(path: str) -> Iterator[tuple[str, str]]:
    """Yield name and code of each private name of another module that a module uses."""
    tree = modules()[path]
    own: set[str] | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for name in (alias.name for alias in node.names if is_private(alias.name)):
                yield name, ast.unparse(node)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            own = names_defined(tree) if own is None else own
            itself = ast.unparse(node.value) in ("self", "cls", "super()", "type(self)")
            if not itself and node.attr not in own:
                yield node.attr, ast.unparse(node)


@pytest.mark.steady
def test_imports_follow_the_layers():
    # in a process of its own: it switches off all loggers of the process that it runs in
    command = Path(sys.executable).with_name("lint-imports")
    options = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    done = subprocess.run([command, *options], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_no_module_imports_itself_through_others():
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("penstock", cache_dir=None, exclude_type_checking_imports=True)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    TopologicalSorter(imports).prepare()  # raises a CycleError


def test_no_package_uses_private_names_of_another():
    found = {
        f"{path}: {code}"
        for path in modules()
        if path != LIGHTNING
        for name, code in private_access(path)
        if name not in ALLOWED.get(path, ("", ""))[0].split()
    }
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize("path", ALLOWED)
def test_every_exception_for_a_private_name_is_needed(path):
    used = {name for name, _ in private_access(path)}
    assert used == set(ALLOWED[path][0].split())


def test_no_package_imports_private_names_of_another():
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
                private = [alias.name for alias in node.names if is_private(alias.name)]
                same = package_of(node.module or "") == package_of(path)
                assert same or not private, f"{path}: {ast.unparse(node)}"


def test_private_names_of_lightning_are_in_one_file():
    names = {name for name, _ in private_access(LIGHTNING)}
    assert names, "there is nothing left to keep in one file"
    found = [
        f"{path}: {ast.unparse(node)}"
        for path, tree in modules().items()
        if path != LIGHTNING
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in names
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert not found, "\n".join(found)


def test_the_root_has_few_public_names():
    assert len(penstock.__all__) <= MOST_PUBLIC_NAMES


def test_no_module_is_very_long():
    sizes = {path: len((PACKAGE / path).read_text().splitlines()) for path in modules()}
    assert {path: lines for path, lines in sizes.items() if lines > MOST_LINES} == {}


def test_there_are_not_many_modules():
    assert len(modules()) <= MOST_MODULES


def test_the_words_are_plain():
    pages = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.c"), *(ROOT / "docs").rglob("*.md")]
    pages += [ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    words = re.compile(rf"\b({any_of(WORDS)})\b", re.IGNORECASE)
    names = re.compile(rf"\b({any_of(NAMES)})\b")
    found = [
        f"{page.relative_to(ROOT)}:{number}: {line.strip()}"
        for page in pages
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if words.search(line) or names.search(line)
    ]
    assert not found, "\n".join(found)
