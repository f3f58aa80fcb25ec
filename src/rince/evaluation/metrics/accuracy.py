"""Classifiers: one finetuned from the run's network, and the linear probe."""

from __future__ import annotations

from rince.evaluation.evidence import Evidence
from rince.evaluation.metrics.metric import COUNT, PERCENT, Metric


def _finetuned(evidence: Evidence) -> dict[str, float]:
    if evidence.classified is None:
        return {}
    labels = evidence.test.labels
    return {"": int((evidence.classified.to(labels.device) == labels).sum()) / len(labels)}


def _best_accuracy(evidence: Evidence) -> dict[str, float]:
    return {"": evidence.probed.best_test_accuracy} if evidence.probe == "paper" else {}


def _best_epoch(evidence: Evidence) -> dict[str, float]:
    return {"": evidence.probed.best_test_epoch} if evidence.probe == "paper" else {}


FINETUNED = Metric(
    pattern="finetune/accuracy",
    heading="finetuned accuracy",
    direction="up",
    unit=PERCENT,
    protocol="{classifier}",
    measure=_finetuned,
    group="Finetuned",
    column="accuracy",
)
PROBE = Metric(
    pattern="probe/accuracy",
    heading="probe accuracy",
    direction="up",
    unit=PERCENT,
    protocol="{probe}",
    measure=lambda evidence: {"": evidence.probed.accuracy},
    group="Probe",
    column="accuracy",
)
BEST_TEST = Metric(
    pattern="probe/best_test_accuracy",
    heading="best probe accuracy",
    direction=None,  # it flatters, and so compares nothing
    unit=PERCENT,
    protocol="{probe}; the largest after any epoch, chosen by looking at the test set",
    measure=_best_accuracy,
)
BEST_EPOCH = Metric(
    pattern="probe/best_test_epoch",
    heading="best probe epoch",
    direction=None,
    unit=COUNT,
    protocol="{probe}; when the accuracy on the test set was largest",
    measure=_best_epoch,
)
METRICS = (FINETUNED, PROBE, BEST_TEST, BEST_EPOCH)
