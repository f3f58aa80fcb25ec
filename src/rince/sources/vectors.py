"""Vectors as samples: what a pretrained network has made of something, with labels, in files."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from pydantic import Field
from torch import Tensor

from rince.config import DataSettings
from rince.config.section import Names
from rince.errors import DataError
from rince.hierarchy.class_lists import read_class_list
from rince.hierarchy.levels import NoLevelsError, no_own_paths
from rince.sources.part import TestPart, with_test_part
from rince.sources.source import InMemory, Source
from rince.sources.splits import SPLITS, balanced, chosen_classes, tell_split
from rince.sources.tables import SPLIT, usual_column
from rince.sources.vector_files import (
    FORMATS,
    Part,
    VectorFile,
    VectorReader,
    conversion_notes,
    open_vector_file,
    read_vectors,
)
from rince.sources.vector_levels import Classes, called, read_classes
from rince.views.vectors import VectorViewSettings

LONGEST = 200  # letters of what a sample is called
NAMED = 3  # columns that a message explains


class VectorData(DataSettings):
    """`data.kind=vectors`: vectors that something else made."""

    view_settings: ClassVar[type[VectorViewSettings]] = VectorViewSettings
    encoder: ClassVar[str] = "adapter"
    input_name: ClassVar[str] = "vectors"
    whole_or_not: ClassVar[bool] = True

    kind: Literal["vectors"]
    source: str = Field(
        description="folder with files for every split, such as train.parquet and test.parquet (or .npz, .safetensors, "
        ".npy with .csv), or one file, whose column `split` divides it; without one it is all `train`"
    )
    vector_column: str | None = Field(None, description="of the vectors; found by itself where obvious")
    label_column: str | None = Field(None, description="of the classes; found by itself where obvious")
    level_columns: Names | None = Field(
        None,
        description="of the levels above the classes, in any order; null: all that can be, []: none",
    )

    test_part: TestPart = 0.2

    def open(self, split: str, views: VectorViewSettings, *, own_keys: int | None = None) -> Source:
        """The vectors of a split. Classes are those of all splits, so labels agree between them."""
        splits = vector_splits(self.source, self._opened)
        read = functools.partial(self._read, splits, views, told=own_keys is not None)
        return with_test_part(self, self.test_part, split, splits, read)

    def _read(
        self, splits: dict[str, list[Part]], views: VectorViewSettings, split: str, limit: int | None, *, told: bool
    ) -> Vectors:
        wanted = SPLITS.get(split.lower(), split)
        if wanted not in splits:
            raise DataError(f"{self.source!r} has no split {split!r}; there are {', '.join(map(repr, splits))}")
        widths = {part.file.matrix.width for parts in splits.values() for part in parts if len(part)}
        if len(widths) > 1:
            raise DataError(f"the vectors of {self.source!r} differ in length between splits: {sorted(widths)}")
        classes = read_classes(_files(splits.values()), self.label_column, self.level_columns)
        source = labelled_vectors(self.source, splits[wanted], classes, _files(splits.values()), views)
        if told:  # what was guessed is told where it counts
            levels = f"levels above from {', '.join(map(repr, classes.above))}" if classes.above else "no levels above"
            of_use = f", {levels}" if self.taxonomy == "column" else ""
            source = replace(source, remarks=(f"classes from {classes.column!r}{of_use}", *source.remarks))
        if self.classes is not None:
            source = source.of_classes(self.classes, split)
        return source if limit is None else source.part(balanced(source.labels, limit))

    def find(self, place: str, views: VectorViewSettings) -> FiledVectors:
        """All vectors of a file, or of the test split of a folder; with their labels, if they have any.

        They stay in their files, whatever their number.
        """
        path = Path(place)
        parts = [Part(self._opened_any(path))] if not path.is_dir() else self._test_parts(place)
        files = _files([parts])
        try:
            classes = read_classes(files, self.label_column, self.level_columns)
        except DataError:  # labels are not asked for, so those that cannot be used do no harm
            classes = None
        return filed_vectors(place, parts, classes, files, views)

    def outliers(self, place: str, views: VectorViewSettings, *, classes: str | None = None) -> Vectors:
        """The same; of all classes there, or of a list of them."""
        found = self.find(place, views).held()
        return found if classes is None else found.of_classes(classes, self.test_split)

    def _test_parts(self, place: str) -> list[Part]:
        splits = vector_splits(place, self._opened_any)
        wanted = SPLITS.get(self.test_split.lower(), self.test_split)
        if wanted not in splits and len(splits) > 1:
            raise DataError(f"{place!r} has the splits {', '.join(map(repr, splits))}; give the file of one of them")
        taken = wanted if wanted in splits else next(iter(splits))
        tell_split(place, taken, splits)
        return splits[taken]

    def _opened(self, path: Path) -> VectorFile:
        return open_vector_file(path, self.vector_column)

    def _opened_any(self, path: Path) -> VectorFile:
        """A file from elsewhere, where the vectors may be called otherwise."""
        try:
            return self._opened(path)
        except DataError:
            return open_vector_file(path)


@dataclass(frozen=True, eq=False)
class Vectors(InMemory):
    """Vectors in memory.

    Attributes:
        source: where they come from.
        vectors: `(samples, dim)` float32.
        labels: `(samples,)` int64.
        class_names: in label order.
        maker: what makes views of them.
        paths: of every class from the top down, if the files have more than one level.
        called: what every sample is called, if the files say it.
        remarks: on how they were read.
        no_levels: why columns that could have been levels are none.
    """

    thing: ClassVar[str] = "vector"

    source: str
    vectors: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    maker: VectorViewSettings
    paths: tuple[tuple[str, ...], ...] | None = None
    called: pa.ChunkedArray | None = None
    remarks: tuple[str, ...] = ()
    no_levels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for _ in self._checked():
            pass

    def _checked(self) -> Iterator[Tensor]:
        """All vectors, some at a time; refused in the end if some hold NaN or infinity, or are too long for float32."""
        bad, long, start = [], [], 0
        for block in self.blocks():
            yield block
            lengths = torch.linalg.vector_norm(block, dim=1)
            doubtful = (~lengths.isfinite()).nonzero()[:, 0]
            finite = block[doubtful].isfinite().all(dim=1)
            bad += (start + doubtful[~finite]).tolist()
            long += (start + doubtful[finite]).tolist()
            start += len(block)
        if bad:
            raise DataError(
                f"{self.source!r} holds NaN or infinity in {len(bad)} of {len(self)} vectors, the first in row {bad[0]}"
            )
        if long:
            raise DataError(
                f"{self.source!r} holds numbers so large that the length of {len(long)} of {len(self)} vectors is no "
                f"float32, the first in row {long[0]}; divide all vectors by the same number"
            )

    def blocks(self) -> Iterator[Tensor]:
        """All vectors, some at a time."""
        yield self.vectors

    @property
    def fingerprint(self) -> str:
        """sha256 over vectors, labels and class names."""
        return self._digest()

    def _digest(self) -> str:
        digest = hashlib.sha256(repr(((len(self), *self.shape), self.class_names)).encode())
        for block in self._checked():
            digest.update(block.numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of a vector."""
        return (self.vectors.shape[1],)

    @property
    def rows(self) -> Tensor:
        """The vectors."""
        return self.vectors

    def view(self, rows: Tensor, *, seed: int, epoch: int, view: int, sample_ids: Tensor) -> Tensor:
        """Noise and dropout."""
        return self.maker.make(rows, seed=seed, epoch=epoch, view=view, sample_ids=sample_ids)

    def plain(self, ids: Tensor) -> Tensor:
        """The vectors themselves."""
        return self.vectors[ids]

    def name(self, row: int) -> str:
        """What the file calls it, in one line; its row if it says nothing."""
        words = None if self.called is None else self.called[row].as_py()
        line = " ".join(str(row if words is None else words).split()) or str(row)
        return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:
        """By the other levels that the files have."""
        if taxonomy != "column":
            raise no_own_paths(taxonomy, self.source)
        if self.paths is None:
            raise NoLevelsError(
                f"taxonomy 'column' needs a column for every level above the classes, and {self.source!r} has none "
                "that groups them; name them with data.level_columns, or use a taxonomy file, or 'none'"
                + "".join(f"; {reason}" for reason in self.no_levels[:NAMED])
            )
        return [_once(path) for path in self.paths]

    def notes(self) -> list[str]:
        """How they were read, which columns are no levels, and which vectors have no direction."""
        zero = sum(int((torch.linalg.vector_norm(block, dim=1) == 0).sum()) for block in self.blocks())
        told = [f"{zero:,} of {len(self):,} vectors are zero, at cosine 0 from all others"] if zero else []
        return [*self.remarks, *self.no_levels, *told]

    def part(self, rows: Tensor) -> Vectors:
        """Some of the samples."""
        called = None if self.called is None else self.called.take(pa.array(rows.numpy()))
        return replace(self, vectors=self.vectors[rows], labels=self.labels[rows], called=called)

    def of_classes(self, classes: str, split: str) -> Vectors:
        """The samples of a list of classes, numbered anew."""
        wanted = read_class_list(classes)
        rows, labels, chosen = chosen_classes(
            self.labels, self.class_names, wanted, list_name=classes, source=self.source, split=split
        )
        names = tuple(self.class_names[label] for label in chosen)
        paths = self.paths and tuple(self.paths[label] for label in chosen)
        return replace(self.part(rows), labels=labels, class_names=names, paths=paths)


@dataclass(frozen=True, eq=False)
class FiledVectors(Vectors):
    """Vectors that stay in their files, to be gone through in their order; not to be trained on.

    Attributes:
        vectors: none of them.
        reader: reads them.
    """

    reader: VectorReader = field(kw_only=True)

    def __post_init__(self) -> None:
        """Nothing is read yet."""

    def blocks(self) -> Iterator[Tensor]:
        """As they are read."""
        return self.reader.blocks()

    @functools.cached_property
    def fingerprint(self) -> str:
        """As of vectors in memory; a pass over the files, which are refused if they hold NaN or infinity."""
        return self._digest()

    def plain(self, ids: Tensor) -> Tensor:
        """The vectors themselves."""
        found = self.reader(ids)
        if not bool(found.isfinite().all()):
            self._digest()  # says what is wrong
        return found

    def held(self) -> Vectors:
        """The same in memory."""
        facts = {each.name: getattr(self, each.name) for each in fields(Vectors)}
        return Vectors(**facts | {"vectors": read_vectors(self.reader.parts, self.source)})


def _once(path: tuple[str, ...]) -> tuple[str, ...]:
    """`animal`, `animal/dog`, `pug`, as `rince embed` writes groups, is `animal`, `dog`, `pug`."""
    parts: tuple[str, ...] = ()
    for part in path:
        parts = (*parts, part.removeprefix(f"{'/'.join(parts)}/") if parts else part)
    return parts


def vector_splits(source: str, opened: Callable[[Path], VectorFile]) -> dict[str, list[Part]]:
    """Split → its rows: by the names of files, or by the column `split` of what is not divided into files.

    Args:
        source: a file, or a folder of files. `train-00000-of-00002.parquet` and `train-00001-of-00002.parquet` are
            parts of one split; `0.parquet`, `1.parquet` and so on are parts of data that is not divided.
        opened: opens a file.
    """
    path = Path(source)
    if path.is_file():
        return _split_by_column([opened(path)], source)
    if not path.is_dir():
        raise DataError(f"there is no file and no folder {source!r}; give a folder with train.parquet and test.parquet")
    found: dict[str, list[Path]] = {}
    for file in sorted(each for each in path.iterdir() if each.suffix in FORMATS):
        numbered = re.fullmatch(r"(?:(.+?)[-_.])?\d+(?:-of-\d+)?", file.stem)
        name = (numbered[1] or "") if numbered else file.stem
        split = SPLITS.get(name.lower(), name)
        if split in found and not numbered:
            raise DataError(f"{source!r} has two files for split {split!r}, {found[split][0].name} and {file.name}")
        found.setdefault(split, []).append(file)
    if not found:
        raise DataError(f"no file in {source!r} holds vectors: none ends in {' '.join(FORMATS)}")
    if len(found) == 1 and not set(found) & set(SPLITS.values()):
        return _split_by_column([opened(file) for files in found.values() for file in files], source)
    return {split: [Part(opened(file)) for file in files] for split, files in found.items()}


def _split_by_column(files: list[VectorFile], source: str) -> dict[str, list[Part]]:
    names = [usual_column(file.columns, (SPLIT,)) for file in files]
    if None in names:
        return {"train": list(map(Part, files))}
    found: dict[str, list[Part]] = {}
    for file, name in zip(files, filter(None, names), strict=True):
        column = file.columns[name].cast(pa.large_string())
        if column.null_count:
            raise DataError(f"column {name!r} of {source!r} is empty in {column.null_count} rows; name their split")
        chosen: dict[str, Any] = {}
        for value in column.unique().to_pylist():
            split = SPLITS.get(value.lower(), value)
            chosen[split] = chosen.get(split, False) | pc.equal(column, value).to_numpy()
        for split, rows in chosen.items():
            found.setdefault(split, []).append(Part(file, rows))
    return found


def _files(splits: Iterable[Sequence[Part]]) -> list[VectorFile]:
    """All files that there are rows of, each once."""
    return list({part.file.path: part.file for parts in splits for part in parts}.values())


def labelled_vectors(
    source: str,
    parts: Sequence[Part],
    classes: Classes | None,
    files: Sequence[VectorFile],
    views: VectorViewSettings | None = None,
) -> Vectors:
    """The rows of some parts, in memory.

    Args:
        source: where they are from, for messages.
        parts: which rows.
        classes: of all files, if they have any.
        files: that the classes were read from.
        views: what makes views of them, where they are trained on.
    """
    return filed_vectors(source, parts, classes, files, views).held()


def filed_vectors(
    source: str,
    parts: Sequence[Part],
    classes: Classes | None,
    files: Sequence[VectorFile],
    views: VectorViewSettings | None = None,
) -> FiledVectors:
    """The same, left in their files."""
    views = views or VectorViewSettings()
    if not sum(map(len, parts)):
        raise DataError(f"there is no row in {', '.join(part.file.path.name for part in parts)} of {source!r} to take")
    reader = VectorReader(parts, source)
    own = [part.file for part in parts]
    column = called(own)
    texts = None if column is None else [part.column(column).cast(pa.large_string()) for part in parts]
    facts: dict[str, Any] = {
        "called": None if texts is None else pa.chunked_array([chunk for text in texts for chunk in text.chunks]),
        "remarks": tuple(conversion_notes(own)),
    }
    none = torch.empty(0, reader.width)
    if classes is None:
        labels = torch.zeros(len(reader), dtype=torch.int64)
        return FiledVectors(source, none, labels, (Vectors.thing,), views, reader=reader, **facts)
    of_file = {file.path: labels for file, labels in zip(files, classes.labels, strict=True)}
    chosen = [slice(None) if part.chosen is None else torch.from_numpy(part.chosen) for part in parts]
    labels = torch.cat([of_file[part.file.path][rows] for part, rows in zip(parts, chosen, strict=True)])
    facts |= {"paths": classes.paths if classes.above else None, "no_levels": tuple(classes.no_levels)}
    return FiledVectors(source, none, labels, classes.names, views, reader=reader, **facts)
