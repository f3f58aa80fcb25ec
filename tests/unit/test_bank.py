from collections import deque

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from rince import MemoryBank, RankTerm, TableRanks, ranked_info_nce

SIZE, DIM = 5, 2


def batch(start, number):
    numbers = torch.arange(start, start + number)
    return numbers[:, None].expand(number, DIM).float(), numbers


@given(st.lists(st.integers(0, SIZE), max_size=12))
@settings(deadline=None)
def test_is_a_deque_of_limited_length(sizes):
    bank, oracle = MemoryBank(SIZE, DIM), deque(maxlen=SIZE)
    pushed = 0
    for number in sizes:
        bank.push(*batch(pushed, number))
        oracle.extend(range(pushed, pushed + number))
        pushed += number
        assert sorted(bank.labels[bank.labels >= 0].tolist()) == sorted(oracle)
        assert len(bank) == len(oracle)
        filled = bank.labels >= 0
        assert torch.equal(bank.keys[filled], bank.labels[filled, None].expand(-1, DIM).float())


@given(first=st.lists(st.integers(1, SIZE), max_size=5), then=st.lists(st.integers(1, SIZE), max_size=5))
@settings(deadline=None)
def test_a_reloaded_bank_continues_exactly(first, then):
    bank = MemoryBank(SIZE, DIM)
    for i, number in enumerate(first):
        bank.push(*batch(100 * i, number))
    copy = MemoryBank(SIZE, DIM)
    copy.load_state_dict(bank.state_dict())
    for i, number in enumerate(then):
        for one in (bank, copy):
            one.push(*batch(1000 + 100 * i, number))
    for name, value in bank.state_dict().items():
        assert torch.equal(copy.state_dict()[name], value), name


def test_push_is_in_place():
    bank = MemoryBank(SIZE, DIM)
    addresses = [tensor.data_ptr() for tensor in bank.buffers()]
    bank.push(*batch(0, 3))
    assert [tensor.data_ptr() for tensor in bank.buffers()] == addresses


def test_a_push_before_backward_does_not_change_the_gradient():
    """The order of events of the paper's code: loss, push, backward."""
    torch.manual_seed(0)
    bank = MemoryBank(8, 4, start="random")
    queries = F.normalize(torch.randn(3, 4), dim=1).requires_grad_()
    labels, source = torch.tensor([0, 1, 0]), TableRanks.from_superclasses([0, 1])
    bank.push(F.normalize(torch.randn(3, 4), dim=1), labels)

    def gradient(push_first):
        loss = ranked_info_nce(bank.similarities(queries), source(labels, bank.labels), [RankTerm(0.1)])
        if push_first:
            bank.push(F.normalize(torch.randn(3, 4), dim=1), labels)
        return torch.autograd.grad(loss, queries)[0]

    expected = gradient(push_first=False)
    assert torch.equal(gradient(push_first=True), expected)


def test_random_start_is_negatives_for_everyone():
    bank = MemoryBank(6, 3, start="random")
    assert len(bank) == 6
    torch.testing.assert_close(bank.keys.norm(dim=1), torch.ones(6))
    assert (TableRanks.from_superclasses([0, 0])(torch.tensor([0, 1]), bank.labels) == 0).all()
    assert torch.equal(bank.keys, MemoryBank(6, 3, start="random").keys)
    assert not torch.equal(bank.keys, MemoryBank(6, 3, start="random", seed=1).keys)


def test_empty_start_is_excluded():
    bank = MemoryBank(6, 3)
    assert len(bank) == 0
    assert (TableRanks.from_superclasses([0, 0])(torch.tensor([0, 1]), bank.labels) == -1).all()


def test_similarities_are_cosines():
    bank = MemoryBank(2, 2)
    bank.push(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([0, 1]))
    similarities = bank.similarities(torch.tensor([[0.0, 1.0]]))
    assert similarities.tolist()[0] == pytest.approx([0.0, 0.8])
