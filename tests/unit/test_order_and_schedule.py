import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rince.config import ScheduleSettings, load_recipe
from rince.errors import ConfigError, DataError
from rince.sources.feed import Feed
from rince.sources.order import BalancedOrder, Order, OrderOfSome
from rince.sources.part import others
from rince.train.schedules import learning_rates, plateau_factor


@given(number=st.integers(1, 50), batch=st.integers(1, 20), seed=st.integers(0, 99), epoch=st.integers(0, 5))
@settings(deadline=None, max_examples=50)
def test_every_sample_once_per_epoch(number, batch, seed, epoch):
    order = Order(number, batch, seed)
    ids = [order.ids(epoch, step) for step in range(order.steps_per_epoch)]
    assert sorted(torch.cat(ids).tolist()) == list(range(number))
    assert all(len(part) == batch for part in ids[:-1])


def test_parts_of_processes_make_the_batch():
    order, samples = Order(100, 33, seed=1), SimpleNamespace(labels=torch.zeros(100, dtype=torch.int64))
    feed = Feed(samples, order, seed=0, device=torch.device("cpu"), processes=4)
    for step in range(order.steps_per_epoch):
        epoch, parts = feed.parts(2 * order.steps_per_epoch + step)
        assert epoch == 2
        assert len(parts) == 4
        assert torch.equal(torch.cat(parts), order.ids(2, step))
    assert order.steps_per_epoch == 4
    assert Order(100, 33, seed=1, keep_last=False).steps_per_epoch == 3


def test_epochs_and_seeds_differ_and_are_repeatable():
    orders = [Order(500, 50, seed).epoch(epoch).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert Order(500, 10, 0).epoch(0).tolist() == orders[0]
    assert abs(torch.corrcoef(torch.tensor(orders[:2], dtype=torch.float64))[0, 1]) < 0.15


def test_no_batch_at_all_is_an_error():
    with pytest.raises(DataError, match="20 samples make no batch of 32"):
        Order(20, 32, 0, keep_last=False)


def test_a_balanced_epoch_has_as_many_samples_of_a_small_class_as_of_a_large_one():
    labels = torch.tensor([0] * 80 + [1] * 7 + [2] * 13)
    order = BalancedOrder(labels, 10, seed=3)
    ids = torch.cat([order.ids(1, step) for step in range(order.steps_per_epoch)])
    assert labels[ids].bincount().tolist() in ([34, 33, 33], [33, 34, 33], [33, 33, 34])
    assert [len(ids[labels[ids] == label].unique()) for label in range(3)][1:] == [7, 13]  # all, again and again
    assert len(ids[labels[ids] == 0].unique()) >= 33  # none of them twice
    assert not torch.equal(order.ids(0, 0), order.ids(1, 0))
    assert torch.equal(BalancedOrder(labels, 10, seed=3).ids(1, 4), ids[40:50])
    with pytest.raises(DataError, match="100 samples make no batch of 128"):
        BalancedOrder(labels, 128, seed=0)


def test_the_papers_schedule():
    """Cosine by epoch, counted from 1, to lr/1000; a warm-up by step from 0.01 to the cosine's value at epoch 10."""
    rates = learning_rates(load_recipe("cifar100/rince-in"), steps_per_epoch=98)
    assert len(rates) == 98_000

    def cosine(epoch):
        return 0.0005 + (0.5 - 0.0005) * (1 + math.cos(math.pi * epoch / 1000)) / 2

    assert rates[0] == 0.01
    assert rates[490] == pytest.approx((0.01 + cosine(10)) / 2)
    assert rates[980] == pytest.approx(cosine(11))
    assert len(set(rates[980 : 980 + 98])) == 1
    assert rates[-1] == pytest.approx(0.0005)
    assert learning_rates(load_recipe("cifar100/rince-in", ["schedule.kind=constant"]), 98)[-1] == 0.5


@pytest.mark.parametrize("floor", [0.0, 1e-3, 0.25])
def test_a_cosine_by_step_is_torchs_scheduler_stepped_at_every_step(floor):
    changes = ["schedule.kind=cosine-by-step", "train.epochs=7", f"schedule.floor={floor}", "schedule.warmup_epochs=0"]
    rates = learning_rates(load_recipe("cifar100/rince-in", changes), steps_per_epoch=13)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7 * 13, eta_min=floor * 0.5)
    expected = []
    for _ in range(7 * 13):
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_cosine_by_step_takes_over_from_its_warm_up():
    """The warm-up rises to the cosine's value at the step where it ends; from there on it is the plain cosine."""
    changes = ["schedule.kind=cosine-by-step", "train.epochs=10", "schedule.floor=0", "schedule.warmup_epochs=2"]
    rates = learning_rates(load_recipe("cifar100/rince-in", changes), steps_per_epoch=5)
    cosine = [0.25 * (1 + math.cos(math.pi * step / 50)) for step in range(50)]
    assert rates[10:] == pytest.approx(cosine[10:])
    assert rates[:10] == pytest.approx([0.01 + (cosine[10] - 0.01) * step / 10 for step in range(10)])
    with pytest.raises(ConfigError, match=r"warmup_epochs \(10\) must be below train.epochs"):
        load_recipe("cifar100/rince-in", [*changes, "schedule.warmup_epochs=10"])


@given(number=st.integers(20, 60), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_samples_held_out_are_in_no_epoch(number, seed):
    held_out = set(range(3, number, 5))
    order = OrderOfSome(Order(number - len(held_out), 7, seed), others(torch.tensor(sorted(held_out)), number))
    for epoch in (0, 3):
        trained = [int(i) for step in range(order.steps_per_epoch) for i in order.ids(epoch, step)]
        assert sorted(trained) == [i for i in range(number) if i not in held_out]
    assert order.steps_per_epoch == -(-(number - len(held_out)) // 7)


@given(
    losses=st.lists(st.floats(0.1, 5.0), max_size=40),
    patience=st.integers(0, 4),
    factor=st.sampled_from([0.1, 0.5]),
)
@example(losses=[1.0] * 40, patience=1, factor=0.1)  # down to the floor
@settings(deadline=None, max_examples=60)
def test_the_rate_falls_as_torchs_scheduler_lets_it(losses, patience, factor):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=patience, factor=factor, min_lr=1e-3)
    settings_ = ScheduleSettings(kind="plateau", patience=patience, factor=factor)
    assert plateau_factor(settings_, []) == 1
    for number, loss in enumerate(losses, start=1):
        scheduler.step(loss)
        expected = max(optimizer.param_groups[0]["lr"], 1e-3)
        assert plateau_factor(settings_, losses[:number]) == pytest.approx(expected)
    assert plateau_factor(ScheduleSettings(kind="cosine"), losses) == 1


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_cosine_of_few_epochs_goes_by_step(epochs):
    """Set once per epoch, the last of two would be at a thousandth of the rate, and so would the only one."""
    changes = [f"train.epochs={epochs}", "schedule.warmup_epochs=0", "optimizer.lr=1", "schedule.floor=0"]
    rates = learning_rates(load_recipe("demo/rince-in", changes), 50)
    assert rates == pytest.approx([(1 + math.cos(math.pi * s / (50 * epochs))) / 2 for s in range(50 * epochs)])


def test_plateaus_stop_at_the_floor_as_torch_does():
    settings, network = ScheduleSettings(kind="plateau", patience=0, floor=0.005), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=2.0)
    oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, min_lr=0.005 * 2.0)
    for seen in range(1, 8):
        oracle.step(1.0)
        assert 2.0 * plateau_factor(settings, [1.0] * seen) == pytest.approx(optimizer.param_groups[0]["lr"])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
