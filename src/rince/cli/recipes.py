"""Commands about recipes, and about the ranks that they give."""

# ruff: noqa: PLC0415 - heavy imports happen inside the commands, so that `rince --help` answers at once

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from rince.cli.words import Overrides, RecipeArgument, known_keys, next_command


def list_recipes(
    parts: Annotated[
        bool, typer.Option("--parts", help="List what recipes can name instead, and which package brings it.")
    ] = False,
) -> None:
    """List the recipes that ship, one line each."""
    if parts:
        from rince.registry import BUILT_IN, registered

        for group in BUILT_IN:
            for name, where in registered(group):
                typer.echo(f"{group:8}  {name:20}  {where}")
        return
    from rince.config.reading import recipe_about, recipe_names

    names = recipe_names()
    widest = max(map(len, names))
    for name in names:
        typer.echo(f"{name:{widest}}  {recipe_about(name)}")
    next_command("rince train RECIPE data.source=YOURS --dry-run")


def explain(
    key: Annotated[
        str | None,
        typer.Argument(help="A key, its last part, or a section.", autocompletion=known_keys, show_default=False),
    ] = None,
) -> None:
    """Say what a key of a recipe is, which values it takes, and its default; without KEY list all keys.

    rince explain loss.terms.1.temperature
    rince explain schedule
    """
    from rince.config.reference import all_keys, one_line_each
    from rince.config.reference import explain as told

    typer.echo(one_line_each(all_keys()) if key is None else told(key.rstrip("=")))


def show(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Print a recipe as it will be used: base, scale and changes merged in, defaults filled in."""
    from rince.config import load_recipe

    typer.echo(load_recipe(recipe, overrides or ()).to_yaml(), nl=False)


def copy(
    recipe: RecipeArgument,
    file: Annotated[Path, typer.Argument(help="Where to write it. Nothing is overwritten.")],
    overrides: Overrides = None,
) -> None:
    """Copy a recipe to a file of your own, to edit. It is called by the file, and stands for no row of the paper."""
    from rince.config.plain_yaml import yaml_text
    from rince.config.reading import copied_values
    from rince.errors import ConfigError
    from rince.files import write_out

    text = yaml_text(copied_values(recipe, overrides or (), file.stem))
    if file.exists():
        raise ConfigError(f"{file} exists and will not be overwritten; choose another name")
    write_out(file, f"# A copy of {recipe}. Run it with: rince train {file} --out RUN\n{text}")
    typer.echo(f"wrote {file}")
    next_command(f"edit it, then: rince train {quote(str(file))} --dry-run")


def validate(file: Annotated[Path, typer.Argument(help="A recipe file.")]) -> None:
    """Check a recipe file; tells all mistakes at once."""
    from rince.config import load_recipe
    from rince.errors import ConfigError

    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    recipe = load_recipe(file)
    typer.echo(f"{file} is valid: {recipe.name}, {recipe.method.kind}, {recipe.train.epochs} epochs")
    next_command(f"rince train {quote(str(file))} --dry-run")


def audit(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    reference: Annotated[
        str | None, typer.Option(help="A taxonomy to compare with: column, folders, cifar100, fashion, or a file.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw it: .png, .svg or .pdf.")] = None,
) -> None:
    """Show what a source of ranks gives: positives, empty ranks, odd pairs, thresholds.

    rince ranks audit demo/rince-in
    rince ranks audit cifar100/rince-in data.source=DIR/cifar100 'ranks={kind: text}' --reference column
    """
    from rince.analysis.audit import audit as look_at
    from rince.analysis.audit import audit_text, draw_audit
    from rince.config import load_recipe
    from rince.files import check_place

    if picture is not None:
        check_place(picture)
    found = look_at(load_recipe(recipe, overrides or ()), reference)
    typer.echo(audit_text(found))
    if picture is not None:
        draw_audit(found, picture)
        typer.echo(f"wrote {picture}")
    next_command(f"rince train {' '.join(map(quote, [recipe, *(overrides or ())]))} --dry-run")
