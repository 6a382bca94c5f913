"""Settings of Sphinx for the site; build.py gathers the pages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from build import SOURCE
from gallery import Arguments, Saved

import kalstream

project = "kalstream"
author = copyright = "the kalstream authors"
version = release = kalstream.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
]
root_doc = "docs/index"
exclude_patterns = ["scripts"]
templates_path = [str(Path(__file__).parent / "_templates")]  # of autosummary and the theme
default_role = "py:obj"

myst_heading_anchors = 4
myst_links_external_new_tab = False

autosummary_ignore_module_all = False
autodoc_typehints = "none"  # the docstrings have types and shapes
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["timm", "torchvision", "transformers"]
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = f"kalstream {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {"docs/*": []}  # guides have no pages below them
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 4,
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}


sphinx_gallery_conf = {
    "examples_dirs": str(SOURCE / "scripts"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "image_scrapers": (Saved(),),
    "reset_argv": Arguments(),
    "reset_modules": (),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "write_computation_times": False,
    "remove_config_comments": True,
}


def only_ours(app, kind, name, value, skip, options):
    """Leave out members that come from other packages."""
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    module = getattr(function, "__module__", None) or "kalstream"
    return True if not module.startswith("kalstream") else None


def setup(app):
    app.connect("autodoc-skip-member", only_ours)
