"""A ring buffer of past keys and their labels: many candidates for the price of one small batch."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rince.devices import looking_is_free
from rince.errors import ConfigError, DataError, ShapeError
from rince.inputs import Numbers, as_tensor, whole_number
from rince.ranks import NO_LABEL, RANDOM, UNFILLED, is_integer


class MemoryBank(nn.Module):
    """The last `size` keys with their labels. All of its state, the cursor included, is in the state dict.

    Args:
        size: how many keys it holds. The paper: 4,096 for CIFAR-100, 8,192 for ImageNet-100, 65,536 for video.
        dim: width of a key.
        start: `"empty"`: slots not yet filled carry the label -1, which every rank source excludes. `"random"`: it is
            filled with random unit vectors labelled -2, negatives for everyone, as the authors start theirs.
        seed: of those random vectors.

    Attributes:
        keys: `(size, dim)` float32.
        labels: `(size,)` int64.

    Example:
        >>> bank = MemoryBank(size=4, dim=2)
        >>> bank.push(torch.eye(2), torch.tensor([5, 6]))
        >>> bank.labels, len(bank)
        (tensor([ 5,  6, -1, -1]), 2)
    """

    keys: Tensor
    labels: Tensor
    _cursor: Tensor

    def __init__(self, size: int, dim: int, *, start: Literal["empty", "random"] = "empty", seed: int = 0) -> None:
        super().__init__()
        size, dim = whole_number(size, "size"), whole_number(dim, "dim")
        seed = whole_number(seed, "seed", lowest=-(2**63))
        if start not in ("empty", "random"):
            raise ConfigError(f"start must be 'empty' or 'random', got {start!r}")
        # Tensors made in inference mode could never be written to outside of it.
        with torch.inference_mode(False), torch.no_grad():
            try:
                keys, label = torch.zeros(size, dim), UNFILLED
            except (RuntimeError, TypeError):
                raise ConfigError(f"a bank of {size} keys of {dim} numbers does not fit into memory") from None
            if start == "random":
                noise = torch.randn(size, dim, generator=torch.Generator().manual_seed(seed))
                keys, label = F.normalize(noise, dim=1), RANDOM
            self.register_buffer("keys", keys)
            self.register_buffer("labels", torch.full((size,), label))
            self.register_buffer("_cursor", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def push(self, keys: Numbers, labels: Numbers) -> None:
        """Writes a batch of keys over the oldest ones, in place.

        Args:
            keys: `(batch, dim)`, detached, of unit length; at most `size` of them.
            labels: `(batch,)` integers from 0.
        """
        keys, labels = self.vectors(keys, "keys"), as_tensor(labels, "labels", like=self.labels)
        self._check_push(keys, labels)
        keys, labels = keys.to(self.keys.dtype), labels.to(self.labels.dtype)
        if looking_is_free(keys.device):
            _check_pushed_values(keys, labels)
        else:  # NaN keys and wrong labels are kept: they turn the next loss into NaN
            labels = torch.where(labels < 0, NO_LABEL, labels)
        self._leave_inference_mode()
        slots = (self._cursor + torch.arange(len(keys), device=self.keys.device)) % len(self.keys)
        self.keys.index_copy_(0, slots, keys)
        self.labels.index_copy_(0, slots, labels)
        self._cursor.copy_((self._cursor + len(keys)) % len(self.keys))

    def similarities(self, queries: Numbers) -> Tensor:
        """`(queries, dim)` → `(queries, size)` cosine similarities to every slot, filled or not.

        Taken against a copy of the keys where a gradient will be wanted, so that a push before `.backward()` is safe.
        """
        queries = self.vectors(queries, "queries")
        keys = self.keys.clone() if queries.requires_grad and torch.is_grad_enabled() else self.keys
        return queries @ keys.to(queries.dtype).T

    def vectors(self, values: Numbers, name: str) -> Tensor:
        """Floating-point vectors that can be compared with the keys of this bank, or a clear error.

        Args:
            values: `(number, dim)`.
            name: what the error calls them.
        """
        vectors, dim = as_tensor(values, name, like=self.keys), self.keys.shape[1]
        if vectors.ndim != 2 or vectors.shape[1] != dim or vectors.is_complex():
            raise ShapeError(
                f"{name} must be (number, {dim}) for this bank, got {vectors.dtype} of shape {tuple(vectors.shape)}; a "
                "bank has the width of the encoder's embeddings"
            )
        return vectors if vectors.is_floating_point() else vectors.to(self.keys.dtype)

    def __len__(self) -> int:
        """How many slots are filled."""
        return int((self.labels != UNFILLED).sum())

    def extra_repr(self) -> str:
        """Size and width, for `print(bank)`."""
        return f"size={len(self.keys)}, dim={self.keys.shape[1]}"

    def _leave_inference_mode(self) -> None:
        """Buffers that were moved within that mode are tensors that nothing outside of it may write to."""
        if self.keys.is_inference() and not torch.is_inference_mode_enabled():
            for name, buffer in list(self.named_buffers()):
                setattr(self, name, buffer.clone())

    def _check_push(self, keys: Tensor, labels: Tensor) -> None:
        size = len(self.keys)
        if labels.shape != keys.shape[:1] or not is_integer(labels):
            raise ShapeError(
                f"labels must be one integer per key, ({len(keys)},), got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        if len(keys) > size:
            raise ShapeError(
                f"a batch of {len(keys)} keys does not fit a bank of {size}; use a bank of at least {len(keys)}, or a "
                "smaller batch"
            )
        if keys.requires_grad:
            raise DataError("keys carry gradients; push keys.detach(), or encode them under torch.no_grad()")


def _check_pushed_values(keys: Tensor, labels: Tensor) -> None:
    if not keys.isfinite().all():
        raise DataError(
            f"{int((~keys.isfinite()).any(dim=1).sum())} of {len(keys)} keys hold NaN or infinite values, as "
            f"{str(keys.dtype).removeprefix('torch.')}; nothing was pushed. Lower the learning rate, or look for a "
            "zero vector that was normalised"
        )
    if len(labels) and int(labels.min()) < 0:
        raise DataError(f"labels start at 0, got {int(labels.min())}: -1 marks an unfilled slot and -2 a random vector")
