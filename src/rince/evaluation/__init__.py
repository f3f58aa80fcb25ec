"""Numbers that judge embeddings: retrieval, ranking, outliers, geometry, a linear probe.

Pure functions, tensors in and floats out, that know nothing of how the embeddings were made; the first line of each
says which direction is better. Names are loaded when they are first used, since some bring scikit-learn.
"""

from typing import TYPE_CHECKING

from rince.lazy import load_on_use

if TYPE_CHECKING:
    from rince.evaluation.class_means import mean_over_classes
    from rince.evaluation.geometry import alignment, class_similarity, tsne, uniformity
    from rince.evaluation.graded import graded_ndcg
    from rince.evaluation.outliers import ClassGaussians, auroc, fpr_at_recall, neighbour_score
    from rince.evaluation.probe import linear_probe
    from rince.evaluation.retrieval import (
        average_set_intersection,
        hierarchical_average_precision,
        mean_ancestor_height,
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
    "average_set_intersection",
    "class_similarity",
    "fpr_at_recall",
    "graded_ndcg",
    "hierarchical_average_precision",
    "linear_probe",
    "mean_ancestor_height",
    "mean_average_precision",
    "mean_over_classes",
    "ndcg",
    "neighbour_score",
    "precision_recall_curve",
    "rank_order_accuracy",
    "recall_at_k",
    "tsne",
    "uniformity",
]

__getattr__ = load_on_use(__name__, __all__, ("class_means", "retrieval", "graded", "outliers", "geometry", "probe"))


def __dir__() -> list[str]:
    return list(__all__)
