"""The ranked loss as a loss of pytorch-metric-learning, for its distances, reducers, miners and trainers."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_pairs
from torch import Tensor

from rince.checks import check_rank_values
from rince.devices import looking_is_free
from rince.errors import ConfigError
from rince.loss import RankedInfoNCE, term_values
from rince.ranks import EXCLUDED, RankSource, check_callable


class RankedLoss(losses.BaseMetricLossFunction):  # type: ignore[misc] # the library has no types
    """Every rank a sub-loss, every query an element of it, so that reducers work.

    With the default reducer, the mean, the value is that of the ranked loss. Pairs that a miner or `indices_tuple` does
    not name are excluded; what a named pair is to each other, the ranks say.

    Args:
        loss: the ranked loss; not `over_positives="pooled"`, which has no value per query.
        rank_source: ranks by labels: `TableRanks` or any other.
        options: of `BaseMetricLossFunction`: `distance`, by default cosines; `reducer`, `embedding_regularizer`, …

    Example:
        >>> from rince import TableRanks
        >>> loss = RankedLoss(RankedInfoNCE.in_((0.1, 0.225)), TableRanks.from_superclasses([0, 0, 1]))
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.3], [0.0, 1.0]])
        >>> loss(embeddings, torch.tensor([0, 0, 1, 2]))
        tensor(0.5359)
    """

    def __init__(self, loss: RankedInfoNCE, rank_source: RankSource, **options: Any) -> None:
        check_callable(rank_source)
        if not isinstance(loss, RankedInfoNCE):
            raise ConfigError(f"loss must be a rince.RankedInfoNCE, got {type(loss).__name__}")
        if loss.over_positives == "pooled":
            raise ConfigError(
                'over_positives="pooled" means over pairs, and reducers get one value per query; use "mean" or "sum"'
            )
        self.rank_names = [f"rank_{rank}" for rank in range(1, loss.rank_count + 1)]  # which the next line asks for
        super().__init__(**options)
        self.loss, self.rank_source = loss, rank_source

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, Any]:
        """The values of every rank, for the reducer."""
        if labels is None or ref_labels is None:
            raise ConfigError("ranks go by labels: give labels, and ref_labels with ref_emb")
        ranks = self.rank_source(labels, ref_labels).clone()
        if looking_is_free(ranks.device):
            check_rank_values(ranks, len(self.loss.terms))
        if 0 in ranks.shape:
            return dict.fromkeys(self.rank_names, self.zero_loss())
        if indices_tuple is not None:
            named = torch.zeros(ranks.shape, dtype=torch.bool, device=ranks.device)
            first, positives, second, negatives = convert_to_pairs(indices_tuple, labels, ref_labels)
            named[first, positives] = named[second, negatives] = True
            ranks[~named] = EXCLUDED
        if ref_emb is embeddings:
            ranks.fill_diagonal_(EXCLUDED)
        similarities = self.distance(embeddings, ref_emb)
        if not self.distance.is_inverted:
            similarities = -similarities
        loss = self.loss
        values = term_values(similarities, ranks, loss.terms, loss.over_positives)
        share = 1.0 if loss.over_ranks == "sum" else 1.0 / len(loss.terms)
        made = {}
        for number, (name, term) in enumerate(zip(self.rank_names, loss.terms, strict=True)):
            used = term.positive_mask(number + 1, ranks).any(dim=1).nonzero().squeeze(1)
            losses_of_rank = values[used, number] * (term.weight * share)
            found = {"losses": losses_of_rank, "indices": used, "reduction_type": "element"}
            made[name] = found if len(used) else self.zero_loss()
        return made

    def _sub_loss_names(self) -> list[str]:
        return self.rank_names

    def get_default_distance(self) -> Any:
        """Cosines, as the loss means them."""
        return CosineSimilarity()


class CrossBatchMemory(losses.CrossBatchMemory):  # type: ignore[misc] # the library has no types
    """The library's own memory bank, which refuses classes of losses that it does not know, with ours among them."""

    @staticmethod
    def supported_losses() -> list[str]:
        """The library's, and ours."""
        return [*losses.CrossBatchMemory.supported_losses(), RankedLoss.__name__]
