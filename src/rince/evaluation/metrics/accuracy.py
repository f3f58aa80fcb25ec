"""Classifiers: one finetuned from the run's network, and the linear probe."""

from __future__ import annotations

from torch import Tensor

from rince.evaluation.class_means import are_uneven, shares_of_classes
from rince.evaluation.evidence import Evidence
from rince.evaluation.metrics.metric import COUNT, PERCENT, Metric


def _finetuned(evidence: Evidence) -> dict[str, Tensor]:
    if evidence.classified is None:
        return {}
    labels = evidence.test.labels
    return {"": evidence.counted(evidence.classified.to(labels.device) == labels)}


def _over_classes(evidence: Evidence) -> dict[str, Tensor]:
    labels = evidence.test.labels
    uneven = are_uneven(labels[evidence.known.to(labels.device)])
    return {"": shares_of_classes(evidence.probed.right, labels)} if uneven else {}


def _best_accuracy(evidence: Evidence) -> dict[str, float]:
    return {"": evidence.probed.best_test_accuracy} if evidence.probe == "paper" else {}


def _best_epoch(evidence: Evidence) -> dict[str, float]:
    return {"": evidence.probed.best_test_epoch} if evidence.probe == "paper" else {}


FINETUNED = Metric(
    "finetune/accuracy", "finetuned accuracy", "up", PERCENT, "{classifier}", _finetuned, "Finetuned", "accuracy"
)
PROBE = Metric(
    "probe/accuracy",
    "probe accuracy",
    "up",
    PERCENT,
    "{probe}",
    lambda e: {"": e.probed.right},
    "Probe",
    "accuracy",
    both_places=True,
)
BEST = "{probe}; the largest after any epoch, chosen by looking at the test set, which flatters: it compares nothing"
BEST_TEST = Metric("probe/best_test_accuracy", "best probe accuracy", None, PERCENT, BEST, _best_accuracy)
CLASS_MEAN = "{probe}; mean over classes, which count alike however many test samples they have"
METRICS = (
    FINETUNED,
    PROBE,
    Metric(
        "probe/class_mean_accuracy",
        "probe accuracy, class mean",
        "up",
        PERCENT,
        CLASS_MEAN,
        _over_classes,
        both_places=True,
    ),
    BEST_TEST,
    Metric("probe/best_test_epoch", "best probe epoch", None, COUNT, "{probe}; when that was", _best_epoch),
)
