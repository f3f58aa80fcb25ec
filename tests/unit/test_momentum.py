import pytest
import torch
from torch import nn

from rince import MomentumTwin


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_shares_no_storage_and_takes_no_gradient():
    source = network()
    twin = MomentumTwin(source)
    theirs = {tensor.data_ptr() for tensor in (*source.parameters(), *source.buffers())}
    ours = {tensor.data_ptr() for tensor in (*twin.parameters(), *twin.buffers())}
    assert len(theirs) == len(ours) == 9
    assert not theirs & ours
    assert not twin(torch.randn(4, 3, requires_grad=True)).requires_grad
    assert not any(p.requires_grad for p in twin.parameters())
    assert all(p.requires_grad for p in source.parameters())


def test_follows_by_the_formula():
    source = network()
    twin = MomentumTwin(source, momentum=0.9)
    expected = {name: p.detach().tolist() for name, p in source.named_parameters()}
    for _ in range(3):
        with torch.no_grad():
            for p in source.parameters():
                p.add_(torch.randn_like(p))
        twin.update(source)
        for name, p in source.named_parameters():
            old = torch.tensor(expected[name], dtype=torch.float64)
            expected[name] = (0.9 * old + 0.1 * p.detach().double()).tolist()
    for name, p in twin.module.named_parameters():
        torch.testing.assert_close(p.double(), torch.tensor(expected[name], dtype=torch.float64), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["own", "copy"])
def test_running_statistics(policy):
    source = network()
    twin = MomentumTwin(source, buffers=policy)
    source(torch.randn(8, 3) + 5)
    twin(torch.randn(8, 3) - 5)
    own = twin.module[1].running_mean.clone()
    twin.update(source)
    expected = own if policy == "own" else source[1].running_mean
    assert torch.equal(twin.module[1].running_mean, expected)
    assert not torch.equal(own, source[1].running_mean)


def test_state_dict_round_trip_continues_exactly():
    source = network()
    twin = MomentumTwin(source, momentum=0.5)
    twin(torch.randn(8, 3))
    copy = MomentumTwin(network(), momentum=0.5)
    copy.load_state_dict(twin.state_dict())
    for one in (twin, copy):
        one.update(source)
    for name, value in twin.state_dict().items():
        assert torch.equal(copy.state_dict()[name], value), name
    assert len(twin.state_dict()) == 9
