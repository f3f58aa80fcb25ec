"""Vectors, similarities and columns of numbers that a user brings as files, in the order of classes or samples."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rince.errors import DataError


def read_similarity(path: Path, class_names: Sequence[str]) -> Tensor:
    """A matrix of class similarities from `.npz` or `.npy` (in label order) or `.csv` (with names, in any order)."""
    if path.suffix == ".csv":
        rows = _csv_rows(path)
        header = [cell.strip() for cell in rows[0][1:]]
        try:
            named = {row[0].strip(): [float(cell) for cell in row[1:]] for row in rows[1:]}
        except ValueError as error:
            raise DataError(f"{path} must hold names and numbers: {error}") from None
        _check_names(path, class_names, header)
        _check_names(path, class_names, list(named))
        columns = [header.index(name) for name in class_names]
        return torch.tensor([[named[name][column] for column in columns] for name in class_names])
    matrix = read_matrix(path)
    if matrix.shape != (len(class_names), len(class_names)):
        raise DataError(
            f"{path} must hold a row and a column for each of {len(class_names)} classes, got {tuple(matrix.shape)}"
        )
    return matrix


def read_vectors(path: Path, class_names: Sequence[str]) -> Tensor:
    """`(classes, dim)` vectors from `.npz`, `.npy`: in label order, or in that of the class names in `labels`."""
    vectors = read_matrix(path)
    labels = _entry(path, "labels")
    if labels is not None:
        names = [str(name) for name in labels.tolist()]
        _check_names(path, class_names, names)
        return vectors[[names.index(name) for name in class_names]]
    if len(vectors) != len(class_names):
        raise DataError(f"{path} holds {len(vectors)} vectors for {len(class_names)} classes; one for each is needed")
    return vectors


def read_columns(path: Path, columns: Sequence[str], samples: int) -> Tensor:
    """`(samples, columns)` numbers from a CSV file with a header and a row per training image, in their order."""
    rows = _csv_rows(path)
    header = [cell.strip() for cell in rows[0]]
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; it has {', '.join(header)}")
    if len(rows) - 1 != samples:
        raise DataError(f"{path} has {len(rows) - 1:,} rows for {samples:,} training images; one for each is needed")
    places = [header.index(name) for name in columns]
    try:
        numbers = [[float(row[place]) for place in places] for row in rows[1:]]
        return torch.tensor(numbers, dtype=torch.float64)  # seconds and metres have more digits than float32
    except (ValueError, IndexError) as error:
        raise DataError(f"{path} must hold numbers in {', '.join(columns)}: {error}") from None


def read_matrix(path: Path) -> Tensor:
    """The matrix in a `.npy` file; of `.npz`, the one called features or similarity, or else the first."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    if path.suffix not in (".npz", ".npy"):
        raise DataError(f"vectors and matrices come as .npz or .npy, got {path}")
    try:
        found = np.load(path, allow_pickle=False)
        array = (
            found
            if isinstance(found, np.ndarray)
            else next(found[n] for n in ("features", "similarity", *found.files) if n in found.files)
        )
    except Exception as error:  # damaged in one of many ways
        raise DataError(f"{path} cannot be read as {path.suffix} ({type(error).__name__}: {error})") from None
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise DataError(f"{path} must hold a matrix of numbers, got {array.dtype} of shape {array.shape}")
    return torch.from_numpy(np.ascontiguousarray(array, np.float64 if array.dtype == np.float64 else np.float32))


def _entry(path: Path, name: str) -> np.ndarray | None:
    if path.suffix != ".npz":
        return None
    with np.load(path, allow_pickle=False) as found:
        return found[name] if name in found.files else None


def _csv_rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        rows = [row for row in csv.reader(path.read_text("utf-8-sig").splitlines()) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not CSV: {error}") from None
    if len(rows) < 2:
        raise DataError(f"{path} is empty; write a header, then a row for each")
    return rows


def _check_names(path: Path, wanted: Sequence[str], there: list[str]) -> None:
    twice = [name for name in there if there.count(name) > 1]
    if twice:
        raise DataError(f"{path} has {twice[0]!r} twice")
    missing = [name for name in wanted if name not in there]
    if missing:
        raise DataError(f"{path} lacks {len(missing)} of {len(wanted)} classes, {missing[0]!r} first")
