"""The training loop, top to bottom. The method is the order of events in `_one_step`."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rince.bank import MemoryBank
from rince.config import Recipe
from rince.data.order import permutation
from rince.errors import DataError
from rince.loss import LossOutput, RankedInfoNCE
from rince.moco import contrast, contrast_ranks
from rince.momentum import MomentumTwin
from rince.ranks import RankSource
from rince.train.checkpoint import load_checkpoint, save_checkpoint
from rince.train.feed import Feed, Step
from rince.train.progress import Progress
from rince.train.record import CHECKPOINT, METRICS, Metrics, check_data, create_run
from rince.train.runtime import Runtime, check_logger, is_first_process, make_logger
from rince.train.schedules import learning_rates
from rince.train.setup import build_parts, build_seeded_encoder, total_steps
from rince.train.watch import Watch, similarity_summary

STATE = {"encoder", "twin", "bank", "optimizer", "precision", "step", "metrics_position"}


@dataclass
class State:
    """All that changes while a run goes on, and so all that a checkpoint holds."""

    encoder: nn.Module  # wrapped for precision and processes; `raw` is the module itself
    raw: nn.Module
    twin: MomentumTwin
    bank: MemoryBank
    optimizer: Any
    step: int = 0


def train(recipe: Recipe, folder: Path, runtime: Runtime, *, resume: bool) -> bool:
    """Runs a recipe in its folder, from the start or from its last checkpoint. False if it was interrupted."""
    parts = build_parts(recipe)
    check_logger(recipe.log.logger)
    if is_first_process() and not resume:
        create_run(folder, recipe)  # only now that nothing more can be wrong with the recipe and its data
    runtime.launch()
    if runtime.is_main:
        check_data(folder, {"source": recipe.data.source, "train": parts.images.fingerprint})
    runtime.barrier()
    state = _start(recipe, parts.channels, runtime)
    position = _restore(state, folder / CHECKPOINT, runtime) if resume and (folder / CHECKPOINT).exists() else 0
    rates = learning_rates(recipe, parts.order.steps_per_epoch)
    stop = total_steps(recipe, len(parts.images))
    feed = Feed(
        parts.images,
        parts.labels,
        parts.views,
        parts.order,
        seed=recipe.seed,
        device=runtime.device,
        process=runtime.process,
        processes=runtime.processes,
        workers=recipe.data.workers,
    )
    metrics = Metrics(folder / METRICS, position, enabled=runtime.is_main)
    logger = make_logger(recipe.log.logger, folder) if runtime.is_main else None
    progress = Progress(recipe, logger, parts.order.steps_per_epoch, stop, enabled=runtime.is_main)
    watch, saved_at = Watch(recipe), time.monotonic()
    with _interruptions() as interrupted, metrics, progress:
        for step in feed.steps(state.step, stop):
            for group in state.optimizer.param_groups:
                group["lr"] = rates[step.step]
            output, summary = _one_step(recipe, state, step, parts.rank_source, parts.loss, runtime, folder)
            state.step += 1
            line = _line(step, parts.order.steps_per_epoch, rates[step.step], output, summary)
            if summary:
                metrics.write(line)
            progress.advance(line)
            for warning in watch.look(line):
                progress.warn(warning)
            minutes = (time.monotonic() - saved_at) / 60
            leaving = runtime.any(bool(interrupted))
            due = state.step % recipe.save.every_steps == 0 or minutes >= recipe.save.every_minutes
            if runtime.is_main and (due or leaving or state.step == stop):
                _save(state, folder / CHECKPOINT, metrics.position, runtime)
                saved_at = time.monotonic()
            if leaving:
                break
    runtime.barrier()
    return state.step == stop


def _one_step(
    recipe: Recipe,
    state: State,
    step: Step,
    rank_source: RankSource,
    loss: RankedInfoNCE,
    runtime: Runtime,
    folder: Path,
) -> tuple[LossOutput, dict[str, Any] | None]:
    """One step of the paper: contrast with the bank as it is, push the keys, move the twin, update the weights."""
    logged = step.step % recipe.log.every_steps == 0
    counted = loss.count(contrast_ranks(step.labels, state.bank, rank_source))
    # DDP averages gradients over processes; with this divisor the average is the gradient of the whole batch's loss.
    divisor = runtime.total(counted.double()) / runtime.processes
    twin = _ShuffledTwin(state.twin, runtime, step) if recipe.train.batch_norm == "shuffled" else state.twin
    outputs, keys, summary = [], [], None
    parts = torch.arange(len(step.labels)).tensor_split(recipe.train.accumulate)
    for number, part in enumerate(parts, start=1):
        with runtime.no_sync(state.encoder, enabled=number < len(parts)):
            views = step.query_view[part], [step.key_view[part]]
            with runtime.autocast():
                now = contrast(state.encoder, twin, state.bank, rank_source, *views, step.labels[part])
            try:
                output = loss.from_embeddings(now.queries, now.candidates, now.ranks, divisor=divisor.float())
            except DataError as error:
                raise DataError(
                    f"step {step.step}: {error}. The last checkpoint, if there was one, is kept in {folder}; try a "
                    "lower optimizer.lr, or a longer schedule.warmup_epochs"
                ) from None
            runtime.backward(output.total)
        outputs.append(output)
        keys.append(now.keys[0])
        if logged and summary is None:
            summary = similarity_summary(now.similarities.detach(), now.ranks, len(loss.terms))
    state.bank.push(runtime.gather(torch.cat(keys).float(), step.sizes), runtime.gather(step.labels, step.sizes))
    state.twin.update(state.raw)
    state.optimizer.step()
    state.optimizer.zero_grad()
    return _combine(outputs, runtime), summary


class _ShuffledTwin:
    """Keys made in another split of the batch, so that batch statistics do not tell a query which key is its own."""

    def __init__(self, twin: MomentumTwin, runtime: Runtime, step: Step) -> None:
        self.twin, self.runtime, self.step = twin, runtime, step

    def __call__(self, view: Tensor) -> Tensor:
        if self.runtime.processes == 1:
            keys: Tensor = self.twin(view)
            return keys
        sizes, process = self.step.sizes, self.runtime.process
        whole = self.runtime.gather(view, sizes)
        shuffle = permutation(len(whole), self.step.step, 0).to(whole.device)
        start = sum(sizes[:process])
        own = slice(start, start + sizes[process])
        keys = self.twin(whole[shuffle][own])
        back = torch.empty_like(shuffle)
        back[shuffle] = torch.arange(len(whole), device=whole.device)
        return self.runtime.gather(keys, sizes)[back][own]


def _combine(outputs: list[LossOutput], runtime: Runtime) -> LossOutput:
    """Of all parts and processes."""
    total = runtime.total(torch.stack([output.total.detach() for output in outputs]).sum()) / runtime.processes
    per_rank = runtime.total(torch.stack([output.per_rank for output in outputs]).sum(dim=0)) / runtime.processes
    used = runtime.total(torch.stack([output.queries_used for output in outputs]).sum(dim=0))
    return LossOutput(total, per_rank, used)


def _line(
    step: Step, steps_per_epoch: int, rate: float, output: LossOutput, summary: dict[str, Any] | None
) -> dict[str, Any]:
    """What is known of a step, as plain values."""
    values: dict[str, Any] = {"step": step.step, "epoch": step.step // steps_per_epoch, "lr": rate}
    values["loss"] = output.total.item()
    for rank, (value, used) in enumerate(
        zip(output.per_rank.tolist(), output.queries_used.tolist(), strict=True), start=1
    ):
        values[f"term/{rank}"] = value
        values[f"queries/{rank}"] = used
    return values | (summary or {})


def _start(recipe: Recipe, channels: int, runtime: Runtime) -> State:
    raw: nn.Module = build_seeded_encoder(recipe, channels)
    if recipe.model.channels_last:
        raw.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    twin = MomentumTwin(raw, recipe.twin.momentum, buffers=recipe.twin.buffers).to(runtime.device)
    bank = MemoryBank(recipe.bank.size, recipe.model.dim, start=recipe.bank.start, seed=recipe.seed).to(runtime.device)
    settings = recipe.optimizer
    optimizer: torch.optim.Optimizer
    if settings.kind == "sgd":
        optimizer = torch.optim.SGD(
            raw.parameters(), lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
    else:
        optimizer = torch.optim.Adam(raw.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    if recipe.model.compile:
        raw.compile()
        twin.module.compile()
    encoder, wrapped = runtime.wrap(raw, optimizer)
    return State(encoder, raw, twin, bank, wrapped)


def _save(state: State, path: Path, position: int, runtime: Runtime) -> None:
    save_checkpoint(
        path,
        {
            "encoder": state.raw.state_dict(),
            "twin": state.twin.state_dict(),
            "bank": state.bank.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "precision": runtime.precision_state(),
            "step": state.step,
            "metrics_position": position,
        },
    )


def _restore(state: State, path: Path, runtime: Runtime) -> int:
    """Loads a checkpoint into the state; returns how much of the metrics file belongs to it."""
    saved = load_checkpoint(path, STATE)
    try:
        state.raw.load_state_dict(saved["encoder"])
        state.twin.load_state_dict(saved["twin"])
        state.bank.load_state_dict(saved["bank"])
        state.optimizer.load_state_dict(saved["optimizer"])
        runtime.load_precision_state(saved["precision"])
    except (RuntimeError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(f"{path} does not fit the recipe of its run: {reason}; was the recipe changed?") from None
    state.step = int(saved["step"])
    return int(saved["metrics_position"])


@contextmanager
def _interruptions() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM, so that a run stops between two steps; a second one stops it at once."""
    seen: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

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
