"""Momentum contrast as a plain loop: no optimizer, no bank, no twin and no loss but those written out here.

It takes a network, views and ranks as they are given to it, and shares no code with rince.
"""

import copy
import json
import math

import pytest
import torch

from oracles.naive_loss import TENSORS, naive_terms


class PlainOptimizer:
    """SGD with momentum, or Adam, with decay added to the gradient: by their formulas."""

    def __init__(self, parameters, settings):
        self.parameters, self.settings = list(parameters), settings
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.steps = 0

    @torch.no_grad()
    def step(self, gradients, rate):
        self.steps += 1
        for p, gradient, first, second in zip(self.parameters, gradients, self.first, self.second, strict=True):
            whole = gradient + self.settings.weight_decay * p
            if self.settings.kind == "sgd":
                first.mul_(self.settings.momentum).add_(whole)
                p.sub_(rate * first)
                continue
            first.mul_(0.9).add_(0.1 * whole)
            second.mul_(0.999).add_(0.001 * whole**2)
            root = (second / (1 - 0.999**self.steps)).sqrt() + 1e-8
            p.sub_(rate * (first / (1 - 0.9**self.steps)) / root)


def cosine_rate(step, recipe, steps_per_epoch):
    """The paper's schedule: cosine by epoch from 1, and a linear warm-up by step to the cosine's value at its end."""
    high, low = recipe.optimizer.lr, recipe.optimizer.lr * recipe.schedule.floor

    def cosine(epoch):
        return low + (high - low) * (1 + math.cos(math.pi * epoch / recipe.train.epochs)) / 2

    warm = recipe.schedule.warmup_epochs * steps_per_epoch
    if step < warm:
        first = recipe.schedule.warmup_from
        return first + (cosine(recipe.schedule.warmup_epochs) - first) * step / warm
    return cosine(1 + step // steps_per_epoch)


def plain_training(recipe, encoder, bank, batches):
    """Trains `encoder` in place.

    Args:
        recipe: its loss, optimizer and twin are followed.
        encoder: at its start.
        bank: keys `(size, dim)` and labels `(size,)` at the start; written over.
        batches: of every step: views, the query's first; labels; for every query the ranks of its own keys; a function
            from the labels of a query and of a key in the bank to a rank; the learning rate.

    Returns:
        The twin, and what there is to log of every step.
    """
    twin = copy.deepcopy(encoder)
    optimizer = PlainOptimizer(encoder.parameters(), recipe.optimizer)
    keys, labels = bank
    terms = [(term.temperature, term.positives, term.includes_closer) for term in recipe.loss.terms]
    cursor, lines = 0, []
    for (query_view, *key_views), own_labels, own_ranks, rank_of, rate in batches:
        queries = encoder(query_view)
        with torch.no_grad():
            own_keys = [twin(view) for view in key_views]
        similarities, ranks = [], []
        for i, query in enumerate(queries):
            candidates = [key[i] for key in own_keys] + list(keys)
            similarities.append([(query * candidate).sum() for candidate in candidates])
            ranks.append(list(own_ranks[i]) + [rank_of(int(own_labels[i]), int(label)) for label in labels])
        values = naive_terms(similarities, ranks, terms, recipe.loss.over_positives, TENSORS)
        loss = sum(values) / (1 if recipe.loss.over_ranks == "sum" else len(values))
        gradients = torch.autograd.grad(loss, list(encoder.parameters()))
        for key, label in zip(own_keys[0], own_labels, strict=True):
            keys[cursor], labels[cursor] = key, label
            cursor = (cursor + 1) % len(keys)
        if recipe.twin.buffers == "copy":
            for slow, fast in zip(twin.buffers(), encoder.buffers(), strict=True):
                slow.copy_(fast)
        # The twin follows before the weights move: a step behind them, from the second step on.
        m = recipe.twin.momentum
        with torch.no_grad():
            for slow, fast in zip(twin.parameters(), encoder.parameters(), strict=True):
                slow.copy_(m * slow + (1 - m) * fast)
        optimizer.step(gradients, rate)
        line = {"loss": float(loss.detach()), "lr": rate}
        for i, (value, (_, _, closer)) in enumerate(zip(values, terms, strict=True), start=1):
            line[f"term/{i}"] = float(torch.as_tensor(value).detach())
            line[f"queries/{i}"] = sum(any((1 <= r <= i) if closer else r == i for r in row) for row in ranks)
        lines.append(line)
    return twin, lines


def assert_replayed(run, encoder, twin, bank, lines):
    """That the folder of a run holds what `plain_training` made."""
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(logged) == len(lines) > 2
    for found, expected in zip(logged, lines, strict=True):
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-5)
    saved = torch.load(run / "last.ckpt", weights_only=True)
    assert saved["bank"]["labels"].tolist() == bank[1].tolist()
    found, expected = {"bank": saved["bank"]["keys"]}, {"bank": bank[0]}
    for name, value in encoder.state_dict().items():
        found[name], expected[name] = saved["encoder"][name], value
    for name, value in twin.state_dict().items():
        found[f"twin {name}"], expected[f"twin {name}"] = saved["twin"][f"module.{name}"], value
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)
