"""What every metric asks of its input: one vector per row, finite, with a label each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rince.errors import DataError, ShapeError


def check_vectors(vectors: Tensor, name: str) -> Tensor:
    """The vectors as float32, where they are, or a clear error.

    Args:
        vectors: `(samples, dim)`.
        name: what errors call them.
    """
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise ShapeError(f"{name} must be a matrix (samples, dim), got shape {tuple(vectors.shape)}")
    if len(vectors) == 0:
        raise DataError(f"{name} is empty; there is nothing to judge")
    vectors = vectors.detach().to(torch.float32)
    doubtful = (~torch.linalg.vector_norm(vectors, dim=1).isfinite()).nonzero().squeeze(1)  # or merely very long
    bad = doubtful[(~vectors[doubtful].isfinite()).any(dim=1)]
    if len(bad):
        raise DataError(f"{name} holds NaN or infinity in {len(bad)} of {len(vectors)} rows, first in row {bad[0]}")
    return vectors


def unit_vectors(vectors: Tensor, name: str) -> Tensor:
    """The same, each of length 1. A row of zeros has no direction: it stays zero, at cosine 0 from everything."""
    return F.normalize(check_vectors(vectors, name), dim=1)


def check_labels(labels: Tensor, vectors: Tensor, name: str) -> Tensor:
    """The labels as int64 on the device of the vectors, or a clear error.

    Args:
        labels: `(samples,)` integers.
        vectors: what they label.
        name: what errors call them.
    """
    if labels.shape != (len(vectors),) or labels.is_floating_point():
        raise ShapeError(
            f"{name} must hold one integer per vector: got {labels.dtype} of shape {tuple(labels.shape)} for "
            f"{len(vectors)} vectors"
        )
    return labels.detach().to(vectors.device, torch.int64)


def share(right: Tensor) -> float:
    """How many of `(samples,)` bools are true, from 0 to 1."""
    return int(right.sum()) / len(right)
