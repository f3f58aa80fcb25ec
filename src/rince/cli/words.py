"""What the commands have in common: their arguments, and how they speak to a person."""

# ruff: noqa: PLC0415 - heavy imports happen inside the commands, so that `rince --help` answers at once

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

SOME_FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130  # exit codes


def known_recipes(incomplete: str) -> list[str]:
    """For the Tab key."""
    from rince.config.reading import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def known_keys(incomplete: str) -> list[str]:
    """For the Tab key behind a recipe."""
    from rince.config.reference import all_keys

    return sorted({f"{key.name}=" for key in all_keys() if key.name.startswith(incomplete)})


RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="A recipe's name, table/row (see `rince ls`), or a YAML file.",
        autocompletion=known_recipes,
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes, such as train.epochs=5 data.source=DIR scale=reduced; `rince explain` tells what there is.",
        autocompletion=known_keys,
        show_default=False,
    ),
]
Runs = Annotated[list[Path], typer.Argument(help="Folders of trained runs.", show_default=False)]
RunArgument = Annotated[Path, typer.Argument(help="Folder of a trained run.", show_default=False)]
SamplesArgument = Annotated[
    str,
    typer.Argument(
        help="An image, or a folder of them; or videos, vectors or texts, as the run; or one text itself.",
        show_default=False,
    ),
]
DevicesOption = Annotated[
    int, typer.Option(min=1, help="Processes, each with a device of its own, that embed a share each.")
]
AcceleratorOption = Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")]
WhichOption = Annotated[
    Literal["features", "embeddings"] | None,
    typer.Option(
        help="features: before the head; embeddings: after it, of unit length. By default what was better on "
        "validation, else features."
    ),
]

SplitOption = Annotated[
    str | None, typer.Option(help="Take this split of labelled data, read as the run's own, not just any samples.")
]
CheckpointOption = Annotated[
    Literal["last", "best"], typer.Option(help="best: that of the highest R@1 on validation (train.judge_every).")
]
NeighboursOption = Annotated[
    int | None, typer.Option("-k", min=1, help="Neighbours that an answer is made from.", show_default="10")
]


def next_command(command: str) -> None:
    """What a person may want to do now; apart from what other programs read."""
    say(f"next: {command}")


def say(text: str) -> None:
    """To a person, apart from what other programs read."""
    typer.echo(text, err=True)


def tell(text: str) -> None:
    """The last word, also to a terminal that was closed."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
