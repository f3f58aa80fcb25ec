"""Commands that judge runs, and vectors of any other library."""

# ruff: noqa: PLC0415 - heavy imports happen inside the commands, so that `rince --help` answers at once

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from rince.cli.words import AcceleratorOption, CheckpointOption, DevicesOption, Runs, next_command, say
from rince.terminal import is_first_process, nobody, shown_progress


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
                *embeddings, outliers=far, taxonomy=taxonomy, gains=gains, out=out, tell=tell, say=say
            )
        typer.echo(metrics_text(verdict.metrics))
        next_command(
            "rince train vectors/rince-in data.source=FOLDER --dry-run (FOLDER with both files, train and test)"
        )
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
                say=say if is_first_process() else nobody,
            )
        if not is_first_process():
            continue
        of = ("" if split is None else f", split {split!r}") + (", best.ckpt" if checkpoint == "best" else "")
        typer.echo(f"{folder}{of}\n{metrics_text(verdict.metrics)}\nwrote {folder / 'results.json'}")
    if is_first_process():
        next_command(f"rince report {' '.join(quote(str(folder)) for folder in runs or [])} --out REPORT")


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
    next_command(f"rince neighbours {quote(str(runs[0]))} QUERY GALLERY")
