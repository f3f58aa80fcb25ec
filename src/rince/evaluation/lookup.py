"""`rince embed` and `rince neighbours`: what a run makes of new images, or of new videos."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image, ImageOps
from torch import Tensor

from rince.sources.clips import read_strip
from rince.sources.image_files import find_images
from rince.sources.video_layouts import is_video
from rince.sources.videos import find_videos
from rince.errors import ConfigError
from rince.evaluation.trained import Tell, TrainedRun, embed
from rince.evaluation.judge import nobody
from rince.evaluation.retrieval import nearest
from rince.evaluation.vectors import unit_vectors
from rince.evaluation.videos import embed_videos

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
    paths, vectors = _embedded(run, source, which, tell)
    flat = pa.array(vectors.flatten().numpy())
    table = pa.table(
        {
            "path": [str(path) for path in paths],
            "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        }
    )
    temporary = out.with_name(out.name + ".writing")
    try:
        pq.write_table(table, temporary)
        os.replace(temporary, out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from None
    return len(paths)


def find_neighbours(
    run: TrainedRun, query: str, gallery: str, *, k: int, which: Which, tell: Tell | None = None
) -> dict[Path, list[Neighbour]]:
    """For every query image the k nearest images of the gallery by cosine, nearest first; never the query itself."""
    if k < 1:
        raise ConfigError(f"k must be at least 1, got {k}")
    queries, query_vectors = _embedded(run, query, which, tell)
    items, gallery_vectors = _embedded(run, gallery, which, tell)
    query_vectors, gallery_vectors = unit_vectors(query_vectors, which), unit_vectors(gallery_vectors, which)
    found: dict[Path, list[Neighbour]] = {}
    # One more than asked for: a query that lies in the gallery too finds itself, and is left out.
    near = nearest(query_vectors, gallery_vectors, min(k + 1, len(items)))
    for path, vector, row in zip(queries, query_vectors, near, strict=True):
        others = [Neighbour(items[i], float(vector @ gallery_vectors[i])) for i in row.tolist()]
        found[path] = [other for other in others if not _same_file(other.path, path)][:k]
    return found


def draw_neighbours(found: dict[Path, list[Neighbour]], out: Path) -> None:
    """A picture with a row for every query: the query, and its neighbours from near to far."""
    rows = [[query, *(neighbour.path for neighbour in near)] for query, near in found.items()]
    wide = max(map(len, rows)) * (THUMB + MARGIN) + 3 * MARGIN
    sheet = Image.new("RGB", (wide, len(rows) * (THUMB + MARGIN) + MARGIN), "white")
    for y, row in enumerate(rows):
        for x, path in enumerate(row):
            thumb = ImageOps.contain(_picture(path), (THUMB, THUMB))
            apart = 2 * MARGIN if x else 0  # the query stands a little apart
            sheet.paste(thumb, (MARGIN + x * (THUMB + MARGIN) + apart, MARGIN + y * (THUMB + MARGIN)))
    temporary = out.with_name(out.name + ".writing")
    try:
        sheet.save(temporary, format="PNG")
        os.replace(temporary, out)
    except OSError as error:
        raise ConfigError(f"cannot write {out}: {error.strerror or error}") from None


def _embedded(run: TrainedRun, source: str, which: Which, tell: Tell | None) -> tuple[list[Path], Tensor]:
    """The files of a source, images or, of a run on videos, videos; and a vector for each."""
    if run.recipe.clips is None:
        images = find_images(source)
        paths = [item for item in images.items if isinstance(item, Path)]
        return paths, getattr(embed(run, images, tell=tell), which)
    index = find_videos(source, short_side=run.clips.short_side)
    return list(index.videos.paths), getattr(embed_videos(run, index, tell=tell or nobody), which)


def _picture(path: Path) -> Image.Image:
    """An image, or the frame in the middle of a video."""
    if is_video(path.name):
        pixels = read_strip(find_videos(str(path), short_side=THUMB), 0, frames=1, short_side=THUMB)[0]
        return Image.fromarray(pixels.permute(1, 2, 0).numpy())
    with Image.open(path) as image:
        return image.convert("RGB")


def _same_file(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
