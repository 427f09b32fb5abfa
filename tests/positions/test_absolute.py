"""Sinusoidal positions: the paper's table at any position, width and precision."""

from __future__ import annotations

import math

import pytest
import torch

from tx_from_scratch.positions import SinusoidalPositions, sinusoidal_table


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
