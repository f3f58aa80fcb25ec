"""The pretend device itself: right values, no mixing, every look at a value counted."""

import copy
import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oracles.pretend_device import CPU, PretendDevice, PretendTensor, real


@pytest.fixture
def pretend():
    with PretendDevice() as device:
        yield device


@pytest.fixture
def x(pretend):
    made = torch.arange(6.0, device=pretend.device).view(2, 3)
    assert made.device == pretend.device != CPU
    return made


MIXED = {
    "add": lambda x: x + torch.ones(3),
    "matmul": lambda x: x @ torch.ones(3, 2),
    "out": lambda x: torch.mm(torch.ones(2, 2), x, out=torch.empty(2, 3)),
    "in place": lambda x: torch.ones(2, 3).add_(x),
    "stack of numbers": lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
    "cat": lambda x: torch.cat([x, torch.ones(1, 3)]),
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "gather": lambda x: x.gather(1, torch.zeros(2, 1, dtype=torch.long)),
    "searchsorted": lambda x: torch.searchsorted(x, torch.ones(2, 1)),
    "indexing the CPU": lambda x: torch.ones(9)[x.long()],
    "foreach": lambda x: torch._foreach_lerp_([x], [torch.ones(2, 3)], 0.5),
    "masked_fill": lambda x: x.masked_fill(torch.ones(2, 3, dtype=torch.bool), 0.0),
    "linear": lambda x: F.linear(x, torch.ones(4, 3)),
    "cross entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1])),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_is_refused(name, x):
    with pytest.raises(RuntimeError, match="same device"):
        MIXED[name](x)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_mixing_is_refused_with_and_without_gradients(mode, x):
    with mode(), pytest.raises(RuntimeError, match="same device"):
        F.linear(x, torch.ones(4, 3))


ALLOWED = {
    "number of the CPU": (lambda x: x * torch.tensor(2.0), [[0, 2, 4], [6, 8, 10]]),
    "number in where": (lambda x: torch.where(x > 2, torch.tensor(9.0), x), [[0, 1, 2], [9, 9, 9]]),
    "index on the CPU": (lambda x: x[torch.tensor([1])], [[3, 4, 5]]),
    "list as an index": (lambda x: x[:, [2, 0]], [[2, 0], [5, 3]]),
    "written by a list": (lambda x: [x.__setitem__((0, [2, 0]), 9.0), x][1], [[9, 1, 9], [3, 4, 5]]),
    "written by a slice": (lambda x: [x.__setitem__(slice(1, 2), 9.0), x][1], [[0, 1, 2], [9, 9, 9]]),
    "shape changed in place": (lambda x: x.unsqueeze_(0).transpose_(1, 2).squeeze_(0), [[0, 3], [1, 4], [2, 5]]),
    "quantile": (lambda x: x.quantile(torch.tensor([0.5], device=x.device)), [2.5]),
    "full": (lambda x: torch.full((2,), 3.0, device=x.device) + 1, [4, 4]),
    "new": (lambda x: x.new_zeros(2) + 1, [1, 1]),
    "tensor": (lambda x: torch.tensor([1.0, 2.0], device=x.device) * x.new_tensor([3, 4]), [3, 8]),
    "as_tensor": (lambda x: torch.as_tensor([1, 2], device="meta") + torch.as_tensor(x[0, :2]), [1, 3]),
    "view written to": (lambda x: [x[0].fill_(7), x][1], [[7, 7, 7], [3, 4, 5]]),
    "diagonal": (lambda x: [x[:, :2].diagonal().copy_(torch.tensor([8.0, 9.0])), x][1], [[8, 1, 2], [3, 9, 5]]),
    "out": (lambda x: torch.mm(x, x.T, out=x.new_empty(2, 2)), [[5, 14], [14, 50]]),
    "to": (lambda x: torch.ones(2, dtype=torch.long).to(x.device, torch.float32), [1, 1]),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_an_accelerator_can_do_gives_the_values_of_the_cpu(name, x):
    work, expected = ALLOWED[name]
    made = work(x)
    assert isinstance(made, PretendTensor)
    assert real(made).tolist() == expected


READS = {
    "item": lambda x: x.sum().item(),
    "int": lambda x: int(x.max()),
    "float": lambda x: float(x.max()),
    "bool": lambda x: bool((x > 0).all()),
    "if": lambda x: 1 if x.sum() else 0,
    "format": lambda x: f"{x.sum():.1f}",
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu", torch.float64),
    "copy": lambda x: torch.empty(2, 3).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 2],
    "filling by a mask": lambda x: x.__setitem__(x > 2, 0.0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "contains": lambda x: 3 in x,
    "numpy by force": lambda x: x.numpy(force=True),
    "cholesky": lambda x: torch.linalg.cholesky(torch.eye(2, device=x.device)),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_a_look_at_values_is_counted_and_placed(name, mode, x, pretend):
    with mode():
        READS[name](x)
    assert len(pretend.reads) == 1
    assert "test_pretend_device.py" in pretend.reads[0]
    assert pretend.uploads == []


def test_work_on_the_device_is_no_look(x, pretend):
    y = x.exp().cumsum(1).masked_fill(x > 2, 0).amax(dim=1)
    torch.where(y > 1, y, 0).sort().values.index_add_(0, torch.arange(2, device=x.device), y)
    assert pretend.reads == []
    assert pretend.uploads == []


def test_what_comes_from_the_host_is_counted(x, pretend):
    for number, upload in enumerate(
        (
            lambda: torch.ones(2).to(x.device),
            lambda: torch.tensor([1.0], device=x.device),
            lambda: x[torch.tensor([0])],
            lambda: x.copy_(torch.ones(2, 3)),
        ),
        start=1,
    ):
        upload()
        assert len(pretend.uploads) == number
    assert pretend.reads == []


def test_numpy_is_refused(x):
    for convert in (x.numpy, lambda: np.asarray(x), lambda: np.from_dlpack(x)):
        with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
            convert()


def test_a_device_without_float64():
    with PretendDevice(float64=False) as pretend:
        x = torch.ones(2, device=pretend.device)
        for widen in (
            x.double,
            lambda: x.sum(dtype=torch.float64),
            lambda: torch.zeros(2, dtype=torch.float64, device=pretend.device),
            lambda: torch.ones(2, dtype=torch.float64).to(pretend.device),
            lambda: torch.tensor(np.ones(2), device=pretend.device),
        ):
            with pytest.raises(TypeError, match="no float64"):
                widen()
        assert x.cpu().double().dtype == torch.float64


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(196, 5)
    )


def train(optimizer, device):
    """Three steps; the optimizer is made before the module is moved, as loops may do."""
    module = network()
    optimizer = optimizer(module.parameters())
    module.to(device)
    torch.manual_seed(1)
    for _ in range(3):
        images, labels = torch.randn(8, 3, 16, 16).to(device), torch.randint(0, 5, (8,)).to(device)
        optimizer.zero_grad()
        F.cross_entropy(module(images), labels).backward()
        optimizer.step()
    return module, optimizer


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p, foreach: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4, foreach=foreach),
        lambda p, foreach: torch.optim.Adam(p, 0.01, foreach=foreach),
    ],
)
def test_a_training_gives_the_bits_of_the_cpu_without_a_look(optimizer, foreach, pretend):
    on_cpu, _ = train(lambda p: optimizer(p, foreach), CPU)
    on_device, _ = train(lambda p: optimizer(p, foreach), pretend.device)
    assert pretend.reads == []
    assert all(isinstance(p, nn.Parameter) and p.device == pretend.device for p in on_device.parameters())
    for (name, one), other in zip(on_cpu.state_dict().items(), on_device.state_dict().values(), strict=True):
        assert torch.equal(one, real(other)), name


def test_saved_and_loaded(pretend):
    module, optimizer = train(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), pretend.device)
    file = io.BytesIO()
    torch.save({"module": module.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, map_location="cpu", weights_only=True)
    assert {type(tensor) for tensor in saved["module"].values()} == {torch.Tensor}
    other = network().to(pretend.device)
    other.load_state_dict(saved["module"])
    again = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9)
    again.load_state_dict(saved["optimizer"])
    for one, two in zip(module.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    assert all(isinstance(state["momentum_buffer"], PretendTensor) for state in again.state.values())


def test_copies_and_the_way_back(pretend):
    module = network().to(pretend.device)
    twin = copy.deepcopy(module)
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        assert other is not one
        assert isinstance(other, PretendTensor)
    twin.cpu()
    assert {type(p) for p in twin.parameters()} == {nn.Parameter}
    assert {type(p) for p in module.parameters()} == {PretendTensor}


def test_torch_is_as_before_afterwards():
    before = torch.tensor, torch.as_tensor, torch.autocast, nn.Module._apply
    with PretendDevice(), pytest.raises(ZeroDivisionError):
        raise ZeroDivisionError
    assert before == (torch.tensor, torch.as_tensor, torch.autocast, nn.Module._apply)
    assert not isinstance(torch.ones(2, device="meta"), PretendTensor)
    assert PretendDevice.current is None
