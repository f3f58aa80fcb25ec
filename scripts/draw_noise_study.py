"""Draws quality against noise from the runs in results/: docs/figures/noise-reduced.svg, and likewise for each scale.

    python scripts/draw_noise_study.py

How noisy the ranks of a run are is worked out again from its recipe: of the pairs of classes that its rank 2 calls
related, the share that share a superclass of CIFAR-100 (precision), and the share of all such pairs that it finds
(recall). Runs without noise, and without rank 2, are those of the CIFAR-100 table.
"""

import json
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

from rince.config import validate
from rince.config.older import upgraded
from rince.hierarchy.given import Ranked
from rince.hierarchy.taxonomy import load_taxonomy
from rince.ranks import TableRanks
from rince.report.drawing import MUTED, NEGATIVE, RANKS, RUNS, STYLE

RESULTS = Path(__file__).parents[1] / "results"
METRICS = {
    "probe/accuracy": ("accuracy, %", 100),
    "retrieval/class/recall@1": ("R@1 class, %", 100),
    "retrieval/superclass/recall@1": ("R@1 superclass, %", 100),
    "retrieval/superclass/map": ("mAP superclass", 1),
    "outliers/cifar10/auroc": ("AUROC CIFAR-10, %", 100),
    "outliers/tiny-imagenet/auroc": ("AUROC TinyImageNet, %", 100),
}


def runs(pattern: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(pattern))]


def precision_recall(run: dict) -> tuple[float, float]:
    taxonomy = load_taxonomy("cifar100")
    names = sorted(taxonomy.paths)  # the order of the labels
    paths = taxonomy.paths_for(names)
    recipe = validate(upgraded(run["recipe"]), run["row"])
    found = recipe.ranks.build(Ranked(names, paths, 0, recipe.seed))
    truth = TableRanks.from_tree(paths).table == 2
    chosen = found.table == 2
    right = (chosen & truth).sum().item()
    return right / chosen.sum().item(), right / truth.sum().item()


def draw(scale: str) -> None:
    noisy = [
        (run, *precision_recall(run))
        for run in runs(f"noise-{scale}/*.json")
        if "flipped" in run["row"] or "text" in run["row"]
    ]
    clean, without = (runs(f"cifar100-{scale}/{name}-seed-*.json") for name in ("rince-in", "scl-in"))
    with mpl.rc_context(STYLE):
        figure = Figure((10, 5.8), layout="constrained")
        for axes, (metric, (name, times)) in zip(figure.subplots(2, 3).flat, METRICS.items(), strict=True):
            for reference, colour, label in ((clean, RANKS[0], "superclasses"), (without, NEGATIVE, "no rank 2")):
                values = torch.tensor([run["results"]["metrics"][metric] for run in reference]) * times
                axes.axhspan(float(values.min()), float(values.max()), color=colour, alpha=0.18, linewidth=0)
                axes.axhline(float(values.mean()), color=colour, linewidth=1, label=f"{label} ({len(values)} seeds)")
            for kind, marker, colour in (("flipped", "o", RUNS[0]), ("text", "D", RUNS[1])):
                some = sorted(
                    (precision, run["results"]["metrics"][metric] * times, run["row"])
                    for run, precision, _ in noisy
                    if kind in run["row"]
                )
                places, values, _ = zip(*some, strict=True)
                label = {"flipped": "superclasses, pairs flipped", "text": "class names, by threshold"}[kind]
                axes.plot(places, values, marker=marker, color=colour, linewidth=0.8, markersize=4.5, label=label)
                for place, value, row in some:
                    text = row.removesuffix(" flipped").removeprefix("text, ")
                    axes.annotate(text, (place, value), (4, 4), textcoords="offset points", fontsize=7, color=MUTED)
            axes.set_xscale("log")
            axes.set_xlim(0.03, 1.3)
            axes.set_xticks([0.05, 0.1, 0.2, 0.5, 1], ["0.05", "0.1", "0.2", "0.5", "1"])
            axes.set_xticks([], minor=True)
            axes.set_title(name)
            axes.set_xlabel("precision of rank 2")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
        figure.savefig(RESULTS.parent / "docs" / "figures" / f"noise-{scale}.svg", metadata={"Date": None})
    for run, precision, recall in noisy:
        print(f"{scale}: {run['row']:14} precision {precision:.2f}, recall {recall:.2f}")


if __name__ == "__main__":
    for folder in sorted(RESULTS.glob("noise-*")):
        draw(folder.name.removeprefix("noise-"))
