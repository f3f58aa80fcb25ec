"""What the first call of a loss says of its inputs, and that no later call looks."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import rince
from oracles.pretend_device import PretendDevice
from oracles.pretend_device import pretend as moved
from rince import EXCLUDED, RankedInfoNCE, TableRanks
from rince.first_look import FirstLook

LABELS = torch.arange(8) % 4
RANKS = TableRanks.from_superclasses([0, 0, 1, 1])(LABELS, LABELS)
APART = RANKS.clone().fill_diagonal_(EXCLUDED)
LONG = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
UNIT = F.normalize(LONG, dim=1)
OTHERS = F.normalize(torch.randn(8, 16, generator=torch.Generator().manual_seed(1)), dim=1)


def said(loss, *inputs, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss.from_embeddings(*inputs, **options)
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


def new():
    return RankedInfoNCE.in_((0.1, 0.2))


@pytest.mark.parametrize("candidates", [UNIT, UNIT.clone()], ids=["the same object", "the same numbers"])
@pytest.mark.parametrize("ranks", [RANKS, lambda start, stop: RANKS[start:stop]], ids=["matrix", "rows"])
def test_queries_that_are_their_own_candidates_are_told_once(candidates, ranks):
    loss = new()
    (text,) = said(loss, UNIT, candidates, ranks)
    assert "ranks.fill_diagonal_(rince.EXCLUDED)" in text
    assert said(loss, UNIT, candidates, ranks) == []


def test_other_lengths_are_told_once_with_what_to_write():
    loss = new()
    (text,) = said(loss, LONG, torch.cat([UNIT[:3], 2 * OTHERS[3:]]), RANKS)
    assert "8 of 8 queries and 5 of 8 candidates are not of unit length" in text
    assert "normalize=True" in text
    assert said(loss, LONG, LONG, APART) == []


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_right_inputs_are_silent(kind):
    assert said(new(), UNIT.to(kind), UNIT.to(kind), APART) == []
    assert said(new(), OTHERS[:5].to(kind), UNIT.to(kind), RANKS[:5]) == []
    assert said(new(), UNIT[:5].to(kind), UNIT.to(kind), APART[:5]) == []
    bank = torch.cat([OTHERS[:4], torch.zeros(4, 16)])  # as it starts
    assert said(new(), UNIT.flip(0).to(kind), bank.to(kind), RANKS) == []
    assert said(new(), torch.zeros(8, 16, dtype=kind), bank.to(kind), RANKS) == []
    copies = torch.cat([UNIT[:3], OTHERS[3:]])  # some samples have copies
    assert said(new(), UNIT.to(kind), copies.to(kind), RANKS) == []
    twice, ranks = torch.cat([UNIT, UNIT]), torch.cat([torch.cat([RANKS, RANKS], dim=1)] * 2).fill_diagonal_(EXCLUDED)
    assert said(new(), twice.to(kind), twice.to(kind), ranks) == []  # two views may be alike


@pytest.mark.parametrize(
    ("queries", "candidates", "ranks", "told"),
    [
        (UNIT[:4], UNIT, RANKS[:4], "query 0 is candidate 0, of rank 1"),
        (UNIT, torch.cat([OTHERS, UNIT]), torch.cat([RANKS, RANKS], dim=1), "query 0 is candidate 8, of rank 1"),
    ],
    ids=["a part against all", "behind others"],
)
def test_queries_among_other_candidates_are_told(queries, candidates, ranks, told):
    (text,) = said(new(), queries, candidates, ranks)
    assert told in text
    assert text.startswith("RankedInfoNCE.from_embeddings: ")


def test_warnings_name_the_function_that_was_called_and_point_at_the_caller(monkeypatch):
    monkeypatch.setattr("rince.loss._LOOK_OF_THE_FUNCTION", FirstLook())
    ways = {
        "RankedInfoNCE.from_embeddings": lambda: new().from_embeddings(LONG, UNIT, RANKS),
        "ranked_info_nce_from_embeddings": lambda: rince.ranked_info_nce_from_embeddings(
            LONG, UNIT, RANKS, new().terms
        ),
    }
    for name, call in ways.items():
        with pytest.warns(UserWarning, match="not of unit length") as caught:
            call()
        assert [each.filename for each in caught] == [__file__]
        assert f"{name}: 8 of 8 queries are" in str(caught[0].message)
        assert f"write {name}(…, normalize=True)" in str(caught[0].message)
    with pytest.warns(UserWarning, match="not of unit length") as caught:
        rince.in_batch(LONG, LABELS).loss(new())
    assert caught[0].filename == __file__
    assert "InBatch.loss: " in str(caught[0].message) or "Batch" in str(caught[0].message).partition(":")[0]


def test_normalize_gives_unit_length_and_its_gradient():
    long, again = LONG.clone().requires_grad_(), LONG.clone().requires_grad_()
    loss = new()
    assert said(loss, long, long, APART, normalize=True) == []
    total = loss.from_embeddings(long, long, APART, normalize=True).total
    unit = again / again.norm(dim=1, keepdim=True)
    expected = loss(unit @ unit.T, APART).total
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(
        torch.autograd.grad(total, long), torch.autograd.grad(expected, again), rtol=1e-4, atol=1e-5
    )
    function = rince.ranked_info_nce_from_embeddings(long, long, APART, loss.terms, normalize=True)
    torch.testing.assert_close(function, expected)


def test_no_later_call_pays():
    with PretendDevice() as device:
        loss, inputs = new(), moved((OTHERS[:5], UNIT, RANKS[:5]))
        loss.from_embeddings(*inputs)
        assert device.reads
        device.reads.clear()
        loss.from_embeddings(*inputs)
        assert device.reads == []
