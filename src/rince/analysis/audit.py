"""`rince ranks audit`: what a source of ranks will do, told before hours of training."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rince.config import Recipe
from rince.errors import ConfigError
from rince.files import write_out
from rince.hierarchy.levels import check_levels, class_paths
from rince.hierarchy.wordnet import readable_names
from rince.ranks import TableRanks
from rince.train.plan import candidates_of, class_table, data_notes, expected_positives
from rince.train.setup import Parts, build_parts

GRID = tuple(step / 100 for step in range(25, 80, 5))
PAIRS = 8
MANY = 50  # pairs in a bar of the histogram, beyond which its axis is logarithmic
NAME_INCHES, LARGEST_INCHES = 0.13, 40.0  # of a row with its name; of a picture, beyond which some names are left out


@dataclass(frozen=True)
class RankLine:
    """A rank: how many classes it gives a class, how many positives the bank will hold, who has none."""

    rank: int
    classes: float
    positives: float
    empty: list[str]


@dataclass(frozen=True)
class ThresholdLine:
    """What rank 2 would be at a threshold; precision and recall if there is a reference."""

    threshold: float
    pairs: int
    empty: int
    precision: float | None = None
    recall: float | None = None


@dataclass(frozen=True)
class Audit:
    """All there is to say about a source of ranks."""

    names: tuple[str, ...]
    ranks: list[RankLine]
    table: Tensor
    where: str
    """What positives are expected in: the bank, or a batch."""
    similarity: Tensor | None = None
    asymmetric: list[tuple[str, str, int, int]] = field(default_factory=list)
    tightest: list[tuple[str, str, float]] = field(default_factory=list)
    oddest: list[tuple[str, str, float]] = field(default_factory=list)
    thresholds: list[ThresholdLine] = field(default_factory=list)
    proposed: float | None = None
    agreement: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    """What the dry run says of the data: classes that stand higher, columns that are no levels."""


def audit(recipe: Recipe, reference: str | None = None) -> Audit:
    """Looks at the ranks of a recipe between its classes.

    Args:
        recipe: with its data.
        reference: a taxonomy to compare with: "column", "folders", a shipped name or a file. Pairs of classes that
            share any of its groups are held to be right.
    """
    parts = build_parts(recipe, check_terms=False)
    if recipe.ranks is None or parts.rank_source is None:
        raise ConfigError(
            f"method.kind={recipe.method.kind} does not use ranks; name a recipe that does, such as rince-in"
        )
    if parts.rank_source.by != "class":
        raise ConfigError(
            f"ranks.kind={recipe.ranks.kind} ranks samples, not classes; `rince train … --dry-run` tells how many "
            "positives they have"
        )
    class_names = parts.source.class_names
    table, names = class_table(parts.rank_source, len(class_names)), readable_names(class_names)
    truth = _truth(parts, reference) if reference else None
    similarity = recipe.ranks.similarity(class_names)
    found = _rank_lines(recipe, parts, table, names)
    where = candidates_of(recipe, parts)[1]
    above, below = (table != table.T).triu(1).nonzero(as_tuple=True)
    asymmetric = [
        (names[a], names[b], int(table[a, b]), int(table[b, a]))
        for a, b in zip(above.tolist(), below.tolist(), strict=True)
    ]
    notes = tuple(data_notes(parts))
    agreement = None if truth is None else _precision_recall(table > 1, truth)
    if similarity is None:
        return Audit(names, found, table, where, asymmetric=asymmetric, agreement=agreement, notes=notes)
    lines = [_threshold_line(similarity, threshold, truth) for threshold in GRID]
    tightest, oddest = _pairs(similarity, table, names, truth)
    best = _proposed(lines, len(names))
    return Audit(names, found, table, where, similarity, asymmetric, tightest, oddest, lines, best, agreement, notes)


def _rank_lines(recipe: Recipe, parts: Parts, table: Tensor, names: tuple[str, ...]) -> list[RankLine]:
    expected, shares = expected_positives(recipe, parts)
    lines = []
    for rank in range(1, parts.rank_count + 1):
        chosen = table == rank
        empty = [names[c] for c in (~chosen.any(dim=1)).nonzero()[:, 0].tolist()]
        positives = float(expected[:, rank - 1] @ shares)
        lines.append(RankLine(rank, chosen.sum(dim=1).float().mean().item(), positives, empty))
    return lines


def _truth(parts: Parts, reference: str) -> Tensor:
    check_levels(parts.source, reference)
    table = TableRanks.from_tree(class_paths(parts.source, reference)).table
    return (table > 1) & ~torch.eye(len(table), dtype=torch.bool)


def _precision_recall(chosen: Tensor, truth: Tensor) -> tuple[float, float]:
    both = (chosen & truth).sum().item()
    return both / max(1, int(chosen.sum())), both / max(1, int(truth.sum()))


def _threshold_line(similarity: Tensor, threshold: float, truth: Tensor | None) -> ThresholdLine:
    chosen = (similarity >= threshold) & ~torch.eye(len(similarity), dtype=torch.bool)
    empty = int((~chosen.any(dim=1)).sum())
    told = (None, None) if truth is None else _precision_recall(chosen, truth)
    return ThresholdLine(threshold, int(chosen.sum()) // 2, empty, *told)


def _proposed(lines: list[ThresholdLine], classes: int) -> float | None:
    """With a reference, the best balance of precision and recall; without, the highest that leaves half a rank 2."""
    if lines[0].precision is not None:
        return max(lines, key=_f1).threshold
    enough = [line.threshold for line in lines if line.empty <= classes / 2]
    return max(enough, default=None)


def _f1(line: ThresholdLine) -> float:
    precision, recall = line.precision or 0.0, line.recall or 0.0
    return 2 * precision * recall / max(1e-9, precision + recall)


def _pairs(
    similarity: Tensor, table: Tensor, names: tuple[str, ...], truth: Tensor | None
) -> tuple[list[tuple[str, str, float]], list[tuple[str, str, float]]]:
    """The closest pairs of classes, and the oddest positives.

    Odd is what the reference denies; without one, two classes that are alike but not to the same others.
    """
    above = torch.ones_like(similarity, dtype=torch.bool).triu(1)

    def listed(score: Tensor, chosen: Tensor) -> list[tuple[str, str, float]]:
        rows, columns = chosen.nonzero(as_tuple=True)
        order = score[rows, columns].argsort(descending=True)[:PAIRS]
        return [
            (names[int(rows[i])], names[int(columns[i])], float(similarity[rows[i], columns[i]]))
            for i in order.tolist()
        ]

    if truth is not None:
        return listed(similarity, above), listed(similarity, above & (table > 1) & ~truth)
    profile = torch.corrcoef(similarity.clone().fill_diagonal_(float(similarity.mean())))
    return listed(similarity, above), listed(similarity - profile, above & (table > 1))


def audit_text(found: Audit) -> str:
    """For a terminal."""
    lines = [f"{len(found.names)} classes", *found.notes]
    for rank in found.ranks:
        lines.append(
            f"rank {rank.rank}: {rank.classes:.1f} classes each, {rank.positives:.1f} positives expected in "
            f"{found.where}; empty for {len(rank.empty)} classes{_some(rank.empty)}"
        )
    if found.agreement:
        precision, recall = found.agreement
        lines.append(f"against the reference: precision {precision:.2f}, recall {recall:.2f} of pairs of classes")
    lines.append(
        f"asymmetric pairs: {len(found.asymmetric)}" + _some([f"{a} / {b}" for a, b, _, _ in found.asymmetric])
    )
    for title, pairs in (("closest", found.tightest), ("oddest positives", found.oddest)):
        if pairs:
            lines.append(f"{title}: " + ", ".join(f"{a} ~ {b} {value:.2f}" for a, b, value in pairs))
    if found.thresholds:
        lines.append("threshold  pairs  classes without rank 2" + ("  precision  recall" if found.agreement else ""))
        for line in found.thresholds:
            told = "" if line.precision is None else f"{line.precision:11.2f}{line.recall:8.2f}"
            lines.append(f"{line.threshold:9.2f}{line.pairs:7}{line.empty:24}{told}")
        if found.proposed is not None:
            why = (
                "best balance with the reference"
                if found.agreement
                else "the highest that leaves half of them a rank 2"
            )
            lines.append(
                f"proposed: {found.proposed:.2f} ({why}); the paper found 0.45 best with its model, 0.35 to 0.55 close"
            )
    return "\n".join(lines)


def _some(names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f" ({', '.join(names[:5])}{more})"


def draw_audit(found: Audit, path: Path) -> None:
    """The table of ranks, and how similarities are spread, as a picture."""
    from matplotlib.colors import ListedColormap  # noqa: PLC0415 - heavy
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

    from rince.report.drawing import clean  # noqa: PLC0415

    wide, number = found.similarity is not None, len(found.names)
    side = min(max(5.0, NAME_INCHES * number), LARGEST_INCHES)
    figure = Figure(figsize=(side + 1.5 + (5.5 if wide else 0), side), layout="constrained")
    widths = [side + 1.5, 5.5] if wide else [1]
    axes = figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
    count = len(found.ranks)
    shades = ["#f4f5f7", *["#0b4f4a", "#1f8a80", "#7cc4bb", "#c5e5e0"][: max(1, count)]]
    ranks = found.table.clamp(min=0).clamp(max=len(shades) - 1)
    axes[0].imshow(
        ranks.numpy(), cmap=ListedColormap(shades), vmin=-0.5, vmax=len(shades) - 0.5, interpolation="nearest"
    )
    axes[0].set(title="Rank of every class for every class", xlabel="candidate", ylabel="query")
    every = range(0, number, 1 + int(NAME_INCHES * number / LARGEST_INCHES))  # of thousands, some
    names = [clean(str(found.names[i]).replace("_", " "), 28) for i in every]
    axes[0].set_yticks(every, names, fontsize=7, parse_math=False)
    axes[0].set_xticks(every, names, fontsize=7, rotation=90, parse_math=False)
    told = ["negative", *(f"rank {rank}" for rank in range(1, len(shades)))]
    key = [Patch(facecolor=shade, edgecolor="#c0c4ca", label=name) for shade, name in zip(shades, told, strict=True)]
    axes[0].legend(handles=key, loc="lower left", bbox_to_anchor=(1.01, 0), frameon=False, fontsize=7)
    if found.similarity is not None:
        draw_similarities(found.similarity, found.proposed, axes[1])
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, format=path.suffix.lstrip(".") or "png", dpi=150)
    except ValueError as error:
        raise ConfigError(f"cannot write the picture {path}: {error}; use .png, .svg or .pdf") from None
    write_out(path, drawn.getvalue())


def draw_similarities(similarity: Tensor, proposed: float | None, axes: Any) -> None:
    """How many pairs of classes are how similar, and the proposed threshold."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - heavy

    others = similarity[~torch.eye(len(similarity), dtype=torch.bool)]
    counts, _, _ = axes.hist(others.numpy(), bins=min(60, 2 * math.ceil(len(others) ** 0.5)), color="#1f8a80")
    axes.set(title="Similarity of pairs of classes", xlabel="similarity", ylabel="pairs")
    if counts.max() > MANY:
        axes.set_yscale("log")
    else:  # where a logarithmic axis has hardly a number on it, and there are no 2.5 pairs
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if proposed is not None:
        axes.axvline(proposed, color="#b3541e", linestyle="--", label=f"proposed {proposed:.2f}")
        axes.legend(frameon=False)
