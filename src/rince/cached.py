"""Exact large batches on small memory: a batch through the encoder in chunks, with the gradients of the whole.

Three steps (gradient caching, Gao et al. 2021): all chunks without a graph; the loss of all embeddings, and its
gradient to them; every chunk once more, with a graph, which takes that gradient to the weights. Memory holds the graph
of one chunk, and a second forward pass is the price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rince.checks import check_choice
from rince.errors import ConfigError, ShapeError
from rince.inputs import whole_number

BatchNorm = Literal["refuse", "per-chunk"]


class CachedLoss:
    """Gradients of a loss of a whole batch, of which the encoder sees a chunk at a time.

    Exact for any loss of embeddings, with labels, rank matrices and gathered candidates, as long as the encoder treats
    its samples one by one. Parameters of the loss itself, such as a learnable temperature or proxies, get their
    gradients too; on several processes the loss is wrapped as the encoder is. Dropout draws in the second pass what it
    drew in the first. Only the second pass moves running statistics. Batch normalisation in training mode mixes samples
    and is refused, unless it is to take its statistics per chunk; these are then not the gradients of the batch in one
    piece.

    Works under `torch.autocast` (the loss itself is computed without), with `DistributedDataParallel` (gradients are
    synchronised once, in the last chunk), and with a gradient scaler: `backward=lambda value:
    scaler.scale(value).backward()`.

    Args:
        encoder: view → `(samples, dim)` embeddings.
        chunk: how many samples go through it at a time.
        batch_norm: `"refuse"` batch normalisation in training mode, or let it see `"per-chunk"` statistics.
        backward: how gradients are made; by default `Tensor.backward`. Called for the loss, and for every chunk, with a
            scalar.
        no_sync: a context in which gradients are not synchronised, for all chunks but the last; by default the
            encoder's own, if it has one.

    Example:
        >>> from rince import RankedInfoNCE, in_batch
        >>> encoder, loss = nn.Sequential(nn.Linear(4, 2), nn.Tanh()), RankedInfoNCE.in_([0.1])
        >>> images, labels = torch.ones(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
        >>> cached = CachedLoss(encoder, chunk=2)
        >>> output = cached(images, lambda embeddings: in_batch(embeddings, labels).loss(loss, normalize=True))
        >>> output.total, encoder[0].weight.grad.shape  # no .backward(): the gradients are there
        (tensor(1.6094), torch.Size([2, 4]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        chunk: int,
        *,
        batch_norm: BatchNorm = "refuse",
        backward: Callable[[Tensor], Any] = Tensor.backward,
        no_sync: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> None:
        check_choice("batch_norm", batch_norm, BatchNorm)
        if not isinstance(encoder, nn.Module):
            raise ConfigError(f"encoder must be a torch.nn.Module, got {type(encoder).__name__}")
        self.encoder, self.chunk, self.batch_norm = encoder, whole_number(chunk, "chunk"), batch_norm
        self.backward = backward
        own: Callable[[], AbstractContextManager[Any]] = getattr(encoder, "no_sync", nullcontext)
        self.no_sync = own if no_sync is None else no_sync

    def __call__(self, views: Any, loss: Callable[..., Any]) -> Any:
        """Leaves gradients in the encoder and in the loss, added to those that are there.

        Args:
            views: a batch for the encoder, a tensor or a mapping of tensors with a row for every sample; or a list of
                them, one for every view.
            loss: embeddings of every view, each an argument → a scalar, or what has one as `total`.

        Returns:
            What `loss` returned, without a graph.
        """
        self._refuse_batch_norm()
        chunks = [_chunks(view, self.chunk) for view in (views if isinstance(views, list | tuple) else [views])]
        if not chunks:
            raise ConfigError("views is empty; give one batch for every view")
        device = next((each.device for each in self.encoder.parameters()), torch.device("cpu"))
        states: list[_RandomState] = []
        with torch.no_grad(), _kept_buffers(self.encoder):
            parts = [[self._first(chunk, device, states) for chunk in of_view] for of_view in chunks]
        embeddings = [_in_full(torch.cat(of_view)).requires_grad_() for of_view in parts]
        with torch.autocast(embeddings[0].device.type, enabled=False):
            output = loss(*embeddings)
            wanted = self._to_embeddings(_scalar(output), embeddings)
        pairs = [
            pair
            for of_view, gradient in zip(chunks, wanted, strict=True)
            for pair in zip(of_view, gradient.split(self.chunk), strict=True)
        ]
        after = _RandomState(device)
        try:
            for number, ((chunk, gradient), state) in enumerate(zip(pairs, states, strict=True), start=1):
                with self.no_sync() if number < len(pairs) else nullcontext():
                    state.restore()
                    # In full precision: a scaler multiplies it before half precision could lose it.
                    value = (_in_full(self.encoder(chunk)) * gradient).sum()
                    if value.requires_grad:  # not of an encoder that is frozen, under a loss that learns
                        self.backward(value)
        finally:
            after.restore()
        return _without_graph(output)

    def _first(self, chunk: Any, device: torch.device, states: list[_RandomState]) -> Tensor:
        states.append(_RandomState(device))
        embeddings = self.encoder(chunk)
        if not isinstance(embeddings, Tensor):
            raise ShapeError(f"the encoder must return a tensor of embeddings, got {type(embeddings).__name__}")
        return embeddings

    def _to_embeddings(self, total: Tensor, embeddings: list[Tensor]) -> list[Tensor]:
        """The gradient of the loss to its embeddings; what it has of parameters gets its own, scaled, here."""
        factors: list[Tensor] = []
        total.register_hook(factors.append)  # what `backward` multiplies by, which every chunk will be once more
        self.backward(total)
        return [torch.zeros_like(each) if each.grad is None else each.grad / factors[0] for each in embeddings]

    def _refuse_batch_norm(self) -> None:
        mixes = [
            name
            for name, module in self.encoder.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
        ]
        if mixes and self.batch_norm == "refuse":
            raise ConfigError(
                f"the encoder has batch normalisation in training mode ({mixes[0] or 'the encoder itself'}), which "
                "mixes the samples of a chunk, so gradients are not those of the whole batch; use another "
                'normalisation, put it into .eval(), or say batch_norm="per-chunk"'
            )


class _RandomState:
    """Of the generators that a network on a device draws from."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.cpu = device, torch.get_rng_state()
        self.generators: Any = getattr(torch, device.type, torch.cpu)  # torch.cuda, torch.mps, …
        self.has_own = hasattr(self.generators, "get_rng_state")
        self.own = self.generators.get_rng_state(device) if self.has_own else None

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.has_own:
            self.generators.set_rng_state(self.own, self.device)


@contextmanager
def _kept_buffers(encoder: nn.Module) -> Iterator[None]:
    """Whatever a pass does to running statistics is undone."""
    before = [(buffer, buffer.clone()) for buffer in encoder.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _chunks(batch: Any, size: int) -> Sequence[Any]:
    """A batch in parts of so many rows."""
    if isinstance(batch, Tensor):
        parts: Sequence[Tensor] = batch.split(size)
        return parts
    if not isinstance(batch, Mapping) or not batch or not all(isinstance(each, Tensor) for each in batch.values()):
        raise ShapeError(f"a batch is a tensor or a mapping of tensors, got {type(batch).__name__}")
    if len({len(each) for each in batch.values()}) > 1:
        sizes = {name: len(each) for name, each in batch.items()}
        raise ShapeError(f"all tensors of a batch must have a row for every sample, got {sizes} rows")
    columns = [_chunks(each, size) for each in batch.values()]
    return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]


def _in_full(embeddings: Tensor) -> Tensor:
    return embeddings.float() if embeddings.dtype in (torch.float16, torch.bfloat16) else embeddings


def _scalar(output: Any) -> Tensor:
    """What gradients are made of."""
    value = output if isinstance(output, Tensor) else getattr(output, "total", None)
    if not isinstance(value, Tensor) or value.numel() != 1:
        given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(output).__name__
        raise ShapeError(f"loss must return a scalar tensor, or what has one as `total`; got {given}")
    if not value.requires_grad:
        raise ConfigError(
            "the loss has no gradient to the embeddings, so there is nothing to learn from; does it detach them, or is "
            "this called under torch.no_grad or torch.inference_mode?"
        )
    return value


def _without_graph(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.detach()
    return output._replace(total=output.total.detach())
