"""The batch as its own candidates, for any loop: embeddings of one or more views in, what the loss needs out.

    batch = in_batch([first_view, second_view], labels, rank_source)
    output = batch.loss(loss)            # on several processes: in_batch(…, gather=True)
    output.total.backward()

No twin and no bank: the gradient goes to queries and candidates alike. An embedding is never its own candidate, which
goes by sample id and view, so that it holds wherever in the batch, or on whichever process, a sample stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rince.devices import constant
from rince.errors import ConfigError, ShapeError
from rince.inputs import Numbers, as_tensor, whole_number
from rince.loss import LossOutput, RankedLoss
from rince.processes import Gathering, summed
from rince.ranks import EXCLUDED, HIGHEST_RANK, NEGATIVE, NO_RANK, RankSource, check_callable, check_rank, is_integer


@dataclass(frozen=True)
class InBatch:
    """What a batch hands to the loss.

    Attributes:
        queries: `(views · samples, dim)`, all samples in the first view, then in the second, and so on.
        candidates: the same on one process; where several gather, the embeddings of all of them, view by view.
        ranks: `(queries, candidates)` int8.
        processes: how many share the batch.
    """

    queries: Tensor
    candidates: Tensor
    ranks: Tensor
    processes: int = 1

    @property
    def similarities(self) -> Tensor:
        """`(queries, candidates)`: cosines, for the dense loss or for a look at them."""
        return self.queries @ self.candidates.T

    def loss(self, loss: RankedLoss, **options: Any) -> LossOutput:
        """The loss of the whole batch, with a gradient to queries and candidates.

        On several processes all must call it, and `.backward()`. Its numbers are those of all of them. Its gradient
        is that of the whole batch after the mean over processes, which `DistributedDataParallel` takes.

        Args:
            loss: `RankedInfoNCE`, or another with its face.
            options: of its `from_embeddings`, such as `compile=True`.
        """
        if self.processes == 1:
            return loss.from_embeddings(self.queries, self.candidates, self.ranks, **options)
        # As many times too little as the mean over processes will divide the gradient by.
        divisor = summed(loss.count(self.ranks).to(self.queries.dtype)) / self.processes
        own = loss.from_embeddings(self.queries, self.candidates, self.ranks, divisor=divisor, **options)
        total, per_rank = (summed(values) / self.processes for values in (own.total, own.per_rank))
        return LossOutput(own.total + (total - own.total.detach()), per_rank, summed(own.queries_used))


class TwoTowers(NamedTuple):
    """Both directions of two towers, each of which the loss is taken of.

    Attributes:
        forth: queries of the first tower, candidates of the second.
        back: queries of the second tower, candidates of the first.
    """

    forth: InBatch
    back: InBatch

    def loss(self, loss: RankedLoss, **options: Any) -> LossOutput:
        """The mean of both directions, as in `InBatch.loss`; `queries_used` are those of both."""
        one, other = (direction.loss(loss, **options) for direction in self)
        per_rank = (one.per_rank + other.per_rank) / 2
        return LossOutput((one.total + other.total) / 2, per_rank, one.queries_used + other.queries_used)


def in_batch(
    views: Numbers | Sequence[Numbers],
    labels: Numbers | None = None,
    rank_source: RankSource | None = None,
    *,
    ranks: Numbers | None = None,
    ids: Numbers | None = None,
    view_numbers: Sequence[int] | None = None,
    own_ranks: int | Numbers = 1,
    present: Numbers | None = None,
    gather: bool = False,
) -> InBatch:
    """Every embedding of a batch as a query, and as a candidate of all others.

    Without labels a sample is told from all others (SimCLR); with labels its class is rank 1 too (SupCon's positives);
    with a source of ranks the labels are ranked by it.

    Args:
        views: `(samples, dim)` embeddings of unit length for every view, or of the only one.
        labels: `(samples,)`: what the ranks between samples go by.
        rank_source: labels of queries and candidates → ranks. By default the same label is rank 1, all else a negative.
            A source that goes by sample gets the ids, if there are no labels.
        ranks: instead of both, the ranks themselves: `(samples, samples)` integers; with `gather`,
            `(samples, samples of all processes)`.
        ids: `(samples,)` integers that tell samples apart; by default every row is a sample of its own. Give them where
            a sample may stand in the batch twice, or with one view here and another on another process.
        view_numbers: which view every one of `views` is; by default 0, 1, …
        own_ranks: what the other views of a sample are to it. One for all, or `(views, views)`: row the query's view,
            column the candidate's, by number; what stands on the diagonal does not count.
        present: `(samples, views)` bool: views that are False are neither query nor candidate.
        gather: compare with the embeddings of all processes. They may bring unequal numbers of samples, also none, and
            must all take part. Use `InBatch.loss`, which divides by what all of them have together.

    Example:
        >>> one, two = torch.eye(2), torch.eye(2).flip(0)  # two views of two samples
        >>> in_batch([one, two]).ranks
        tensor([[-1,  0,  1,  0],
                [ 0, -1,  0,  1],
                [ 1,  0, -1,  0],
                [ 0,  1,  0, -1]], dtype=torch.int8)
    """
    own, everyone, processes = _both_sides(views, labels, rank_source, ids, gather, view_numbers, present)
    count = range(own.embeddings.shape[1])
    table = _checked_own_ranks(own_ranks, everyone.highest, own.ids.device)
    rank = _Ranking(own, everyone, table, rank_source, ranks)
    merged = torch.cat([torch.cat([rank(query, other) for other in count], dim=1) for query in count])
    queries, candidates = (side.embeddings.transpose(0, 1).flatten(0, 1) for side in (own, everyone))
    return InBatch(queries, candidates, merged, processes)


def two_towers(
    first: Numbers,
    second: Numbers,
    labels: Numbers | None = None,
    rank_source: RankSource | None = None,
    *,
    ranks: Numbers | None = None,
    ids: Numbers | None = None,
    own_rank: int = 1,
    gather: bool = False,
) -> TwoTowers:
    """Two towers, such as images and captions: candidates are the other tower only, in both directions.

    Without labels and ranks: CLIP's loss at one temperature.

    Args:
        first: `(samples, dim)` embeddings of unit length.
        second: likewise; row i belongs to row i of the first.
        labels: as in `in_batch`.
        rank_source: as in `in_batch`.
        ranks: as in `in_batch`: row the query's sample, column the candidate's, in both directions.
        ids: as in `in_batch`. Rows of one id belong to each other: an image with five captions stands in five rows.
        own_rank: what a sample's embedding in the other tower is to it.
        gather: as in `in_batch`.

    Example:
        >>> batch = two_towers(torch.eye(2), torch.eye(2))
        >>> batch.forth.ranks
        tensor([[1, 0],
                [0, 1]], dtype=torch.int8)
    """
    own, everyone, processes = _both_sides([first, second], labels, rank_source, ids, gather)
    rank = _Ranking(own, everyone, _checked_own_ranks(own_rank, everyone.highest, own.ids.device), rank_source, ranks)
    forth, back = (
        InBatch(own.embeddings[:, query], everyone.embeddings[:, other], rank(query, other), processes)
        for query, other in ((0, 1), (1, 0))
    )
    return TwoTowers(forth, back)


@dataclass(frozen=True)
class _Samples:
    """What is known of the samples of one process, or of all.

    Attributes:
        embeddings: `(samples, views, dim)`.
        ids: `(samples,)`.
        labels: `(samples,)`, or None.
        numbers: `(samples, views)`, which view each is.
        highest: of the numbers.
        present: `(samples, views)` bool, or None if all are.
    """

    embeddings: Tensor
    ids: Tensor
    labels: Tensor | None
    numbers: Tensor
    highest: int
    present: Tensor | None

    def of_all(self, gathering: Gathering) -> _Samples:
        """Those of all processes, in their order."""
        blank = torch.zeros_like(self.ids)
        present = torch.ones_like(self.numbers) if self.present is None else self.present.long()
        columns = [self.ids[:, None], (blank if self.labels is None else self.labels)[:, None], self.numbers, present]
        ids, labels, numbers, present = gathering(torch.cat(columns, dim=1)).split([c.shape[1] for c in columns], dim=1)
        return _Samples(
            gathering.differentiably(self.embeddings),
            ids.squeeze(1),
            None if self.labels is None else labels.squeeze(1),
            numbers,
            int(numbers.max()) if len(numbers) else self.highest,
            present.bool(),
        )


def _both_sides(
    views: Numbers | Sequence[Numbers],
    labels: Numbers | None,
    rank_source: RankSource | None,
    ids: Numbers | None,
    gather: bool,
    view_numbers: Sequence[int] | None = None,
    present: Numbers | None = None,
) -> tuple[_Samples, _Samples, int]:
    """Samples of the queries and of the candidates, and how many processes share them."""
    embeddings = _stacked(views)
    samples, count, _ = embeddings.shape
    numbers = as_tensor(range(count) if view_numbers is None else view_numbers, "view_numbers").tolist()
    if not isinstance(numbers, list) or len(numbers) != count or len(set(numbers)) != count:
        raise ConfigError(f"view_numbers must be {count} different numbers, one for every view; got {numbers}")
    numbers = [whole_number(number, "each of view_numbers", lowest=0) for number in numbers]
    if present is not None:
        present = as_tensor(present, "present", like=embeddings).to(embeddings.device)
        if tuple(present.shape) != (samples, count) or present.dtype != torch.bool:
            raise ShapeError(
                f"present must be bool of shape (samples, views) = {(samples, count)}; got {present.dtype} of shape "
                f"{tuple(present.shape)}"
            )
    if rank_source is not None:
        check_callable(rank_source)
    by_sample = getattr(rank_source, "by", "class") == "sample"  # so labels and ids are one
    ids = labels if by_sample and ids is None else ids
    gathering = Gathering(embeddings, labels=labels is not None, ids=ids is not None) if gather else None
    first = gathering.start if gathering else 0
    own_ids = (
        torch.arange(samples, device=embeddings.device) + first if ids is None else _integers("ids", ids, embeddings)
    )
    own_labels = None if labels is None else _integers("labels", labels, embeddings)
    own = _Samples(
        embeddings,
        own_ids,
        own_ids if by_sample and labels is None else own_labels,
        constant(tuple(numbers), embeddings.device).expand(samples, count),
        max(numbers),
        present,
    )
    return (own, own, 1) if gathering is None else (own, own.of_all(gathering), len(gathering.sizes))


class _Ranking:
    """What the samples of all processes are to those of this one, from one view to another."""

    def __init__(
        self,
        own: _Samples,
        everyone: _Samples,
        own_ranks: Tensor,
        rank_source: RankSource | None,
        ranks: Numbers | None,
    ) -> None:
        self.own, self.everyone, self.own_ranks = own, everyone, own_ranks
        self.same = own.ids[:, None] == everyone.ids
        self.between = _between(own, everyone, rank_source, ranks)

    def __call__(self, query: int, candidate: int) -> Tensor:
        """`(samples, samples of all)` int8: ranks of candidates in one view for queries in another."""
        own, everyone = self.own, self.everyone
        if len(own.ids) == 0:
            return self.between
        number, others = own.numbers[0, query], everyone.numbers[:, candidate]
        if self.own_ranks.ndim == 0:
            to_own = self.own_ranks.expand(len(others))
        else:  # by `index_select`, since an index of 0 dimensions is a look at its value
            to_own = self.own_ranks.index_select(0, number[None])[0].index_select(0, others)
        ranks = torch.where(self.same, to_own.masked_fill(others == number, EXCLUDED), self.between)
        if own.present is not None:
            ranks.masked_fill_(~own.present[:, query, None], EXCLUDED)
        if everyone.present is not None:
            ranks.masked_fill_(~everyone.present[:, candidate], EXCLUDED)
        return ranks


def _between(own: _Samples, everyone: _Samples, rank_source: RankSource | None, ranks: Numbers | None) -> Tensor:
    """`(samples, samples of all)` int8: what different samples are to each other."""
    shape = (len(own.ids), len(everyone.ids))
    if ranks is not None:
        if rank_source is not None or own.labels is not None:
            raise ConfigError("give either ranks, or labels and what ranks them")
        return _checked_ranks("ranks", ranks, shape, own.embeddings)
    if own.labels is None or everyone.labels is None:
        if rank_source is not None:
            raise ConfigError("rank_source ranks labels, and there are none: give labels, one for every sample")
        return torch.full(shape, NEGATIVE, dtype=torch.int8, device=own.ids.device)
    if rank_source is None:
        return (own.labels[:, None] == everyone.labels).to(torch.int8)
    made = rank_source(own.labels, everyone.labels)
    return _checked_ranks("what rank_source returns", made, shape, own.embeddings)


def _checked_ranks(name: str, ranks: Numbers, shape: tuple[int, int], like: Tensor) -> Tensor:
    """int8."""
    ranks = as_tensor(ranks, name, like=like).to(like.device)
    if tuple(ranks.shape) != shape or not is_integer(ranks):
        raise ShapeError(
            f"{name} must be integers of shape (samples, samples) = {shape}, one row for every sample here and one "
            f"column for every sample of all processes; got {ranks.dtype} of shape {tuple(ranks.shape)}"
        )
    return ranks if ranks.dtype == torch.int8 else ranks.clamp(NO_RANK, HIGHEST_RANK).to(torch.int8)  # 300 is not 44


def _stacked(views: Numbers | Sequence[Numbers]) -> Tensor:
    """`(samples, views, dim)`, in float32 or wider."""
    if not isinstance(views, list | tuple):
        views = as_tensor(views, "views")
        views = [views] if views.ndim == 2 else list(views)
    if not views:
        raise ConfigError("views is empty; give one matrix of embeddings for every view")
    embeddings = [as_tensor(view, f"view {number}") for number, view in enumerate(views)]
    for number, view in enumerate(embeddings):
        if view.ndim != 2 or view.shape != embeddings[0].shape or not view.is_floating_point():
            raise ShapeError(
                "every view must be a floating-point matrix (samples, dim) of the same samples; view 0 is "
                f"{tuple(embeddings[0].shape)}, view {number} is {view.dtype} of shape {tuple(view.shape)}"
            )
    stacked = torch.stack(embeddings, dim=1)
    return stacked.float() if stacked.dtype in (torch.float16, torch.bfloat16) else stacked


def _integers(name: str, values: Numbers, like: Tensor) -> Tensor:
    """`(samples,)` int64."""
    values = as_tensor(values, name, like=like)
    if tuple(values.shape) != like.shape[:1] or not (is_integer(values) or values.numel() == 0):
        raise ShapeError(
            f"{name} must hold one integer for each of {len(like)} samples, got {values.dtype} of shape "
            f"{tuple(values.shape)}"
        )
    return values.to(like.device).long()


def _checked_own_ranks(own_ranks: int | Numbers, highest: int, device: torch.device) -> Tensor:
    """0-dim, or `(views, views)`, int8; `highest` is the number of the last view."""
    if isinstance(own_ranks, int):
        return constant(check_rank(own_ranks), device, torch.int8)
    table = as_tensor(own_ranks, "own_ranks")
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not is_integer(table):
        raise ShapeError(
            f"own_ranks must be one rank, or a square matrix (views, views) of them; got {table.dtype} of shape "
            f"{tuple(table.shape)}"
        )
    if len(table) <= highest:
        raise ShapeError(f"own_ranks has {len(table)} views, and there is a view {highest}; they count from 0")
    for rank in table.flatten().tolist():
        check_rank(rank)
    return table.to(device, torch.int8)
