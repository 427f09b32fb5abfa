"""Looking inside: captured weights, shown source, recorded verdicts."""

from __future__ import annotations

import ast
import inspect
import io
import json
import tokenize

import pytest
import torch
from torch import Tensor, nn

from tx_from_scratch import attention, decoding, inspection, masks, model, transformer
from tx_from_scratch.attention import (
    MultiHeadAttention,
    ObservableAttention,
    scaled_dot_product_attention,
)
from tx_from_scratch.decoding import greedy_decode
from tx_from_scratch.feedforward import FeedForward
from tx_from_scratch.inspection import (
    AttentionMaps,
    capture_attention,
    show_source,
    verdict,
    without_docstrings,
)
from tx_from_scratch.positions import rotary
from tx_from_scratch.transformer import Encoder, Transformer, TransformerConfig

PATHS = [
    "encoder.layers.0.attention",
    "encoder.layers.1.attention",
    "decoder.layers.0.attention",
    "decoder.layers.0.cross_attention",
]


class TestCapture:
    def test_weights_are_keyed_by_path_in_order_of_calls(self, model, source, target):
        with capture_attention(model) as maps:
            model(source, target)
        assert list(maps) == PATHS
        shapes = [tuple(weights.shape) for calls in maps.values() for weights in calls]
        assert shapes == [(2, 3, 7, 7), (2, 3, 7, 7), (2, 3, 5, 5), (2, 3, 5, 7)]

    def test_weights_are_the_real_ones(self, model, source, target):
        """Padding gets nothing, later tokens get nothing, rows sum to 1; and the output is the same."""
        expected = model(source, target)
        with capture_attention(model) as maps:
            actual = model(source, target)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
        for path in (PATHS[0], PATHS[3]):
            assert not maps[path][0][1, :, :, 4:].any()
            assert (maps[path][0][0] > 0).all()
        assert not maps[PATHS[2]][0].triu(1).any()
        for (weights,) in maps.values():
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))

    def test_weights_are_detached_copies(self, model, source, target):
        """A14: no graph is held; changing what was captured changes nothing else."""
        with capture_attention(model) as maps:
            logits = model(source, target)
            for calls in maps.values():
                calls[0].zero_()
        assert not any(weights.requires_grad for calls in maps.values() for weights in calls)
        logits.sum().backward()
        again = model(source, target)
        torch.testing.assert_close(logits, again, atol=1e-5, rtol=0)

    def test_nothing_is_left_on_the_modules(self, model, source, target):
        before = [set(vars(module)) for module in model.modules()]
        hooks = [len(module._forward_hooks) for module in model.modules()]
        with capture_attention(model) as maps:
            model(source, target)
        assert [set(vars(module)) for module in model.modules()] == before
        assert [len(module._forward_hooks) for module in model.modules()] == hooks
        model(source, target)
        assert [len(calls) for calls in maps.values()] == [1, 1, 1, 1]  # the block is over

    def test_only_the_given_model_is_captured(self, model, tiny, source, target):
        """Another model may run inside the block, and blocks may be nested."""
        other = Transformer(tiny).eval()
        with capture_attention(model) as maps, capture_attention(other.encoder) as inner:
            other(source, target)
            model.encode(source)
        assert list(maps) == PATHS[:2]
        assert list(inner) == ["layers.0.attention", "layers.1.attention"]
        assert not torch.equal(maps[PATHS[0]][0], inner["layers.0.attention"][0])

    def test_an_attention_of_its_own_has_an_empty_path(self):
        layer = MultiHeadAttention(12, 3)
        with capture_attention(layer) as maps:
            layer(torch.randn(2, 5, 12))
        assert list(maps) == [""]

    @pytest.mark.parametrize(
        "other", [nn.Identity(), nn.TransformerEncoderLayer(12, 3, 20), FeedForward(12, 20)]
    )
    def test_a_model_without_our_attention_is_refused(self, other):
        """An empty dictionary at the end would look as if nothing had been attended to."""
        with (
            pytest.raises(ValueError, match=f"got a {type(other).__name__} without one"),
            capture_attention(other),
        ):
            pytest.fail("the block must not run")

    def test_other_kinds_of_attention_report_too(self):
        """Whatever derives from ObservableAttention, at any depth."""

        class Mean(ObservableAttention):
            def forward(self, x: Tensor) -> Tensor:
                weights = torch.full((x.shape[0], 1, x.shape[1], x.shape[1]), 1 / x.shape[1])
                if self.observed:
                    self.report(weights)
                return weights[:, 0] @ x

        model, x = nn.Sequential(nn.Identity(), Mean()), torch.randn(2, 5, 12)
        with capture_attention(model) as maps:
            output = model(x)
        torch.testing.assert_close(output, x.mean(dim=1, keepdim=True).expand_as(x))
        assert {path: [tuple(w.shape) for w in calls] for path, calls in maps.items()} == {
            "1": [(2, 1, 5, 5)]
        }
        assert not model[1].observed

    def test_an_error_ends_the_capture(self, model, source, target):
        with pytest.raises(ZeroDivisionError), capture_attention(model) as maps:
            raise ZeroDivisionError
        model(source, target)
        assert not maps

    def test_decoding_lists_every_step(self, model, source):
        """One query a step, one more key each time; the memory is read once by the encoder."""
        with capture_attention(model) as maps:
            steps = greedy_decode(model, source, max_new_tokens=4).shape[1]
        assert [len(maps[path]) for path in PATHS] == [1, 1, steps, steps]
        assert [tuple(w.shape) for w in maps[PATHS[2]]] == [(2, 3, 1, n) for n in range(1, steps + 1)]


class TestStack:
    def test_layers_stand_in_order(self):
        """Ten and more layers, whose numbers sort differently as text."""
        config = TransformerConfig(
            vocab_size=5, d_model=6, n_heads=2, n_encoder_layers=12, n_decoder_layers=1
        )
        encoder = Encoder(config)
        with capture_attention(encoder) as maps:
            encoder(torch.randn(2, 5, 6))
        stacked = maps.stack("layers.*.attention")
        assert stacked.shape == (12, 2, 2, 5, 5)
        for layer in range(12):
            assert torch.equal(stacked[layer], maps[f"layers.{layer}.attention"][0])

    def test_self_and_cross_attention_are_told_apart(self, model, source, target):
        with capture_attention(model) as maps:
            model(source, target)
        assert maps.stack("decoder.layers.*.attention").shape == (1, 2, 3, 5, 5)
        assert maps.stack("decoder.layers.*.cross_attention").shape == (1, 2, 3, 5, 7)
        assert maps.stack("encoder.layers.*.attention").shape == (2, 2, 3, 7, 7)

    def test_what_can_not_be_stacked_is_named(self, model, source, target):
        with capture_attention(model) as maps:
            model(source, target)
            with pytest.raises(ValueError, match=r"'nothing' matches none .*'encoder\.layers\.0\.attention'"):
                maps.stack("nothing")
            with pytest.raises(KeyError, match=r"'encoder' is none of .*'encoder\.layers\.0\.attention'"):
                maps["encoder"]
            assert "encoder" not in maps
            with pytest.raises(ValueError, match=r"different shapes: \[\(2, 3, 5, 5\), \(2, 3, 5, 7\)\]"):
                maps.stack("decoder*")
            model.encode(source)
            with pytest.raises(ValueError, match=r"encoder\.layers\.0\.attention was called 2 times"):
                maps.stack("encoder*")

    def test_an_empty_capture_says_so(self):
        """A block in which the model was never called, or its maps read too early."""
        with pytest.raises(
            ValueError, match=r"'\*' matches none .* none yet; call the model inside the block"
        ):
            AttentionMaps().stack("*")
        with pytest.raises(KeyError, match=r"'encoder' is none .* none yet; call the model inside the block"):
            AttentionMaps()["encoder"]


def stripped(source: str) -> str:
    """The syntax tree without docstrings: found by Python's own definition, and never the whole body."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
            ast.get_docstring(node, clean=False) is not None and len(node.body) > 1
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def comments(source: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


SNIPPETS = {
    "several lines": 'def f():\n    """One.\n\n    Two.\n    """\n\n    # why\n    return 1\n',
    "nothing but a docstring": 'class A:\n    """Empty."""\n\n\ndef f():\n    "Empty too."\n',
    "nested": 'class A:\n    """A."""\n\n    def f(self):\n        r"""\\f"""\n'
    '        def g():\n            "G."\n            return 2\n        return g\n',
    "asynchronous, decorated": '@staticmethod\nasync def f():\n    """F."""\n    return 1\n',
    "a string that is none": 'def f():\n    x = 1\n    """not a docstring"""\n    return x\n',
    "a concatenated string": 'def f():\n    ("one"\n     "two")\n    return 1\n',
    "a text with docstrings": "def f():\n    return '''\ndef g():\n    \"no\"\n'''\n",
}


class TestSource:
    @pytest.mark.parametrize("module", [attention, decoding, inspection, masks, model, rotary, transformer])
    def test_only_docstrings_go(self, module):
        """For all of the library: the same syntax tree less its docstrings, and every comment kept."""
        source = inspect.getsource(module)
        short = without_docstrings(source)
        assert ast.dump(ast.parse(short)) == stripped(source)
        assert comments(short) == comments(source)
        assert len(short) < 0.8 * len(source)

    @pytest.mark.parametrize("snippet", SNIPPETS)
    def test_unusual_docstrings(self, snippet):
        source = SNIPPETS[snippet]
        short = without_docstrings(source)
        assert ast.dump(ast.parse(short)) == stripped(source)
        assert comments(short) == comments(source)

    @pytest.mark.parametrize(
        "source", ['def f():\n    "Doc."; x = 1\n    return x\n', 'def f(): "Doc."; return 1\n']
    )
    def test_code_beside_a_docstring_stays(self, source):
        before, after = {}, {}
        exec(source, before)
        exec(without_docstrings(source), after)
        assert before["f"]() == after["f"]()

    def test_source_is_shown_as_code_with_its_file(self, outputs):
        show_source(scaled_dot_product_attention)
        (output,) = outputs
        shown = output["data"]["text/markdown"]
        file, _, code = shown.partition("\n\n")
        assert file == "`tx_from_scratch/attention.py`"
        assert code.startswith("```python\ndef scaled_dot_product_attention(\n")
        assert code.endswith("\n```")
        assert '"""' not in code
        assert "# (batch, heads, query, key)" in code
        ast.parse(code.removeprefix("```python\n").removesuffix("\n```"))

    def test_docstrings_are_shown_when_asked_for(self, outputs):
        show_source(MultiHeadAttention.forward, docstring=True)
        shown = outputs[0]["data"]["text/markdown"]
        assert "Let every position of `x` attend" in shown
        assert "```python\ndef forward(\n    self," in shown  # a method is dedented

    @pytest.mark.usefixtures("without_shape_checks")
    @pytest.mark.parametrize("thing", [len, dict, 3, "text"])
    def test_what_has_no_source_is_refused(self, thing):
        with pytest.raises(TypeError, match="written in Python, got"):
            show_source(thing)


class TestVerdict:
    @pytest.mark.parametrize("found", inspection.VERDICTS)
    def test_it_is_shown_and_recorded(self, outputs, found):
        verdict("original-path-length", found, '7 < 9 & "8" > 6, <script>alert(1)</script>')
        (output,) = outputs
        evidence = '7 < 9 & "8" > 6, <script>alert(1)</script>'
        assert output["metadata"] == {
            "claim": {"id": "original-path-length", "verdict": found, "evidence": evidence}
        }
        json.dumps(output["metadata"])
        assert output["data"]["text/plain"] == f"{found}: original-path-length: {evidence}"
        card = output["data"]["text/html"]
        assert f"tx-{found}" in card
        assert "original-path-length" in card
        assert "<script" not in card
        assert "7 &lt; 9 &amp;" in card

    def test_without_a_notebook_it_is_printed(self, capsys, monkeypatch):
        from IPython.core.interactiveshell import InteractiveShell

        monkeypatch.setattr(InteractiveShell, "initialized", lambda: False)
        verdict("some-claim", "holds", "3 = 3")
        assert "holds: some-claim: 3 = 3" in capsys.readouterr().out

    @pytest.mark.usefixtures("without_shape_checks")
    def test_unknown_verdicts_are_refused(self, outputs):
        with pytest.raises(ValueError, match=r"one of holds, partly, fails, beyond-scale; got 'true'"):
            verdict("some-claim", "true", "3 = 3")
        with pytest.raises(ValueError, match=r"evidence must say what was measured for 'some-claim'"):
            verdict("some-claim", "holds", "  ")
        assert not outputs
