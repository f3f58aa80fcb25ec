"""`rince analyse run` for videos: what a view changes in the eyes of the network, and what time changes.

Frame, shot and video can only come in order where time changes a clip by more than another view of it does. So they are
measured as in training, with a part of what views draw, and with nothing drawn, where time alone is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rince.encoders.frames import FrameFeatures
from rince.errors import DataError
from rince.evaluation.trained import TrainedRun, open_trained
from rince.methods.summary import own_key_summary
from rince.sources.source import Source, moved
from rince.terminal import Tell, nobody
from rince.train.setup import NOTHING, Brought

DRAWS = 4  # of the places of the clips, and of the views, of every video
AS_TRAINED, NOTHING_DRAWN = "views as in training", "nothing drawn: time alone"
NO_CROP = {"crop_scale": (1.0, 1.0), "crop_ratio": (1.0, 1.0), "flip": 0.0}
NO_COLOUR = {"jitter": None, "grayscale": 0.0}
CHANGES: dict[str, dict[str, Any]] = {
    AS_TRAINED: {},
    "crops and flips alone": NO_COLOUR,
    "colours alone": NO_CROP,
    NOTHING_DRAWN: NO_CROP | NO_COLOUR,
}


@dataclass(frozen=True)
class ClipFinding:
    """How clips of one video lie to each other after the head, where the loss acts.

    Attributes:
        views: what of them is drawn.
        similarity: mean similarity of a query to its frame, shot and video, and to other videos' frames, "negative".
        violated: share of queries to which the shot is at least as close as the frame ("frame-shot"), and so on.
    """

    views: str
    similarity: dict[str, float]
    violated: dict[str, float]


@dataclass(frozen=True)
class ClipAnalysis:
    """All there is to say.

    Attributes:
        folder: of the run.
        recipe: its name.
        split: where the videos come from.
        videos: how many are long enough, each drawn from a few times.
        findings: from views as in training to none.
    """

    folder: Path
    recipe: str
    split: str
    videos: int
    findings: list[ClipFinding]


def analyse_clips(
    folder: Path, *, split: str = "train", brought: Brought = NOTHING, tell: Tell = nobody
) -> ClipAnalysis:
    """Measures a finished run that ranks the clips of a video.

    Args:
        folder: of the run.
        split: where videos come from: "train", what the loss saw, or "test".
        brought: what the run was given as objects.
        tell: is told how far it is.
    """
    run = open_trained(folder, brought, accelerator="cpu")
    if run.step < run.steps:
        raise DataError(
            f"{folder} stopped at step {run.step} of {run.steps}; finish it with `rince train --resume {folder}`"
        )
    findings, videos = [], 0
    for views, source in _sources(run, split):
        videos = len(source)
        if not videos:
            raise DataError(f"no video of the {split} split is long enough for query, shot and video positive")
        findings.append(_find(run, source, views, tell))
    return ClipAnalysis(folder, run.recipe.name, split, videos, findings)


def _sources(run: TrainedRun, split: str) -> Iterator[tuple[str, Source]]:
    """The same videos with ever less that is drawn; one after the other, since each may hold its frames in memory."""
    recipe = run.recipe
    data, views = recipe.data, recipe.seen_views
    name = data.train_split if split == "train" else data.test_split

    def opened(changes: dict[str, Any]) -> Source:
        found: Source = recipe.prepared(
            data.open(name, views.model_copy(update=changes), own_keys=len(recipe.own_ranks))
        )
        return found

    source = opened({})
    if isinstance(source, FrameFeatures):  # of fixed versions, whose parts are not to be had
        yield AS_TRAINED, source
        yield NOTHING_DRAWN, source.plain_alone()
        return
    for kind, changes in CHANGES.items():
        yield kind, opened(changes)


@torch.inference_mode()
def _find(run: TrainedRun, source: Source, views: str, tell: Tell) -> ClipFinding:
    """Similarities of all videos, each drawn from `DRAWS` times."""
    ranks = run.recipe.ranks
    assert ranks is not None  # of a run with keys of its own
    names, numbers = ranks.own_names, range(1 + len(ranks.own_ranks))
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    others = []
    blocks = torch.arange(len(source)).split(source.at_once)
    done = 0
    for draw in range(DRAWS):
        asked, framed = [], []
        for ids in blocks:
            made = source.finish(source.load(ids, numbers, seed=run.recipe.seed, epoch=draw), run.device)
            query, *keys = (run.encoder(moved(view, run.device)).float() for view in made.views)
            present = torch.ones(len(ids), len(numbers)) if made.present is None else made.present
            for name, key, there in zip(names, keys, present[:, 1:].T, strict=True):
                found[name].append((query * key).sum(dim=1).masked_fill(~there.bool(), torch.nan))
            asked.append(query)
            framed.append(keys[0])
            done += len(ids)
            tell(views, done, DRAWS * len(source))
        every = torch.cat(asked) @ torch.cat(framed).T
        if len(every) > 1:
            others.append(every[~torch.eye(len(every), dtype=torch.bool)])
    summary = own_key_summary({name: torch.cat(values) for name, values in found.items()})
    parts: dict[str, dict[str, float]] = {"similarity": {}, "violated": {}}
    for key, value in summary.items():
        part, _, name = key.partition("/")
        parts[part][name] = value
    if others:
        parts["similarity"]["negative"] = torch.cat(others).mean().item()
    return ClipFinding(views, **parts)


def clips_text(found: ClipAnalysis) -> str:
    """For a terminal: a line for every kind of views, and what they say together."""
    named = max(len(each.views) for each in found.findings)
    names = [*found.findings[0].similarity, *(f"{pair} wrong" for pair in found.findings[0].violated)]
    widths = [max(len(name), 8) for name in names]

    def line(views: str, values: Iterable[str]) -> str:
        return "  ".join([views.ljust(named), *(value.rjust(w) for value, w in zip(values, widths, strict=True))])

    lines = [
        f"{found.recipe}: {found.videos:,} videos ({found.split}), {DRAWS} queries each; similarities after the head",
        line("", names),
    ]
    for each in found.findings:
        similar, wrong = each.similarity.values(), each.violated.values()
        lines.append(line(each.views, [*(f"{value:+.3f}" for value in similar), *(f"{share:.1%}" for share in wrong)]))
    return "\n".join([*lines, *_said(found)])


def _said(found: ClipAnalysis) -> list[str]:
    """Whether views or time tell clips further apart."""
    of = {each.views: each.similarity for each in found.findings}
    view = 1 - of[AS_TRAINED]["frame"]
    times = {name: 1 - of[NOTHING_DRAWN][name] for name in ("shot", "video") if name in of[NOTHING_DRAWN]}
    told = [f"time to the {name} by {change:.2f}" for name, change in times.items()]
    lines = [", ".join([f"another view alone moves a clip by {view:.2f} (1 - similarity)", *told])]
    nearer = [name for name, change in times.items() if change < view]
    if nearer:
        lines.append(
            f"nearer than another view of the same frames: {' and '.join(nearer)}; that order is hard to learn. What "
            "changes it: weaker views (views.crop_scale, views.jitter), a longer data.stride or data.gap"
        )
    return lines


def clips_json(found: ClipAnalysis) -> str:
    """All numbers, as a JSON file."""
    values = asdict(found) | {"folder": str(found.folder), "queries_of_a_video": DRAWS}
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
