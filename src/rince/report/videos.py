"""The section of nearest videos: queries, and what each run finds next to them, as thumbnails that move."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rince.report.atlas import RunMap
from rince.report.collect import Shown
from rince.report.drawing import clean
from rince.report.footage import LONG, Videos, data_uri
from rince.report.numbers import label

OPEN = 4  # queries to see at once; the others wait to be unfolded
THUMBS = 400  # neighbours on the whole page: with sixteen kilobytes each it stays small enough to send


@dataclass
class Films:
    """Moving thumbnails by number, each there once, however many runs show it.

    Attributes:
        uris: address → its number; ascending.
        gone: files that cannot be read any more.
    """

    uris: dict[str, int] = field(default_factory=dict)
    gone: list[Path] = field(default_factory=list)
    _numbers: dict[Path, int | None] = field(default_factory=dict)

    def add(self, videos: Videos, paths: Sequence[Path]) -> None:
        """Makes the thumbnails of videos that have none yet."""
        new = [path for path in dict.fromkeys(paths) if path not in self._numbers]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # decoding lets other threads work
            for path, film in zip(new, pool.map(videos.moving, new), strict=True):
                if film is None:
                    self.gone.append(path)
                    self._numbers[path] = None
                else:
                    # Also by content: another run may have found the same video in another place.
                    self._numbers[path] = self.uris.setdefault(data_uri(film), len(self.uris))

    def html(self, path: Path, about: str) -> str:
        """An image that the page's script fills, or what stands in for it."""
        number = self._numbers[path]
        if number is None:
            return f'<span class="film gone" role="img" aria-label="{escape(about)}, no picture">no picture</span>'
        return f'<img class="film" data-film="{number}" alt="{escape(about)}" width="{LONG}" height="{LONG * 3 // 4}">'


def nearest_videos(runs: Sequence[Shown], left_out: int) -> tuple[str, list[str]]:
    """The section as HTML, and its thumbnails as data URIs.

    Args:
        runs: to show.
        left_out: how many others there are.
    """
    films = Films()
    names = [name for name in runs[0].data.sets if all(name in run.figures["neighbours"] for run in runs)]
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
    return max(1, THUMBS // (5 * max(1, runs * sets)))


def spread(places: Sequence[int], number: int) -> list[int]:
    """So many of them, or all if they are fewer, evenly spread: queries are sorted by class."""
    return [places[i * len(places) // number] for i in range(number)] if number < len(places) else list(places)


def without_picture(maps: Sequence[RunMap], rows: Tensor) -> int:
    """How many of the videos on the maps of a page cannot be read any more."""
    sides = [(maps[0].shown.data.test, rows), *((each.shown.data.train, each.neighbours) for each in maps)]
    return len(
        {
            side.paths[row]
            for side, shown in sides
            if isinstance(side, Videos)
            for row in shown.flatten().tolist()
            if not side.is_there(side.paths[row])
        }
    )


def _note(gone: Sequence[Path]) -> str:
    if not gone:
        return ""
    which = "1 video" if len(gone) == 1 else f"{len(gone)} videos"
    first = escape(clean(str(gone[0]), 200))
    return (
        f'<p class="note">{which} of those shown here cannot be read any more'
        f"{' (the first: ' if len(gone) > 1 else ' ('}<code>{first}</code>). The numbers are not touched by this.</p>"
    )


def _set(runs: Sequence[Shown], name: str, most: int, films: Films, *, titled: bool) -> str:
    found = [run.figures["neighbours"][name] for run in runs]
    # Runs tested on the same videos have the same queries in the same order.
    chosen = spread(range(len(found[0])), most)
    found = [[queries[place] for place in chosen] for queries in found]
    for run, queries in zip(runs, found, strict=True):
        train, test = run.data.sets[name]
        films.add(test, [Path(query["query"]) for query in queries])
        films.add(train, [Path(near["video"]) for query in queries for near in query["near"]])
    shown = [_query(runs, of_runs, films) for of_runs in zip(*found, strict=True)]
    at_once = spread(range(len(shown)), OPEN)
    first = "".join(shown[place] for place in at_once)
    rest = "".join(query for place, query in enumerate(shown) if place not in at_once)
    more = f"<details><summary>{len(shown) - OPEN} more queries</summary>{rest}</details>" if rest else ""
    return (f"<h3>{escape(clean(name))}</h3>" if titled else "") + first + more


def _query(runs: Sequence[Shown], found: Sequence[dict[str, Any]], films: Films) -> str:
    path, own = Path(found[0]["query"]), found[0]["label"]
    picture = films.html(path, f"Query: {_name(own)}")
    head = (
        f'<div class="asked">{picture}<div><h4>{escape(_name(own))}</h4><p>{escape(clean(path.name))}</p></div></div>'
    )
    return f'<article class="query">{head}{"".join(map(_row, runs, found, [films] * len(runs)))}</article>'


def _row(run: Shown, query: dict[str, Any], films: Films) -> str:
    right = sum(near["label"] == query["label"] for near in query["near"])
    cards = "".join(_card(near, films, same=near["label"] == query["label"]) for near in query["near"])
    head = f"<h5>{label(run.label)}<span>{right} of {len(query['near'])} same class</span></h5>"
    return f'<div class="found">{head}<ol>{cards}</ol></div>'


def _card(near: dict[str, Any], films: Films, *, same: bool) -> str:
    mark = "1 · same class" if same else "✕ negative"
    name = _name(near["label"])
    words = f'<span class="rank">{mark}</span><b>{escape(name)}</b>cosine {near["cosine"]:.3f}'
    return f'<li data-rank="{int(same)}">{films.html(Path(near["video"]), name)}<div>{words}</div></li>'


def _name(text: str) -> str:
    return clean(text.replace("_", " "))
