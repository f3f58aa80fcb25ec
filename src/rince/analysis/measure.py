"""`rince analyse run`: the quantities of the analysis, measured on a trained run and set beside the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rince.analysis.equilibrium import RankBalance
from rince.analysis.penalties import push_of_terms
from rince.analysis.rest import Rest, rest_of
from rince.errors import ConfigError, DataError
from rince.evaluation.trained import Embedded, TrainedRun, embed_once, open_trained
from rince.evaluation.vectors import unit_vectors
from rince.hierarchy.levels import class_levels
from rince.loss import OverPositives, RankedInfoNCE, RankTerm
from rince.methods.method import build_loss
from rince.methods.summary import similarity_summary
from rince.ranks import EXCLUDED, NEGATIVE
from rince.sources.order import permutation
from rince.sources.source import Source, rows_in
from rince.terminal import Tell, nobody
from rince.train.record import CHECKPOINT
from rince.train.setup import NOTHING, Brought, Parts, build_parts

QUERIES, BLOCK, QUANTILES, PAIRS = 1024, 128, 10, 8
Split = Literal["train", "test"]


@dataclass(frozen=True)
class RankFinding:
    """A rank as it was found.

    Attributes:
        rank: from 1.
        temperature: of its term.
        positives: that a query has, on average.
        before: mean similarity before the head, NaN for none; of a query's positives, then over queries.
        after: the same after the head, where the loss acts.
        predicted: the equilibrium, given how close rank 1 is; None for rank 1.
        violated: share of pairs in which a positive of this rank is no closer than one of the next; after the last
            rank come the negatives. None without such pairs.
    """

    rank: int
    temperature: float
    positives: float
    before: float
    after: float
    predicted: float | None
    violated: float | None


@dataclass(frozen=True)
class Pushed:
    """Whom the terms push away.

    Attributes:
        by_rank: `(terms, ranks + 1)`: share of each term's push that meets the negatives (column 0) and each rank.
        by_quantile: `(terms, 10)`: share of the push on negatives that meets each tenth of a query's negatives, the
            farthest tenth first.
        by_relation: name of the finest level that query and negative share, or "nothing" → share of the push on
            negatives by all terms, and share of negatives.
        by_classes: class of the query, class of the negative, how many times the push that falls on a negative on
            average; the hardest pushed first.
    """

    by_rank: Tensor
    by_quantile: Tensor
    by_relation: dict[str, tuple[float, float]]
    by_classes: list[tuple[str, str, float]]


@dataclass(frozen=True)
class RunAnalysis:
    """All there is to say.

    Attributes:
        folder: of the run.
        recipe: its name.
        split: where queries come from.
        queries: how many.
        candidates: training images they were compared with, as many as the bank holds.
        ranks: from 1.
        negatives_before: mean similarity of negatives before the head.
        negatives_after: the same after the head.
        pushed: whom the terms push away.
        similarities: for every rank from 1, and at last for the negatives, all similarities after the head.
        terms: of the loss.
        over_positives: of the loss.
        counts: positives of every rank that a query has, rounded.
    """

    folder: Path
    recipe: str
    split: Split
    queries: int
    candidates: int
    ranks: list[RankFinding]
    negatives_before: float
    negatives_after: float
    pushed: Pushed
    similarities: list[Tensor]
    terms: tuple[RankTerm, ...]
    over_positives: OverPositives
    counts: list[int]

    @cached_property
    def at_rest(self) -> Rest | None:
        """Whether the prediction holds, by the log of the run; None with a single rank, of which there is none."""
        if len(self.terms) < 2:
            return None
        balance = RankBalance.from_negatives(self.terms, self.negatives, self.counts, self.over_positives)
        return rest_of(self.folder, len(self.terms), self.ranks[0].after, balance.starts())

    @property
    def negatives(self) -> Tensor:
        """`(negatives,)`: as many as a query has, spread as those of all queries are."""
        every = self.similarities[-1].double().sort().values
        number = max(1, round(len(every) / self.queries))
        return every[((torch.arange(number) + 0.5) * len(every) / number).long()]


@dataclass(frozen=True)
class Compared:
    """Queries and candidates of a run: similarities before and after the head, ranks, classes."""

    before: Tensor
    after: Tensor
    ranks: Tensor
    query_classes: Tensor
    candidate_classes: Tensor


def open_ranked(
    folder: Path, brought: Brought = NOTHING, file: str = CHECKPOINT
) -> tuple[TrainedRun, Parts, RankedInfoNCE]:
    """A finished run of the ranked loss with ranks between classes, by one of its checkpoints; refuses others."""
    run = open_trained(folder, brought, accelerator="cpu", file=file)
    recipe = run.recipe
    if recipe.loss is None or recipe.ranks is None:
        raise ConfigError(
            f"{folder} was trained by {recipe.method.kind}, which has no ranked loss to analyse; give a run whose "
            "method is contrast, such as rince-in or scl-in"
        )
    if file == CHECKPOINT and run.step < run.steps:
        raise DataError(
            f"{folder} stopped at step {run.step} of {run.steps}, so it has not come to rest; finish it with "
            f"`rince train --resume {folder}`"
        )
    parts = build_parts(recipe, brought)
    if parts.rank_source is None or parts.rank_source.by != "class":
        raise ConfigError(
            f"{folder} has ranks.kind={recipe.ranks.kind}, which ranks samples, not classes; only ranks between "
            "classes can be measured on samples without their second view"
        )
    return run, parts, build_loss(recipe)


def analyse_run(
    folder: Path, *, split: Split = "train", brought: Brought = NOTHING, tell: Tell = nobody
) -> RunAnalysis:
    """Measures a finished run of the ranked loss. Features are those that `rince evaluate` keeps.

    Queries are up to 1,024 images of the split, candidates as many training images as the bank holds, so that a query
    has about the positives and negatives it had in training; both in the test view.

    Args:
        folder: of the run.
        split: where queries come from: "train", what the loss saw, or "test".
        brought: what the run was given as objects.
        tell: is told how far it is.
    """
    run, parts, loss = open_ranked(folder, brought)
    recipe = run.recipe
    compared = _compare(run, parts, split, tell)
    number = min(loss.rank_count, parts.rank_count)
    terms, ranks = loss.terms[:number], compared.ranks
    if not (ranks == 1).any():
        raise DataError(f"no query of {folder} has a positive of rank 1 among {ranks.shape[1]} training images")
    predicted, counts = _predict(compared, terms, loss.over_positives)
    violated = similarity_summary(compared.after, ranks, number)
    findings = [
        RankFinding(
            rank,
            term.temperature,
            float((ranks == rank).sum(dim=1).float().mean()),
            mean_of_queries(compared.before, ranks == rank),
            mean_of_queries(compared.after, ranks == rank),
            None if rank == 1 else predicted[rank - 1],
            violated.get(f"violated/{rank}"),
        )
        for rank, term in enumerate(terms, start=1)
    ]
    return RunAnalysis(
        folder,
        recipe.name,
        split,
        len(ranks),
        ranks.shape[1],
        findings,
        mean_of_queries(compared.before, ranks == NEGATIVE),
        mean_of_queries(compared.after, ranks == NEGATIVE),
        _pushed(compared, terms, loss.over_positives, parts, recipe.data.taxonomy),
        [compared.after[ranks == rank] for rank in (*range(1, number + 1), NEGATIVE)],
        terms,
        loss.over_positives,
        counts,
    )


def _compare(run: TrainedRun, parts: Parts, split: Split, tell: Tell) -> Compared:
    asked, gallery_of = open_splits(run, split)
    gallery = embed_once(run, gallery_of, "train", tell=lambda done, of: tell("features, train", done, of))
    asking = (
        gallery
        if split == "train"
        else embed_once(run, asked, "test", tell=lambda done, of: tell("features, test", done, of))
    )
    return compare(run, parts, (asked, asking), (gallery_of, gallery))


def open_splits(run: TrainedRun, split: Split) -> tuple[Source, Source]:
    """Samples to ask with, of a split, and training samples to be found."""
    gallery_of = run.open(run.recipe.data.train_split)
    asked = gallery_of if split == "train" else run.open(run.recipe.data.test_split)
    if asked.class_names != gallery_of.class_names:
        raise DataError(f"the splits of {run.recipe.data.source!r} do not have the same classes; name them alike")
    return asked, gallery_of


def compare(
    run: TrainedRun, parts: Parts, queries: tuple[Source, Embedded], gallery: tuple[Source, Embedded]
) -> Compared:
    """Some of the queries with as many training samples as the bank holds, both drawn by the seed of the run."""
    (asked, asking), (gallery_of, found) = queries, gallery
    recipe = run.recipe
    candidates = recipe.bank.size if recipe.bank else 2 * recipe.train.batch
    rows = permutation(len(asked), recipe.seed, 0)[:QUERIES]
    columns = permutation(len(gallery_of), recipe.seed, 1)[:candidates]
    query_classes, candidate_classes = asked.labels[rows], gallery_of.labels[columns]
    assert parts.rank_source is not None  # it was checked
    ranks = parts.rank_source(query_classes, candidate_classes)
    same = rows_in(asked, gallery_of)
    if same is not None:
        ranks[same[rows][:, None] == columns] = EXCLUDED  # a sample is at 1 from itself
    before, after = (
        unit_vectors(mine[rows], "queries") @ unit_vectors(theirs[columns], "candidates").T
        for mine, theirs in zip(asking, found, strict=True)
    )
    return Compared(before, after, ranks, query_classes, candidate_classes)


def mean_of_queries(similarities: Tensor, chosen: Tensor) -> float:
    """The mean of each query, then over the queries that have any."""
    number = chosen.sum(dim=1)
    means = (similarities.double() * chosen).sum(dim=1) / number
    return float(means[number > 0].mean())


def _predict(
    compared: Compared, terms: tuple[RankTerm, ...], over_positives: OverPositives
) -> tuple[list[float], list[int]]:
    """Mean equilibrium of every rank, from what the queries of each class have: rank 1, counts, negatives.

    Also the mean counts. A class by itself, since classes differ in how many relatives they have.
    """
    ranks, similarities = compared.ranks, compared.after.double()
    first, counts, negatives, weights = [], [], [], []
    for label in compared.query_classes.unique():
        rows = compared.query_classes == label
        own, own_ranks = similarities[rows], ranks[rows]
        count = [round(float((own_ranks == rank).sum(dim=1).float().mean())) for rank in range(1, len(terms) + 1)]
        if count[0] == 0 or not (own_ranks == NEGATIVE).any():
            continue  # no rank 1 to start from, or nothing to hold against
        sums = [
            torch.where(own_ranks == NEGATIVE, own / term.temperature, -torch.inf).logsumexp(dim=1) for term in terms
        ]
        first.append(mean_of_queries(own, own_ranks == 1))
        negatives.append(torch.stack([each.mean() for each in sums]))
        counts.append(count)
        weights.append(int(rows.sum()))
    if not first:
        raise DataError("no class has both positives of rank 1 and negatives; is the bank too small?")
    table, weight = torch.tensor(counts), torch.tensor(weights, dtype=torch.float64)
    found = RankBalance(terms, torch.stack(negatives), table, over_positives).equilibrium(torch.tensor(first))
    has = table > 0
    means = (found.nan_to_num() * weight[:, None]).sum(dim=0) / (has * weight[:, None]).sum(dim=0)
    typical = (table.double() * weight[:, None]).sum(dim=0) / (has * weight[:, None]).sum(dim=0).clamp(min=1)
    return means.tolist(), [max(1, round(value)) for value in typical.tolist()]


def _pushed(
    compared: Compared,
    terms: tuple[RankTerm, ...],
    over_positives: OverPositives,
    parts: Parts,
    taxonomy: str,
) -> Pushed:
    number, classes = len(terms), len(parts.source.class_names)
    by_rank = torch.zeros(number, number + 1, dtype=torch.float64)
    by_quantile = torch.zeros(number, QUANTILES, dtype=torch.float64)
    pairs, met = torch.zeros(2, classes * classes, dtype=torch.float64)
    for rows in torch.arange(len(compared.ranks)).split(BLOCK):
        similarities, ranks = compared.after[rows].double(), compared.ranks[rows]
        push = push_of_terms(similarities, ranks, terms, over_positives=over_positives).clamp(min=0)
        for rank in range(number + 1):
            by_rank[:, rank] += (push * (ranks == rank)).sum(dim=(1, 2))
        negative = ranks == NEGATIVE
        push = push * negative
        tenth = _tenths(similarities, negative)
        for part in range(QUANTILES):
            by_quantile[:, part] += (push * (tenth == part)).sum(dim=(1, 2))
        pair = compared.query_classes[rows, None] * classes + compared.candidate_classes
        pairs.index_add_(0, pair.flatten(), push.sum(dim=0).flatten())
        met.index_add_(0, pair.flatten(), negative.double().flatten())
    names = parts.source.class_names
    average = float(pairs.sum() / met.sum())
    harder = torch.where(met > 0, pairs / met.clamp(min=1), 0) / max(average, 1e-300)
    hardest = harder.topk(min(PAIRS, int((met > 0).sum()))).indices.tolist()
    return Pushed(
        by_rank / by_rank.sum(dim=1, keepdim=True).clamp(min=1e-300),
        by_quantile / by_quantile.sum(dim=1, keepdim=True).clamp(min=1e-300),
        _by_relation(pairs, met, parts, taxonomy),
        [(str(names[at // classes]), str(names[at % classes]), float(harder[at])) for at in hardest],
    )


def _tenths(similarities: Tensor, negative: Tensor) -> Tensor:
    """Of every negative, which tenth of its query's negatives it lies in, 0 the farthest; -1 for other candidates."""
    order = torch.where(negative, similarities, torch.inf).argsort(dim=1).argsort(dim=1)
    tenth = order * QUANTILES // negative.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(negative, tenth, -1)


def _by_relation(pairs: Tensor, met: Tensor, parts: Parts, taxonomy: str) -> dict[str, tuple[float, float]]:
    names = list(class_levels(parts.source, taxonomy))
    relation = torch.full((len(parts.groups[0]),) * 2, len(names))
    for level in range(len(names) - 1, -1, -1):
        groups = parts.groups[level]
        relation[groups[:, None] == groups] = level
    found = {}
    for level, name in enumerate([*(f"same {name}" for name in names), "nothing in common"]):
        chosen = (relation == level).flatten()
        if met[chosen].sum() > 0:
            found[name] = (float(pairs[chosen].sum() / pairs.sum()), float(met[chosen].sum() / met.sum()))
    return found
