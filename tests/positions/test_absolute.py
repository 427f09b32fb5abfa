"""Absolute positions: the paper's table at any position, width and precision; learned rows and their end."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tx_from_scratch.positions import LearnedPositions, SinusoidalPositions, sinusoidal_table


def literal(position: int, column: int, d_model: int, base: float = 10_000.0) -> float:
    """Section 3.5 of the paper, one entry, in Python's own arithmetic."""
    pair = column // 2
    angle = position / base ** (2 * pair / d_model)
    return math.cos(angle) if column % 2 else math.sin(angle)


def test_table_equals_transformers():
    """Marian's table is the paper's with the sines first; nobody here wrote it."""
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(50, 16).create_weight()
    ours = sinusoidal_table(torch.arange(50), 16)
    torch.testing.assert_close(torch.cat([ours[:, 0::2], ours[:, 1::2]], dim=1), theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("d_model", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("base", [10_000.0, 7.5])
def test_table_equals_the_formula(d_model, base):
    """Odd widths too (A04), and negative positions; the exponent is that of the pair, not the column."""
    positions = torch.tensor([[0, 1, 2, 17], [-3, 400, 5, 99]])
    table = sinusoidal_table(positions, d_model, base=base)
    assert table.shape == (2, 4, d_model)
    for row, column in [(row, column) for row in range(2) for column in range(4)]:
        expected = [literal(int(positions[row, column]), c, d_model, base) for c in range(d_model)]
        torch.testing.assert_close(table[row, column], torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("d_model", [1, 3, 5])
def test_odd_widths_go_forward(d_model):
    """A04: the usual code crashes here, its cosine half being one column short."""
    output = SinusoidalPositions()(torch.zeros(2, 4, d_model), torch.arange(4)[None])
    torch.testing.assert_close(output, sinusoidal_table(torch.arange(4), d_model).expand(2, -1, -1))


def test_far_positions_keep_their_precision():
    """In float32 the angle at a million is off by up to 0.03; computed in float64 the entry is right."""
    position = 1_000_003
    expected = torch.tensor([literal(position, column, 8) for column in range(8)])
    torch.testing.assert_close(sinusoidal_table(torch.tensor([position]), 8)[0], expected, atol=1e-6, rtol=0)


def test_offset_is_not_cached():
    """A05: a second call at other positions gives other angles, and a long table contains the short ones."""
    add = SinusoidalPositions()
    embeddings = torch.randn(2, 5, 6)
    first = add(embeddings, torch.arange(5)[None])
    later = add(embeddings, torch.arange(7, 12)[None])
    full = sinusoidal_table(torch.arange(12), 6)
    torch.testing.assert_close(first - embeddings, full[:5].expand(2, -1, -1), atol=1e-6, rtol=0)
    torch.testing.assert_close(later - embeddings, full[7:].expand(2, -1, -1), atol=1e-6, rtol=0)
    assert not torch.allclose(first, later)


def test_rows_may_have_positions_of_their_own():
    """Left padding shifts a row: each row of positions is looked up on its own."""
    positions = torch.tensor([[0, 1, 2], [-1, 0, 1]])
    output = SinusoidalPositions()(torch.zeros(2, 3, 6), positions)
    assert torch.equal(output[0, :2], output[1, 1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_computed_ahead_are_the_same(dtype):
    """A table made once, longer than needed, for rows with positions of their own, in any order."""
    embeddings, positions = torch.randn(2, 3, 6).to(dtype), torch.tensor([[4, 1, 2], [0, 8, 8]])
    add, table = SinusoidalPositions(), sinusoidal_table(torch.arange(10), 6)
    actual = add(embeddings, positions, table=table)
    assert torch.equal(actual, add(embeddings, positions))
    assert actual.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_of_the_embeddings_is_kept(dtype):
    """Rounded once, at the end: half precision is the rounded table, not one computed in half precision."""
    positions = torch.arange(3_000, 3_005)[None]
    output = SinusoidalPositions().to(dtype)(torch.zeros(1, 5, 6, dtype=dtype), positions)
    assert output.dtype == dtype
    assert torch.equal(output, sinusoidal_table(positions, 6).to(dtype))


def test_integer_positions_of_any_width():
    positions = torch.arange(5)
    assert torch.equal(sinusoidal_table(positions.to(torch.int32), 6), sinusoidal_table(positions, 6))


def test_positions_hold_no_state():
    add = SinusoidalPositions()
    add(torch.zeros(2, 5, 6), torch.arange(5)[None])
    assert not list(add.state_dict())
    assert not [value for value in vars(add).values() if isinstance(value, torch.Tensor)]


def test_table_is_built_where_the_positions_are():
    assert sinusoidal_table(torch.arange(3, device="meta"), 4).is_meta


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("d_model", "base", "name"), [(0, 10.0, "d_model"), (-2, 10.0, "d_model"), (4, 0.0, "base")]
)
def test_impossible_tables_are_refused(d_model, base, name):
    with pytest.raises(ValueError, match=f"{name} must be positive, got"):
        sinusoidal_table(torch.arange(3), d_model, base=base)


def test_learned_rows_equal_an_embedding():
    """torch's own lookup, output and gradient, with positions of each row's own and some twice."""
    scheme, x = LearnedPositions(11, 6), torch.randn(2, 5, 6)
    positions = torch.tensor([[0, 1, 2, 3, 4], [10, 3, 3, 0, 7]])
    rows = torch.nn.Embedding(11, 6, _weight=scheme.table.detach().clone())
    cotangent = torch.randn(2, 5, 6)
    actual, expected = scheme.embed(x, positions), x + rows(positions)
    assert torch.equal(actual, expected)
    ours = torch.autograd.grad(actual, scheme.table, cotangent)[0]
    theirs = torch.autograd.grad(expected, rows.weight, cotangent)[0]
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert not ours[[5, 6, 8, 9]].any()


def test_learned_rows_are_as_small_as_asked():
    """The mean square of 40,000 numbers lies within 3 % of the variance."""
    for scheme, std in [(LearnedPositions(200, 200), 0.02), (LearnedPositions(200, 200, std=0.5), 0.5)]:
        assert scheme.table.square().mean().sqrt().item() == pytest.approx(std, rel=0.03)
        assert scheme.extended(400).table[200:].square().mean().sqrt().item() == pytest.approx(std, rel=0.03)


@pytest.mark.parametrize(("place", "wrong"), [(16, 16), (400, 400), (-1, -1)])
def test_positions_outside_the_table_are_refused_before_anything_runs(place, wrong):
    """A08: neither an index error of the backend nor the last row in place of −1; valid ones still work."""
    scheme, x = LearnedPositions(16, 6), torch.zeros(2, 3, 6)
    with pytest.raises(ValueError, match=rf"positions must be 0 to 15 \(max_length=16\), got {wrong};"):
        scheme.embed(x, torch.tensor([[0, 1, 2], [3, place, 15]]))
    assert torch.equal(scheme.embed(x, torch.tensor([[15, 0, 15]]))[0, 0], scheme.table[15])


@pytest.mark.parametrize("length", [1, 4, 7, 8, 30])
def test_interpolated_rows_equal_numpy(length):
    """numpy.interp, column by column; the ends stay."""
    scheme = LearnedPositions(7, 5)
    steps = np.linspace(0, 6, length)
    columns = scheme.table.detach().double().numpy().T
    expected = np.stack([np.interp(steps, np.arange(7), column) for column in columns], axis=1)
    table = scheme.interpolated(length).table
    np.testing.assert_allclose(table.detach().numpy(), expected, atol=1e-7, rtol=0)
    assert torch.equal(table[0], scheme.table[0])
    if length > 1:
        torch.testing.assert_close(table[-1], scheme.table[-1], atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("lengthen", [LearnedPositions.interpolated, LearnedPositions.extended])
def test_a_longer_table_is_one_of_its_own(lengthen):
    """The trained one stays as it was; the new one can be trained, in the same precision."""
    scheme = LearnedPositions(7, 5).double()
    before = scheme.table.detach().clone()
    longer = lengthen(scheme, 9)
    assert longer.table.shape == (9, 5)
    assert longer.table.dtype == torch.float64
    assert longer.table.is_leaf
    assert longer.table.requires_grad
    longer.embed(torch.zeros(2, 9, 5).double(), torch.arange(9)[None]).square().sum().backward()
    assert (longer.table.grad.abs().sum(dim=1) > 0).all()
    with torch.no_grad():
        longer.table.zero_()
    assert torch.equal(scheme.table, before)


def test_extended_rows_are_the_trained_ones_and_new_ones():
    scheme = LearnedPositions(7, 5)
    longer = scheme.extended(9)
    assert torch.equal(longer.table[:7], scheme.table)
    assert (longer.table[7:] != 0).all()
    assert torch.equal(scheme.extended(7).table, scheme.table)
