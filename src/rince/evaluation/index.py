"""Galleries to search: samples that a run embeds now, or an index that it wrote before, read block by block.

An index is a parquet file as `rince embed` writes it (path, vector, label, levels) whose vectors have unit length, and
which says in its metadata which checkpoint made it and how sure its answers are. Any library that reads parquet can
search it; ours reads a row group at a time.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import torch
from torch import Tensor

from rince.errors import DataError
from rince.evaluation.embedded_file import LABEL, PATH, VECTOR
from rince.evaluation.evaluate import levels_of
from rince.evaluation.lookup import Found, Neighbour, Which, vectors_of
from rince.evaluation.nearest import nearest_in_blocks
from rince.evaluation.shares import ALONE, Processes
from rince.evaluation.streamed import SIZE, TEXT, as_matrix, embed_in_parts
from rince.evaluation.trained import TrainedRun
from rince.evaluation.vectors import unit_vectors
from rince.files import readable
from rince.hierarchy.levels import group_numbers
from rince.inputs import whole_number
from rince.sources.source import Source, all_rows_in
from rince.terminal import Say, TellDone, nobody

if TYPE_CHECKING:
    from rince.sources.sealed_tables import Seal

METADATA = b"rince.index"


class Noted(Protocol):
    """What can be kept in an index."""

    def noted(self) -> dict[str, Any]:
        """As plain values."""
        ...


@dataclass(frozen=True, eq=False)
class Gallery:
    """Unit vectors to search, and what is known of each.

    Attributes:
        where: what a person calls it.
        size: how many vectors.
        blocks: gives them, block by block, in order.
        levels: the classes first: name → `(gallery,)` group of each and the names of the groups; empty without labels.
        place: of a row, where a person finds the sample.
        text: of a row, the sample itself, if it is a text.
        own_rows: for every query, the rows that are the same sample.
        trained: gives `(gallery,)`: which ones the run was trained on; None if nobody knows.
        calibration: what an index noted of how sure its answers are.
    """

    where: str
    size: int
    blocks: Callable[[], Iterator[Tensor]]
    levels: dict[str, tuple[Tensor, list[str]]]
    place: Callable[[int], str]
    text: Callable[[int], str]
    own_rows: Callable[[Source], list[set[int]]]
    trained: Callable[[], Tensor | None]
    calibration: dict[str, Any] | None = None

    def neighbour(self, row: int, cosine: float) -> Neighbour:
        """What is told of an item that was found."""
        return Neighbour(self.place(row), cosine, row, self.text(row))


def gallery_of(run: TrainedRun, source: Source, which: Which, tell: TellDone | None = None) -> Gallery:
    """Samples, embedded by a run."""
    vectors = unit_vectors(vectors_of(run, source, which, tell), which)
    return _gallery(run, source, lambda: iter((vectors,)))


def _gallery(run: TrainedRun, source: Source, blocks: Callable[[], Iterator[Tensor]]) -> Gallery:
    return Gallery(
        source.source,
        len(source),
        blocks,
        _grouped(source.labels, levels_of(run, source)),
        source.place,
        lambda row: source.text(row) or "",
        lambda queries: all_rows_in(queries, source),
        lambda: run.trained_on(source),
    )


def _grouped(labels: Tensor, levels: dict[str, list[str]]) -> dict[str, tuple[Tensor, list[str]]]:
    """Level → the group of every sample and the names of the groups, from labels and the groups of every class."""
    return {
        level: (group_numbers(groups)[labels.cpu()], list(dict.fromkeys(groups))) for level, groups in levels.items()
    }


def write_index(
    run: TrainedRun,
    source: Source,
    which: Which,
    out: Path,
    calibrate: Callable[[Gallery], Noted],
    *,
    processes: Processes = ALONE,
    tell: TellDone | None = None,
    say: Say = nobody,
) -> None:
    """Embeds a gallery part by part and writes it; whole, or not at all.

    Args:
        run: that embeds.
        source: of the samples.
        which: features or embeddings.
        out: file to write.
        calibrate: makes of a labelled gallery what the index notes of how sure its answers are.
        processes: that each embed a share; the first calibrates and writes.
        tell: is told how many samples are done.
        say: is told what a person should know.
    """
    levels = levels_of(run, source)
    parts = embed_in_parts(run, source, which, out, levels, for_index=True, processes=processes, tell=tell, say=say)
    if not processes.is_first:
        return
    calibration = calibrate(_gallery(run, source, parts.vectors)).noted() if levels else None
    if calibration is None:
        say(f"{source.source!r} has no labels: the index is for neighbours, not for predict")
    noted = {
        "checkpoint": run.checkpoint,
        "which": which,
        "source": source.source,
        "samples": source.fingerprint if source.knows_content and source.file(0) is None else None,
        "classes": list(map(str, source.class_names)),
        "levels": levels,
        "calibration": calibration,
    }
    parts.join({METADATA: json.dumps(noted, ensure_ascii=False).encode()})


def is_index(place: object) -> TypeGuard[str | Path]:
    """Whether it is a file that `rince index` wrote."""
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 - only here
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # noqa: PLC0415

    if not isinstance(place, str | Path) or Path(place).suffix != ".parquet" or not os.path.isfile(place):
        return False
    try:
        return METADATA in (pq.read_schema(place).metadata or {})
    except (OSError, pa.ArrowException):
        return False  # whoever opens it as something else says what is wrong


def open_index(run: TrainedRun, path: str | Path, which: Which) -> Gallery:
    """An index, to be searched where it lies; refused if other weights made it, or it is of another place."""
    import pyarrow as pa  # noqa: PLC0415 - only here
    import pyarrow.parquet as pq  # noqa: PLC0415

    from rince.sources.sealed_tables import seal_of  # noqa: PLC0415

    try:
        file = pq.ParquetFile(path, pre_buffer=False)  # which would read it whole, ahead of whoever asks
        seal = seal_of(file, Path(path))
        noted = json.loads(file.schema_arrow.metadata[METADATA])
        levels = _grouped(_labels(file, noted["classes"], seal), noted["levels"]) if noted["levels"] else {}
        made, place, calibration = noted["checkpoint"], noted["which"], noted["calibration"]
    except DataError as error:
        raise DataError(f"{error}, with `rince index`") from None
    except (OSError, pa.ArrowException, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"the index {path} is damaged ({error}); make it again with `rince index`") from None
    if made != run.checkpoint:
        raise DataError(
            f"the index {path} was made by other weights ({made[:12]}) than those of {run.folder} "
            f"({run.checkpoint[:12]}); make it again: rince index {run.folder} {noted['source']} --out {path}"
        )
    if place != which:
        raise DataError(f"the index {path} is of {place}, not of {which}; say --which {place}, or make another")

    def blocks() -> Iterator[Tensor]:
        yield from map(as_matrix, _column(file, VECTOR, seal))

    told = _Told(file, seal)
    return Gallery(
        str(path),
        file.metadata.num_rows,
        blocks,
        levels,
        partial(told, PATH),
        partial(told, TEXT),
        lambda queries: _own_rows(queries, noted["samples"], told),
        lambda: None,
        calibration,
    )


def _column(file: Any, name: str, seal: Seal) -> Iterator[Any]:
    """A column, block by block, each checked by its seal as soon as a row group is complete."""
    checked = seal.checked(name)
    with _reading(seal):
        for batch in file.iter_batches(SIZE, columns=[name]):
            checked.add(batch.column(0))
            yield batch.column(0)


@contextmanager
def _reading(seal: Seal) -> Iterator[None]:
    import pyarrow as pa  # noqa: PLC0415 - only here

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"the index {seal.path} is damaged ({error}); make it again with `rince index`") from None


def _labels(file: Any, classes: Sequence[str], seal: Seal) -> Tensor:
    """`(gallery,)`: the class of every row, by number."""
    import pyarrow as pa  # noqa: PLC0415 - only here
    import pyarrow.compute as pc  # type: ignore[import-untyped]  # noqa: PLC0415

    names = pa.array(classes, pa.string())
    parts = [pc.index_in(block, names) for block in _column(file, LABEL, seal)]
    numbers = pa.chunked_array(parts, pa.int32())
    if numbers.null_count:
        raise ValueError(f"a label is none of its {len(classes)} classes")
    return torch.tensor(numbers.to_numpy(), dtype=torch.int64)


class _Told:
    """Paths and texts of an index, read from it a row group at a time, as they are asked for.

    Args:
        file: parquet.
        seal: that it must fit.
    """

    def __init__(self, file: Any, seal: Seal) -> None:
        self.file, self.seal = file, seal
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        self.ends = list(itertools.accumulate(sizes))
        self.group = functools.lru_cache(maxsize=8)(self._group)

    def _group(self, number: int, column: str) -> Any:
        with _reading(self.seal):
            read = self.file.read_row_group(number, columns=[column]).column(0)
        self.seal.check_group(column, number, read)
        return read

    def __call__(self, column: str, row: int) -> str:
        """What stands in a column; nothing if there is no such column."""
        if column not in self.file.schema_arrow.names:
            return ""
        number = bisect.bisect_right(self.ends, row)
        before = self.ends[number - 1] if number else 0
        return str(self.group(number, column)[row - before].as_py())

    def paths(self) -> Iterator[str]:
        """All of them, in order."""
        for block in _column(self.file, PATH, self.seal):
            yield from block.to_pylist()


def _own_rows(queries: Source, samples: str | None, told: _Told) -> list[set[int]]:
    """The rows of an index that are the queries themselves: rows of the same data, or the same files."""
    if samples is not None and queries.knows_content and queries.fingerprint == samples:
        return [{row} for row in range(len(queries))]
    asked = [queries.file(row) for row in range(len(queries))]
    wanted = {readable(str(file)): row for row, file in enumerate(asked) if file is not None}
    own: list[set[int]] = [set() for _ in asked]
    if wanted:
        for row, path in enumerate(told.paths()):
            if path in wanted:
                own[wanted[path]].add(row)
    return own


def search(gallery: Gallery, queries: Tensor, k: int, own: Sequence[set[int]]) -> list[list[tuple[int, float]]]:
    """For every query the rows and cosines of its k nearest items, nearest first; none is the query itself.

    Args:
        gallery: to search.
        queries: `(queries, dim)` unit vectors.
        k: how many; fewer if the gallery has fewer.
        own: for every query, the rows that are itself.
    """
    # As many more as a query has links in the gallery, which are left out below.
    near = nearest_in_blocks(queries, gallery.blocks(), k + max(map(len, own), default=0))
    pairs = (zip(*both, strict=True) for both in zip(near.rows.tolist(), near.cosines.tolist(), strict=True))
    return [[item for item in items if item[0] not in mine][:k] for items, mine in zip(pairs, own, strict=True)]


def find_neighbours(
    run: TrainedRun,
    queries: Source,
    gallery: Gallery,
    *,
    k: int,
    which: Which,
    tell: TellDone | None = None,
    say: Say = nobody,
) -> list[Found]:
    """For every query the k nearest samples of the gallery by cosine, nearest first; never the query itself."""
    k, own = whole_number(k, "k"), gallery.own_rows(queries)
    shared = sum(map(bool, own))
    if shared:
        say(f"{shared:,} of {len(queries):,} queries lie in {gallery.where!r}, too; none is shown as its own neighbour")
    asking = unit_vectors(vectors_of(run, queries, which, tell), which)
    return [
        Found(queries.place(row), row, [gallery.neighbour(*item) for item in items], queries.text(row) or "")
        for row, items in enumerate(search(gallery, asking, k, own))
    ]
