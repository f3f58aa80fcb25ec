"""The training loop, top to bottom: data in, gradients from the method, weights, checkpoints, log.

The paper's method, the order of events in one step, is `MomentumContrast.step` in `rince.methods.contrast`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rince.config import Recipe
from rince.errors import ConfigError, DataError
from rince.train.checkpoint import load_checkpoint, save_checkpoint
from rince.sources.feed import Feed, Step
from rince.methods.method import Method, build_method
from rince.train.progress import Progress
from rince.train.record import CHECKPOINT, METRICS, Metrics, check_data, create_run, locked
from rince.train.runtime import Runtime, check_logger, is_first_process, make_logger
from rince.train.schedules import learning_rates, plateau_factor
from rince.train.setup import Parts, build_parts, build_seeded_encoder, load_backbone, memory_format, total_steps
from rince.train.watch import Watch

STATE = {"encoder", "groups", "steps_per_epoch", "optimizer", "precision", "step", "metrics_position", "validation"}


@dataclass
class State:
    """All that changes while a run goes on, and so all that a checkpoint holds."""

    encoder: nn.Module  # wrapped for precision and processes; `raw` is the module itself
    raw: nn.Module
    modules: dict[str, nn.Module]  # what the method remembers, such as twin and bank
    optimizer: Any
    groups: list[int]  # how many classes, superclasses, …: evaluation builds the same heads
    steps_per_epoch: int
    step: int = 0
    validation: list[float] = field(default_factory=list)  # loss of the samples held out, after every epoch


def train(recipe: Recipe, folder: Path, runtime: Runtime, *, resume: bool) -> bool:
    """Runs a recipe in its folder, from the start or from its last checkpoint. False if it was interrupted."""
    parts = build_parts(recipe)
    check_logger(recipe.log.logger)
    if recipe.in_batch and runtime.processes > 1:
        raise ConfigError(f"method.kind={recipe.method.kind} compares all samples of a batch; use one device")
    if is_first_process() and not resume:
        create_run(folder, recipe)  # only now that nothing more can be wrong with the recipe and its data
    runtime.launch()
    with locked(folder, enabled=runtime.is_main):
        if runtime.is_main:
            data = {"source": recipe.data.source, "train": parts.images.fingerprint, "ranks": parts.fingerprint}
            check_data(folder, data)
        runtime.barrier()
        return _train(recipe, parts, folder, runtime, resume=resume)


def _train(recipe: Recipe, parts: Parts, folder: Path, runtime: Runtime, *, resume: bool) -> bool:
    goes_on = resume and (folder / CHECKPOINT).exists()
    state, method = _start(recipe, parts, runtime, fresh=not goes_on)
    position = _restore(state, folder / CHECKPOINT, runtime) if goes_on else 0
    rates = learning_rates(recipe, parts.order.steps_per_epoch)
    stop = total_steps(recipe, parts.order.steps_per_epoch)
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
        numbers=method.views,
    )
    metrics = Metrics(folder / METRICS, position, enabled=runtime.is_main)
    logger = make_logger(recipe.log.logger, folder) if runtime.is_main else None
    progress = Progress(recipe, logger, parts.order.steps_per_epoch, stop, enabled=runtime.is_main)
    watch, saved_at = Watch(method.rank_count, parts.order.steps_per_epoch), time.monotonic()
    with _interruptions() as interrupted, metrics, progress:
        for step in feed.steps(state.step, stop):
            rate = rates[step.step] * plateau_factor(recipe.schedule, state.validation)
            for group in state.optimizer.param_groups:
                group["lr"] = rate
            validates = recipe.schedule.kind == "plateau" and (step.step + 1) % state.steps_per_epoch == 0
            values, logged = _make_gradients(
                method, state, step, logged=validates or step.step % recipe.log.every_steps == 0, folder=folder
            )
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.step += 1
            line = {"step": step.step, "epoch": step.epoch, "lr": rate, **values}
            if validates:
                line["validation/loss"] = method.validate(state.encoder, feed.held_out_steps())
                state.validation += [line["validation/loss"]] if method.comparable else []
            if logged:
                metrics.write(line)
            progress.advance(line, logged=logged)
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


def seconds_per_step(recipe: Recipe, *, limit: float = 5.0) -> float:
    """How long a step takes on this machine, from as many as fit into `limit` seconds, after a first one."""
    parts, runtime = build_parts(recipe), Runtime(1, recipe.train.precision)
    state, method = _start(recipe, parts, runtime, fresh=False)
    options = {"seed": recipe.seed, "device": runtime.device, "workers": recipe.data.workers, "numbers": method.views}
    feed = Feed(parts.images, parts.labels, parts.views, parts.order, **options)  # type: ignore[arg-type]
    began = now = 0.0
    for number, step in enumerate(feed.steps(0, parts.order.steps_per_epoch)):
        method.step(state.encoder, step, logged=False)
        state.optimizer.step()
        state.optimizer.zero_grad()
        now = time.monotonic()
        if number == 0:
            began = now
        elif now - began > limit:
            return (now - began) / number
    return (now - began) / max(1, parts.order.steps_per_epoch - 1)


def _make_gradients(
    method: Method, state: State, step: Step, *, logged: bool, folder: Path
) -> tuple[dict[str, Any], bool]:
    """What is known of a step, as plain values, and whether it is worth a line in the log."""
    try:
        outcome = method.step(state.encoder, step, logged=logged)
    except DataError as error:
        raise DataError(
            f"{error}. The last checkpoint, if there was one, is kept in {folder}; try a lower optimizer.lr, or a "
            "longer schedule.warmup_epochs"
        ) from None
    return outcome.values | (outcome.summary or {}), outcome.summary is not None


def _start(recipe: Recipe, parts: Parts, runtime: Runtime, *, fresh: bool) -> tuple[State, Method]:
    groups = [len(level.unique()) for level in parts.groups]
    raw = build_seeded_encoder(recipe, parts.channels, groups)
    if recipe.model.start_from and fresh:
        load_backbone(raw, Path(recipe.model.start_from))
    if recipe.model.channels_last:
        raw.to(memory_format=memory_format(recipe))  # type: ignore[call-overload]
    method = build_method(recipe, parts, raw, runtime)
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
    encoder, wrapped = runtime.wrap(raw, optimizer)
    return State(encoder, raw, method.modules(), wrapped, groups, parts.order.steps_per_epoch), method


def _save(state: State, path: Path, position: int, runtime: Runtime) -> None:
    save_checkpoint(
        path,
        {
            "encoder": state.raw.state_dict(),
            **{name: module.state_dict() for name, module in state.modules.items()},
            "groups": state.groups,
            "steps_per_epoch": state.steps_per_epoch,
            "optimizer": state.optimizer.state_dict(),
            "precision": runtime.precision_state(),
            "step": state.step,
            "metrics_position": position,
            "validation": state.validation,
        },
    )


def _restore(state: State, path: Path, runtime: Runtime) -> int:
    """Loads a checkpoint into the state; returns how much of the metrics file belongs to it."""
    saved = load_checkpoint(path, STATE | state.modules.keys())
    try:
        state.raw.load_state_dict(saved["encoder"])
        for name, module in state.modules.items():
            module.load_state_dict(saved[name])
        state.optimizer.load_state_dict(saved["optimizer"])
        runtime.load_precision_state(saved["precision"])
    except (RuntimeError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(f"{path} does not fit the recipe of its run: {reason}; was the recipe changed?") from None
    state.step = int(saved["step"])
    state.validation = list(saved["validation"])
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
