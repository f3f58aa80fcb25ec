"""`rince embed`, and what `rince neighbours` shows: what a run makes of new samples."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from rince.errors import ConfigError
from rince.evaluation.embedded_file import LABEL, PATH, VECTOR, EmbeddedVectors
from rince.evaluation.trained import TrainedRun, embed
from rince.files import write_out
from rince.sources.source import Source
from rince.terminal import TellDone
from rince.train.validation import Place

Which = Place
THUMB, MARGIN = 128, 6
LINE = 12
CAPTION = 3 * LINE + 2


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


def check_which(which: Which) -> None:
    """Refuses what is no place to take vectors from."""
    if which not in get_args(Which):
        raise ConfigError(f"which must be 'features' or 'embeddings', got {which!r}")


def vectors_of(run: TrainedRun, source: Source, which: Which, tell: TellDone | None = None) -> Tensor:
    """`(samples, dim)`: features or embeddings of samples; of what was embedded before, as they are."""
    check_which(which)
    if isinstance(source, EmbeddedVectors):
        return source.vectors.to(run.device)
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
    from rince.sources.sealed_tables import write_sealed  # noqa: PLC0415 - brings pyarrow

    written, table = io.BytesIO(), vectors_table(source, vectors, levels)
    write_sealed(written, [table], table.schema)
    write_out(out, written.getvalue())


def vectors_table(source: Source, vectors: Tensor, levels: dict[str, list[str]]) -> Any:
    """The same as a table of pyarrow."""
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - only here

    flat = pa.array(vectors.cpu().flatten().numpy())
    places = [source.place(row) for row in range(len(source))]
    columns = {PATH: places, VECTOR: pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}
    labels = source.labels.tolist()
    for number, (level, groups) in enumerate(levels.items()):
        named = source.class_names if number == 0 else groups
        columns[LABEL if number == 0 else level] = [str(named[label]) for label in labels]
    return pa.table(columns)


def draw_neighbours(found: list[Found], queries: Source, gallery: Source, out: Path) -> None:
    """A picture with a row for every query: the query, and its neighbours from near to far, each with its caption."""
    rows = [
        [queries.preview(each.row).picture, *(gallery.preview(near.row).picture for near in each.near)]
        for each in found
    ]
    if all(picture is None for row in rows for picture in row):
        raise ConfigError(f"there is nothing to see of a {queries.thing}; leave out --picture")
    if gone := sum(picture is None for row in rows for picture in row):
        warnings.warn(f"{gone} of the samples in {out} cannot be read any more, and are gray there", stacklevel=2)
    captions = [[("query", each.place), *((f"{near.cosine:+.3f}", near.place) for near in each.near)] for each in found]
    wide = max(map(len, rows)) * (THUMB + MARGIN) + 3 * MARGIN
    high = THUMB + CAPTION + MARGIN
    sheet = Image.new("RGB", (wide, len(rows) * high + MARGIN), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=10)
    for y, (row, told) in enumerate(zip(rows, captions, strict=True)):
        for x, (picture, lines) in enumerate(zip(row, told, strict=True)):
            apart = 2 * MARGIN if x else 0  # the query stands a little apart
            left, top = MARGIN + x * (THUMB + MARGIN) + apart, MARGIN + y * high
            sheet.paste(_small(as_image(picture)), (left, top))
            for number, line in enumerate((lines[0], *_caption(lines[1], lambda text: pen.textlength(text, font)))):
                pen.text((left, top + THUMB + 1 + LINE * number), line, fill="#1b1f24", font=font)
    written = io.BytesIO()
    sheet.save(written, format="PNG")
    write_out(out, written.getvalue())


def _caption(place: str, length: Callable[[str], float]) -> tuple[str, str]:
    """The folder that a sample lies in and its own name, each cut at its start to the width of a thumbnail."""
    path = Path(place)

    def fitting(text: str) -> str:
        if length(text) <= THUMB:
            return text
        while text and length(f"…{text}") > THUMB:
            text = text[1:]
        return f"…{text}"

    return fitting(path.parent.name), fitting(path.name)


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
