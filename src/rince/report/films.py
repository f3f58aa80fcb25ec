"""The section of nearest samples that move: queries, and what each run finds next to them, as small films."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html import escape

import torch
from torch import Tensor

from rince.evaluation.nearest import nearest
from rince.evaluation.vectors import unit_vectors
from rince.report.album import Album, data_uri
from rince.report.atlas import RunMap
from rince.report.collect import Shown
from rince.report.drawing import clean
from rince.report.numbers import label

SHOWN, NEAREST = 12, 5  # queries of a set, and neighbours of each
OPEN = 4  # queries to see at once; the others wait to be unfolded
LONG = 96  # pixels of the longer side of a film
THUMBS = 400  # neighbours on the whole page: with sixteen kilobytes each it stays small enough to send


@dataclass
class Films:
    """Films by number, each there once, however many runs show it.

    Attributes:
        uris: address → its number; ascending.
        gone: names of samples that cannot be read any more.
    """

    uris: dict[str, int] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    _numbers: dict[tuple[str, int], int | None] = field(default_factory=dict)

    def add(self, album: Album, rows: Sequence[int]) -> None:
        """Makes the films of samples that have none yet."""
        new = [row for row in dict.fromkeys(rows) if (album.fingerprint, row) not in self._numbers]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # decoding lets other threads work
            for row, film in zip(new, pool.map(album.film, new), strict=True):
                key = album.fingerprint, row
                if film is None:
                    self.gone.append(album.name(row))
                    self._numbers[key] = None
                else:
                    # Also by content: another run may have found the same video in another place.
                    self._numbers[key] = self.uris.setdefault(data_uri(film), len(self.uris))

    def html(self, album: Album, row: int, about: str) -> str:
        """An image that the page's script fills, or what stands in for it."""
        number = self._numbers[album.fingerprint, row]
        if number is None:
            return f'<span class="film gone" role="img" aria-label="{escape(about)}, no picture">no picture</span>'
        return f'<img class="film" data-film="{number}" alt="{escape(about)}" width="{LONG}" height="{LONG * 3 // 4}">'


@dataclass(frozen=True)
class Query:
    """A test sample of a set, and the training samples that a run finds nearest: rows, and cosines."""

    row: int
    near: list[tuple[int, float]]


def queries_of(run: Shown, name: str) -> list[Query]:
    """A few queries of a set, evenly spread, with what a run finds nearest."""
    train, test = (unit_vectors(side.features, "features") for side in run.samples[name])
    chosen = torch.linspace(0, len(test) - 1, min(SHOWN, len(test))).round().long().unique()
    asked = run.samples[name][1]
    same = None if asked.same is None else asked.same[chosen]
    near = nearest(test[chosen], train, min(NEAREST, len(train) - int(asked.shared > 0)), same=same)
    cosines = (test[chosen][:, None] * train[near]).sum(dim=2)
    return [
        Query(row, [(item, round(value, 4)) for item, value in zip(items, values, strict=True)])
        for row, items, values in zip(chosen.tolist(), near.tolist(), cosines.tolist(), strict=True)
    ]


def nearest_videos(runs: Sequence[Shown], left_out: int) -> tuple[str, list[str]]:
    """The section as HTML, and its thumbnails as data URIs.

    Args:
        runs: to show.
        left_out: how many others there are.
    """
    films = Films()
    names = [name for name in runs[0].sets if all(name in run.sets for run in runs)]
    most = queries_shown(len(runs), len(names))
    text = "".join(_set(runs, name, most, films, titled=len(names) > 1) for name in names)
    more = f" Of {left_out + len(runs)} runs, the first seed of each recipe is shown." if left_out else ""
    lede = (
        "<p>Test videos, and the training videos that each run finds nearest by cosine before the head. <b>Right ones "
        "have a solid frame, wrong ones a dotted one.</b> A thumbnail runs through a whole video in "
        f"two seconds.{more}</p>"
    )
    pause = '<div class="tools"><button type="button" id="motion" hidden>Pause the videos</button></div>'
    script = "<noscript><p>The thumbnails need JavaScript.</p></noscript>"
    return lede + pause + script + _note(films.gone) + text, list(films.uris)


def queries_shown(runs: int, sets: int) -> int:
    """How many queries of a set a page has room for."""
    return max(1, THUMBS // (NEAREST * max(1, runs * sets)))


def spread(places: Sequence[int], number: int) -> list[int]:
    """So many of them, or all if they are fewer, evenly spread: queries are sorted by class."""
    return [places[i * len(places) // number] for i in range(number)] if number < len(places) else list(places)


def without_picture(maps: Sequence[RunMap], rows: Tensor) -> int:
    """How many of the samples on the maps of a page are not there any more."""
    sides = [(maps[0].shown.data.test, rows), *((each.shown.data.train, each.neighbours) for each in maps)]
    return len(
        {
            (album.fingerprint, row)
            for album, shown in sides
            for row in shown.flatten().tolist()
            if not album.is_there(row)
        }
    )


def _note(gone: Sequence[str]) -> str:
    if not gone:
        return ""
    which = "1 video" if len(gone) == 1 else f"{len(gone)} videos"
    first = escape(clean(gone[0], 200))
    return (
        f'<p class="note">{which} of those shown here cannot be read any more'
        f"{' (the first: ' if len(gone) > 1 else ' ('}<code>{first}</code>). The numbers are not touched by this.</p>"
    )


def _set(runs: Sequence[Shown], name: str, most: int, films: Films, *, titled: bool) -> str:
    found = [queries_of(run, name) for run in runs]
    # Runs tested on the same videos have the same queries in the same order.
    chosen = spread(range(len(found[0])), most)
    found = [[queries[place] for place in chosen] for queries in found]
    for run, queries in zip(runs, found, strict=True):
        data = run.sets[name]
        films.add(data.test, [query.row for query in queries])
        films.add(data.train, [row for query in queries for row, _ in query.near])
    shown = [_query(runs, name, of_runs, films) for of_runs in zip(*found, strict=True)]
    at_once = spread(range(len(shown)), OPEN)
    first = "".join(shown[place] for place in at_once)
    rest = "".join(query for place, query in enumerate(shown) if place not in at_once)
    more = f"<details><summary>{len(shown) - OPEN} more queries</summary>{rest}</details>" if rest else ""
    return (f"<h3>{escape(clean(name))}</h3>" if titled else "") + first + more


def _query(runs: Sequence[Shown], name: str, found: Sequence[Query], films: Films) -> str:
    data, row = runs[0].sets[name], found[0].row
    own = _name(data.classes[int(data.test.labels[row])])
    picture, called = films.html(data.test, row, f"Query: {own}"), clean(data.test.name(row).rpartition("/")[2])
    head = f'<div class="asked">{picture}<div><h4>{escape(own)}</h4><p>{escape(called)}</p></div></div>'
    rows = "".join(_row(run, name, query, films) for run, query in zip(runs, found, strict=True))
    return f'<article class="query">{head}{rows}</article>'


def _row(run: Shown, name: str, query: Query, films: Films) -> str:
    data = run.sets[name]
    own = int(data.test.labels[query.row])
    same = [int(data.train.labels[row]) == own for row, _ in query.near]
    cards = "".join(
        _card(data.train, data.classes[int(data.train.labels[row])], row, cosine, films, same=right)
        for (row, cosine), right in zip(query.near, same, strict=True)
    )
    head = f"<h5>{label(run.label)}<span>{sum(same)} of {len(same)} same class</span></h5>"
    return f'<div class="found">{head}<ol>{cards}</ol></div>'


def _card(album: Album, class_name: str, row: int, cosine: float, films: Films, *, same: bool) -> str:
    mark, name = "1 · same class" if same else "✕ negative", _name(class_name)
    words = f'<span class="rank">{mark}</span><b>{escape(name)}</b>cosine {cosine:.3f}'
    return f'<li data-rank="{int(same)}">{films.html(album, row, name)}<div>{words}</div></li>'


def _name(text: str) -> str:
    return clean(text.replace("_", " "))
