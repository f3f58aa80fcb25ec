"""The shape of an embedding: how tight classes are, how evenly the sphere is used, what is close to what."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rince.devices import has_float64, in_float64
from rince.errors import ConfigError, DataError, shown
from rince.evaluation.vectors import check_labels, unit_vectors
from rince.inputs import Numbers

BLOCK_BYTES = 2**25


def alignment(embeddings: Numbers, labels: Numbers) -> float:
    """Mean squared distance between samples of one label (Wang & Isola 2020). Lower is tighter, from 0 to 4.

    Over all pairs of different samples that share a label; vectors are brought to unit length first.

    Args:
        embeddings: `(samples, dim)`.
        labels: `(samples,)`: of classes, or of superclasses.
    """
    embeddings = in_float64(unit_vectors(embeddings, "embeddings"))
    labels = check_labels(labels, embeddings, "labels")
    _, index, counts = labels.unique(return_inverse=True, return_counts=True)
    pairs = int((counts * (counts - 1)).sum())
    if pairs == 0:
        raise DataError("alignment needs two samples of one label; every label has only one sample")
    sums = embeddings.new_zeros(len(counts), embeddings.shape[1]).index_add_(0, index, embeddings)
    squares = embeddings.new_zeros(len(counts)).index_add_(0, index, embeddings.square().sum(dim=1))
    # Σᵢⱼ ‖xᵢ - xⱼ‖² over a group of n is 2n Σ ‖xᵢ‖² - 2 ‖Σ xᵢ‖².
    return float((2 * counts * squares - 2 * sums.square().sum(dim=1)).sum()) / pairs


def uniformity(embeddings: Numbers, *, t: float = 2.0) -> float:
    """Log of the mean of exp(-t ‖x - y‖²) over all pairs (Wang & Isola 2020). Lower is more uniform, at most 0.

    Args:
        embeddings: `(samples, dim)`; brought to unit length first.
        t: how fast the potential falls.
    """
    if not 0 < t < math.inf:
        raise ConfigError(f"t must be positive, got {shown(t)}")
    embeddings = unit_vectors(embeddings, "embeddings")
    number = len(embeddings)
    if number < 2:
        raise DataError("uniformity needs at least two samples, got one")
    rows = max(1, BLOCK_BYTES // (4 * number))
    squares = embeddings.square().sum(dim=1)
    total = 0.0
    for start in range(0, number, rows):
        block = embeddings[start : start + rows]
        distances = (squares[start : start + rows, None] + squares - 2 * (block @ embeddings.T)).clamp_(min=0)
        near = distances.mul_(-t).exp_()
        # Without float64, one sum per sample is small enough for float32, and those are added on the CPU.
        wide = has_float64(near.device)
        total += float(near.sum(dtype=torch.float64) if wide else near.sum(dim=1).cpu().sum(dtype=torch.float64))
    return math.log((total - number) / (number * (number - 1)))


def class_similarity(embeddings: Numbers, labels: Numbers) -> Tensor:
    """`(classes, classes)` mean cosine between the samples of two classes; classes in the order of their labels.

    Within a class, over pairs of different samples: NaN for a class of one. On the device of the embeddings.

    Args:
        embeddings: `(samples, dim)`.
        labels: `(samples,)`.
    """
    unit = unit_vectors(embeddings, "embeddings")
    device, embeddings = unit.device, in_float64(unit)
    labels = check_labels(labels, embeddings, "labels")
    _, index, counts = labels.unique(return_inverse=True, return_counts=True)
    means = embeddings.new_zeros(len(counts), embeddings.shape[1]).index_add_(0, index, embeddings) / counts[:, None]
    similarity: Tensor = means @ means.T
    own = embeddings.new_zeros(len(counts)).index_add_(0, index, embeddings.square().sum(dim=1))
    within = (similarity.diagonal() * counts.square() - own) / (counts * (counts - 1)).clamp(min=1)
    similarity.diagonal().copy_(torch.where(counts > 1, within, torch.nan))
    return similarity.float().to(device)


def tsne(features: Numbers, *, seed: int = 0) -> Tensor:
    """`(samples, 2)` places of the samples on a map that keeps neighbours together (scikit-learn's t-SNE, cosine).

    Args:
        features: `(samples, dim)`, at least 3 samples.
        seed: of the start; the same seed gives the same map.
    """
    from sklearn.manifold import TSNE  # type: ignore[import-untyped]  # noqa: PLC0415 - heavy

    features = unit_vectors(features, "features")
    if len(features) < 3:
        raise ConfigError(f"a map needs at least 3 samples, got {len(features)}")
    perplexity = min(30.0, (len(features) - 1) / 3)
    unit = features.cpu().numpy()
    # On unit vectors the euclidean distance, which scikit-learn searches fast, orders as the cosine does.
    places = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(unit)
    return torch.from_numpy(places).to(features.device)
