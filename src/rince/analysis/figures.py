"""The figures of the analysis, in the look of the report, each with its numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from torch import Tensor

from rince.analysis.equilibrium import equilibrium_line, ranking_starts, trade_off
from rince.analysis.measure import RunAnalysis
from rince.files import write_out
from rince.report.drawing import DASHES, INK, MUTED, NEGATIVE, PAPER, RANKS, Drawn, clean, draw, look

Pair = tuple[float, float]
PAPER_MAPS: tuple[Pair, ...] = ((0.1, 0.2), (0.1, 0.7), (0.2, 0.1))
PAPER_LINES: tuple[Pair, ...] = ((0.1, 0.2), (0.1, 0.7), (0.15, 0.1), (0.2, 0.1))
PENALTY_TEMPERATURES = (0.05, 0.1, 0.2, 0.4, 0.7)
GRID = torch.linspace(-0.2, 1, 121, dtype=torch.float64)
SIZE = (4.9, 4.2)
RED_GREEN = LinearSegmentedColormap.from_list("pulled-pushed", [NEGATIVE, "#f0b08f", PAPER, RANKS[3], RANKS[1]])


class Charted(NamedTuple):
    """A figure and the numbers it was drawn from."""

    figure: Drawn
    header: tuple[str, ...]
    rows: Sequence[tuple[float, ...]]


def tradeoff_maps(pairs: Sequence[Pair], negatives: Tensor) -> list[Charted]:
    """K over h(q,p₁) and h(q,p₂), a map for each (τ₁, τ₂); red where h(q,p₂) is pulled up, green where pushed down."""
    return [_tradeoff_map(pair, negatives) for pair in pairs]


def _tradeoff_map(pair: Pair, negatives: Tensor) -> Charted:
    values = trade_off(GRID[None, :], GRID[:, None], pair, negatives)
    line = equilibrium_line(GRID, pair, negatives)
    limit = float(values.abs().max())

    def paint(axes: Axes) -> None:
        low, high = float(GRID[0]), float(GRID[-1])
        image = axes.imshow(
            values.numpy(), origin="lower", extent=(low, high, low, high), cmap=RED_GREEN, vmin=-limit, vmax=limit
        )
        axes.plot([low, high], [low, high], color=MUTED, linewidth=1, linestyle=DASHES[2], label="both equally close")
        inside = line < 1
        axes.plot(GRID[inside], line[inside], color=INK, linewidth=2, label="equilibrium, K = 0")
        axes.text(0.97, 0.04, "K < 0: ℓ₂ pulls rank 2 up ↑", transform=axes.transAxes, fontsize=8.5, ha="right")
        axes.text(0.03, 0.91, "K > 0: ℓ₁ pushes rank 2 down ↓", transform=axes.transAxes, fontsize=8.5)
        axes.set(
            title=f"τ₁ = {pair[0]:g}, τ₂ = {pair[1]:g}",
            xlabel="h(q, p₁), similarity of rank 1",
            ylabel="h(q, p₂), similarity of rank 2",
            xlim=(low, high),
            ylim=(low, high),
        )
        axes.grid(visible=False)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.1), fontsize=8)
        assert axes.figure is not None
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.75, aspect=24, pad=0.03, label="K")
        bar.outline.set_visible(False)

    about = (
        f"Trade-off between the first two terms for τ₁ = {pair[0]:g} and τ₂ = {pair[1]:g}: red below the equilibrium "
        "line, where the similarity of rank 2 grows, green above it, where it falls"
    )
    rows = [
        (float(first), float(second), float(values[i, j]))
        for i, second in enumerate(GRID)
        for j, first in enumerate(GRID)
    ]
    drawn = draw(f"tradeoff-{pair[0]:g}-{pair[1]:g}", about, paint, SIZE)
    return Charted(drawn, ("first", "second", "k"), rows)


def equilibrium_lines(pairs: Sequence[Pair], negatives: Tensor) -> Charted:
    """h(q,p₂) at rest against h(q,p₁), a line for each (τ₁, τ₂), and the diagonal."""
    lines = [equilibrium_line(GRID, pair, negatives) for pair in pairs]

    def paint(axes: Axes) -> None:
        low, high = float(GRID[0]), float(GRID[-1])
        axes.plot([low, high], [low, high], color=MUTED, linewidth=1, label="h(q, p₂) = h(q, p₁)")
        for number, (pair, line) in enumerate(zip(pairs, lines, strict=True)):
            inside = line < 1  # beyond, no cosine is at rest
            label = f"τ₁ = {pair[0]:g}, τ₂ = {pair[1]:g}"
            axes.plot(GRID[inside], line[inside], **look(number), label=label)
            start = ranking_starts(pair, negatives)
            if start <= 1:
                axes.plot([start], [start], marker="o", markersize=5, color=look(number)["color"])
        axes.set(
            title="Equilibrium lines; ranked right of the dots",
            xlabel="h(q, p₁), similarity of rank 1",
            ylabel="h(q, p₂) at rest",
            xlim=(low, high),
            ylim=(low, high),
        )
        axes.legend(loc="lower right")

    about = "Similarity of rank 2 at rest against that of rank 1, for several pairs of temperatures, with the diagonal"
    rows = [
        (*pair, float(first), float(second))
        for pair, line in zip(pairs, lines, strict=True)
        for first, second in zip(GRID, line, strict=True)
    ]
    return Charted(draw("equilibrium", about, paint, SIZE), ("tau_1", "tau_2", "first", "second"), rows)


def penalty_curves(temperatures: Sequence[float], negatives: Tensor) -> Charted:
    """Relative penalty of one more negative against its similarity, the other negatives as they are."""
    curves = [torch.sigmoid(GRID / t - torch.logsumexp(negatives / t, dim=0)) for t in temperatures]

    def paint(axes: Axes) -> None:
        for number, (temperature, curve) in enumerate(zip(temperatures, curves, strict=True)):
            axes.plot(GRID, curve, **look(number), label=f"τ = {temperature:g}")
        axes.axvline(float(negatives.mean()), color=MUTED, linewidth=0.8, linestyle=DASHES[2])
        axes.set(
            title="Which negatives a term pushes",
            xlabel="h(q, n), similarity of a negative",
            ylabel="relative penalty: its share of the push",
            xlim=(float(GRID[0]), float(GRID[-1])),
            yscale="log",
        )
        axes.set_ylim(1e-5, 1.5)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
        axes.legend(loc="lower right")

    about = "Relative penalty of a negative against its similarity: steep for a low temperature, flat for a high one"
    rows = [
        (temperature, float(similarity), float(penalty))
        for temperature, curve in zip(temperatures, curves, strict=True)
        for similarity, penalty in zip(GRID, curve, strict=True)
    ]
    return Charted(draw("penalty", about, paint, SIZE), ("tau", "similarity", "relative_penalty"), rows)


def run_figures(found: RunAnalysis) -> list[Drawn]:
    """Of a run: similarities by rank with the prediction, and which negatives each term pushes."""
    name = clean(found.recipe, 34)
    return [
        draw("similarity", f"Similarities after the head by rank, {name}", _similarities(found), SIZE),
        draw("penalty", f"Share of the push on negatives by how close they are, {name}", _tenths(found), SIZE),
    ]


def _similarities(found: RunAnalysis) -> Callable[[Axes], None]:
    def paint(axes: Axes) -> None:
        edges = torch.linspace(-1, 1, 81)
        for rank, similarities in enumerate(found.similarities, start=1):
            negative = rank == len(found.similarities)
            colour = NEGATIVE if negative else RANKS[(rank - 1) % len(RANKS)]
            if len(similarities):
                share = torch.histc(similarities.float().clamp(-1, 1), 80, -1, 1) / len(similarities)
                label = "negatives" if negative else f"rank {rank}"
                dashes = DASHES[2 if negative else (rank - 1) % 2]
                axes.stairs(share.numpy(), edges.numpy(), color=colour, linewidth=1.4, label=label, linestyle=dashes)
        for finding in found.ranks:
            colour, top = RANKS[(finding.rank - 1) % len(RANKS)], axes.get_ylim()[1]
            axes.plot([finding.after], [0.94 * top], marker="v", color=colour, markersize=7, clip_on=False)
            if finding.predicted is not None:
                axes.plot([finding.predicted] * 2, [0, 0.88 * top], color=colour, linewidth=1, linestyle=DASHES[3])
                axes.annotate(
                    f"predicted {finding.rank}",
                    (finding.predicted, 0.89 * top),
                    color=colour,
                    fontsize=7.5,
                    ha="center",
                )
        axes.plot([], [], marker="v", color=MUTED, linestyle="", label="mean of a rank")
        axes.set(
            title=f"{clean(found.recipe, 34)}, after the head",
            xlabel="cosine with the query",
            ylabel="share of candidates",
            xlim=(-1, 1),
        )
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left", bbox_to_anchor=(0, 0.85))

    return paint


def _tenths(found: RunAnalysis) -> Callable[[Axes], None]:
    def paint(axes: Axes) -> None:
        shares = found.pushed.by_quantile
        places = torch.arange(1, shares.shape[1] + 1)
        for rank, row in enumerate(shares, start=1):
            label = f"ℓ{rank}, τ = {found.ranks[rank - 1].temperature:g}"
            style = {"color": RANKS[(rank - 1) % len(RANKS)], "linestyle": DASHES[(rank - 1) % len(DASHES)]}
            axes.plot(places, row * 100, marker="o", markersize=4, label=label, **style)
        axes.axhline(100 / shares.shape[1], color=MUTED, linewidth=0.8)
        axes.set(
            title="Which negatives are pushed",
            xlabel="tenth of a query's negatives, the closest last",
            ylabel="share of the push on negatives, %",
            xticks=places.tolist(),
        )
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left")

    return paint


def write_charts(charts: Iterable[Charted], out: Path) -> list[Path]:
    """PNG, SVG and CSV of each chart into a folder; each file whole or not at all."""
    written = []
    for chart in charts:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(chart.header)
        table.writerows([[f"{value:.10g}" for value in row] for row in chart.rows])
        written += write_figures([chart.figure], out)
        written.append(write_out(out / f"{chart.figure.name}.csv", text.getvalue().encode(), in_new_folder=True))
    return written


def write_figures(figures: Iterable[Drawn], out: Path) -> list[Path]:
    """PNG and SVG of each figure into a folder."""
    written = []
    for figure in figures:
        written.append(write_out(out / f"{figure.name}.png", figure.png, in_new_folder=True))
        written.append(write_out(out / f"{figure.name}.svg", figure.svg, in_new_folder=True))
    return written
