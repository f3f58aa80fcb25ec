"""What a run runs on: devices, precision, processes. The only file that imports Lightning Fabric.

One process or many, the loop is the same: a batch is split over the processes in order, keys are gathered in that
order, and the bank, which every process holds whole, stays identical on all of them.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric import Fabric, is_wrapped
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn

from rince.devices import multiplies_bfloat16
from rince.errors import ConfigError, LostProcessError
from rince.terminal import counted, is_first_process, mention
from rince.train.csv_log import CsvLog

BatchNorm = Literal["per-process", "sync", "shuffled", "per-chunk"]


class Runtime:
    """A thin hold on Fabric.

    Args:
        devices: how many processes, each with a device of its own; under torchrun or SLURM, theirs.
        precision: of the forward pass.
        accelerator: `"auto"`, `"cpu"`, `"cuda"`, …
        batch_norm: what batch normalisation does with several processes.
    """

    def __init__(
        self,
        devices: int = 1,
        precision: Any = "32-true",
        accelerator: str = "auto",
        batch_norm: BatchNorm = "per-process",
    ) -> None:
        several = devices > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1
        # Buffers are left alone: "per-process" statistics would be overwritten by those of the first process.
        strategy = DDPStrategy(broadcast_buffers=False) if several else "auto"
        self.batch_norm = batch_norm
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", os.environ.get("SLURM_NNODES", "1")))
        try:
            self.fabric = Fabric(
                accelerator=accelerator, devices=devices, num_nodes=nodes, precision=precision, strategy=strategy
            )
        except (RuntimeError, ValueError) as error:  # no such device, or not so many
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"cannot run on {devices} device(s) of {accelerator!r}: {reason}") from None
        if batch_norm == "sync" and several and self.fabric.device.type == "cpu":
            raise ConfigError(
                "train.batch_norm=sync needs GPUs; on CPUs use per-process, shuffled, or model.norm=group"
            )

        if self.device.type == "cpu" and is_first_process():
            _say_if_crowded(int(os.environ.get("LOCAL_WORLD_SIZE", devices)))
            if precision == "bf16-mixed" and not multiplies_bfloat16():
                mention("this processor has no bfloat16: train.precision=32-true is faster, and another run")

    def launch(self) -> None:
        """Starts the other processes, if there are any."""
        self.fabric.launch()

    @property
    def device(self) -> torch.device:
        """Of this process."""
        return self.fabric.device

    @property
    def process(self) -> int:
        """Number of this process, from 0."""
        return self.fabric.global_rank

    @property
    def processes(self) -> int:
        """How many there are."""
        return self.fabric.world_size

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks."""
        return self.fabric.is_global_zero

    def wrap(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """The module and its optimizer, ready for precision and processes."""
        if self.batch_norm == "sync" and self.processes > 1:
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        wrapped, wrapped_optimizer = self.fabric.setup(module, optimizer)
        return wrapped, wrapped_optimizer

    def autocast(self) -> Any:
        """The precision of the forward pass, for modules that are not wrapped."""
        return self.fabric.autocast()

    def backward(self, loss: Tensor) -> None:
        """Gradients, averaged over processes."""
        self.fabric.backward(loss)

    @contextmanager
    def no_sync(self, module: nn.Module, enabled: bool) -> Iterator[None]:
        """Leaves gradients unsynchronised, for all but the last part of an accumulated batch."""
        if is_wrapped(module):
            with self.fabric.no_backward_sync(module, enabled=enabled):  # type: ignore[arg-type]
                yield
        else:
            yield

    def gather(self, tensor: Tensor, sizes: list[int]) -> Tensor:
        """Parts of all processes, in their order, as one tensor. `sizes`: rows of every part; they may differ."""
        if self.processes == 1:
            return tensor
        widest = max(sizes)
        padded = torch.cat([tensor, tensor.new_zeros(widest - len(tensor), *tensor.shape[1:])])
        parts = self.fabric.all_gather(padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over processes."""
        if self.processes == 1:
            return tensor
        return self.fabric.all_reduce(tensor, reduce_op="sum")  # type: ignore[return-value]

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """Sums over processes of plain numbers."""
        if self.processes == 1:
            return list(numbers)
        found: list[float] = self.total(torch.tensor(numbers, dtype=torch.float64, device=self.device)).tolist()
        return found

    def any(self, flag: bool) -> bool:
        """Whether any process says so; all get the same answer."""
        if self.processes == 1:
            return flag  # nothing to ask a device for
        return bool(self.total(torch.tensor(float(flag), device=self.device)) > 0)

    def precision_state(self) -> dict[str, Any]:
        """State of the gradient scaler, where the precision has one."""
        return dict(self.fabric.strategy.precision.state_dict())

    def load_precision_state(self, state: dict[str, Any]) -> None:
        """The inverse of `precision_state`."""
        self.fabric.strategy.precision.load_state_dict(state)

    def barrier(self) -> None:
        """Waits for all processes."""
        self.fabric.barrier()

    def end(self) -> None:
        """Waits for all processes; what they have in common ends before Python does, in each of them.

        A thread of gloo that lets go of a gradient's work asks for Python's lock, and aborts where Python is ending.
        """
        self.barrier()
        if self.processes > 1:
            atexit.register(_leave)

    @contextmanager
    def together(self, folder: Path) -> Iterator[None]:
        """Where a call that needs all processes fails because one is gone, says so; the run of `folder` can go on."""
        try:
            yield
        except RuntimeError as error:
            if self.processes == 1 or not (isinstance(error, torch.distributed.DistError) or "gloo" in str(error)):
                raise
            raise LostProcessError(
                f"process {self.process + 1} of {self.processes} has lost another one, which was killed or has failed; "
                f"what was saved last is whole, go on with: rince train --resume {folder}"
            ) from None


def _leave() -> None:
    if torch.distributed.is_initialized():
        gc.collect()  # wrapped modules first
        torch.distributed.destroy_process_group()


def check_logger(kind: str) -> None:
    """Refuses a logger that is not installed."""
    if kind == "wandb" and importlib.util.find_spec("wandb") is None:
        raise ConfigError("log.logger=wandb needs the package wandb: pip install wandb")


def make_logger(kind: Literal["none", "tensorboard", "csv", "wandb"], folder: Path) -> Any:
    """A logger that writes into the run folder, or None."""
    if kind == "tensorboard":
        return TensorBoardLogger(folder, name="tensorboard", version="")
    if kind == "csv":
        return CsvLog(folder)
    if kind == "wandb":
        return _Wandb(folder)
    return None


class _Wandb:
    """Weights & Biases, which has no logger in Fabric."""

    def __init__(self, folder: Path) -> None:
        import wandb  # type: ignore[import-not-found] # noqa: PLC0415 - not a dependency of ours

        self._run = wandb.init(project="rince", name=folder.name, dir=str(folder))

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._run.log(metrics, step=step)

    def finalize(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "success" else 1)


def _say_if_crowded(processes: int) -> None:
    """Processes that have no core of their own wait for each other."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes > cores:
        told = f"{processes} processes on {counted(cores, 'core')} will wait for each other"
        mention(f"{told}; --devices {cores} is faster")
