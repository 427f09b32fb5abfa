"""BertViz's head view and model view, without a network.

BertViz as shipped loads require.js, d3 and jQuery from other hosts. Here each view is a page of its own in a
sandboxed frame that carries what it needs: d3 out of the package mpld3, jQuery out of sphinxcontrib-jquery,
BertViz's own script out of bertviz. A stored notebook holds placeholders in their stead, since we keep no
third-party code; `fill_placeholders` puts the scripts in, when the view is shown and when the book is built.

Vig 2019, *A Multiscale Visualization of Attention in the Transformer Model*, arXiv:1906.05714.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from IPython.display import HTML
from torch import Tensor

# name of the placeholder: (package, path of the script inside it)
SCRIPTS = {
    "d3": ("mpld3", "js/d3.v5.min.js"),
    "jquery": ("sphinxcontrib.jquery", "jquery.js"),
    "bertviz-head-view": ("bertviz", "head_view.js"),
    "bertviz-model-view": ("bertviz", "model_view.js"),
}
MOST_WEIGHTS = 500_000  # about 3 MB of page, drawn in a second or two

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body style="margin:0;background:#fff"><script>{jquery}</script><script>{d3}</script>{view}
<script>
window.require = {{config: function () {{}}}};
window.requirejs = function (names, draw) {{ draw(window.jQuery, window.d3); }};
window.PYTHON_PARAMS = {parameters};
</script><script>{script}</script><script>
document.querySelectorAll("select").forEach(function (s) {{
  s.setAttribute("aria-label", s.id === "layer" ? "Layer" : "Which attention");
}});
</script></body></html>"""


def head_view(
    attention: Any = None, tokens: Sequence[str] | None = None, *, height: int | None = None, **views: Any
) -> HTML:
    """Lines between two columns of tokens, one color for each head; hover over a token to see its own.

    Args:
        attention: for self-attention, weights (layers, 1, heads, length, length).
        tokens: the tokens of that sequence.
        height: of the frame, in pixels; chosen by the number of tokens when left out.
        views: for an encoder-decoder instead `encoder_attention`, `decoder_attention`, `cross_attention` with
            `encoder_tokens`, `decoder_tokens`; further options of `bertviz.head_view`.

    Raises:
        ValueError: tokens and weights, or the layers of several attentions, differ in number; or there are
            more weights than a page can draw.
        ModuleNotFoundError: bertviz is not installed.
    """
    import bertviz

    longest = _check(attention, tokens, views)
    page = bertviz.head_view(**_arguments(attention, tokens, views), html_action="return").data
    return _frame(page, "bertviz-head-view", "Attention head view", height or 110 + int(22.5 * longest))


def model_view(
    attention: Any = None, tokens: Sequence[str] | None = None, *, height: int = 420, **views: Any
) -> HTML:
    """Every head of every layer as a thumbnail; click on one to enlarge it.

    Arguments and errors as for `head_view`; further options are those of `bertviz.model_view`.
    """
    import bertviz

    _check(attention, tokens, views)
    views.setdefault("display_mode", "light")
    page = bertviz.model_view(**_arguments(attention, tokens, views), html_action="return").data
    return _frame(page, "bertviz-model-view", "Attention model view", height)


def fill_placeholders(text: str) -> str:
    """Put the scripts of the installed packages where a stored notebook has placeholders."""
    return _replace(text, lambda placeholder, script: (placeholder, script))


def restore_placeholders(text: str) -> str:
    """The reverse: what a notebook stores holds no third-party code."""
    return _replace(text, lambda placeholder, script: (script, placeholder))


def _replace(text: str, direction: Callable[[str, str], tuple[str, str]]) -> str:
    for name in SCRIPTS:
        placeholder = f"/*@@tx:{name}@@*/"
        if placeholder in text or "srcdoc=" in text:
            text = text.replace(*direction(placeholder, _script(name)))
    return text


@cache
def _script(name: str) -> str:
    """A script as it stands inside a `srcdoc` attribute, asking no other host for anything."""
    package, path = SCRIPTS[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"BertViz views need the package {package}: pip install 'tx_from_scratch[bertviz]'"
        )
    code = (Path(spec.origin).parent / path).read_text(encoding="utf-8")
    code = re.sub(r"https://cdnjs\.[^'\"\s]*", "", code)
    return html.escape(code.replace("</script", r"<\/script"))


def _frame(page: str, script: str, title: str, height: int) -> HTML:
    """One sandboxed frame out of what BertViz returns: its container, and its parameters as JSON."""
    view = page[page.index("<div") : page.index("<script type=")]
    parameters, _ = json.JSONDecoder().raw_decode(page, page.index("{", page.index("const params =")))
    view = view.replace(parameters["root_div_id"], "bertviz")  # a random id would change at every run
    parameters["root_div_id"] = "bertviz"
    document = _PAGE.format(
        title=html.escape(title),
        view=view,
        # A token may hold anything, the end of a script or one of our placeholders included.
        parameters=json.dumps(parameters).replace("<", r"\u003c").replace("@", r"\u0040"),
        **{name.partition("-")[0]: f"/*@@tx:{name}@@*/" for name in ("jquery", "d3")},
        script=f"/*@@tx:{script}@@*/",
    )
    # The <div> keeps IPython from suggesting its own IFrame, which needs a file.
    frame = (
        f'<div><iframe title="{html.escape(title)}" sandbox="allow-scripts" loading="lazy" '
        f'style="width:100%;border:0;height:{height}px" srcdoc="{html.escape(document)}"></iframe></div>'
    )
    return HTML(fill_placeholders(frame))


def _arguments(attention: Any, tokens: Sequence[str] | None, views: dict[str, Any]) -> dict[str, Any]:
    """BertViz's arguments: weights rounded to what can be seen, white space in tokens made visible."""
    arguments: dict[str, Any] = {"attention": attention, "tokens": tokens, "prettify_tokens": False, **views}
    for name, value in arguments.items():
        if name.endswith("attention") and value is not None:
            arguments[name] = [layer.detach().cpu().double().round(decimals=3) for layer in value]
        elif name.endswith("tokens") and name != "prettify_tokens" and value is not None:
            arguments[name] = [_visible(token) for token in value]
    return {name: value for name, value in arguments.items() if value is not None}


def _visible(token: str) -> str:
    return token.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") or "∅"


def _check(attention: Any, tokens: Sequence[str] | None, views: dict[str, Any]) -> int:
    """Refuse what would not draw; return the longest token list."""
    source, target = views.get("encoder_tokens"), views.get("decoder_tokens")
    kinds = {
        "attention": (attention, tokens, tokens),
        "encoder_attention": (views.get("encoder_attention"), source, source),
        "decoder_attention": (views.get("decoder_attention"), target, target),
        "cross_attention": (views.get("cross_attention"), target, source),
    }
    count = longest = 0
    layers: dict[str, int] = {}
    for name, (weights, query_tokens, key_tokens) in kinds.items():
        if weights is None:
            continue
        if query_tokens is None or key_tokens is None:
            raise ValueError(f"{name} needs its tokens: pass tokens, or encoder_tokens and decoder_tokens")
        layers[name] = len(weights)
        for layer in weights:
            _check_layer(name, layer, query_tokens, key_tokens)
            count += layer.numel()
        longest = max(longest, len(query_tokens), len(key_tokens))
    if not count:
        raise ValueError("attention must hold at least one layer of weights, and tokens at least one token")
    if len(set(layers.values())) > 1:  # BertViz would number the layers of the first, and drop the rest
        raise ValueError(
            f"all attentions of one view must have as many layers, got {layers}; "
            "choose layers, as in decoder_attention[:2], or show them in views of their own"
        )
    if count > MOST_WEIGHTS:
        raise ValueError(
            f"attention holds {count:,} weights, more than the {MOST_WEIGHTS:,} that a page draws well; "
            "choose layers or heads, as in attention[:2, :, :4], or a shorter text"
        )
    return longest


def _check_layer(name: str, layer: Tensor, query_tokens: Sequence[str], key_tokens: Sequence[str]) -> None:
    if layer.ndim != 4 or layer.shape[0] != 1:
        raise ValueError(f"{name} must hold layers of shape (1, heads, query, key), got {tuple(layer.shape)}")
    if tuple(layer.shape[2:]) != (len(query_tokens), len(key_tokens)):
        raise ValueError(
            f"{name} is {layer.shape[2]} x {layer.shape[3]}, "
            f"but there are {len(query_tokens)} and {len(key_tokens)} tokens"
        )
    if not layer.isfinite().all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
