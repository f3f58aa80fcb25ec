"""Files: written whole or not at all, the one folder for what can be made again, and what a file is by its content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from rince.errors import ConfigError, DataError
from rince.terminal import TellDone

WRITING = ".writing"  # ending of a file that is not whole yet
HASHES = "hashes"  # folder of the cache
SETTLED = 2.0  # seconds; a file written since might be written again without its time of change showing it
READERS = 8  # threads: hashing lets the others work, and a disk likes to be asked for several files at once


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` when all is on the disk: a reader sees the old or the new one.

    What fails half-way leaves the old file as it was, and nothing beside it.
    """
    temporary = path.with_name(path.name + WRITING)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file whole or not at all; text as UTF-8."""
    with written_whole(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_for_all(path: Path, content: str | bytes) -> None:
    """Writes a file whole that others may write at the same time: the later wins, nothing is torn."""
    own = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    write_whole(own, content)
    os.replace(own, path)


@contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """A folder to write to whose files appear in `path`, which is new or empty, when all of them are written.

    What fails half-way leaves nothing. Files come from a folder inside, since `path` may be all of a file system.
    """
    inside, was_there = path / WRITING, path.is_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(item != inside for item in path.iterdir()):
            raise ConfigError(f"{path} is not empty, and nothing in it will be overwritten; choose another --out")
        shutil.rmtree(inside, ignore_errors=True)  # of somebody who was killed
        inside.mkdir()
        try:
            yield inside
            for file in filter(Path.is_file, inside.rglob("*")):
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            for item in list(inside.iterdir()):
                os.replace(item, path / item.name)
        finally:
            shutil.rmtree(inside)
            if not was_there and not any(path.iterdir()):
                path.rmdir()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; choose another --out") from None


def write_out(path: Path, content: str | bytes, *, in_new_folder: bool = False) -> Path:
    """Writes what a person asked for at a place of their choice; where that cannot be, one clear error.

    Args:
        path: of the file.
        content: of the file.
        in_new_folder: make its folder if need be.
    """
    try:
        if in_new_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; choose another place") from None
    return path


def cache_folder(what: str) -> Path:
    """Where `what`, which can be made again, is kept between runs: below the cache of the user; made if need be."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rince" / what
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def readable(name: str) -> str:
    r"""A name of a file as text that can be written anywhere: bytes that are not UTF-8 become `\xe9`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def file_digest(path: Path) -> str:
    """sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint_of(**facts: object) -> str:
    """sha256 over named facts: two things of one fingerprint were made from the same.

    Args:
        facts: anything JSON has; the order of names does not matter, that of lists does.

    Example:
        >>> fingerprint_of(a=1, b=["x"]) == fingerprint_of(b=["x"], a=1)
        True
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_digest_once(path: Path) -> str:
    """The same as `file_digest`, remembered for as long as size and time of change of the file stay as they are."""
    return file_digests_once([path], path.parent)[0]


def file_digests_once(paths: Sequence[Path], folder: Path, tell: TellDone | None = None) -> list[str]:
    """sha256 of the content of files, each remembered for as long as its size and time of change stay as they are.

    Args:
        paths: of the files.
        folder: whose files they are: what is known of a folder stands in one file of the user's cache.
        tell: is told how many of those that have to be read are done; is not called if none has to.
    """
    book = _book(folder)
    known = _read_book(book)
    top = os.path.join(os.path.abspath(folder), "")
    names = [os.path.abspath(path).removeprefix(top) for path in paths]
    found: dict[str, tuple[int, int, str]] = {}
    unread: dict[str, Path] = {}
    for name, path in zip(names, paths, strict=True):
        entry = known.get(name)
        if entry is not None and entry[:2] == _state(path):
            found[name] = entry
        else:
            unread[name] = path
    if unread:
        with ThreadPoolExecutor(READERS) as readers:
            for done, (name, entry) in enumerate(zip(unread, readers.map(_read, unread.values()), strict=True), 1):
                found[name] = entry
                if tell:
                    tell(done, len(unread))
        settled = (time.time() - SETTLED) * 1e9
        _remember(book, {name: found[name] for name in unread if found[name][1] < settled})
    return [found[name][2] for name in names]


def _state(path: Path) -> tuple[int, int]:
    """What tells a file that was written again."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    return status.st_size, status.st_mtime_ns


def _read(path: Path) -> tuple[int, int, str]:
    """Size, time of change, sha256."""
    state = _state(path)
    try:
        digest = file_digest(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if _state(path) != state:
        raise DataError(f"{path} was written to while it was read; try again when it is whole")
    return *state, digest


def _book(folder: Path) -> Path | None:
    """The file that keeps what is known of a folder; None where nothing can be kept."""
    name = hashlib.sha256(os.fsencode(os.path.abspath(folder))).hexdigest()[:32]
    try:
        return cache_folder(HASHES) / f"{name}.json"
    except OSError:
        return None


def _read_book(book: Path | None) -> dict[str, tuple[int, int, str]]:
    """File below its folder → size, time of change, sha256; empty if there is none, or it is damaged."""
    try:
        kept = json.loads(book.read_bytes()) if book is not None else {}
        return {str(name): (int(size), int(changed), str(digest)) for name, (size, changed, digest) in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remember(book: Path | None, found: dict[str, tuple[int, int, str]]) -> None:
    """Adds to a book. Of two who write at once, the later wins: what is lost is made again."""
    if book is None or not found:
        return
    with suppress(OSError):  # a full disk or a folder that cannot be written costs time, no more
        write_for_all(book, json.dumps(_read_book(book) | found))
