r"""Draws the gap between two rows of a table against steps, from what `rince analyse run --checkpoints` has written.

    python scripts/draw_trajectory.py cifar100 RINCE-in SCL-in --ours runs/rince-in/*/analysis/trajectory.csv \
        --theirs runs/scl-in/*/analysis/trajectory.csv --out docs/figures/gap.svg

A panel per level: the mean over seeds, a band from the lowest to the highest seed, and the paper's gap at the end of
the axis. Files of both rows are given in the same order of seeds.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes

from rince.errors import DataError
from rince.files import write_out
from rince.report.drawing import INK, MUTED, NEGATIVE, RUNS, panels
from rince.report.tables import paper_number
from rince.terminal import counted

TEST, RECALL = "test/", "/recall@1"


def read(path: Path) -> dict[int, dict[str, float]]:
    """Step → what was measured there."""
    try:
        with path.open(encoding="utf-8") as file:
            lines = [{name: float(value) for name, value in line.items()} for line in csv.DictReader(file)]
        return {int(line.pop("step")): line for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no trajectory of `rince analyse run --checkpoints`: {error!r}") from None


def gaps(ours: list[Path], theirs: list[Path]) -> dict[str, dict[int, list[float]]]:
    """Level → step → ours less theirs on test samples, in percent, seed by seed; of steps that all files have."""
    if len(ours) != len(theirs):
        raise DataError(f"{len(ours)} files of ours and {len(theirs)} of theirs: give one of each for every seed")
    pairs = [(read(one), read(other)) for one, other in zip(ours, theirs, strict=True)]
    steps = sorted(set.intersection(*(set(each) for pair in pairs for each in pair)))
    if not steps:
        raise DataError("the files have no step in common")
    names = [name for name in pairs[0][0][steps[-1]] if name.startswith(TEST) and name.endswith(RECALL)]
    return {
        name.removeprefix(TEST).removesuffix(RECALL): {
            step: [100 * (one[step][name] - other[step][name]) for one, other in pairs] for step in steps
        }
        for name in names
    }


def panel(level: str, of_steps: dict[int, list[float]], paper: float | None) -> Callable[[Axes], None]:
    def paint(axes: Axes) -> None:
        steps, values = list(of_steps), list(of_steps.values())
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.fill_between(steps, list(map(min, values)), list(map(max, values)), color=RUNS[0], alpha=0.2, linewidth=0)
        means = [sum(each) / len(each) for each in values]
        label = f"ours, {counted(len(values[0]), 'seed')}"
        axes.plot(steps, means, color=RUNS[0], marker="o", markersize=4, label=label)
        axes.set_xscale("log", base=2)
        if paper is not None:
            end = 2 * steps[-1]  # beyond our last step: the paper's training is longer than the axis
            axes.plot([end], [paper], color=NEGATIVE, marker="D", linestyle="", clip_on=False, label="the paper")
            axes.annotate(f"{paper:+.1f}", (end, paper), (-6, 5), textcoords="offset points", ha="right", color=INK)
            axes.set_xlim(right=end)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set(title=f"R@1 {level}", xlabel="steps", ylabel="gap in points")

    return paint


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("rows", nargs=2, metavar=("OURS", "THEIRS"))
    parser.add_argument("--ours", nargs="+", type=Path, required=True)
    parser.add_argument("--theirs", nargs="+", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(arguments)
    if asked.out.suffix != ".svg":
        parser.error(f"--out {asked.out}: it draws SVG; name it so")
    painted = []
    for level, of_steps in gaps(asked.ours, asked.theirs).items():
        paper = [paper_number(asked.table, row, f"retrieval/{level}{RECALL}") for row in asked.rows]
        gap = paper[0].mean - paper[1].mean if paper[0] and paper[1] else None
        painted.append(panel(level, of_steps, gap))
        told = ", ".join(f"{step:,}: {sum(each) / len(each):+.1f}" for step, each in of_steps.items())
        print(f"{level}: {told}" + (f"; the paper {gap:+.1f}" if gap is not None else ""))
    write_out(asked.out, panels("gap", painted), in_new_folder=True)
    print(f"wrote {asked.out}")


if __name__ == "__main__":
    main()
