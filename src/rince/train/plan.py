"""What a run is going to do, told before it does it: `rince train … --dry-run`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rince.config import Recipe
from rince.encoders.encoder import Encoder
from rince.encoders.features import Features
from rince.errors import RinceError
from rince.hierarchy.levels import single_note, uneven_note
from rince.ranks import RankSource
from rince.sources.part import Part
from rince.sources.source import Source, left_out_notes
from rince.terminal import counted, duration
from rince.train.schedules import learning_rates
from rince.train.setup import (
    NOTHING,
    SHOWN,
    Brought,
    Parts,
    build_encoder,
    build_parts,
    check_parts,
    total_steps,
    without_rank,
)

LONGEST_STEP = 10.0  # seconds that a dry run may spend on one
SOME = 1000  # samples that stand for all, for ranks between samples


def plan(recipe: Recipe, brought: Brought = NOTHING, *, done: int = 0) -> str:
    """A page of text: data, ranks, steps, learning rates, time.

    Args:
        recipe: of the run.
        brought: what it is given as objects.
        done: steps of a run that is to go on.
    """
    parts = build_parts(recipe, brought)
    source = parts.source
    encoder = build_encoder(recipe, source.shape, parts.group_counts, brought=brought.encoder)
    check_parts(recipe, encoder)
    trains, told = recipe.method.trains, recipe.model.told
    weights = sum(p.numel() for p in encoder.parameters() if p.requires_grad) if trains else 0
    steps = parts.order.steps_per_epoch
    total = total_steps(recipe, steps)
    things, trained = f"{source.thing}s", len(source) - len(parts.held_out)
    judged, test = _test_lines(recipe, parts, brought)
    lines = [
        f"recipe     {recipe.name}, scale {recipe.scale}, seed {recipe.seed}",
        f"data       {recipe.data.source}: {trained:,} training {things}, {len(parts.paths)} classes",
        *(f"           {note}" for note in data_notes(parts)),
        *judged,
        *source.ahead(),
        *(ahead_of_judging(recipe, [test], trained=source) if test is not None else []),
        f"encoder    {recipe.model.kind}, {weights:,} parameters trained" + (f" ({told})" if told else ""),
        *([f"           {recipe.model.advice}"] if recipe.model.advice else []),
        *_method_lines(recipe, parts),
        *_step_lines(recipe, parts, total),
    ]
    if total and brought is NOTHING:
        lines.append(_time_line(recipe, parts, encoder, total, done))
    return "\n".join(lines)


def data_notes(parts: Parts) -> list[str]:
    """What a person should know of the data before training: classes that stand higher, columns that are no levels."""
    told = [uneven_note(parts.paths), single_note(parts.paths, parts.level_names)]
    return [*filter(None, told), *parts.notes]


def ahead_of_judging(recipe: Recipe, sources: Iterable[Source], trained: Source | None = None) -> list[str]:
    """What has to be computed of samples before they are judged: their features, of the plain view alone.

    Args:
        recipe: of the run.
        sources: the samples.
        trained: what is trained on; what is part of the same whole (`data.test_part`) has its features by then.
    """
    features = getattr(recipe.model, "features", None)
    if features is None:
        return []
    model = recipe.model.model_copy(update={"features": features.model_copy(update={"views": 0})})
    plain = recipe.model_copy(update={"model": model})
    made = {_kept_as(trained)} - {None}
    return [line for each in map(plain.prepared, sources) if _kept_as(each) not in made for line in each.ahead()]


def _kept_as(source: Source | None) -> str | None:
    """By what the cache knows the features of the plain view; None if there are none, or they are not kept."""
    whole = source.whole if isinstance(source, Part) else source
    return whole.plain_fingerprint if isinstance(whole, Features) and whole.knows_content else None


def _test_lines(recipe: Recipe, parts: Parts, brought: Brought) -> tuple[list[str], Source | None]:
    """How many samples it will be judged on, and these; a set without them can be trained on all the same."""
    split = recipe.data.test_split
    test = _opened_test(recipe, brought)
    if isinstance(test, str):
        return [f"           {test}"], None
    lines = [f"           split {split!r}: {len(test):,} {test.thing}s to judge on"]
    left_out = left_out_notes(test)
    lines += [f"           split {split!r}: {note}" for note in left_out[:SHOWN]]
    if len(left_out) > SHOWN:
        lines.append(f"           split {split!r}: … and {len(left_out) - SHOWN:,} more")
    alone = int((~torch.isin(test.labels, parts.source.labels)).sum()) if _same_classes(test, parts.source) else 0
    if alone:
        lines.append(f"           split {split!r}: {counted(alone, test.thing)} of classes that training has none of")
    return lines, test


def _opened_test(recipe: Recipe, brought: Brought) -> Source | str:
    """What it will be judged on, or why it cannot be."""
    split = recipe.data.test_split
    try:
        return brought.test_source or recipe.data.open(split, recipe.seen_views)
    except RinceError as error:
        return f"split {split!r}: none to judge on ({str(error).splitlines()[0]})"


def none_to_judge_on(recipe: Recipe, brought: Brought) -> str:
    """Why a run on texts or vectors cannot be judged once it is trained, to be said before; empty if it can."""
    if not recipe.data.whole_or_not:
        return ""
    test = _opened_test(recipe, brought)
    return test if isinstance(test, str) else ""


def _same_classes(test: Source, train: Source) -> bool:
    return tuple(test.class_names) == tuple(train.class_names)


def _time_line(recipe: Recipe, parts: Parts, encoder: Encoder, total: int, done: int) -> str:
    """Measured here: by a few steps, or by a few samples where one step of a large network would take long."""
    from rince.train.loop import training_seconds  # noqa: PLC0415 - brings Fabric, which others here do without

    def told(seconds: float, how: str) -> str:
        left = f", of which {duration(seconds * (total - done) / total)} are left after step {done:,}" if done else ""
        return f"time       {how} {duration(seconds)} of training, here{left}"

    if recipe.model.tries_steps:
        return told(training_seconds(recipe, parts, limit=1.0), "about")
    few, more = (_seconds(encoder, parts.source.plain(torch.arange(min(n, len(parts.source))))) for n in (2, 10))
    step = max(0.0, more - few) / 8 * recipe.train.batch * len(recipe.view_numbers)
    if step > LONGEST_STEP:
        return f"{told(step * total, 'very roughly')} (by ten samples)"
    return told(training_seconds(recipe, parts, limit=1.0), "about")


def _seconds(encoder: Encoder, batch: Any) -> float:
    """Of a batch there and back, the least of three: the first warms up."""
    training, took = encoder.training, []
    encoder.eval()  # leaves running statistics alone
    for _ in range(3):
        began = time.monotonic()
        encoder(batch).sum().backward()
        took.append(time.monotonic() - began)
    encoder.zero_grad()
    encoder.train(training)
    return min(took)


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
    terms = max(recipe.terms, recipe.terms_for(parts.rank_count), key=len)
    told = [f"{i}: τ {term.temperature}, {term.positives}" for i, term in enumerate(terms, start=1)]
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
    trained = len(parts.source) - len(parts.held_out)
    if recipe.bank is not None:
        size, thing = recipe.bank.size, parts.source.thing
        again = f", which holds each of the {trained:,} {thing}s {size / trained:.1f} times" if size > trained else ""
        return size, f"the bank{again}"
    return len(recipe.view_numbers) * min(recipe.train.batch, trained), "a batch"


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


def _step_lines(recipe: Recipe, parts: Parts, total: int) -> list[str]:
    """How many, of how many samples, and at which learning rates."""
    if total == 0:
        return ["steps      none: nothing is trained"]
    steps = parts.order.steps_per_epoch
    first, last = (len(parts.order.ids(0, step)) for step in (0, steps - 1))
    of = counted(first, parts.source.thing) + (f", the last of {last:,}" if last != first else "")
    told = f"{counted(recipe.train.epochs, 'epoch')} of {counted(steps, 'step')} of {of}: {counted(total, 'step')}"
    return [f"steps      {told}", *_rate_lines(recipe, steps, total)]


def _rate_lines(recipe: Recipe, steps: int, total: int) -> list[str]:
    rates = learning_rates(recipe, steps)[:total]
    marks = sorted({0, min(round(recipe.schedule.warmup_epochs * steps), total - 1), total // 2, total - 1})
    told = ", ".join(f"{rates[mark]:.4g} at step {mark:,}" for mark in marks)
    schedule = recipe.schedule
    if schedule.kind == "plateau":
        told = (
            f"{recipe.optimizer.lr:.4g}, times {schedule.factor} when the loss of the validation samples has not "
            f"fallen for {schedule.patience} epochs, down to {recipe.optimizer.lr * schedule.floor:.4g}"
        )
    slower = recipe.optimizer.backbone_lr
    share = "" if slower is None else f"; of the network {slower / recipe.optimizer.lr:.3g} of that"
    return [f"lr         {recipe.optimizer.kind}, {told}{share}"]
