"""Sphinx builds the pages of this directory: `make docs`."""

import sys
from pathlib import Path

from statemix import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import api  # noqa: E402
import command_line  # noqa: E402

api.write(HERE / "reference" / "api")
command_line.write(HERE / "reference" / "command-line.md")

project = "statemix"
author = "the statemix contributors"
copyright = author
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build"]
highlight_language = "none"

# Markdown stays readable outside Sphinx: links are relative, and headings
# have the anchors of a code host.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Pages that begin with a Jupyter header are notebooks: their cells run at every build.
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_merge_streams = True

html_theme = "furo"
html_title = f"statemix {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
