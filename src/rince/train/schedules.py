"""Learning rates as an array with one entry per step: what happens at a step can be looked up, printed and resumed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rince.config import Recipe, ScheduleSettings

FEW = 2  # epochs that a rate set once in each does not suit
IMPROVED = 1e-4  # a loss is lower if it is so by this share


def learning_rates(recipe: Recipe, steps_per_epoch: int) -> list[float]:
    """The learning rate of every step of the run; with plateaus, before `plateau_factor`.

    `cosine` is set once per epoch, epochs counted from 1, `cosine-by-step` at every step, steps counted from 0; both go
    down to `floor · lr`. Of one or two epochs the last would be all or half of the run, at its lowest rate: there,
    `cosine` goes by step. The warm-up is linear by step, from `warmup_from` to the cosine's value where it ends.
    """
    schedule, lr, epochs = recipe.schedule, recipe.optimizer.lr, recipe.train.epochs
    steps = epochs * steps_per_epoch
    by_epoch = schedule.kind == "cosine" and epochs > FEW
    warmup_steps = round(min(schedule.warmup_epochs, epochs) * steps_per_epoch)

    def rate(done: float) -> float:
        """After a share of the run."""
        if not schedule.kind.startswith("cosine"):
            return lr
        low = lr * schedule.floor
        return low + (lr - low) * (1 + math.cos(math.pi * done)) / 2

    def share_done(step: int) -> float:
        return (1 + step // steps_per_epoch) / epochs if by_epoch else step / steps

    target = rate(warmup_steps / steps)
    return [
        schedule.warmup_from + (target - schedule.warmup_from) * step / warmup_steps
        if step < warmup_steps
        else rate(share_done(step))
        for step in range(steps)
    ]


def plateau_factor(schedule: ScheduleSettings, losses: Sequence[float]) -> float:
    """What the learning rate is multiplied by, after the validation losses of all epochs so far.

    A function of what was seen, so that a run which goes on needs no scheduler but these numbers. Each time the lowest
    loss is more than `patience` epochs old, the rate falls by `factor`, and the count starts again. It is clamped: the
    rate never falls below `floor · lr`.

    Equals `torch.optim.lr_scheduler.ReduceLROnPlateau` with `min_lr = floor · lr` and its other defaults.
    """
    if schedule.kind != "plateau":
        return 1.0
    rate, best, waited = 1.0, math.inf, 0
    for loss in losses:
        if loss < best * (1 - IMPROVED):
            best, waited = loss, 0
        else:
            waited += 1
        if waited > schedule.patience:
            rate, waited = rate * schedule.factor, 0
    return max(rate, schedule.floor)
