"""Ranks by how near samples are in a space that the user brings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from rince.devices import has_float64
from rince.errors import ConfigError, DataError, ShapeError, shown
from rince.inputs import Numbers, as_tensor, unit_rows, whole_number
from rince.ranks import EXCLUDED, NEGATIVE, RANDOM, UNFILLED, checked_labels, digest_of, without_rank


class SampleRanks:
    """Ranks by how near samples are in a space the user brings: pretrained features, camera positions, times.

    Labels are sample ids, rows of `vectors`. The same sample is rank 1; a sample that is at least as near as the first
    limit is rank 2, as the second rank 3, and so on; all others are negatives.

    Args:
        vectors: `(samples, dim)`.
        limits: one for every rank from 2 on, for all samples or, `(samples, ranks - 1)`, for each: the smallest cosine
            (falling from rank to rank), or the largest euclidean distance (growing).
        metric: `"cosine"` or `"euclidean"`. Distances are taken in float64, from differences of the numbers given:
            places far from the origin, such as UTM metres or unix seconds, keep all their digits.

    Example:
        >>> positions = torch.tensor([[0.0], [0.5], [3.0]])  # metres along a street
        >>> SampleRanks(positions, [1.0], metric="euclidean")(torch.tensor([0]), torch.tensor([0, 1, 2, -1]))
        tensor([[ 1,  2,  0, -1]], dtype=torch.int8)
    """

    by: Literal["sample"] = "sample"

    def __init__(self, vectors: Numbers, limits: Numbers, *, metric: Literal["cosine", "euclidean"] = "cosine") -> None:
        if metric not in ("cosine", "euclidean"):
            raise ConfigError(f"metric must be 'cosine' or 'euclidean', got {metric!r}")
        self.metric = metric
        vectors = _checked_vectors(vectors)
        self.vectors = unit_rows(vectors) if metric == "cosine" else vectors
        given = as_tensor(limits, "limits", like=None if metric == "euclidean" else self.vectors)
        nearness = (given if given.ndim == 2 else given[None]) * (1 if metric == "cosine" else -1)
        if nearness.ndim != 2 or len(nearness) not in (1, len(vectors)) or nearness.shape[1] == 0:
            raise ShapeError(f"limits must hold one number per rank from 2 on, got shape {tuple(given.shape)}")
        if given.is_complex() or given.isnan().any() or (nearness.diff(dim=1) > 0).any():
            order = "fall" if metric == "cosine" else "grow"
            raise ConfigError(f"limits of {metric} must {order} from rank to rank, got {shown(given.tolist())}")
        # A power of two, which moves no digit: squares of 1e200 would be infinite, those of 1e-200 would be 0.
        self._scale = 2.0 ** -math.frexp(float(vectors.abs().max()))[1] if metric == "euclidean" else 1.0
        self._limits = nearness.cpu().to(torch.float32 if metric == "cosine" else torch.float64)
        self._move_to(vectors.device)

    @classmethod
    def from_neighbours(
        cls, vectors: Numbers, counts: Sequence[int], *, metric: Literal["cosine", "euclidean"] = "cosine"
    ) -> SampleRanks:
        """The `counts[0]` nearest samples are rank 2, up to the `counts[1]` nearest rank 3, and so on.

        Args:
            vectors: `(samples, dim)`.
            counts: rising; how many neighbours a sample has up to each rank.
            metric: `"cosine"` or `"euclidean"`.
        """
        vectors = as_tensor(vectors, "vectors")
        wanted = [whole_number(count, "each of counts") for count in counts]
        if not wanted or any(a >= b for a, b in itertools.pairwise(wanted)):
            raise ConfigError(f"counts must grow from rank to rank and start at 1 or more, got {tuple(wanted)}")
        if wanted[-1] >= len(vectors):
            raise ConfigError(f"counts ask for {wanted[-1]} neighbours, but there are only {len(vectors)} samples")
        blank = cls(vectors, [0.0], metric=metric)
        limits = []
        for rows in torch.arange(len(vectors)).split(max(1, 2**25 // (4 * len(vectors)))):
            nearness = blank.nearness(rows, torch.arange(len(vectors)))
            nearness[torch.arange(len(rows)), rows] = -torch.inf  # a sample is no neighbour of its own
            limits.append(nearness.topk(wanted[-1], dim=1).values[:, [count - 1 for count in wanted]])
        return cls(vectors, torch.cat(limits) * (1 if metric == "cosine" else -1), metric=metric)

    @classmethod
    def from_encoder(
        cls,
        encode: Callable[[Tensor], Tensor],
        images: Numbers,
        *,
        limits: Numbers | None = None,
        counts: Sequence[int] | None = None,
        metric: Literal["cosine", "euclidean"] = "cosine",
        batch: int = 256,
    ) -> SampleRanks:
        """Ranks from what an encoder of your own makes of the samples; their ids are their places in `images`.

        Args:
            encode: `(batch, …)` images → `(batch, dim)` vectors; called without gradients.
            images: `(samples, …)`, whatever `encode` takes.
            limits: as `SampleRanks` takes them; give these or `counts`.
            counts: as `from_neighbours` takes them.
            metric: `"cosine"` or `"euclidean"`.
            batch: how many images `encode` gets at a time.

        Example:
            >>> images = torch.tensor([[[1.0, 0.0]], [[0.9, 0.1]], [[0.0, 1.0]]])
            >>> ranks = SampleRanks.from_encoder(lambda batch: batch.flatten(1), images, counts=[1])
            >>> ranks(torch.tensor([0]), torch.arange(3))
            tensor([[1, 2, 0]], dtype=torch.int8)
        """
        if (limits is None) == (counts is None):
            raise ConfigError("give either limits or counts")
        images = as_tensor(images, "images")
        with torch.no_grad():
            parts = [encode(part).flatten(1) for part in images.split(batch)]
        vectors = torch.cat(parts) if parts else torch.empty(0, 0)
        if len(vectors) != len(images):
            raise ShapeError(f"encode must give a vector for each image, got {len(vectors)} for {len(images)} images")
        if counts is not None:
            return cls.from_neighbours(vectors, counts, metric=metric)
        assert limits is not None
        return cls(vectors, limits, metric=metric)

    @property
    def ranks(self) -> int:
        """The highest rank, and so the number of terms the loss needs."""
        return 1 + self._limits.shape[1]

    @property
    def fingerprint(self) -> str:
        """sha256 of vectors and limits."""
        return digest_of(self.vectors, self._limits)

    def nearness(self, query_ids: Tensor, candidate_ids: Tensor) -> Tensor:
        """`(queries, candidates)`: cosines, or negative distances; larger is nearer."""
        queries, candidates = self.vectors[query_ids], self.vectors[candidate_ids]
        if self.metric == "cosine":
            return queries @ candidates.T
        # By |a|² + |b|² - 2ab, as `cdist` does it otherwise, neighbours far from the origin lose all their digits.
        near, far = queries.double() * self._scale, candidates.double() * self._scale
        return -torch.cdist(near, far, compute_mode="donot_use_mm_for_euclid_dist") / self._scale

    def __call__(self, query_labels: Numbers, candidate_labels: Numbers) -> Tensor:
        """`(queries,)` and `(candidates,)` sample ids → `(queries, candidates)` int8 ranks."""
        own, right = checked_labels("query_labels", query_labels, lowest=0, classes=len(self.vectors))
        others, right_too = checked_labels(
            "candidate_labels", candidate_labels, lowest=RANDOM, classes=len(self.vectors), like=own
        )
        self._move_to(own.device)
        queries, candidates = (
            labels.to(self.vectors.device).clamp(0, len(self.vectors) - 1) for labels in (own, others)
        )
        nearness = self.nearness(queries, candidates)
        limits = self._limits if len(self._limits) == 1 else self._limits[queries]
        ranks = torch.zeros(nearness.shape, dtype=torch.int8, device=nearness.device)
        for rank in range(self.ranks, 1, -1):
            ranks.masked_fill_(nearness >= limits[:, rank - 2, None], rank)
        ranks = ranks.to(own.device)
        ranks.masked_fill_(own[:, None] == others, 1)
        ranks.masked_fill_(others == RANDOM, NEGATIVE)
        ranks.masked_fill_(others == UNFILLED, EXCLUDED)
        return without_rank(ranks, right, right_too)

    def _move_to(self, device: torch.device) -> None:
        """Vectors stay where ranks are asked for; positions on the CPU, where the device has no float64."""
        if self.metric == "euclidean" and not has_float64(device):
            device = torch.device("cpu")
        self.vectors, self._limits = (each.to(device) for each in (self.vectors, self._limits))

    def __repr__(self) -> str:
        return f"SampleRanks(samples={len(self.vectors)}, ranks={self.ranks}, metric={self.metric!r})"


def _checked_vectors(vectors: Numbers) -> Tensor:
    """In float32 or float64, finite."""
    vectors = as_tensor(vectors, "vectors").detach()
    if vectors.ndim != 2 or 0 in vectors.shape or vectors.is_complex():
        raise ShapeError(
            f"vectors must be a matrix (samples, dim) of real numbers, got {vectors.dtype} of shape "
            f"{tuple(vectors.shape)}"
        )
    if vectors.dtype not in (torch.float32, torch.float64):
        vectors = vectors.float() if vectors.is_floating_point() else vectors.double()
    if not vectors.isfinite().all():
        row = int((~vectors.isfinite()).any(dim=1).nonzero()[0])
        raise DataError(f"vectors hold NaN or infinity, first in row {row}")
    return vectors
