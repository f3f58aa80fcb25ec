"""The training loop, top to bottom: data in, gradients from the method, weights, checkpoints, log.

The paper's method, the order of events in one step, is `MomentumContrast.step` in `rince.methods.contrast`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rince.config import Recipe
from rince.devices import looking_is_free
from rince.draws import NETWORK_DROPOUT, seed_of
from rince.encoders.adapter import Standardised
from rince.encoders.encoder import Encoder
from rince.errors import ConfigError, DataError
from rince.methods.method import Given, Method, Outcome
from rince.sources.feed import Feed, Step
from rince.terminal import is_first_process
from rince.train.checkpoint import check_network, load_checkpoint
from rince.train.plan import none_to_judge_on
from rince.train.progress import Progress
from rince.train.record import CHECKPOINT, METRICS, Metrics, check_data, check_recipe, locked, new_run
from rince.train.runtime import Runtime, check_logger, make_logger
from rince.train.schedules import learning_rates, plateau_factor
from rince.train.setup import (
    NOTHING,
    Brought,
    Parts,
    build_encoder,
    build_parts,
    check_brought,
    check_parts,
    lone_samples,
    rehearse,
    start_from,
    total_steps,
    without_rank,
)
from rince.train.signals import interruptions
from rince.train.state import STATE, Saves, State
from rince.train.validation import Judge, Validation
from rince.train.watch import Watch

MEASURED_STEPS = 6  # at least, the first included, which warms up
LONGEST_GAP, LINES = 10, 50  # of a log: steps between two lines, and lines of a short run


def train(
    recipe: Recipe,
    folder: Path,
    runtime: Runtime,
    *,
    resume: bool,
    brought: Brought = NOTHING,
    judge: Judge | None = None,
) -> bool:
    """Runs a recipe in its folder, from the start or from its last checkpoint. False if it was interrupted.

    Args:
        recipe: of the run.
        folder: of the run.
        runtime: what it runs on.
        resume: go on in a folder that is there.
        brought: what the user brings.
        judge: measures R@1 of the samples held out; None if nobody wants to know.
    """
    check_logger(recipe.log.logger)
    if runtime.processes > 1 and not recipe.method.spans_processes:
        raise ConfigError(f"method.kind={recipe.method.kind} compares all samples of a batch; use one device")
    check_brought(recipe, brought)
    with ExitStack() as held:
        if resume and is_first_process():  # before anything is read that another process might still change
            held.enter_context(locked(folder))
        goes_on = resume and (folder / CHECKPOINT).exists()
        if goes_on:  # told before anything is computed
            saved = load_checkpoint(folder / CHECKPOINT, STATE)
            check_recipe(folder, recipe, saved)
            check_network(saved, recipe.model, folder)
            del saved
        parts = build_parts(recipe, brought)
        encoder, told = _first_encoder(recipe, parts, brought, runtime, fresh=not goes_on)
        if (brought != NOTHING or recipe.model.identity) and not resume:  # a network that is not ours
            rehearse(recipe, parts, encoder)
        validation = Validation(recipe, parts, encoder, judge)
        untested = none_to_judge_on(recipe, brought) if is_first_process() and not resume else ""
        told = "\n".join(filter(None, [*parts.notes, untested, told, _unused_terms(recipe, parts)]))
        if is_first_process() and not resume:  # only now that nothing more can be wrong with the recipe and its data
            held.enter_context(new_run(folder, recipe))
        runtime.launch()
        held.enter_context(runtime.together(folder))
        if runtime.is_main:
            check_data(folder, parts.noted(recipe.data.source), [*parts.told, *recipe.model.notes], goes_on=goes_on)
        runtime.barrier()
        return _train(recipe, parts, validation, folder, runtime, goes_on=goes_on, told=told)


def _unused_terms(recipe: Recipe, parts: Parts) -> str:
    """Says which terms of the loss no rank has: a ranked recipe without ranks is another method."""
    unused = without_rank(recipe, parts)
    return unused and f"ranks: there are {parts.rank_count}; {unused} (data.taxonomy gives ranks)"


def _first_encoder(
    recipe: Recipe, parts: Parts, brought: Brought, runtime: Runtime, *, fresh: bool
) -> tuple[Encoder, str]:
    """The encoder before its first step, and what there is to say about its start."""
    example = parts.source.plain(torch.arange(1)) if brought.encoder is not None else None
    encoder = build_encoder(recipe, parts.source.shape, parts.group_counts, brought=brought.encoder, example=example)
    told = ""
    if recipe.model.start_from and fresh:
        told = start_from(encoder, Path(recipe.model.start_from))
    if fresh and isinstance(encoder.backbone, Standardised) and encoder.backbone.standardise:
        every = parts.trained.plain(torch.arange(len(parts.trained)))
        assert isinstance(every, Tensor)  # it takes vectors, or sequences of them
        encoder.backbone.start_on(every)
    check_parts(recipe, encoder)
    lone = lone_samples(recipe, parts.order, encoder, runtime.processes)
    return encoder, "\n".join(filter(None, [told, lone]))


def _train(
    recipe: Recipe, parts: Parts, validation: Validation, folder: Path, runtime: Runtime, *, goes_on: bool, told: str
) -> bool:
    state, method = _start(recipe, parts, validation.encoder, runtime)
    rates = learning_rates(recipe, state.steps_per_epoch)
    stop = total_steps(recipe, state.steps_per_epoch)
    position = state.restore(folder / CHECKPOINT, runtime, stop) if goes_on else 0
    metrics = Metrics(folder / METRICS, position, enabled=runtime.is_main)
    logger = make_logger(recipe.log.logger, folder) if runtime.is_main else None
    progress = Progress(recipe, logger, state.steps_per_epoch, stop, enabled=runtime.is_main)
    log_every = _log_every(recipe, stop)
    watch = Watch(method.rank_count, state.steps_per_epoch, _temperatures(recipe, method))
    saves = Saves(state, folder, metrics, runtime, progress.warn, recipe.save, stop)
    with interruptions() as interrupted, _told_what_is_saved(saves), metrics, progress:
        progress.say(told)
        for step in (feed := _feed(recipe, parts, runtime)).steps(state.step, stop):
            rate = rates[step.step] * plateau_factor(recipe.schedule, state.validation)
            _set_rate(state.optimizer, rate)
            validates = recipe.schedule.kind == "plateau" and (step.step + 1) % state.steps_per_epoch == 0
            judges = validation.due(step.step + 1, stop)
            logged = validates or judges or step.step % log_every == 0
            line = {"step": step.step, "epoch": step.epoch, "lr": rate}
            with _advice(folder), _network_dropout(recipe.seed, step.step, runtime):
                outcome = method.step(state.encoder, step, logged=logged)
                watch.count(outcome.values)
                if logged or looking_is_free(runtime.device):  # elsewhere, to look is to wait
                    line |= _finite_values(outcome, step)
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.step += 1
            if validates:
                line["validation/loss"] = method.validate(state.encoder, feed.held_out_steps(parts.held_out))
                state.validation += [line["validation/loss"]] if method.comparable else []
            if judges and runtime.is_main:
                line |= validation.line(state.step, state.best)
            if logged:
                metrics.write(line)
            if judges and runtime.is_main and state.best["step"] == state.step:
                saves.best()
            progress.advance(line, logged=logged)
            if logged or looking_is_free(runtime.device) or state.step == stop:
                for warning in [*watch.look(line), *(watch.end() if state.step == stop else [])]:
                    progress.warn(warning)
            leaving = runtime.any(bool(interrupted))
            if runtime.is_main and saves.due(leaving=leaving):
                with _advice(folder):
                    _finite_values(outcome, step)  # no checkpoint holds NaN
                saves.now(leaving=leaving)
            if leaving:
                break
    if state.step == stop and runtime.is_main:
        _end(saves, validation)
    runtime.end()
    return state.step == stop


def _temperatures(recipe: Recipe, method: Method) -> list[float]:
    return [term.temperature for term in recipe.terms_for(method.rank_count)]


def _end(saves: Saves, validation: Validation) -> None:
    """What is written once all steps are done."""
    if saves.state.step == 0:  # a method that trains nothing
        saves.last(final=True)
    validation.write(saves.folder, saves.state.step)


@contextmanager
def _told_what_is_saved(saves: Saves) -> Iterator[None]:
    """Whoever stops a run in the middle of a step is told what is left of it."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"{saves.kept}: rince train --resume {saves.folder} goes on from there"
        raise KeyboardInterrupt(f"stopped at once, in step {saves.state.step}; {kept}") from None


def _set_rate(optimizer: Any, rate: float) -> None:
    """Of all groups of weights, each by its share."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("share", 1.0)


def _feed(recipe: Recipe, parts: Parts, runtime: Runtime) -> Feed:
    return Feed(
        parts.source,
        parts.order,
        seed=recipe.seed,
        device=runtime.device,
        process=runtime.process,
        processes=runtime.processes,
        workers=recipe.data.workers,
        numbers=recipe.view_numbers,
        watched=recipe.watched_numbers,
        watched_every=_log_every(recipe, total_steps(recipe, parts.order.steps_per_epoch)),
    )


def _log_every(recipe: Recipe, stop: int) -> int:
    """Steps between two lines of the log, in a run of `stop` steps."""
    return recipe.log.every_steps or max(1, min(LONGEST_GAP, stop // LINES))


class Cost(NamedTuple):
    """What a run takes on this machine."""

    seconds: float
    """Of all its steps."""
    made_of: str
    """Fingerprint of the samples."""
    ahead: list[str]
    """What has to be computed before the first step, in lines."""


def cost(recipe: Recipe) -> Cost:
    """Of a run; nothing of what comes before its steps is computed."""
    parts = build_parts(recipe)
    ahead = parts.source.ahead()
    return Cost(training_seconds(recipe, parts), parts.source.fingerprint, ahead)


def training_seconds(recipe: Recipe, parts: Parts, *, limit: float = 5.0) -> float:
    """Of all steps, from as many as fit into `limit` seconds after a first one. Made-up samples are left in `parts`."""
    parts.source.pretend()
    steps = total_steps(recipe, parts.order.steps_per_epoch)
    return steps * _seconds_per_step(recipe, parts, limit) if steps else 0.0


def _seconds_per_step(recipe: Recipe, parts: Parts, limit: float) -> float:
    runtime = Runtime(1, recipe.train.precision)
    state, method = _start(recipe, parts, _first_encoder(recipe, parts, NOTHING, runtime, fresh=False)[0], runtime)
    began = now = 0.0
    number, enough = 0, max(state.steps_per_epoch, MEASURED_STEPS)  # an epoch may be a single step
    for number, step in enumerate(_feed(recipe, parts, runtime).steps(0, enough)):
        method.step(state.encoder, step, logged=False)
        state.optimizer.step()
        state.optimizer.zero_grad()
        now = time.monotonic()
        if number == 0:
            began = now
        elif now - began > limit:
            break
    return (now - began) / number


@contextmanager
def _network_dropout(seed: int, step: int, runtime: Runtime) -> Iterator[None]:
    """What a network draws by itself, such as dropout, is a function of seed, step and process: a run can go on."""
    device = runtime.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed_of(seed, step, NETWORK_DROPOUT, runtime.process))
        yield


@contextmanager
def _advice(folder: Path) -> Iterator[None]:
    """Says what can be done about a loss that is not finite."""
    try:
        yield
    except DataError as error:
        if not any(word in str(error) for word in ("NaN", "nan", "inf", "overflow")):
            raise
        raise DataError(
            f"{error}. The last checkpoint, if there was one, is kept in {folder}; try a lower optimizer.lr, or a "
            "longer schedule.warmup_epochs"
        ) from None


def _finite_values(outcome: Outcome, step: Step) -> dict[str, float]:
    """What is known of a step; refuses one whose loss is not finite."""
    values = plain_values(outcome.values)
    if not math.isfinite(values["loss"]):
        why = f"the loss is {values['loss']}" if outcome.explain is None else outcome.explain()
        raise DataError(f"step {step.step}: {why}")
    return values | (outcome.summary or {})


def plain_values(values: dict[str, Tensor]) -> dict[str, float]:
    """The numbers in the tensors, by one look at the device; counts stay whole numbers."""
    numbers: Sequence[float] = torch.stack([value.float() for value in values.values()]).tolist()
    return {
        name: number if value.is_floating_point() else int(number)
        for (name, value), number in zip(values.items(), numbers, strict=True)
    }


def _start(recipe: Recipe, parts: Parts, raw: Encoder, runtime: Runtime) -> tuple[State, Method]:
    given = Given(parts.rank_source, parts.rank_count, parts.groups, raw, runtime)
    method: Method = recipe.method.build(recipe, given)
    optimizer = _optimizer(recipe, raw)
    if recipe.model.compile:
        raw.compile()
    encoder, wrapped = runtime.wrap(raw, optimizer)
    steps, shape = parts.order.steps_per_epoch, parts.source.shape
    identity = recipe.model.identity
    groups, text = parts.group_counts, recipe.to_yaml()
    return State(encoder, raw, method.modules(), wrapped, shape, groups, steps, identity, text), method


def _optimizer(recipe: Recipe, encoder: Encoder) -> torch.optim.Optimizer:
    """Of all weights that are trained; a network that starts from weights may have a rate of its own."""
    settings = recipe.optimizer
    groups: list[dict[str, Any]] = [{"params": encoder.parameters(), "share": 1.0}]
    if settings.backbone_lr is not None:
        slower = {"params": encoder.backbone.parameters(), "share": settings.backbone_lr / settings.lr}
        groups = [slower, {"params": encoder.head.parameters(), "share": 1.0}]
    for group in groups:
        group["params"] = [each for each in group["params"] if each.requires_grad]
    if settings.kind == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)
    kind = torch.optim.Adam if settings.kind == "adam" else torch.optim.AdamW
    return kind(groups, lr=settings.lr, weight_decay=settings.weight_decay)
