"""Texts as samples: sentences, questions, documents, with labels, in tables. What a network takes is the encoder's."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NoReturn

import torch
from pydantic import Field
from torch import Tensor

from rince.config import DataSettings
from rince.config.section import Names
from rince.errors import ConfigError, DataError
from rince.hierarchy.class_lists import read_class_list
from rince.hierarchy.levels import NoLevelsError, no_own_paths
from rince.hierarchy.taxonomy import SHIPPED
from rince.sources.part import TestPart, told_shared, with_test_part
from rince.sources.source import Made, Preview, Source
from rince.sources.splits import SPLITS, balanced, chosen_classes, class_order
from rince.sources.tables import LABELS, find_column
from rince.sources.text_files import EMBEDDED, FORMATS, LINES, Table, read_any, table_splits
from rince.sources.text_levels import Labels, labels_in, levels_of
from rince.views.texts import TextViewSettings

TEXTS = ("text", "sentence", "utterance", "question", "query", "content", "document", "definition", "description")
UNLABELLED = ("text",)  # the one class of texts that have no label
NAMED = 3  # rows or columns that a message names


class TextData(DataSettings):
    """`data.kind=texts`: a text column of a table."""

    view_settings: ClassVar[type[TextViewSettings]] = TextViewSettings
    encoder: ClassVar[str] = "sentence-transformers"
    whole_or_not: ClassVar[bool] = True

    kind: Literal["texts"]
    source: str = Field(
        description="a table (.csv, .tsv, .jsonl, .parquet), which is all `train` unless it has a column `split`, a "
        "folder with one for every split, such as train.csv and test.csv, a hub name, or embedded data (definitions)"
    )
    text_column: str | None = Field(
        None, description="of the texts; found by itself where obvious: text, sentence, question, …"
    )
    label_column: str | None = Field(
        None, description="of the classes; found by itself where obvious: label, intent, class, …"
    )
    level_columns: Names | None = Field(
        None,
        description="for taxonomy: column, the columns above the class; found by itself: all that give every class one "
        "group",
    )

    test_part: TestPart = 0.2

    def open(self, split: str, views: TextViewSettings, *, own_keys: int | None = None) -> Source:  # noqa: ARG002
        """The texts of a split. Classes are those of all splits, so labels agree between them."""
        read = functools.partial(self._read, views)
        return with_test_part(self, self.test_part, split, table_splits(self.source), read)

    def _read(self, views: TextViewSettings, split: str, limit: int | None) -> Texts:
        wanted = SPLITS.get(split, split)
        tables = self._tables(wanted, split)
        table, there = tables[wanted], list(tables[wanted].columns)
        text_column = find_column(self.source, there, "text", self.text_column, TEXTS)
        label_column = find_column(self.source, there, "label", self.label_column, LABELS)
        texts = texts_in(table, text_column, self.source)
        labelled = {
            name: (each, labels_in(each, label_column, self.source))
            for name, each in tables.items()
            if label_column in each.columns
        }
        own = _all_labelled(table, labelled[wanted][1], label_column, self.source)
        names = tuple(sorted({name for _, labels in labelled.values() for name in labels if name}, key=class_order))
        paths, notes, no_levels = self._paths(labelled, names, text_column, label_column)
        number = {name: label for label, name in enumerate(names)}
        labels = torch.tensor([number[name] for name in own])
        rows = torch.arange(len(labels))
        if self.classes is not None:
            wished = read_class_list(self.classes)
            rows, labels, chosen = chosen_classes(
                labels, names, wished, list_name=self.classes, source=self.source, split=split
            )
            names = tuple(names[label] for label in chosen)
            paths = None if paths is None else tuple(paths[label] for label in chosen)
        if limit is not None:
            kept = balanced(labels, limit)
            rows, labels = rows[kept], labels[kept]
        texts = tuple(texts[row] for row in rows.tolist())
        places = tuple(table.places[row] for row in rows.tolist())
        notes += self._seen_elsewhere(texts, wanted, tables, text_column)
        return Texts(self.source, texts, labels, names, views, paths, places, tuple(notes), tuple(no_levels))

    def find(self, place: str, views: TextViewSettings) -> Texts:
        """All texts of a file, with their labels if they have any; the test split of other sources; or one text."""
        if not self.is_sample(place):
            return self._found(place, views)
        if not place.strip():
            raise DataError("the text is empty; give a text, or a file of texts")
        return _unlabelled(place, (place,), views, (place,))

    def given(self, samples: Sequence[str], views: TextViewSettings) -> Texts:
        """Texts as they are."""
        empty = next((number for number, text in enumerate(samples) if not text.strip()), None)
        if empty is not None:
            raise DataError(f"text {empty} of {len(samples):,} is empty; take it out")
        return _unlabelled(f"{len(samples):,} texts", tuple(samples), views, tuple(samples))

    def is_sample(self, place: str) -> bool:
        """Whether it is a text. What ends like a file, or has a slash and no space, is meant to be a file."""
        looks_like_one = re.fullmatch(r"\S*/\S*", place) or place.lower().endswith((*FORMATS, LINES))
        return not (place in EMBEDDED or os.path.exists(place) or looks_like_one)

    def outliers(self, place: str, views: TextViewSettings, *, classes: str | None = None) -> Texts:
        """All texts of a file, or the test split of other sources; of all classes or some."""
        found = self._found(place, views, must_have_labels=classes is not None)
        if classes is None:  # whatever they are labelled
            return _unlabelled(place, found.texts, views, found.names)
        rows, labels, chosen = chosen_classes(
            found.labels,
            found.class_names,
            read_class_list(classes),
            list_name=classes,
            source=place,
            split=self.test_split,
        )
        texts, places = (tuple(each[row] for row in rows.tolist()) for each in (found.texts, found.names))
        names = tuple(found.class_names[label] for label in chosen)
        return Texts(place, texts, labels, names, views, None, places)

    def usual_shape(self, views: TextViewSettings) -> tuple[int, ...]:  # noqa: ARG002 - of the interface
        """None: a text is no tensor."""
        return ()

    def _tables(self, wanted: str, split: str) -> dict[str, Table]:
        """The split, and those that have to agree with it on classes: named like splits, or in the recipe.

        Whatever else lies in the folder is left alone.
        """
        splits = table_splits(self.source)
        if wanted not in splits:
            raise DataError(f"{self.source!r} has no split {split!r}; there are {', '.join(map(repr, splits))}")
        named = (SPLITS.get(name, name) for name in (self.train_split, self.test_split))
        together = {*SPLITS.values(), *named, wanted}
        return {name: read() for name, read in splits.items() if name in together}

    def _paths(
        self, labelled: dict[str, tuple[Table, Labels]], names: Sequence[str], text_column: str, label_column: str
    ) -> tuple[tuple[tuple[str, ...], ...] | None, list[str], list[str]]:
        """Of every class, if columns tell them, what to say of it, and why columns are no levels."""
        by_column = self.taxonomy == "column"
        guessed = by_column and self.level_columns is None
        columns = {"text_column": text_column, "label_column": label_column}
        try:
            levels, reasons = levels_of(labelled, names, self.level_columns, **columns, source=self.source)
        except DataError:
            if by_column or self.level_columns is not None:
                raise
            return None, [], []  # nobody asked for them
        if not levels:
            return None, [f"no column is a level above {label_column}"] if guessed else [], reasons if guessed else []
        told = [f"{level.column} ({len(level.groups)})" for level in levels] + [f"{label_column} ({len(names)})"]
        paths = tuple((*(level.group_of[name] for level in levels), name) for name in names)
        return paths, [f"taxonomy by columns: {' above '.join(told)}"] if guessed else [], reasons if guessed else []

    def _seen_elsewhere(
        self, texts: Sequence[str], wanted: str, tables: dict[str, Table], text_column: str
    ) -> list[str]:
        """Whether training texts are tested on, or the reverse."""
        train, test = (SPLITS.get(name, name) for name in (self.train_split, self.test_split))
        other = test if wanted == train else train
        if other == wanted or text_column not in (tables[other].columns if other in tables else ()):
            return []
        there = {value.strip() for value in tables[other].columns[text_column] if isinstance(value, str)}
        count = sum(text.strip() in there for text in texts)
        return [*filter(None, [told_shared(count, len(texts), f"split {other!r}")])]

    def _found(self, place: str, views: TextViewSettings, *, must_have_labels: bool = False) -> Texts:
        table = read_any(place, self.test_split)
        # A column that the run's own data has need not be called the same elsewhere.
        text, label = (column if column in table.columns else None for column in (self.text_column, self.label_column))
        there, places = list(table.columns), tuple(table.places)
        text_column = find_column(place, there, "text", text, TEXTS)
        texts = texts_in(table, text_column, place)
        try:
            label_column = find_column(place, there, "label", label, LABELS)
            own = _all_labelled(table, labels_in(table, label_column, place), label_column, place)
        except DataError:  # labels that are not asked for and cannot be used do no harm
            if must_have_labels:
                raise
            return _unlabelled(place, texts, views, places)
        names = tuple(sorted(set(own), key=class_order))
        number = {name: label for label, name in enumerate(names)}
        labels = torch.tensor([number[name] for name in own])
        paths = None
        with suppress(DataError):  # likewise the levels above
            paths, _, _ = self._paths({place: (table, list(own))}, names, text_column, label_column)
        return Texts(place, texts, labels, names, views, paths, places)


@dataclass(frozen=True, eq=False)
class Texts(Source):
    """Texts in memory. What a network takes of them, a text encoder makes.

    Attributes:
        source: where they come from.
        texts: one for every sample.
        labels: `(samples,)` int64.
        class_names: in label order.
        maker: what makes views of them.
        paths: of every class from the top down, if columns tell them.
        names: of every sample, such as `train.csv:17`; without, they are called by their row.
        said: what a person should know of them.
        no_levels: likewise, why columns that could have been levels are none.
    """

    thing: ClassVar[str] = "text"

    source: str
    texts: tuple[str, ...]
    labels: Tensor
    class_names: tuple[str, ...]
    maker: TextViewSettings
    paths: tuple[tuple[str, ...], ...] | None = None
    names: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    no_levels: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over texts, labels and class names."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        digest.update(self.labels.numpy().tobytes())
        for text in self.texts:
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()

    @property
    def shape(self) -> tuple[int, ...]:
        """None: a text is no tensor."""
        return ()

    def load(self, ids: Tensor, numbers: Sequence[int], *, seed: int, epoch: int) -> NoReturn:  # noqa: ARG002
        """There are no tensors of a text without an encoder of texts."""
        raise self._no_tensors()

    def finish(self, loaded: Any, device: torch.device) -> Made:  # noqa: ARG002 - of the interface
        """Likewise."""
        raise self._no_tensors()

    def plain(self, ids: Tensor) -> NoReturn:  # noqa: ARG002 - of the interface
        """Likewise."""
        raise self._no_tensors()

    def _no_tensors(self) -> ConfigError:
        return ConfigError(
            f"{self.source!r} holds texts, which model.kind=resnet and adapter cannot take; use "
            "model.kind=sentence-transformers or huggingface"
        )

    def preview(self, row: int) -> Preview:
        """The text."""
        return Preview(None, self.texts[row])

    def text(self, row: int) -> str:
        """The text."""
        return self.texts[row]

    def name(self, row: int) -> str:
        """The file without its folder, and the line."""
        return self.names[row] if self.names else str(row)

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:
        """By the columns above the class."""
        if taxonomy == "column" and self.paths is None:
            raise NoLevelsError(
                f"taxonomy 'column' needs a column that gives every class one group, and {self.source!r} has none; "
                f"name it with data.level_columns, or use a taxonomy file, a shipped one ({', '.join(SHIPPED)}), or "
                "'none'" + "".join(f"; {reason}" for reason in self.no_levels[:NAMED])
            )
        if taxonomy != "column" or self.paths is None:
            raise no_own_paths(taxonomy, self.source)
        return list(self.paths)

    def notes(self) -> list[str]:
        """Levels that were guessed, texts that other splits have, too, columns that are no levels."""
        return [*self.said, *self.no_levels]


def _unlabelled(source: str, texts: tuple[str, ...], views: TextViewSettings, names: tuple[str, ...]) -> Texts:
    return Texts(source, texts, torch.zeros(len(texts), dtype=torch.int64), UNLABELLED, views, None, names)


def texts_in(table: Table, column: str, source: str) -> tuple[str, ...]:
    """The texts of a column.

    Raises:
        DataError: if one is empty, or not text.
    """
    values = table.columns[column]
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, str):
            raise DataError(
                f"column {column!r} of {source!r} holds {value!r} at {table.places[row]}, which is not text; name the "
                "right column with data.text_column"
            )
    empty = [row for row, value in enumerate(values) if value is None or not value.strip()]
    if empty:
        raise DataError(
            f"{len(empty):,} of {len(values):,} texts of {source!r} are empty: {_rows(table, empty)}; take them out"
        )
    if all(map(_is_number, values)):
        raise DataError(
            f"column {column!r} of {source!r} holds numbers, not text; name the right one with data.text_column"
        )
    return tuple(values)


def _all_labelled(table: Table, labels: Labels, column: str, source: str) -> list[str]:
    missing = [row for row, label in enumerate(labels) if label is None]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(labels):,} texts of {source!r} have no {column}: {_rows(table, missing)}; label "
            "them, or take such rows out"
        )
    return [label for label in labels if label is not None]


def _rows(table: Table, rows: Sequence[int]) -> str:
    named = ", ".join(table.places[row] for row in rows[:NAMED])
    return f"{named} and {len(rows) - NAMED:,} more" if len(rows) > NAMED else named


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
