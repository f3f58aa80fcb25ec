"""Writes docs/keys.md, every key of a recipe, from the schema: `python scripts/write_keys.py`."""

from pathlib import Path

from rince.config.reference import reference_page

Path(__file__).parents[1].joinpath("docs", "keys.md").write_text(reference_page())
