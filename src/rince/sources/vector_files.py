"""Files of vectors with labels, as any library writes them: `.npz`, `.safetensors` or `.parquet`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rince.errors import DataError

VECTORS = ("features", "vectors", "vector", "embeddings", "embedding", "x")
LABELS = ("labels", "label", "class", "classes", "targets", "y")
NO_LEVELS = ("path", "id", "split")  # what a file says of a sample besides
FORMATS = (".npz", ".safetensors", ".parquet")
Levels = dict[str, np.ndarray[Any, Any]]


def read_vector_file(path: Path, *, needs_labels: bool = True) -> tuple[Tensor, Levels]:
    """`(samples, dim)` float32 vectors, and for every level one label per sample: `class`, then whatever else there is.

    Vectors are called `features` or `embeddings`, classes `labels`; any other entry of one label per sample is a level.
    Labels are integers or, but for safetensors, text. Where they are not needed, a file without has no levels.
    """
    arrays = _arrays(path)
    vectors = next((arrays[name] for name in VECTORS if name in arrays), None)
    label = next((name for name in LABELS if name in arrays), None)
    there = ", ".join(arrays) or "nothing"
    if vectors is None or np.ndim(vectors) != 2:
        raise DataError(f"{path} needs a matrix called features (samples, dim); it holds {there}")
    if label is None and not needs_labels:
        return torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)), {}
    if label is None:
        raise DataError(f"{path} needs the classes, called labels; it holds {there}")
    levels = {"class": np.asarray(arrays[label])}
    for name, array in arrays.items():
        known = name in (*VECTORS, *NO_LEVELS, *LABELS)
        if not known and np.ndim(array) == 1 and np.asarray(array).dtype.kind in "iuUSO":
            levels[name] = np.asarray(array)
    for name, level in levels.items():
        if level.dtype.kind == "O" and any(value is None for value in level.tolist()):
            raise DataError(f"{name} of {path} has samples without a label; name them all")
        if level.shape != (len(vectors),) or level.dtype.kind not in "iuUSO":
            raise DataError(
                f"{name} of {path} must hold one integer or text per vector: got {level.dtype} of shape {level.shape} "
                f"for {len(vectors)} vectors"
            )
    return torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)), levels


def _arrays(path: Path) -> dict[str, Any]:
    readers: dict[str, Callable[[Path], dict[str, Any]]] = {
        ".npz": _read_npz,
        ".safetensors": _read_safetensors,
        ".parquet": _read_parquet,
    }
    if path.suffix not in readers:
        raise DataError(f"embeddings must come as .npz, .safetensors or .parquet, got {path}")
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        return readers[path.suffix](path)
    except Exception as error:  # each format has its own kinds of damage
        raise DataError(f"{path} cannot be read as {path.suffix} ({type(error).__name__}: {error})") from None


def _read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file  # noqa: PLC0415 - only for this format

    return dict(load_file(path))


def _read_parquet(path: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415 - only for this format

    table = pq.read_table(path)
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name]
        nested = str(column.type).startswith(("list", "fixed_size_list", "large_list"))
        columns[name] = np.stack(column.to_numpy()) if nested else column.to_numpy()
    return columns
