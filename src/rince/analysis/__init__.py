"""Why it ranks: the loss analysis of the paper's appendix, as functions.

`penalties` says which opponents a term pushes hardest, `equilibrium` where the opposing terms of two or more ranks come
to rest, `advice` turns that round and proposes temperatures, `measure` looks for all of it in a trained run. Names are
loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = ("penalties", "equilibrium", "advice", "measure")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"rince.analysis.{home}")
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module 'rince.analysis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
