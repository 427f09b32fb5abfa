"""The Transformer behaves like any PyTorch module, and refuses what it can't compute."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import math
import pickle
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from tx_from_scratch.inspection import capture_attention
from tx_from_scratch.transformer import Transformer, TransformerConfig


class TestModule:
    """It behaves like any PyTorch module."""

    def test_no_tensor_stands_outside_parameters_and_buffers(self, model, source, target):
        """A13, also after forward passes; and no buffer at all, so that .half() spoils no table."""
        with capture_attention(model):
            model(source, target)
        for module in model.modules():
            for name, value in vars(module).items():
                assert not isinstance(value, Tensor), name
                if isinstance(value, list | tuple | dict) and name not in ("_parameters", "_buffers"):
                    values = value.values() if isinstance(value, dict) else value
                    assert not any(isinstance(item, Tensor) for item in values), name
        assert not list(model.buffers())
        assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}

    def test_it_moves(self, model, source, target):
        """A13: forward after .to(), the user moving nothing but the inputs."""
        logits = model.to("meta")(source.to("meta"), target.to("meta"))
        assert logits.is_meta
        assert logits.shape == (2, 5, 13)

    def test_double_precision(self, model, source, target):
        expected = model(source, target)
        logits = model.double()(source, target)
        assert logits.dtype == torch.float64
        torch.testing.assert_close(logits.float(), expected, atol=1e-5, rtol=0)

    def test_copies_and_pickles_after_use(self, model, source, target):
        """A14: also when weights have been captured, with a gradient on the way."""
        with capture_attention(model):
            expected = model(source, target)
        expected.sum().backward()
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        loaded = Transformer(model.config).eval()
        loaded.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
        for twin in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(twin(source, target), expected, atol=1e-6, rtol=0)

    def test_memory_is_flat_under_capture(self, model, source, target):
        """A14: forward passes leave no tensor behind, looked at or not."""

        def tensors() -> int:
            gc.collect()
            return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

        def pass_once() -> None:
            with capture_attention(model):
                model(source, target)
            model(source, target)

        pass_once()
        before = tensors()
        for _ in range(25):
            pass_once()
        assert tensors() == before

    def test_arguments_are_left_alone(self, model, source, target):
        """A15: two calls on the same tensors, backward after both."""
        before = source.clone(), target.clone(), {k: v.clone() for k, v in model.state_dict().items()}
        first, second = model(source, target), model(source, target)
        (first + second).sum().backward()
        assert torch.equal(first, second)
        assert torch.equal(source, before[0])
        assert torch.equal(target, before[1])
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[2][name])

    @pytest.mark.usefixtures("without_shape_checks")
    def test_it_compiles_whole(self, tiny, source, target):
        """torch.compile without a graph break, backward too; generating code would take minutes."""
        model = Transformer(dataclasses.replace(tiny, n_encoder_layers=1)).eval()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        expected, actual = model(source, target), compiled(source, target)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
        parameters = list(model.parameters())
        direction = torch.randn_like(expected)
        torch.testing.assert_close(
            torch.autograd.grad(actual, parameters, direction),
            torch.autograd.grad(expected, parameters, direction),
            atol=1e-5,
            rtol=1e-5,
        )

    def test_int32_tokens(self, model, source, target):
        assert torch.equal(model(source.int(), target.int()), model(source, target))

    def test_no_longest_length(self, model, tokens):
        """A08: positions are computed, so no table ends."""
        assert model(tokens(1, 600), tokens(1, 3)).isfinite().all()


@pytest.mark.usefixtures("without_shape_checks")
class TestErrors:
    @pytest.mark.parametrize(("bad", "shown"), [(13, "got 13"), (-1, "got -1"), (40_000, "got 40000")])
    @pytest.mark.parametrize("name", ["source", "target"])
    def test_tokens_outside_the_vocabulary(self, model, source, target, name, bad, shown):
        """A08: before a kernel crashes on them; the model is usable afterwards."""
        given = {"source": source.clone(), "target": target.clone()}
        given[name][1, 2] = bad
        with pytest.raises(
            ValueError, match=rf"{name} must hold ids from 0 to 12 \(vocab_size=13\), {shown}"
        ):
            model(**given)
        assert model(source, target).isfinite().all()

    def test_tokens_must_be_integers(self, model, source, target):
        with pytest.raises(TypeError, match=r"source must hold int64 or int32 token ids, got torch.float32"):
            model(source.float(), target)

    def test_tokens_must_be_rows(self, model, source, target):
        with pytest.raises(ValueError, match=r"source must have shape \(batch, length\), got \(7,\)"):
            model.encode(source[0])

    def test_source_and_target_must_have_as_many_rows(self, model, source, target):
        with pytest.raises(ValueError, match="as many rows, got 2 and 1"):
            model(source, target[:1])

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("vocab_size", 0),
            ("n_encoder_layers", 0),
            ("n_decoder_layers", -1),
            ("d_ff", 0),
            ("d_model", 0),
            ("n_heads", 5),
            ("dropout", 1.0),
            ("dropout", -0.1),
            ("dropout", math.nan),
            ("pad_id", 13),
            ("eos_id", -1),
            ("bos_id", 4),
        ],
    )
    def test_impossible_sizes_are_refused(self, tiny, field, value):
        with pytest.raises(ValueError, match=rf"(?s){field}.*{value}"):
            dataclasses.replace(tiny, **{field: value})

    def test_configuration_is_frozen_and_named(self, tiny):
        with pytest.raises(dataclasses.FrozenInstanceError):
            tiny.d_model = 24
        with pytest.raises(TypeError):
            TransformerConfig(100)

    def test_errors_survive_optimized_python(self):
        """A07: `python -O` strips asserts, so a check must not be one. Warnings are errors here (A03)."""
        code = (
            "from tx_from_scratch.transformer import Transformer, TransformerConfig\n"
            "import torch\n"
            "assert False, 'stripped'\n"
            "for d_model, n_heads in ((1600, 48), (12, 0), (12, -2), (10, 3)):\n"
            "    try:\n"
            "        TransformerConfig(vocab_size=9, d_model=d_model, n_heads=n_heads)\n"
            "    except ValueError as error:\n"
            "        print(error)\n"
            "model = Transformer(TransformerConfig(vocab_size=9, d_model=8, n_heads=2, n_encoder_layers=1))\n"
            "model(torch.tensor([[3, 0]]), torch.tensor([[1, 3]])).sum().backward()\n"
        )
        done = subprocess.run(
            [sys.executable, "-O", "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert [line.partition(";")[0] for line in done.stdout.splitlines()] == [
            f"n_heads must be positive and divide d_model, got d_model={d_model}, n_heads={n_heads}"
            for d_model, n_heads in ((1600, 48), (12, 0), (12, -2), (10, 3))
        ]
