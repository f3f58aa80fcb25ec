"""Checkpoints: written whole or not at all, holding tensors and plain values only, loaded without unpickling code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rince.config import ModelSettings
from rince.errors import DataError
from rince.files import written_whole

FORMAT = "rince checkpoint 1"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """A reader sees the old file or the new, both whole."""
    with written_whole(path) as file:
        torch.save({"format": FORMAT, **state}, file)


def load_checkpoint(path: Path, keys: set[str]) -> dict[str, Any]:
    """The state that was saved; a clear error for a file that is missing, cut short, or not ours."""
    if not path.is_file():
        raise DataError(f"there is no checkpoint {path}; was the run killed before its first one? Start it again")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise DataError(
            f"{path} cannot be read: it is cut short, damaged, or holds more than tensors and plain values "
            f"({type(error).__name__})"
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT or not keys <= state.keys():
        raise DataError(f"{path} is not a checkpoint of rince, or of another version ({FORMAT!r} is expected)")
    return state


def check_network(saved: dict[str, Any], model: ModelSettings, folder: Path) -> None:
    """Refuses a pretrained network with other weights than the run started from."""
    if saved.get("network", "") != model.identity:
        raise DataError(
            f"{folder} was trained on what other weights of model.kind={model.kind} make of its samples than those "
            "that are there now; restore them, or train it again"
        )
