"""Random cases for the loss, as hypothesis strategies."""

import torch
from hypothesis import strategies as st

from rince import RankTerm

OVER_POSITIVES = ("mean", "sum", "pooled")
OVER_RANKS = ("sum", "mean")


@st.composite
def terms_of(draw, temperature):
    where = draw(st.sampled_from(("in", "out")))
    denominator = draw(st.sampled_from(("own", "all"))) if where == "out" else "own"
    return (temperature, where, draw(st.booleans()), denominator, draw(st.sampled_from((1.0, 1.0, 0.0, 0.3))))


@st.composite
def loss_cases(draw, max_queries=4, max_candidates=7, max_ranks=4):
    """Similarities in [-1, 1], ranks of every kind, terms of every kind."""
    queries = draw(st.integers(1, max_queries))
    candidates = draw(st.integers(1, max_candidates))
    number = draw(st.integers(1, max_ranks))
    cosine = st.floats(-1, 1, allow_nan=False, width=32)
    row = st.lists(cosine, min_size=candidates, max_size=candidates)
    rank_row = st.lists(st.integers(-1, number), min_size=candidates, max_size=candidates)
    temperatures = sorted(draw(st.lists(st.floats(0.05, 1.0), min_size=number, max_size=number)))
    return {
        "similarities": draw(st.lists(row, min_size=queries, max_size=queries)),
        "ranks": draw(st.lists(rank_row, min_size=queries, max_size=queries)),
        "terms": [draw(terms_of(t)) for t in temperatures],
        "over_positives": draw(st.sampled_from(OVER_POSITIVES)),
        "over_ranks": draw(st.sampled_from(OVER_RANKS)),
    }


def as_terms(terms):
    return [RankTerm(*term) for term in terms]


def as_tensors(case, dtype=torch.float64):
    return torch.tensor(case["similarities"], dtype=dtype), torch.tensor(case["ranks"], dtype=torch.int8)
