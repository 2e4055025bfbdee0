"""The proof profile reaches every law, also those with ``@settings`` of their own."""

import json
from pathlib import Path

import pytest

from tests import laws

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
CONFTEST = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.conftest import *"
LAWS = """
import json, time
from collections import Counter
import pytest
from hypothesis import given, settings, strategies as st

ran = Counter()

@settings(max_examples=3)
@given(st.integers())
def test_few(number):
    ran["few"] += 1

@pytest.mark.parametrize("case", [1, 2])
@given(number=st.integers())
def test_many(case, number):
    ran[f"many {case}"] += 1

class TestMethods:
    @settings(max_examples=3)
    @given(st.integers())
    def test_method(self, number):
        ran["method"] += 1

def waits():
    time.sleep(0.01)

@settings(max_examples=20)
@given(st.integers())
def test_slow(number):
    waits()

def test_results(request):
    marks = {item.name: [mark.name for mark in item.iter_markers()]
             for item in request.session.items}
    print("results", json.dumps([ran, marks]))
"""


def run(pytester, *options, **env):
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nmarkers =\n  law: x\n  timing: x\n  proof: x\n")
    pytester.makepyfile(LAWS)
    # without the plugins of installed libraries, which take seconds to import
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = ["-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        return pytester.runpytest_subprocess(*plugins, "-s", *options)


def results(result):
    line = next(line for line in result.outlines if "results [" in line)
    return json.loads(line[line.index("[") :].rstrip("."))


def test_the_proof_profile_lengthens_every_law_and_marks_are_set(pytester):
    assert laws.EXAMPLES == {"quick": 50, "proof": 2000}
    profile = {"HYPOTHESIS_PROFILE": "proof", "LAW_EXAMPLES": "150", "LAW_SECONDS": "100"}
    result = run(pytester, "-k", "not test_slow", **profile)
    result.assert_outcomes(passed=5, deselected=1)
    ran, _ = results(result)
    assert ran == {"few": 150, "many 1": 150, "many 2": 150, "method": 150}
    ran, marks = results(run(pytester))
    assert ran == {"few": 3, "many 1": 50, "many 2": 50, "method": 3}
    assert {"law", "timing"} <= set(marks["test_slow"])
    assert "law" in marks["test_few"] and "timing" not in marks["test_few"]
    assert "law" not in marks["test_results"]


def test_a_law_that_is_too_slow_ends_in_its_time_and_is_named(pytester):
    result = run(pytester, "-k", "test_slow", HYPOTHESIS_PROFILE="proof", LAW_SECONDS="0.3")
    result.assert_outcomes(passed=1, deselected=5)
    result.stdout.fnmatch_lines(["*laws that ran out of their 0.3 s*", "*test_slow: * examples *"])
