"""One step of momentum contrast: views and labels in, what the loss needs out.

    step = contrast(encoder, twin, bank, rank_source, query_view, [key_view], labels)
    loss(step.similarities, step.ranks).total
    bank.push(step.keys[0], labels)      # after the bank was read, so a batch never meets its own keys there
    twin.update(encoder)

Candidates of a query are its own keys, one column per key view, and then the bank. The keys of the other samples of
the batch are not candidates until they are in the bank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rince.bank import MemoryBank
from rince.errors import ShapeError
from rince.ranks import RankSource, view_ranks


class ContrastStep(NamedTuple):
    """What one step hands to the loss and to the bank.

    Attributes:
        similarities: `(queries, views + bank size)`, own keys first, then the bank.
        ranks: int8, of the same shape.
        keys: for every key view `(queries, dim)`, detached.
    """

    similarities: Tensor
    ranks: Tensor
    keys: tuple[Tensor, ...]


def contrast(
    encoder: nn.Module,
    twin: Callable[[Tensor], Tensor],
    bank: MemoryBank,
    rank_source: RankSource,
    query_view: Tensor,
    key_views: Sequence[Tensor],
    labels: Tensor,
    *,
    own_ranks: Sequence[int] = (1,),
) -> ContrastStep:
    """Queries from `encoder`, keys from `twin`, their similarities and ranks. Reads the bank, changes nothing.

    Args:
        encoder: view → `(queries, dim)` embeddings of unit length.
        twin: its `MomentumTwin`, or anything else that makes detached keys.
        bank: past keys.
        rank_source: ranks the bank's entries, by label.
        query_view: a batch of views, for the encoder.
        key_views: one batch of views for every own key, for the twin.
        labels: `(queries,)` class labels, or sample ids with `InstanceRanks`.
        own_ranks: rank of every own key: `(1,)` for a second view; `(1, 2, 3)` for frame, shot and video.
    """
    if len(key_views) != len(own_ranks):
        raise ShapeError(
            f"every key view needs a rank: got {len(key_views)} key_views and own_ranks={tuple(own_ranks)}; use -1 for "
            "a view that takes no part"
        )
    queries = encoder(query_view)
    keys = tuple(twin(view) for view in key_views)
    own = [(queries * key).sum(dim=1, keepdim=True) for key in keys]
    similarities = torch.cat([*own, bank.similarities(queries)], dim=1)
    own_columns = view_ranks(*own_ranks, queries=len(queries)).to(queries.device)
    ranks = torch.cat([own_columns, rank_source(labels, bank.labels)], dim=1)
    return ContrastStep(similarities, ranks, keys)
