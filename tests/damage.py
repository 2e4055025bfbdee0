"""Files that Penstock reads, damaged in any way: read, or refused with the file's name.

A test class names the kind of file: how one is written and read.
"""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError

JUNK = [b"", b"\x00", b"\xff", b"\n", b",", b'"', b"{", b"[", b"}", b"]", b"-", b"9" * 40, b"1e999",
        b"nan", b"null", b"true", b"[" * 3000, b"\xc3", b":", b"a", b"9" * 5000]  # fmt: skip
VALUES = [None, True, "x", "", -1, 1.5, 10**30, float("nan"), float("inf"), [], [1], {}, {"a": 1}]
# each kind of file is a class of its own, with the same tests
examples = settings(max_examples=20, suppress_health_check=[HealthCheck.differing_executors])


WRITTEN = {}  # by class: the folder of the file, and its bytes


class DamagedFile:
    """The tests of one kind of file; subclasses have a ``name``, ``write`` and ``read``."""

    name = ""

    def write(self, folder):
        raise NotImplementedError

    def read(self, folder):
        raise NotImplementedError

    def read_or_refused(self, folder):
        try:
            self.read(folder)
        except PenstockError as error:
            said = str(error)
            assert self.name.rpartition("/")[2] in said or str(folder.name) in said, said
            assert "\n" not in said and len(said) < 1500, said
            return False
        return True

    def written(self, factory):
        kind = type(self)
        if kind not in WRITTEN:
            folder = factory.mktemp("files")
            self.write(folder)
            assert self.read_or_refused(folder)
            WRITTEN[kind] = folder, (folder / self.name).read_bytes()
        return WRITTEN[kind]

    @given(data=st.data())
    @examples
    def test_changed_bytes_are_read_or_refused_with_the_files_name(self, tmp_path_factory, data):
        folder, content = self.written(tmp_path_factory)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content)))
            cut = data.draw(st.integers(0, 9))
            content = content[:at] + data.draw(st.sampled_from(JUNK)) + content[at + cut :]
        (folder / self.name).write_bytes(content)
        self.read_or_refused(folder)

    @given(data=st.data())
    @examples
    def test_values_of_another_type_are_read_or_refused_with_the_files_name(
        self, tmp_path_factory, data
    ):
        folder, content = self.written(tmp_path_factory)
        if not self.name.endswith(".json"):
            return
        tree = json.loads(content)
        for _ in range(data.draw(st.integers(1, 2))):
            tree = changed(tree, data)
        (folder / self.name).write_text(json.dumps(tree))
        self.read_or_refused(folder)

    @pytest.mark.parametrize("what", ["a folder", "a link to nothing", "not text"])
    def test_a_file_that_cannot_be_read_at_all_is_refused_with_its_name(self, what, tmp_path):
        self.write(tmp_path)
        file = tmp_path / self.name
        file.unlink()
        if what == "a folder":
            file.mkdir()
        elif what == "a link to nothing":
            file.symlink_to(tmp_path / "nothing")
        else:
            file.write_bytes(b"\xff\xfe\x00")
        self.read_or_refused(tmp_path)


def changed(tree, data):
    """The same JSON with one value of it replaced, removed or renamed."""
    if isinstance(tree, dict | list) and tree and data.draw(st.integers(0, 3)):
        key = data.draw(st.sampled_from([*tree] if isinstance(tree, dict) else [*range(len(tree))]))
        copy = tree.copy()
        how = data.draw(st.sampled_from(["change", "remove", "rename"]))
        if how == "change":
            copy[key] = changed(tree[key], data)
        elif how == "remove":
            del copy[key]
        elif isinstance(copy, dict):
            copy[f"{key}x"] = copy.pop(key)
        return copy
    return data.draw(st.sampled_from(VALUES))
