"""Every key of a recipe is described, in the docs and by `rince explain`."""

import re
from pathlib import Path

import pytest

from rince.config import load_recipe, recipe_names
from rince.config.reference import ITEM, all_keys, explain, reference_page
from rince.errors import ConfigError

ROOT = Path(__file__).parents[2]


def keys_in(values, name=""):
    """Keys of plain values, items of lists of mappings as one."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from keys_in(value, f"{name}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{name}{key}"
            for item in value:
                yield from keys_in(item, f"{name}{key}.{ITEM}.")
        else:
            yield f"{name}{key}"


def test_every_key_that_a_shipped_recipe_has_is_there_and_every_key_is_described():
    keys = all_keys()
    assert [key.name for key in keys if not key.about] == []
    assert [key.name for key in keys if not key.values] == []
    known = {key.name for key in keys}
    used = {key for name in recipe_names() for key in keys_in(load_recipe(name).model_dump(exclude_none=True))}
    assert len(used) > 60
    assert used - known == set()


def test_the_page_is_that_of_the_schema():
    written = (ROOT / "docs/keys.md").read_text()
    assert written == reference_page(), "run scripts/write_keys.py"
    assert len(re.findall(r"^\| `[\w.]+` \|", written, flags=re.MULTILINE)) == len(all_keys(ours_only=True)) > 120


def test_explain():
    told = explain("train.epochs")
    assert told.splitlines()[0] == "train.epochs"
    assert "values   whole number > 0" in told
    assert "default  1000" in told
    assert explain("epochs") == explain("train.epochs=5") == told
    assert "must not fall from rank to rank" in explain("loss.terms.1.temperature")
    assert explain("data.source").count("data.source (data.kind ") == 4  # one for each kind
    section = explain("twin")
    assert section.startswith("The momentum twin. Of the methods contrast, ")
    assert "twin.momentum" in section
    with pytest.raises(ConfigError, match=r"no recipe has a key 'train.epoch'; did you mean train.epochs"):
        explain("train.epoch")
    with pytest.raises(ConfigError, match="`rince explain` lists all keys"):
        explain("zzzzqqq")


def test_explain_finds_values_too():
    told = explain("plateau")
    assert told.startswith("plateau is a value of:")
    assert "schedule.kind" in told
