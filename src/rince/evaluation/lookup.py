"""`rince embed` and `rince neighbours`: what a run makes of new images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

from rince.data.folders import LargeImages, find_images
from rince.errors import ConfigError
from rince.evaluation.embed import Tell, TrainedRun, embed
from rince.evaluation.retrieval import nearest
from rince.evaluation.vectors import unit_vectors

Which = Literal["features", "embeddings"]
THUMB, MARGIN = 96, 4


class Neighbour(NamedTuple):
    """An image of the gallery, as near to a query as `cosine` says."""

    path: Path
    cosine: float


def write_embeddings(run: TrainedRun, source: str, out: Path, *, which: Which, tell: Tell | None = None) -> int:
    """Writes a parquet file with a row (path, vector) for every image; returns how many."""
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - only here
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    if out.suffix != ".parquet":
        raise ConfigError(f"embeddings are written as parquet: let --out end in .parquet, got {out}")
    images = find_images(source)
    vectors = getattr(embed(run, images, tell=tell), which)
    flat = pa.array(vectors.flatten().numpy())
    table = pa.table(
        {
            "path": [str(path) for path in images.items],
            "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        }
    )
    temporary = out.with_name(out.name + ".writing")
    try:
        pq.write_table(table, temporary)
        os.replace(temporary, out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from None
    return len(images)


def find_neighbours(
    run: TrainedRun, query: str, gallery: str, *, k: int, which: Which, tell: Tell | None = None
) -> dict[Path, list[Neighbour]]:
    """For every query image the k nearest images of the gallery by cosine, nearest first; never the query itself."""
    if k < 1:
        raise ConfigError(f"k must be at least 1, got {k}")
    queries, items = find_images(query), find_images(gallery)
    query_vectors, gallery_vectors = (
        unit_vectors(getattr(embed(run, images, tell=tell), which), which) for images in (queries, items)
    )
    found: dict[Path, list[Neighbour]] = {}
    # One more than asked for: a query that lies in the gallery too finds itself, and is left out.
    near = nearest(query_vectors, gallery_vectors, min(k + 1, len(items)))
    for path, vector, row in zip(_paths(queries), query_vectors, near, strict=True):
        others = [Neighbour(_paths(items)[i], float(vector @ gallery_vectors[i])) for i in row.tolist()]
        found[path] = [other for other in others if not _same_file(other.path, path)][:k]
    return found


def draw_neighbours(found: dict[Path, list[Neighbour]], out: Path) -> None:
    """A picture with a row for every query: the query, and its neighbours from near to far."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - only here

    rows = [[query, *(neighbour.path for neighbour in near)] for query, near in found.items()]
    wide = max(map(len, rows)) * (THUMB + MARGIN) + 3 * MARGIN
    sheet = Image.new("RGB", (wide, len(rows) * (THUMB + MARGIN) + MARGIN), "white")
    for y, row in enumerate(rows):
        for x, path in enumerate(row):
            with Image.open(path) as image:
                thumb = ImageOps.contain(image.convert("RGB"), (THUMB, THUMB))
            apart = 2 * MARGIN if x else 0  # the query stands a little apart
            sheet.paste(thumb, (MARGIN + x * (THUMB + MARGIN) + apart, MARGIN + y * (THUMB + MARGIN)))
    temporary = out.with_name(out.name + ".writing")
    try:
        sheet.save(temporary, format="PNG")
        os.replace(temporary, out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from None


def _paths(images: LargeImages) -> list[Path]:
    return [item for item in images.items if isinstance(item, Path)]


def _same_file(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
