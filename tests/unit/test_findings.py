"""What `make fuzz` has found is mended, and stays so."""

from random import Random

import pytest

from fuzz import FINDINGS, TARGETS, finding, image_files, mutated, vector_files, whole_checkpoint
from rince.errors import DataError

FOUND = sorted(place for place in FINDINGS.iterdir() if not place.name.startswith("."))


@pytest.mark.parametrize("place", FOUND, ids=[place.name for place in FOUND])
def test_a_finding_is_mended(place):
    assert finding(place.name.partition("-")[0], place.read_bytes()) == ""


def test_what_is_whole_is_taken():
    """Else every mutation would be refused, and nothing be found."""
    TARGETS["checkpoint"].take(whole_checkpoint())
    for ending, content in vector_files():
        TARGETS["vectors"].take(ending.encode() + b"\n" + content)
    for content in image_files():
        TARGETS["image"].take(content)


@pytest.mark.parametrize("wrong", [ZeroDivisionError("x"), UserWarning("x"), TimeoutError("x"), DataError("")])
def test_what_is_no_clear_error_is_found(monkeypatch, wrong):
    def take(content):
        raise wrong

    monkeypatch.setitem(TARGETS, "broken", TARGETS["loss"]._replace(take=take))
    assert finding("broken", b"")


def test_mutation_follows_from_the_seed_and_changes_something():
    once, again = ([mutated(bytes(100), Random(seed)) for seed in range(50)] for _ in range(2))
    assert once == again
    assert len(set(once)) > 40
