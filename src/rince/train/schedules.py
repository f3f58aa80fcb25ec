"""Learning rates as an array with one entry per step: what happens at a step can be looked up, printed and resumed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rince.config import Recipe, ScheduleSettings

IMPROVED = 1e-4  # a loss is lower if it is so by this share


def learning_rates(recipe: Recipe, steps_per_epoch: int) -> list[float]:
    """The learning rate of every step of the run; with plateaus, before `plateau_factor`.

    Cosine, set once per epoch, epochs counted from 1, down to `floor · lr`. The warm-up is linear by step, from
    `warmup_from` to the cosine's value at its last epoch.
    """
    schedule, lr, epochs = recipe.schedule, recipe.optimizer.lr, recipe.train.epochs

    def at_epoch(epoch: int) -> float:
        if schedule.kind != "cosine":
            return lr
        low = lr * schedule.floor
        return low + (lr - low) * (1 + math.cos(math.pi * epoch / epochs)) / 2

    warmup_steps = min(schedule.warmup_epochs, epochs) * steps_per_epoch
    target = at_epoch(schedule.warmup_epochs)
    rates = []
    for step in range(epochs * steps_per_epoch):
        if step < warmup_steps:
            rates.append(schedule.warmup_from + (target - schedule.warmup_from) * step / warmup_steps)
        else:
            rates.append(at_epoch(1 + step // steps_per_epoch))
    return rates


def plateau_factor(schedule: ScheduleSettings, losses: Sequence[float]) -> float:
    """What the learning rate is multiplied by, after the validation losses of all epochs so far.

    A function of what was seen, so that a run which goes on needs no scheduler but these numbers. Each time the lowest
    loss is more than `patience` epochs old, the rate falls by `factor`, and the count starts again.

    Equals `torch.optim.lr_scheduler.ReduceLROnPlateau` with its defaults.
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
