"""Bad input gets one sentence that echoes it and says what to do."""

import math

import pytest
import torch
from torch import nn

import rince
from rince import (
    ConfigError,
    DataError,
    MemoryBank,
    MomentumTwin,
    RankedInfoNCE,
    RankTerm,
    ShapeError,
    TableRanks,
    linear_temperatures,
    ranked_info_nce,
    ranked_info_nce_from_embeddings,
    view_ranks,
)
from rince.evaluation.metrics import parse
from rince.moco import contrast

S = torch.zeros(2, 3)
R = torch.zeros(2, 3, dtype=torch.int8)
ONE = [RankTerm(0.1)]
NAN = float("nan")


def of_loss(similarities=S, ranks=R, terms=ONE, **options):
    return lambda: ranked_info_nce(similarities, ranks, terms, **options)


def of_embeddings(queries=torch.zeros(2, 4), candidates=torch.zeros(3, 4), ranks=R, terms=ONE, **options):
    return lambda: ranked_info_nce_from_embeddings(queries, candidates, ranks, terms, **options)


def push(keys, labels):
    return lambda: MemoryBank(4, 2).push(keys, labels)


CASES = [
    (of_loss(ranks=R[:, :2]), ShapeError, "got (2, 2) and (2, 3); did you forget the own-key column?"),
    (of_loss(S[0], R[0]), ShapeError, "(queries, candidates), got torch.float32 of shape (3,)"),
    (of_loss(S.int()), ShapeError, "floating-point matrix (queries, candidates), got torch.int32"),
    (of_loss(ranks=R.float()), ShapeError, "got torch.float32; convert with .to(torch.int8)"),
    (of_loss(ranks=R.bool()), ShapeError, "got torch.bool; convert with .to(torch.int8)"),
    (of_loss(ranks=R.to("meta")), ShapeError, "on the device of the similarities, cpu; got meta"),
    (of_loss(ranks=R + 2), DataError, "rank 2 but there are only 1 terms; add a RankTerm for every rank"),
    (of_loss(ranks=R - 2), DataError, "ranks holds -2; use 1 … R for positives"),
    (of_loss(S * NAN, R + 1), DataError, "similarities holds 6 values that are NaN or infinite, of 6"),
    (of_loss(S + math.inf, R + 1), DataError, "similarities holds 6 values that are NaN or infinite"),
    (of_loss(terms=[]), ConfigError, "one RankTerm per rank"),
    (of_loss(terms=[0.1]), ConfigError, "one RankTerm per rank, such as [RankTerm(0.1), RankTerm(0.2)]; got (0.1,)"),
    (of_loss(terms=[RankTerm(0.2), RankTerm(0.1)]), ConfigError, "got [0.2, 0.1]: with a falling temperature"),
    (of_loss(over_positives="max"), ConfigError, "one of 'mean', 'sum', 'pooled'; got 'max'"),
    (of_loss(over_ranks="max"), ConfigError, "one of 'sum', 'mean'; got 'max'"),
    (lambda: RankTerm(0.0), ConfigError, "temperature must be positive, got 0.0; common values are"),
    (lambda: RankTerm(NAN), ConfigError, "temperature must be positive, got nan"),
    (lambda: RankTerm(0.1, denominator="all"), ConfigError, "denominator='all' is for positives='out'"),
    (lambda: RankTerm(0.1, "out", denominator="every"), ConfigError, "denominator must be one of 'own', 'all'; got"),
    (lambda: RankTerm(0.1, weight=-1.0), ConfigError, "weight must be at least 0, got -1.0"),
    (lambda: RankTerm(0.1, weight="2"), ConfigError, "weight must be a number, got '2'"),
    (lambda: RankTerm("0.1"), ConfigError, "temperature must be a number, got '0.1'"),
    (lambda: RankTerm(0.1, "inside"), ConfigError, "positives must be one of 'in', 'out'; got 'inside'"),
    (lambda: linear_temperatures(0.1, 0.2, 0), ConfigError, "ranks must be a whole number, at least 1; got 0"),
    (of_embeddings(candidates=torch.zeros(3, 5)), ShapeError, "one width, got 4 and 5; do both come from the same head?"),
    (of_embeddings(candidates=torch.zeros(3, 4).double()), ShapeError, "one dtype, got torch.float32 and torch.float64"),
    (of_embeddings(candidates=torch.zeros(3, 4, device="meta")), ShapeError, "one device, got cpu and meta"),
    (of_embeddings(queries=torch.zeros(4)), ShapeError, "queries must be a floating-point matrix (number, dim)"),
    (of_embeddings(ranks=R.T), ShapeError, "(queries, candidates) = (2, 3), got (3, 2)"),
    (of_embeddings(ranks=lambda a, b: R[:, :1]), ShapeError, "ranks(0, 2) must return rows 0 to 1"),
    (of_embeddings(ranks=R + 5), DataError, "rank 5 but there are only 1 terms"),
    (of_embeddings(block_size=0), ConfigError, "block_size must be a whole number, at least 1; got 0"),
    (lambda: TableRanks(torch.zeros(2, 3).int()), ShapeError, "square matrix (classes, classes), got shape (2, 3)"),
    (lambda: TableRanks(torch.zeros(2, 2)), ShapeError, "got torch.float32; for similarities use from_similarity"),
    (lambda: TableRanks(torch.full((2, 2), 200)), DataError, "ranks from -1 to 127, got 200 to 200"),
    (lambda: TableRanks.from_superclasses([0.5]), ShapeError, "one integer per class, got torch.float64"),
    (lambda: TableRanks.from_tree(["a/b", "a/b"]), DataError, "'a/b' stands for both class 0 and class 1"),
    (lambda: TableRanks.from_tree(["a//b"]), DataError, "path 'a//b' has an empty part"),
    (lambda: TableRanks.from_tree([]), DataError, "paths is empty; give one path per class"),
    (lambda: TableRanks.from_similarity(torch.eye(2)[:1], [0.5]), ShapeError, "of shape (1, 2)"),
    (lambda: TableRanks.from_similarity(torch.eye(2) * NAN, [0.5]), DataError, "classes 0 and 0 is NaN"),
    (
        lambda: TableRanks.from_similarity(torch.tensor([[1.0, 0.5], [0.2, 1.0]]), [0.5]),
        DataError,
        "classes 0 and 1 is 0.5 one way and 0.2 the other; take their mean",
    ),
    (lambda: TableRanks.from_similarity(torch.eye(2), [0.4, 0.5]), ConfigError, "got (0.4, 0.5)"),
    (lambda: TableRanks.from_similarity(torch.eye(2), []), ConfigError, "thresholds must fall"),
    (
        lambda: TableRanks.from_superclasses([0, 0])(torch.tensor([2]), torch.tensor([0])),
        DataError,
        "query_labels holds 2, but the table has 2 classes: labels go from 0 to 1",
    ),
    (lambda: TableRanks.from_superclasses([0])(torch.tensor([-1]), torch.tensor([0])), DataError, "labels start at 0"),
    (lambda: rince.InstanceRanks()(torch.tensor([0.0]), torch.tensor([0])), ShapeError, "vector of integers"),
    (lambda: parse("probe/kth/accuracy"), DataError, "there is no metric 'probe/kth/accuracy'; there are finetune/accuracy"),
    (lambda: view_ranks(-2, queries=1), DataError, "between -1 and 127, got -2"),
    (lambda: MemoryBank(0, 2), ConfigError, "size must be a whole number, at least 1; got 0"),
    (lambda: MemoryBank(4, 2, start="full"), ConfigError, "'empty' or 'random', got 'full'"),
    (push(torch.zeros(5, 2), torch.zeros(5).long()), ShapeError, "5 keys does not fit a bank of 4; use a bank of at least"),
    (push(torch.zeros(1, 3), torch.zeros(1).long()), ShapeError, "keys must be (number, 2) for this bank, got torch.float32 of shape (1, 3); a bank has"),
    (push(torch.zeros(2, 2), torch.zeros(1).long()), ShapeError, "one integer per key, (2,), got torch.int64 of shape (1,)"),
    (push(torch.zeros(1, 2), torch.zeros(1)), ShapeError, "one integer per key, (1,), got torch.float32"),
    (push(torch.full((1, 2), NAN), torch.zeros(1).long()), DataError, "1 of 1 keys hold NaN"),
    (push(torch.zeros(1, 2, requires_grad=True), torch.zeros(1).long()), DataError, "push keys.detach()"),
    (push(torch.zeros(1, 2), torch.tensor([-1])), DataError, "labels start at 0, got -1"),
    (lambda: MemoryBank(4, 2).similarities(torch.zeros(1, 3)), ShapeError, "queries must be (number, 2) for this bank, got torch.float32 of shape (1, 3)"),
    (lambda: MomentumTwin(nn.Linear(1, 1), 1.0), ConfigError, "below 1, got 1.0"),
    (lambda: MomentumTwin(nn.Linear(1, 1), buffers="mean"), ConfigError, "'own' or 'copy', got 'mean'"),
    (lambda: MomentumTwin(nn.Linear(1, 1)).update(nn.Linear(2, 1)), ShapeError, "'weight' has shape (1, 2) in the source"),
    (lambda: MomentumTwin(nn.Linear(1, 1)).update(nn.ReLU()), ShapeError, "'bias' is only in the twin"),
    (
        lambda: contrast(nn.Identity(), MomentumTwin(nn.Identity()), MemoryBank(2, 2), rince.InstanceRanks(),
                         torch.zeros(1, 2), [], torch.zeros(1).long()),
        ShapeError,
        "got 0 key_views and own_ranks for 1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[case[2][:50] for case in CASES])
def test_the_message_echoes_and_advises(call, error, text):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert text in message
    assert "\n" not in message
    assert isinstance(caught.value, rince.RinceError)


def test_falling_temperatures_on_request():
    assert RankedInfoNCE.in_((0.2, 0.1), allow_any_order=True).terms[0].temperature == 0.2


def test_a_refused_push_changes_nothing():
    bank = MemoryBank(4, 2)
    before = {name: value.clone() for name, value in bank.state_dict().items()}
    with pytest.raises(DataError):
        bank.push(torch.full((1, 2), NAN), torch.tensor([0]))
    assert all(torch.equal(before[name], value) for name, value in bank.state_dict().items())
