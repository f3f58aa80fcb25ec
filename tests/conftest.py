"""Tests need no network, and each worker one thread: told before anything imports Hugging Face or torch."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # there is a worker for every core
    os.environ["OMP_NUM_THREADS"] = "1"
