"""Parts of a source: some of its samples as a source of their own, and the parts that training gives up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from rince.config import DataSettings
from rince.errors import DataError
from rince.sources.source import Batch, Made, Preview, Source
from rince.sources.splits import SPLITS, balanced, chosen_by_name, split_part

TestPart = Annotated[
    float,
    Field(ge=0, lt=1, description="share of each class that stands for the test split where the data has none"),
]
TEST_SALT = "test "  # so that the part for testing says nothing about the part for validation


class Part(Source):
    """Some samples of a source, numbered from 0; all else is the whole's.

    Args:
        whole: the source.
        rows: `(samples,)` of the whole, in the order they get.
        set_aside: what became of the other samples, for a person.
    """

    def __init__(self, whole: Source, rows: Tensor, set_aside: str = "") -> None:
        self.whole, self.part_rows, self.set_aside = whole, rows, set_aside
        self.source, self.class_names, self.labels = whole.source, whole.class_names, whole.labels[rows]
        for name in ("thing", "in_memory", "in_processes", "knows_content", "copies", "at_once", "moves", "left_out"):
            setattr(self, name, getattr(whole, name))
        groups = whole.sample_groups
        self.sample_groups = None if groups is None else tuple(groups[row] for row in rows.tolist())

    @property
    def fingerprint(self) -> str:
        """sha256 over that of the whole, and the rows."""
        return self._some_of(self.whole.fingerprint)

    @property
    def content(self) -> str:
        """The same of the samples as they lie there."""
        return self._some_of(self.whole.content)

    def _some_of(self, whole: str) -> str:
        return hashlib.sha256(f"{whole} ".encode() + self.part_rows.numpy().tobytes()).hexdigest()

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the whole."""
        return self.whole.shape

    def load(self, ids: Tensor, numbers: Sequence[int], *, seed: int, epoch: int) -> Any:
        """What the whole loads of these samples; views draw what they would draw there."""
        return self.whole.load(self.part_rows[ids], numbers, seed=seed, epoch=epoch)

    def finish(self, loaded: Any, device: torch.device) -> Made:
        """The views that the whole makes; without its ids, which are other numbers than ours."""
        return self.whole.finish(loaded, device)._replace(ids=None)

    def plain(self, ids: Tensor) -> Batch:
        """As of the whole."""
        return self.whole.plain(self.part_rows[ids])

    def preview(self, row: int) -> Preview:
        """As of the whole."""
        return self.whole.preview(int(self.part_rows[row]))

    def text(self, row: int) -> str | None:
        """As of the whole."""
        return self.whole.text(int(self.part_rows[row]))

    def film(self, row: int) -> bytes | None:
        """As of the whole."""
        return self.whole.film(int(self.part_rows[row]))

    def name(self, row: int) -> str:
        """As of the whole: a row of a table keeps its number."""
        return self.whole.name(int(self.part_rows[row]))

    def file(self, row: int) -> Path | None:
        """As of the whole."""
        return self.whole.file(int(self.part_rows[row]))

    def place(self, row: int) -> str:
        """As of the whole."""
        return self.whole.place(int(self.part_rows[row]))

    def digests(self) -> list[str]:
        """As of the whole."""
        whole = self.whole.digests()
        return [whole[row] for row in self.part_rows.tolist()] if whole else []

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:
        """As of the whole."""
        return self.whole.own_paths(taxonomy)

    def for_probe(self) -> Source:
        """The same part of the whole with the views of the probe."""
        return Part(self.whole.for_probe(), self.part_rows, self.set_aside)

    def notes(self) -> list[str]:
        """What was set aside, and the notes of the whole."""
        return [*filter(None, [self.set_aside]), *self.whole.notes()]

    def ahead(self) -> list[str]:
        """As of the whole."""
        return self.whole.ahead()

    def make(self, process: int, processes: int) -> None:
        """As of the whole."""
        self.whole.make(process, processes)

    def pretend(self) -> None:
        """As the whole."""
        self.whole.pretend()


def names_of(source: Source, rows: Sequence[int] | None = None) -> list[str]:
    """What the samples of a source, or some of them, are called."""
    return [source.name(row) for row in (range(len(source)) if rows is None else rows)]


def validation_rows(source: Source, share: float) -> Tensor:
    """Rows, rising, of the training samples that are held out: `data.validation` of each class, by their names.

    Where groups of samples are known, whole groups are, by the names of these: a sample that is held out has none of
    its group among those that are trained on.
    """
    if share == 0:
        return torch.empty(0, dtype=torch.int64)
    if source.sample_groups is None:
        units, rows = f"{source.thing}s", chosen_by_name(names_of(source), source.labels, share)
    else:
        units, rows = f"groups of {source.thing}s", _of_chosen_groups(source.sample_groups, source.labels, share)
    if len(rows) == 0:
        raise DataError(
            f"data.validation={share:g} holds out nothing of {source.source!r}: no class has two {units}; give "
            "more of them, or data.validation=0"
        )
    return rows


def _of_chosen_groups(groups: Sequence[str], labels: Tensor, share: float) -> Tensor:
    """Rows, rising, of the samples of a share of every class's groups."""
    label_of = dict(zip(groups, labels.tolist(), strict=True))
    names = list(label_of)
    chosen = {names[number] for number in chosen_by_name(names, torch.tensor(list(label_of.values())), share).tolist()}
    return torch.tensor([row for row, group in enumerate(groups) if group in chosen], dtype=torch.int64)


def others(rows: Tensor, number: int) -> Tensor:
    """Rows, rising, of `number` samples but for some."""
    left = torch.ones(number, dtype=torch.bool)
    left[rows] = False
    return left.nonzero()[:, 0]


def shared_texts(source: Source, rows: Tensor, elsewhere: Tensor, where: str) -> str:
    """How many of some texts other rows have, too, in a sentence; empty if none, and for samples that are no texts."""
    there = {text.strip() for text in map(source.text, elsewhere.tolist()) if text is not None}
    count = sum(text.strip() in there for text in map(source.text, rows.tolist()) if text is not None)
    return told_shared(count, len(rows), where)


def told_shared(count: int, texts: int, where: str) -> str:
    """The sentence on texts that stand in two places; empty if none does."""
    return f"{count:,} of {texts:,} texts stand in {where}, too" if count else ""


def with_test_part(
    data: DataSettings, share: float, split: str, there: Collection[str], read: Callable[[str, int | None], Source]
) -> Source:
    """The samples of a split, where data that has no test split gives up a part of its training split for testing.

    A share of each class, by hash of the names, is the test split, and the training split is the rest, of which
    `data.limit` is taken. Data that has a test split is read as it is, also where the recipe names another one.

    Args:
        data: its settings.
        share: `data.test_part`.
        split: to open.
        there: names of the splits that the data has, as `SPLITS` calls them.
        read: opens a split of the data, with a limit or None.
    """
    train, test = (SPLITS.get(name, name) for name, _ in map(split_part, (data.train_split, data.test_split)))
    is_training = split == data.train_split
    lacks_test = train in there and not {test, "test"} & set(there)
    gives = share > 0 and lacks_test and split in (data.train_split, data.test_split)
    if not gives or split_part(data.train_split)[1] is not None:
        return read(split, data.limit if is_training else None)
    whole = read(data.train_split, None)
    chosen = chosen_by_name(names_of(whole), whole.labels, share, salt=TEST_SALT)
    if len(chosen) == 0:
        raise DataError(
            f"{whole.source!r} has no split {data.test_split!r}, and nothing that could stand for it: no class has two "
            f"{whole.thing}s; give more of them, or data.test_part=0 to train on all"
        )
    rest = others(chosen, len(whole))
    if not is_training:
        return Part(whole, chosen, shared_texts(whole, chosen, rest, f"split {train!r}"))
    told = (
        f"there is no split {data.test_split!r}: {len(chosen):,} of {len(whole):,} {whole.thing}s, {100 * share:g} % "
        "of each class by their names, are set aside as it (data.test_part)"
    )
    if data.limit is not None:
        rest = rest[balanced(whole.labels[rest], data.limit)]
    shared = shared_texts(whole, rest, chosen, f"split {test!r}")
    return Part(whole, rest, "; ".join(filter(None, [told, shared])))
