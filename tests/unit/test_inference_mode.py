"""`torch.inference_mode()` and `no_grad()`: everything works within, and what was made within works after."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rince import MemoryBank, MomentumTwin, RankedInfoNCE, SampleRanks, TableRanks
from rince.evaluation import ClassGaussians, linear_probe, neighbour_score, recall_at_k
from rince.moco import contrast

QUERIES, KEYS = (F.normalize(torch.randn(n, 8, generator=torch.Generator().manual_seed(n)), dim=1) for n in (6, 30))
RANKS = torch.randint(-1, 3, (6, 30), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
LABELS = torch.arange(30) % 3
MODES = [torch.inference_mode, torch.no_grad]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["in_", "out", "out_in"])
def test_the_loss_is_the_same_within(mode, name):
    loss = getattr(RankedInfoNCE, name)((0.1, 0.2))
    expected = loss(QUERIES @ KEYS.T, RANKS)
    divisor = torch.tensor([6.0, 7.0])
    divided = loss(QUERIES @ KEYS.T, RANKS, divisor).total.item()
    with mode():
        made_within = QUERIES.clone(), KEYS.clone(), RANKS.clone()
        for queries, keys, ranks in ((QUERIES, KEYS, RANKS), made_within):
            found = loss.from_embeddings(queries, keys, ranks)
            torch.testing.assert_close(found.total, expected.total)
            assert not found.total.requires_grad
            assert loss(queries @ keys.T, ranks).total.item() == pytest.approx(expected.total.item())
            parts = loss.from_embeddings(queries, keys, ranks, divisor=divisor.clone())
            assert parts.total.item() == pytest.approx(divided)
    after = loss.from_embeddings(*made_within)  # tensors of that mode, outside of it
    torch.testing.assert_close(after.total, expected.total)


def test_training_goes_on_after_a_look_within():
    loss, queries = RankedInfoNCE.in_((0.1, 0.2)), QUERIES.clone().requires_grad_()
    with torch.inference_mode():
        loss.from_embeddings(queries, KEYS, RANKS)
    loss.from_embeddings(queries, KEYS, RANKS).total.backward()
    dense = QUERIES.clone().requires_grad_()
    loss(dense @ KEYS.T, RANKS).total.backward()
    torch.testing.assert_close(queries.grad, dense.grad)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("protocol", ["fast", "paper"])
def test_a_probe_learns_within(mode, protocol):
    labels = {"train_labels": LABELS[:20], "test_labels": LABELS[20:]}
    expected = linear_probe(KEYS[:20], KEYS[20:], **labels, protocol=protocol)
    with mode():
        within = KEYS[:20].clone(), KEYS[20:].clone()
        assert linear_probe(*within, **labels, protocol=protocol).right.equal(expected.right)
    assert linear_probe(*within, **labels, protocol=protocol).right.equal(expected.right)


def test_a_function_of_the_epoch_is_called_without_gradients():
    network, seen = nn.Linear(8, 8), []

    def features(_):
        made = network(KEYS)
        seen.append(made.requires_grad)
        return made

    linear_probe(features, KEYS, train_labels=LABELS, test_labels=LABELS, protocol="paper")
    assert len(seen) == 100
    assert not any(seen)


@pytest.mark.parametrize("start", ["empty", "random"])
def test_a_bank_made_within_is_a_bank(start):
    with torch.inference_mode():
        bank = MemoryBank(4, 8, start=start)
        bank.push(KEYS[:2], LABELS[:2])
    bank.push(KEYS[2:5], LABELS[2:5])
    expected = MemoryBank(4, 8, start=start)
    expected.push(KEYS[:2], LABELS[:2])
    expected.push(KEYS[2:5], LABELS[2:5])
    assert all(bank.state_dict()[name].equal(value) for name, value in expected.state_dict().items())
    queries = QUERIES.clone().requires_grad_()
    bank.similarities(queries).sum().backward()
    assert queries.grad.isfinite().all()


def test_a_bank_that_was_moved_within_can_be_written_to():
    bank = MemoryBank(4, 8)
    with torch.inference_mode():
        bank.double().float()
    assert bank.keys.is_inference()
    bank.push(KEYS[:2], LABELS[:2])
    assert bank.keys[:2].equal(KEYS[:2])
    assert bank.labels.tolist() == [0, 1, -1, -1]


def test_a_twin_made_within_follows():
    encoder = nn.Linear(8, 8)
    with torch.inference_mode():
        twin = MomentumTwin(encoder, momentum=0.5)
    with torch.no_grad():
        encoder.weight += 1
    twin.update(encoder)
    torch.testing.assert_close(twin.module.weight, encoder.weight.detach() - 0.5)


def test_ranks_and_metrics_within_and_after():
    with torch.inference_mode():
        table, samples = TableRanks.from_superclasses([0, 0, 1]), SampleRanks(KEYS, [0.5], metric="euclidean")
        scores = ClassGaussians(KEYS, LABELS)
        table(LABELS, LABELS), samples(LABELS, LABELS)
        recall = recall_at_k(QUERIES, KEYS, query_labels=LABELS[:6], gallery_labels=LABELS)
    assert table(LABELS[:1], LABELS[:3]).tolist() == [[1, 2, 0]]
    assert samples(LABELS[:1], LABELS[:1]).tolist() == [[1]]
    torch.testing.assert_close(scores.score(QUERIES), ClassGaussians(KEYS, LABELS).score(QUERIES))
    assert recall == recall_at_k(QUERIES, KEYS, query_labels=LABELS[:6], gallery_labels=LABELS)
    assert neighbour_score(QUERIES, KEYS, k=2).shape == (6,)


@pytest.mark.filterwarnings("ignore:.*candidates hold the queries")  # it is about something else
def test_a_step_of_contrast_after_a_bank_made_within():
    encoder = nn.Linear(8, 8)
    with torch.inference_mode():
        bank = MemoryBank(10, 8)
    twin, loss = MomentumTwin(encoder), RankedInfoNCE.in_((0.1, 0.2))
    for _ in range(2):
        step = contrast(encoder, twin, bank, TableRanks.from_superclasses([0, 0, 1]), QUERIES, [QUERIES], LABELS[:6])
        loss.from_embeddings(step.queries, step.candidates, step.ranks, normalize=True).total.backward()
        bank.push(step.keys[0], LABELS[:6])
    assert encoder.weight.grad.isfinite().all()
