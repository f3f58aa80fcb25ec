"""What a person sees of long work on the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

Tell = Callable[[str, int, int], None]
"""Is called with (what is going on, done, of how many)."""
TellDone = Callable[[int, int], None]
"""Is called with (done, of how many)."""
Say = Callable[[str], None]
"""Is told what a person should know."""


_shown: list[Progress] = []  # the bar that is on the terminal now: there can be one


def nobody(*_: object) -> None:
    """Is told how far something is, and does not listen."""


def mention(text: str) -> None:
    """Tells a person what they should know and nobody asked for, above a bar if there is one."""
    with suppress(OSError):  # a terminal that was closed
        if _shown:
            _shown[-1].console.print(text, soft_wrap=True, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)


def is_first_process() -> bool:
    """Whether this is the process a person started, or the first of those that torchrun or SLURM started."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", os.environ.get("LOCAL_RANK", "0")))) == 0


@contextmanager
def shown_progress(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal, nothing elsewhere; gives a function to call with (what, done, of how many).

    Work within other work that is shown has a line below it.
    """
    if _shown:
        bar = _shown[-1]
        line = bar.add_task("", total=None)
        try:
            yield lambda what, done, of: bar.update(line, description=f"{title}: {what}", completed=done, total=of)
        finally:
            bar.remove_task(line)
        return
    # Here, that `rince --help` need not wait for it.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (
        TextColumn(title, markup=False),
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def tell(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of)

        _shown.append(bar)
        try:
            yield tell
        finally:
            _shown.pop()


def counted(number: int, thing: str) -> str:
    """A number of things, in the plural where there are several.

    >>> counted(1, "step"), counted(1200, "text")
    ('1 step', '1,200 texts')
    """
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """A time as a person says it.

    >>> duration(9), duration(150), duration(7300)
    ('9 s', '2 min 30 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
