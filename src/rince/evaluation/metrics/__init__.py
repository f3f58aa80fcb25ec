"""All metrics, in the order in which they are measured and shown; a new one is an entry in the file of its family.

Whoever has the name of a measured number and wants to know anything about it asks `parse`.
"""

from __future__ import annotations

from functools import cache

from rince.errors import DataError
from rince.evaluation.metrics import accuracy, detection, search, shape
from rince.evaluation.metrics.metric import Metric, Named

# Names of similarities are open at the end; shape asks them last whether a name is their own.
METRICS: tuple[Metric, ...] = (*accuracy.METRICS, *search.METRICS, *detection.METRICS, *shape.METRICS)


@cache
def parse(name: str) -> Named:
    """The name of a measured number, taken apart: metric, level or outliers, set, and place."""
    for metric in METRICS:
        if found := metric.read(name):
            return found
    raise DataError(
        f"there is no metric {name!r}; there are {', '.join(metric.pattern for metric in METRICS)}, most also with "
        "' after the head', each with ' on SET'; if an older rince wrote it, run `rince evaluate` again"
    )


def values_of(metric: Metric, metrics: dict[str, float]) -> dict[Named, float]:
    """All numbers of one metric among the results of a run."""
    return {named: value for name, value in metrics.items() if (named := parse(name)).metric is metric}
