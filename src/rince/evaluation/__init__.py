"""Numbers that judge embeddings: retrieval, ranking, outliers, geometry, a linear probe.

Pure functions, tensors in and floats out, that know nothing of how the embeddings were made; the first line of each
says which direction is better. Names are loaded when they are first used, since some bring scikit-learn.
"""

from typing import TYPE_CHECKING

from rince.lazy import load_on_use

if TYPE_CHECKING:
    from rince.evaluation.geometry import alignment, class_similarity, tsne, uniformity
    from rince.evaluation.outliers import ClassGaussians, auroc, fpr_at_recall, neighbour_score
    from rince.evaluation.probe import linear_probe
    from rince.evaluation.retrieval import (
        mean_average_precision,
        ndcg,
        precision_recall_curve,
        rank_order_accuracy,
        recall_at_k,
    )

__all__ = [
    "ClassGaussians",
    "alignment",
    "auroc",
    "class_similarity",
    "fpr_at_recall",
    "linear_probe",
    "mean_average_precision",
    "ndcg",
    "neighbour_score",
    "precision_recall_curve",
    "rank_order_accuracy",
    "recall_at_k",
    "tsne",
    "uniformity",
]

__getattr__ = load_on_use(__name__, __all__, ("retrieval", "outliers", "geometry", "probe"))


def __dir__() -> list[str]:
    return list(__all__)
