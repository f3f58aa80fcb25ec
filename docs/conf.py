"""Sphinx settings. `make docs` builds with warnings as errors."""

project = "rince"
author = "The rince developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "rince"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 2  # links to sections
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
default_role = "code"
napoleon_use_ivar = True  # attributes of named tuples are already members; do not describe them twice
