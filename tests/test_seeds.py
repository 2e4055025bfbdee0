"""The repository holds no text of the seed documents, and their blocks can be read."""

import pytest

from tests.seeds import TESTS, passages, run_block, seed_blocks

BLOCKS = {"000": 6, "001": 7, "002": 6, "003": 27, "004": 17}
FOLDERS = ("src", "tests", "examples", "benchmarks", "docs")
SUFFIXES = {".py", ".md", ".txt", ".yaml"}


@pytest.mark.parametrize("number", BLOCKS)
def test_documents_have_the_blocks_that_tests_count_on(number):
    assert len(seed_blocks(number)) == BLOCKS[number]


@pytest.fixture(scope="module")
def ours():
    """Path of every text file of the repository, by the passages in it."""
    root = TESTS.parent
    files = [path for folder in FOLDERS for path in (root / folder).rglob("*")]
    texts = {path: path.read_text() for path in files if path.suffix in SUFFIXES}
    return {each: path.relative_to(root) for path in texts for each in passages(texts[path])}


@pytest.mark.parametrize("number", BLOCKS)
def test_no_passage_of_a_document_is_copied(number, ours):
    theirs = set().union(*map(passages, seed_blocks(number)))
    assert {f"{ours[each]}: {each}" for each in theirs & ours.keys()} == set()


def test_a_change_that_is_not_needed_is_an_error():
    with pytest.raises(AssertionError, match="is in no block of 003"):
        seed_blocks("003", {"no such text": ""})


def test_blocks_run_in_the_names_they_are_given():
    assert run_block("b = a + 1", {"a": 1})["b"] == 2
