from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.registry import Registry, close_name, unknown_name

names = st.text(min_size=1, max_size=8)


@given(st.lists(st.tuples(names, st.integers()), max_size=20))
def test_the_latest_entry_of_a_name_is_found_and_comes_last(pairs):
    registry: Registry[int] = Registry("thing")
    for name, entry in pairs:
        registry.add(name, entry)
        assert list(registry)[-1] == name
        assert registry.entries()[-1] == registry.find(name) == entry
    assert set(registry) == {name for name, _ in pairs}
    assert len(registry) == len(set(registry))


def test_a_decorator_registers_and_gives_back_what_it_decorates():
    registry = Registry("thing")

    @registry.register("mine")
    def mine():
        return 1

    assert registry.find("mine") is mine
    assert "mine" in registry and "other" not in registry


def test_what_a_registry_was_made_of_is_left_alone():
    start = {"a": 1}
    Registry("thing", start).add("b", 2)
    assert start == {"a": 1}


@pytest.mark.parametrize(
    ("name", "meant"),
    [("visoin", "vision"), ("VISION", "vision"), ("txt", "text"), ("q", None), ("", None)],
)
def test_a_near_name_is_suggested(name, meant):
    assert close_name(name, ["text", "vision"]) == meant


def test_a_refusal_says_what_there_is():
    assert unknown_name("thing", "q", []) == "unknown thing 'q': available are none"
    with pytest.raises(ConfigError, match="unknown thing 'q': available are a, b"):
        Registry("thing", {"a": 1, "b": 2}).find("q")


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_must_be_a_word(name):
    with pytest.raises(ConfigError, match="non-empty str"):
        Registry("thing").add(name, 1)
