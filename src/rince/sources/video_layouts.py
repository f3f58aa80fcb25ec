"""Which videos a source has: class folders, a manifest, or the lists that come with well-known data."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from rince.errors import ConfigError, DataError
from rince.files import readable
from rince.sources.folders import refuse_unreadable
from rince.sources.splits import SPLITS as USUAL_SPLITS
from rince.sources.splits import split_folders

SUFFIXES = {".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".ts", ".webm", ".wmv"}
SPLITS = USUAL_SPLITS | {"validate": "val"}
UNLABELLED = "unlabelled"
RANGE_COLUMNS = ("frame_ranges", "action_ranges", "ranges")
UCF_SPLITS, HMDB_SPLITS = "ucfTrainTestlist", "testTrainMulti_7030_splits"
KTH_NAME = re.compile(r"person(\d\d)_([a-z]+)_d\d(_uncomp)?")
# The official division of the 25 people, from the list of sequences that comes with the data.
KTH_PEOPLE = {"train": range(11, 19), "val": (1, 4, 19, 20, 21, 23, 24, 25), "test": (2, 3, 5, 6, 7, 8, 9, 10, 22)}
UCF_NAME = re.compile(r"v_.+_g(\d+)_c\d+")  # v_Basketball_g01_c02: group and clip
HMDB_FLAGS = {"0": "unused", "1": "train", "2": "test"}

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ListedVideo:
    """One video before labels have numbers: file, class, split, the frames in which clips may lie, and its group."""

    path: Path
    label: str
    split: str
    ranges: Ranges | None = None
    group: str = ""


@dataclass(frozen=True, eq=False)
class VideoList:
    """Videos of one split.

    Attributes:
        paths: of the files.
        labels: `(number,)` int64.
        class_names: names in label order, the same in every split.
        ranges: per video the frames in which clips may lie, as (first, stop) with frames counted from 0 and `stop` not
            among them, or None for all of them; None if no video has such ranges.
        absent: names that a list has but the disk has not.
        source: where they come from, for messages.
        split: the split asked for.
        lacking: the parts of it that the source does not have.
        groups: per video the name of its group, or nothing if it belongs to none; None if no video has one. Names
            begin with the class: group 1 of UCF101's basketball and group 1 of its diving share nothing.
    """

    paths: tuple[Path, ...]
    labels: Tensor
    class_names: tuple[str, ...]
    ranges: tuple[Ranges | None, ...] | None = None
    absent: tuple[str, ...] = ()
    source: str = "videos"
    split: str = "train"
    lacking: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, rows: Iterable[int]) -> VideoList:
        """Some of the videos; labels keep their meaning."""
        chosen = list(rows)
        return replace(
            self,
            paths=tuple(self.paths[row] for row in chosen),
            labels=self.labels[torch.tensor(chosen, dtype=torch.int64)],
            ranges=None if self.ranges is None else tuple(self.ranges[row] for row in chosen),
            groups=None if self.groups is None else tuple(self.groups[row] for row in chosen),
        )


def list_videos(
    source: str | Path, split: str, *, layout: str = "auto", split_number: int = 1, splits: str | Path | None = None
) -> VideoList:
    """The videos of a split, none of them opened.

    Args:
        source: a folder, or the CSV file of a manifest.
        split: "train", "val", "test", or several joined by "+", of which those that are there are taken.
        layout: how the source is laid out; "auto" looks what is there.
            `folders`: class folders, split folders on top if there are any (else all is "train"); videos that lie in no
            class folder are all "unlabelled". `manifest`: a CSV file with the columns path, label, split; group, if
            videos of a class belong together; and frame_ranges or action_ranges if clips may not lie everywhere:
            "1-75 152-225", counted from 1, both ends among them. `kinetics400`: split folders, or the CSV lists as
            distributed. `ucf101`, `hmdb51`: class folders and the official split files. `kth`: the original file names,
            split by person as the authors do.
        split_number: which of the three official splits of UCF101 and HMDB51.
        splits: folder of the official split files, if it is not in or beside the source.

    Example:
        >>> list_videos("no/such/folder", "train")
        Traceback (most recent call last):
        rince.errors.DataError: there is no file and no folder 'no/such/folder'; give the path of the videos
    """
    root = Path(source)
    if not root.exists():
        raise DataError(f"there is no file and no folder {str(source)!r}; give the path of the videos")
    if layout not in LAYOUTS and layout != "auto":
        raise ConfigError(f"there is no layout {layout!r}; there are auto, {', '.join(LAYOUTS)}")
    if split_number not in (1, 2, 3):
        raise ConfigError(f"split_number is 1, 2 or 3, got {split_number}")
    folder = None if splits is None else Path(splits)
    layout = _guess(root, folder) if layout == "auto" else layout
    if root.is_file() and layout != "manifest":
        raise DataError(f"{str(source)!r} is a file, but layout {layout!r} is a folder")
    rows = list(LAYOUTS[layout](root, folder, split_number))
    return _chosen(rows, str(source), split)


def _chosen(rows: list[ListedVideo], source: str, split: str) -> VideoList:
    """Rows of some splits; classes are those of all of them, so labels agree."""
    known = {row.split for row in rows} - {"unused"}
    wanted = [SPLITS.get(name, name) for name in split.split("+")]
    lacking = tuple(name for name in wanted if name not in known)
    if len(lacking) == len(wanted):
        nothing = f"none: nothing is listed, or no file ends in {' '.join(sorted(SUFFIXES))}"
        there = ", ".join(map(repr, sorted(known))) or nothing
        raise DataError(f"{source!r} has no split {wanted[0]!r}; there are {there}")
    names = {row.label for row in rows}
    numeric = all(re.fullmatch(r"\d+", name) for name in names)
    class_names = tuple(sorted(names, key=int) if numeric else sorted(names))
    number = {name: label for label, name in enumerate(class_names)}
    listed = [row for row in rows if row.split in wanted]
    chosen = [row for row in listed if os.path.isfile(row.path)]  # false, not an error, for what can be no file
    absent = tuple(row.path.name for row in listed if not os.path.isfile(row.path))
    if not chosen:
        raise DataError(
            f"none of the {len(listed)} videos that split {split!r} of {source!r} lists is there; the first would be "
            f"{str(listed[0].path)!r}"
        )
    ranges = tuple(row.ranges for row in chosen)
    return VideoList(
        paths=tuple(row.path for row in chosen),
        labels=torch.tensor([number[row.label] for row in chosen]),
        class_names=class_names,
        ranges=ranges if any(each is not None for each in ranges) else None,
        absent=absent,
        source=source,
        split=split,
        lacking=lacking,
        groups=_groups(chosen),
    )


def _groups(rows: list[ListedVideo]) -> tuple[str, ...] | None:
    """The group of every video, by what lists it or, where UCF101 names files so, by its name."""
    named = [row.group or _group_in_name(row.path.stem) for row in rows]
    if not any(named):
        return None
    return tuple(group and f"{row.label}/{group}" for row, group in zip(rows, named, strict=True))


def _group_in_name(stem: str) -> str:
    found = UCF_NAME.fullmatch(stem)
    return str(int(found[1])) if found else ""


def _guess(root: Path, splits: Path | None) -> str:
    if root.is_file() or (root / "manifest.csv").is_file():
        return "manifest"
    if _ucf_splits(root, splits):
        return "ucf101"
    if _hmdb_splits(root, splits):
        return "hmdb51"
    if _kinetics_lists(root):
        return "kinetics400"
    first = next(video_files(root), None)
    return "kth" if first and KTH_NAME.fullmatch(first.stem) else "folders"


def _folders(root: Path, _splits: Path | None, _number: int) -> Iterator[ListedVideo]:
    labels: dict[bool, Path] = {}
    for split, top in (split_folders(root, SPLITS) or {"train": root}).items():
        for path in video_files(top):
            label = readable(path.parent.relative_to(top).as_posix())
            labels[label == "."] = path
            yield ListedVideo(path, UNLABELLED if label == "." else label, split)
    if len(labels) == 2:
        raise DataError(f"{str(root)!r} has videos in class folders ({labels[False]}) and in none ({labels[True]})")


def _manifest(root: Path, _splits: Path | None, _number: int) -> Iterator[ListedVideo]:
    file = root if root.is_file() else root / "manifest.csv"
    if not file.is_file():
        raise DataError(f"{str(root)!r} has no manifest.csv, which layout 'manifest' reads")
    for line, fields in _read_csv(file, ("path", "label", "split")):
        ranges = next((fields[name] for name in RANGE_COLUMNS if fields.get(name)), None)
        split = fields["split"].strip()
        if not all(fields[name] for name in ("path", "label", "split")):
            raise DataError(f"line {line} of {str(file)!r} lacks a path, a label or a split")
        yield ListedVideo(
            file.parent / fields["path"],
            fields["label"],
            SPLITS.get(split.lower(), split),
            None if ranges is None else _ranges(ranges, f"line {line} of {str(file)!r}"),
            fields.get("group", ""),
        )


def _kinetics(root: Path, splits: Path | None, number: int) -> Iterator[ListedVideo]:
    lists = _kinetics_lists(root)
    if not lists:
        yield from _folders(root, splits, number)
        return
    found = {path.stem: path for path in video_files(root)}
    for split, file in lists.items():
        for line, fields in _read_csv(file, ("youtube_id", "time_start", "time_end")):
            try:
                times = "_".join(f"{round(float(fields[name])):06d}" for name in ("time_start", "time_end"))
            except (ValueError, OverflowError) as error:
                raise DataError(f"line {line} of {str(file)!r} has times that are no numbers") from error
            name = fields["youtube_id"]
            path = found.get(f"{name}_{times}") or found.get(name) or root / split / f"{name}_{times}.mp4"
            yield ListedVideo(path, fields.get("label") or UNLABELLED, split)  # the test list has no labels


def _ucf(root: Path, splits: Path | None, number: int) -> Iterator[ListedVideo]:
    folder = _ucf_splits(root, splits)
    if folder is None:
        raise DataError(f"no folder {UCF_SPLITS!r} in or beside {str(root)!r} has classInd.txt; name it with `splits`")
    index = folder / "classInd.txt"
    names = [_fields(line, 2, index, "1 ApplyEyeMakeup")[1] for line in _lines(index)]
    yield from (ListedVideo(root / name, name, "unused") for name in names)  # so that labels are those of all classes
    for split in ("train", "test"):
        file = folder / f"{split}list0{number}.txt"
        for line in _lines(file):
            name = line.split()[0]
            label, slash, _ = name.partition("/")
            if not label or not slash:
                raise DataError(f"{str(file)!r} has the line {line[:80]!r}; lines are such as 'Archery/VIDEO.avi 3'")
            yield ListedVideo(root / name, label, split)


def _hmdb(root: Path, splits: Path | None, number: int) -> Iterator[ListedVideo]:
    folder = _hmdb_splits(root, splits)
    if folder is None:
        raise DataError(
            f"no folder {HMDB_SPLITS!r} in or beside {str(root)!r} has files <class>_test_split1.txt; "
            "name it with `splits`"
        )
    ending = f"_test_split{number}.txt"
    for file in sorted(folder.glob(f"*{ending}")):
        label = file.name.removesuffix(ending)
        for line in _lines(file):
            name, flag = _fields(line, 2, file, "VIDEO.avi 1", from_right=True)
            if flag not in HMDB_FLAGS:
                raise DataError(f"{str(file)!r} has the flag {flag!r} for {name!r}; flags are 0, 1 and 2")
            yield ListedVideo(root / label / name, label, HMDB_FLAGS[flag])


def _kth(root: Path, splits: Path | None, number: int) -> Iterator[ListedVideo]:
    if (root / "manifest.csv").is_file():
        yield from _manifest(root, splits, number)
        return
    listed = root / "00sequences.txt"  # "person01_boxing_d1  frames  1-95, 96-185"
    lines = (line.partition("frames") for line in _lines(listed)) if listed.is_file() else ()
    ranges = {name.strip(): _ranges(text, str(listed)) for name, _, text in lines if KTH_NAME.fullmatch(name.strip())}
    split_of = {person: split for split, people in KTH_PEOPLE.items() for person in people}
    for path in video_files(root):
        match = KTH_NAME.fullmatch(path.stem)
        if not match or int(match[1]) not in split_of:
            raise DataError(f"{str(path)!r} is not named as KTH's videos are, such as person01_walking_d1_uncomp.avi")
        yield ListedVideo(path, match[2], split_of[int(match[1])], ranges.get(path.stem.removesuffix("_uncomp")))


LAYOUTS: Mapping[str, Callable[[Path, Path | None, int], Iterator[ListedVideo]]] = {
    "folders": _folders,
    "manifest": _manifest,
    "kinetics400": _kinetics,
    "ucf101": _ucf,
    "hmdb51": _hmdb,
    "kth": _kth,
}


def _ucf_splits(root: Path, splits: Path | None) -> Path | None:
    return _first_with("classInd.txt", splits, root / UCF_SPLITS, root.parent / UCF_SPLITS)


def _hmdb_splits(root: Path, splits: Path | None) -> Path | None:
    return _first_with("*_test_split[123].txt", splits, root / HMDB_SPLITS, root.parent / HMDB_SPLITS)


def _first_with(pattern: str, given: Path | None, *usual: Path) -> Path | None:
    """The folder given, else the first of the usual ones, that has such a file."""
    return next((folder for folder in ([given] if given else usual) if any(folder.glob(pattern))), None)


def _kinetics_lists(root: Path) -> dict[str, Path]:
    """Split and CSV file, for the files that are called by a split."""
    found = [file for folder in (root, root / "annotations") for file in sorted(folder.glob("*.csv"))]
    return {SPLITS[file.stem.lower()]: file for file in found if file.stem.lower() in SPLITS}


def _read_csv(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and fields of every row."""
    reader = csv.DictReader(io.StringIO(_text(file), newline=""))
    try:
        if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise DataError(
                f"{str(file)!r} has no column {missing[0]!r}; its columns are {', '.join(reader.fieldnames or ())}"
            )
        for fields in reader:
            yield reader.line_num, {name: (value or "").strip() for name, value in fields.items() if name is not None}
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of {str(file)!r} is not CSV: {error}") from None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{str(file)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise DataError(f"{str(file)!r} cannot be read: {error.strerror or error}") from None


def _fields(line: str, number: int, file: Path, such_as: str, *, from_right: bool = False) -> list[str]:
    """The words of a line, the last (or first) of which may hold spaces."""
    found = line.rsplit(maxsplit=number - 1) if from_right else line.split(maxsplit=number - 1)
    if len(found) < number:
        raise DataError(f"{str(file)!r} has the line {line[:80]!r}; lines are such as {such_as!r}")
    return found


def _ranges(text: str, where: str) -> Ranges:
    """Frames counted from 1 with both ends, "1-95 96-185", as (first, stop) from 0; those that touch become one."""
    found = []
    for part in text.replace(",", " ").replace(";", " ").split():
        match = re.fullmatch(r"(\d{1,12})-(\d{1,12})", part)
        if not match or not 0 < int(match[1]) <= int(match[2]):
            raise DataError(
                f"{where} has the frame range {part[:40]!r}; ranges are such as '1-95 120-185', counted from 1"
            )
        found.append((int(match[1]) - 1, int(match[2])))
    merged: list[tuple[int, int]] = []
    for first, stop in sorted(found):  # KTH's own list has ranges out of order, and some that share a frame
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((first, stop))
    return tuple(merged)


def _lines(file: Path) -> list[str]:
    if not file.is_file():
        raise DataError(f"{str(file.parent)!r} has no {file.name!r}; official splits need it")
    return [line.strip() for line in _text(file).splitlines() if line.strip()]


def video_files(root: Path) -> Iterator[Path]:
    """Video files below a folder, in alphabetical order. Follows links, but into no folder twice."""
    seen: set[str] = set()
    for folder, below, names in os.walk(root, followlinks=True, onerror=refuse_unreadable):
        real = os.path.realpath(folder)
        below[:] = sorted(name for name in below if not name.startswith(".")) if real not in seen else []
        if real not in seen:
            yield from (Path(folder, name) for name in sorted(names) if is_video(name))
        seen.add(real)


def is_video(name: str) -> bool:
    """Whether a file is one by its name."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES
