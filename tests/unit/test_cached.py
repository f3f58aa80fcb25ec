"""A batch in chunks against the same batch in one piece, by torch's own graph."""

import copy

import pytest
import torch
from torch import nn

from rince import CachedLoss, ConfigError, RankedInfoNCE, ShapeError, TableRanks, in_batch

LOSS = RankedInfoNCE.out_in((0.1, 0.2))
LABELS = torch.arange(14) % 6
RANKS = TableRanks.from_superclasses([0, 0, 1, 1, 2, 2])
EXAMPLES = [torch.randn(14, 5, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(2)]


class Unit(nn.Module):
    def forward(self, x):
        return nn.functional.normalize(x, dim=1)


def network(*layers, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), *layers, nn.GELU(), nn.Linear(8, 4), Unit()).to(dtype)


def loss_of(*embeddings):
    return in_batch(list(embeddings), LABELS, RANKS).loss(LOSS)


def gradients(module):
    return torch.cat([weight.grad.flatten() for weight in module.parameters()])


@pytest.mark.parametrize("chunk", [1, 3, 14, 100])
def test_gradients_are_those_of_the_whole_batch(chunk):
    whole, parts = network(nn.LayerNorm(8)), network(nn.LayerNorm(8))
    expected = loss_of(*map(whole, EXAMPLES))
    expected.total.backward()
    output = CachedLoss(parts, chunk)(EXAMPLES, loss_of)
    torch.testing.assert_close(output.total, expected.total.detach(), rtol=0, atol=1e-12)
    assert not output.total.requires_grad
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=0, atol=1e-12)


def test_a_batch_of_one_view_as_a_mapping_and_any_loss_of_torch():
    whole, target = network(), torch.arange(14) % 4
    nn.functional.cross_entropy(whole(EXAMPLES[0]), target).backward()
    parts = network()

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = parts

        def forward(self, batch):
            return self.inner(batch["x"] + batch["shift"][:, None])

    batch = {"x": EXAMPLES[0] - 1, "shift": torch.ones(14)}
    value = CachedLoss(Named(), 4)(batch, lambda embeddings: nn.functional.cross_entropy(embeddings, target))
    assert value.shape == ()
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=0, atol=1e-12)


def test_dropout_is_replayed():
    """The graph of all chunks at once, drawn from the same state, is the oracle."""
    whole, parts = network(nn.Dropout(0.5)), network(nn.Dropout(0.5))
    torch.manual_seed(3)
    loss_of(*(torch.cat([whole(chunk) for chunk in view.split(4)]) for view in EXAMPLES)).total.backward()
    after = torch.get_rng_state()
    torch.manual_seed(3)
    CachedLoss(parts, 4)(EXAMPLES, loss_of)
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=0, atol=1e-12)
    assert torch.equal(torch.get_rng_state(), after)  # what follows draws as if there had been one pass


def test_generators_of_a_device_are_replayed(monkeypatch):
    """As those of CUDA and MPS are; here the device is the CPU, with a generator that counts."""
    counted = [0]
    monkeypatch.setattr(torch.cpu, "get_rng_state", lambda _: counted[0], raising=False)
    monkeypatch.setattr(torch.cpu, "set_rng_state", lambda state, _: counted.__setitem__(0, state), raising=False)
    seen = []

    class Drawn(nn.Module):
        def forward(self, x):
            counted[0] += 1
            seen.append(counted[0])
            return x * counted[0]

    CachedLoss(network(Drawn()), 5)(EXAMPLES, loss_of)
    assert seen == 2 * [1, 2, 3, 4, 5, 6]
    assert counted == [6]


def test_a_frozen_encoder_under_a_loss_that_learns():
    frozen, loss = network().requires_grad_(requires_grad=False), Learnable()
    CachedLoss(frozen, 4)(EXAMPLES, loss)
    assert loss.proxies.grad.abs().sum() > 0
    assert all(weight.grad is None for weight in frozen.parameters())


def test_batch_norm_is_refused_or_sees_a_chunk_and_moves_once():
    parts = network(nn.BatchNorm1d(8))
    with pytest.raises(ConfigError, match=r"batch normalisation in training mode \(1\), which mixes the samples"):
        CachedLoss(parts, 7)(EXAMPLES, loss_of)
    assert parts[1].num_batches_tracked == 0
    whole = copy.deepcopy(parts)
    loss_of(*(torch.cat([whole(chunk) for chunk in view.split(7)]) for view in EXAMPLES)).total.backward()
    CachedLoss(parts, 7, batch_norm="per-chunk")(EXAMPLES, loss_of)
    assert parts[1].num_batches_tracked == 4
    torch.testing.assert_close(parts[1].running_mean, whole[1].running_mean)
    torch.testing.assert_close(gradients(parts), gradients(whole), rtol=0, atol=1e-12)
    CachedLoss(parts.eval(), 7)(EXAMPLES, loss_of)  # which mixes nothing


def test_autocast_and_a_scaler():
    """Half precision in the encoder, full in the loss; what the scaler multiplies is in the gradients."""
    images = [view.float() for view in EXAMPLES]
    plain, scaled = network(dtype=torch.float32), network(dtype=torch.float32)
    seen = []

    def watched(*embeddings):
        seen.append((embeddings[0].dtype, (embeddings[0] @ embeddings[0].T).dtype))
        return loss_of(*embeddings)

    with torch.autocast("cpu", torch.bfloat16):
        CachedLoss(plain, 5)(images, watched)
        CachedLoss(scaled, 5, backward=lambda value: (value * 2**10).backward())(images, watched)
    assert seen == [(torch.float32, torch.float32)] * 2
    torch.testing.assert_close(gradients(scaled) / 2**10, gradients(plain), rtol=0.02, atol=1e-3)
    whole = network(dtype=torch.float32)
    loss_of(*map(whole, images)).total.backward()
    assert torch.cosine_similarity(gradients(plain), gradients(whole), dim=0) > 0.99


class Learnable(nn.Module):
    """A loss with parameters of its own: a logit scale, as in CLIP, and a proxy for every class."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=dtype))
        self.proxies = nn.Parameter(torch.linspace(-1, 1, 24, dtype=dtype).view(6, 4))
        self.untouched = nn.Parameter(torch.ones(1, dtype=dtype))

    def forward(self, *embeddings):
        return nn.functional.cross_entropy(torch.cat(embeddings) @ self.proxies.T * self.scale.exp(), LABELS.repeat(2))


@pytest.mark.parametrize("scale", [1.0, 2.0**12])
def test_parameters_of_the_loss_get_their_gradients(scale):
    whole, parts, loss, cached = network(), network(), Learnable(), Learnable()
    for _ in range(2):  # added to those that are there
        loss(*map(whole, EXAMPLES)).backward()
        CachedLoss(parts, 4, backward=lambda value: (value * scale).backward())(EXAMPLES, cached)
    torch.testing.assert_close(gradients(parts) / scale, gradients(whole), rtol=0, atol=1e-12)
    for name in ("scale", "proxies"):
        made, expected = (getattr(each, name).grad for each in (cached, loss))
        assert expected.abs().sum() > 0
        torch.testing.assert_close(made / scale, expected, rtol=0, atol=1e-12)
    assert cached.untouched.grad is None


def test_steps_with_a_scaler_of_torch_are_those_without():
    """16-mixed as people write it: scale, unscale, step, update; an infinite gradient skips the step and the scale falls."""
    images, networks = [view.float() for view in EXAMPLES], [network(dtype=torch.float32) for _ in range(2)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    plain, scaled = (torch.optim.SGD(each.parameters(), lr=0.1) for each in networks)
    for _ in range(3):
        plain.zero_grad()
        loss_of(*map(networks[0], images)).total.backward()
        plain.step()
        scaled.zero_grad()
        CachedLoss(networks[1], 5, backward=lambda value: scaler.scale(value).backward())(images, loss_of)
        assert gradients(networks[1]).norm() > 2.0**10 * gradients(networks[0]).norm()
        scaler.step(scaled)
        scaler.update()
    for one, other in zip(*(each.parameters() for each in networks), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
    before = [weight.clone() for weight in networks[1].parameters()]
    scaled.zero_grad()
    CachedLoss(networks[1], 5, backward=lambda value: scaler.scale(value).backward())(images, loss_of)
    networks[1][0].weight.grad[0, 0] = torch.inf
    scaler.step(scaled)
    scaler.update()
    assert scaler.get_scale() == 2.0**11
    assert all(map(torch.equal, before, networks[1].parameters()))


def test_processes_synchronise_in_the_last_chunk_alone():
    entered = []

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = network()

        def no_sync(self):
            entered.append(True)
            return torch.enable_grad()

        def forward(self, x):
            return self.module(x)

    CachedLoss(Wrapped(), 5)(EXAMPLES, loss_of)
    assert len(entered) == 5  # of six chunks


def test_a_process_may_have_no_samples():
    parts = network()
    CachedLoss(parts, 4)(torch.empty(0, 5, dtype=torch.float64), lambda embeddings: embeddings.sum())
    assert gradients(parts).abs().sum() == 0


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ("images", "a batch is a tensor or a mapping of tensors, got str"),
        ({"x": EXAMPLES[0], "mask": torch.ones(3)}, r"row for every sample, got \{'x': 14, 'mask': 3\} rows"),
    ],
)
def test_what_is_no_batch_is_refused(batch, message):
    with pytest.raises(ShapeError, match=message):
        CachedLoss(network(), 4)(batch, loss_of)


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (lambda one, _: one.sum(dim=1), ShapeError, r"scalar tensor, or what has one as `total`; got shape \(14,\)"),
        (lambda one, _: (one.sum(), 1), ShapeError, "what has one as `total`; got tuple"),
        (
            lambda one, _: one.detach().sum(),
            ConfigError,
            "has no gradient to the embeddings, so there is nothing to learn",
        ),
    ],
)
def test_what_is_no_loss_is_refused(loss, error, message):
    with pytest.raises(error, match=message):
        CachedLoss(network(), 4)(EXAMPLES, loss)


def test_what_is_no_encoder_is_refused():
    with pytest.raises(ConfigError, match=r"encoder must be a torch.nn.Module, got function"):
        CachedLoss(loss_of, 4)
    with pytest.raises(ConfigError, match="views is empty; give one batch for every view"):
        CachedLoss(network(), 4)([], loss_of)
    with pytest.raises(ConfigError, match=r"called under torch.no_grad"), torch.no_grad():
        CachedLoss(network(), 4)(EXAMPLES, loss_of)
