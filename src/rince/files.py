"""Files: written whole or not at all, the one folder for what can be made again, and what a file is by its content."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from rince.errors import ConfigError, DataError, WriteError
from rince.terminal import TellDone

try:
    import fcntl
    import resource
except ImportError:  # not on Windows
    fcntl = resource = None  # type: ignore[assignment]

WRITING = ".writing"  # ending of a file that is not whole yet
NAMES = ".names"  # in a folder that is not whole yet: what is being moved out of it
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
HASHES = "hashes"  # folder of the cache
SETTLED = 2.0  # seconds; a file written since might be written again without its time of change showing it
Entry = tuple[int, int, int, int, str]  # size, times of writing and of change, number of the file; what was found
READERS = 8  # threads: hashing lets the others work, and a disk likes to be asked for several files at once


@contextmanager
def written_whole(path: Path, needed: int = 0) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` when all is on the disk: a reader sees the old or the new one.

    What fails half-way leaves the old file as it was and nothing beside it, also of those who were killed before; what
    the system refuses is a `WriteError`.

    Args:
        path: of the file.
        needed: bytes that it will take, if that is known, for whoever has to make room.
    """
    temporary = path
    try:
        clear_unfinished(path.parent, path.name)
        temporary, file = _new_beside(path)
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if temporary != path:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritten(path, error, needed) from None
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file whole or not at all; text as UTF-8. Of several who write it at once, the last wins."""
    content = content.encode() if isinstance(content, str) else content
    with written_whole(path, len(content)) as file:
        file.write(content)


def _new_beside(path: Path) -> tuple[Path, IO[bytes]]:
    """A file of our own beside `path`, locked for as long as it is open: it is not one that somebody has left."""
    while True:
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{WRITING}")
        file = temporary.open("xb")
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink == 0:  # taken for one that was left, before it was locked
                file.close()
                continue
        return temporary, file


def clear_unfinished(folder: Path, name: str = "") -> None:
    """Removes what was left half-written by processes that were killed; the living hold locks on theirs.

    Args:
        folder: to look in.
        name: of the file that they were writing; any if empty.
    """
    if fcntl is None or not folder.is_dir():
        return
    left = re.compile((re.escape(name) if name else ".+") + r"(\.[0-9a-f]{8})?" + re.escape(WRITING))
    with suppress(OSError):  # who cannot clear up cannot write either, and is told then
        for entry in os.scandir(folder):
            if left.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError), open(entry.path, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.path)


def unwritten(path: Path, error: OSError, needed: int = 0) -> WriteError:
    """What the system refused, and how much room there is where that may be the reason."""
    reason = f"cannot write {path}: {error.strerror or error}"
    if error.errno in NO_ROOM:
        takes = f"{megabytes(needed)} are needed, " if needed else ""
        room = _largest() if error.errno == errno.EFBIG else f"{megabytes(_free(path.parent))} are free"
        reason += f" ({takes}{room})"
    return WriteError(reason)


def _largest() -> str:
    """How large a file may become, which is another thing than how much room there is."""
    limit = -1 if resource is None else resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit < 0:
        return "a file may not be so large on this file system"
    return f"a file may have {megabytes(limit)} at most: ulimit -f"


def check_space(folder: Path, needed: int, what: str) -> None:
    """Refuses to begin what would have no room at its end.

    Args:
        folder: that will be written to; it need not be there yet.
        needed: bytes.
        what: takes them, the beginning of a sentence.
    """
    free = _free(folder)
    if free < needed:
        raise WriteError(
            f"{what} takes {megabytes(needed)}, and {megabytes(free)} are free in {folder}; free some space, or "
            "choose another place"
        )


def _free(folder: Path) -> int:
    """Bytes that may be written; of a folder that is not there yet, where it will be."""
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), Path("/"))
    try:
        return shutil.disk_usage(there).free
    except OSError:
        return sys.maxsize  # nobody can tell


def megabytes(number: int) -> str:
    """Bytes as text."""
    return f"{number / 2**20:,.1f} MB"


@contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """A folder to write to whose files appear in `path`, which is new or empty, when all of them are written.

    What fails half-way leaves nothing, and what was killed half-way is cleared by the next who writes there. Files come
    from a folder inside, since `path` may be all of a file system.
    """
    inside, was_there = path / WRITING, path.is_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        _clear_folder(path)
        if any(path.iterdir()):
            raise ConfigError(f"{path} is not empty, and nothing in it will be overwritten; choose another --out")
        inside.mkdir()
        try:
            yield inside
            for file in filter(Path.is_file, inside.rglob("*")):
                with file.open("rb") as written:
                    os.fsync(written.fileno())
            items = list(inside.iterdir())
            write_whole(inside / NAMES, json.dumps([item.name for item in items]))
            for item in items:
                os.replace(item, path / item.name)
            (inside / NAMES).unlink()  # from here on, what is in the folder is whole
        except BaseException:
            _clear_folder(path)
            if not was_there and not any(path.iterdir()):
                path.rmdir()
            raise
        shutil.rmtree(inside, ignore_errors=True)  # it is empty; should it stay, the next who writes there clears it
    except OSError as error:
        raise ConfigError(f"{unwritten(path, error)}; choose another --out") from None
    except WriteError as error:
        raise ConfigError(f"{error}; choose another --out") from None


def _clear_folder(path: Path) -> None:
    """Takes away what is not whole: the folder inside, and what came from it as long as not all has come."""
    inside = path / WRITING
    if not inside.is_dir():
        return
    try:
        moved = [Path(name).name for name in json.loads((inside / NAMES).read_bytes())]
    except (OSError, ValueError):
        moved = []
    for name in moved:
        item = path / name
        shutil.rmtree(item) if item.is_dir() else item.unlink(missing_ok=True)
    shutil.rmtree(inside)


def check_place(path: Path, *, in_new_folder: bool = False) -> None:
    """Refuses, before any work is done, a place of a person's choice where no file can be written at its end.

    Args:
        path: of the file.
        in_new_folder: its folder is going to be made if need be.
    """
    folder = path.absolute().parent
    while in_new_folder and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    reason = ""
    if not path.name or path.is_dir():
        reason = "it is a folder; name a file in it"
    elif not folder.is_dir():
        reason = f"{folder} is no folder" if folder.exists() else f"there is no folder {folder}; make it"
    elif not os.access(folder, os.W_OK):
        reason = f"the folder {folder} is write-protected; choose another place"
    if reason:
        raise ConfigError(f"cannot write {path}: {reason}")


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
        check_place(path)
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(f"{unwritten(path, error)}; choose another place") from None
    except WriteError as error:
        raise ConfigError(f"{error}; choose another place") from None
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
    """The same as `file_digest`, remembered for as long as it is the same file, of the same size and times."""
    return file_digests_once([path], path.parent)[0]


def file_digests_once(paths: Sequence[Path], folder: Path, tell: TellDone | None = None) -> list[str]:
    """sha256 of the content of files, each remembered for as long as it is the same file, of the same size and times.

    Args:
        paths: of the files.
        folder: whose files they are: what is known of a folder stands in one file of the user's cache.
        tell: is told how many of those that have to be read are done; is not called if none has to.
    """
    return found_once(paths, folder, HASHES, _digest, tell)


def found_once(
    paths: Sequence[Path], folder: Path, kind: str, find: Callable[[Path], str], tell: TellDone | None = None
) -> list[str]:
    """What `find` says of files, each remembered for as long as it is the same file, of the same size and times.

    Args:
        paths: of the files.
        folder: whose files they are: what is known of a folder stands in one file of the user's cache.
        kind: of what is found, the folder of the cache.
        find: a function of the content of a file.
        tell: is told how many of those that have to be read are done; is not called if none has to.
    """
    book = _book(folder, kind)
    known = _read_book(book)
    top = os.path.join(os.path.abspath(folder), "")
    names = [os.path.abspath(path).removeprefix(top) for path in paths]
    found: dict[str, Entry] = {}
    unread: dict[str, Path] = {}
    for name, path in zip(names, paths, strict=True):
        entry = known.get(name)
        if entry is not None and entry[:-1] == _state(path):
            found[name] = entry
        else:
            unread[name] = path
    if unread:
        with ThreadPoolExecutor(READERS) as readers:
            for done, (name, entry) in enumerate(
                zip(unread, readers.map(partial(_read, find), unread.values()), strict=True), 1
            ):
                found[name] = entry
                if tell:
                    tell(done, len(unread))
        settled = (time.time() - SETTLED) * 1e9
        _remember(book, {name: found[name] for name in unread if found[name][1] < settled})
    return [found[name][-1] for name in names]


def _state(path: Path) -> tuple[int, int, int, int]:
    """What tells a file that was written again, or another that was put in its place with its size and its time."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def _read(find: Callable[[Path], str], path: Path) -> Entry:
    """The state of a file, and what is found."""
    state = _state(path)
    found = find(path)
    if _state(path) != state:
        raise DataError(f"{path} was written to while it was read; try again when it is whole")
    return *state, found


def _book(folder: Path, kind: str) -> Path | None:
    """The file that keeps what is known of a folder; None where nothing can be kept."""
    name = hashlib.sha256(os.fsencode(os.path.abspath(folder))).hexdigest()[:32]
    try:
        return cache_folder(kind) / f"{name}.json"
    except OSError:
        return None


def _read_book(book: Path | None) -> dict[str, Entry]:
    """File below its folder → its state, and what was found; empty if there is none, or it is damaged or of before."""
    try:
        kept = json.loads(book.read_bytes()) if book is not None else {}
        return {
            str(name): (int(size), int(written), int(changed), int(number), str(text))
            for name, (size, written, changed, number, text) in kept.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remember(book: Path | None, found: dict[str, Entry]) -> None:
    """Adds to a book. Of two who write at once, the later wins: what is lost is made again."""
    if book is None or not found:
        return
    with suppress(WriteError):  # a full disk or a folder that cannot be written costs time, no more
        write_whole(book, json.dumps(_read_book(book) | found))


def csv_delimiter(text: str) -> str:
    """As the header has it; where numbers have a comma, spreadsheets write semicolons into their CSV."""
    header = text.partition("\n")[0]
    return next((mark for mark in ",;\t" if mark in header), ",")
