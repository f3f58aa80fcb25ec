"""Contrastive learning from ranked positives (Ranking InfoNCE, AAAI 2022).

Everything a training loop needs is here and costs `import torch`, nothing more: ranks from labels, the loss, a bank of
past keys and a momentum twin. Names are loaded when they are first used, so that the command line, which lives in this
package too, can answer `rince --help` without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rince.bank import MemoryBank
    from rince.errors import ConfigError, DataError, RinceError, ShapeError
    from rince.loss import (
        LossOutput,
        RankedInfoNCE,
        RankTerm,
        linear_temperatures,
        ranked_info_nce,
        ranked_info_nce_from_embeddings,
    )
    from rince.momentum import MomentumTwin
    from rince.ranks import EXCLUDED, NEGATIVE, InstanceRanks, SampleRanks, TableRanks, view_ranks

__version__ = "0.1.0"

__all__ = [
    "EXCLUDED",
    "NEGATIVE",
    "ConfigError",
    "DataError",
    "InstanceRanks",
    "LossOutput",
    "MemoryBank",
    "MomentumTwin",
    "RankTerm",
    "RankedInfoNCE",
    "RinceError",
    "SampleRanks",
    "ShapeError",
    "TableRanks",
    "linear_temperatures",
    "ranked_info_nce",
    "ranked_info_nce_from_embeddings",
    "view_ranks",
]

_HOMES = ("errors", "ranks", "bank", "momentum", "loss")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"rince.{home}")
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module 'rince' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
