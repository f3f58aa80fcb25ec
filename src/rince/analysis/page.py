"""`rince analyse page`: the trade-off of two ranks with sliders, one file that works from disk."""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from importlib.resources import files
from pathlib import Path

import rince
from rince.files import write_out


def write_page(path: Path) -> Path:
    """Writes the page whole or not at all; its script computes what `equilibrium` does."""
    folder = files("rince")
    script = (folder / "analysis" / "page.js").read_text("utf-8")
    style = "".join((folder / room / "page.css").read_text("utf-8") for room in ("report", "analysis"))
    values = {
        "css": style,
        "script": script,
        "script_hash": "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "version": escape(rince.__version__),
    }
    template = (folder / "analysis" / "page.html").read_text("utf-8")
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)
    return write_out(path, page, in_new_folder=True)
