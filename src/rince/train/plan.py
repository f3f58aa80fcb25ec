"""What a run is going to do, told before it does it: `rince train … --dry-run`."""

from __future__ import annotations

import torch
from torch import Tensor

from rince.config import Recipe
from rince.hierarchy.levels import uneven_note
from rince.ranks import RankSource
from rince.terminal import duration
from rince.train.schedules import learning_rates
from rince.train.setup import NOTHING, Brought, Parts, build_encoder, build_parts, total_steps, without_rank

SOME = 1000  # samples that stand for all, for ranks between samples


def plan(recipe: Recipe, brought: Brought = NOTHING) -> str:
    """A page of text: data, ranks, steps, learning rates."""
    parts = build_parts(recipe, brought)
    source = parts.source
    encoder = build_encoder(recipe, source.shape, parts.group_counts, brought=brought.encoder)
    trains, told = recipe.method.trains, recipe.model.told
    weights = sum(p.numel() for p in encoder.parameters() if p.requires_grad) if trains else 0
    steps = parts.order.steps_per_epoch
    total = total_steps(recipe, steps)
    things, trained = f"{source.thing}s", len(source) - len(parts.held_out)
    uneven = uneven_note(parts.paths)
    lines = [
        f"recipe     {recipe.name}, scale {recipe.scale}, seed {recipe.seed}",
        f"data       {recipe.data.source}: {trained:,} training {things}, {len(parts.paths)} classes",
        *([f"           {uneven}"] if uneven else []),
        *(f"           {note}" for note in parts.notes),
        *source.ahead(),
        f"encoder    {recipe.model.kind}, {weights:,} parameters trained" + (f" ({told})" if told else ""),
        *([f"           {recipe.model.advice}"] if recipe.model.advice else []),
        *_method_lines(recipe, parts),
        *_step_lines(recipe, steps, total, things),
    ]
    if recipe.model.tries_steps and total and brought is NOTHING:
        from rince.train.loop import training_seconds  # noqa: PLC0415 - brings Fabric, which others here do without

        lines.append(f"time       about {duration(training_seconds(recipe, parts, limit=1.0))} of training, here")
    return "\n".join(lines)


def _method_lines(recipe: Recipe, parts: Parts) -> list[str]:
    settings = ", ".join(f"{name} {value}" for name, value in recipe.method.model_dump().items() if name != "kind")
    lines = [f"method     {recipe.method.kind}" + (f": {settings}" if settings else "")]
    if recipe.bank is not None and recipe.twin is not None:
        lines.append(
            f"bank       {recipe.bank.size:,} keys, starts {recipe.bank.start}; "
            f"twin follows with {recipe.twin.momentum}"
        )
    return lines + _rank_lines(recipe, parts)


def _rank_lines(recipe: Recipe, parts: Parts) -> list[str]:
    if recipe.ranks is None or parts.rank_source is None:
        return []
    told = [f"{i}: τ {term.temperature}, {term.positives}" for i, term in enumerate(recipe.terms, start=1)]
    if recipe.ranks.about_own:
        return [f"ranks      {recipe.ranks.about_own}", f"           {', '.join(told)}"]
    candidates, where = candidates_of(recipe, parts)
    if parts.rank_source.by == "sample":
        lines = ["ranks      1: the same sample; no labels used"]
        return lines + _sample_lines(parts.rank_source, parts, candidates, where)
    expected, shares = expected_positives(recipe, parts)
    lines = []
    for i, term in enumerate(told[: parts.rank_count]):
        start = "ranks      " if i == 0 else "           "
        mean = float(expected[:, i] @ shares)
        empty = [parts.paths[c][-1] for c in (expected[:, i] == 0).nonzero()[:, 0].tolist()]
        lines.append(f"{start}{term}; {mean:.1f} positives expected in {where}")
        if empty:
            names = ", ".join(empty[:8]) + (f" and {len(empty) - 8} more" if len(empty) > 8 else "")
            lines.append(f"              empty for {len(empty)} of {len(expected)} classes: {names}")
    unused = without_rank(recipe, parts)
    return lines + ([f"           {unused}"] if unused else [])


def class_table(ranks: RankSource, classes: int) -> Tensor:
    """`(classes, classes)` int8: what classes are to each other, by any source of ranks that goes by class."""
    every = torch.arange(classes)
    return ranks(every, every)


def candidates_of(recipe: Recipe, parts: Parts) -> tuple[int, str]:
    """How many a query is compared with, and where they are: the bank, or all views of its batch, itself included."""
    if recipe.bank is not None:
        return recipe.bank.size, "the bank"
    return len(recipe.view_numbers) * min(recipe.train.batch, len(parts.source) - len(parts.held_out)), "a batch"


def expected_positives(recipe: Recipe, parts: Parts) -> tuple[Tensor, Tensor]:
    """Per class and rank, how many positives the candidates of a query hold, `(classes, ranks)`; and class shares."""
    assert parts.rank_source is not None
    candidates, _ = candidates_of(recipe, parts)
    classes = len(parts.paths)
    shares = torch.bincount(parts.source.labels, minlength=classes).double() / len(parts.source)
    table = class_table(parts.rank_source, classes)
    found = [((table == rank).double() @ shares) * candidates for rank in range(1, parts.rank_count + 1)]
    if recipe.bank is None:
        # Its own other views are there for certain; of every other sample, as many views as the rest of the batch has.
        views, number = len(recipe.view_numbers), len(parts.source) - len(parts.held_out)
        batch = min(recipe.train.batch, number)
        drawn = views * (batch - 1) / max(1, number - 1)
        found = [each * number * drawn / candidates for each in found]
        found[0] = (found[0] - drawn).clamp(min=0) + views - 1
    return torch.stack(found, dim=1), shares


def _sample_lines(ranks: RankSource, parts: Parts, candidates: int, where: str) -> list[str]:
    """What a thousand samples find in the whole training set."""
    number = len(parts.source)
    found = ranks(torch.arange(0, number, max(1, number // SOME)), torch.arange(number))
    lines = []
    for rank in range(2, parts.rank_count + 1):
        mean = (found == rank).float().mean().item() * candidates
        none = 100 * (~(found == rank).any(dim=1)).float().mean().item()
        lines.append(f"           {rank}: {mean:.1f} positives expected in {where}; none for {none:.0f} % of samples")
    return lines


def _step_lines(recipe: Recipe, steps: int, total: int, things: str) -> list[str]:
    """How many, and at which learning rates."""
    if total == 0:
        return ["steps      none: nothing is trained"]
    told = f"{recipe.train.epochs} epochs of {steps} steps of {recipe.train.batch} {things}: {total:,} steps"
    return [f"steps      {told}", *_rate_lines(recipe, steps, total)]


def _rate_lines(recipe: Recipe, steps: int, total: int) -> list[str]:
    rates = learning_rates(recipe, steps)[:total]
    marks = sorted({0, min(round(recipe.schedule.warmup_epochs * steps), total - 1), total // 2, total - 1})
    told = ", ".join(f"{rates[mark]:.4g} at step {mark:,}" for mark in marks)
    schedule = recipe.schedule
    if schedule.kind == "plateau":
        told = (
            f"{recipe.optimizer.lr:.4g}, times {schedule.factor} when the loss of the validation samples has not "
            f"fallen for {schedule.patience} epochs"
        )
    slower = recipe.optimizer.backbone_lr
    share = "" if slower is None else f"; of the network {slower / recipe.optimizer.lr:.3g} of that"
    return [f"lr         {recipe.optimizer.kind}, {told}{share}"]
