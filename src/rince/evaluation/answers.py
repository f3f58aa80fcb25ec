"""`rince predict`: the class if it is certain, else the deepest level of the taxonomy that is, else unknown.

The evidence for a group at a level is the mean, over the k nearest items of the gallery, of the cosine of those in the
group and 0 of all others, where the i-th nearest counts 1 / i²: neighbours that agree at that level, and are near; and
few near ones are not outvoted where a class has no more. The answer at a level is the group of most
evidence; it is given where the evidence reaches the level's threshold. A query whose inlier score, the mean cosine of
the k nearest, is lower than that of nearly all inputs like the gallery's is unknown, whatever its neighbours say.

Thresholds come from the gallery itself: items are asked for as if they were not in it (leave-one-out), of those that
the encoder was not trained on if there are enough. Level by level, classes first, the items that no deeper level has
answered are accepted from most evidence to least, 2 % more at a time, as long as the lower bound of the precision
(Clopper and Pearson, one-sided, 95 %) reaches what is asked for. Testing in a fixed order and ending at the first
failure needs no correction for trying several thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rince.errors import ConfigError, DataError, shown
from rince.evaluation.index import Gallery, search
from rince.evaluation.lookup import Neighbour
from rince.inputs import whole_number
from rince.sources.source import Source

UNKNOWN = "unknown"
NEIGHBOURS = 10
ASKED = 5000  # items of a gallery that are asked for to calibrate it, at most
ENOUGH = 200  # of items that were not trained on, to leave out all others
STEPS = 50  # of the thresholds that are tried
SURE = 0.95  # of a lower bound
DIGITS = 5  # of the numbers that an index keeps


class Evidence(NamedTuple):
    """What the neighbours of some queries say."""

    inlier: Tensor
    """`(queries,)`: mean cosine of the nearest."""
    strength: Tensor
    """`(queries, levels)`: of the group that has most."""
    group: Tensor
    """`(queries, levels)`: its number."""


@dataclass(frozen=True)
class Calibration:
    """What a gallery's own items told about answers from it.

    Attributes:
        levels: names, the classes first.
        neighbours: how many were looked at.
        inlier: for every item that was asked for, its inlier score.
        strength: for every item, the evidence at every level.
        right: for every item, whether the answer at every level was right.
        trained: how many of the items the encoder was trained on; None if nobody knows.
    """

    levels: list[str]
    neighbours: int
    inlier: list[float]
    strength: list[list[float]]
    right: list[list[bool]]
    trained: int | None

    def noted(self) -> dict[str, Any]:
        """As plain values, for an index."""
        return asdict(self)


class Threshold(NamedTuple):
    """From which evidence on a level is certain."""

    level: str
    least: float
    """Of the evidence; infinite if the level is uncertain."""
    accepted: int
    """Of the items that were asked for, and that no deeper level answered."""
    right: int
    """Of those accepted."""
    bound: float
    """95 % lower bound of the precision."""
    left: int
    """How many items there were to accept."""

    @property
    def is_certain(self) -> bool:
        """Whether any answer is given at this level."""
        return self.least < torch.inf


class Thresholds(NamedTuple):
    """What an answer needs."""

    inlier: float
    """The least inlier score."""
    levels: list[Threshold]
    asked: int
    """How many items of the gallery were asked for."""


class Answer(NamedTuple):
    """What a query is, as far as that is certain."""

    place: str
    row: int
    level: str
    """The level of the answer; empty if unknown."""
    group: str
    """The class or group by its path, or `"unknown"`."""
    evidence: float
    """For it; of an unknown query, for its class."""
    inlier: float
    """The inlier score."""
    near: list[Neighbour]
    text: str = ""
    """The query itself, if it is a text."""


def by_place(k: int) -> Tensor:
    """`(k,)`: what each neighbour counts, the i-th as 1 / i²; 1 in all."""
    weights = 1 / torch.arange(1, k + 1) ** 2
    return weights / weights.sum()


def evidence_of(
    found: Sequence[Sequence[tuple[int, float]]], levels: Sequence[Tensor], weigh: Callable[[int], Tensor] = by_place
) -> Evidence:
    """From neighbours to evidence.

    Args:
        found: for every query rows and cosines of its neighbours, as many for each.
        levels: for every level `(gallery,)`, the group of every item.
        weigh: what each of k neighbours counts.
    """
    rows = torch.tensor([[row for row, _ in items] for items in found])
    cosines = torch.tensor([[cosine for _, cosine in items] for items in found])
    shares, strength, groups = cosines * weigh(rows.shape[1]), [], []
    for of_items in levels:
        near = of_items[rows]
        agreeing = near[:, :, None] == near[:, None, :]
        votes = (shares[:, None, :] * agreeing).sum(dim=2)  # for the group of each neighbour
        best = votes.argmax(dim=1, keepdim=True)  # of equal ones, that of the nearest
        strength.append(votes.gather(1, best)[:, 0])
        groups.append(near.gather(1, best)[:, 0])
    return Evidence(cosines.mean(dim=1), torch.stack(strength, dim=1), torch.stack(groups, dim=1))


def calibrate(gallery: Gallery, k: int = NEIGHBOURS, weigh: Callable[[int], Tensor] = by_place) -> Calibration:
    """Asks a gallery for its own items, each as if it were not there.

    Args:
        gallery: labelled.
        k: how many neighbours are looked at.
        weigh: what each of them counts.
    """
    k = whole_number(k, "k")
    if not gallery.levels:
        raise DataError(
            f"{gallery.where!r} has no labels, so there is nothing to answer from it; give labelled samples, of a data "
            "set with --split"
        )
    if gallery.size <= k:
        raise DataError(f"{gallery.where!r} has {gallery.size} samples; {k} neighbours of each need at least {k + 1}")
    asked = torch.arange(gallery.size)
    learned = gallery.trained()
    if learned is not None and int((~learned).sum()) >= ENOUGH:
        asked = asked[~learned]
    if len(asked) > ASKED:
        asked = asked[torch.randperm(len(asked), generator=torch.Generator().manual_seed(0))[:ASKED].sort().values]
    trained = None if learned is None else int(learned[asked].sum())
    vectors = _rows(gallery, asked)
    levels = [numbers for numbers, _ in gallery.levels.values()]
    found = evidence_of(search(gallery, vectors, k, [{row} for row in asked.tolist()]), levels, weigh)
    right = found.group == torch.stack([numbers[asked] for numbers in levels], dim=1)
    inlier, strength = ([_rounded(row) for row in each.tolist()] for each in (found.inlier, found.strength))
    return Calibration(list(gallery.levels), k, inlier, strength, right.tolist(), trained)


def calibration_of(gallery: Gallery, k: int | None = None) -> Calibration:
    """What an index has noted of itself.

    Args:
        gallery: that `open_index` opened.
        k: how many neighbours are asked for; None for as many as it was made for.
    """
    if gallery.calibration is None:
        raise DataError(f"the index {gallery.where} has no labels, so there is nothing to answer from it")
    found = Calibration(**gallery.calibration)
    if k not in (None, found.neighbours):
        raise ConfigError(f"the index {gallery.where} was made for {found.neighbours} neighbours; leave out -k {k}")
    return found


def _rounded(value: Any) -> Any:
    return list(map(_rounded, value)) if isinstance(value, list) else round(value, DIGITS)


def _rows(gallery: Gallery, rows: Tensor) -> Tensor:
    """Some vectors of a gallery, by ascending row."""
    found, start = [], 0
    for block in gallery.blocks():
        here = rows[(rows >= start) & (rows < start + len(block))] - start
        found.append(block[here.to(block.device)])
        start += len(block)
    return torch.cat(found)


def thresholds_of(calibration: Calibration, *, precision: float = 0.95, inliers: float = 0.95) -> Thresholds:
    """What an answer needs to be right as often as asked for.

    Args:
        calibration: of the gallery.
        precision: the share of right ones among the answers of every level.
        inliers: the share of inputs like the gallery's that may have an answer at all.
    """
    for name, share in (("precision", precision), ("inliers", inliers)):
        if not 0 < share < 1:
            raise ConfigError(f"{name} must be above 0 and below 1, got {shown(share)}")
    inlier = torch.tensor(calibration.inlier, dtype=torch.float64)
    strength, right = torch.tensor(calibration.strength, dtype=torch.float64), torch.tensor(calibration.right)
    least = float(inlier.sort().values[int((1 - inliers) * len(inlier) + 1e-9)])
    left = inlier >= least
    found = []
    for level, name in enumerate(calibration.levels):
        threshold = _threshold(name, strength[left, level], right[left, level], precision)
        found.append(threshold)
        left &= strength[:, level] < threshold.least
    return Thresholds(least, found, len(inlier))


def _threshold(level: str, strength: Tensor, right: Tensor, precision: float) -> Threshold:
    """The least evidence, from most down, at which the precision is sure to be high enough."""
    descending, order = strength.sort(descending=True, stable=True)
    right_so_far = right[order].cumsum(0)
    best = Threshold(level, torch.inf, 0, 0, 0.0, len(strength))
    for step in range(1, STEPS + 1):
        wanted = -(-step * len(strength) // STEPS)
        if wanted < 3 or (step < STEPS and lower_bound(wanted - 2, wanted) < precision):
            continue  # so few that two mistakes would end it all: the test begins later
        accepted = int((strength >= descending[wanted - 1]).sum())  # all of equal evidence
        bound = lower_bound(int(right_so_far[accepted - 1]), accepted)
        if bound < precision:
            break
        best = Threshold(
            level, float(descending[wanted - 1]), accepted, int(right_so_far[accepted - 1]), bound, len(strength)
        )
    return best


def lower_bound(right: int, number: int) -> float:
    """The one-sided 95 % lower bound of a share, by Clopper and Pearson."""
    from scipy.special import betaincinv  # type: ignore[import-untyped]  # noqa: PLC0415 - heavy

    return 0.0 if right == 0 else float(betaincinv(right, number - right + 1, 1 - SURE))


def answered(found: Evidence, thresholds: Thresholds) -> Tensor:
    """`(queries,)` int64: the level at which each query is answered, the classes 0; -1 for unknown."""
    levels = torch.full((len(found.inlier),), -1, dtype=torch.int64)
    for level, threshold in reversed(list(enumerate(thresholds.levels))):
        levels[found.strength[:, level].double() >= threshold.least] = level
    levels[found.inlier.double() < thresholds.inlier] = -1
    return levels


def told(thresholds: Thresholds, calibration: Calibration, precision: float) -> list[str]:
    """What a person should know of the thresholds, in sentences."""
    share = f"{100 * precision:g} %"
    lines = [
        f"{level.level}: from {level.least:.3f} on; {level.right:,} of {level.accepted:,} were right, at least "
        f"{100 * level.bound:.1f} % by the 95 % lower bound"
        if level.is_certain
        else f"{level.level}: no answers; deeper levels have answered all that could be asked"
        if level.left == 0
        else f"{level.level}: uncertain; no threshold is sure to be right {share} of the time"
        for level in thresholds.levels
    ]
    if calibration.trained:
        lines.append(
            f"{calibration.trained:,} of the {thresholds.asked:,} items it was calibrated on were trained on, so new "
            "inputs are right less often than is said"
        )
    return lines


def predict(
    gallery: Gallery, queries: Source, vectors: Tensor, thresholds: Thresholds, k: int = NEIGHBOURS
) -> list[Answer]:
    """What every query is, as far as a gallery makes that certain.

    Args:
        gallery: labelled.
        queries: whatever they are.
        vectors: `(queries, dim)` of unit length, made of them as those of the gallery.
        thresholds: of the gallery, for as many neighbours.
        k: how many neighbours are looked at.
    """
    own = gallery.own_rows(queries)
    if gallery.size - max(map(len, own), default=0) < k:
        raise DataError(f"{gallery.where!r} has {gallery.size} samples, too few for {k} neighbours; give -k less")
    near = search(gallery, vectors, k, own)
    found = evidence_of(near, [numbers for numbers, _ in gallery.levels.values()])
    names = [(level, groups) for level, (_, groups) in gallery.levels.items()]
    answers = []
    for row, level in enumerate(answered(found, thresholds).tolist()):
        name, groups = names[level] if level >= 0 else ("", [])
        group = groups[int(found.group[row, level])] if level >= 0 else UNKNOWN
        neighbours = [gallery.neighbour(*item) for item in near[row]]
        strength = float(found.strength[row, max(level, 0)])
        told_of = queries.place(row), row, name, group, strength, float(found.inlier[row])
        answers.append(Answer(*told_of, neighbours, queries.text(row) or ""))
    return answers
