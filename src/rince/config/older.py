"""Recipes of runs that were made by an older rince: the same settings under the keys of today."""

from __future__ import annotations

from typing import Any

from rince.config.kinds import DEFAULTS
from rince.config.recipe import OPTIONAL
from rince.registry import BUILT_IN, part


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a run's recipe as they would be written now."""
    return _with_parts(_with_kinds(values))


def _with_parts(values: dict[str, Any]) -> dict[str, Any]:
    """Before, `schedule.held_out` was a share for plateaus alone, and data without a test split gave up nothing."""
    data, schedule = values.get("data"), values.get("schedule")
    if not isinstance(data, dict):
        return values
    now = dict(values)
    if isinstance(schedule, dict) and "held_out" in schedule:
        now["schedule"] = {key: value for key, value in schedule.items() if key != "held_out"}
        if schedule.get("kind") == "plateau":
            data = {"validation": schedule["held_out"], **data}
    kind = data.get("kind")
    if kind in BUILT_IN["sources"] and "test_part" in part("sources", kind).model_fields:
        data = {"test_part": 0.0, **data}
    return now | {"data": data}


def _with_kinds(values: dict[str, Any]) -> dict[str, Any]:
    """Before, a section `clips` said that the data is videos, and every recipe had every section, used or not."""
    data = values.get("data")
    if not isinstance(data, dict) or "kind" in data:
        return values
    clips = values.get("clips")
    kind = "images" if clips is None else "videos"
    own = part("sources", kind).model_fields
    kept = {key: value for key, value in (data | (clips or {})).items() if key in own}
    now = {key: value for key, value in values.items() if key != "clips"} | {"data": {"kind": kind, **kept}}
    method = (values.get("method") or {}).get("kind", DEFAULTS["method"])
    uses = part("methods", method).uses if method in BUILT_IN["methods"] else frozenset(OPTIONAL)
    ranks = now.get("ranks")
    if isinstance(ranks, dict) and ranks.get("kind", "tree") != "tree":
        now["ranks"] = {key: value for key, value in ranks.items() if key != "flipped"}
    return {key: value for key, value in now.items() if key not in OPTIONAL or key in uses}
