"""Tests need no network: Hugging Face is told so before anything imports it."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
