"""Contrastive learning from ranked positives (Ranking InfoNCE, AAAI 2022).

Everything a training loop needs is here and costs `import torch`, nothing more: ranks from labels, the loss, a bank of
past keys and a momentum twin. `fit`, `Run` and `open_run` are the door to the whole system. Names are loaded when they
are first used, so that the command line, which lives in this package too, can answer `rince --help` without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rince.lazy import load_on_use

if TYPE_CHECKING:
    from rince import encoders as encoders
    from rince import evaluation as evaluation
    from rince import sources as sources
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
    from rince.ranks import EXCLUDED, NEGATIVE, InstanceRanks, TableRanks, view_ranks
    from rince.run import Run, fit, open_run
    from rince.sample_ranks import SampleRanks

__version__ = "0.2.0.dev0"

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
    "Run",
    "SampleRanks",
    "ShapeError",
    "TableRanks",
    "fit",
    "linear_temperatures",
    "open_run",
    "ranked_info_nce",
    "ranked_info_nce_from_embeddings",
    "view_ranks",
]

_ROOMS = ("encoders", "evaluation", "sources")  # imported when they are first looked into
_load = load_on_use(__name__, __all__, ("errors", "ranks", "sample_ranks", "bank", "momentum", "loss", "run"))


def __getattr__(name: str) -> Any:
    return import_module(f"rince.{name}") if name in _ROOMS else _load(name)


def __dir__() -> list[str]:
    return [*__all__, *_ROOMS, "__version__"]
