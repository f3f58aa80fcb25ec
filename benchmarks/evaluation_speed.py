"""Speed of the evaluation, as ratios measured in the same run.

    python benchmarks/evaluation_speed.py [CIFAR]        (leave the machine alone while it runs; ten minutes)

- Gaussians: fit on 500 samples of 2,048 dimensions for each of CLASSES classes and score 20,000 samples, against
  scikit-learn's `GaussianMixture(1)` per class; both are linear in the classes, and ours is also timed with all 100.
  The median of five ratios, each within a round.
- mAP: ours over 10,000 × 50,000, against scikit-learn's `average_precision_score` on the first QUERIES of the queries,
  which is linear in the queries.
- evaluate: with CIFAR, a folder of CIFAR-100, the whole of `rince evaluate` on the reduced recipe (features, probe,
  retrieval, ranking, geometry) against the time its training takes, measured on 150 of its steps.

Writes `evaluation_speed.csv` beside this file.
"""

import csv
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.mixture import GaussianMixture

from measure import processor
from rince.config import load_recipe
from rince.evaluation import ClassGaussians, auroc, mean_average_precision
from rince.evaluation.evaluate import evaluate
from rince.train.loop import train
from rince.train.runtime import Runtime
from rince.train.setup import build_parts, total_steps

CSV = Path(__file__).with_suffix(".csv")
CLASSES, ALL_CLASSES, PER_CLASS, DIM, SCORED = 5, 100, 500, 2048, 20_000
QUERIES, ALL_QUERIES, GALLERY, EMBEDDING = 150, 10_000, 50_000, 128
STEPS, ROUNDS = 150, 5
Row = tuple[str, float, str]


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def clusters(classes: int, each: int, dim: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features with a spectrum that falls as that of real ones does, around class means."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(each)
    means = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(len(labels), dim, generator=generator) * torch.arange(1, dim + 1).pow(-0.5) * 5
    return means[labels] + noise, labels


def gaussians() -> list[Row]:
    features, labels = clusters(ALL_CLASSES, PER_CLASS, DIM, seed=1)
    half = SCORED // 2
    inliers, _ = clusters(CLASSES, half // CLASSES, DIM, seed=2)
    outliers = torch.randn(half, DIM, generator=torch.Generator().manual_seed(3)) * 0.6 + inliers * 0.4
    scored = torch.cat([inliers, outliers])
    few = labels < CLASSES

    def theirs(dtype: torch.dtype) -> np.ndarray:
        unit, test = (torch.nn.functional.normalize(x.to(dtype), dim=1).numpy() for x in (features[few], scored))
        scores = [
            GaussianMixture(1, reg_covar=1e-6).fit(unit[labels[few] == c]).score_samples(test) for c in range(CLASSES)
        ]
        return np.max(scores, axis=0)

    rounds: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        ours_time, ours = timed(lambda: ClassGaussians(features[few], labels[few]).score(scored))
        theirs_time, reference = timed(lambda: theirs(torch.float32))
        double_time, _ = timed(lambda: theirs(torch.float64))
        all_time, _ = timed(lambda: ClassGaussians(features, labels).score(scored))
        scale = ALL_CLASSES / CLASSES
        rounds.append((theirs_time / ours_time, scale * theirs_time / all_time, scale * double_time / all_time))
    few_ratio, ratio, double_ratio = (statistics.median(ratios) for ratios in zip(*rounds, strict=True))
    truth = np.r_[np.ones(half), np.zeros(half)]
    difference = abs(auroc(ours[:half], ours[half:]) - roc_auc_score(truth, reference))
    scaled = f"scaled from {CLASSES}"
    return [
        (f"Gaussians, {CLASSES} classes: scikit-learn, given float32", few_ratio, "× ours"),
        (f"Gaussians, {ALL_CLASSES} classes: scikit-learn, given float32, {scaled}", ratio, "× ours"),
        (f"Gaussians, {ALL_CLASSES} classes: scikit-learn, given float64, {scaled}", double_ratio, "× ours"),
        (f"Gaussians, {CLASSES} classes: difference of AUROC", difference, "absolute"),
    ]


def average_precision() -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 100, (ALL_QUERIES + GALLERY,), generator=generator)
    means = torch.randn(100, EMBEDDING, generator=generator)
    vectors = means[labels] + 2 * torch.randn(len(labels), EMBEDDING, generator=generator)
    vectors = torch.nn.functional.normalize(vectors, dim=1)
    queries, gallery = vectors[:ALL_QUERIES], vectors[ALL_QUERIES:]
    known = {"gallery_labels": labels[ALL_QUERIES:]}

    def theirs() -> float:
        scores, truth = (queries[:QUERIES] @ gallery.T).numpy(), known["gallery_labels"].numpy()
        return float(np.mean([average_precision_score(truth == int(labels[i]), scores[i]) for i in range(QUERIES)]))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours_time, _ = timed(lambda: mean_average_precision(queries, gallery, query_labels=labels[:ALL_QUERIES], **known))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    theirs_time, reference = timed(theirs)
    few = mean_average_precision(queries[:QUERIES], gallery, query_labels=labels[:QUERIES], **known)
    return [
        (
            f"mAP, {ALL_QUERIES:,} × {GALLERY:,}: scikit-learn, scaled from {QUERIES} queries",
            theirs_time * ALL_QUERIES / QUERIES / ours_time,
            "× ours",
        ),
        (f"mAP, {QUERIES} queries: difference", abs(few - reference), "absolute"),
        (f"mAP, {ALL_QUERIES:,} × {GALLERY:,}: memory on top of the peak before", memory, "MB"),
    ]


def whole(cifar: str) -> list[Row]:
    recipe = load_recipe("cifar100/rince-in", ["scale=reduced", f"data.source={cifar}", f"train.max_steps={STEPS}"])
    steps = total_steps(
        recipe.model_copy(update={"train": recipe.train.model_copy(update={"max_steps": None})}),
        build_parts(recipe).order.steps_per_epoch,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        seconds, _ = timed(lambda: train(recipe, run, Runtime(1, "32-true", "cpu", "per-process"), resume=False))
        judged, _ = timed(lambda: evaluate(run))
    return [("evaluate, reduced CIFAR-100, share of training", judged / (seconds * steps / STEPS), "of training")]


def main() -> None:
    rows = average_precision() + gaussians() + (whole(sys.argv[1]) if len(sys.argv) > 1 else [])
    versions = (torch.__version__, sklearn.__version__, platform.python_version(), processor())
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["what", "value", "unit", "torch", "scikit-learn", "python", "processor"])
        writer.writerows([name, f"{value:.3g}", unit, *versions] for name, value, unit in rows)
    for name, value, unit in rows:
        print(f"{name:72} {value:10.3g} {unit}")


if __name__ == "__main__":
    main()
