"""Seals: a digest of all of a file inside the file, so that a single bit that is not as it was written is noticed.

A sealed file ends in a line with the sha256 of everything before it, which readers of zip files pass over. A file of
safetensors must not go on after its tensors: there the digest stands in the header, and was taken while it was zeros.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from rince.errors import DataError

SEAL = b"\nrince sha256 "
DIGITS = 64
LENGTH = len(SEAL) + DIGITS + 1
BLOCK = 1 << 20  # bytes read at once
UNDIGESTED = "0" * DIGITS
IN_HEADER = re.compile(rb'"sha256":"([0-9a-f]{64})"')


class _Sealing:
    """Digests what is written; keeps the first refusal of the system for the end, which torch would hide."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self.refusal: OSError | None = None

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        try:
            if self.refusal is None:
                self.file.write(content)
        except OSError as error:
            self.refusal = error
        return len(content)

    def flush(self) -> None:
        """Whoever closes the file does it."""


@contextmanager
def sealed(file: IO[bytes]) -> Iterator[_Sealing]:
    """Something to write to, all of which goes to `file` and is followed there by its digest."""
    sealing = _Sealing(file)
    yield sealing
    if sealing.refusal is not None:
        raise sealing.refusal
    file.write(SEAL + sealing.digest.hexdigest().encode() + b"\n")


def seal_holds(file: IO[bytes]) -> bool | None:
    """Whether a file is as it was written; None if it has no seal. It is read from its beginning afterwards."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LENGTH))
    seal = file.read()
    file.seek(0)
    if not seal.startswith(SEAL):
        return None
    digest = _digest(file, size - LENGTH)
    file.seek(0)
    return seal[len(SEAL) :] == digest.encode() + b"\n"


def _digest(file: IO[bytes], left: int, head: bytes = b"") -> str:
    """Of `head` and so many bytes of a file."""
    digest = hashlib.sha256(head)
    while left > 0 and (block := file.read(min(BLOCK, left))):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest()


class Tensors(NamedTuple):
    """What a sealed safetensors file holds."""

    tensors: dict[str, Tensor]
    noted: dict[str, str]


def sealed_tensors(tensors: dict[str, Tensor], noted: dict[str, str]) -> bytes:
    """The bytes of a safetensors file that anybody can read, with its digest among what is noted in its header.

    The same tensors and notes give the same bytes: the library itself writes notes in any order.
    """
    made = save(tensors, metadata=noted | {"sha256": UNDIGESTED})
    end = 8 + int.from_bytes(made[:8], "little")
    header = json.loads(made[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    content = len(text).to_bytes(8, "little") + text + made[end:]
    start = content.index(f'"sha256":"{UNDIGESTED}"'.encode()) + len('"sha256":"')
    return content[:start] + hashlib.sha256(content).hexdigest().encode() + content[start + DIGITS :]


def read_tensors(path: Path) -> Tensors:
    """The tensors of a sealed safetensors file; a `DataError` if it is not as it was written, or has no seal."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        head += file.read(min(int.from_bytes(head, "little"), size))
        found = list(IN_HEADER.finditer(head))
        if len(found) == 1:
            [place] = found
            zeroed = head[: place.start(1)] + UNDIGESTED.encode() + head[place.end(1) :]
            whole = _digest(file, size, zeroed) == place[1].decode()
        if len(found) != 1 or not whole:
            raise DataError(f"{path} is damaged, or was written by an older rince: its digest does not fit")
    try:
        with safe_open(path, framework="pt") as opened:
            names = opened.keys()
            return Tensors({name: opened.get_tensor(name) for name in names}, opened.metadata())
    except SafetensorError as error:
        raise DataError(f"{path} cannot be read ({error})") from None
    # Both open the file again, which was there: safetensors calls whatever the system refuses a file that is not there,
    # torch has no other word for it.
    except (FileNotFoundError, RuntimeError) as error:
        raise OSError(errno.EIO, str(error).splitlines()[0], str(path)) from None
