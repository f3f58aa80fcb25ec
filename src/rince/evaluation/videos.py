"""Runs on videos, judged: retrieval with frozen features, a probe, and finetuning; on the run's own videos or others.

A video's feature is the mean of those of its test clips, spread evenly over it; its class probabilities likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rince.config import CrossEntropyMethod, Recipe, load_recipe
from rince.data.clips import read_test_clips
from rince.data.layouts import other_set, set_name
from rince.data.video_set import load_index
from rince.data.videos import VideoIndex
from rince.errors import ConfigError, DataError
from rince.evaluation.embed import Embedded, TrainedRun, made_once, open_trained
from rince.evaluation.judge import Tell, Verdict, by_name, judge, nobody
from rince.evaluation.samples import Samples
from rince.train.record import CHECKPOINT, RECIPE, open_run

FINETUNE = "finetune"  # folder of a run, and recipe
VIDEOS_AT_ONCE = 16
SHOWN, NEAREST = 12, 5  # queries on the report's page, and neighbours of each
CLASSIFIED = "cross-entropy from the run's network; class probabilities of a test video: mean over its clips"


def judge_videos(
    run: TrainedRun,
    sources: Sequence[str],
    *,
    finetune: bool = False,
    split: str | None = None,
    tell: Tell = nobody,
    say: Callable[[str], None] = nobody,
) -> Verdict:
    """Judges a run on one or more sets of videos; names of metrics end in the name of the set if it is not its own.

    Args:
        run: trained on videos.
        sources: folders or manifests; the run's own if there are none.
        finetune: also train a classifier from the run's network, in a run folder of its own below it.
        split: to test on, in place of the recipe's test split.
        tell: is told how far it is.
        say: is told what a person should know.
    """
    metrics: dict[str, float] = {}
    figures: dict[str, Any] = {"sets": {}, "curves": {}, "outliers": {}, "class_similarity": {}, "neighbours": {}}
    protocol: dict[str, str] = {}
    for name, source in by_name(sources or [run.recipe.data.source], set_name, "sets of videos").items():
        own = not (on := other_set(source, run.recipe.data.source))
        train_split = run.recipe.data.train_split if own else "train"
        train, test = (
            _index(run, source, which, say)
            for which in (train_split, split or (run.recipe.data.test_split if own else "test"))
        )
        if train.class_names != test.class_names:
            raise DataError(f"the splits of {source!r} do not have the same classes")
        made = [_features(run, index, f"{name}-{what}", tell) for what, index in (("train", train), ("test", test))]
        samples = [
            Samples(found.features, {"class": index.labels}, found.embeddings)
            for found, index in zip(made, (train, test), strict=True)
        ]
        classified, classifier = None, CLASSIFIED
        if finetune:
            trained = _finetuned(run, name, source, own=own, say=say)
            classified = _classified(trained, test, f"{name}-test", tell)
            classifier = f"{CLASSIFIED}; {trained.recipe.train.epochs} epochs"
        elif isinstance(run.recipe.method, CrossEntropyMethod):
            classified = _classified(run, test, f"{name}-test", tell)
        verdict = judge(*samples, classified=classified, classifier=classifier, on=on, tell=tell)
        metrics |= verdict.metrics
        protocol |= verdict.protocol
        figures["curves"] |= verdict.figures["curves"]
        figures["class_similarity"] = figures["class_similarity"] or verdict.figures["class_similarity"]
        figures["sets"][name] = _listed(source, train, test)
        figures["neighbours"][name] = _nearest(made[1].features, made[0].features, test, train)
    protocol["features"] = f"mean over {run.clips.test_clips} clips, spread evenly over a video"
    return Verdict(metrics, protocol, figures)


def _index(run: TrainedRun, source: str, split: str, say: Callable[[str], None]) -> VideoIndex:
    index = load_index(source, split, run.clips)
    for path, reason in index.left_out[:5]:
        say(f"left out of {split!r}: {path} ({reason})")
    if len(index.left_out) > 5:
        say(f"… and {len(index.left_out) - 5} more")
    return index


def test_clips(run: TrainedRun, index: VideoIndex) -> Callable[[int], Tensor]:
    """Video → its normalised test clips, `(clips, 3, frames, size, size)`."""
    clips = run.clips

    def read(video: int) -> Tensor:
        pixels = read_test_clips(
            index,
            video,
            frames=clips.frames,
            stride=clips.stride,
            clips=clips.test_clips,
            size=run.recipe.views.size,
        )
        return run.views.resize_and_normalise(pixels)

    return read


def embed_videos(
    run: TrainedRun, index: VideoIndex, *, raw: bool = False, tell: Callable[[int, int], None] = nobody
) -> Embedded:
    """Features and embeddings of videos; `raw` for the probabilities of a classifier in place of embeddings."""
    features, outputs = [], []
    with torch.inference_mode(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for rows in torch.arange(len(index)).split(VIDEOS_AT_ONCE):
            clips = list(pool.map(test_clips(run, index), rows.tolist()))  # decoding lets other threads work
            feature = run.encoder.features(torch.cat(clips))
            output = run.encoder.head(feature).float()
            output = output.softmax(dim=1) if raw else F.normalize(output, dim=1)
            features.append(feature.float().view(len(rows), -1, feature.shape[1]).mean(dim=1))
            outputs.append(output.view(len(rows), -1, output.shape[1]).mean(dim=1))
            tell(sum(map(len, features)), len(index))
    found = torch.cat(outputs).clone()
    return Embedded(torch.cat(features).clone(), found if raw else F.normalize(found, dim=1))


def _features(run: TrainedRun, index: VideoIndex, name: str, tell: Tell, *, raw: bool = False) -> Embedded:
    return made_once(
        run,
        f"{name}-classes" if raw else name,
        _made_from(run, index.fingerprint, raw=raw),
        lambda: embed_videos(run, index, raw=raw, tell=lambda done, of: tell(f"features, {name}", done, of)),
    )


def kept_features(run: TrainedRun, name: str, fingerprint: str) -> Embedded:
    """The features that judging has left in the run's folder; the videos need not be there any more.

    Args:
        run: that was judged.
        name: of the set and its side, such as `kth-test`.
        fingerprint: of the videos.
    """

    def refuse() -> Embedded:
        raise DataError(f"{run.folder} has no features of {name!r} any more; run `rince evaluate {run.folder}` again")

    return made_once(run, name, _made_from(run, fingerprint, raw=False), refuse)


def _made_from(run: TrainedRun, fingerprint: str, *, raw: bool) -> dict[str, str]:
    return {"videos": fingerprint, "clips": str(run.clips), "raw": str(raw)}


def _classified(run: TrainedRun, test: VideoIndex, name: str, tell: Tell) -> Tensor:
    """`(videos,)`: the class of the highest mean probability over clips."""
    return _features(run, test, name, tell, raw=True).embeddings.argmax(dim=1)


def _listed(source: str, train: VideoIndex, test: VideoIndex) -> dict[str, Any]:
    """What a report has to know of a set of videos, so that it can be made without them."""
    sides = {
        side: {
            "fingerprint": index.fingerprint,
            "videos": [str(path.absolute()) for path in index.videos.paths],
            "labels": index.labels.tolist(),
        }
        for side, index in (("train", train), ("test", test))
    }
    return {"source": source, "classes": list(test.class_names), **sides}


def _nearest(queries: Tensor, gallery: Tensor, test: VideoIndex, train: VideoIndex) -> list[dict[str, Any]]:
    """A few queries, evenly spread, with the nearest videos of the gallery: places in the index, cosines, labels."""
    chosen = torch.linspace(0, len(queries) - 1, min(SHOWN, len(queries))).round().long().unique()
    cosines = F.normalize(queries[chosen], dim=1) @ F.normalize(gallery, dim=1).T
    near = cosines.topk(min(NEAREST, len(gallery)), dim=1)
    return [
        {
            "query": str(test.videos.paths[query].absolute()),
            "label": test.class_names[int(test.labels[query])],
            "near": [
                {
                    "video": str(train.videos.paths[place].absolute()),
                    "label": train.class_names[int(train.labels[place])],
                    "cosine": round(cosine, 4),
                }
                for place, cosine in zip(places, values, strict=True)
            ],
        }
        for query, places, values in zip(chosen.tolist(), near.indices.tolist(), near.values.tolist(), strict=True)
    ]


def finetune_recipe(run: TrainedRun, source: str, *, own: bool) -> Recipe:
    """The recipe `video/finetune` with the clips, views and network of a run."""
    given = run.recipe
    recipe = load_recipe(f"video/{FINETUNE}", [f"scale={given.scale}", f"seed={given.seed}"])
    data = recipe.data.model_copy(
        update={"source": source, "train_split": given.data.train_split if own else "train", "test_split": "test"}
    )
    model = given.model.model_copy(update={"start_from": str(run.folder.resolve())})
    changes = {"data": data, "model": model, "clips": given.clips, "views": given.views}
    return Recipe.model_validate(recipe.model_copy(update=changes).model_dump())


def _finetuned(run: TrainedRun, name: str, source: str, *, own: bool, say: Callable[[str], None]) -> TrainedRun:
    """The run below a run that starts from its network; made, gone on with, or as it is."""
    from rince.train.loop import train  # noqa: PLC0415 - brings Fabric
    from rince.train.runtime import Runtime  # noqa: PLC0415

    folder, recipe = run.folder / FINETUNE / name, finetune_recipe(run, source, own=own)
    resume = (folder / RECIPE).exists()
    if resume and open_run(folder) != recipe:
        raise ConfigError(f"{folder} holds a finetuning by another recipe; remove it to make it again")
    if resume and (folder / CHECKPOINT).exists():
        there = open_trained(folder)
        if there.step == there.steps:
            return there
    say(f"finetuning on {name}: {recipe.train.epochs} epochs, in {folder}")
    if not train(recipe, folder, Runtime(1, recipe.train.precision), resume=resume):
        raise KeyboardInterrupt
    return open_trained(folder)
