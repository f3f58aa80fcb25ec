"""The command line. Heavy imports happen inside the commands, so that `rince --help` answers at once."""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="rince",
    help="Contrastive learning from ranked positives.\n\nStart with: rince train demo/rince-in --out runs/first",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

BAD_INPUT, INTERRUPTED = 2, 130
RecipeArgument = Annotated[str, typer.Argument(help="A recipe's name, table/row (see `rince ls`), or a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes, such as train.epochs=5 data.source=DIR scale=reduced.", show_default=False),
]


@app.command("ls")
def list_recipes() -> None:
    """List the recipes that ship, one line each."""
    from rince.config import load_recipe, recipe_names

    names = recipe_names()
    widest = max(map(len, names))
    for name in names:
        typer.echo(f"{name:{widest}}  {load_recipe(name).about}")


@app.command()
def show(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Print a recipe as it will be used: base, scale and changes merged in, defaults filled in."""
    from rince.config import load_recipe

    typer.echo(load_recipe(recipe, overrides).to_yaml(), nl=False)


@app.command("cp")
def copy(
    recipe: RecipeArgument,
    file: Annotated[Path, typer.Argument(help="Where to write it. Nothing is overwritten.")],
    overrides: Overrides = None,
) -> None:
    """Copy a recipe to a file of your own, to edit."""
    from rince.config import load_recipe
    from rince.errors import ConfigError
    from rince.train.record import write_whole

    text = load_recipe(recipe, overrides).to_yaml()
    if file.exists():
        raise ConfigError(f"{file} exists and will not be overwritten; choose another name")
    try:
        write_whole(file, f"# A copy of {recipe}. Run it with: rince train {file} --out RUN\n{text}")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from None
    typer.echo(f"wrote {file}")


@app.command()
def validate(file: Annotated[Path, typer.Argument(help="A recipe file.")]) -> None:
    """Check a recipe file; tells all mistakes at once."""
    from rince.config import load_recipe
    from rince.errors import ConfigError

    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    recipe = load_recipe(file)
    typer.echo(f"{file} is valid: {recipe.name}, {len(recipe.loss.terms)} rank(s), {recipe.train.epochs} epochs")


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name, table/row (see `rince ls`), or a YAML file.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; made, and must be new or empty.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Folder of a run to go on with, exactly where it stopped.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    devices: Annotated[int, typer.Option(min=1, help="Processes, each with a device of its own.")] = 1,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
) -> None:
    """Train an encoder by a recipe.

    rince train demo/rince-in --out runs/first
    rince train cifar100/rince-in scale=reduced data.source=DIR/cifar100 --out runs/cifar
    rince train --resume runs/first
    """
    from rince.config import load_recipe
    from rince.errors import ConfigError

    if resume is not None:
        if recipe is not None or out is not None or dry_run:
            raise ConfigError("--resume goes on with a run as it is; give it alone, or start a new run with --out")
        _run(resume, None, devices, accelerator)
        return
    if recipe is None:
        raise ConfigError("name a recipe to train (`rince ls` lists them), or a run to --resume")
    chosen = load_recipe(recipe, overrides)
    if dry_run:
        from rince.train.plan import plan

        typer.echo(plan(chosen))
        return
    if out is None:
        raise ConfigError("say where the run goes: --out FOLDER (or --dry-run to see what would happen)")
    _run(out, chosen, devices, accelerator)


def _run(folder: Path, recipe: object, devices: int, accelerator: str) -> None:
    from rince.config import Recipe
    from rince.train.loop import train as train_recipe
    from rince.train.record import open_run
    from rince.train.runtime import Runtime

    resume = recipe is None
    chosen = recipe if isinstance(recipe, Recipe) else open_run(folder)
    runtime = Runtime(devices, chosen.train.precision, accelerator, chosen.train.batch_norm)
    finished = train_recipe(chosen, folder, runtime, resume=resume)
    if runtime.is_main and finished:
        typer.echo(f"done: {folder}")
    elif not finished:
        if runtime.is_main:
            typer.echo(f"interrupted and saved; go on with: rince train --resume {folder}", err=True)
        raise typer.Exit(INTERRUPTED)


def main(run: Callable[[], object] = app) -> None:
    """The entry point: errors of ours become one message and exit code 2."""
    from rince.errors import RinceError

    try:
        run()
    except RinceError as error:
        print(f"rince: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        print("rince: interrupted before the step was whole; the last checkpoint is intact", file=sys.stderr)
        sys.exit(INTERRUPTED)
