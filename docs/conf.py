"""How the pages become a site: ``make docs`` (Sphinx, MyST, Furo)."""

from __future__ import annotations

import builtins

from docutils import nodes
from pygments.lexers import TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.highlighting import lexers

import kvstore

project = "kvstore"
copyright = "the kvstore developers"
version = release = kvstore.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["decisions/0000-template.md"]
highlight_language = "none"

html_theme = "furo"
html_title = f"kvstore {release}"
html_show_sourcelink = False
html_copy_source = False

myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False}
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True

lexers["hex"] = TextLexer()  # dumps of docs/format.md


def setup(app: Sphinx) -> None:
    """Types such as ``bytes`` are Python's, not an attribute of that name in a class of kvstore."""
    app.connect("doctree-read", _without_links_of_builtins)


def _without_links_of_builtins(_app: Sphinx, doctree: nodes.document) -> None:
    for reference in list(doctree.findall(addnodes.pending_xref)):
        if reference.get("refdomain") == "py" and hasattr(builtins, reference["reftarget"]):
            reference.replace_self(reference.children)
