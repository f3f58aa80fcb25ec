"""Several processes that each embed a share of the samples; the first goes on with what all of them have made.

What is shared lies in files, in parts that do not depend on how many processes there are: neither do results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rince.errors import LostProcessError
from rince.evaluation.trained import TrainedRun
from rince.inputs import whole_number

Each = TypeVar("Each")


@dataclass(frozen=True)
class Processes:
    """Those that share the work.

    Attributes:
        number: of this process, from 0.
        count: how many there are.
        meet: waits for all of them.
    """

    number: int = 0
    count: int = 1
    meet: Callable[[], None] = lambda: None

    @property
    def is_first(self) -> bool:
        """Whether this process talks, and goes on alone when the shares are made."""
        return self.number == 0

    def share(self, parts: Sequence[Each]) -> Sequence[Each]:
        """What this process makes of all parts."""
        return parts[self.number :: self.count]


ALONE = Processes()


def start_processes(run: TrainedRun, devices: int, accelerator: str) -> Processes:
    """Starts the other processes, each of which runs the same command; under torchrun or SLURM, finds them.

    To be called when nothing can be wrong any more with what a person said: it would be told by each of them.

    Args:
        run: moved to the device of this process.
        devices: how many, each with a device of its own; CPUs share the cores.
        accelerator: `"auto"`, `"cpu"`, `"cuda"` or `"mps"`.
    """
    if whole_number(devices, "devices") == 1 and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ALONE
    from rince.train.runtime import Runtime  # noqa: PLC0415 - brings Fabric

    runtime = Runtime(devices, accelerator=accelerator)
    runtime.launch()
    run.encoder.to(runtime.device)

    def meet() -> None:
        try:
            runtime.barrier()
        except RuntimeError:
            raise LostProcessError(
                f"process {runtime.process + 1} of {runtime.processes} has lost another one, which was killed or has "
                "failed; give the same command again, it goes on with the parts that are there"
            ) from None

    return Processes(runtime.process, runtime.processes, meet)
