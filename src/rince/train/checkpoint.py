"""Checkpoints: written whole or not at all, sealed, holding tensors and plain values only, loaded without running code.

One that is not as it was written, or that no run can have written, is refused before anything is built from it.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Set
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from rince.config import ModelSettings
from rince.errors import DataError
from rince.files import written_whole
from rince.seals import seal_holds, sealed

FORMAT = "rince checkpoint 2"
MOST = 2**31  # numbers of a sample along one axis, and classes
UNSEALED = "rince checkpoint 1"  # of before there were seals: what its zip archive says of its parts is all there is


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """A reader sees the old file or the new, both whole."""
    with written_whole(path, bytes_of(state)) as file, sealed(file) as sealing:
        torch.save({"format": FORMAT, **state}, sealing)  # type: ignore[arg-type] # all that torch does is to write


def bytes_of(state: Any) -> int:
    """What the tensors of a state take on the disk; the rest is small."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return sum(map(bytes_of, parts))


def load_checkpoint(path: Path, keys: set[str]) -> dict[str, Any]:
    """The state that was saved; a clear error for a file that is missing, damaged, or not ours.

    Args:
        path: of the file.
        keys: that it must have.
    """
    if not path.is_file():
        raise DataError(f"there is no checkpoint {path}; was the run killed before its first one? Start it again")
    with path.open("rb") as file:
        holds = seal_holds(file)
        if holds is False:
            raise DataError(
                f"{path} is damaged: its content is not what was written, its digest does not fit; restore it from a "
                "copy, or start the run again"
            )
        state = _loaded(path, file, sealed_file=bool(holds))
    expected = FORMAT if holds else UNSEALED
    if not isinstance(state, dict) or state.get("format") != expected or not keys <= state.keys():
        raise DataError(f"{path} is not a checkpoint of rince, or of another version ({FORMAT!r} is expected)")
    for key, value in state.items():
        fits, what = WANTED.get(key, MODULE)
        if not fits(value):
            raise DataError(
                f"{path} is no checkpoint that a run has written: {key!r} must be {what}; got {value!r:.80}"
            )
    if (state.get("best") or {}).get("step", 0) > state.get("step", 0):
        raise DataError(f"{path} is no checkpoint that a run has written: its best step is after its last")
    return state


def _loaded(path: Path, file: IO[bytes], *, sealed_file: bool) -> Any:
    try:
        if not sealed_file and (damaged := zipfile.ZipFile(file).testzip()):
            raise ValueError(damaged)
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise DataError(
            f"{path} cannot be read: it is cut short, damaged, or holds more than tensors and plain values "
            f"({type(error).__name__})"
        ) from None


def _is_count(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(_is_count(each, 1) and each < MOST for each in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_optimizer(value: Any) -> bool:
    """As torch's optimizers are saved: groups of numbered weights, and what is remembered of each."""
    if not isinstance(value, dict) or not isinstance(value.get("state"), dict):
        return False
    groups = value.get("param_groups")
    if not isinstance(groups, list) or not groups or not all(isinstance(group, dict) for group in groups):
        return False
    if not all(isinstance(group.get("params"), list) for group in groups):
        return False
    numbered = [number for group in groups for number in group["params"]]
    remembered = value["state"].items()
    return all(map(_is_count, numbered)) and all(
        number in numbered and isinstance(kept, dict) and all(map(_is_kept, kept.values()))
        for number, kept in remembered
    )


def _is_kept(value: Any) -> bool:
    return value is None or _is_number(value) or isinstance(value, Tensor)


def _is_module(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(each, Tensor) for name, each in value.items()
    )


def _is_best(value: Any) -> bool:
    return value == {} or (
        isinstance(value, dict)
        and value.keys() == {"step", "score"}
        and _is_count(value["step"], 1)
        and _is_number(value["score"])
    )


MODULE = _is_module, "tensors by name"
WANTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "format": (lambda value: isinstance(value, str), "text"),
    "encoder": (lambda value: _is_module(value) and bool(value), "tensors by name, some of them"),
    "shape": (_is_counts, "whole numbers from 1 on"),
    "groups": (lambda value: _is_counts(value) and bool(value), "whole numbers from 1 on"),
    "features": (lambda value: _is_count(value, 1), "a whole number from 1 on"),
    "network": (lambda value: isinstance(value, str), "text"),
    "recipe": (lambda value: isinstance(value, str), "text"),
    "steps_per_epoch": (lambda value: _is_count(value, 1), "a whole number from 1 on"),
    "step": (_is_count, "a whole number from 0 on"),
    "metrics_position": (_is_count, "a whole number from 0 on"),
    "optimizer": (_is_optimizer, "what an optimizer has remembered of its weights"),
    "precision": (lambda value: isinstance(value, dict), "the state of a gradient scaler"),
    "validation": (lambda value: isinstance(value, list) and all(map(_is_number, value)), "numbers"),
    "best": (_is_best, "a step and its score, or nothing"),
}


def check_facts(saved: dict[str, Any], facts: dict[str, Any], modules: Set[str], path: Path) -> None:
    """Refuses a checkpoint that says other things of its run than are true, or holds what no part of it knows.

    Args:
        saved: the checkpoint; one of before may lack some facts.
        facts: what a checkpoint of this run says.
        modules: what its method remembers.
        path: of the checkpoint.
    """
    for key, value in facts.items():
        if saved.get(key, value) != value:
            raise DataError(
                f"{path} does not fit the recipe of its run: {key!r} is {saved[key]!r:.80}, and must be {value!r:.80}"
            )
    if unknown := saved.keys() - WANTED.keys() - modules:
        raise DataError(f"{path} does not fit the recipe of its run: nothing takes its {sorted(unknown)[0]!r}")


def check_tensors(saved: dict[str, Tensor], wanted: dict[str, Tensor], name: str, path: Path) -> None:
    """Refuses tensors of other kinds than those that they will be copied into: torch converts without a word."""
    for each, tensor in saved.items():
        if each in wanted and _kind(tensor) != _kind(wanted[each]):
            raise DataError(
                f"{path} does not fit the recipe of its run: {each} of its {name} is {tensor.dtype}, and must be "
                f"{wanted[each].dtype}"
            )


def _kind(tensor: Tensor) -> str:
    """Floats of any precision are floats."""
    return "float" if tensor.is_floating_point() else str(tensor.dtype)


def check_precision(saved: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Refuses the state of another gradient scaler than this precision has."""
    if saved.keys() != now.keys() or not all(map(_is_number, saved.values())):
        raise DataError(f"{path} does not fit the recipe of its run: {saved!r:.80} is no state of its precision")


def check_remembered(optimizer: Any, saved: dict[str, Any], path: Path) -> None:
    """Refuses what another optimizer has remembered, or one of other weights: torch would take it without a word."""
    for group, old in zip(optimizer.param_groups, saved["optimizer"]["param_groups"], strict=False):
        for name in group.keys() & old.keys() - {"params"}:
            fits = _is_number(old[name]) and old[name] >= 0 if name == "lr" else old[name] == group[name]
            if not fits:  # the rate alone changes as a run goes on
                raise DataError(
                    f"{path} does not fit the recipe of its run: {name!r} of its optimizer is {old[name]!r:.80}"
                )
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    remembers = any(group.get("momentum", 1) for group in optimizer.param_groups)  # all but SGD without momentum
    if saved["step"] > 0 and remembers and not saved["optimizer"]["state"]:
        raise DataError(f"{path} is of step {saved['step']}, but its optimizer has remembered nothing; it is damaged")
    for number, kept in saved["optimizer"]["state"].items():
        for name, value in kept.items():
            if not isinstance(value, Tensor):
                continue
            if (value.ndim and value.shape != weights[number].shape) or not value.is_floating_point():
                raise DataError(
                    f"{path} does not fit the recipe of its run: {name} of weight {number} is {value.dtype} of shape "
                    f"{tuple(value.shape)}"
                )


def check_network(saved: dict[str, Any], model: ModelSettings, folder: Path) -> None:
    """Refuses a pretrained network with other weights than the run started from."""
    if saved.get("network", "") != model.identity:
        raise DataError(
            f"{folder} was trained on what other weights of model.kind={model.kind} make of its samples than those "
            "that are there now; restore them, or train it again"
        )
