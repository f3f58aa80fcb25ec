"""`rince analyse run --checkpoints`: how similarities, orders and R@1 came about, checkpoint by checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from torch import Tensor

from rince.analysis.figures import SIZE, Charted
from rince.analysis.measure import compare, mean_of_queries, open_ranked, open_splits
from rince.errors import DataError
from rince.evaluation.retrieval import recall_at_k
from rince.evaluation.trained import Embedded, TrainedRun, embed
from rince.methods.summary import similarity_summary
from rince.ranks import NEGATIVE
from rince.report.drawing import DASHES, RANKS, RUNS, clean, draw
from rince.report.drawing import NEGATIVE as ORANGE
from rince.sources.order import permutation
from rince.sources.source import Source, rows_in
from rince.terminal import Tell, nobody
from rince.train.record import kept_files
from rince.train.setup import NOTHING, Brought, Parts

RECALL = "recall@1"


def trajectory(folder: Path, *, brought: Brought = NOTHING, tell: Tell = nobody) -> list[dict[str, float]]:
    """Of every checkpoint that a finished run has kept, and of the last, from first to last.

    `similarity/…` and `violated/…` are of training samples after the head, measured as `analyse_run` does;
    `train/LEVEL/recall@1` and `test/LEVEL/recall@1` before the head, as the paper's: all training samples are the
    gallery, queries are the test samples, and as many training samples, which do not find themselves.

    Args:
        folder: of the run.
        brought: what the run was given as objects.
        tell: is told how far it is.
    """
    files = kept_files(folder)
    if len(files) == 1:
        raise DataError(f"{folder} has kept no checkpoint on the way; train it with save.keep=6, for six of them")
    last, parts, loss = open_ranked(folder, brought)
    test, train = open_splits(last, "test")
    ranks, found = min(loss.rank_count, parts.rank_count), []
    for number, file in enumerate(files):
        tell(f"checkpoints, {file}", number, len(files))
        run = last if file == last.file else open_ranked(folder, brought, file)[0]
        gallery, queries = embed(run, train), embed(run, test)
        line: dict[str, float] = {"step": run.step}
        line |= _ranked(run, parts, (train, gallery), ranks)
        line |= _recalls(run, parts, (train, gallery), (test, queries))
        found.append(line)
    tell("checkpoints", len(files), len(files))
    return found


def _ranked(run: TrainedRun, parts: Parts, train: tuple[Source, Embedded], ranks: int) -> dict[str, float]:
    compared = compare(run, parts, train, train)
    names = {rank or NEGATIVE: f"similarity/{rank or 'negative'}" for rank in (*range(1, ranks + 1), NEGATIVE)}
    means = {name: mean_of_queries(compared.after, compared.ranks == rank) for rank, name in names.items()}
    violated = similarity_summary(compared.after, compared.ranks, ranks)
    return means | {name: value for name, value in violated.items() if name.startswith("violated/")}


def _recalls(
    run: TrainedRun, parts: Parts, train: tuple[Source, Embedded], test: tuple[Source, Embedded]
) -> dict[str, float]:
    """R@1 of every level, of training and of test samples."""
    gallery_of, gallery = train
    some = permutation(len(gallery_of), run.recipe.seed, 0)[: len(test[0])]
    asked: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
        "train": (gallery.features[some], gallery_of.labels[some], some),
        "test": (test[1].features, test[0].labels, rows_in(test[0], gallery_of)),
    }
    return {
        f"{side}/{level}/{RECALL}": recall_at_k(
            features,
            gallery.features,
            query_labels=groups[labels],
            gallery_labels=groups[gallery_of.labels],
            same=same,
        )
        for side, (features, labels, same) in asked.items()
        for level, groups in zip(parts.level_names, parts.groups, strict=True)
    }


def chart(lines: Sequence[dict[str, float]], recipe: str) -> Charted:
    """The trajectory as a figure and a table: similarities and violated orders, and R@1, against steps."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    drawn = draw(
        "trajectory", f"Similarities, violated orders and R@1 against steps, {clean(recipe)}", _paint(lines), SIZE
    )
    return Charted(drawn, tuple(names), [tuple(line.get(name, float("nan")) for name in names) for line in lines])


def _paint(lines: Sequence[dict[str, float]]) -> Callable[[Axes], None]:
    levels = [name.split("/")[1] for name in lines[-1] if name.startswith("test/")]

    def look_of(name: str) -> dict[str, object]:
        kind, which = name.split("/")[:2]
        if kind in ("train", "test"):
            colour = RUNS[levels.index(which) % len(RUNS)]
            return {"color": colour, "linestyle": DASHES[0 if kind == "test" else 2], "marker": "s"}
        colour = ORANGE if which == "negative" else RANKS[(int(which) - 1) % len(RANKS)]
        return {"color": colour, "linestyle": DASHES[0 if kind == "similarity" else 1], "marker": "o"}

    def paint(axes: Axes) -> None:
        for name in lines[-1]:
            if name != "step":
                points = [(line["step"], line[name]) for line in lines if name in line]
                label = clean(name.removesuffix(f"/{RECALL}") + (" R@1" if name.endswith(RECALL) else ""))
                axes.plot(*zip(*points, strict=True), label=label, markersize=3.5, **look_of(name))  # type: ignore[arg-type]
        axes.set_xscale("log", base=2)
        axes.set(title="Against steps", xlabel="steps", ylabel="cosine, or share")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(loc="best")

    return paint
