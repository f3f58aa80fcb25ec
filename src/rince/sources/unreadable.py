"""Image files that cannot be read: looked for once, left out, told; or, in the strict mode, refused."""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from rince.errors import DataError
from rince.files import found_once
from rince.sources.image_file import NotGivenError, OpenedImage
from rince.sources.image_files import ImageFiles
from rince.sources.part import others
from rince.sources.source import folder_of
from rince.terminal import shown_progress

Check = Literal["header", "decode"]
RULES = "1"  # to be raised when other images can be read than before
ADVICE = "; mend it or take it out"
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def without_unreadable(images: ImageFiles, check: Check = "header", *, strict: bool = False) -> ImageFiles:
    """The images that can be read, as far as was looked.

    A file is looked into once, and again when it has changed; one that is there and that the system does not give is an
    error. Rows of tables are not looked at before they are decoded,
    unless they are to be.

    Args:
        images: to look at.
        check: `"header"`: what kind of image it is, its size, and whether it ends as such images do (if not, it is
            decoded); `"decode"`: all of it.
        strict: refuse what cannot be read.
    """
    if strict and images.left_out:
        name, reason = images.left_out[0]
        more = f"; {len(images.left_out) - 1:,} more like it" if len(images.left_out) > 1 else ""
        raise DataError(f"file {name!r} of {images.source!r} {reason}, or take it out{more}")
    files = [path for row in range(len(images)) if (path := images.file(row)) is not None]
    if len(files) == len(images):
        there = [_absent(path) for path in files]
        present = [path for path, absent in zip(files, there, strict=True) if not absent]
        with shown_progress(images.source) as tell:
            look, done = partial(_look, decode=check == "decode"), partial(tell, "looking at images")
            found = found_once(present, folder_of(images.source), f"images-{check}-{RULES}", look, done)
        seen = dict(zip(present, found, strict=True))
        reasons = [absent or seen[path] for path, absent in zip(files, there, strict=True)]
    elif check == "decode":
        reasons = [_reason(images, row) for row in range(len(images))]
    else:
        return images
    return without(images, {row: reason for row, reason in enumerate(reasons) if reason}, strict=strict)


def without(images: ImageFiles, bad: dict[int, str], *, strict: bool) -> ImageFiles:
    """The images but for some, each with the reason, which are refused where nothing else is left.

    Args:
        images: all of them.
        bad: row → what is wrong with it.
        strict: refuse in any case.
    """
    if not bad:
        return images
    if strict or len(bad) == len(images):
        row, reason = next(iter(bad.items()))
        more = f"; {len(bad) - 1:,} more of {len(images):,} cannot be read either" if len(bad) > 1 else ""
        raise DataError(f"{images.origin(row)} of {images.source!r} {reason}{ADVICE}{more}")
    told = tuple((images.name(row), reason) for row, reason in bad.items())
    return replace(images.some(others(torch.tensor(list(bad)), len(images))), left_out=(*images.left_out, *told))


def reason_of(error: DataError, images: ImageFiles, row: int) -> str:
    """What an error says of an image, without its name and advice."""
    return str(error).removeprefix(f"{images.origin(row)} of {images.source!r} ").removesuffix(ADVICE)


def _reason(images: ImageFiles, row: int) -> str:
    try:
        images.pixels(row)
    except NotGivenError:
        raise
    except DataError as error:
        return reason_of(error, images, row)
    return ""


def _look(path: Path, *, decode: bool) -> str:
    """What is wrong with an image file; empty if nothing is."""
    try:
        with OpenedImage(path, f"file {str(path)!r}") as image:
            if decode or not image.ends_whole():
                image.pixels()
    except NotGivenError:
        raise
    except DataError as error:
        return str(error).removeprefix(f"file {str(path)!r} ").removesuffix(ADVICE)
    return ""


def _absent(path: Path) -> str:
    """Why there is no such file, a broken link for example."""
    try:
        path.stat()
    except OSError as error:
        if error.errno not in ABSENT:
            raise NotGivenError(
                f"file {str(path)!r} cannot be read: {error.strerror}; try again, or take it out"
            ) from None
        return f"cannot be read: {error.strerror or error}"
    return ""
