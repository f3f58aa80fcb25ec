"""What every metric asks of its input: one vector per row, finite, with a label each."""

from __future__ import annotations

import torch
from torch import Tensor

from rince.errors import DataError, ShapeError
from rince.inputs import Numbers, as_tensor, unit_rows


def finite_vectors(vectors: Numbers, name: str) -> Tensor:
    """The vectors as they are, integers as float32, where they are; or a clear error.

    Args:
        vectors: `(samples, dim)`.
        name: what errors call them.
    """
    vectors = as_tensor(vectors, name).detach()
    if vectors.ndim != 2 or vectors.shape[1] == 0 or vectors.is_complex():
        raise ShapeError(
            f"{name} must be a matrix (samples, dim) of real numbers, got {vectors.dtype} of shape "
            f"{tuple(vectors.shape)}"
        )
    if len(vectors) == 0:
        raise DataError(f"{name} is empty; there is nothing to judge")
    vectors = vectors if vectors.is_floating_point() else vectors.float()
    bad = (~torch.linalg.vector_norm(vectors, ord=torch.inf, dim=1).isfinite()).nonzero().squeeze(1)
    if len(bad):
        raise DataError(f"{name} holds NaN or infinity in {len(bad)} of {len(vectors)} rows, first in row {bad[0]}")
    return vectors


def check_vectors(vectors: Numbers, name: str) -> Tensor:
    """The vectors as float32, where they are, or a clear error."""
    return finite_vectors(finite_vectors(vectors, name).float(), f"{name}, as float32,")


def unit_vectors(vectors: Numbers, name: str) -> Tensor:
    """The same, each of length 1. A row of zeros has no direction: it stays zero, at cosine 0 from everything."""
    return unit_rows(finite_vectors(vectors, name))


def check_width(queries: Tensor, gallery: Tensor) -> None:
    """Refuses vectors that cannot be compared."""
    if queries.shape[1] != gallery.shape[1]:
        raise ShapeError(
            f"queries and gallery must have vectors of one length, got {queries.shape[1]} and {gallery.shape[1]}"
        )


def check_labels(labels: Numbers, vectors: Tensor, name: str) -> Tensor:
    """The labels as int64 on the device of the vectors, or a clear error.

    Args:
        labels: `(samples,)` integers.
        vectors: what they label.
        name: what errors call them.
    """
    of_lists = isinstance(labels, list | tuple) and any(isinstance(each, list | tuple | set) for each in labels)
    labels = torch.empty(len(vectors), 0) if of_lists else as_tensor(labels, name)
    if labels.ndim == 2 and len(labels) == len(vectors):
        raise ShapeError(
            f"{name} has several labels for each sample, and what is right by class needs one; judge such samples "
            "by ranks: `ndcg` or `rank_order_accuracy` with their ids as labels and rank_source=rince.LabelSetRanks(…),"
            " or `graded_ndcg` with gains=LabelSetRanks.overlaps(…)"
        )
    if labels.shape != (len(vectors),) or labels.is_floating_point() or labels.is_complex():
        raise ShapeError(
            f"{name} must hold one integer per vector: got {labels.dtype} of shape {tuple(labels.shape)} for "
            f"{len(vectors)} vectors"
        )
    return labels.detach().to(vectors.device, torch.int64)


def check_same(same: Numbers | None, queries: Tensor, gallery: Tensor) -> Tensor | None:
    """The rows of queries in a gallery as int64 on the device of the queries, None if no query has any; or an error.

    Args:
        same: `(queries,)`: the row of each query in the gallery, -1 for none; or None.
        queries: `(queries, dim)`.
        gallery: `(gallery, dim)`.
    """
    if same is None:
        return None
    same = check_labels(same, queries, "same")
    if len(same) and not -1 <= int(same.min()) <= int(same.max()) < len(gallery):
        raise ShapeError(
            f"same must hold rows of the gallery, from 0 to {len(gallery) - 1}, or -1 for none; got "
            f"{int(same.min())} to {int(same.max())}"
        )
    return same if bool((same >= 0).any()) else None


def without_same(scores: Tensor, same: Tensor | None) -> Tensor:
    """`(queries, gallery)` scores, in place: lower than all others where an item is the query itself."""
    if same is not None:
        known = (same >= 0).nonzero().squeeze(1)
        scores[known, same[known]] = -torch.inf
    return scores


def share(right: Tensor) -> float:
    """How many of `(samples,)` bools are true, from 0 to 1."""
    return int(right.sum()) / len(right)
