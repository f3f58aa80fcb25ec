"""The ranked loss as the paper writes it: loops over queries, ranks and positives.

`naive_loss` works on Python floats, or on anything with exp and log given by `ops`; with 0-dim torch tensors it can be
differentiated. It shares no code with rince and knows no log-space trick.
"""

import math
from types import SimpleNamespace

import torch

FLOATS = SimpleNamespace(exp=math.exp, log=math.log)
TENSORS = SimpleNamespace(exp=torch.exp, log=torch.log)


def naive_terms(similarities, ranks, terms, over_positives="mean", ops=FLOATS):
    """Value of every ℓᵢ. `terms`: (temperature, "in" or "out", includes_closer[, "own" or "all"[, weight]]) per rank."""
    values = []
    for i, (temperature, where, includes_closer, *rest) in enumerate(terms, start=1):
        denominator = rest[0] if rest else "own"
        per_query, pairs = [], []
        for row, row_ranks in zip(similarities, ranks, strict=True):
            scores = [ops.exp(s / temperature) for s in row]
            positive = [
                score
                for score, rank in zip(scores, row_ranks, strict=True)
                if rank == i or (includes_closer and 1 <= rank <= i)
            ]
            opponents = sum(score for score, rank in zip(scores, row_ranks, strict=True) if rank == 0 or rank > i)
            if not positive:
                continue
            if where == "in":
                per_query.append(-ops.log(sum(positive) / (sum(positive) + opponents)))
            else:
                beside = [sum(positive) if denominator == "all" else p for p in positive]
                of_query = [-ops.log(p / (own + opponents)) for p, own in zip(positive, beside, strict=True)]
                pairs.extend(of_query)
                per_query.append(sum(of_query) / (len(of_query) if over_positives == "mean" else 1))
        chosen = pairs if where == "out" and over_positives == "pooled" else per_query
        values.append(sum(chosen) / len(chosen) if chosen else 0.0)
    return values


def naive_loss(similarities, ranks, terms, over_positives="mean", over_ranks="sum", ops=FLOATS):
    values = naive_terms(similarities, ranks, terms, over_positives, ops)
    values = [value * (term[4] if len(term) > 4 else 1) for value, term in zip(values, terms, strict=True)]
    return sum(values) / (1 if over_ranks == "sum" else len(values))


def naive_loss_and_gradient(similarities, ranks, terms, over_positives="mean", over_ranks="sum"):
    """Value and gradient in the similarities, by autograd on the naive form, in float64."""
    leaf = torch.tensor(similarities, dtype=torch.float64, requires_grad=True)
    rows = [list(row.unbind()) for row in leaf]
    loss = naive_loss(rows, ranks, terms, over_positives, over_ranks, TENSORS)
    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        return float(loss), torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return float(loss.detach()), gradient
