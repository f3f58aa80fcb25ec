"""Recipes: a YAML file, one level of `base:`, `a.b.c=value` overrides; in the end one frozen, validated object."""

from rince.config.changes import changed_settings, settings_of
from rince.config.reading import (
    load_recipe,
    load_run_recipe,
    read_run_recipe,
    recipe_about,
    recipe_names,
    recipe_text,
    recipe_values,
    validate,
    with_overrides,
)
from rince.config.recipe import (
    DataSettings,
    MethodSettings,
    ModelSettings,
    RankSettings,
    Recipe,
    ScheduleSettings,
)
from rince.config.section import Section

__all__ = [
    "DataSettings",
    "MethodSettings",
    "ModelSettings",
    "RankSettings",
    "Recipe",
    "ScheduleSettings",
    "Section",
    "changed_settings",
    "load_recipe",
    "load_run_recipe",
    "read_run_recipe",
    "recipe_about",
    "recipe_names",
    "recipe_text",
    "recipe_values",
    "settings_of",
    "validate",
    "with_overrides",
]
