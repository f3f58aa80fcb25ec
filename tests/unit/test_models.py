"""Residual networks, heads and the encoder, against plain convolutions and numbers from the literature."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rince import ConfigError, MomentumTwin, ShapeError
from rince.encoders.encoder import Encoder
from rince.encoders.heads import mlp_head
from rince.encoders.resnet import ResNetModel, resnet

NARROW = {"width": 8, "stem": "small-stride2", "channels": 3, "norm": "batch", "head_hidden": None, "dim": 16}


def encoder(seed=0, **changes):
    settings = {"depth": 10} | NARROW | changes
    hidden, dim = settings.pop("head_hidden"), settings.pop("dim")
    torch.manual_seed(seed)
    network = resnet(settings.pop("depth"), **settings)
    return Encoder(network, mlp_head(network.feature_dim, network.feature_dim if hidden is None else hidden, dim))


def images(number=4, channels=3, side=16, seed=1, dtype=torch.float32):
    return torch.randn(number, channels, side, side, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def shake(module):
    """Gives every normalisation weights, biases and statistics that are not the trivial ones."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.ndim == 1:
                low = -0.5 if name.endswith(("bias", "running_mean")) else 0.5
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + low)
    return module


# Shapes and sizes


@pytest.mark.parametrize("stem", ["small", "small-stride2", "imagenet"])
@pytest.mark.parametrize(("depth", "growth"), [(10, 8), (18, 8), (34, 8), (50, 32)])
@pytest.mark.parametrize(("width", "channels", "norm"), [(4, 3, "batch"), (6, 1, "group")])
def test_shapes(stem, depth, growth, width, channels, norm):
    network = resnet(depth, width=width, channels=channels, stem=stem, norm=norm)
    assert network.feature_dim == growth * width
    network.eval()
    assert network(torch.randn(2, channels, 40, 24)).shape == (2, growth * width)
    assert network(torch.randn(0, channels, 40, 24)).shape == (0, growth * width)


@pytest.mark.parametrize("stem", ["small", "small-stride2", "imagenet"])
@pytest.mark.parametrize("depth", [10, 50])
def test_a_network_for_clips_does_to_a_still_what_one_for_images_does(stem, depth):
    """Its kernels are those of the flat network in the middle frame and zero before and after."""
    flat = shake(resnet(depth, width=4, stem=stem)).eval().double()
    deep = resnet(depth, width=4, stem=stem, dims=3).eval().double()
    inflated = {}
    for name, tensor in flat.state_dict().items():
        inflated[name] = tensor
        if tensor.ndim == 4:
            inflated[name] = torch.zeros(*tensor.shape[:2], tensor.shape[-1], *tensor.shape[2:], dtype=tensor.dtype)
            inflated[name][:, :, tensor.shape[-1] // 2] = tensor
    deep.load_state_dict(inflated, strict=True)
    some = images(side=32).double()
    torch.testing.assert_close(deep(some[:, :, None]), flat(some))


def test_the_stem_keeps_the_frames_of_a_clip_and_the_stages_halve_them():
    network = resnet(18, width=4, stem="imagenet", dims=3)
    clips = torch.zeros(1, 3, 16, 64, 64)
    assert network.stem[0](clips).shape == (1, 4, 16, 32, 32)
    assert network.stem(clips).shape == (1, 4, 8, 16, 16)
    assert network.stages(network.stem(clips)).shape == (1, 32, 1, 2, 2)
    # torchvision's r3d_18 has 33,371,472, with a classifier for 400 classes and 3 × 7 × 7 kernels in its stem.
    weights = 33_371_472 - (512 + 1) * 400 + 64 * 3 * 7 * 7 * (7 - 3)
    assert sum(p.numel() for p in resnet(18, stem="imagenet", dims=3).parameters()) == weights
    with pytest.raises(ShapeError, match=r"clips must have the shape \(batch, 3, time, height, width\)"):
        network(torch.zeros(1, 3, 64, 64))


@pytest.mark.parametrize(
    ("stem", "kernel", "stem_side", "last_side"),
    [("small", 3, 32, 4), ("small-stride2", 3, 16, 2), ("imagenet", 7, 8, 1)],
)
def test_resolution(stem, kernel, stem_side, last_side):
    network = resnet(10, width=4, stem=stem)
    maps = network.stem(torch.zeros(2, 3, 32, 32))
    assert network.stem[0].kernel_size == (kernel, kernel)
    assert maps.shape == (2, 4, stem_side, stem_side)
    assert network.stages(maps).shape == (2, 32, last_side, last_side)


@pytest.mark.parametrize(("depth", "parameters"), [(18, 11_176_512), (34, 21_284_672), (50, 23_508_032)])
def test_parameters_of_the_well_known_networks(depth, parameters):
    with torch.device("meta"):
        network = resnet(depth, stem="imagenet")
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_blocks_of_every_depth():
    def per_stage(network):
        return [len(stage) for stage in network.stages]

    assert per_stage(resnet(10, width=1)) == [1, 1, 1, 1]
    assert per_stage(resnet(34, width=1)) == [3, 4, 6, 3]
    assert per_stage(resnet(18, width=1)) == [2, 2, 2, 2]
    assert per_stage(resnet(50, width=1)) == [3, 4, 6, 3]
    assert resnet(50, width=2).eval()(torch.randn(1, 3, 16, 16)).shape == (1, 64)


def test_encoder_sizes():
    one = encoder()
    assert (one.feature_dim, one.dim) == (64, 16)
    assert [layer.weight.shape for layer in (one.head[0], one.head[2])] == [(64, 64), (16, 64)]
    other = encoder(head_hidden=24, dim=5, channels=1, depth=18, width=4, norm="group", stem="small")
    assert [layer.weight.shape for layer in (other.head[0], other.head[2])] == [(24, 32), (5, 24)]
    assert other(images(2, channels=1)).shape == (2, 5)
    assert Encoder(resnet(10, width=4), nn.Identity()).dim == 32


# The forward pass, from the weights alone


def normalised(maps, state, name):
    mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    return F.batch_norm(maps, mean, var, state[f"{name}.weight"], state[f"{name}.bias"], training=False)


def plain_features(state, pixels, *, strides, stem_stride, pool):
    """ResNet from the textbook; `strides` holds, per stage and block, the stride of each convolution."""
    kernel = state["stem.0.weight"]
    x = normalised(F.conv2d(pixels, kernel, stride=stem_stride, padding=kernel.shape[-1] // 2), state, "stem.1").relu()
    if pool:
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
    for stage, blocks in enumerate(strides):
        for block, conv_strides in enumerate(blocks):
            here = f"stages.{stage}.{block}"
            y = x
            for i, stride in enumerate(conv_strides):
                kernel = state[f"{here}.convs.{i}.weight"]
                y = normalised(
                    F.conv2d(y, kernel, stride=stride, padding=kernel.shape[-1] // 2), state, f"{here}.norms.{i}"
                )
                y = y if i == len(conv_strides) - 1 else y.relu()
            if f"{here}.shortcut.0.weight" in state:
                x = F.conv2d(x, state[f"{here}.shortcut.0.weight"], stride=max(conv_strides))
                x = normalised(x, state, f"{here}.shortcut.1")
            x = (x + y).relu()
    return x.flatten(2).sum(2) / (x.shape[2] * x.shape[3])


BASIC = [[(1, 1), (1, 1)]] + [[(2, 1), (1, 1)]] * 3
BOTTLENECK = [[(1, 1, 1)] * 3] + [[(1, 2, 1)] + [(1, 1, 1)] * (n - 1) for n in (4, 6, 3)]


@pytest.mark.parametrize(("stem", "stem_stride"), [("small", 1), ("small-stride2", 2), ("imagenet", 2)])
@pytest.mark.parametrize(("depth", "strides"), [(18, BASIC), (50, BOTTLENECK)])
def test_forward_equals_plain_convolutions(stem, stem_stride, depth, strides):
    torch.manual_seed(0)
    network = shake(resnet(depth, width=4, stem=stem).double().eval())
    pixels = images(2, side=36, dtype=torch.float64)
    expected = plain_features(
        network.state_dict(), pixels, strides=strides, stem_stride=stem_stride, pool=stem == "imagenet"
    )
    assert expected.std() > 0
    torch.testing.assert_close(network(pixels), expected, rtol=1e-9, atol=0)


def test_embedding_is_the_normalised_head():
    one = shake(encoder()).double().eval()
    embeddings, features = one(images(dtype=torch.float64), with_features=True)
    state = one.head.state_dict()
    hidden = (features @ state["0.weight"].T + state["0.bias"]).clamp(min=0)
    vectors = hidden @ state["2.weight"].T + state["2.bias"]
    torch.testing.assert_close(embeddings, vectors / vectors.square().sum(1, keepdim=True).sqrt())
    assert embeddings.dtype == torch.float64
    assert torch.equal(features, one.features(images(dtype=torch.float64)))
    assert torch.equal(embeddings, one(images(dtype=torch.float64)))
    assert (features >= 0).all()


# Start of training


@pytest.mark.parametrize("depth", [18, 50])
def test_initial_weights(depth):
    torch.manual_seed(0)
    network = resnet(depth, width=32)
    convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(convs) == len(norms) == {18: 20, 50: 53}[depth]
    for conv in convs:
        assert conv.bias is None
        expected = math.sqrt(2 / (conv.out_channels * conv.kernel_size[0] ** 2))
        tolerance = 4 / math.sqrt(2 * conv.weight.numel())  # four standard errors of a normal's deviation
        assert conv.weight.std().item() == pytest.approx(expected, rel=tolerance)
        assert abs(conv.weight.mean().item()) < 5 * expected / math.sqrt(conv.weight.numel())
    for norm in norms:
        assert (norm.weight == 1).all(), "a residual branch must not start at zero"
        assert (norm.bias == 0).all()


def test_every_parameter_gets_a_gradient():
    one = encoder(depth=50)
    (one(images(8, side=32)) @ torch.randn(16)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in one.parameters())


# Unit length


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_unit_length(norm):
    lengths = encoder(norm=norm)(100 * images(8)).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(8))


def test_a_zero_vector_gives_no_nan():
    one = encoder()
    nn.init.zeros_(one.head[2].weight)
    nn.init.zeros_(one.head[2].bias)
    embeddings = one(images())
    assert torch.equal(embeddings, torch.zeros(4, 16))
    embeddings.sum().backward()
    assert all(p.grad.isfinite().all() for p in one.parameters())


def test_unit_length_in_float32_under_autocast():
    one = encoder(norm="group")
    expected = one(images(8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings, features = one(images(8), with_features=True)
    assert features.dtype == torch.bfloat16, "autocast was not on"
    assert embeddings.dtype == torch.float32
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(8), rtol=0, atol=1e-6)
    torch.testing.assert_close(embeddings, expected, rtol=0, atol=0.03)


# Batches


@pytest.mark.parametrize("width", [1, 3, 6, 8, 10])
def test_group_norm_does_not_look_at_the_rest_of_the_batch(width):
    one = shake(encoder(norm="group", width=width)).train()
    batch = images(6)
    whole = one(batch)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in one.modules())
    for split in (1, 2, 5):
        parts = torch.cat([one(batch[:split]), one(torch.cat([batch[split:], images(3, seed=9)]))[:-3]])
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def test_batch_norm_does_look_at_the_rest_of_the_batch():
    one = encoder().train()
    assert (one(images(6))[:3] - one(images(6)[:3])).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("width", "groups"), [(1, 1), (2, 1), (4, 2), (6, 3), (8, 4), (12, 6), (16, 8), (64, 8), (7, 1)]
)
def test_group_counts(width, groups):
    norm = resnet(10, width=width, norm="group").stem[1]
    assert (norm.num_groups, norm.num_channels) == (groups, width)


# Other ways to run it


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_channels_last_gives_the_same(norm):
    one, other = encoder(norm=norm), encoder(norm=norm).to(memory_format=torch.channels_last)
    assert other.backbone.stages[1][0].convs[0].weight.is_contiguous(memory_format=torch.channels_last)
    found = other(images(8, side=32).contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(found, one(images(8, side=32)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("shape", "form"), [((3, 8, 8), torch.channels_last), ((3, 2, 8, 8), torch.channels_last_3d)])
def test_a_recipe_says_how_weights_lie_in_memory(shape, form, last):
    network = ResNetModel(depth=10, width=4, channels_last=last).build(shape)
    weights = [each.weight for each in network.modules() if isinstance(each, (nn.Conv2d, nn.Conv3d))]
    large = [weight for weight in weights if min(weight.shape) > 1]  # others lie both ways at once
    assert len(large) > 5
    assert {weight.is_contiguous(memory_format=form) for weight in large} == {last}


@pytest.mark.parametrize("which", ["small", "imagenet", "of a block", "of a block, striding"])
@pytest.mark.parametrize("frames", [1, 2, 3, 5, 8])
def test_a_convolution_of_clips_is_that_of_float32_in_bfloat16(which, frames):
    """torch 2.13 leaves garbage as maps, or as gradient of weights, where a clip has fewer frames than the kernel."""
    network = resnet(10, width=16, stem=which if "block" not in which else "small", dims=3)
    others = {"of a block": network.stages[0][0].convs[0], "of a block, striding": network.stages[1][0].convs[0]}
    conv = others.get(which, network.stem[0]).to(memory_format=torch.channels_last_3d)
    assert conv.kernel_size[0] == (7 if which == "imagenet" else 3)
    stride = 2 if "striding" in which else 1
    clips = torch.randn(2, conv.in_channels, frames, 10, 10, generator=torch.Generator().manual_seed(0))
    made = {}
    for precision in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
            maps = conv(clips)
        assert (maps.dtype, maps.shape[2]) == (precision, -(-frames // stride))
        weights = torch.randn(maps.shape, generator=torch.Generator().manual_seed(1))
        (gradient,) = torch.autograd.grad((maps.float() * weights).sum(), conv.weight)
        made[precision] = maps.float(), gradient
    for found, expected in zip(made[torch.bfloat16], made[torch.float32], strict=True):
        assert (found - expected).norm() <= 0.01 * expected.norm()


NARROW_AND_LARGE = """
import torch
from rince.encoders.resnet import resnet
network = resnet(10, width=8, stem="imagenet").to(memory_format=torch.channels_last)
network(torch.randn(32, 3, 224, 224)).sum().backward()
print(all(parameter.grad.isfinite().all() for parameter in network.parameters()))
"""


@pytest.mark.slow
def test_a_narrow_network_with_channels_last_has_gradients():
    """In a process of its own: torch 2.13 crashes in the gradient of a narrow 1×1 convolution that strides."""
    done = subprocess.run([sys.executable, "-c", NARROW_AND_LARGE], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr


@pytest.mark.slow
@torch.no_grad()
def test_compiled_gives_the_same():
    """In train mode, running statistics included; without the backward pass, to keep the test short."""
    one, other = encoder(width=4), encoder(width=4)
    compiled = torch.compile(other, dynamic=False, fullgraph=True)
    torch.testing.assert_close(compiled(images(8)), one(images(8)), rtol=0, atol=1e-4)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=0, atol=1e-4, msg=name)


def test_state_dict_round_trip():
    one, other = encoder(seed=0), encoder(seed=1)
    one(images(8))
    assert (one.eval()(images()) - other.eval()(images())).abs().max() > 1e-3
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(images()), other(images()))


def test_twin_of_an_encoder():
    one = encoder()
    twin = MomentumTwin(one)
    one.eval(), twin.eval()
    embeddings, features = twin(images(), with_features=True)
    assert torch.equal(embeddings, one(images()))
    assert torch.equal(features, twin.module.features(images()))


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 101}, "depth must be one of 10, 18, 34, 50; got 101"),
        ({"stem": "big"}, "stem must be one of 'small', 'small-stride2', 'imagenet'; got 'big'"),
        ({"norm": "layer"}, "norm must be one of 'batch', 'group'; got 'layer'"),
        ({"width": 0}, "width must be at least 1, got 0; 64 is the paper's"),
        ({"channels": 0}, "channels must be at least 1, got 0; colour images have 3"),
        ({"head_hidden": 0}, "hidden of a head must be at least 1, got 0; the paper's head is 2048, 2048, 128"),
        ({"dim": -1}, "outputs of a head must be at least 1, got -1; the paper's head is 2048, 2048, 128"),
    ],
)
def test_settings_that_make_no_sense(changes, message):
    with pytest.raises(ConfigError) as caught:
        encoder(**changes)
    assert str(caught.value) == message


def test_parts_that_do_not_fit():
    with pytest.raises(ConfigError, match="the head takes 64 numbers and the backbone gives 32; build the head with"):
        Encoder(resnet(10, width=4), mlp_head(64, 64, 16))
    with pytest.raises(ConfigError, match="the backbone Linear must have an integer attribute feature_dim, got None"):
        Encoder(nn.Linear(4, 4), mlp_head(4, 4, 2))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 16, 3), (2, 1, 16, 16)])
def test_images_of_another_shape(shape):
    with pytest.raises(ShapeError) as caught:
        encoder()(torch.zeros(shape))
    assert f"(batch, 3, height, width): got {shape}; " in str(caught.value)


def test_images_that_are_still_bytes():
    with pytest.raises(ShapeError, match=r"floating point, got torch.uint8; scale and normalise"):
        encoder()(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
