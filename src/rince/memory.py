"""How much memory there is, and how this process handles what is no longer used."""

from __future__ import annotations

import ctypes
import os
import platform

# From glibc's malloc.h. A threshold for pieces of their own would be at most 32 MiB: there must be none of them.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
NEVER, NONE = 2**31 - 1, 0


def keep_freed_memory() -> bool:
    """Keeps memory that was freed for what is needed next, on Linux; says whether it could.

    By itself the C library gives large pieces back to the system, which hands them out again page by page, at every
    step of training. On one virtual core of an AMD EPYC that is a fifth of the processor's time on the narrow encoders
    of the reduced CIFAR-100 recipes, and half of it where EfficientNet-Lite0 is finetuned at 224 pixels (84 ms an
    image, 36 with this): its maps are larger than the largest piece that the library can be told to keep by its size.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(M_MMAP_MAX, NONE) and library.mallopt(M_TRIM_THRESHOLD, NEVER))


def installed_memory() -> int:
    """Bytes of this machine's memory; 8 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 8 * 2**30
