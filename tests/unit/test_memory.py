"""Memory that was freed is used again: pages fetched from the system, as it counts them."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

COUNT = """
import resource, sys
import torch
from rince.memory import keep_freed_memory
if sys.argv[1] == "kept":
    print(keep_freed_memory())
def step():
    several = [torch.ones(size) for size in (2_000_000, 12_000_000)]  # 8 MB, and more than the C library's 32 MiB
    del several
for _ in range(10):  # memory is fetched a first time, and the C library learns from what it sees
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(how):
    # By itself the C library sometimes keeps memory and sometimes does not; told to give all back, it does.
    told = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True, env=told)
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="of the C library of Linux")
def test_freed_memory_is_not_fetched_again():
    could, kept = pages("kept")
    (usual,) = pages("as it comes")
    if could != "True":
        pytest.skip("the C library is not glibc")
    assert int(usual) > 200_000
    assert int(kept) < 1000
