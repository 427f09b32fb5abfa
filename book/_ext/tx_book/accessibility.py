"""What the generated HTML lacks for screen readers; the style sheet does the rest.

Checked by axe-core in the tests of the pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def mend(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Make bibliography entries items of their list.

    docutils gives them the role doc-biblioentry, which DPUB-ARIA 1.1 has withdrawn and a list may not hold.
    """
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def setup(app: Sphinx) -> None:
    """Connect behind the writer."""
    app.connect("html-page-context", mend)
