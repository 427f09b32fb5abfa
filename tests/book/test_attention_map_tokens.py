"""Hostile tokens in the attention map: seen as they are written, copied as they are, never read as HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attention_examples import HOSTILE, names, softmax

from tx_from_scratch.widgets import AttentionMap
from tx_from_scratch.widgets.tokens import visible

pytestmark = pytest.mark.browser

COPIED = """(tokens) => tokens.map((token) => {
    const range = document.createRange();
    range.selectNodeContents(token);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    const data = new DataTransfer();
    const event = new ClipboardEvent("copy", { clipboardData: data, bubbles: true, cancelable: true });
    token.dispatchEvent(event);
    return data.getData("text/plain");
})"""


# All but those that make up a token or a label, of which there may be more or fewer.
ELEMENTS = """() => [...document.querySelectorAll(".txw *")].map((node) => node.localName)
    .filter((name) => !["text", "span", "bdi"].includes(name)).sort().join()"""


@pytest.mark.parametrize("view", ["map", "lines"])
def test_hostile_tokens(view: str, show: Callable[..., Any]) -> None:
    """Every token is seen as it is written, adds no element, keeps to its row, and is copied as it is."""
    size = len(HOSTILE)
    weights = softmax(2, 2, size, size)
    plain = show(AttentionMap(weights, names(size), view=view)).page.evaluate(ELEMENTS)
    visited = show(AttentionMap(weights, HOSTILE, view=view))
    page = visited.page
    assert page.evaluate(ELEMENTS) == plain
    assert page.locator(".txw :is(img, script, s, b)").count() == 0
    if view == "map":
        labels = page.locator(".txw-attention .txw-panel").last.locator("svg text").all_text_contents()
        for token in HOSTILE:
            assert visible(token, 16) in labels
    else:
        for name in ("query tokens", "key tokens"):
            tokens = page.get_by_role("listbox", name=name).locator(".txw-token")
            assert tokens.evaluate_all("(all) => all.map((token) => token.textContent)") == HOSTILE
            assert tokens.evaluate_all(COPIED) == HOSTILE
            # One line each, of some width: whatever is in a token, its row stays a row.
            boxes = [
                option.bounding_box()
                for option in page.get_by_role("listbox", name=name).get_by_role("option").all()
            ]
            assert [box["height"] for box in boxes if box] == [24] * size
            assert all(
                width > 3
                for width in tokens.evaluate_all("(all) => all.map((t) => t.getBoundingClientRect().width)")
            )
    assert visited.errors == []


MARKS = """(tokens) => tokens.map((token) => {
    const mark = (node) => {
        const content = getComputedStyle(node, "::before").content;
        return content === "none" || content === "normal" ? "" : JSON.parse(content);
    };
    const parts = [...token.childNodes].map((part) => part.nodeType === 3 ? part.data : mark(part));
    return mark(token) + parts.join("");
})"""


def test_marks_in_the_style_sheet(show: Callable[..., Any]) -> None:
    """What is seen of a token in the list is what its label says, though its text is the token."""
    size = len(HOSTILE)
    page = show(AttentionMap(softmax(1, 1, size, size), HOSTILE, view="lines")).page
    tokens = page.get_by_role("listbox", name="query tokens").locator(".txw-token")
    assert tokens.evaluate_all(MARKS) == [visible(token) for token in HOSTILE]


def test_copying_by_keyboard(show: Callable[..., Any]) -> None:
    """The real clipboard: a selection over several tokens gives one a line, part of a token that part."""
    tokens = ["<b>", " the", "cat&amp;", "\u202eabc", "x"]
    visited = show(AttentionMap(softmax(1, 1, 5, 5), tokens, view="lines"))
    page = visited.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    select = """([from, start, to, end]) => {
        const tokens = document.querySelectorAll(".txw-tokens .txw-token");
        const text = (token) => document.createTreeWalker(token, NodeFilter.SHOW_TEXT).nextNode();
        getSelection().setBaseAndExtent(text(tokens[from]), start, text(tokens[to]), end);
    }"""
    for selection, wanted in (([0, 1, 3, 1], "b>\n the\ncat&amp;\n\u202e"), ([2, 0, 2, 4], "cat&")):
        page.evaluate(select, selection)
        page.keyboard.press("Control+C")
        assert page.evaluate("navigator.clipboard.readText()") == wanted
