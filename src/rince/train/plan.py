"""What a run is going to do, told before it does it: `rince train … --dry-run`."""

from __future__ import annotations

import torch

from rince.config import ClipRanks, Recipe
from rince.sources.videos import VideoSet
from rince.ranks import SampleRanks, TableRanks
from rince.train.schedules import learning_rates
from rince.train.setup import Parts, build_parts, build_seeded_encoder, total_steps

SHOWN = 5  # unreadable videos that are named


def plan(recipe: Recipe) -> str:
    """A page of text: data, ranks, steps, learning rates."""
    parts = build_parts(recipe)
    encoder = build_seeded_encoder(recipe, parts.channels, [len(level.unique()) for level in parts.groups])
    weights = sum(p.numel() for p in encoder.parameters())
    steps, epochs = parts.order.steps_per_epoch, recipe.train.epochs
    total = total_steps(recipe, steps)
    videos = parts.images if isinstance(parts.images, VideoSet) else None
    what, network = ("videos", "3D-ResNet") if videos else ("images", "ResNet")
    lines = [
        f"recipe     {recipe.name}, scale {recipe.scale}, seed {recipe.seed}",
        f"data       {recipe.data.source}: {len(parts.images):,} training {what}, {len(parts.paths)} classes",
        *(_video_lines(videos) if videos else []),
        f"encoder    {network}-{recipe.model.depth}, width {recipe.model.width}, {weights:,} parameters",
        *_method_lines(recipe, parts),
        f"steps      {epochs} epochs of {steps} steps of {recipe.train.batch} {what}: {total:,} steps",
        *_rate_lines(recipe, steps, total),
    ]
    return "\n".join(lines)


def _video_lines(videos: VideoSet) -> list[str]:
    """What became of short videos, and which files cannot be used."""
    told = {
        "whole": "long enough",
        "shrunk": "with a smaller stride",
        "dropped_video": "without video positive",
        "dropped_shot": "without shot and video positive",
        "left_out": "too short, left out",
    }
    counts = [f"{count:,} {told[outcome]}" for outcome, count in videos.outcomes.items() if count]
    lines = [f"           {', '.join(counts)}"]
    unreadable = [f"           left out: {path} ({reason})" for path, reason in videos.index.left_out]
    more = len(unreadable) - SHOWN
    return lines + unreadable[:SHOWN] + ([f"           … and {more:,} more"] if more > 0 else [])


def _method_lines(recipe: Recipe, parts: Parts) -> list[str]:
    settings = ", ".join(f"{name} {value}" for name, value in recipe.method.model_dump().items() if name != "kind")
    lines = [f"method     {recipe.method.kind}" + (f": {settings}" if settings else "")]
    if recipe.has_bank:
        lines.append(
            f"bank       {recipe.bank.size:,} keys, starts {recipe.bank.start}; "
            f"twin follows with {recipe.twin.momentum}"
        )
    return lines + (_rank_lines(recipe, parts) if recipe.method.kind == "contrast" else [])


def expected_positives(parts: Parts, bank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Per class and rank, how many positives a full bank is expected to hold, `(classes, ranks)`; and class shares."""
    assert isinstance(parts.rank_source, TableRanks)
    classes = len(parts.paths)
    shares = torch.bincount(parts.images.labels, minlength=classes).double() / len(parts.images)
    table = parts.rank_source.table
    found = [((table == rank).double() @ shares) * bank for rank in range(1, parts.rank_count + 1)]
    return torch.stack(found, dim=1), shares


def _clip_lines(recipe: Recipe, ranks: ClipRanks) -> list[str]:
    words = {0: "a negative", -1: "no part"}
    own = ", ".join(
        f"{name} {words.get(rank, f'rank {rank}')}"
        for name, rank in zip(("frame", "shot", "video"), ranks.own, strict=True)
    )
    terms = ", ".join(f"{i}: τ {term.temperature}, {term.positives}" for i, term in enumerate(recipe.terms, start=1))
    return [f"ranks      {own}; clips of other videos are negatives", f"           {terms}"]


def _rank_lines(recipe: Recipe, parts: Parts) -> list[str]:
    if isinstance(recipe.ranks, ClipRanks):
        return _clip_lines(recipe, recipe.ranks)
    if not isinstance(parts.rank_source, TableRanks):
        return ["ranks      1: the same sample; no labels used", *_sample_lines(recipe, parts)]
    expected, shares = expected_positives(parts, recipe.bank.size)
    lines = []
    for i, term in enumerate(recipe.terms):
        start = "ranks      " if i == 0 else "           "
        if i >= parts.rank_count:
            lines.append(
                f"{start}{i + 1}: τ {term.temperature}, {term.positives}; never used: the taxonomy has no such rank"
            )
            continue
        mean = float(expected[:, i] @ shares)
        empty = [parts.paths[c][-1] for c in (expected[:, i] == 0).nonzero()[:, 0].tolist()]
        lines.append(
            f"{start}{i + 1}: τ {term.temperature}, {term.positives}; {mean:.1f} positives expected in the bank"
        )
        if empty:
            names = ", ".join(empty[:8]) + (f" and {len(empty) - 8} more" if len(empty) > 8 else "")
            lines.append(f"              empty for {len(empty)} of {len(expected)} classes: {names}")
    return lines


def _sample_lines(recipe: Recipe, parts: Parts) -> list[str]:
    """What a thousand samples find in the whole training set, for ranks between samples."""
    if not isinstance(parts.rank_source, SampleRanks):
        return []
    number = len(parts.images)
    found = parts.rank_source(torch.arange(0, number, max(1, number // 1000)), torch.arange(number))
    lines = []
    for rank in range(2, parts.rank_count + 1):
        mean = (found == rank).float().mean().item() * recipe.bank.size
        none = 100 * (~(found == rank).any(dim=1)).float().mean().item()
        lines.append(f"           {rank}: {mean:.1f} positives expected in the bank; none for {none:.0f} % of samples")
    return lines


def _rate_lines(recipe: Recipe, steps: int, total: int) -> list[str]:
    rates = learning_rates(recipe, steps)[:total]
    marks = sorted({0, min(recipe.schedule.warmup_epochs * steps, total - 1), total // 2, total - 1})
    told = ", ".join(f"{rates[mark]:.4g} at step {mark:,}" for mark in marks)
    schedule = recipe.schedule
    if schedule.kind == "plateau":
        told = (
            f"{recipe.optimizer.lr:.4g}, times {schedule.factor} when the loss of {100 * schedule.held_out:.4g} % of "
            f"the samples, held out, has not fallen for {schedule.patience} epochs"
        )
    return [f"lr         {recipe.optimizer.kind}, {told}"]
