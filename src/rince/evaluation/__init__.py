"""Numbers that judge embeddings: retrieval, ranking, outliers, geometry, a linear probe.

Pure functions, tensors in and floats out, that know nothing of how the embeddings were made; the first line of each
says which direction is better. Names are loaded when they are first used, since some bring scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = ("retrieval", "outliers", "geometry", "probe")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"rince.evaluation.{home}")
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module 'rince.evaluation' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
