"""Memory that was freed is used again: pages fetched from the system, as it counts them."""

import subprocess
import sys

import pytest

COUNT = """
import resource, sys
import torch
from rince.memory import keep_freed_memory
if sys.argv[1] == "kept":
    print(keep_freed_memory())
for _ in range(3):  # the C library learns from what it sees
    torch.ones(2_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    several = [torch.ones(2_000_000) for _ in range(5)]
    del several
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(how):
    done = subprocess.run([sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="of the C library of Linux")
def test_freed_memory_is_not_fetched_again():
    could, kept = pages("kept")
    (usual,) = pages("as it comes")
    if could != "True":
        pytest.skip("the C library is not glibc")
    assert int(kept) < 0.2 * int(usual)
