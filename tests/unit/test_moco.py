import torch
import torch.nn.functional as F
from torch import nn

from rince import InstanceRanks, MemoryBank, MomentumTwin, RankedInfoNCE, TableRanks
from rince.moco import contrast


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        return F.normalize(self.linear(x), dim=1)


def setup(size=7):
    torch.manual_seed(0)
    encoder = Unit()
    twin = MomentumTwin(encoder)
    with torch.no_grad():
        encoder.linear.weight.add_(0.3)
    bank = MemoryBank(size, 3)
    bank.push(F.normalize(torch.randn(4, 3), dim=1), torch.tensor([0, 1, 2, 0]))
    return encoder, twin, bank


def test_columns_are_own_keys_then_the_bank():
    encoder, twin, bank = setup()
    view, keys = torch.randn(2, 5), [torch.randn(2, 5) for _ in range(3)]
    source = TableRanks.from_superclasses([0, 0, 1])
    step = contrast(encoder, twin, bank, source, view, keys, torch.tensor([0, 2]), own_ranks=(1, 2, -1))
    own = [[[1, -1], [-1, 1]], [[2, -1], [-1, 2]], [[-1, -1], [-1, -1]]]
    bank_ranks = [[1, 2, 0, 1, -1, -1, -1], [0, 0, 1, 0, -1, -1, -1]]
    assert step.ranks.tolist() == [own[0][q] + own[1][q] + own[2][q] + bank_ranks[q] for q in range(2)]
    queries = encoder(view)
    for q in range(2):
        for v in range(3):
            expected = (queries[q] @ twin(keys[v])[q]).item()
            assert abs(step.similarities[q, 2 * v + q].item() - expected) < 1e-6
        torch.testing.assert_close(step.similarities[q, 6:], bank.keys @ queries[q])
    assert len(step.keys) == 3
    assert not any(key.requires_grad for key in step.keys)


def test_only_the_encoder_gets_a_gradient():
    encoder, twin, bank = setup()
    views = torch.randn(2, 4, 5)
    step = contrast(encoder, twin, bank, InstanceRanks(), views[0], [views[1]], torch.arange(4))
    loss = RankedInfoNCE.in_((0.1,))
    output = loss.from_embeddings(step.queries, step.candidates, step.ranks)
    torch.testing.assert_close(output.total, loss(step.similarities, step.ranks).total)
    bank.push(step.keys[0], torch.arange(4))  # a push before the backward pass is safe
    output.total.backward()
    assert all(p.grad is not None for p in encoder.parameters())
    assert all(p.grad is None for p in twin.parameters())


def test_a_key_may_be_missing_for_some_queries():
    encoder, twin, bank = setup()
    view, keys = torch.randn(2, 5), [torch.randn(2, 5) for _ in range(2)]
    own = torch.tensor([[1, 1], [2, -1]])  # the second query has no second key
    step = contrast(encoder, twin, bank, InstanceRanks(same=-1), view, keys, torch.tensor([0, 7]), own_ranks=own)
    # Past keys of the same sample take no part: sample 0 is in the bank twice, sample 7 is not.
    assert step.ranks.tolist() == [
        [1, -1, 2, -1, -1, 0, 0, -1, -1, -1, -1],
        [-1, 1, -1, -1, 0, 0, 0, 0, -1, -1, -1],
    ]
