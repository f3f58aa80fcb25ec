"""What a source of samples is: everything particular to a kind of sample stands behind this, and nowhere else.

Order, loop, bank, judge and page know a `Source` and nothing more. A batch of it is a tensor, or a dict of tensors,
with a row for every sample; what the loop does with one is here, too.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from rince.devices import has_float64
from rince.errors import ConfigError, DataError
from rince.files import file_digests_once, readable
from rince.hierarchy.levels import no_own_paths
from rince.terminal import shown_progress

NAMED = 5  # classes that a note names
Batch = Tensor | dict[str, Tensor]


class Made(NamedTuple):
    """The views of some samples, on a device."""

    views: list[Batch]
    """One batch for every view asked for."""
    present: Tensor | None = None
    """`(samples, views)` bool: which of them a sample has; None if all."""
    ids: Tensor | None = None
    """`(samples,)`, if the source has sent them to the device anyway."""


class Preview(NamedTuple):
    """What a person is shown of a sample."""

    picture: Tensor | None
    """`(1 or 3, height, width)` uint8; None if there is nothing to see, or not any more."""
    text: str
    """What it is called."""


class Source(ABC):
    """Samples of one kind with their labels.

    Attributes:
        source: where they come from, for messages.
        labels: `(samples,)` int64 classes.
        class_names: names in label order.
        fingerprint: two sources of one fingerprint hold the same samples, by their content, with the same labels,
            wherever they lie.
        shape: of what the encoder gets of one sample.
    """

    thing: ClassVar[str] = "sample"
    """What one of them is called."""
    in_memory: ClassVar[bool] = False
    """Whether nothing has to be loaded ahead."""
    in_processes: bool = False
    """Whether `load` must have a process to itself, because it draws from generators that a process has one of."""
    knows_content: ClassVar[bool] = True
    """Whether the fingerprint is of the samples themselves, so that what was made of them can be kept."""
    copies: int = 1
    """Rows of `plain` for every sample; their outputs are averaged."""
    at_once: int = 256
    """Samples whose plain view is made at a time."""
    moves: ClassVar[bool] = False
    """Whether `film` gives anything."""
    set_aside: str = ""
    """What was taken out of the data before, in a sentence: a part that stands for the test split."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Names of samples that cannot be read and are not among these, each with the reason."""
    sample_groups: tuple[str, ...] | None = None
    """For every sample the name of its group: those that were made together, such as pieces of one film, and tell
    less than as many that were not. None if nothing is known of that."""

    source: str
    labels: Tensor
    class_names: tuple[str, ...]

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """See above."""

    @property
    def content(self) -> str:
        """The fingerprint of the samples as they lie there, whatever a network is given of them."""
        return self.fingerprint

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """See above."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_labelled(self) -> bool:
        """Whether it is known what the samples are; those of which it is not are one class, named like the thing."""
        return self.class_names != (self.thing,)

    @abstractmethod
    def load(self, ids: Tensor, numbers: Sequence[int], *, seed: int, epoch: int) -> Any:
        """What `finish` needs for these views of these samples, on the CPU; safe in threads, called ahead.

        A function of its arguments: the same in any batch, worker or process, and after any restart.
        """

    @abstractmethod
    def finish(self, loaded: Any, device: torch.device) -> Made:
        """The views that training sees, on the device."""

    @abstractmethod
    def plain(self, ids: Tensor) -> Batch:
        """What testing sees, nothing random, on the CPU: `copies` rows for every sample, one after the other."""

    def preview(self, row: int) -> Preview:
        """What a person sees of a sample."""
        return Preview(None, self.name(row))

    def text(self, row: int) -> str | None:  # noqa: ARG002 - of the interface
        """The sample itself, if it is a text."""
        return None

    def film(self, row: int) -> bytes | None:  # noqa: ARG002 - of the interface
        """A small WebP that moves; None if there is none."""
        return None

    def name(self, row: int) -> str:
        """What a sample is called, the same wherever the data lies: a file below its source, or a row."""
        return str(row)

    def file(self, row: int) -> Path | None:  # noqa: ARG002 - of the interface
        """The file of a sample; None if it has none of its own."""
        return None

    @cached_property
    def contents(self) -> list[str]:
        """sha256 of every sample's file; empty if samples have no files of their own."""
        paths: list[Path] = []
        for row in range(len(self)):
            path = self.file(row)
            if path is None:
                return []
            paths.append(path)
        with shown_progress(self.source) as tell:  # the first reading of much data takes a while
            return file_digests_once(paths, folder_of(self.source), lambda done, of: tell("reading files", done, of))

    def digests(self) -> list[str]:
        """What tells every sample by its content from others of its kind; empty if nobody knows."""
        texts = [self.text(row) for row in range(len(self))]
        return self.contents or [text.strip() for text in texts if text is not None]

    def holds_the_same_as(self, other: Source) -> bool:
        """Whether a row is the same sample in both."""
        known = self.knows_content and other.knows_content and self.file(0) is None
        return self is other or (known and self.fingerprint == other.fingerprint)

    def place(self, row: int) -> str:
        """Where a person finds a sample: its file, if it has one."""
        file = self.file(row)
        return self.name(row) if file is None else readable(str(file))

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:
        """The paths of the classes by a taxonomy that stands in the data: `"column"` or `"folders"`."""
        raise no_own_paths(taxonomy, self.source)

    def for_probe(self) -> Source:
        """The same with the views of the paper's probe: crop and flip alone."""
        raise ConfigError(
            f"--probe paper draws crops, and a {self.thing} of {self.source!r} has none; use --probe fast"
        )

    def notes(self) -> list[str]:
        """What a person should know before these samples are trained on: what was left out, and why."""
        return []

    def ahead(self) -> list[str]:
        """What has to be computed before the first step, and how long that takes: for the dry run."""
        return []

    def make(self, process: int, processes: int) -> None:  # noqa: B027 - as below
        """Computes the share of one of several processes of what `ahead` tells of, into the cache."""

    def pretend(self) -> None:  # noqa: B027 - most sources have nothing to compute
        """Takes made-up numbers for what `ahead` tells of: steps take as long with them."""


class Wrapped(Source):
    """Samples of another source, made into what a network takes: they keep their names, labels and looks."""

    def __init__(self, inner: Source) -> None:
        self.inner = inner
        self.source, self.labels, self.class_names = inner.source, inner.labels, inner.class_names
        self.left_out, self.sample_groups = inner.left_out, inner.sample_groups
        # Class variables elsewhere; here they are those of what is wrapped.
        self.__dict__ |= {"thing": inner.thing, "moves": inner.moves, "knows_content": inner.knows_content}

    @property
    def content(self) -> str:
        """As before."""
        return self.inner.content

    def preview(self, row: int) -> Preview:
        """As before."""
        return self.inner.preview(row)

    def text(self, row: int) -> str | None:
        """As before."""
        return self.inner.text(row)

    def film(self, row: int) -> bytes | None:
        """As before."""
        return self.inner.film(row)

    def name(self, row: int) -> str:
        """As before."""
        return self.inner.name(row)

    def file(self, row: int) -> Path | None:
        """As before."""
        return self.inner.file(row)

    def place(self, row: int) -> str:
        """As before."""
        return self.inner.place(row)

    def digests(self) -> list[str]:
        """As before."""
        return self.inner.digests()

    def own_paths(self, taxonomy: str) -> list[tuple[str, ...]]:
        """As before."""
        return self.inner.own_paths(taxonomy)

    def notes(self) -> list[str]:
        """As before."""
        return self.inner.notes()


def folder_of(source: str) -> Path:
    """Where the files of a source lie: the folder that it names, or that of its file."""
    path = Path(source)
    return path if path.is_dir() else path.parent


class Wanted(NamedTuple):
    """What `InMemory.load` leaves for the device: nothing but what is asked for."""

    ids: Tensor
    numbers: tuple[int, ...]
    seed: int
    epoch: int


class InMemory(Source):
    """Samples that lie in one tensor, which goes to a device once."""

    in_memory: ClassVar[bool] = True
    draws_in_float64: ClassVar[bool] = False
    """Whether what a view draws needs float64, which not every device has."""

    @property
    @abstractmethod
    def rows(self) -> Tensor:
        """All samples, one a row."""

    @abstractmethod
    def view(self, rows: Tensor, *, seed: int, epoch: int, view: int, sample_ids: Tensor) -> Tensor:
        """A view of some rows, where they are."""

    def digests(self) -> list[str]:
        """Of files, theirs; else of the rows."""
        return self.contents or row_digests(self.rows)

    def load(self, ids: Tensor, numbers: Sequence[int], *, seed: int, epoch: int) -> Wanted:
        """Nothing but what is asked for."""
        return Wanted(ids, tuple(numbers), seed, epoch)

    def finish(self, loaded: Wanted, device: torch.device) -> Made:
        """Views on the device, where all rows lie from the first time on."""
        resident: dict[torch.device, Tensor] = self.__dict__.setdefault("_resident", {})
        if device not in resident:
            resident[device] = self.rows.to(device)
        ids, seed, epoch = loaded.ids.to(device), loaded.seed, loaded.epoch
        chosen = resident[device][ids]
        # Where the device has none it is drawn on the CPU, from ids that are there already.
        drawn_by = loaded.ids if self.draws_in_float64 and not has_float64(device) else ids
        views = [
            self.view(chosen, seed=seed, epoch=epoch, view=number, sample_ids=drawn_by) for number in loaded.numbers
        ]
        return Made(list(views), ids=ids)


def left_out_notes(source: Source) -> list[str]:
    """How many samples cannot be read and are left out, and which, each with the reason."""
    if not source.left_out:
        return []
    number = len(source.left_out)
    return [
        f"{number:,} {source.thing}{'s' if number > 1 else ''} cannot be read; left out of {source.source!r}",
        *(f"left out: {name} ({reason})" for name, reason in source.left_out),
    ]


def alike_note(class_names: Sequence[str]) -> str:
    """Which names of classes differ by case, or in how Unicode writes a letter, alone; empty if none do."""
    by_form: dict[str, list[str]] = {}
    for name in map(str, class_names):
        by_form.setdefault(unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()), []).append(name)
    alike = [names for names in by_form.values() if len(names) > 1]
    if not alike:
        return ""
    told = "; ".join(" and ".join(_written(name, names) for name in names) for names in alike[:NAMED])
    more = f"; and {len(alike) - NAMED} more" if len(alike) > NAMED else ""
    return f"classes whose names differ by case or Unicode form alone count as different ones: {told}{more}"


def _written(name: str, others: Sequence[str]) -> str:
    """A name so that a person sees it is another one: with its letters' numbers where it looks the same."""
    looks = unicodedata.normalize("NFC", name)
    same = sum(unicodedata.normalize("NFC", other) == looks for other in others) > 1
    return ascii(name) if same else repr(name)


def unseen_note(source: Source) -> str:
    """Which classes a training set has no sample of, because only another split has them; empty if there are none."""
    absent = (torch.bincount(source.labels, minlength=len(source.class_names)) == 0).nonzero()[:, 0].tolist()
    if not absent:
        return ""
    names = ", ".join(repr(str(source.class_names[label])) for label in absent[:NAMED])
    more = f" and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
    these = "1 class has" if len(absent) == 1 else f"{len(absent)} classes have"
    return f"{these} no training {source.thing}: {names}{more}; nothing is learned of them, nor judged by class"


def rows_in(samples: Source, others: Source) -> Tensor | None:
    """`(samples,)`: the first row of each sample among the others, -1 where it is not there; None if none is."""
    if samples.holds_the_same_as(others):
        return torch.arange(len(samples))
    if len(samples) == 0 or samples.file(0) is None:  # which are of no other data; and may be millions
        return None
    first = [min(rows, default=-1) for rows in all_rows_in(samples, others)]
    return torch.tensor(first, dtype=torch.int64) if any(row >= 0 for row in first) else None


def row_digests(rows: Tensor) -> list[str]:
    """sha256 of every row of a tensor."""
    return [hashlib.sha256(row.tobytes()).hexdigest() for row in rows.cpu().contiguous().numpy()]


def copies_in(samples: Sequence[str], others: Sequence[str], same: Tensor | None = None) -> int:
    """How many samples have the content of another one among the others, by what `Source.digests` gives of both.

    Args:
        samples: of each sample.
        others: of the others.
        same: `(samples,)`: which of them is the sample itself, which is no copy; -1 for none.
    """
    if not samples or not others:
        return 0  # nobody knows what they hold
    there = set(others)
    itself = [-1] * len(samples) if same is None else same.tolist()
    return sum(digest in there and row < 0 for digest, row in zip(samples, itself, strict=True))


def all_rows_in(samples: Source, others: Source) -> list[set[int]]:
    """For each sample all rows among the others that are the same one: several links may lead to a file.

    The same sample is the same file, through any link, or the same row of the same data.
    """
    if samples.holds_the_same_as(others):
        return [{row} for row in range(len(samples))]
    places = [_files_of(each) for each in (samples, others)]
    if places[0] is None or places[1] is None:
        return [set() for _ in range(len(samples))]
    there: dict[tuple[int, int], set[int]] = {}
    for row, file in enumerate(places[1]):
        if file is not None:
            there.setdefault(file, set()).add(row)
    return [set() if file is None else there.get(file, set()) for file in places[0]]


def _files_of(source: Source) -> list[tuple[int, int] | None] | None:
    """Device and number of every sample's file, None for one that has none any more; None if samples have no files."""
    if len(source) == 0 or source.file(0) is None:
        return None
    found: list[tuple[int, int] | None] = []
    for row in range(len(source)):
        try:
            file = source.file(row)
            noted = None if file is None else os.stat(file)
        except (FileNotFoundError, NotADirectoryError):
            noted = None
        except OSError as error:  # it may be there, and the same as another
            raise DataError(f"{source.place(row)} cannot be read: {error.strerror or error}") from None
        found.append(None if noted is None else (noted.st_dev, noted.st_ino))
    return found


def parts_of(rows: int, count: int) -> list[slice]:
    """So many rows in `count` parts of about the same size: slices, which copy nothing."""
    ends = [0, *itertools.accumulate(rows // count + (part < rows % count) for part in range(count))]
    return list(itertools.starmap(slice, itertools.pairwise(ends)))


def rows_of(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch."""
    return batch[rows] if isinstance(batch, Tensor) else {name: each[rows] for name, each in batch.items()}


def moved(batch: Batch, device: torch.device) -> Batch:
    """The same batch on a device."""
    return batch.to(device) if isinstance(batch, Tensor) else {name: each.to(device) for name, each in batch.items()}
