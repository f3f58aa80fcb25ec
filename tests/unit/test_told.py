"""What the rows of a table were told, which decides whom RINCE is held against."""

import pytest

from rince.config import load_recipe
from rince.report.told import told


@pytest.mark.parametrize(
    ("recipe", "labels"),
    [
        ("cifar100/scl-in-superclass", "group"),
        ("cifar100/smooth-labels", "class and group"),
        ("cifar100/hierarchical-triplet", "class and group"),
        ("cifar100/triplet", "class and group"),
        ("cifar100/fast-ap", "class and group"),  # its batches are of two superclasses
        ("video/rince-uni", "nothing"),
    ],
)
def test_a_row_was_told_what_its_recipe_needs(recipe, labels):
    assert told(load_recipe(recipe)) == labels
