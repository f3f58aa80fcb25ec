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
    from rince.batches import InBatch, TwoTowers, in_batch, two_towers
    from rince.cached import CachedLoss
    from rince.errors import ConfigError, DataError, RinceError, ShapeError
    from rince.label_sets import LabelSetRanks
    from rince.loss import (
        LossOutput,
        RankedInfoNCE,
        RankTerm,
        linear_temperatures,
        ranked_info_nce,
        ranked_info_nce_from_embeddings,
    )
    from rince.momentum import MomentumTwin
    from rince.ranked_batches import RankedBatchSampler
    from rince.ranks import EXCLUDED, NEGATIVE, InstanceRanks, TableRanks, score_ranks, view_ranks
    from rince.run import Run, fit, open_run
    from rince.sample_ranks import SampleRanks

__version__ = "0.2.0"

__all__ = [
    "EXCLUDED",
    "NEGATIVE",
    "CachedLoss",
    "ConfigError",
    "DataError",
    "InBatch",
    "InstanceRanks",
    "LabelSetRanks",
    "LossOutput",
    "MemoryBank",
    "MomentumTwin",
    "RankTerm",
    "RankedBatchSampler",
    "RankedInfoNCE",
    "RinceError",
    "Run",
    "SampleRanks",
    "ShapeError",
    "TableRanks",
    "TwoTowers",
    "fit",
    "in_batch",
    "linear_temperatures",
    "open_run",
    "ranked_info_nce",
    "ranked_info_nce_from_embeddings",
    "score_ranks",
    "two_towers",
    "view_ranks",
]

_ROOMS = ("encoders", "evaluation", "sources")  # imported when they are first looked into
_HOMES = (
    "errors",
    "ranks",
    "sample_ranks",
    "label_sets",
    "bank",
    "momentum",
    "loss",
    "batches",
    "ranked_batches",
    "cached",
    "run",
)
_load = load_on_use(__name__, __all__, _HOMES)


def __getattr__(name: str) -> Any:
    return import_module(f"rince.{name}") if name in _ROOMS else _load(name)


def __dir__() -> list[str]:
    return [*__all__, *_ROOMS, "__version__"]
