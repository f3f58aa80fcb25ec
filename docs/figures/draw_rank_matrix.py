"""Draws rank_matrix.svg, the picture of the README: one matrix says what every candidate is to every query."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import FancyBboxPatch

import rince

TARGET = Path(__file__).with_name("rank_matrix.svg")
PATHS = ["animal/dog/poodle", "animal/dog/pug", "animal/cat/manx", "plant/tree/oak"]
QUERIES = [0, 1, 2, 3]
BANK = [0, 2, 1, 3, 0, 1, 2, -1]
COLOURS = {1: "#1b7837", 2: "#5aae61", 3: "#a6dba0", 0: "#e7d4e8", -1: "#ffffff"}
MEANING = {1: "same class", 2: "same group", 3: "same kingdom", 0: "negative", -1: "excluded"}


def main() -> None:
    names = [path.rpartition("/")[2] for path in PATHS]
    source = rince.TableRanks.from_tree(PATHS)
    own = rince.view_ranks(1, queries=len(QUERIES))
    ranks = torch.cat([own, source(torch.tensor(QUERIES), torch.tensor(BANK))], dim=1).tolist()
    figure, axes = plt.subplots(figsize=(9.6, 4.3))
    for row, values in enumerate(ranks):
        axes.text(-0.3, -row, names[QUERIES[row]], ha="right", va="center", fontsize=12)
        for column, rank in enumerate(values):
            x = column + (0.35 if column else 0)
            edge, style = ("#999999", ":") if rank == -1 else ("white", "-")
            box = FancyBboxPatch((x, -row - 0.4), 0.84, 0.8, "round,pad=0.02,rounding_size=0.1")
            box.set(facecolor=COLOURS[rank], edgecolor=edge, linestyle=style)
            axes.add_patch(box)
            colour = "white" if rank in (1, 2) else "#333333"
            axes.text(x + 0.42, -row, str(rank).replace("-", "−"), ha="center", va="center", fontsize=12, color=colour)
    for column, label in enumerate(["own key", *(names[label] if label >= 0 else "unfilled" for label in BANK)]):
        x = column + (0.35 if column else 0) + 0.42
        axes.text(x, 0.55, label, ha="left", va="bottom", fontsize=11, rotation=35)
    axes.text(-0.3, 0.7, "query", ha="right", fontsize=11, color="#666666")
    axes.annotate("", (1.35, -3.7), (9.2, -3.7), arrowprops={"arrowstyle": "<->", "color": "#666666"})
    axes.text(5.3, -3.75, "memory bank", ha="center", va="top", fontsize=11, color="#666666")
    for i, (rank, meaning) in enumerate(MEANING.items()):
        edge, style = ("#999999", ":") if rank == -1 else ("white", "-")
        box = FancyBboxPatch((9.9, -i * 0.75 - 0.2), 0.4, 0.4, "round,pad=0.02,rounding_size=0.08")
        box.set(facecolor=COLOURS[rank], edgecolor=edge, linestyle=style)
        axes.add_patch(box)
        axes.text(10.45, -i * 0.75, f"{rank}  {meaning}".replace("-", "−"), va="center", fontsize=11)
    axes.set(xlim=(-1.6, 13.0), ylim=(-4.3, 2.0))
    axes.axis("off")
    plt.rcParams["svg.hashsalt"] = "rince"  # the same picture gives the same bytes
    figure.savefig(TARGET, bbox_inches="tight", facecolor="white", metadata={"Date": None})


if __name__ == "__main__":
    main()
