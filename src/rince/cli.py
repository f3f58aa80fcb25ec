"""The command line. Heavy imports happen inside the commands, so that `rince --help` answers at once."""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rince.analysis.commands import app as analyse_app
from rince.terminal import is_first_process, nobody, shown_progress

if TYPE_CHECKING:
    from rince.run import Run

app = typer.Typer(
    name="rince",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SOME_FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def _recipes(incomplete: str) -> list[str]:
    """For the Tab key."""
    from rince.config.reading import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def _keys(incomplete: str) -> list[str]:
    """For the Tab key behind a recipe."""
    from rince.config.reference import all_keys

    return sorted({f"{key.name}=" for key in all_keys() if key.name.startswith(incomplete)})


RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="A recipe's name, table/row (see `rince ls`), or a YAML file.", autocompletion=_recipes, show_default=False
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Changes, such as train.epochs=5 data.source=DIR scale=reduced; `rince explain` tells what there is.",
        autocompletion=_keys,
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


def _version(asked: bool) -> None:
    if asked:
        import rince

        typer.echo(f"rince {rince.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Contrastive learning from ranked positives.

    Start with: rince train demo/rince-in --out runs/first
    """


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
    _next("rince train RECIPE data.source=YOURS --dry-run")


@app.command()
def explain(
    key: Annotated[
        str | None,
        typer.Argument(help="A key, its last part, or a section.", autocompletion=_keys, show_default=False),
    ] = None,
) -> None:
    """Say what a key of a recipe is, which values it takes, and its default; without KEY list all keys.

    rince explain loss.terms.1.temperature
    rince explain schedule
    """
    from rince.config.reference import all_keys, one_line_each
    from rince.config.reference import explain as told

    typer.echo(one_line_each(all_keys()) if key is None else told(key.rstrip("=")))


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
    _next(f"edit it, then: rince train {quote(str(file))} --dry-run")


@app.command()
def validate(file: Annotated[Path, typer.Argument(help="A recipe file.")]) -> None:
    """Check a recipe file; tells all mistakes at once."""
    from rince.config import load_recipe
    from rince.errors import ConfigError

    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    recipe = load_recipe(file)
    typer.echo(f"{file} is valid: {recipe.name}, {recipe.method.kind}, {recipe.train.epochs} epochs")
    _next(f"rince train {quote(str(file))} --dry-run")


@app.command()
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe's name, table/row (see `rince ls`), or a YAML file.",
            autocompletion=_recipes,
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
        _next(f"rince train {words} --out {quote(str(out)) if out else 'RUN'}")
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
    _next(f"rince train --resume {quote(str(folder))}")


def _train(run: Run, devices: int, accelerator: str, *, resume: bool) -> None:
    try:
        run.train(resume=resume, devices=devices, accelerator=accelerator)
    except KeyboardInterrupt as error:  # which typer would answer without a word
        if is_first_process():
            _tell(f"rince: {str(error) or 'interrupted before the first step'}")
        raise typer.Exit(INTERRUPTED) from None
    if is_first_process():
        typer.echo(f"done: {run.folder}")
        _next(f"rince evaluate {quote(str(run.folder))}")


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
    checkpoint: CheckpointOption = "last",
    embeddings: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Judge saved vectors instead: a training and a test file, as data.kind=vectors reads them."),
    ] = None,
    taxonomy: Annotated[
        str | None,
        typer.Option(help="Group the classes by this, not as in training: column, none, cifar100, fashion, or a file."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the data of the run is now, if not where it was trained on.")
    ] = None,
    gains: Annotated[
        Path | None,
        typer.Option(
            help="With --embeddings: .npy or .npz, what each training vector (column) is worth to each test vector "
            "(row); NDCG is measured with it too."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --embeddings: also write the numbers to this JSON file.")
    ] = None,
    devices: DevicesOption = 1,
    accelerator: AcceleratorOption = "auto",
) -> None:
    """Judge runs: probe, retrieval at every level, ranking, outliers, geometry.

    Writes RUN/results.json. Features are kept in RUN/features and made again when the checkpoint changes.

    rince evaluate runs/first
    rince evaluate runs/scl runs/rince --outliers DIR/cifar10 --outliers DIR/tiny-imagenet
    rince evaluate runs/rince-uni --on DIR/ucf101 --on DIR/hmdb51 --finetune
    rince evaluate runs/first --data ELSEWHERE/photos --taxonomy tree.yaml
    rince evaluate --embeddings train.npz test.npz --outliers others.npz --taxonomy tree.yaml
    """
    from rince.errors import ConfigError
    from rince.evaluation.evaluate import evaluate as evaluate_run
    from rince.evaluation.evaluate import evaluate_files
    from rince.report.tables import metrics_text

    if (embeddings is None) == (not runs):
        raise ConfigError("name runs to evaluate, or two files of vectors with --embeddings TRAIN TEST")
    if embeddings is not None:
        if unfinished or split or on or data or finetune or probe != "fast" or checkpoint != "last":
            raise ConfigError(
                "--embeddings judges vectors as they are; --probe, --unfinished, --split, --on, --data, --finetune "
                "and "
                "--checkpoint need a run"
            )
        far = [Path(place) for place in outliers or ()]
        with shown_progress("embeddings") as tell:
            verdict = evaluate_files(
                *embeddings, outliers=far, taxonomy=taxonomy, gains=gains, out=out, tell=tell, say=_say
            )
        typer.echo(metrics_text(verdict.metrics))
        _next("rince train vectors/rince-in data.source=FOLDER --dry-run (FOLDER with both files, train and test)")
        return
    if out is not None or gains is not None:
        raise ConfigError("--out and --gains go with --embeddings; a run keeps its numbers in its own results.json")
    for folder in runs or []:
        with shown_progress(str(folder)) as tell:
            verdict = evaluate_run(
                folder,
                outliers=outliers or (),
                probe=probe,
                unfinished=unfinished,
                split=split,
                on=on or (),
                data=data,
                taxonomy=taxonomy,
                finetune=finetune,
                checkpoint=checkpoint,
                devices=devices,
                accelerator=accelerator,
                tell=tell,
                say=_say if is_first_process() else nobody,
            )
        if not is_first_process():
            continue
        typer.echo(f"{folder}\n{metrics_text(verdict.metrics)}\nwrote {folder / 'results.json'}")
    if is_first_process():
        _next(f"rince report {' '.join(quote(str(folder)) for folder in runs or [])} --out REPORT")


def _next(command: str) -> None:
    """What a person may want to do now; apart from what other programs read."""
    _say(f"next: {command}")


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
    split: SplitOption = None,
    checkpoint: CheckpointOption = "last",
    devices: DevicesOption = 1,
    accelerator: AcceleratorOption = "auto",
) -> None:
    """Write what a run makes of new samples, a row for each: what `data.kind=vectors` and `--embeddings` read.

    rince embed runs/first PHOTOS --out vectors.parquet
    rince embed runs/first PHOTOS --split train --out train.parquet
    """
    from rince.run import open_run

    opened = open_run(run, checkpoint=checkpoint)
    many = opened.embed_into(
        out, path, which=_said(opened, which), split=split, devices=devices, accelerator=accelerator, say=_say
    )
    if not is_first_process():
        return
    typer.echo(f"wrote {out}: {many:,} vectors")
    _next(f"rince train vectors/rince-in data.source={quote(str(out))} --dry-run")


@app.command()
def neighbours(
    run: RunArgument,
    query: SamplesArgument,
    gallery: Annotated[
        str,
        typer.Argument(help="A file or folder to search, or what `index` or `embed` wrote.", show_default=False),
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="How many neighbours to show.")] = 5,
    which: WhichOption = None,
    split: SplitOption = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw them into this PNG file.")] = None,
    checkpoint: CheckpointOption = "last",
    accelerator: AcceleratorOption = "auto",
) -> None:
    """Show the samples of a gallery that a run finds nearest to a query."""
    from rince.run import open_run

    opened = open_run(run, checkpoint=checkpoint)
    which = _said(opened, which)
    found = opened.neighbours(
        query, gallery, k=k, which=which, split=split, picture=picture, accelerator=accelerator, say=_say
    )
    for each in found:
        typer.echo(each.place if each.text in ("", each.place) else f"{each.place}  {each.text}")
        for neighbour in each.near:
            typer.echo(f"  {neighbour.cosine:+.4f}  {neighbour.place}  {neighbour.text}".rstrip())
    if picture is not None:
        typer.echo(f"wrote {picture}")
    if picture is not None or any(each.text for each in found):  # of a text there is nothing more to see
        _next(f"rince index {quote(str(run))} {quote(gallery)} --out GALLERY.parquet, to search it again at once")
    else:
        _next("the same with --picture FILE.png shows them")


@app.command()
def index(
    run: RunArgument,
    gallery: SamplesArgument,
    out: Annotated[Path, typer.Option(help="Parquet file to write.", show_default=False)],
    which: WhichOption = None,
    split: SplitOption = None,
    k: NeighboursOption = None,
    checkpoint: CheckpointOption = "last",
    devices: DevicesOption = 1,
    accelerator: AcceleratorOption = "auto",
) -> None:
    """Embed a gallery once, to be searched by `neighbours` and `predict`; with labels, also say how sure answers are.

    rince index runs/first PHOTOS --split train --out photos.parquet
    """
    from rince.run import open_run

    opened = open_run(run, checkpoint=checkpoint)
    which = _said(opened, which)
    opened.index(gallery, out, which=which, split=split, k=k, devices=devices, accelerator=accelerator, say=_say)
    if is_first_process():
        typer.echo(f"wrote {out}")
        place, index_file = quote(str(run)), quote(str(out))
        _next(f"rince predict {place} {index_file} QUERY, or rince neighbours {place} QUERY {index_file}")


@app.command()
def predict(
    run: RunArgument,
    gallery: Annotated[
        str,
        typer.Argument(help="Labelled samples, or what `index` or `embed` made of them.", show_default=False),
    ],
    queries: Annotated[
        list[str], typer.Argument(metavar="QUERY...", help="Files or folders; or texts.", show_default=False)
    ],
    precision: Annotated[
        float, typer.Option(help="How often answers of every level should be right, at least.")
    ] = 0.95,
    inliers: Annotated[
        float, typer.Option(help="Share of inputs like the gallery's that may have an answer; the rest is too far off.")
    ] = 0.95,
    which: WhichOption = None,
    split: SplitOption = None,
    k: NeighboursOption = None,
    checkpoint: CheckpointOption = "last",
    accelerator: AcceleratorOption = "auto",
) -> None:
    """Say what samples are: the class if it is certain, else the deepest level that is, else unknown.

    A line for each: the sample, the level of the answer, the answer. Needs no training for new classes: the gallery
    calibrates itself.

    rince predict runs/first photos.parquet new.jpg other.jpg --precision 0.99
    rince predict runs/texts train.csv "how do i say hello in french"
    """
    from rince.run import open_run

    opened = open_run(run, checkpoint=checkpoint)
    answers = opened.predict(
        gallery,
        *queries,
        precision=precision,
        inliers=inliers,
        which=_said(opened, which),
        split=split,
        k=k,
        accelerator=accelerator,
        say=_say,
    )
    for each in answers:
        typer.echo("\t".join(part for part in (each.place, each.level, each.group) if part))
    _next(
        f"rince neighbours {' '.join(quote(str(each)) for each in (run, queries[0], gallery))} shows what it is told by"
    )


@app.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="Folder to write to; must be new or empty.", show_default=False)],
    checkpoint: CheckpointOption = "last",
) -> None:
    """Write a run's encoder for other programs: safetensors weights, an ONNX graph, and what its input looks like.

    Of texts also the tokeniser's files, and a folder that sentence-transformers opens.
    """
    from rince.run import open_run

    opened = open_run(run, checkpoint=checkpoint)
    _said(opened, None)
    for file in opened.export(out, say=_say):
        typer.echo(f"wrote {file}")
    _next(f"{quote(str(out / 'encoder.json'))} says what the input looks like")


def _said(run: Run, which: Literal["features", "embeddings"] | None) -> Literal["features", "embeddings"]:
    """Where vectors are taken; told where the run decides."""
    if which is not None:
        return which
    from rince.train.validation import why_place

    side = "before" if run.place == "features" else "after"
    if is_first_process():
        typer.echo(f"{run.folder}: {run.place}, {side} the head ({why_place(run.folder)})", err=True)
    return run.place


@app.command()
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder to write to.", show_default=False)],
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Test samples that the maps show, at most all there are. By default up to 600."),
    ] = None,
) -> None:
    """Compare evaluated runs on one page that works from disk, with every figure and table as files beside it."""
    from rince.report.page import write_report
    from rince.report.tables import terminal

    with shown_progress("report") as tell:
        written = write_report(runs, out, samples=samples, tell=tell)
    typer.echo(terminal(written.table))
    typer.echo(f"\nthe page: {written.page} (open it in any browser; figures and tables are beside it)")
    _next(f"rince neighbours {quote(str(runs[0]))} QUERY GALLERY")


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
            _next("the same without --dry-run; it can be interrupted and given again")
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
    _next(f"rince train {' '.join(map(quote, [recipe, *(overrides or ())]))} --dry-run")


app.add_typer(analyse_app, name="analyse")


def main(run: Callable[[], object] | None = None) -> None:
    """The entry point: errors of ours become one message and exit code 2."""
    from rince.errors import RinceError
    from rince.extras import how_to_install
    from rince.memory import keep_freed_memory

    keep_freed_memory()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as of stderr: names of files need not be UTF-8
    try:
        run() if run else app(prog_name="rince")
    except RinceError as error:
        _tell(f"rince: {error}")
        sys.exit(BAD_INPUT)
    except ModuleNotFoundError as error:
        advice = how_to_install(error)
        if not advice:
            raise
        _tell(f"rince: {advice}")
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
