"""Compiled code, kept between processes: in a folder of the user's cache that nobody else can write, under a seal.

numba keeps code as pickles, which run whatever is in them. So they are read only where no one but the user can have
written them, and only if they are as they were written; else the code is compiled again, which takes some seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numba
from numba.core import caching

from rince.errors import DataError, WriteError
from rince.files import cache_folder, written_whole
from rince.seals import seal_holds, sealed
from rince.terminal import mention

FOLDER = "compiled"
_told: set[str] = set()  # once in a process is enough
_UserWide: Any = getattr(caching, "UserWideCacheLocator", None) or vars(caching)["_UserWideCacheLocator"]  # older
_Implementing: Any = caching.CompileResultCacheImpl
_Files: Any = caching.IndexDataCacheFile
_Cache: Any = caching.FunctionCache


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """By numba, without Python's lock; kept on disk where there is a place for it."""
    dispatcher: Any = numba.njit(nogil=True)(function)
    with suppress(OSError, RuntimeError):  # there is no place
        dispatcher._cache = _Kept(function)
    return dispatcher  # type: ignore[no-any-return]


def others_can_write(folder: Path) -> bool:
    """Whether somebody besides the user might have put something into a folder."""
    if not hasattr(os, "getuid"):
        return False  # Windows: the folder is below the user's own
    status = folder.stat()
    return status.st_uid != os.getuid() or bool(status.st_mode & 0o022)


def _tell(text: str) -> None:
    if text not in _told:
        _told.add(text)
        mention(text)


class _Place(_UserWide):  # type: ignore[misc]
    """Below our own cache; None of it where others can write."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)
        folder = cache_folder(FOLDER) / self.get_suitable_cache_subpath(py_file)
        folder.mkdir(mode=0o700, exist_ok=True)
        if others_can_write(folder):
            _tell(f"others can write {folder}: code that is kept there is not read, and compiled anew by each process")
            raise RuntimeError(f"others can write {folder}")
        self._cache_path = str(folder)


class _Implementation(_Implementing):  # type: ignore[misc]
    _locator_classes = [_Place]  # noqa: RUF012 - as numba has it


class _SealedFiles(_Files):  # type: ignore[misc]
    """Files of code, each whole and under a seal that is looked at before anything is unpickled."""

    def _load_index(self) -> Any:
        _check(Path(self._index_path))
        return super()._load_index()

    def _load_data(self, name: str) -> Any:
        _check(Path(self._data_path(name)))
        return super()._load_data(name)

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[Any]:
        with written_whole(Path(filepath)) as file, sealed(file) as sealing:
            yield sealing


def _check(path: Path) -> None:
    with suppress(FileNotFoundError), path.open("rb") as file:
        if not seal_holds(file):
            raise DataError(f"{path} is damaged")


class _Kept(_Cache):  # type: ignore[misc]
    """What was compiled of one function; what cannot be read is compiled again, what cannot be written is not kept."""

    _impl_class = _Implementation

    def __init__(self, py_func: Any) -> None:
        super().__init__(py_func)
        locator = self._impl.locator
        self._cache_file = _SealedFiles(self._cache_path, self._impl.filename_base, locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """None, and so compiled, if there is nothing that can be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever is wrong with a file
            _tell(f"compiled code in {self._cache_path} is damaged or cannot be read; it is compiled again")
            with suppress(OSError):
                os.unlink(self._cache_file._index_path)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Nothing is kept where nothing can be written."""
        try:
            super().save_overload(sig, data)
        except (OSError, WriteError) as error:
            _tell(f"compiled code is not kept, and compiled anew by each process: {error}")
