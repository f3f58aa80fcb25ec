"""Signals that ask a run to stop: it ends its step, saves and leaves; a second one stops it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Ctrl-C; a polite kill; a terminal that was closed; what clusters send before they take a machine away.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """Collects signals, so that a run stops between two steps; the second raises KeyboardInterrupt.

    Signals reach the main thread alone: a run in another one is stopped by nobody but its own end.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]  # Windows has two of them
    before = {number: signal.getsignal(number) for number in numbers}
    if before.get(getattr(signal, "SIGHUP", None)) == signal.SIG_IGN:  # started by nohup, to outlive its terminal
        del before[signal.SIGHUP]

    def note(number: int, _frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
