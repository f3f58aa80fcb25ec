"""Means over classes: where classes are of uneven size, a mean over samples is mostly that of the largest ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rince.errors import DataError, ShapeError
from rince.inputs import Numbers, as_tensor


def mean_over_classes(values: Numbers, labels: Numbers) -> float:
    """The mean over classes of the mean over their samples, each class counting alike. Directed as its values are.

    Oracle: scikit-learn's `recall_score(average="macro")`, for values that say whether a sample was right.

    Args:
        values: `(samples,)`, such as the numbers of test samples in `queries.safetensors`; NaN does not count.
        labels: `(samples,)` integers. A class none of whose samples counts is left out.

    Example:
        >>> mean_over_classes([1.0, 1.0, 1.0, 0.0], labels=[0, 0, 0, 1])
        0.5
    """
    values, labels = as_tensor(values, "values"), as_tensor(labels, "labels")
    if values.ndim != 1 or values.shape != labels.shape or labels.is_floating_point():
        raise ShapeError(
            f"values and labels must be one number and one integer per sample, got shapes {tuple(values.shape)} and "
            f"{tuple(labels.shape)}, labels of {labels.dtype}"
        )
    mean = float(shares_of_classes(values, labels).nanmean())
    if math.isnan(mean):
        raise DataError("no sample counts: values are empty, or all are NaN")
    return mean


def shares_of_classes(values: Tensor, labels: Tensor) -> Tensor:
    """`(samples,)` float64 on the CPU, whose mean is the mean over classes: what each sample adds to it."""
    values, (classes, groups) = values.detach().cpu().double(), labels.cpu().unique(return_inverse=True)
    counts = ~values.isnan()
    sizes = torch.bincount(groups[counts], minlength=len(classes))
    return values * (counts.sum().double() / ((sizes > 0).sum() * sizes[groups]))


def are_uneven(labels: Tensor) -> bool:
    """Whether some class has more samples than another; where none has, both means are the same."""
    sizes = labels.unique(return_counts=True)[1]
    return bool((sizes != sizes[:1]).any())
