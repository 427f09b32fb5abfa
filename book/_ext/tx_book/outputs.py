"""What stored notebook outputs need on a static page.

- Alternative text: a display bundle carries it as Jupyter does, in the output's metadata under the image's
  type (`{"image/png": {"alt": "..."}}`); myst-nb keeps width and height only, so it is put back here.
- Widgets: myst-nb shows a widget's view and drops the picture in the same bundle; here the picture stays
  beside the view, for readers without JavaScript, for print, and for a widget that fails to start.
- BertViz: stored outputs carry placeholders for its scripts; the library fills them in at build time.
- Claims: the cell that measures a claim gets an anchor, `claim-<id>`, that any page can refer to.
"""

from __future__ import annotations

import hashlib
import json
from binascii import a2b_base64
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from docutils import nodes
from sphinx.domains.std import StandardDomain
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
IMAGE_TYPES = {"image/png": True, "image/jpeg": True, "image/gif": True, "image/svg+xml": False}
PLACEHOLDER = "/*@@tx:"
CLAIM_TAG = "claim:"


def stored_alternatives(notebook: dict[str, Any]) -> dict[str, str]:
    """Alternative text for each stored image: SHA-256 of the image's bytes -> text.

    myst-nb names an image's file by that hash, which is how an image on a page is known again.
    """
    found: dict[str, str] = {}
    for cell in notebook.get("cells", []):
        for output in cell.get("outputs", []):
            for kind, is_base64 in IMAGE_TYPES.items():
                if kind not in output.get("data", {}):
                    continue
                content = output["data"][kind]
                text = content if isinstance(content, str) else "".join(content)
                data = a2b_base64(text) if is_base64 else "\n".join(text.splitlines()).encode()
                metadata = output.get("metadata", {})
                alternative = metadata.get(kind, {}).get("alt") or metadata.get("alt")
                if alternative:
                    found[hashlib.sha256(data).hexdigest()] = str(alternative)
    return found


def restore_alternatives(app: Sphinx, doctree: nodes.document) -> None:
    """Put the stored alternative text on the page's images."""
    path = Path(app.env.doc2path(app.env.docname))
    if path.suffix != ".ipynb":
        return
    alternatives = stored_alternatives(json.loads(path.read_text(encoding="utf-8")))
    for image in doctree.findall(nodes.image):
        text = alternatives.get(Path(image["uri"]).stem)
        if text:
            image["alt"] = text


def anchor_claims(app: Sphinx, doctree: nodes.document) -> None:
    """Give each cell tagged `claim:<id>` the anchor `claim-<id>`, a label of the whole book."""
    domain = cast(StandardDomain, app.env.get_domain("std"))
    for cell in doctree.findall(nodes.container):
        for name in cell.get("classes", []):
            if name.startswith(f"tag_{CLAIM_TAG}"):
                label = "claim-" + name.removeprefix(f"tag_{CLAIM_TAG}")
                if label in domain.anonlabels and domain.anonlabels[label][0] != app.env.docname:
                    logger.warning("claim %r is measured on two pages", label, location=cell)
                if label not in cell["ids"]:
                    cell["ids"].append(label)
                domain.anonlabels[label] = (app.env.docname, label)
                domain.labels[label] = (app.env.docname, label, label)


class KeepWidgetPicture(SphinxPostTransform):
    """Keep the picture of a widget's bundle beside its view; runs before myst-nb chooses one of them."""

    default_priority = 3
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Move each widget's picture into its view."""
        for bundle in list(self.document.findall(nodes.container)):
            if bundle.get("nb_element") != "mime_bundle":
                continue
            parts = {
                part.get("mime_type"): part for part in bundle.children if isinstance(part, nodes.container)
            }
            view = parts.get(WIDGET_VIEW)
            if view is None:
                continue
            picture = next((parts[kind] for kind in IMAGE_TYPES if kind in parts), None)
            widget = nodes.container(classes=["tx-widget"])
            if picture is not None:
                for image in picture.findall(nodes.image):
                    image["classes"].append("tx-widget-picture")
                widget += picture.children
            widget += view.children
            view.children = []
            view += widget


class FillPlaceholders(SphinxPostTransform):
    """Fill in the scripts that BertViz views carry."""

    default_priority = 900
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Replace every placeholder in raw HTML."""
        for raw in list(self.document.findall(nodes.raw)):
            if PLACEHOLDER in raw.astext():
                from tx_from_scratch.bertviz_views import fill_placeholders

                raw.children = [nodes.Text(fill_placeholders(raw.astext()))]


def setup(app: Sphinx) -> None:
    """Register the transforms."""
    app.connect("doctree-read", restore_alternatives)
    app.connect("doctree-read", anchor_claims)
    app.add_post_transform(KeepWidgetPicture)
    app.add_post_transform(FillPlaceholders)
