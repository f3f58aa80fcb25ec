"""Numbers of every test sample, kept beside a run: `queries.safetensors`, what paired differences are made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rince.errors import DataError
from rince.evaluation.metrics import parse
from rince.files import write_whole
from rince.seals import read_tensors, sealed_tensors
from rince.terminal import mention

QUERIES = "queries.safetensors"
GROUP_OF = "group of "  # how the names of tensors begin that are not of a metric; the name of a set follows


class Queries(NamedTuple):
    """What was measured on every test sample."""

    checkpoint: str
    """Of the run, as in results."""
    tests: dict[str, str]
    """Name of the set, empty for the run's own → fingerprint of its test samples."""
    values: dict[str, Tensor]
    """Name of a metric → `(queries,)`, whose mean is its number; NaN for a query that does not count."""
    groups: dict[str, Tensor] = {}  # noqa: RUF012 - of a tuple, which nobody changes
    """Name of a set whose test samples belong together in groups → `(queries,)` int64, equal within a group."""


def write_queries(folder: Path, queries: Queries) -> None:
    """Into the folder of a run, in float32."""
    values = {name: each.float().contiguous() for name, each in queries.values.items()}
    values |= {f"{GROUP_OF}{on}": each.contiguous() for on, each in queries.groups.items()}
    noted = {"checkpoint": queries.checkpoint, "tests": json.dumps(queries.tests, sort_keys=True)}
    write_whole(folder / QUERIES, sealed_tensors(values, noted))


def read_queries(folder: Path) -> Queries | None:
    """From the folder of a run; None if there are none, or they are damaged."""
    try:
        values, noted = read_tensors(folder / QUERIES)
        groups = {name: values.pop(name) for name in list(values) if name.startswith(GROUP_OF)}
        named = {name.removeprefix(GROUP_OF): each for name, each in groups.items()}
        return Queries(noted["checkpoint"], json.loads(noted["tests"]), values, named)
    except DataError as error:
        mention(f"{error}; differences are made without it until `rince evaluate {folder}` writes it again")
        return None
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError):
        return None
    except OSError as error:  # they are there: a table without them would be another one
        raise DataError(f"{folder / QUERIES} cannot be read: {error.strerror or error}") from None


def numbered(names: Sequence[str]) -> Tensor:
    """`(names,)` int64: equal names have the same number, counted from 0 as they come."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names], dtype=torch.int64)


def mean_over_seeds(runs: Sequence[Queries]) -> dict[str, Tensor]:
    """Name of a metric → `(queries,)` mean over the runs that have it, in float64.

    Runs whose test samples are not those of the first cannot be averaged with it, and are left out with all others of
    that set.
    """
    means = {}
    for name in dict.fromkeys(name for run in runs for name in run.values):
        having, on = [run for run in runs if name in run.values], parse(name).on
        if len({run.tests.get(on) for run in having}) == 1:
            means[name] = torch.stack([run.values[name].double() for run in having]).mean(dim=0)
    return means
