"""BertViz's views: any token, any shape, no other host, nothing of others stored."""

from __future__ import annotations

import json
import os
import re
import shutil
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from IPython.display import HTML
from torch import Tensor

from tx_from_scratch import bertviz_views
from tx_from_scratch.bertviz_views import (
    MOST_WEIGHTS,
    SCRIPTS,
    fill_placeholders,
    head_view,
    model_view,
    restore_placeholders,
)
from tx_from_scratch.inspection import capture_attention

# BertViz leaves its own script file open.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed file .*bertviz:ResourceWarning")

VIEWS = [head_view, model_view]
# What tokenizers and mischief produce (A20).
TOKENS = [
    "<s>",
    "</s>",
    "a<b<c",
    "&amp;",
    '"q"',
    "'",
    "<img src=x onerror=alert(1)>",
    "▁the",
    " ",
    "\n",
    "a\tb",
    "",
    "🙂",
    "\u202eabc",
    "</script>",
    "</ScRiPt ><b>",
    "<!--<script>",
    "]]>",
    "\\",
    "{0}{jquery}",
    "PYTHON_PARAMS",
    "/*@@tx:d3@@*/",
    "\u2028",
]
VISIBLE = [(token or "∅").replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") for token in TOKENS]


def weights(layers: int, heads: int, query: int, key: int) -> Tensor:
    return torch.rand(layers, 1, heads, query, key).softmax(dim=-1)


class Elements(HTMLParser):
    """Which elements a page has, as a browser would read it: scripts end at the first `</script`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def document_of(view: HTML) -> str:
    """The page inside the frame."""
    ((_, frame),) = [element for element in Elements(view.data).found if element[0] == "iframe"]
    assert frame["sandbox"] == "allow-scripts"
    assert frame["title"]
    return frame["srcdoc"]


def parameters_of(view: HTML) -> dict[str, Any]:
    """What the page hands to BertViz's script."""
    (text,) = re.findall(r"^window\.PYTHON_PARAMS = (\{.*\});$", document_of(view), flags=re.MULTILINE)
    return json.loads(text)


@pytest.mark.parametrize("show", VIEWS)
class TestViews:
    def test_every_token_arrives_as_written(self, show):
        """A20: white space as marks, everything else character by character."""
        (shown,) = parameters_of(show(weights(1, 2, len(TOKENS), len(TOKENS)), TOKENS))["attention"]
        assert shown["left_text"] == VISIBLE
        assert shown["right_text"] == VISIBLE

    def test_no_token_becomes_markup(self, show):
        """The page has the same elements, whatever the tokens hold."""
        length = len(TOKENS)
        harmless = show(weights(1, 2, length, length), ["x"] * length)
        mischief = show(weights(1, 2, length, length), TOKENS)
        elements = Elements(document_of(mischief)).found
        assert elements == Elements(document_of(harmless)).found
        assert len(mischief.data) < len(harmless.data) + 1_000  # no script has come in through a token

    def test_weights_are_shown_head_by_head(self, show):
        """A21: never averaged, rounded to what can be seen; cross-attention with unequal lengths."""
        attention = weights(2, 3, 5, 7)
        view = show(cross_attention=attention, encoder_tokens=list("abcdefg"), decoder_tokens=list("vwxyz"))
        (shown,) = parameters_of(view)["attention"]
        assert shown["name"] == "Cross"
        assert shown["left_text"] == list("vwxyz")
        assert shown["right_text"] == list("abcdefg")
        actual = torch.tensor(shown["attn"])
        assert actual.shape == (2, 3, 5, 7)
        torch.testing.assert_close(actual, attention[:, 0], atol=5.1e-4, rtol=0)

    def test_all_three_attentions_of_a_translation(self, show, model, source, target):
        """Straight from the capture of one sentence."""
        with capture_attention(model) as maps:
            model(source[:1], target[:1])
        view = show(
            encoder_attention=maps.stack("encoder.layers.1.attention"),
            decoder_attention=maps.stack("decoder.layers.*.attention"),
            cross_attention=maps.stack("decoder.layers.*.cross_attention"),
            encoder_tokens=[str(token) for token in source[0].tolist()],
            decoder_tokens=[str(token) for token in target[0].tolist()],
        )
        names = [shown["name"] for shown in parameters_of(view)["attention"]]
        assert names == ["Encoder", "Decoder", "Cross"]

    def test_a_single_token(self, show):
        (shown,) = parameters_of(show(torch.ones(1, 1, 1, 1, 1), ["alone"]))["attention"]
        assert shown["attn"] == [[[[1.0]]]]

    def test_half_precision_weights(self, show):
        attention = weights(1, 2, 3, 3).bfloat16().requires_grad_()
        (shown,) = parameters_of(show(attention, list("abc")))["attention"]
        torch.testing.assert_close(torch.tensor(shown["attn"]), attention[:, 0].float(), atol=5.1e-4, rtol=0)

    def test_arguments_are_left_alone(self, show):
        attention, tokens = weights(1, 2, 3, 3), ["a ", "b", ""]
        before = attention.clone()
        show(attention, tokens)
        assert torch.equal(attention, before)
        assert tokens == ["a ", "b", ""]

    def test_the_same_view_is_the_same_output(self, show):
        """BertViz draws a random id for each view; a notebook run again must store the same."""
        attention = weights(1, 2, 3, 3)
        assert show(attention, list("abc")).data == show(attention, list("abc")).data

    def test_no_other_host_is_asked(self, show):
        """Only names of XML languages and links in comments remain; no element loads anything."""
        document = document_of(show(weights(1, 2, 3, 3), list("abc")))
        hosts = set(re.findall(r"https?://([^/\s'\"]+)", document))
        assert hosts <= {"www.w3.org", "d3js.org", "github.com"}
        for _, attributes in Elements(document).found:
            assert not {"src", "href", "srcset", "data", "action"} & set(attributes)
        assert "@import" not in document
        assert not re.search(r"""['"]//[a-z]""", document)

    def test_the_largest_view_stays_small(self, show):
        """A21: under 10 MB at the most weights that are taken."""
        attention = weights(4, 8, 120, 120)
        assert 0.9 * MOST_WEIGHTS < attention.numel() <= MOST_WEIGHTS
        assert len(show(attention, ["token"] * 120).data) < 10_000_000


class TestPlaceholders:
    @pytest.mark.parametrize("show", VIEWS)
    def test_a_stored_view_holds_no_code_of_others(self, show):
        """Emptied for the notebook, filled again for the page: nothing is lost on the way."""
        view = show(weights(1, 2, 3, 3), list("abc")).data
        stored = restore_placeholders(view)
        assert len(stored) < 4_000
        for name in ("d3", "jquery"):
            assert stored.count(f"/*@@tx:{name}@@*/") == 1
        assert len(re.findall(r"/\*@@tx:[\w-]+@@\*/", stored)) == 3
        assert "/*@@tx" not in view
        assert fill_placeholders(stored) == view
        assert restore_placeholders(stored) == stored
        assert fill_placeholders(view) == view

    def test_other_text_is_left_alone(self):
        text = "<p>Two scripts: d3 and jQuery, in an <iframe src=page.html></iframe>.</p>"
        assert fill_placeholders(text) == text
        assert restore_placeholders(text) == text

    def test_a_missing_package_says_how_to_install_it(self, monkeypatch):
        bertviz_views._script.cache_clear()
        monkeypatch.setattr(bertviz_views, "find_spec", lambda name: None)
        with pytest.raises(ModuleNotFoundError, match=r"mpld3: pip install 'tx_from_scratch\[bertviz\]'"):
            fill_placeholders("/*@@tx:d3@@*/")
        assert fill_placeholders("nothing to fill") == "nothing to fill"

    def test_every_script_can_stand_inside_a_page(self):
        """None of them ends its own element or the attribute that holds the page."""
        for name in SCRIPTS:
            script = bertviz_views._script(name)
            assert len(script) > 5_000
            assert '"' not in script
            assert "&lt;/script" not in script.lower()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("show", VIEWS)
class TestErrors:
    def test_tokens_must_be_as_many_as_weights(self, show):
        with pytest.raises(ValueError, match=r"attention is 5 x 5, but there are 4 and 4 tokens"):
            show(weights(1, 2, 5, 5), list("abcd"))
        with pytest.raises(ValueError, match=r"cross_attention is 7 x 5, but there are 5 and 7 tokens"):
            show(cross_attention=weights(1, 2, 7, 5), encoder_tokens="abcdefg", decoder_tokens="vwxyz")

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_weights_must_be_finite(self, show, value):
        attention = weights(1, 2, 3, 3)
        attention[0, 0, 1, 2, 0] = value
        with pytest.raises(ValueError, match="attention must be finite"):
            show(attention, list("abc"))

    @pytest.mark.parametrize("shape", [(12, 1, 12, 512, 512), (1, 1, 1, 2_000, 2_000)])
    def test_too_much_is_refused_with_advice(self, show, shape):
        """A21: the numbers, and what to choose instead."""
        with pytest.raises(
            ValueError, match=r"[\d,]{9,} weights, more than the 500,000 .*choose layers or heads"
        ):
            show(torch.zeros(1).expand(shape), ["x"] * shape[-1])

    def test_there_must_be_something_to_show(self, show):
        for attention, tokens in ((weights(1, 2, 0, 0), []), ([], ["a"]), (None, ["a"]), (None, None)):
            with pytest.raises(ValueError, match="at least one layer of weights"):
                show(attention, tokens)

    def test_weights_need_their_tokens(self, show):
        with pytest.raises(ValueError, match="attention needs its tokens"):
            show(weights(1, 2, 3, 3))
        with pytest.raises(
            ValueError, match="cross_attention needs its tokens: pass tokens, or encoder_tokens"
        ):
            show(cross_attention=weights(1, 2, 5, 7), decoder_tokens=list("vwxyz"))

    def test_attentions_must_have_as_many_layers(self, show):
        """BertViz fails on the shorter one, or drops what the longer one has more."""
        for encoder, decoder in ((2, 1), (1, 3)):
            with pytest.raises(
                ValueError, match=f"'encoder_attention': {encoder}, 'decoder_attention': {decoder}"
            ):
                show(
                    encoder_attention=weights(encoder, 2, 3, 3),
                    decoder_attention=weights(decoder, 2, 4, 4),
                    encoder_tokens=list("abc"),
                    decoder_tokens=list("wxyz"),
                )

    @pytest.mark.parametrize("shape", [(1, 2, 2, 3, 3), (1, 2, 3, 3)])
    def test_layers_hold_one_sentence(self, show, shape):
        with pytest.raises(ValueError, match=r"layers of shape \(1, heads, query, key\), got"):
            show(torch.rand(shape), list("abc"))


@pytest.mark.browser
def test_tokens_are_readable_in_a_browser():
    """A20, in the page's own DOM: each token's text as written, no element and no dialog out of a token."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium")
    view = head_view(weights(2, 3, len(TOKENS), len(TOKENS)), TOKENS)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        asked, said = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.set_content(f"<!doctype html><title>Test</title>{view.data}")
        frame = page.frame_locator("iframe")
        frame.locator("svg text").first.wait_for()
        texts = frame.locator("svg text").evaluate_all("nodes => nodes.map(node => node.textContent)")
        strangers = frame.locator("img, b, script[src]").count()
        browser.close()
    assert texts == VISIBLE * 2
    assert not strangers
    assert not said
    assert not [url for url in asked if url.startswith("http")]
