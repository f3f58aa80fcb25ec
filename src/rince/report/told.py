"""What a row of a table was told: only rows that were told the same labels can be held against each other."""

from __future__ import annotations

from collections.abc import Mapping

from rince.config import Recipe
from rince.evaluation.metrics import parse
from rince.report.tables import Table

PARENTS = "parents"  # ranks of the level above the classes alone
WITHOUT_LABELS = ("instances", "embedding", "clusters", "position", "clips")  # ranks that samples have by themselves


def told(recipe: Recipe) -> str:
    """The labels that training was told: `nothing`, `class`, `group` or `class and group`."""
    ranks, method = recipe.ranks, recipe.method
    if not method.trains:
        return "nothing"
    if ranks is not None and ranks.kind == PARENTS and not method.needs_superclasses:
        return "group"
    if method.needs_superclasses or (ranks is not None and ranks.needs_levels):
        return "class and group"
    return "nothing" if ranks is not None and ranks.kind in WITHOUT_LABELS else "class"


def is_ranked(recipe: Recipe) -> bool:
    """Whether it is RINCE: a term for every rank, each of which keeps the farther ones at a distance."""
    return len(recipe.terms) > 1 and not any(term.includes_closer for term in recipe.terms)


def rivals(table: Table, recipes: Mapping[str, Recipe]) -> dict[str, str]:
    """Metric → the best of the rows that were told what ranked rows were told, and are none.

    Args:
        table: of one place.
        recipes: of its rows, by their names.
    """
    ranked = {told(recipe) for recipe in recipes.values() if is_ranked(recipe)}
    names = {name for name, recipe in recipes.items() if not is_ranked(recipe) and told(recipe) in ranked}
    others = [row for row in table.rows if row.name in names]
    found = {}
    for metric in table.metrics:
        means = {row.name: mean for row in others if (mean := row.cells[metric].mean) is not None}
        direction = parse(metric).metric.direction
        if means and direction is not None:
            found[metric] = (min if direction == "down" else max)(means, key=lambda name: means[name])
    return found
