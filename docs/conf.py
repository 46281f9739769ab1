"""How Sphinx makes the site: `make docs`. Nothing is fetched while it builds, and nothing when it is read."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "monet"
author = "The monet developers"
project_copyright = f"{author}. Apache-2.0"
release = version = version_of("monet-planner")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_help",
    "docstrings",
    "measurement_tables",
]
exclude_patterns = ["extensions", "static", "templates"]

# A link to a page, a heading or a file that is not there fails the build, and so does an unknown name of monet's in a
# signature. Other packages' types stay plain text: their indices would have to be fetched.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!monet\b).*")]
myst_heading_anchors = 3

autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True}

html_theme = "pydata_sphinx_theme"
html_title = "monet"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_sidebars = {"**": ["pages"]}
html_theme_options = {
    "navbar_align": "left",
    "show_prev_next": False,
    "show_toc_level": 2,
    "navbar_center": [],
    "footer_start": ["copyright"],
    "footer_end": [],
}
