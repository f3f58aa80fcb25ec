"""Commands that use a run: vectors of anything, what is nearest, an answer, and the network itself."""

# ruff: noqa: PLC0415 - heavy imports happen inside the commands, so that `rince --help` answers at once

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rince.cli.words import (
    AcceleratorOption,
    CheckpointOption,
    DevicesOption,
    NeighboursOption,
    RunArgument,
    SamplesArgument,
    SplitOption,
    WhichOption,
    next_command,
    say,
)
from rince.terminal import is_first_process

if TYPE_CHECKING:
    from rince.run import Run


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
        out, path, which=_said(opened, which), split=split, devices=devices, accelerator=accelerator, say=say
    )
    if not is_first_process():
        return
    typer.echo(f"wrote {out}: {many:,} vectors")
    next_command(f"rince train vectors/rince-in data.source={quote(str(out))} --dry-run")


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
        query, gallery, k=k, which=which, split=split, picture=picture, accelerator=accelerator, say=say
    )
    for each in found:
        typer.echo(each.place if each.text in ("", each.place) else f"{each.place}  {each.text}")
        for neighbour in each.near:
            typer.echo(f"  {neighbour.cosine:+.4f}  {neighbour.place}  {neighbour.text}".rstrip())
    if picture is not None:
        typer.echo(f"wrote {picture}")
    if picture is not None or any(each.text for each in found):  # of a text there is nothing more to see
        next_command(
            f"rince index {quote(str(run))} {quote(gallery)} --out GALLERY.parquet, to search it again at once"
        )
    else:
        next_command("the same with --picture FILE.png shows them")


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
    opened.index(gallery, out, which=which, split=split, k=k, devices=devices, accelerator=accelerator, say=say)
    if is_first_process():
        typer.echo(f"wrote {out}")
        place, index_file = quote(str(run)), quote(str(out))
        next_command(f"rince predict {place} {index_file} QUERY, or rince neighbours {place} QUERY {index_file}")


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
        say=say,
    )
    for each in answers:
        typer.echo("\t".join(part for part in (each.place, each.level, each.group) if part))
    next_command(
        f"rince neighbours {' '.join(quote(str(each)) for each in (run, queries[0], gallery))} shows what it is told by"
    )


def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="Folder to write to; must be new or empty.", show_default=False)],
    which: WhichOption = None,
    checkpoint: CheckpointOption = "last",
) -> None:
    """Write a run's encoder for other programs: safetensors weights, an ONNX graph, and what its input looks like.

    Of texts also the tokeniser's files, and a folder that sentence-transformers opens.
    """
    from rince.run import open_run

    opened = open_run(run, checkpoint=checkpoint)
    for file in opened.export(out, which=_said(opened, which), say=say):
        typer.echo(f"wrote {file}")
    next_command(f"{quote(str(out / 'encoder.json'))} says what the input looks like")


def _said(run: Run, which: Literal["features", "embeddings"] | None) -> Literal["features", "embeddings"]:
    """Where vectors are taken; told where the run decides."""
    if which is not None:
        return which
    from rince.train.validation import why_place

    side = "before" if run.place == "features" else "after"
    if is_first_process():
        typer.echo(f"{run.folder}: {run.place}, {side} the head ({why_place(run.folder)})", err=True)
    return run.place
