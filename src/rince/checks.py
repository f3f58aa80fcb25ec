"""What the loss refuses, each in one sentence that echoes the input and says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor

from rince.errors import ConfigError, DataError, ShapeError
from rince.inputs import as_tensor
from rince.ranks import EXCLUDED, NO_RANK, is_integer

if TYPE_CHECKING:
    from rince.blockwise import RankRows


def check_choice(name: str, value: object, choices: object) -> None:
    """Refuses a value that is not among the choices of a Literal type."""
    allowed = get_args(choices)
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}")


def check_similarities(similarities: Tensor, ranks: Tensor) -> None:
    """Refuses similarities and ranks that do not fit each other."""
    if similarities.ndim != 2 or not similarities.is_floating_point():
        raise ShapeError(
            "similarities must be a floating-point matrix (queries, candidates), got "
            f"{similarities.dtype} of shape {tuple(similarities.shape)}"
        )
    if ranks.shape != similarities.shape:
        raise ShapeError(
            f"ranks must have the shape of similarities: got {tuple(ranks.shape)} and {tuple(similarities.shape)}; "
            "did you forget the own-key column?"
        )
    check_ranks_tensor(ranks, similarities.device)


def check_embeddings(queries: Tensor, candidates: Tensor, ranks: Tensor | RankRows) -> None:
    """Refuses embeddings and ranks that do not fit each other."""
    for name, tensor in (("queries", queries), ("candidates", candidates)):
        if tensor.ndim != 2 or not tensor.is_floating_point():
            raise ShapeError(
                f"{name} must be a floating-point matrix (number, dim), got {tensor.dtype} of shape "
                f"{tuple(tensor.shape)}"
            )
    if queries.shape[1] != candidates.shape[1]:
        raise ShapeError(
            f"queries and candidates must have one width, got {queries.shape[1]} and {candidates.shape[1]}; "
            "do both come from the same head?"
        )
    for what, one, other in (
        ("dtype", queries.dtype, candidates.dtype),
        ("device", queries.device, candidates.device),
    ):
        if one != other:
            raise ShapeError(
                f"queries and candidates must share one {what}, got {one} and {other}; convert one with .to()"
            )
    if isinstance(ranks, Tensor):
        expected = (len(queries), len(candidates))
        if tuple(ranks.shape) != expected:
            raise ShapeError(f"ranks must be (queries, candidates) = {expected}, got {tuple(ranks.shape)}")
        check_ranks_tensor(ranks, queries.device)


def check_ranks_tensor(ranks: Tensor, device: torch.device) -> None:
    """Refuses ranks that are no integers, or elsewhere."""
    if not is_integer(ranks):
        raise ShapeError(
            f"ranks must be integers (1 … R, 0 negative, -1 excluded), got {ranks.dtype}; convert with .to(torch.int8)"
        )
    if ranks.device != device:
        raise ShapeError(f"ranks must be on the device of the similarities, {device}; got {ranks.device}")


def check_rank_values(ranks: Tensor, terms: int) -> None:
    """Refuses ranks without a term, and numbers that mean nothing."""
    if ranks.numel() == 0:
        return
    lowest, highest = (int(bound) for bound in torch.aminmax(ranks))
    if highest > terms:
        raise DataError(
            f"ranks holds rank {highest} but there are only {terms} terms; add a RankTerm for every rank, or set "
            "ranks you do not want to train to 0 (negative) or -1 (excluded)"
        )
    if lowest == NO_RANK:
        raise DataError(
            f"ranks holds {NO_RANK}, the mark of a label that the source of ranks does not know; labels start at 0 and "
            "end below the number of its classes or samples"
        )
    if lowest < EXCLUDED:
        raise DataError(f"ranks holds {lowest}; use 1 … R for positives, 0 for negatives and -1 for excluded")


def check_divisor(divisor: Tensor, terms: int) -> None:
    """Refuses divisors that do not fit the terms."""
    if divisor.shape != (terms,) or divisor.is_complex():
        raise ShapeError(
            f"divisor must hold one number for each of {terms} terms, got {divisor.dtype} of shape "
            f"{tuple(divisor.shape)}"
        )


def divides(divisor: Tensor, counted: Tensor) -> Tensor:
    """0-dim bool, on their device: whether every term that these queries add to is divided by a positive number."""
    return ((counted == 0) | ((divisor > 0) & divisor.isfinite())).all()


def why_not_divided(divisor: Tensor) -> DataError:
    """The error to raise where that does not hold."""
    return DataError(
        f"divisor must be positive for every term that has positives, got {divisor.tolist()}; it is the sum of "
        "count(ranks) over all parts of the batch"
    )


def checked_rows(ranks: Tensor | RankRows, candidates: int, device: torch.device) -> RankRows:
    """Rows of the rank matrix, wherever they come from."""
    if isinstance(ranks, Tensor):
        return lambda start, stop: ranks[start:stop]

    def rows(start: int, stop: int) -> Tensor:
        block = as_tensor(ranks(start, stop), "ranks")
        if tuple(block.shape) != (stop - start, candidates):
            raise ShapeError(
                f"ranks({start}, {stop}) must return rows {start} to {stop - 1} of the rank matrix, a tensor of shape "
                f"{(stop - start, candidates)}; got {tuple(block.shape)}"
            )
        check_ranks_tensor(block, device)
        return block

    return rows


def why_not_finite(**inputs: Tensor) -> DataError:
    """The error to raise for a loss that is NaN or infinite: names the input that made it so."""
    for name, tensor in inputs.items():
        bad = int((~tensor.isfinite()).sum())
        if bad:
            return DataError(
                f"{name} holds {bad} values that are NaN or infinite, of {tensor.numel()}; lower the learning rate, or "
                "look for a zero vector that was normalised"
            )
    return DataError(
        f"the loss overflowed though {' and '.join(inputs)} are finite; are the embeddings of unit length?"
    )
