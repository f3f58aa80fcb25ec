"""`rince embed` and `rince neighbours`: what a run makes of new samples."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from PIL import Image
from torch import Tensor

from rince.errors import ConfigError
from rince.evaluation.retrieval import nearest
from rince.evaluation.trained import TrainedRun, embed
from rince.evaluation.vectors import unit_vectors
from rince.files import write_out
from rince.inputs import whole_number
from rince.sources.source import Source, all_rows_in
from rince.terminal import Say, TellDone, nobody
from rince.train.validation import Place

Which = Place
THUMB, MARGIN = 96, 4


class Neighbour(NamedTuple):
    """A sample of the gallery, as near to a query as `cosine` says."""

    place: str
    """Where a person finds it, its file if it has one."""
    cosine: float
    row: int
    """In the gallery."""
    text: str = ""
    """Itself, if it is a text."""


class Found(NamedTuple):
    """A query and its neighbours, the nearest first."""

    place: str
    row: int
    near: list[Neighbour]
    text: str = ""
    """Itself, if it is a text."""


def vectors_of(run: TrainedRun, source: Source, which: Which, tell: TellDone | None = None) -> Tensor:
    """`(samples, dim)`: features or embeddings of samples."""
    if which not in get_args(Which):
        raise ConfigError(f"which must be 'features' or 'embeddings', got {which!r}")
    found: Tensor = getattr(embed(run, source, tell=tell), which)
    return found


def write_vectors(source: Source, vectors: Tensor, levels: dict[str, list[str]], out: Path) -> None:
    """Writes a parquet file with a row for every sample: path, vector and, of labelled ones, label and every level.

    Args:
        source: of the samples.
        vectors: `(samples, dim)`, what was made of them.
        levels: the classes first: name → the group of every class; empty if the samples have no labels.
        out: file to write.
    """
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - only here
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    flat = pa.array(vectors.cpu().flatten().numpy())
    places = [source.place(row) for row in range(len(source))]
    columns = {"path": places, "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}
    labels = source.labels.tolist()
    for number, (level, groups) in enumerate(levels.items()):
        named = source.class_names if number == 0 else groups
        columns["label" if number == 0 else level] = [str(named[label]) for label in labels]
    table = pa.table(columns)
    written = io.BytesIO()
    pq.write_table(table, written)
    write_out(out, written.getvalue())


def find_neighbours(
    run: TrainedRun,
    queries: Source,
    gallery: Source,
    *,
    k: int,
    which: Which,
    tell: TellDone | None = None,
    say: Say = nobody,
) -> list[Found]:
    """For every query the k nearest samples of the gallery by cosine, nearest first; never the query itself."""
    k = whole_number(k, "k")
    same = all_rows_in(queries, gallery)
    shared = sum(map(bool, same))
    if shared:
        say(
            f"{shared:,} of {len(queries):,} queries lie in {gallery.source!r}, too; none is shown as its own neighbour"
        )
    asking, asked = (unit_vectors(vectors_of(run, each, which, tell), which) for each in (queries, gallery))
    # As many more as a query has links in the gallery, which are left out below.
    near = nearest(asking, asked, min(k + max(map(len, same)), len(gallery)))
    cosines = (asking[:, None] * asked[near]).sum(dim=2).tolist()
    found = []
    for row, (items, values) in enumerate(zip(near.tolist(), cosines, strict=True)):
        others = [
            Neighbour(gallery.place(i), value, i, gallery.text(i) or "")
            for i, value in zip(items, values, strict=True)
            if i not in same[row]
        ]
        found.append(Found(queries.place(row), row, others[:k], queries.text(row) or ""))
    return found


def draw_neighbours(found: list[Found], queries: Source, gallery: Source, out: Path) -> None:
    """A picture with a row for every query: the query, and its neighbours from near to far."""
    rows = [
        [queries.preview(each.row).picture, *(gallery.preview(near.row).picture for near in each.near)]
        for each in found
    ]
    if all(picture is None for row in rows for picture in row):
        raise ConfigError(f"there is nothing to see of a {queries.thing}; leave out --picture")
    wide = max(map(len, rows)) * (THUMB + MARGIN) + 3 * MARGIN
    sheet = Image.new("RGB", (wide, len(rows) * (THUMB + MARGIN) + MARGIN), "white")
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            apart = 2 * MARGIN if x else 0  # the query stands a little apart
            place = MARGIN + x * (THUMB + MARGIN) + apart, MARGIN + y * (THUMB + MARGIN)
            sheet.paste(_small(as_image(picture)), place)
    written = io.BytesIO()
    sheet.save(written, format="PNG")
    write_out(out, written.getvalue())


def _small(image: Image.Image) -> Image.Image:
    """Its longer side as long as a thumbnail; of a picture of 1 × 10,000 pixels, too, something is left to see."""
    high, wide = (max(1, round(side / max(image.size) * THUMB)) for side in (image.height, image.width))
    return image.resize((wide, high))


def as_image(picture: Tensor | None) -> Image.Image:
    """`(1 or 3, height, width)` uint8 as an RGB image; gray where there is none."""
    if picture is None:
        return Image.new("RGB", (THUMB, THUMB), "#808080")
    pixels = picture.to("cpu", torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).convert("RGB")
