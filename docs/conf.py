"""How Sphinx builds the documentation into site/ (``make docs``).

Nothing is fetched, neither when it is built nor when it is read: no fonts, no scripts of others, no
counting of visitors. Notebooks show the outputs that are stored in them; a test executes them.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import command_pages

project = "twofold"
author = "the authors of twofold"
project_copyright = "the authors of twofold, Apache-2.0"
html_title = "twofold"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["*.py"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"
nb_merge_streams = True
suppress_warnings = [
    "misc.highlighting_failure",  # excerpts with dots are not whole programs
    "docutils",  # types such as numpy.str_ look like references in signatures
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
add_module_names = False
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}


def setup(app: Any) -> None:
    """Write the pages of commands before Sphinx looks for its sources."""
    app.connect("config-inited", lambda _app, _config: command_pages.write())
