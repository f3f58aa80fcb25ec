"""What the benchmarks share: contenders timed in turn within one run, and the machine they ran on."""

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

Contender = Callable[[], object]


def ratios(
    contenders: dict[str, Contender], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Median over rounds of the ratio to the first contender within the round."""
    for run in contenders.values():
        for _ in range(3):
            run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            run()  # the one before has left its own data in the caches
            start = clock()
            run()
            times[name].append(clock() - start)
    yardstick = next(iter(times.values()))
    return {name: statistics.median(t / y for t, y in zip(ts, yardstick, strict=True)) for name, ts in times.items()}


def processor() -> str:
    """How many cores of what."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} × {names[0]}" if names else platform.processor()
