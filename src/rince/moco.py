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
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rince.bank import MemoryBank
from rince.errors import ShapeError
from rince.ranks import EXCLUDED, RankSource


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
    twin: Callable[[Tensor], Tensor],
    bank: MemoryBank,
    rank_source: RankSource,
    query_view: Tensor,
    key_views: Sequence[Tensor],
    labels: Tensor,
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
    queries: Tensor = encoder(query_view)
    keys = tuple(twin(view) for view in key_views)
    candidates = torch.cat([*keys, bank.keys]).to(queries.dtype)
    return ContrastStep(queries, candidates, contrast_ranks(labels, bank, rank_source, own_ranks), keys)


def contrast_ranks(
    labels: Tensor, bank: MemoryBank, rank_source: RankSource, own_ranks: Sequence[int] | Tensor = (1,)
) -> Tensor:
    """The ranks of such a step: `(queries, views · queries + bank size)` int8."""
    number = len(labels)
    own = torch.full((len(own_ranks), number, number), EXCLUDED, dtype=torch.int8, device=labels.device)
    for view, ranks in zip(own, own_ranks, strict=True):
        if isinstance(ranks, int):
            view.diagonal().fill_(ranks)
        else:
            view.diagonal().copy_(torch.as_tensor(ranks))
    return torch.cat([*own, rank_source(labels, bank.labels)], dim=1)
