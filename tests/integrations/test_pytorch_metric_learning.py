"""Ours inside pytorch-metric-learning: against plain loops, and against its own losses where they coincide."""

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import distances, losses, miners, reducers

from oracles.naive_loss import naive_loss
from rince import ConfigError, DataError, RankedInfoNCE, TableRanks
from rince.integrations.pytorch_metric_learning import CrossBatchMemory, RankedLoss

GENERATOR = torch.Generator().manual_seed(0)
EMBEDDINGS = F.normalize(torch.randn(16, 6, generator=GENERATOR, dtype=torch.float64), dim=1)
LABELS = torch.arange(16) % 6
RANKS = TableRanks.from_superclasses([0, 0, 1, 1, 2, 2])
OURS = RankedInfoNCE.out_in((0.1, 0.2))
TERMS = [(0.1, "out", False), (0.2, "in", False)]


def test_the_value_is_that_of_a_plain_loop():
    ranks = RANKS(LABELS, LABELS).fill_diagonal_(-1)
    expected = naive_loss((EMBEDDINGS @ EMBEDDINGS.T).tolist(), ranks.tolist(), TERMS)
    assert float(RankedLoss(OURS, RANKS)(EMBEDDINGS, LABELS)) == pytest.approx(expected, abs=1e-9)


def test_one_out_term_of_pairs_is_their_ntxent():
    """With one positive per query, a mean over queries is a mean over pairs."""
    labels = torch.arange(16) // 2
    own = RankedLoss(RankedInfoNCE.out([0.2]), TableRanks(torch.eye(8, dtype=torch.int8)))
    assert float(own(EMBEDDINGS, labels)) == pytest.approx(float(losses.NTXentLoss(0.2)(EMBEDDINGS, labels)), abs=1e-6)


def test_distances_are_taken_as_the_library_does():
    labels = torch.arange(16) // 2
    far = distances.LpDistance(normalize_embeddings=True, p=2, power=2)
    own = RankedLoss(RankedInfoNCE.out([0.2]), TableRanks(torch.eye(8, dtype=torch.int8)), distance=far)
    # Squared distances of unit vectors are 2 - 2 · cosine: the loss of cosines at half the temperature.
    assert float(own(EMBEDDINGS, labels)) == pytest.approx(float(losses.NTXentLoss(0.1)(EMBEDDINGS, labels)), abs=1e-6)


def test_reducers_see_every_rank_by_query():
    own = RankedLoss(OURS, RANKS, reducer=reducers.DoNothingReducer())
    made = own(EMBEDDINGS, LABELS)
    assert list(made) == ["rank_1", "rank_2"]
    assert all(part["reduction_type"] == "element" for part in made.values())
    assert made["rank_1"]["losses"].shape == (16,)


def test_pairs_that_nobody_names_are_excluded():
    pairs = miners.BatchEasyHardMiner()(EMBEDDINGS, LABELS)  # one positive and one negative for every query
    first, positives, second, negatives = (each.tolist() for each in pairs)
    named = {*zip(first, positives, strict=True), *zip(second, negatives, strict=True)}
    table = RANKS(LABELS, LABELS).tolist()
    ranks = [[table[q][c] if (q, c) in named else -1 for c in range(16)] for q in range(16)]
    expected = naive_loss((EMBEDDINGS @ EMBEDDINGS.T).tolist(), ranks, TERMS)
    assert float(RankedLoss(OURS, RANKS)(EMBEDDINGS, LABELS, pairs)) == pytest.approx(expected, abs=1e-9)


def test_their_memory_admits_ours():
    with pytest.raises(Exception, match="not supported for RankedLoss"):
        losses.CrossBatchMemory(RankedLoss(OURS, RANKS), 6)
    memory = CrossBatchMemory(RankedLoss(OURS, RANKS), 6, memory_size=32)
    alone = float(memory(EMBEDDINGS.clone(), LABELS))
    assert alone == pytest.approx(float(RankedLoss(OURS, RANKS)(EMBEDDINGS, LABELS)), abs=1e-9)  # itself left out
    other = F.normalize(EMBEDDINGS.roll(1, 0) + 0.1, dim=1).requires_grad_()
    value = memory(other, LABELS)
    both, labels = torch.cat([EMBEDDINGS, other.detach()]), LABELS.repeat(2)
    ranks = RANKS(LABELS, labels)
    ranks[:, 16:].fill_diagonal_(-1)
    expected = naive_loss((other.detach() @ both.T).tolist(), ranks.tolist(), TERMS)
    assert float(value.detach()) == pytest.approx(expected, abs=1e-9)
    value.backward()
    assert other.grad.abs().sum() > 0


def test_nothing_to_compare_with_is_worth_nothing():
    assert float(RankedLoss(OURS, RANKS)(EMBEDDINGS[:0], LABELS[:0])) == 0


def test_what_has_no_value_per_query_is_refused():
    with pytest.raises(ConfigError, match="means over pairs, and reducers get one value per query"):
        RankedLoss(RankedInfoNCE.out([0.1], over_positives="pooled"), RANKS)
    with pytest.raises(ConfigError, match=r"loss must be a rince.RankedInfoNCE, got SupConLoss"):
        RankedLoss(losses.SupConLoss(), RANKS)
    with pytest.raises(ConfigError, match="rank_source is called with labels"):
        RankedLoss(OURS, RANKS.table)
    with pytest.raises(DataError, match="ranks holds rank 2 but there are only 1 terms"):
        RankedLoss(RankedInfoNCE.out([0.1]), RANKS)(EMBEDDINGS, LABELS)
    with pytest.raises(ConfigError, match="ranks go by labels"):
        RankedLoss(OURS, RANKS)(EMBEDDINGS, None, tuple(torch.tensor([i]) for i in (0, 1, 0, 2)))
