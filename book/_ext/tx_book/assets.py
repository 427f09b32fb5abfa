"""The scripts, styles and fonts that a page loads, all of them served by the book itself.

Third-party JavaScript is not committed: MathJax comes out of sphinx-mathjax-offline at build time.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.errors import ExtensionError

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

STATIC = Path(__file__).parent / "static"

# Of MathJax's 24 MB, what a page can ask for: TeX input with the extensions that it loads on demand, output
# as HTML with its fonts, MathML for screen readers. The combined components hold speech code that names a
# CDN.
MATHJAX_PARTS = ["input/tex", "output/chtml", "a11y/assistive-mml"]
MATHJAX_FILES = (
    "startup.js",
    "core.js",
    "output/chtml/fonts/tex.js",
    "input/tex/extensions",
    "output/chtml/fonts/woff-v2",
    *(f"{part}.js" for part in MATHJAX_PARTS),
)


def package_file(package: str, requirement: str, *parts: str) -> Path:
    """The path of a file or folder inside an installed package, found without importing the package.

    Raises ExtensionError when it isn't there, naming the requirement that brings it.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder).joinpath(*parts)
        if path.exists():
            return path
    wanted = "/".join((package, *parts))
    raise ExtensionError(
        f"{wanted} is not installed; `pip install {requirement}` brings it (requirements.txt)"
    )


def configure(app: Sphinx, config: Config) -> None:
    """Point Sphinx, myst-nb and MathJax at the book's own files."""
    config.html_static_path.append(str(STATIC))
    config.nb_ipywidgets_js = {"tx-widgets.js": {"defer": "defer"}}
    config.mathjax_path = "mathjax/startup.js"
    config.mathjax3_config = {"loader": {"load": ["core", *MATHJAX_PARTS]}}


def copy_mathjax(app: Sphinx, exception: Exception | None) -> None:
    """Copy the part of MathJax that pages load to _static/mathjax."""
    if exception is not None or app.builder.format != "html":
        return
    source = package_file("sphinx-mathjax-offline", "sphinx-mathjax-offline", "static", "mathjax")
    target = Path(app.outdir) / "_static" / "mathjax"
    for name in MATHJAX_FILES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            shutil.copy2(source / name, target / name)


def setup(app: Sphinx) -> None:
    """Connect early in `config-inited`, before the builder reads its static paths."""
    # The library in this tree, installed or not: the API page imports it.
    sys.path.insert(0, str(app.srcdir))
    # Jupyter Book sets it even when sphinx-comments, which defines it, isn't used.
    app.add_config_value("comments_config", {}, "")
    app.add_css_file("tx-book.css")
    app.connect("config-inited", configure, priority=10)
    app.connect("build-finished", copy_mathjax, priority=400)
