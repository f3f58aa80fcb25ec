"""All that changes while a run goes on: how it is saved as a checkpoint, when that cannot be written, and restored."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from rince.config.recipe import SaveSettings
from rince.encoders.encoder import Encoder
from rince.errors import DataError, WriteError
from rince.files import check_space
from rince.train.checkpoint import (
    bytes_of,
    check_facts,
    check_precision,
    check_remembered,
    check_tensors,
    load_checkpoint,
    save_checkpoint,
)
from rince.train.record import BEST, CHECKPOINT, KEPT, Metrics, kept_steps
from rince.train.runtime import Runtime

STATE = {"encoder", "groups", "steps_per_epoch", "optimizer", "precision", "step", "metrics_position", "validation"}


@dataclass
class State:
    """All that changes while a run goes on, and so all that a checkpoint holds."""

    encoder: nn.Module  # wrapped for precision and processes; `raw` is the module itself
    raw: Encoder
    modules: dict[str, nn.Module]  # what the method remembers, such as twin and bank
    optimizer: Any
    shape: tuple[int, ...]  # of a sample; with `groups`, what evaluation needs to build the same encoder
    groups: list[int]
    steps_per_epoch: int
    network: str  # identity of a frozen network, whose features the encoder takes
    recipe: str  # that all of it comes from, as text
    step: int = 0
    validation: list[float] = field(default_factory=list)  # loss of the samples held out, after every epoch
    best: dict[str, Any] = field(default_factory=dict)  # step and score of the best checkpoint so far, if any is judged

    def content(self, position: int, runtime: Runtime) -> dict[str, Any]:
        """What a checkpoint holds; `position` is how much of the metrics file belongs to it."""
        return {
            "encoder": self.raw.state_dict(),
            **{name: module.state_dict() for name, module in self.modules.items()},
            "shape": list(self.shape),
            "features": self.raw.feature_dim,
            "groups": self.groups,
            "network": self.network,
            "recipe": self.recipe,
            "steps_per_epoch": self.steps_per_epoch,
            "optimizer": self.optimizer.state_dict(),
            "precision": runtime.precision_state(),
            "step": self.step,
            "metrics_position": position,
            "validation": self.validation,
            "best": self.best,
        }

    def restore(self, path: Path, runtime: Runtime, stop: int) -> int:
        """Takes over a checkpoint of a run with so many steps; returns how much of the metrics file belongs to it."""
        saved = load_checkpoint(path, STATE | self.modules.keys())
        if saved["step"] > stop:
            raise DataError(f"{path} is of step {saved['step']}, and its run has {stop}; was the recipe changed?")
        facts = {
            "steps_per_epoch": self.steps_per_epoch,
            "shape": list(self.shape),
            "groups": list(self.groups),
            "features": self.raw.feature_dim,
        }
        check_facts(saved, facts, self.modules.keys(), path)
        for name, module in {"encoder": self.raw, **self.modules}.items():
            check_tensors(saved[name], module.state_dict(), name, path)
        check_precision(saved["precision"], runtime.precision_state(), path)
        check_remembered(self.optimizer, saved, path)
        try:
            self.raw.load_state_dict(saved["encoder"])
            for name, module in self.modules.items():
                module.load_state_dict(saved[name])
            self.optimizer.load_state_dict(saved["optimizer"])
            runtime.load_precision_state(saved["precision"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise DataError(f"{path} does not fit the recipe of its run: {reason}; was the recipe changed?") from None
        self.step = saved["step"]
        self.validation = list(saved["validation"])
        self.best = dict(saved.get("best", {}))
        return int(saved["metrics_position"])


class Saves:
    """Saves a run as it goes. What cannot be written is told and tried again at the next save; at the last, an error.

    Args:
        state: to save.
        folder: of the run.
        metrics: whose lines belong to a checkpoint, and are on the disk before it is.
        runtime: what it runs on.
        warn: is told what could not be written.
        settings: when to save.
        stop: how many steps the run has.
    """

    def __init__(
        self,
        state: State,
        folder: Path,
        metrics: Metrics,
        runtime: Runtime,
        warn: Callable[[str], None],
        settings: SaveSettings,
        stop: int,
    ) -> None:
        self.state, self.folder, self.metrics, self.runtime, self.warn = state, folder, metrics, runtime, warn
        self.step = state.step if (folder / CHECKPOINT).exists() else None  # of the last one that was written
        self._settings, self._stop, self._saved_at = settings, stop, time.monotonic()
        self._keeps = kept_steps(settings.keep, stop)
        self._best: dict[str, Any] | None = None  # one that could not be written yet
        if runtime.is_main and self.step is None:
            self._check_space()

    def _check_space(self) -> None:
        """Refuses to train what there is no room to save: the first checkpoint, and the next one beside it."""
        state = self.state
        content = state.content(0, self.runtime)
        needed = bytes_of(content)
        if not content["optimizer"]["state"]:  # it will remember a number or two of every weight
            trained = [each for group in state.optimizer.param_groups for each in group["params"]]
            needed += bytes_of(trained) * (1 if "momentum" in state.optimizer.param_groups[0] else 2)
        kept = f", and {len(self._keeps)} that are kept" if self._keeps else ""
        what = f"to save this run as it goes (a checkpoint, and the next beside it{kept})"
        check_space(self.folder, (2 + len(self._keeps)) * needed, what)

    def due(self, *, leaving: bool) -> bool:
        """Whether to save after this step."""
        return self.state.step in self._keeps or self._last_is_due(leaving=leaving)

    def _last_is_due(self, *, leaving: bool) -> bool:
        step, minutes = self.state.step, (time.monotonic() - self._saved_at) / 60
        by_the_clock = minutes >= self._settings.every_minutes
        return leaving or step == self._stop or step % self._settings.every_steps == 0 or by_the_clock

    def now(self, *, leaving: bool) -> None:
        """Saves this step: as one to be kept, as the last one, or both."""
        if self.state.step in self._keeps:
            self._keep()
        if self._last_is_due(leaving=leaving):
            self.last(final=leaving or self.state.step == self._stop)
            self._saved_at = time.monotonic()

    def _keep(self) -> None:
        """Keeps this step for good, beside the last one; a run goes on without it."""
        step = self.state.step
        try:
            save_checkpoint(self.folder / KEPT.format(step), self.state.content(self.metrics.position, self.runtime))
        except WriteError as error:
            self.warn(f"step {step}: {error}; it is not kept, and the run goes on")

    def best(self) -> None:
        """Keeps this step as the best so far."""
        content = self.state.content(self.metrics.position, self.runtime)
        try:
            save_checkpoint(self.folder / BEST, content)
            self._best = None
        except WriteError as error:
            self._best = copy.deepcopy(content)
            self.warn(f"step {self.state.step}: {error}; the next save tries again")

    def last(self, *, final: bool) -> None:
        """Keeps this step as the one to go on from; `final` if there will be no other try."""
        step = self.state.step
        try:
            if self._best is not None:  # what the last checkpoint says of it has to be true
                save_checkpoint(self.folder / BEST, self._best)
                self._best = None
            self.metrics.flush()
            save_checkpoint(self.folder / CHECKPOINT, self.state.content(self.metrics.position, self.runtime))
            self.step = step
        except WriteError as error:
            if not final:
                self.warn(f"step {step}: {error}; {self.kept}, and the next save tries again")
                return
            raise WriteError(
                f"step {step} could not be saved: {error}; {self.kept}. Mend this, and go on from there with: rince "
                f"train --resume {self.folder}"
            ) from None

    @property
    def kept(self) -> str:
        """What is saved, in a few words."""
        return "nothing is saved yet" if self.step is None else f"step {self.step} is saved"
