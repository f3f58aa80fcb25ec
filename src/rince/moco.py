"""One step of momentum contrast: views and labels in, what the loss needs out.

    step = contrast(encoder, twin, bank, rank_source, query_view, [key_view], labels)
    output = loss.from_embeddings(step.queries, step.candidates, step.ranks)
    bank.push(step.keys[0], labels)      # after the bank was read, so a batch never meets its own keys there
    twin.update(encoder)

Candidates are the keys of the batch and then the bank. Of the keys of the batch, only its own are candidates of a
query; those of the other samples are excluded until they are in the bank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rince.bank import MemoryBank
from rince.devices import constant
from rince.errors import ShapeError
from rince.inputs import Numbers, as_tensor
from rince.ranks import EXCLUDED, HIGHEST_RANK, NO_RANK, RankSource, check_rank, is_integer


class ContrastStep(NamedTuple):
    """What one step hands to the loss and to the bank.

    Attributes:
        queries: `(queries, dim)` embeddings; they carry the gradient.
        candidates: `(views · queries + bank size, dim)`, the keys of every view and then the bank, a copy of it.
        ranks: `(queries, candidates)` int8.
        keys: for every key view `(queries, dim)`, detached.
    """

    queries: Tensor
    candidates: Tensor
    ranks: Tensor
    keys: tuple[Tensor, ...]

    @property
    def similarities(self) -> Tensor:
        """`(queries, candidates)`: cosines, for the dense loss or for a look at them."""
        return self.queries @ self.candidates.T


def contrast(
    encoder: nn.Module,
    twin: Callable[[Any], Tensor],
    bank: MemoryBank,
    rank_source: RankSource,
    query_view: Any,
    key_views: Sequence[Any],
    labels: Numbers,
    *,
    own_ranks: Sequence[int] | Tensor = (1,),
) -> ContrastStep:
    """Queries from `encoder`, keys from `twin`, and what they are to each other. Reads the bank, changes nothing.

    Args:
        encoder: view → `(queries, dim)` embeddings of unit length.
        twin: its `MomentumTwin`, or anything else that makes detached keys.
        bank: past keys.
        rank_source: ranks the bank's entries, by label.
        query_view: a batch of views, for the encoder.
        key_views: one batch of views for every own key, for the twin.
        labels: `(queries,)` class labels, or sample ids with `InstanceRanks`.
        own_ranks: rank of every own key: `(1,)` for a second view; `(1, 2, 3)` for frame, shot and video. Or for every
            query, `(key views, queries)` integers: -1 where a video is too short to have that key.
    """
    if len(key_views) != len(own_ranks):
        raise ShapeError(
            f"every key view needs a rank: got {len(key_views)} key_views and own_ranks for {len(own_ranks)}; use -1 "
            "for a view that takes no part"
        )
    return compare(encoder, twin, bank, contrast_ranks(labels, bank, rank_source, own_ranks), query_view, key_views)


def compare(
    encoder: nn.Module,
    twin: Callable[[Any], Tensor],
    bank: MemoryBank,
    ranks: Tensor,
    query_view: Any,
    key_views: Sequence[Any],
) -> ContrastStep:
    """The same with ranks that were made before, by `contrast_ranks`."""
    queries = bank.vectors(encoder(query_view), "queries")
    keys = tuple(twin(view) for view in key_views)
    candidates = torch.cat([*keys, bank.keys]).to(queries.dtype)
    return ContrastStep(queries, candidates, ranks, keys)


def contrast_ranks(
    labels: Numbers, bank: MemoryBank, rank_source: RankSource, own_ranks: Sequence[int] | Tensor = (1,)
) -> Tensor:
    """The ranks of such a step: `(queries, views · queries + bank size)` int8."""
    labels = as_tensor(labels, "labels", like=bank.labels)
    if not isinstance(own_ranks, Tensor):
        own_ranks = constant(tuple(map(check_rank, own_ranks)), labels.device, torch.int8)
    if not is_integer(own_ranks):
        raise ShapeError(f"own_ranks must be integers, got {own_ranks.dtype}")
    own = own_ranks[:, None].expand(-1, len(labels)) if own_ranks.ndim == 1 else own_ranks
    return own_and_bank_ranks(own, rank_source(labels, bank.labels))


def own_and_bank_ranks(own_ranks: Tensor, bank_ranks: Tensor) -> Tensor:
    """Own keys and then the bank, `(queries, views · queries + bank size)` int8; keys of other queries take no part.

    Args:
        own_ranks: `(key views, queries)`.
        bank_ranks: `(queries, bank size)`.
    """
    views, queries = own_ranks.shape
    own = torch.full((views, queries, queries), EXCLUDED, dtype=torch.int8, device=bank_ranks.device)
    own.diagonal(dim1=1, dim2=2).copy_(own_ranks.clamp(NO_RANK, HIGHEST_RANK))  # 300 must not become 44
    return torch.cat([*own, bank_ranks], dim=1)
