"""Tests need no network, and each worker one thread: told before anything imports Hugging Face or torch."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # there is a worker for every core
    os.environ["OMP_NUM_THREADS"] = "1"


def pytest_xdist_auto_num_workers():
    """One more than there are cores: where a test waits for processes or a browser, another one computes."""
    return (os.cpu_count() or 1) + 1


FIRST = ("test_pages.py", "test_reproduce.py", "test_two_processes.py", "test_wheel.py", "test_resume.py")


def pytest_collection_modifyitems(items):
    """Files with tests of half a minute come first: at the end, one worker would wait for the other to end one."""
    items.sort(key=lambda item: item.path.name not in FIRST)
