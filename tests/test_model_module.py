"""The language model as a module: copies, precisions, devices, compilation; nothing hides in it."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_language_models import D_MODEL, SCHEMES, VOCAB, build, draw


@pytest.fixture(autouse=True)
def _shapes_of_one_scheme(request):
    """Checking shapes takes most of the time: here one scheme passes the checks, elsewhere all of them do."""
    case = getattr(request.node, "callspec", None)
    if case is not None and case.params.get("scheme", "transformer_xl") != "transformer_xl":
        request.getfixturevalue("without_shape_checks")


def test_one_tensor_embeds_and_reads_off():
    model = build()
    assert sum(tuple(p.shape) == (VOCAB, D_MODEL) for p in model.parameters()) == 1
    with torch.no_grad():
        model.embedding.weight.zero_()
    assert not model(draw(2, 7)).any()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_copies_compute_the_same(scheme):
    """A14: deep copies, pickles and a state dict written to a file, all taken after a pass."""
    model, tokens = build(scheme), draw(2, 7)
    expected = model(tokens)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = build(scheme)
    assert not torch.equal(loaded(tokens), expected)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for twin in (copy.deepcopy(model), loaded):
        assert torch.equal(twin(tokens), expected)
        assert all(a is not b for a, b in zip(twin.parameters(), model.parameters(), strict=True))


def test_pickles_compute_the_same():
    model, tokens = build("rope, YaRN"), draw(2, 7)
    assert torch.equal(pickle.loads(pickle.dumps(model))(tokens), model(tokens))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_tensor_hides_outside_parameters_and_buffers(scheme):
    """A13: everything moves with the model; on the meta device only shapes are computed."""
    model = build(scheme)
    model(draw(2, 7))
    for module in model.modules():
        stray = [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
        assert not stray
    assert model.to("meta")(draw(2, 7).to("meta")).shape == (2, 7, VOCAB)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(scheme, dtype):
    """A02: far from the beginning too, where positions are no longer exact in half precision."""
    model, tokens = build(scheme), draw(2, 9)
    where = {} if scheme == "learned" else {"positions": torch.arange(3_001, 3_010)[None], "longest": 9}
    expected = model(tokens, **where)
    actual = model.to(dtype)(tokens, **where)
    assert actual.dtype == dtype
    tolerance = {torch.bfloat16: 0.5, torch.float16: 6e-2, torch.float64: 2e-4}[dtype]
    torch.testing.assert_close(actual.float(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_autocast(scheme):
    """bf16 where it is safe; parameters and their gradients stay in float32."""
    model, tokens = build(scheme, feedforward="swiglu", normalization="rms_norm"), draw(2, 9)
    expected = model(tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens)
    torch.testing.assert_close(logits.float(), expected, atol=0.5, rtol=0)
    logits.float().logsumexp(dim=-1).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


COMPILING = """
import sys
sys.path.insert(0, {tests!r})

import torch
from tiny_language_models import build, draw

for scheme in {schemes!r}:
    torch._dynamo.reset()
    model = build(scheme, n_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for length in (7, 9):
        tokens = draw(2, length)
        torch.testing.assert_close(compiled(tokens), model(tokens), atol=1e-5, rtol=0)
    print(scheme)
"""


def test_it_compiles_whole():
    """torch.compile without a graph break, at two lengths, in a process without the checks of shapes."""
    schemes = ["learned", "shaw", "transformer_xl", "t5", "rope"]
    command = [sys.executable, "-c", COMPILING.format(tests=str(Path(__file__).parent), schemes=schemes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == schemes, done.stderr


@pytest.mark.parametrize("scheme", SCHEMES)
def test_arguments_are_left_alone(scheme):
    """A15: two calls on the same tensors, backward after both."""
    model, tokens, real = build(scheme), draw(2, 7), torch.ones(2, 7, dtype=torch.bool)
    real[1, :3] = False
    before = tokens.clone(), real.clone(), copy.deepcopy(model.state_dict())
    first, second = model(tokens, real=real), model(tokens, real=real)
    (first + second)[real].sum().backward()
    assert torch.equal(first, second)
    assert torch.equal(tokens, before[0])
    assert torch.equal(real, before[1])
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[2][name])
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_int32_tokens():
    model, tokens = build(), draw(2, 7)
    assert torch.equal(model(tokens.int()), model(tokens))
