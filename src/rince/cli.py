"""The command line. Heavy imports happen inside the commands, so that `rince --help` answers at once."""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rince.analysis.commands import app as analyse_app
from rince.terminal import shown_progress

if TYPE_CHECKING:
    from rince.run import Run

app = typer.Typer(
    name="rince",
    help="Contrastive learning from ranked positives.\n\nStart with: rince train demo/rince-in --out runs/first",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SOME_FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
EXTRAS = {  # that bring a missing package; else `report`
    "av": "video",
    "sentence_transformers": "text",
    "transformers": "pretrained",
    "efficientnet_lite_pytorch": "pretrained",
}
RecipeArgument = Annotated[str, typer.Argument(help="A recipe's name, table/row (see `rince ls`), or a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes, such as train.epochs=5 data.source=DIR scale=reduced.", show_default=False),
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
AcceleratorOption = Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")]
WhichOption = Annotated[
    Literal["features", "embeddings"] | None,
    typer.Option(
        help="features: before the head; embeddings: after it, of unit length. By default what was better on "
        "validation, else features."
    ),
]


@app.command("ls")
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


@app.command()
def show(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Print a recipe as it will be used: base, scale and changes merged in, defaults filled in."""
    from rince.config import load_recipe

    typer.echo(load_recipe(recipe, overrides or ()).to_yaml(), nl=False)


@app.command("cp")
def copy(
    recipe: RecipeArgument,
    file: Annotated[Path, typer.Argument(help="Where to write it. Nothing is overwritten.")],
    overrides: Overrides = None,
) -> None:
    """Copy a recipe to a file of your own, to edit."""
    from rince.config import load_recipe
    from rince.errors import ConfigError
    from rince.files import write_out

    text = load_recipe(recipe, overrides or ()).to_yaml()
    if file.exists():
        raise ConfigError(f"{file} exists and will not be overwritten; choose another name")
    write_out(file, f"# A copy of {recipe}. Run it with: rince train {file} --out RUN\n{text}")
    typer.echo(f"wrote {file}")


@app.command()
def validate(file: Annotated[Path, typer.Argument(help="A recipe file.")]) -> None:
    """Check a recipe file; tells all mistakes at once."""
    from rince.config import load_recipe
    from rince.errors import ConfigError

    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    recipe = load_recipe(file)
    typer.echo(f"{file} is valid: {recipe.name}, {recipe.method.kind}, {recipe.train.epochs} epochs")


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
    accelerator: AcceleratorOption = "auto",
) -> None:
    """Train an encoder by a recipe.

    rince train demo/rince-in --out runs/first
    rince train cifar100/rince-in scale=reduced data.source=DIR/cifar100 --out runs/cifar
    rince train --resume runs/first
    """
    from rince.config import load_recipe
    from rince.errors import ConfigError
    from rince.run import Run, open_run
    from rince.train.setup import NOTHING

    if resume is not None:
        if recipe is not None or out is not None or dry_run:
            raise ConfigError("--resume goes on with a run as it is; give it alone, or start a new run with --out")
        _train(open_run(resume), devices, accelerator, resume=True)
        return
    if recipe is None:
        raise ConfigError("name a recipe to train (`rince ls` lists them), or a run to --resume")
    chosen = load_recipe(recipe, overrides or ())
    if dry_run:
        from rince.train.plan import plan

        typer.echo(plan(chosen))
        return
    if out is None:
        raise ConfigError("say where the run goes: --out FOLDER (or --dry-run to see what would happen)")
    _train(Run(out, chosen, NOTHING), devices, accelerator, resume=False)


def _train(run: Run, devices: int, accelerator: str, *, resume: bool) -> None:
    from rince.train.runtime import is_first_process

    try:
        run.train(resume=resume, devices=devices, accelerator=accelerator)
    except KeyboardInterrupt as error:  # which typer would answer without a word
        if is_first_process():
            _tell(f"rince: {str(error) or 'interrupted before the first step'}")
        raise typer.Exit(INTERRUPTED) from None
    if is_first_process():
        typer.echo(f"done: {run.folder}")


@app.command()
def evaluate(
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of trained runs.", show_default=False)] = None,
    outliers: Annotated[
        list[str] | None,
        typer.Option(
            help="Samples of no class of the run: a hub name, a folder or parquet; SOURCE:LIST for some classes of it; "
            "with --embeddings a file of vectors. Repeat for several."
        ),
    ] = None,
    probe: Annotated[
        Literal["fast", "paper"],
        typer.Option(help="fast: features once, converged; paper: 100 epochs with new crops, as long as training."),
    ] = "fast",
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Also judge a run that has not ended.")] = False,
    split: Annotated[
        str | None,
        typer.Option(help="Test on this split, not on the recipe's data.test_split; validation: on what was held out."),
    ] = None,
    on: Annotated[
        list[str] | None, typer.Option(help="Judge it on this data of the same kind, not on its own. Repeatable.")
    ] = None,
    finetune: Annotated[bool, typer.Option("--finetune", help="Also train a classifier from its network.")] = False,
    checkpoint: Annotated[
        Literal["last", "best"], typer.Option(help="best: that of the highest R@1 on validation (train.judge_every).")
    ] = "last",
    embeddings: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Judge saved vectors instead: a training and a test file, as data.kind=vectors reads them."),
    ] = None,
    taxonomy: Annotated[
        str | None,
        typer.Option(help="With --embeddings: column, none, cifar100, fashion, or a file that groups the classes."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --embeddings: also write the numbers to this JSON file.")
    ] = None,
    accelerator: AcceleratorOption = "auto",
) -> None:
    """Judge runs: probe, retrieval at every level, ranking, outliers, geometry.

    Writes RUN/results.json. Features are kept in RUN/features and made again when the checkpoint changes.

    rince evaluate runs/first
    rince evaluate runs/scl runs/rince --outliers DIR/cifar10 --outliers DIR/tiny-imagenet
    rince evaluate runs/rince-uni --on DIR/ucf101 --on DIR/hmdb51 --finetune
    rince evaluate --embeddings train.npz test.npz --outliers others.npz --taxonomy tree.yaml
    """
    from rince.errors import ConfigError
    from rince.evaluation.evaluate import evaluate as evaluate_run
    from rince.evaluation.evaluate import evaluate_files
    from rince.report.tables import metrics_text

    if (embeddings is None) == (not runs):
        raise ConfigError("name runs to evaluate, or two files of vectors with --embeddings TRAIN TEST")
    if embeddings is not None:
        if unfinished or split or on or finetune or probe != "fast" or checkpoint != "last":
            raise ConfigError(
                "--embeddings judges vectors as they are; --probe, --unfinished, --split, --on, --finetune and "
                "--checkpoint need a run"
            )
        far = [Path(place) for place in outliers or ()]
        with shown_progress("embeddings") as tell:
            verdict = evaluate_files(*embeddings, outliers=far, taxonomy=taxonomy, out=out, tell=tell, say=_say)
        typer.echo(metrics_text(verdict.metrics))
        return
    if out is not None or taxonomy is not None:
        raise ConfigError(
            "--out and --taxonomy go with --embeddings; a run keeps its numbers in its own results.json, and has its "
            "taxonomy in its recipe"
        )
    for folder in runs or []:
        with shown_progress(str(folder)) as tell:
            verdict = evaluate_run(
                folder,
                outliers=outliers or (),
                probe=probe,
                unfinished=unfinished,
                split=split,
                on=on or (),
                finetune=finetune,
                checkpoint=checkpoint,
                accelerator=accelerator,
                tell=tell,
                say=_say,
            )
        typer.echo(f"{folder}\n{metrics_text(verdict.metrics)}\nwrote {folder / 'results.json'}")


def _say(text: str) -> None:
    typer.echo(text, err=True)


@app.command()
def embed(
    run: RunArgument,
    path: SamplesArgument,
    out: Annotated[
        Path, typer.Option(help="Parquet file to write: path, vector, and labels if there are any.", show_default=False)
    ],
    which: WhichOption = None,
    split: Annotated[
        str | None, typer.Option(help="Take this split of labelled data, read as the run's own, not just any samples.")
    ] = None,
    accelerator: AcceleratorOption = "auto",
) -> None:
    """Write what a run makes of new samples, a row for each: what `data.kind=vectors` and `--embeddings` read.

    rince embed runs/first PHOTOS --out vectors.parquet
    rince embed runs/first DIR/cifar100 --split train --out vectors/train.parquet
    """
    from rince.run import open_run

    opened = open_run(run)
    vectors = opened.embed(path, which=_said(opened, which), split=split, out=out, accelerator=accelerator, say=_say)
    typer.echo(f"wrote {out}: {len(vectors):,} vectors")


@app.command()
def neighbours(
    run: RunArgument,
    query: SamplesArgument,
    gallery: Annotated[str, typer.Argument(help="A file or folder to search.", show_default=False)],
    k: Annotated[int, typer.Option("-k", min=1, help="How many neighbours to show.")] = 5,
    which: WhichOption = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw them into this PNG file.")] = None,
    accelerator: AcceleratorOption = "auto",
) -> None:
    """Show the samples of a gallery that a run finds nearest to a query."""
    from rince.run import open_run

    opened = open_run(run)
    which = _said(opened, which)
    found = opened.neighbours(query, gallery, k=k, which=which, picture=picture, accelerator=accelerator, say=_say)
    for each in found:
        typer.echo(each.place if each.text in ("", each.place) else f"{each.place}  {each.text}")
        for neighbour in each.near:
            typer.echo(f"  {neighbour.cosine:+.4f}  {neighbour.place}  {neighbour.text}".rstrip())
    if picture is not None:
        typer.echo(f"wrote {picture}")


@app.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="Folder to write to; must be new or empty.", show_default=False)],
) -> None:
    """Write a run's encoder for other programs: safetensors weights, an ONNX graph, and what its input looks like.

    Of texts also the tokeniser's files, and a folder that sentence-transformers opens.
    """
    from rince.run import open_run

    opened = open_run(run)
    _said(opened, None)
    for file in opened.export(out, say=_say):
        typer.echo(f"wrote {file}")


def _said(run: Run, which: Literal["features", "embeddings"] | None) -> Literal["features", "embeddings"]:
    """Where vectors are taken; told where the run decides."""
    if which is not None:
        return which
    from rince.train.validation import recorded

    why = "better on validation" if recorded(run.folder) else "nothing was held out to compare"
    typer.echo(
        f"{run.folder}: {run.place}, {'before' if run.place == 'features' else 'after'} the head ({why})", err=True
    )
    return run.place


@app.command()
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder to write to.", show_default=False)],
) -> None:
    """Compare evaluated runs on one page that works from disk, with every figure and table as files beside it."""
    from rince.report.page import write_report
    from rince.report.tables import terminal

    with shown_progress("report") as tell:
        written = write_report(runs, out, tell=tell)
    typer.echo(terminal(written.table))
    typer.echo(f"\nthe page: {written.page} (open it in any browser; figures and tables are beside it)")


@app.command()
def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            help="cifar100, imagenet100, video, temperature, bank-size, smoothing, two-heads, scl-two-heads, "
            "threshold, noise; definitions, clinc150, grocery.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for runs and table; go on with it by the same command.")],
    scale: Annotated[
        Literal["full", "reduced", "pretrained"] | None,
        typer.Option(
            help="full: the paper's, days on GPUs; reduced: minutes a run, the default; pretrained: from a frozen "
            "EfficientNet-Lite0. Tables of ours have one only."
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs and estimate the time.")] = False,
) -> None:
    """Train and evaluate every row of a table of the paper, and write ours beside its numbers.

    What is done is skipped, what was interrupted goes on, a row that fails does not stop the others.

    rince reproduce cifar100 --data DIR --out runs/cifar100 --dry-run
    rince reproduce temperature --data DIR --seeds 123 --out runs/temperature
    """
    from rince.reproduce import Reproduction, estimate, is_done

    work = Reproduction(table, scale, out, data, rows or None, seeds or None, jobs)
    planned = work.plan()
    if dry_run:
        for job in planned:
            typer.echo(
                f"{'done' if is_done(job) else 'to do'}  {job.row}, seed {job.seed}: {' '.join(job.commands[0])}"
            )
        left = [job for job in planned if not is_done(job)]
        typer.echo(f"{len(left)} runs to do; {estimate(left, jobs)}" if left else "nothing to do")
        return
    try:
        failed = work.run(planned, typer.echo)
    except KeyboardInterrupt:
        typer.echo("interrupted; runs are saved, go on with the same command", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo((out / "table.md").read_text())
    typer.echo(f"wrote {out}/table.md, .tex, .csv and {out}/summary")
    if failed:
        names = ", ".join(f"{job.row} (seed {job.seed})" for job in failed)
        typer.echo(f"{len(failed)} runs failed: {names}; mend the cause and give the same command again", err=True)
        raise typer.Exit(SOME_FAILED)


ranks_app = typer.Typer(help="Look at ranks before training with them.", no_args_is_help=True)
app.add_typer(ranks_app, name="ranks")


@ranks_app.command("audit")
def ranks_audit(
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
    from rince.analysis.audit import audit, audit_text, draw_audit
    from rince.config import load_recipe
    from rince.files import check_place

    if picture is not None:
        check_place(picture)
    found = audit(load_recipe(recipe, overrides or ()), reference)
    typer.echo(audit_text(found))
    if picture is not None:
        draw_audit(found, picture)
        typer.echo(f"wrote {picture}")


app.add_typer(analyse_app, name="analyse")


def main(run: Callable[[], object] = app) -> None:
    """The entry point: errors of ours become one message and exit code 2."""
    from rince.errors import RinceError
    from rince.memory import keep_freed_memory

    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as of stderr: names of files need not be UTF-8
    try:
        run()
    except RinceError as error:
        _tell(f"rince: {error}")
        sys.exit(BAD_INPUT)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "rince":
            raise
        extra = EXTRAS.get((error.name or "").partition(".")[0], "report")
        _tell(f'rince: this needs the package {error.name}: pip install "rince[{extra}]"')
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt as error:
        _tell(f"rince: {str(error) or 'interrupted; what was written is whole'}")
        sys.exit(INTERRUPTED)
    except OSError as error:  # what the system refuses is no bug of ours
        where = f"{error.filename}: " if error.filename else ""
        if error.errno == errno.ENAMETOOLONG:
            whole, longest = str(error.filename), max(Path(str(error.filename)).parts, key=len)
            where = f"{longest[:60]!r}…, {len(longest)} letters in a path of {len(whole)}: "
        _tell(f"rince: the system refuses: {where}{error.strerror or error}")
        sys.exit(BAD_INPUT)


def _tell(text: str) -> None:
    with suppress(OSError):  # a terminal that was closed
        print(text, file=sys.stderr, flush=True)
