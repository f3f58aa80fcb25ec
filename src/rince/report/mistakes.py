"""Where runs go wrong, over the whole test set: the most confused pairs of classes, and the worst queries."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import torch
from torch import Tensor

from rince.evaluation.gallery import block_rows
from rince.evaluation.vectors import unit_vectors, without_same
from rince.report.album import Album, data_uri
from rince.report.atlas import QUALITY, thumbnail
from rince.report.collect import Shown
from rince.report.drawing import clean

LISTED = 10  # pairs and queries of a run
SIDE, WORDS = 72, 120  # of a picture, in pixels; and of a text, in characters


class Query(NamedTuple):
    """A test sample whose nearest training sample is of another class."""

    row: int
    found: int
    """Row of the training sample that is nearest."""
    behind: float
    """By how much the nearest of its own class is less similar than that."""


def wrong_queries(
    queries: Tensor, labels: Tensor, gallery: Tensor, gallery_labels: Tensor, *, same: Tensor | None = None
) -> list[Query]:
    """All queries whose nearest item is of another class, the farthest behind first.

    Args:
        queries: `(queries, dim)` unit vectors.
        labels: `(queries,)`.
        gallery: `(gallery, dim)` unit vectors.
        gallery_labels: `(gallery,)`.
        same: `(queries,)`: the row of each query in the gallery, which does not count; -1 for none.
    """
    found = []
    for rows in torch.arange(len(queries), device=queries.device).split(block_rows(len(gallery))):
        cosines = without_same(queries[rows] @ gallery.T, None if same is None else same[rows])
        own = labels[rows][:, None] == gallery_labels
        nearest = cosines.masked_fill(own, -torch.inf).max(dim=1)
        behind = nearest.values - cosines.masked_fill(~own, -torch.inf).max(dim=1).values
        listed = zip(rows.tolist(), nearest.indices.tolist(), behind.tolist(), strict=True)
        found += [Query(*each) for each in listed if 0 < each[2] < float("inf")]
    return sorted(found, key=lambda query: (-query.behind, query.row))


def mistakes(runs: Sequence[Shown]) -> str:
    """HTML: of each run, pairs and queries."""
    return "".join(_of_run(run) for run in runs)


def _of_run(run: Shown) -> str:
    train, test, data = run.train, run.test, run.data
    queries, gallery = (unit_vectors(samples.features, "features") for samples in (test, train))
    wrong = wrong_queries(queries, test.labels, gallery, train.labels, same=test.same)
    of_test, of_train = test.labels.tolist(), train.labels.tolist()
    pairs = Counter((of_test[query.row], of_train[query.found]) for query in wrong)
    said = (
        f"{escape(clean(run.label))}: the nearest training {data.thing} of {len(wrong):,} of {len(of_test):,} test "
        f"{data.thing}s is of another class"
    )
    if not wrong:
        return f"<p>{said}.</p>"

    def named(label: int) -> str:
        return escape(clean(data.classes[label]))

    confused = "".join(
        f"<tr>{_text(named(asked))}{_text(named(found))}<td>{count}</td></tr>"
        for (asked, found), count in pairs.most_common(LISTED)
    )
    worst = "".join(
        f"<tr>{_text(_sample(data.test, query.row, named(of_test[query.row])))}"
        f"{_text(_sample(data.train, query.found, named(of_train[query.found])))}<td>{query.behind:.3f}</td></tr>"
        for query in wrong[:LISTED]
    )
    sides = (f"worst of the test {data.thing}s", f"nearest training {data.thing}")
    return (
        f"<p>{said}.</p>{_table(('class', 'taken for'), 'how often', confused)}"
        f"{_table(sides, 'closer than its own class by', worst)}"
    )


def _table(of_text: Sequence[str], number: str, rows: str) -> str:
    heads = "".join(f'<th class="text">{name}</th>' for name in of_text)
    return (
        f'<div class="scroll"><table class="mistakes"><thead><tr>{heads}<th>{number}</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _text(html: str) -> str:
    return f'<td class="text">{html}</td>'


def _sample(album: Album, row: int, class_name: str) -> str:
    """What it looks like, or says; its class; and its file, without the folders, which tell the class."""
    seen, picture = album.picture(row), ""
    words = album.text(row) if seen is None else None
    if seen is not None:
        out = io.BytesIO()
        thumbnail(album, row, SIDE).save(out, format="WEBP", quality=QUALITY)
        picture = f'<img src="{data_uri(out.getvalue())}" width="{SIDE}" height="{SIDE}" alt="">'
    called = escape(clean(words or album.name(row).rpartition("/")[2], WORDS))
    return f'<div class="sample">{picture}<div>{class_name}<span>{called}</span></div></div>'
