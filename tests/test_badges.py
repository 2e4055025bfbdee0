"""The badges of the README say what pyproject.toml and the workflow say."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def badge(name):
    """The text on the right side of a badge that the README shows."""
    picture = f"docs/pictures/badge_{name}.svg"
    assert f"({picture})" in (ROOT / "README.md").read_text()
    return re.findall(r"<text[^>]*>([^<]*)</text>", (ROOT / picture).read_text())[1]


def test_the_python_badge_names_the_versions_that_are_tested():
    named = badge("python").split(" | ")
    classifiers = "\n".join(PROJECT["project"]["classifiers"])
    assert named == re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    assert named == re.findall(r'"(3\.\d+)"', workflow)
    assert named == re.search(r"VERSIONS \?= (.*)", (ROOT / "Makefile").read_text())[1].split()


def test_the_other_badges_are_true():
    assert badge("license") == PROJECT["project"]["license"]
    assert badge("types") == "mypy strict"
    assert PROJECT["tool"]["mypy"]["strict"] is True
