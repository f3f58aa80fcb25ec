"""Folders that samples lie in. One that cannot be read is an error: its samples must not be missing without a word."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from rince.errors import DataError


def listed(folder: Path) -> Any:
    """`os.scandir`, or a clear error."""
    try:
        return os.scandir(folder)
    except OSError as error:
        refuse_unreadable(error)


def refuse_unreadable(error: OSError) -> NoReturn:
    """For `os.walk`, which leaves out such folders otherwise."""
    raise DataError(
        f"folder {str(error.filename)!r} cannot be read ({error.strerror}); give access, or take it out"
    ) from None


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder, in no order. Follows links to files, not to folders."""
    with listed(folder) as listing:
        for entry in listing:
            if entry.is_dir(follow_symlinks=False):
                yield from files_below(folder / entry.name)
            elif entry.is_file():
                yield folder / entry.name
