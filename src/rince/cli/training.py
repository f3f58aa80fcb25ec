"""`rince train`, and the tables of runs that `rince reproduce` makes."""

# ruff: noqa: PLC0415 - heavy imports happen inside the commands, so that `rince --help` answers at once

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rince.cli.words import INTERRUPTED, SOME_FAILED, AcceleratorOption, Overrides, known_recipes, next_command, tell
from rince.terminal import is_first_process

if TYPE_CHECKING:
    from rince.run import Run


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe's name, table/row (see `rince ls`), or a YAML file.",
            autocompletion=known_recipes,
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; made, and must be new or empty.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Folder of a run to go on with, exactly where it stopped.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="First decode every image, to leave out damaged ones: data.check=decode.")
    ] = False,
    devices: Annotated[int, typer.Option(min=1, help="Processes, each with a device of its own.")] = 1,
    accelerator: AcceleratorOption = "auto",
) -> None:
    """Train an encoder by a recipe.

    rince train demo/rince-in --out runs/first
    rince train cifar100/rince-in scale=reduced data.source=DIR/cifar100 --out runs/cifar
    rince train --resume runs/first
    rince train --resume runs/first --dry-run
    """
    from rince.config import load_recipe
    from rince.errors import ConfigError
    from rince.run import Run, open_run
    from rince.train.setup import NOTHING

    if resume is not None:
        if recipe is not None or out is not None or check:
            longer = f"rince train {resume}/recipe.yaml model.start_from={resume} train.epochs=… --out RUN"
            raise ConfigError(
                f"--resume goes on with a run as it is, to its own end; to train longer, or otherwise, from where it "
                "stands, start a new run from its network (optimizer, schedule, bank and twin begin anew, since the "
                f"rate of a step depends on how many there are): {longer}"
            )
        if dry_run:
            _tell_rest(resume)
            return
        _train(open_run(resume), devices, accelerator, resume=True)
        return
    if recipe is None:
        raise ConfigError("name a recipe to train (`rince ls` lists them), or a run to --resume")
    chosen = load_recipe(recipe, [*(overrides or ()), *(["data.check=decode"] if check else [])])
    if dry_run:
        from rince.train.plan import plan

        typer.echo(plan(chosen))
        words = " ".join(map(quote, [recipe, *(overrides or ())]))
        next_command(f"rince train {words} --out {quote(str(out)) if out else 'RUN'}")
        return
    if out is None:
        raise ConfigError("say where the run goes: --out FOLDER (or --dry-run to see what would happen)")
    _train(Run(out, chosen, NOTHING), devices, accelerator, resume=False)


def _tell_rest(folder: Path) -> None:
    """What is left to do of a run that stopped."""
    from rince.train.checkpoint import load_checkpoint
    from rince.train.plan import plan
    from rince.train.record import CHECKPOINT, recipe_of

    saved = folder / CHECKPOINT
    done = int(load_checkpoint(saved, {"step"})["step"]) if saved.is_file() else 0
    typer.echo(plan(recipe_of(folder), done=done))
    next_command(f"rince train --resume {quote(str(folder))}")


def _train(run: Run, devices: int, accelerator: str, *, resume: bool) -> None:
    try:
        run.train(resume=resume, devices=devices, accelerator=accelerator)
    except KeyboardInterrupt as error:  # which typer would answer without a word
        if is_first_process():
            tell(f"rince: {str(error) or 'interrupted before the first step'}")
        raise typer.Exit(INTERRUPTED) from None
    if is_first_process():
        typer.echo(f"done: {run.folder}")
        next_command(f"rince evaluate {quote(str(run.folder))}")


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            help="cifar100, imagenet100, video, temperature, bank-size, smoothing, two-heads, scl-two-heads, "
            "threshold, rate, noise; definitions, clinc150, grocery.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for runs and table; go on with it by the same command.")],
    scale: Annotated[
        Literal["full", "long", "reduced", "pretrained"] | None,
        typer.Option(
            help="full: the paper's, days on GPUs; long: from scratch, half an hour of one core a run; reduced: "
            "minutes a run, the default; pretrained: from a frozen EfficientNet-Lite0. Tables of ours have one only."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder that holds data sets by name, such as cifar100; else from the hub."),
    ] = None,
    rows: Annotated[list[str] | None, typer.Option(help="A row's name; repeat for several. All by default.")] = None,
    seeds: Annotated[
        list[int] | None, typer.Option(help="Repeat for several. By default 123, 546, 937; ten where runs are short.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; on CPUs they share the cores.")] = 1,
    kept: Annotated[
        Path | None,
        typer.Option(help="A summary of before, such as results/clinc150: its runs count as done, the table grows."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs and estimate the time.")] = False,
) -> None:
    """Train and evaluate every row of a table of the paper, and write ours beside its numbers.

    What is done is skipped, what was interrupted goes on, a row that fails does not stop the others.

    rince reproduce cifar100 --data DIR --out runs/cifar100 --dry-run
    rince reproduce temperature --data DIR --seeds 123 --out runs/temperature
    """
    from rince.reproduce import Plan, Reproduction, estimate

    plan = Plan(table, scale, out, data)
    work = Reproduction(plan, rows=rows or None, seeds=seeds or None, at_a_time=jobs, kept=kept)
    if dry_run:
        left = work.left
        for job in work.jobs:
            typer.echo(f"{'to do' if job in left else 'done'}  {job.row}, seed {job.seed}: {' '.join(job.commands[0])}")
        typer.echo(f"{len(left)} runs to do; {estimate(left, jobs)}" if left else "nothing to do")
        if left:
            next_command("the same without --dry-run; it can be interrupted and given again")
        return
    try:
        failed = work.run(typer.echo)
    except KeyboardInterrupt:
        typer.echo("interrupted; runs are saved, go on with the same command", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo((out / "table.md").read_text())
    typer.echo(f"wrote {out}/table.md, .tex, .csv and {out}/summary")
    if failed:
        names = ", ".join(f"{job.row} (seed {job.seed})" for job in failed)
        typer.echo(f"{len(failed)} runs failed: {names}; mend the cause and give the same command again", err=True)
        raise typer.Exit(SOME_FAILED)
