"""The book's Sphinx extension: everything a page needs, from the book itself.

assets.py           the scripts, styles and fonts that a page loads
outputs.py          what stored notebook outputs need on a static page: alternative text, widgets, BertViz
ledger.py           the claims to test, and the verdicts stored in the chapters
claims.py           the `claims` directive, generated from both
docstrings.py       the library's docstrings on the API page
accessibility.py    what the generated HTML lacks for screen readers
repository.py       links that follow from the repository's address, once `_config.yml` has it
offline.py          the scan that fails the build when a page would ask another host for anything
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tx_book import accessibility, assets, claims, docstrings, offline, outputs, repository

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the extension's parts; each has its own `setup`."""
    for part in (assets, outputs, claims, docstrings, accessibility, repository, offline):
        part.setup(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
