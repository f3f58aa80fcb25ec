"""How long a table will take on this machine."""

from __future__ import annotations

import itertools

from rince.hierarchy.class_lists import split_source
from rince.reproduce.jobs import Job
from rince.terminal import duration


def estimate(jobs: list[Job], count: int) -> str:
    """How long the runs will take here, from a few steps of every row; lines of what has to be computed first."""
    from rince.train.loop import cost  # noqa: PLC0415 - brings torch and Fabric

    rows = {job.row: job for job in reversed(jobs)}  # the first of every row
    costs = {row: cost(rows[row].loaded) for row in dict.fromkeys(job.row for job in jobs)}
    total = sum(costs[job.row].seconds for job in jobs) / count
    told = (
        f"about {duration(total)} of training, from a few steps of every row on this machine"
        + (f", if {count} runs at a time do not slow each other" if count > 1 else "")
        + "; evaluation comes on top, less than a fifth of that where networks are trained, as much again where "
        "adapters are, and several times as much with tens of thousands of samples"
    )
    first = {each.made_of: row for row, each in reversed(costs.items())}  # rows that share samples share features
    lines = [line for row in first.values() for line in [*costs[row].ahead, *_ahead_of_judging(rows[row])]]
    return "\n".join([told, *_each_once(lines)])


def _each_once(lines: list[str]) -> list[str]:
    """Lines with those that are indented below them, each such block once."""
    blocks: list[str] = []
    for line in lines:
        if line.startswith(" ") and blocks:
            blocks[-1] += f"\n{line}"
        else:
            blocks.append(line)
    return list(dict.fromkeys(blocks))


def _ahead_of_judging(job: Job) -> list[str]:
    """Features of test samples and outliers, as far as they are made once."""
    from rince.train.plan import ahead_of_judging  # noqa: PLC0415 - brings torch and Fabric

    recipe = job.loaded
    views, test = recipe.seen_views, recipe.data.test_split
    outliers = [split_source(place) for place in job.outliers]
    found = (recipe.data.outliers(place, views, classes=classes) for place, classes in outliers)
    return ahead_of_judging(recipe, itertools.chain([recipe.data.open(test, views)], found))
