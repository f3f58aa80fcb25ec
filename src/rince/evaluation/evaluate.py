"""`rince evaluate`: a run's features, judged, into results.json and figures.json of its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rince
from rince.hierarchy.class_lists import outlier_name, split_source
from rince.hierarchy.levels import class_levels, group_numbers
from rince.sources.image_files import LargeImages
from rince.sources.images import ImageSet, load_images, load_outliers
from rince.sources.order import OneByOne
from rince.views.pixels import Views
from rince.errors import ConfigError, DataError
from rince.evaluation.trained import BATCH, TrainedRun, embed_once, open_trained, with_channels
from rince.evaluation.judge import Tell, Verdict, by_name, judge, nobody
from rince.evaluation.probe import Protocol
from rince.evaluation.samples import Samples, read_samples
from rince.evaluation.videos import judge_videos
from rince.sources.feed import Feed
from rince.train.record import write_whole

RESULTS, FIGURES = "results.json", "figures.json"


def evaluate(
    folder: Path,
    *,
    outliers: list[str] | None = None,
    probe: Protocol = "fast",
    unfinished: bool = False,
    split: str | None = None,
    on: list[str] | None = None,
    finetune: bool = False,
    tell: Tell = nobody,
    say: Callable[[str], None] = nobody,
) -> Verdict:
    """Judges a run and writes what it finds into its folder.

    Args:
        folder: of the run.
        outliers: data sources whose test images are of no class of the run; `SOURCE:LIST` for some of its classes.
        probe: which protocol.
        unfinished: also take a run that has not come to its end.
        split: to test on, in place of the recipe's test split.
        on: of a run on videos, the sets of videos to judge it on; its own by default.
        finetune: of a run on videos, also train a classifier from its network.
        tell: is told how far it is.
        say: is told what a person should know.
    """
    run = open_trained(folder)
    if run.step < run.steps and not unfinished:
        raise DataError(
            f"{folder} stopped at step {run.step} of {run.steps}; finish it with `rince train --resume {folder}`, or "
            "judge it as it is with --unfinished"
        )
    if run.recipe.clips is None and (on or finetune):
        raise ConfigError(f"{folder} was trained on images; --on and --finetune are for runs on videos")
    if run.recipe.clips is not None and (outliers or probe == "paper"):
        raise ConfigError(f"{folder} was trained on videos; --outliers and --probe paper are for runs on images")
    if run.recipe.clips is None:
        verdict, more = _judge_images(run, outliers or [], probe, split, tell, say)
    else:
        verdict, more = judge_videos(run, on or [], finetune=finetune, split=split, tell=tell, say=say), {}
    facts = {
        "recipe": run.recipe.name,
        "scale": run.recipe.scale,
        "seed": run.recipe.seed,
        "paper": run.recipe.paper.model_dump() if run.recipe.paper else None,
        "step": run.step,
        "of_steps": run.steps,
        "checkpoint": run.checkpoint,
        "split": split or run.recipe.data.test_split,
        **more,
        "rince": rince.__version__,
    }
    results = facts | {"metrics": verdict.metrics, "protocol": verdict.protocol}
    write_whole(folder / FIGURES, json.dumps({"checkpoint": run.checkpoint} | verdict.figures) + "\n")
    write_whole(folder / RESULTS, json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    return verdict


def _judge_images(
    run: TrainedRun, outliers: list[str], probe: Protocol, split: str | None, tell: Tell, say: Callable[[str], None]
) -> tuple[Verdict, dict[str, Any]]:
    """The verdict, and what results say of the images it is of."""
    train_images = load_split(run, run.recipe.data.train_split)
    test_images = load_split(run, split or run.recipe.data.test_split)
    if train_images.class_names != test_images.class_names:
        raise DataError(f"the splits of {run.recipe.data.source!r} do not have the same classes; name them alike")
    levels = class_levels(train_images, run.recipe.data.taxonomy)
    train, test = (
        load_samples(run, images, levels, name, tell)
        for name, images in (("train", train_images), ("test", test_images))
    )
    verdict = judge(
        train,
        test,
        outliers={
            name: _outliers(run, name, source, tell, say)
            for name, source in by_name(outliers, outlier_name, "outlier sets").items()
        },
        probe=probe,
        epoch_features=_epoch_features(run, train_images) if probe == "paper" else None,
        tell=tell,
    )
    images = {"train": len(train_images), "test": len(test_images)}
    return verdict, {"levels": levels_fingerprint(levels), "images": images}


def evaluate_files(train: Path, test: Path, *, out: Path | None = None, tell: Tell = nobody) -> Verdict:
    """Judges vectors that were saved by any library, and writes the numbers to `out` if that is given."""
    verdict = judge(*read_samples(train, test), tell=tell)
    if out is not None:
        found = {"train": str(train), "test": str(test), "metrics": verdict.metrics, "protocol": verdict.protocol}
        try:
            write_whole(out, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write {out}: {error.strerror}") from None
    return verdict


def load_split(run: TrainedRun, split: str) -> ImageSet | LargeImages:
    """The images of a split of a run's data; of the training split, those it was trained on."""
    data = run.recipe.data
    return load_images(
        data.source,
        split,
        image_column=data.image_column,
        label_column=data.label_column,
        superclass_column=data.superclass_column,
        classes=data.classes,
        limit=data.limit if split == data.train_split else None,
    )


def levels_fingerprint(levels: dict[str, list[str]]) -> str:
    """sha256 of what `class_levels` gives: results are of this grouping of the classes."""
    return hashlib.sha256(json.dumps(levels).encode()).hexdigest()


def load_samples(
    run: TrainedRun, images: ImageSet | LargeImages, levels: dict[str, list[str]], name: str, tell: Tell
) -> Samples:
    """Features, embeddings and the labels of every level; `levels` is what `class_levels` gives."""
    made = embed_once(run, images, name, tell=lambda done, of: tell(f"features, {name}", done, of))
    labels = {level: group_numbers(groups)[images.labels] for level, groups in levels.items()}
    return Samples(made.features, labels, made.embeddings)


def _outliers(run: TrainedRun, name: str, source: str, tell: Tell, say: Callable[[str], None]) -> Tensor:
    place, classes = split_source(source)
    images = load_outliers(place, run.recipe.data.test_split, classes)
    if isinstance(images, ImageSet) and images.images.shape[-1] != run.recipe.views.size:
        height, width = images.images.shape[-2:]
        say(f"outliers {name}: {len(images):,} images of {height} × {width}, resized to {run.recipe.views.size}")
    elif isinstance(images, LargeImages):
        say(f"outliers {name}: {len(images):,} images of several sizes, resized to {run.recipe.views.size}")
    return embed_once(
        run, images, f"outliers-{name}", tell=lambda done, of: tell(f"features, {name}", done, of)
    ).features


def _epoch_features(run: TrainedRun, images: ImageSet | LargeImages) -> Callable[[int], Tensor]:
    """Training features of an epoch of the paper's probe: crop and flip, drawn anew every epoch."""
    settings, seed = run.recipe.views, run.recipe.seed
    views = Views(size=settings.size, jitter=None, grayscale=0.0, mean=settings.mean, std=settings.std)
    if isinstance(images, LargeImages):
        order, workers = OneByOne(len(images), BATCH), run.recipe.data.workers
        cpu = torch.device("cpu")
        feed = Feed(images, images.labels, views, order, seed=seed, device=cpu, workers=workers, numbers=(0,))
        return lambda epoch: _features_of(run, (step.views[0] for step in feed.epoch(epoch)))
    pixels = with_channels(images.images, run.channels)

    def batches(epoch: int) -> Iterator[Tensor]:
        for ids in torch.arange(len(pixels)).split(BATCH):
            yield views(pixels[ids], seed=seed, epoch=epoch, view=0, sample_ids=ids)

    return lambda epoch: _features_of(run, batches(epoch))


def _features_of(run: TrainedRun, batches: Iterable[Tensor]) -> Tensor:
    with torch.inference_mode():
        return torch.cat([run.encoder.features(batch) for batch in batches]).float().clone()


def read_results(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results and figures of a run that was evaluated, or a clear error."""
    for name in (RESULTS, FIGURES):
        if not (folder / name).is_file():
            raise DataError(f"{folder} was not evaluated: it has no {name}; run `rince evaluate {folder}` first")
    try:
        return json.loads((folder / RESULTS).read_text()), json.loads((folder / FIGURES).read_text())
    except json.JSONDecodeError as error:
        raise DataError(f"the results in {folder} are damaged ({error}); run `rince evaluate {folder}` again") from None
