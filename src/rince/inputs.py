"""What callers give: tensors, arrays or lists of numbers, whole numbers, and vectors of any length."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rince.devices import looking_is_free
from rince.errors import ConfigError, DataError, shown

# Between these, squares of coordinates neither vanish nor overflow in float32.
SMALL, LARGE = 1e-10, 1e15
STORED = (torch.uint16, torch.uint32, torch.uint64)  # integers that torch keeps and hardly calculates with


class Array(Protocol):
    """A NumPy array, or what can be one: a column of pandas, an array of JAX."""

    def __array__(self) -> Any:
        """As a NumPy array."""
        ...


Numbers = Tensor | Array | Sequence[Any]
"""Whatever `as_tensor` takes."""


def as_tensor(values: Numbers, name: str, *, like: Tensor | None = None) -> Tensor:
    """A tensor as it is, anything else as a tensor of the same numbers; floats of lists are those of Python, float64.

    Unsigned integers wider than a byte become int64, which torch can compare.

    Args:
        values: a tensor, an array, or (nested) lists of numbers.
        name: what errors call them.
        like: where `values` is no tensor, it takes the device of this one, and its dtype if both are floating point.
    """
    if isinstance(values, Tensor):
        return _signed(values, name) if values.dtype in STORED else values
    try:
        tensor = _converted(values)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{name} must be a tensor, an array or lists of numbers; got {shown(values)} ({reason})"
        ) from None
    tensor = _signed(tensor, name) if tensor.dtype in STORED else tensor
    if like is None:
        return tensor
    floats = tensor.is_floating_point() and like.is_floating_point()
    return tensor.to(like.device, like.dtype if floats else tensor.dtype)


def _signed(tensor: Tensor, name: str) -> Tensor:
    """Unsigned integers as int64, or a clear error for those that it does not hold."""
    signed = tensor.long()
    if tensor.dtype == torch.uint64 and bool((signed < 0).any()):
        raise DataError(f"{name} holds integers from 2**63 on, which int64 does not hold; use smaller ones")
    return signed


def _converted(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if hasattr(values, "__array__"):
        array = values.__array__()
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        # torch warns of arrays that are not to be written to, and refuses those that run backwards.
        shares = array.flags.writeable and all(stride >= 0 for stride in array.strides)
        return torch.as_tensor(array if shares else array.copy())
    values = list(values) if not isinstance(values, list | tuple) else values
    if any(hasattr(each, "dtype") for each in values):
        return torch.stack(list(map(_converted, values)))
    tensor = torch.as_tensor(values)
    return torch.as_tensor(values, dtype=torch.float64) if tensor.is_floating_point() else tensor


def whole_number(value: object, name: str, *, lowest: int = 1) -> int:
    """A count that a caller gives, such as k, or a clear error.

    Args:
        value: an integer of Python, NumPy or torch.
        name: what errors call it.
        lowest: that is allowed.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        number = None
    if number is None or isinstance(value, bool) or not lowest <= number < 2**63:
        raise ConfigError(f"{name} must be a whole number, at least {lowest}; got {shown(value)}")
    return number


def finite_number(value: object, name: str, *, lowest: float = -math.inf) -> float:
    """A number that a caller gives, or a clear error.

    Args:
        value: a number of Python, NumPy or torch.
        name: what errors call it.
        lowest: that is allowed.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, str | bytes) or number < lowest:
        least = "" if lowest == -math.inf else f" from {lowest:g}"
        raise ConfigError(f"{name} must be a number{least}, got {shown(value)}")
    return number


def unit_rows(vectors: Tensor) -> Tensor:
    """`(samples, dim)` float32: each row of length 1, however long it was; a row of zeros has no direction and stays.

    Squares of very small or large coordinates are 0 or infinite: such rows are divided by their largest one first.
    """
    vectors = vectors if vectors.is_floating_point() else vectors.float()
    largest = torch.linalg.vector_norm(vectors.detach(), ord=torch.inf, dim=1, keepdim=True)
    odd = (largest > 0) & ((largest < SMALL) | (largest > LARGE))
    if not looking_is_free(odd.device) or odd.any():
        vectors = vectors / largest.where(odd, 1)
    return F.normalize(vectors.float(), dim=1)
