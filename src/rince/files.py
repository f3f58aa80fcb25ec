"""Files: written whole or not at all, in one place for all of rince; and the one folder for what can be made again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rince.errors import ConfigError

WRITING = ".writing"  # ending of a file that is not whole yet


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


def file_digest(path: Path) -> str:
    """sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
