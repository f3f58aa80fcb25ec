"""What a metric is, and the names of measured numbers: made here and read here, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from torch import Tensor

from rince.evaluation.evidence import Evidence, Place

Direction = Literal["up", "down", None]
Measure = Callable[[Evidence], dict[str, float] | dict[str, Tensor]]
"""What stands in the hole `{}` → the number, or `(queries,)` numbers whose mean it is; empty if there is none.

A query that does not count is NaN.
"""
HOLE = "{}"
AFTER = " after the head"


@dataclass(frozen=True)
class Unit:
    """How a number is written.

    Attributes:
        factor: what a measured number is multiplied by.
        digits: after the point.
        sign: what follows the number.
        paper_digits: after the point, of the paper's numbers, which are in this unit already.
    """

    factor: int
    digits: int
    sign: str = ""
    paper_digits: int = 0

    def text(self, value: float) -> str:
        """The number without its sign."""
        return f"{value * self.factor:.{self.digits}f}"


PERCENT = Unit(100, 1, " %", paper_digits=2)
PLAIN = Unit(1, 3, paper_digits=4)
COUNT = Unit(1, 0)


@dataclass(frozen=True, eq=False)
class Metric:
    """A kind of number: all that tables, figures and pages have to know of it.

    Attributes:
        pattern: its name in results; `{}` is a level of the taxonomy, a set of outliers, or what else there is one
            number for each of.
        heading: a short name for a column.
        direction: whether more is better (up), less is (down), or neither says anything by itself.
        unit: how its numbers are written.
        protocol: how it is made; words in braces are filled in from `Evidence.words`.
        measure: the function: from the evidence to its numbers.
        group: for a metric that a reader looks at first, what its column has in common with those beside it.
        column: heading below that of the group, if another than `heading`.
        both_places: whether it is measured after the head too, where samples have embeddings.
    """

    pattern: str
    heading: str
    direction: Direction
    unit: Unit
    protocol: str
    measure: Measure
    group: str = ""
    column: str = ""
    both_places: bool = False

    @property
    def name(self) -> str:
        """Of the kind of number: `retrieval/recall@1`."""
        return self.pattern.replace(f"/{HOLE}", "")

    @cached_property
    def names(self) -> re.Pattern[str]:
        """What the names of its numbers look like. A set's name has no slash, so ` on ` in a level is no matter."""
        text = re.escape(self.pattern).replace(re.escape(HOLE), "(.+?)")
        text += (f"({AFTER})?" if self.both_places else "()") + r"(?: on ([^/]+))?"
        return re.compile(text, re.DOTALL)  # names of levels and sets may be any text

    def read(self, name: str) -> Named | None:
        """The name of one of its numbers, taken apart; None if it is none."""
        found = self.names.fullmatch(name)
        if found is None:
            return None
        *qualifier, after, on = found.groups(default="")
        return Named(self, "".join(qualifier), on, "after" if after else "before")


class Named(NamedTuple):
    """A measured number: of which metric, for which level or outliers, on which set of data, at which place."""

    metric: Metric
    qualifier: str = ""
    on: str = ""
    """The set, if it is not the run's own."""
    place: Place = "before"
    """Whether it is of features, before the head, or of embeddings, after it."""

    @property
    def name(self) -> str:
        """In results: `retrieval/class/map on ucf101`, `retrieval/class/map after the head on ucf101`."""
        return self._on(self.metric.pattern.replace(HOLE, self.qualifier, 1) + self._after)

    @property
    def protocol(self) -> str:
        """Under which name it is kept how the number was made: `retrieval/map after the head`."""
        return self.metric.name + self._after

    @property
    def where(self) -> str:
        """What tells it from others of its metric: `class on ucf101`. Figures are kept under this."""
        return self._on(self.qualifier + self._after).strip()

    @property
    def heading(self) -> str:
        """For a column that stands alone: `mAP class on ucf101, after the head`."""
        return self.short_heading + self._comma_after

    @property
    def short_heading(self) -> str:
        """For a column among others of the same place: `mAP class on ucf101`."""
        return self._on(f"{self.metric.heading} {self.qualifier}".strip())

    @property
    def group(self) -> str:
        """For columns side by side: `Same class on ucf101, after the head`; empty if no reader looks at it first."""
        return self.short_group + self._comma_after if self.metric.group else ""

    @property
    def short_group(self) -> str:
        """The same among others of the same place."""
        return self._on(self.metric.group.replace(HOLE, self.qualifier, 1)) if self.metric.group else ""

    @property
    def column(self) -> str:
        """Below the heading of the group: `mAP`, `accuracy %`."""
        return (self.metric.column or self.metric.heading) + self.metric.unit.sign

    @property
    def _after(self) -> str:
        return AFTER if self.place == "after" else ""

    @property
    def _comma_after(self) -> str:
        return f",{self._after}" if self._after else ""

    def _on(self, text: str) -> str:
        return f"{text} on {self.on}" if self.on else text
