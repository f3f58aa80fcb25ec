"""The map: a balanced sample of the test set, where each run puts them, and what it finds next to them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from PIL import Image, ImageOps
from torch import Tensor

from rince.evaluation.geometry import tsne
from rince.evaluation.lookup import as_image
from rince.evaluation.nearest import nearest
from rince.evaluation.samples import ranks_of
from rince.evaluation.vectors import unit_vectors
from rince.report.album import Album, data_uri
from rince.report.collect import Shown

THUMB = 40  # pixels a side, at most
COLUMNS = 64
QUALITY = 72
SAMPLES, NEIGHBOURS = 600, 5
THUMBS = 9000  # neighbours on the whole page, so that many runs make no larger a page than three


class Place(NamedTuple):
    """A thumbnail: which samples, which of them."""

    fingerprint: str
    row: int


@dataclass(frozen=True)
class RunMap:
    """What one run makes of the sample.

    Attributes:
        shown: the run.
        places: `(samples, 2)` on the map, y upwards, from 0 to 1 in the longer direction.
        neighbours: `(samples, k)` rows of the run's training set, nearest first.
        cosines: `(samples, k)`.
        ranks: `(samples, k)`: 1 same class, 2 same group of the next level, …; 0 negative.
    """

    shown: Shown
    places: Tensor
    neighbours: Tensor
    cosines: Tensor
    ranks: Tensor


def balanced_sample(labels: Tensor, number: int) -> Tensor:
    """Rows of about `number` samples in ascending order, as many of each label as can be, the first ones of each."""
    order = labels.argsort(stable=True)
    counts = labels.bincount()
    turn = torch.empty_like(labels)
    turn[order] = torch.cat([torch.arange(int(count)) for count in counts])
    # By turns: the first of every label, then the second of every label, …
    chosen = (turn * len(counts) + labels).argsort(stable=True)[:number]
    return chosen.sort().values


def sample_size(maps: int) -> int:
    """How many test images or videos the maps of a page show."""
    return min(SAMPLES, THUMBS // (NEIGHBOURS * maps))


def map_run(shown: Shown, rows: Tensor) -> RunMap:
    """Places a sample of the test set and looks up what of the training set is nearest, by cosine before the head."""
    features = shown.test.features[rows]
    k = min(NEIGHBOURS, len(shown.train.features) - int(shown.test.shared > 0))
    queries, gallery = unit_vectors(features, "features"), unit_vectors(shown.train.features, "features")
    same = None if shown.test.same is None else shown.test.same[rows]
    near = nearest(queries, gallery, k, same=same)
    table = ranks_of(shown.train, shown.test).table
    places = tsne(features) if len(rows) >= 3 else torch.rand(len(rows), 2)
    places = places - places.min(dim=0).values
    return RunMap(
        shown,
        places / places.max().clamp(min=1e-9),
        near,
        (queries[:, None] * gallery[near]).sum(dim=2),
        table[shown.test.labels[rows][:, None], shown.train.labels[near]],
    )


def map_data(maps: Sequence[RunMap], rows: Tensor) -> dict[str, Any]:
    """All that the page's script needs, as plain values; thumbnails that several runs find are there once."""
    data = maps[0].shown.data
    numbers: dict[Place, int] = {}
    albums: dict[str, Album] = {}
    runs = []
    for run in maps:
        gallery = run.shown.data.train
        albums[gallery.fingerprint] = gallery
        thumbs = [
            [numbers.setdefault(Place(gallery.fingerprint, index), len(numbers)) for index in near]
            for near in run.neighbours.tolist()
        ]
        runs.append(
            {
                "label": run.shown.label,
                "places": [[round(value, 4) for value in place] for place in run.places.tolist()],
                "thumbs": thumbs,
                "classes": gallery.labels[run.neighbours].tolist(),
                "cosines": [[round(value, 3) for value in row] for row in run.cosines.tolist()],
                "ranks": run.ranks.tolist(),
            }
        )
    return {
        "levels": [{"name": level.name, "groups": level.groups, "of": level.of_class} for level in data.levels],
        "thing": data.thing,
        "rows": rows.tolist(),
        "classes": data.test.labels[rows].tolist(),
        "queries": sheet([(data.test, index) for index in rows.tolist()]),
        "gallery": sheet([(albums[place.fingerprint], place.row) for place in numbers]),
        "runs": runs,
    }


def sheet(thumbs: Sequence[tuple[Album, int]]) -> dict[str, Any]:
    """Thumbnails side by side in one WebP picture, as a data URI, with what is needed to cut them out again.

    Where there is nothing to see of any, the words that stand for them are there instead.
    """
    if all(album.picture(row) is None for album, row in thumbs):
        words = [album.text(row) for album, row in thumbs]
        if any(words):
            return {"words": [line or "" for line in words]}
    first = thumbs[0][0].picture(thumbs[0][1]) if thumbs else None
    size = THUMB if first is None else min(THUMB, max(first.shape[1:]))
    cell = -(-size // 8) * 8  # a lossy picture is made of blocks of 8, and neighbours must not bleed into each other
    columns = max(1, min(COLUMNS, len(thumbs)))
    picture = Image.new("RGB", (columns * cell, max(1, -(-len(thumbs) // columns)) * cell), "#808080")
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # decoding lets other threads work
        for number, thumb in enumerate(pool.map(lambda thumb: thumbnail(thumb[0], thumb[1], size), thumbs)):
            y, x = divmod(number, columns)
            picture.paste(thumb, (x * cell, y * cell))
    out = io.BytesIO()
    picture.save(out, format="WEBP", quality=QUALITY, method=4)
    return {"uri": data_uri(out.getvalue()), "size": size, "cell": cell, "columns": columns}


def thumbnail(album: Album, row: int, size: int) -> Image.Image:
    """A square RGB picture of what the encoder sees: the shorter side resized, the centre cut out; gray for none."""
    picture = as_image(album.picture(row))
    return picture if picture.size == (size, size) else ImageOps.fit(picture, (size, size))
