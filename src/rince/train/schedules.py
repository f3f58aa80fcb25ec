"""Learning rates as an array with one entry per step: what happens at a step can be looked up, printed and resumed."""

from __future__ import annotations

import math

from rince.config import Recipe


def learning_rates(recipe: Recipe, steps_per_epoch: int) -> list[float]:
    """The learning rate of every step of the run.

    Cosine, set once per epoch, epochs counted from 1, down to `floor · lr`. The warm-up is linear by step, from
    `warmup_from` to the cosine's value at its last epoch.
    """
    schedule, lr, epochs = recipe.schedule, recipe.optimizer.lr, recipe.train.epochs

    def at_epoch(epoch: int) -> float:
        if schedule.kind == "constant":
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
