"""An encoder of texts as a model of sentence-transformers, made of modules that the library itself has.

Whoever opens it needs neither rince nor `trust_remote_code`.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rince.encoders.adapter import Adapter
from rince.encoders.encoder import Encoder
from rince.encoders.huggingface import PooledTexts
from rince.encoders.pretrained import Adapted, Network
from rince.encoders.sentence_transformer import Sentences
from rince.errors import ConfigError
from rince.train.validation import Place

ALIKE = 1e-5  # difference, as a share of the largest number, up to which two models count as one


class Layer(NamedTuple):
    """A linear layer, with or without a ReLU after it."""

    weight: Tensor
    bias: Tensor
    relu: bool = False


def sentence_transformer(encoder: Encoder, network: Network, *, longest: int, place: Place) -> Any:
    """A `SentenceTransformer` that gives what the encoder gives at a place.

    Args:
        encoder: from tokens on, on the CPU, in float32.
        network: that it starts from.
        longest: tokens that a text may have.
        place: before the head, or after it.

    Raises:
        ConfigError: if the library has no modules that compute the same.
    """
    try:
        from sentence_transformers.sentence_transformer.modules import Dense, Normalize  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError('it needs the extra: pip install "rince[text]"') from None
    backbone = encoder.backbone
    layers = adapter_layers(backbone.adapter) if isinstance(backbone, Adapted) else []  # type: ignore[arg-type]
    if place == "embeddings":
        layers += head_layers(encoder.head)
    model = _model_of(backbone.network, network, longest)
    for weight, bias, relu in layers:
        outputs, inputs = weight.shape
        activation = nn.ReLU() if relu else nn.Identity()
        model.append(Dense(inputs, outputs, activation_function=activation, init_weight=weight, init_bias=bias))
    if place == "embeddings":
        model.append(Normalize())
    model.default_prompt_name = next(
        (name for name, text in model.prompts.items() if text and text == network.prompt), None
    )
    return model.cpu().eval()


@torch.no_grad()
def adapter_layers(adapter: Adapter) -> list[Layer]:
    """An adapter without its residual: as relu(x) - relu(-x) = x, x and -x go through the hidden layer, too."""
    inner, outer, one = adapter.inner, adapter.outer, torch.eye(adapter.feature_dim)
    none = torch.zeros(adapter.feature_dim)
    widened = Layer(torch.cat([inner.weight, one, -one]), torch.cat([inner.bias, none, none]), relu=True)
    summed = Layer(torch.cat([outer.weight, one, -one], dim=1), outer.bias.clone())
    if not adapter.standardise:
        return [widened, summed]
    # The mean goes first and by itself: what is left of two large numbers must not be rounded in another order.
    centred = Layer(one, -adapter.mean)
    return [centred, widened._replace(weight=widened.weight / adapter.spread), summed]


@torch.no_grad()
def head_layers(head: nn.Module) -> list[Layer]:
    """Linear layers and ReLUs of a head; none of one that keeps features as they are.

    Raises:
        ConfigError: if it has something else.
    """
    found: list[Layer] = []
    for each in head if isinstance(head, nn.Sequential) else [head]:
        if isinstance(each, nn.Linear):
            found.append(Layer(each.weight.clone(), each.bias.clone()))
        elif isinstance(each, nn.ReLU) and found:
            found[-1] = found[-1]._replace(relu=True)
        elif not isinstance(each, nn.Identity):
            raise ConfigError(f"the library has no module that does what a head with {type(each).__name__} does")
    return found


def _model_of(module: Any, network: Network, longest: int) -> Any:
    """The network alone, with its weights as they are now, as the library knows it."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - heavy, and an extra
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415

    if isinstance(module, Sentences):
        return copy.deepcopy(module.model)
    if not isinstance(module, PooledTexts):
        raise ConfigError(f"the library does not know a {type(module).__name__}")
    if module.pool == "pooler":
        raise ConfigError("the library has no pooling like model.pool=pooler; cls and mean it has")
    with tempfile.TemporaryDirectory() as folder:
        module.model.save_pretrained(folder)
        network.tokeniser.save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=longest)
    pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode=module.pool)
    return SentenceTransformer(modules=[transformer, pooling], device="cpu")


def write_sentence_transformer(model: Any, folder: Path, texts: tuple[str, ...], expected: Tensor) -> None:
    """Writes a model, after a look whether it makes of some texts what is expected.

    Raises:
        ConfigError: if it makes something else: then its tokens are not those of the run.
    """
    found = model.encode(list(texts), convert_to_tensor=True, show_progress_bar=False)
    apart = float((found - expected).abs().max() / expected.abs().max())
    if not apart < ALIKE:
        raise ConfigError(f"what the library makes of a text differs from what the run makes of it, by {apart:.1g}")
    model.save(str(folder), create_model_card=False)
