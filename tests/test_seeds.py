"""Copied code blocks of the seed documents are verbatim."""

import json
import re

import pytest

from tests.seeds import DIGESTS, FOLDERS, TESTS, copies, digest, seed_document

BLOCK = re.compile(r"^```(?:python|yaml)\n(.*?)^```", re.M | re.S)


def test_every_folder_of_copies_is_listed():
    found = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*seed_*")
        if path.is_dir() and path.name != "__pycache__"
    }
    assert found == set(FOLDERS)


def test_copies_are_those_that_were_compared_with_the_documents():
    ours = {path: digest(text) for folder in FOLDERS for path, text in copies(folder).items()}
    assert ours == json.loads(DIGESTS.read_text())


@pytest.mark.parametrize("folder", FOLDERS)
def test_copies_are_blocks_of_their_document(folder):
    blocks = BLOCK.findall(seed_document(FOLDERS[folder]))
    ours = copies(folder)
    assert ours
    assert [path for path, text in ours.items() if text not in blocks] == []
