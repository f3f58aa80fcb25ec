"""The table of breakages cannot rot: every text is found in one place, and the tests that must notice are there."""

import shlex
from pathlib import Path

import pytest

from breakages import BREAKAGES, ROOT, Breakage, places, problem


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_it_can_be_applied(breakage):
    assert problem(breakage) is None
    ((path, _),) = places(breakage.find)
    whole = path.read_text(encoding="utf-8")
    broken = whole.replace(breakage.find, breakage.replace)
    assert broken != whole
    if path.suffix == ".py":
        compile(broken, str(path), "exec")  # a file that cannot be read would be noticed by any test
    files = [Path(word.partition("::")[0]) for word in shlex.split(breakage.tests) if word.startswith("tests/")]
    assert files
    assert all((ROOT / file).is_file() for file in files)


def test_names_are_unique_and_there_are_many():
    names = [breakage.name for breakage in BREAKAGES]
    assert len(set(names)) == len(names) >= 14


@pytest.mark.parametrize(
    ("find", "reason"),
    [("there is no such text", "nowhere"), ("from __future__ import annotations", "src/rince/bank.py (1), ")],
)
def test_a_text_that_is_not_in_exactly_one_place_is_told(find, reason):
    assert reason in problem(Breakage("some", find, "", "tests"))
