"""Many small pieces of work, side by side on the cores of the processor."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")


def for_each(work: Callable[[Item], None], items: Iterable[Item], device: torch.device) -> None:
    """Calls `work` with every item; on a processor with several cores, on as many threads, each using one core.

    Operations on pieces that fit into the cache are too small to be shared between cores: by themselves, two cores were
    no faster than one on a quiet machine, and many times slower on a busy one, where they wait for each other.
    """
    cores = torch.get_num_threads()
    if device.type != "cpu" or cores == 1:
        for item in items:
            work(item)
        return
    inference = torch.is_inference_mode_enabled()  # a property of the thread

    def within(item: Item) -> None:
        with torch.inference_mode(inference):
            work(item)

    for _ in _pool(os.getpid(), cores).map(within, items):
        pass


@cache  # threads do not survive a fork: a new process gets new ones
def _pool(_process: int, cores: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(cores, "one-core", torch.set_num_threads, (1,))
    started = threading.Barrier(cores)
    list(pool.map(lambda _: started.wait(), range(cores)))
    torch.set_num_threads(cores)  # a thread that sets its own number also sets that of threads to come
    return pool
