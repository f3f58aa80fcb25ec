"""Stored values per variant. They change only together with a *Numbers* entry in CHANGELOG.md.

The similarities are made by a formula, not by a generator, so that the numbers hold on any version of torch; the
values were computed once by the naive loops of tests/oracles in plain Python floats.
"""

import math

import pytest
import torch

from oracles.naive_loss import naive_loss
from rince import RankedInfoNCE

SIMILARITIES = [[math.cos(1.7 * q + 0.9 * c) for c in range(12)] for q in range(5)]
RANKS = [[(1, 2, 0, 3, 0, -1, 2, 0)[(3 * q + c) % 8] for c in range(12)] for q in range(5)]
TEMPERATURES = (0.1, 0.15, 0.225)

GOLDEN = {
    ("in_", "mean", "sum"): 9.888868084796986,
    ("in_", "mean", "mean"): 3.2962893615989954,
    ("in_", "sum", "sum"): 9.888868084796986,
    ("in_", "sum", "mean"): 3.2962893615989954,
    ("in_", "pooled", "sum"): 9.888868084796986,
    ("in_", "pooled", "mean"): 3.2962893615989954,
    ("out", "mean", "sum"): 15.433393646797851,
    ("out", "mean", "mean"): 5.144464548932617,
    ("out", "sum", "sum"): 32.06280158954152,
    ("out", "sum", "mean"): 10.687600529847174,
    ("out", "pooled", "sum"): 15.012840154642234,
    ("out", "pooled", "mean"): 5.004280051547411,
    ("out_in", "mean", "sum"): 10.674105350990342,
    ("out_in", "mean", "mean"): 3.5580351169967805,
    ("out_in", "sum", "sum"): 11.754365594362305,
    ("out_in", "sum", "mean"): 3.918121864787435,
    ("out_in", "pooled", "sum"): 9.862955089626293,
    ("out_in", "pooled", "mean"): 3.2876516965420977,
}


@pytest.mark.parametrize(("name", "over_positives", "over_ranks"), GOLDEN)
def test_value(name, over_positives, over_ranks):
    loss = getattr(RankedInfoNCE, name)(TEMPERATURES, over_positives=over_positives, over_ranks=over_ranks)
    similarities, ranks = torch.tensor(SIMILARITIES, dtype=torch.float64), torch.tensor(RANKS)
    expected = GOLDEN[name, over_positives, over_ranks]
    assert loss(similarities, ranks).total.item() == pytest.approx(expected, rel=1e-12)
    assert loss(similarities.float(), ranks).total.item() == pytest.approx(expected, rel=1e-5)


def test_every_variant_and_reduction_has_a_value():
    assert len(GOLDEN) == 3 * 3 * 2
    assert len(set(GOLDEN.values())) == 14  # "in" terms know no reduction over positives


def test_the_stored_values_are_those_of_the_naive_loops():
    for (name, over_positives, over_ranks), expected in GOLDEN.items():
        loss = getattr(RankedInfoNCE, name)(TEMPERATURES)
        terms = [(t.temperature, t.positives, t.includes_closer) for t in loss.terms]
        assert naive_loss(SIMILARITIES, RANKS, terms, over_positives, over_ranks) == pytest.approx(expected, rel=1e-12)
