"""Ranked losses and evaluators for `SentenceTransformerTrainer`, from labels or from graded documents.

The trainer's collator makes a tensor of the label column, so labels are integers (`encode_paths` makes them from paths)
or lists of as many scores as there are documents.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from torch import Tensor, nn

from rince.batches import in_batch
from rince.errors import ConfigError, DataError, ShapeError
from rince.evaluation.gallery import block_rows
from rince.evaluation.graded import graded_ndcg
from rince.evaluation.retrieval import ranked_retrieval
from rince.inputs import as_tensor, whole_number
from rince.loss import RankedInfoNCE
from rince.ranks import EXCLUDED, NEGATIVE, RankSource, TableRanks, check_callable, is_integer, score_ranks


class _SentenceLoss(CachedLossMixin, nn.Module):
    """Embeddings of every column at once, or in mini-batches with the gradients of the whole batch."""

    def __init__(self, model: Any, loss: RankedInfoNCE, mini_batch_size: int | None) -> None:
        super().__init__()
        if not isinstance(loss, RankedInfoNCE):
            raise ConfigError(f"loss must be a rince.RankedInfoNCE, got {type(loss).__name__}")
        self.model, self.loss = model, loss
        self.uses_gradient_cache = mini_batch_size is not None
        self.mini_batch_size = 0 if mini_batch_size is None else whole_number(mini_batch_size, "mini_batch_size")

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
        """The loss of a batch: tokens of every column, and the labels of its rows."""
        if labels is None:
            raise DataError("the data set has no column 'label', by which texts are ranked; see encode_paths")
        if self.uses_gradient_cache:
            return self.forward_cached(sentence_features, labels)
        embeddings = [self.model(features)["sentence_embedding"] for features in sentence_features]
        return self._value([F.normalize(each, dim=1) for each in embeddings], labels)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The same from mini-batches of embeddings; the library calls it."""
        assert labels is not None
        value = self._value([F.normalize(torch.cat(parts), dim=1) for parts in reps], labels)
        if not with_backward:
            return value
        value.backward()
        return value.detach()

    @abstractmethod
    def _value(self, columns: list[Tensor], labels: Tensor) -> Tensor: ...


class RankedLoss(_SentenceLoss):
    """Texts with labels, in one or more columns: all texts of a batch are candidates of each other.

    The texts of a row are views of one sample, rank 1 to each other; all else is ranked by labels.

    Args:
        model: a `SentenceTransformer`.
        loss: the ranked loss.
        rank_source: ranks by labels, such as those of `encode_paths`.
        mini_batch_size: texts that go through the model at a time, for batches larger than memory; None: all at once.
    """

    def __init__(
        self, model: Any, loss: RankedInfoNCE, rank_source: RankSource, mini_batch_size: int | None = None
    ) -> None:
        super().__init__(model, loss, mini_batch_size)
        check_callable(rank_source)
        self.rank_source = rank_source

    def _value(self, columns: list[Tensor], labels: Tensor) -> Tensor:
        return in_batch(columns, labels.view(-1), self.rank_source).loss(self.loss).total


class GradedLoss(_SentenceLoss):
    """Queries with graded documents: columns query, doc_1 … doc_k, and a label that is a list of k scores.

    The documents of a query are ranked by their scores; those of all other queries are negatives. A query with fewer
    documents has any text and the score NaN in the columns left over: they are excluded for it.

    Args:
        model: a `SentenceTransformer`.
        loss: the ranked loss.
        thresholds: falling; a score of at least the first is rank 1, of the second rank 2, and so on; below, negative.
        mini_batch_size: as in `RankedLoss`.
    """

    def __init__(
        self, model: Any, loss: RankedInfoNCE, thresholds: Sequence[float], mini_batch_size: int | None = None
    ) -> None:
        super().__init__(model, loss, mini_batch_size)
        self.thresholds = tuple(as_tensor(thresholds, "thresholds").tolist())
        score_ranks([0.0], self.thresholds)  # which says whether they can be used
        if len(self.thresholds) != loss.rank_count:
            raise ConfigError(
                f"thresholds must be {loss.rank_count}, one for each rank of the loss; got {self.thresholds}"
            )

    def _value(self, columns: list[Tensor], labels: Tensor) -> Tensor:
        queries, documents = columns[0], columns[1:]
        if tuple(labels.shape) != (len(queries), len(documents)):
            raise ShapeError(
                f"label must be a list of {len(documents)} scores, one for every column of documents; got a tensor of "
                f"shape {tuple(labels.shape)} for {len(queries)} queries"
            )
        shape = (len(queries), len(documents), len(queries))
        ranks = torch.full(shape, NEGATIVE, dtype=torch.int8, device=labels.device)
        ranks.diagonal(dim1=0, dim2=2).copy_(score_ranks(labels, self.thresholds).T)
        return self.loss.from_embeddings(queries, torch.cat(documents), ranks.flatten(1)).total


class EncodedPaths(NamedTuple):
    """What `encode_paths` returns.

    Attributes:
        data: the data set, or all splits, with a column `label` in place of the paths.
        ranks: between labels.
        names: the path of every label; `encode_paths(…, names=names)` numbers further data alike.
    """

    data: Any
    ranks: TableRanks
    names: tuple[str, ...]


def encode_paths(dataset: Any, column: str, separator: str = "/", names: Sequence[str] | None = None) -> EncodedPaths:
    """Paths such as `"travel/translate"` as integer labels, and the ranks between them.

    Args:
        dataset: a `datasets.Dataset`, or a `DatasetDict`, whose splits then share one numbering.
        column: that holds the path of every row; it is replaced by a column `label`.
        separator: between the parts of a path.
        names: those of an earlier call, by which to number; None: the paths that are there, sorted.

    Returns:
        The data, the ranks of its labels, and the path of every label.
    """
    splits = dict(dataset) if isinstance(dataset, Mapping) else {"": dataset}
    paths = {split: _paths(data, column, f" of split {split!r}" if split else "") for split, data in splits.items()}
    found = sorted({path for of_split in paths.values() for path in of_split})
    names = tuple(found if names is None else names)
    label_of = {name: label for label, name in enumerate(names)}
    unknown = [path for path in found if path not in label_of]
    if unknown:
        raise DataError(
            f"column {column!r} has {unknown[0]!r}, which is not among the {len(names)} names given; encode all splits "
            "in one call, as a DatasetDict, or leave such rows out"
        )
    ranks = TableRanks.from_tree([tuple(name.split(separator)) for name in names])
    old = f"path of {column}"  # goes last, since a data set without columns has no rows; may itself be called "label"
    labelled = {
        split: data.rename_column(column, old)
        .add_column("label", [label_of[path] for path in paths[split]])
        .remove_columns(old)
        for split, data in splits.items()
    }
    kind: Any = type(dataset)  # a DatasetDict again
    return EncodedPaths(kind(labelled) if isinstance(dataset, Mapping) else labelled[""], ranks, names)


def _paths(dataset: Any, column: str, of_split: str) -> list[str]:
    """Of every row, checked."""
    columns = getattr(dataset, "column_names", None)
    if not isinstance(columns, list) or not hasattr(dataset, "__getitem__"):
        given = type(dataset).__name__
        raise DataError(f"encode_paths takes a datasets.Dataset or a DatasetDict of them, got {given}{of_split}")
    if column not in columns:
        raise DataError(f"there is no column {column!r}{of_split}; there are {', '.join(map(repr, columns)) or 'none'}")
    if "label" in columns and column != "label":
        raise DataError(
            f"there is a column 'label'{of_split} already, where the labels of {column!r} are to stand; "
            "remove_columns('label') or rename it"
        )
    paths: list[str] = list(dataset[column][:])
    wrong = next((number for number, path in enumerate(paths) if not isinstance(path, str) or not path), None)
    if wrong is not None:
        raise DataError(
            f"row {wrong} of column {column!r}{of_split} is {paths[wrong]!r}; write a path like 'travel/translate'"
        )
    return paths


class _Judged(NamedTuple):
    """Embeddings of queries and gallery, with what the ranks between them go by."""

    queries: Tensor
    gallery: Tensor
    query_labels: Tensor
    gallery_labels: Tensor
    rank_source: RankSource
    same: Tensor | None = None


class _RankedMetrics(BaseEvaluator):
    """NDCG, H-AP, ASI and R@1 up to every rank, for the trainer's `evaluator=`."""

    def __init__(self, name: str, batch_size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # the library has no types here
        self.name, self.batch_size = name, batch_size
        self.primary_metric = "ndcg"

    def __call__(
        self,
        model: Any,
        output_path: str | None = None,  # noqa: ARG002 - the library gives it
        epoch: int = -1,
        steps: int = -1,
    ) -> dict[str, float]:
        """All numbers by name; higher is better. Nothing is written."""
        metrics = self.prefix_name_to_metrics(self._metrics(self._judged(model)), self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    def _metrics(self, judged: _Judged) -> dict[str, float]:
        found = ranked_retrieval(**judged._asdict())
        nearest = _rank_of_nearest(judged)
        return {
            "ndcg": float(found.ndcg.nanmean()),
            "hierarchical_ap": float(found.hierarchical_precision.nanmean()),
            "asi": float(found.set_intersection.nanmean()),
        } | {
            f"recall@1_rank_{rank}": float(((nearest >= 1) & (nearest <= rank)).float().mean())
            for rank in range(1, judged.rank_source.ranks + 1)
        }

    def _encoded(self, encode: Any, texts: Sequence[str]) -> Tensor:
        made = encode(list(texts), batch_size=self.batch_size, convert_to_tensor=True, show_progress_bar=False)
        return F.normalize(made.float(), dim=1)

    @abstractmethod
    def _judged(self, model: Any) -> _Judged: ...


class RankedEvaluator(_RankedMetrics):
    """Texts with labels, each looked for among all others, or in a gallery.

    Gives `ndcg` with gains from ranks, `hierarchical_ap` (H-AP), `asi`, and for every rank `recall@1_rank_r`: the share
    whose nearest neighbour is of rank r or closer, which is R@1 at that level of the taxonomy.

    Args:
        texts: to look for.
        labels: one integer for every text, as `encode_paths` makes them.
        rank_source: ranks by labels, such as those of `encode_paths`.
        gallery: texts to look in; None: all other `texts`.
        gallery_labels: one for every text of the gallery.
        name: put before the name of every number.
        batch_size: texts that are embedded at a time.
    """

    def __init__(
        self,
        texts: Sequence[str],
        labels: Sequence[int],
        rank_source: RankSource,
        gallery: Sequence[str] | None = None,
        gallery_labels: Sequence[int] | None = None,
        *,
        name: str = "",
        batch_size: int = 32,
    ) -> None:
        super().__init__(name, batch_size)
        if (gallery is None) != (gallery_labels is None):
            raise ConfigError("give both gallery and gallery_labels, or neither: then each text is looked for in texts")
        check_callable(rank_source)
        self.rank_source = rank_source
        self.texts, self.labels = _labelled("texts", texts, labels)
        self.gallery, self.gallery_labels = None, self.labels
        if gallery is not None and gallery_labels is not None:
            self.gallery, self.gallery_labels = _labelled("gallery", gallery, gallery_labels)

    def _judged(self, model: Any) -> _Judged:
        queries = self._encoded(model.encode, self.texts)
        labels = self.labels.to(queries.device)
        if self.gallery is None:
            same = torch.arange(len(queries), device=queries.device)
            return _Judged(queries, queries, labels, labels, self.rank_source, same)
        gallery = self._encoded(model.encode, self.gallery)
        return _Judged(queries, gallery, labels, self.gallery_labels.to(queries.device), self.rank_source)


def _labelled(name: str, texts: Sequence[str], labels: Sequence[int]) -> tuple[list[str], Tensor]:
    """Texts, and an integer for each."""
    made, numbers = list(texts), as_tensor(list(labels), f"labels of {name}")
    if not made or tuple(numbers.shape) != (len(made),) or not is_integer(numbers):
        raise ShapeError(
            f"{name} needs at least one text, and one integer for each, as encode_paths makes them; got {len(made)} "
            f"texts and labels of {numbers.dtype} and shape {tuple(numbers.shape)}"
        )
    return made, numbers


class GradedEvaluator(_RankedMetrics):
    """Queries with graded documents, looked for among the documents of all queries.

    Gives `ndcg` with the scores as gains (0 for documents that a query has no score for), and by the ranks that
    thresholds make of them, as in `GradedLoss`, `hierarchical_ap` (H-AP), `asi` and `recall@1_rank_r`.

    Args:
        queries: texts.
        documents: for every query its documents.
        scores: for every query a score for each of its documents, 0 or more; NaN: it does not count for this query.
        thresholds: as in `GradedLoss`.
        name: put before the name of every number.
        batch_size: texts that are embedded at a time.
    """

    def __init__(
        self,
        queries: Sequence[str],
        documents: Sequence[Sequence[str]],
        scores: Sequence[Sequence[float]],
        thresholds: Sequence[float],
        *,
        name: str = "",
        batch_size: int = 32,
    ) -> None:
        super().__init__(name, batch_size)
        if [*map(len, documents)] != [*map(len, scores)] or len(queries) != len(scores):
            raise ShapeError(
                f"{len(queries)} queries need as many lists of documents, and lists of scores of the same lengths; got "
                f"{len(documents)} lists of documents, {len(scores)} of scores"
            )
        if not len(queries) or any(isinstance(each, str) for each in documents):
            raise ShapeError("there must be queries, and for each of them a list of documents, also of a single one")
        self.queries = list(queries)
        self.documents = list(dict.fromkeys(text for each in documents for text in each))
        place = {text: number for number, text in enumerate(self.documents)}
        self.gains = torch.zeros(len(self.queries), len(self.documents))
        ranks = torch.full(self.gains.shape, NEGATIVE, dtype=torch.int8)
        for row, (texts, values) in enumerate(zip(documents, scores, strict=True)):
            own, given = [place[text] for text in texts], torch.tensor(values, dtype=torch.float32)
            if bool((given < 0).any()) or bool(given.isinf().any()):
                raise DataError(f"scores are finite numbers of 0 or more, or NaN; query {row} has {list(values)}")
            self.gains[row, own] = given.nan_to_num(0)
            ranks[row, own] = score_ranks(given, thresholds)
        self.rank_source = _GivenRanks(ranks, len(thresholds))

    def _judged(self, model: Any) -> _Judged:
        queries = self._encoded(model.encode_query, self.queries)
        documents = self._encoded(model.encode_document, self.documents)
        rows, columns = (torch.arange(len(each), device=queries.device) for each in (queries, documents))
        return _Judged(queries, documents, rows, columns, self.rank_source)

    def _metrics(self, judged: _Judged) -> dict[str, float]:
        return super()._metrics(judged) | {"ndcg": graded_ndcg(judged.queries, judged.gallery, gains=self.gains)}


class _GivenRanks:
    """A matrix of ranks as a source of them: queries go by their rows, candidates by their columns."""

    by: Literal["sample"] = "sample"
    fingerprint = "given"

    def __init__(self, matrix: Tensor, ranks: int) -> None:
        self.matrix, self.ranks = matrix, ranks

    def __call__(self, query_labels: Tensor, candidate_labels: Tensor) -> Tensor:
        rows = self.matrix.to(query_labels.device).index_select(0, query_labels)
        return rows.index_select(1, candidate_labels)


def _rank_of_nearest(judged: _Judged) -> Tensor:
    """`(queries,)` int8: what the nearest item of the gallery is to a query."""
    found = []
    for rows in torch.arange(len(judged.queries), device=judged.queries.device).split(block_rows(len(judged.gallery))):
        ranks = judged.rank_source(judged.query_labels[rows], judged.gallery_labels)
        cosines = (judged.queries[rows] @ judged.gallery.T).masked_fill(ranks == EXCLUDED, -torch.inf)
        if judged.same is not None:
            cosines.scatter_(1, judged.same[rows, None], -torch.inf)
        found.append(ranks.gather(1, cosines.argmax(dim=1, keepdim=True)).squeeze(1))
    return torch.cat(found)
