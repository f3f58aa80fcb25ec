"""Telling samples of unknown classes from known ones: inlier scores, where higher means known, and their judges."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from rince.devices import has_float64, in_float64, multiplies_bfloat16
from rince.errors import ConfigError, DataError, ShapeError, shown
from rince.evaluation.vectors import check_labels, check_same, share, unit_vectors, without_same
from rince.inputs import Numbers, as_tensor, whole_number

Covariance = Literal["full", "tied"]
BLOCK = 5000
NEAR = 2.0**-6  # of a squared distance; bfloat16 changed it by 2e-3 at most where classes had hundreds of samples


def auroc(inlier_scores: Numbers, outlier_scores: Numbers) -> float:
    """How often an inlier scores higher than an outlier, a tie counting half. Higher is better; chance is 0.5.

    Scores are compared as they are, in float64 where that is what they are.

    Args:
        inlier_scores: `(inliers,)`.
        outlier_scores: `(outliers,)`.
    """
    from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]  # noqa: PLC0415 - heavy

    inlier_scores, outlier_scores = _check_scores(inlier_scores, outlier_scores)
    truth = torch.cat([torch.ones_like(inlier_scores), torch.zeros_like(outlier_scores)])
    scores = torch.cat([inlier_scores, outlier_scores])
    return float(roc_auc_score(truth.cpu().numpy(), scores.cpu().numpy()))


def shares_below(inlier_scores: Numbers, outlier_scores: Numbers) -> Tensor:
    """`(inliers,)`: share of outliers that score lower than each inlier, a tie counting half. Its mean is the AUROC.

    Args:
        inlier_scores: `(inliers,)`.
        outlier_scores: `(outliers,)`.
    """
    inlier_scores, outlier_scores = _check_scores(inlier_scores, outlier_scores)
    ascending, inlier_scores = outlier_scores.sort().values, inlier_scores.contiguous()
    twice = torch.searchsorted(ascending, inlier_scores) + torch.searchsorted(ascending, inlier_scores, right=True)
    return in_float64(twice) / (2 * len(ascending))


def fpr_at_recall(inlier_scores: Numbers, outlier_scores: Numbers, *, recall: float = 0.95) -> float:
    """Share of outliers accepted at the threshold that accepts 95 % of the inliers. Lower is better, from 0 to 1.

    Args:
        inlier_scores: `(inliers,)`.
        outlier_scores: `(outliers,)`.
        recall: share of the inliers that must be accepted, at least.
    """
    if not 0 < recall <= 1:
        raise ConfigError(f"recall must be above 0 and at most 1, got {recall}")
    inlier_scores, outlier_scores = _check_scores(inlier_scores, outlier_scores)
    accepted = math.ceil(recall * len(inlier_scores) - 1e-9)
    threshold = inlier_scores.sort(descending=True).values[accepted - 1]
    return share(outlier_scores >= threshold)


class ClassGaussians:
    """One Gaussian per class; the inlier score is the largest log-likelihood over the classes. Higher is inlier.

    Features are brought to unit length first. `"full"` has a covariance for each class, as scikit-learn's
    `GaussianMixture(1, reg_covar=...)` fits it; `"tied"` has one for all, and its score is the negative squared
    Mahalanobis distance to the nearest class mean.

    With n samples X (centred, divided by √n) of d dimensions and n < d, the covariance XᵀX + εI is never made. By the
    matrix inversion lemma, with L Lᵀ = X Xᵀ + εI (n × n) and W = L⁻¹X,

        zᵀ (XᵀX + εI)⁻¹ z = (‖z‖² - ‖W z‖²) / ε        log det = (d - n) log ε + 2 Σ log Lᵢᵢ

    X Xᵀ and L are float64, on the CPU where the device has none, the rest float32 on the device of the features: the
    score's differences are of the size of 1 / ε, far above its rounding.
    `score` needs the best class only. Where the processor multiplies bfloat16 (2.7× as fast as float32 on an AMD EPYC),
    all classes are looked at in that, and those near the best again in float32; should the two differ by more than a
    quarter of what counts as near, all is done in float32.

    Args:
        features: `(samples, dim)`, in any length.
        labels: `(samples,)`.
        covariance: `"full"` or `"tied"`.
        regularisation: ε, added to the diagonal.

    Example:
        >>> features, labels = torch.randn(60, 4), torch.arange(60) % 2
        >>> ClassGaussians(features, labels).score(torch.randn(5, 4)).shape
        torch.Size([5])
    """

    def __init__(
        self, features: Numbers, labels: Numbers, *, covariance: Covariance = "full", regularisation: float = 1e-6
    ) -> None:
        if covariance not in ("full", "tied"):
            raise ConfigError(f"covariance must be 'full' or 'tied', got {covariance!r}")
        if not 0 < regularisation < math.inf:
            raise ConfigError(f"regularisation must be positive, got {shown(regularisation)}")
        features = unit_vectors(features, "features")
        labels = check_labels(labels, features, "labels")
        self.classes = labels.unique()
        self.covariance, self.regularisation, self.dim = covariance, regularisation, features.shape[1]
        self.means: list[Tensor] = []
        self._shapes: list[tuple[Tensor, float, bool]] = []
        for label in self.classes:  # a class at a time: in float64, all of them would take gigabytes
            group = features[labels == label]
            exact = group if has_float64(group.device) else group.cpu()
            self.means.append(exact.mean(dim=0, dtype=torch.float64).to(group.device, torch.float32))
            if covariance == "full":
                self._shapes.append(self._fit(group - self.means[-1]))
        if covariance == "tied":
            places = torch.searchsorted(self.classes, labels)
            self._shapes = [self._fit(features - torch.stack(self.means)[places])]

    def _fit(self, centred: Tensor) -> tuple[Tensor, float, bool]:
        """W, log det, and whether W stands for what the covariance lacks to εI (few samples)."""
        number, few = len(centred), len(centred) < self.dim
        rows = in_float64(centred) if few else in_float64(centred).T
        matrix, half = rows.new_zeros(len(rows), len(rows)), len(rows) // 2
        matrix[:half, :half] = rows[:half] @ rows[:half].T
        matrix[half:] = rows[half:] @ rows.T  # nobody looks above the diagonal
        matrix.div_(number).diagonal().add_(self.regularisation)
        lower = torch.linalg.cholesky(matrix)
        log_det = 2 * float(lower.diagonal().log().sum())
        identity = torch.eye(len(lower), dtype=torch.float64, device=lower.device)
        inverse = torch.linalg.solve_triangular(lower, identity, upper=False)
        if not few:
            return inverse.to(centred.device, torch.float32), log_det, few
        # Solving for X in float64 would take 14 ms a class (500 × 2,048), this takes 11. It puts distances off by up to
        # 2.5e-6; scoring in float32 does so anyway, by up to 2.3e-6.
        log_det += (self.dim - number) * math.log(self.regularisation)
        return (inverse / math.sqrt(number)).to(centred.device, torch.float32) @ centred, log_det, few

    def log_likelihoods(self, features: Numbers) -> Tensor:
        """`(samples, classes)`: of each sample under each class."""
        features = self._checked(features)
        if self.covariance == "tied":
            return torch.cat([self._tied(block) for block in features.split(BLOCK)])
        return torch.stack([self._of_class(features, number) for number in range(len(self.means))], dim=1)

    def score(self, features: Numbers) -> Tensor:
        """`(samples,)` inlier scores: the largest log-likelihood over the classes."""
        features = self._checked(features)
        few = self.covariance == "full" and all(few for _, _, few in self._shapes)
        screens = few and features.device.type == "cpu" and multiplies_bfloat16()
        scores = self._screened_score(features) if screens else None
        return self.log_likelihoods(features).max(dim=1).values if scores is None else scores

    def _checked(self, features: Numbers) -> Tensor:
        features = unit_vectors(as_tensor(features, "features").to(self.means[0].device), "features")
        if features.shape[1] != self.dim:
            raise ShapeError(f"fitted on vectors of length {self.dim}, got {features.shape[1]}")
        return features

    def _of_class(self, features: Tensor, number: int) -> Tensor:
        """`(samples,)` log-likelihoods under one class that has its own covariance, in float32."""
        mean = self.means[number]
        factor, log_det, few = self._shapes[number]
        parts = []
        # Small blocks stay in the cache between the product and the sum of its squares.
        for block in features.split(BLOCK):
            centred = block - mean
            distance = (centred @ factor.T).square_().sum(dim=1)
            if few:
                distance = (centred.square_().sum(dim=1) - distance) / self.regularisation
            parts.append(-0.5 * (self.dim * math.log(2 * math.pi) + log_det + distance))
        return torch.cat(parts) if parts else features.new_empty(0)

    def _tied(self, features: Tensor) -> Tensor:
        """`(samples, classes)` log-likelihoods with one covariance: samples and means go through W once.

        A class at a time, as with covariances of their own, this would take two minutes for 30,000 samples of 1,280
        dimensions and 100 classes, in place of two seconds.
        """
        factor, log_det, few = self._shapes[0]
        means = torch.stack(self.means)
        middle = means.mean(dim=0)  # what all have in common would only be rounded
        centred = features - middle, means - middle
        distances = _squared_distances(centred[0] @ factor.T, centred[1] @ factor.T)
        if few:
            distances = (_squared_distances(*centred) - distances) / self.regularisation
        return (-0.5 * (self.dim * math.log(2 * math.pi) + log_det + distances)).to(features.device, torch.float32)

    def _screened_score(self, features: Tensor) -> Tensor | None:
        """The score with most of the work in bfloat16; None if that is too far from float32 to tell."""
        means = torch.stack(self.means)
        # ‖z - μ‖² - ‖W(z - μ)‖² = ‖z‖² - 2 z·r + μ·r - ‖W z‖², where r = μ - WᵀW μ
        rests = means - torch.stack([w.T @ (w @ mean) for (w, _, _), mean in zip(self._shapes, means, strict=True)])
        distances = features.square().sum(dim=1)[:, None] - 2 * (features @ rests.T) + (means * rests).sum(dim=1)
        rough = features.bfloat16()
        for number, (factor, log_det, _) in enumerate(self._shapes):
            half = factor.bfloat16()
            for block, out in zip(rough.split(BLOCK), distances.split(BLOCK), strict=True):
                out[:, number] -= (half @ block.T).float().square_().sum(dim=0)
            distances[:, number] += self.regularisation * log_det
        near = distances <= distances.min(dim=1, keepdim=True).values + NEAR
        best = features.new_full((len(features),), -torch.inf)
        for number in range(len(self.means)):
            rows = near[:, number].nonzero()[:, 0]
            found = self._of_class(features[rows], number)
            exact = -2 * self.regularisation * found - self.regularisation * self.dim * math.log(2 * math.pi)
            if len(rows) and (exact - distances[rows, number]).abs().max() > NEAR / 4:
                return None
            best[rows] = torch.maximum(best[rows], found)
        return best


def _squared_distances(rows: Tensor, others: Tensor) -> Tensor:
    """`(rows, others)`, in float64: they are small differences of large numbers."""
    rows, others = in_float64(rows), in_float64(others)
    return rows.square().sum(dim=1)[:, None] + others.square().sum(dim=1) - 2 * (rows @ others.T)


def neighbour_score(features: Numbers, train_features: Numbers, *, k: int = 50, same: Numbers | None = None) -> Tensor:
    """`(samples,)` inlier scores: cosine with the k-th nearest feature of the training set. Higher is inlier.

    The negative distance of Sun et al. (2022), up to a monotone map.

    Args:
        features: `(samples, dim)`.
        train_features: `(train, dim)`.
        k: which neighbour.
        same: `(samples,)`: the row of each sample in the training set, where it is no neighbour of itself; -1 for none.
    """
    features = unit_vectors(features, "features")
    train_features = unit_vectors(as_tensor(train_features, "train_features").to(features.device), "train_features")
    if features.shape[1] != train_features.shape[1]:
        raise ShapeError(
            f"features and train_features must have one length, got {features.shape[1]} and {train_features.shape[1]}"
        )
    same = check_same(same, features, train_features)
    others = len(train_features) - int(same is not None)
    if not whole_number(k, "k") <= others:
        raise ConfigError(f"k must be from 1 to the number of train_features that are others, {others}; got {shown(k)}")
    rows = max(1, 2**25 // (4 * len(train_features)))
    scores = []
    for block in torch.arange(len(features), device=features.device).split(rows):
        cosines = without_same(features[block] @ train_features.T, None if same is None else same[block])
        scores.append(cosines.topk(k, dim=1).values[:, -1])
    return torch.cat(scores)


def _check_scores(inlier_scores: Numbers, outlier_scores: Numbers) -> tuple[Tensor, Tensor]:
    checked = []
    for name, given in (("inlier_scores", inlier_scores), ("outlier_scores", outlier_scores)):
        scores = as_tensor(given, name)
        if scores.ndim != 1 or scores.is_complex():
            raise ShapeError(
                f"{name} must be one real number per sample, got {scores.dtype} of shape {tuple(scores.shape)}"
            )
        if len(scores) == 0:
            raise DataError(f"{name} is empty")
        checked.append(in_float64(scores.detach()))
        bad = (~checked[-1].isfinite()).nonzero()[:, 0]
        if len(bad):
            raise DataError(f"{name} holds NaN or infinity in {len(bad)} of {len(scores)} rows, first in row {bad[0]}")
    return checked[0], checked[1].to(checked[0].device)
