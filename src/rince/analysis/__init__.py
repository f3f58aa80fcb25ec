"""Why it ranks: the loss analysis of the paper's appendix, as functions.

`penalties` says which opponents a term pushes hardest, `equilibrium` where the opposing terms of two or more ranks come
to rest, `advice` turns that round and proposes temperatures, `measure` looks for all of it in a trained run. Names are
loaded when they are first used.
"""

from typing import TYPE_CHECKING

from rince.lazy import load_on_use

if TYPE_CHECKING:
    from rince.analysis.advice import Advice, advise
    from rince.analysis.equilibrium import RankBalance, equilibrium_line, normal_negatives, ranking_starts, trade_off
    from rince.analysis.measure import RunAnalysis, analyse_run
    from rince.analysis.penalties import RelativePenalties, push_of_terms, relative_penalties

__all__ = [
    "Advice",
    "RankBalance",
    "RelativePenalties",
    "RunAnalysis",
    "advise",
    "analyse_run",
    "equilibrium_line",
    "normal_negatives",
    "push_of_terms",
    "ranking_starts",
    "relative_penalties",
    "trade_off",
]

__getattr__ = load_on_use(__name__, __all__, ("penalties", "equilibrium", "advice", "measure"))


def __dir__() -> list[str]:
    return list(__all__)
