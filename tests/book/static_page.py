"""A page with widgets and nothing else, as static as the book's."""

from __future__ import annotations

import json

import ipywidgets
from ipywidgets.embed import embed_data
from serving import ROOT

# What the page loads; these files must lie beside it.
STATIC = tuple(
    ROOT / "book" / "_ext" / "tx_book" / "static" / name for name in ("tx-widgets.js", "tx-book.css")
)


def widget_page(*widgets: ipywidgets.DOMWidget) -> str:
    """A page with these widgets, each with a picture, as the extension writes it."""
    data = embed_data(views=list(widgets), drop_defaults=False)
    views = "".join(
        f'<div class="tx-widget"><img class="tx-widget-picture" alt="picture" src="data:,">'
        f'<script type="application/vnd.jupyter.widget-view+json">{json.dumps(view)}</script></div>'
        for view in data["view_specs"]
    )
    state = json.dumps(data["manager_state"]).replace("</", "<\\/")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>t</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="tx-book.css"></head><body><main><h1>t</h1>'
        f'{views}</main><script type="application/vnd.jupyter.widget-state+json">{state}</script>'
        '<script src="tx-widgets.js"></script></body></html>'
    )
