"""What a person sees: a progress bar on a terminal, a line per epoch elsewhere; and what a logger gets."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from rince.config import Recipe


class Logger(Protocol):
    """What the loggers of Fabric, and the one for W&B, have in common."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Takes the numbers of a step."""

    def finalize(self, status: str) -> None:
        """Is told that the run is over."""


class TwoLines(Bar):
    """A bar, and below it a line of its own for the numbers, so that 80 columns hold the loss of every rank."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar, then the numbers."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["values"], no_wrap=True, overflow="ellipsis")


class Progress:
    """Shows a run as it goes.

    Args:
        recipe: of the run.
        logger: gets what is logged, too.
        steps_per_epoch: how many steps make an epoch.
        stop: the step after the last.
        enabled: false for all processes but the first.
    """

    def __init__(
        self, recipe: Recipe, logger: Logger | None, steps_per_epoch: int, stop: int, *, enabled: bool
    ) -> None:
        self.enabled, self.steps_per_epoch, self.stop = enabled, steps_per_epoch, stop
        self.console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        self._bar = TwoLines(*columns, console=self.console, disable=not self._on_terminal)
        self._task = self._bar.add_task(recipe.name, total=stop, values="")
        self._started, self._first, self._shown = time.monotonic(), None, {}  # type: ignore[var-annotated]
        self._logger = logger

    @property
    def _on_terminal(self) -> bool:
        return self.enabled and sys.stderr.isatty() and "ipykernel" not in sys.modules

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # here and below: a terminal that was closed must not stop what has to be saved
            self._bar.stop()
        if self._logger:
            self._logger.finalize("success" if error is None else "failed")

    def advance(self, line: dict[str, Any], *, logged: bool) -> None:
        """Takes in what is known of a step; a logger gets it too if it is `logged`."""
        if not self.enabled:
            return
        if self._first is None:
            self._first = line["step"]
        self._shown |= line
        if "loss" not in self._shown:
            return  # off the CPU nobody has looked yet
        done = line["step"] + 1
        rate = (done - self._first) / max(time.monotonic() - self._started, 1e-9)
        if self._on_terminal:
            with suppress(OSError):
                self._bar.update(self._task, completed=done, values=self._text(rate))
        elif done % self.steps_per_epoch == 0 or done == self.stop:
            left = (self.stop - done) / rate
            self._print(f"step {done}/{self.stop}  {self._text(rate)}  {left:.0f} s left")
        if self._logger and logged:
            numbers = {name: float(value) for name, value in line.items() if name not in ("step", "epoch")}
            self._logger.log_metrics(numbers, line["step"])

    def say(self, text: str) -> None:
        """A line above the bar, if there is anything to say."""
        if self.enabled and text:
            self._print(text)

    def _print(self, text: str) -> None:
        # A notebook shows what goes to stderr as a failure, and a bar only with widgets: it gets lines.
        with suppress(OSError):
            print(text, file=sys.stdout if "ipykernel" in sys.modules else sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        """A warning, above the bar."""
        if self.enabled:
            with suppress(OSError):
                self.console.print(f"[yellow]warning:[/yellow] {text}", soft_wrap=True, highlight=False)

    def _text(self, rate: float) -> str:
        shown = self._shown
        epochs = math.ceil(self.stop / self.steps_per_epoch)
        parts = [f"epoch {shown['epoch'] + 1}/{epochs}", f"loss {shown['loss']:.3f}"]
        ranks = [name.partition("/")[2] for name in shown if name.startswith("term/")]
        parts += [f"ℓ{'' if rank.isdigit() else ' '}{rank} {shown[f'term/{rank}']:.3f}" for rank in ranks]
        if "accuracy" in shown:
            parts.append(f"accuracy {100 * shown['accuracy']:.0f}%")
        parts.append(f"{rate:.2f} steps/s")
        of_ranks = [name for name in shown if name.partition("/")[2] in (*map(str, range(1, 128)), "negative")]
        similarities = [f"{shown[name]:+.2f}" for name in of_ranks if name.startswith("similarity/")]
        violated = [f"{100 * shown[name]:.0f}%" for name in of_ranks if name.startswith("violated/")]
        if similarities:
            parts += ["similarity " + " ".join(similarities), "violated " + " ".join(violated)]
        return "  ".join(parts)
