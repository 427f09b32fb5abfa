"""Where the tokens of a pass stand."""

from __future__ import annotations

import pytest
import torch

from tx_from_scratch.positions import Places, row_positions

ROWS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [9, -4, 0, 0, 20, 3, 1]])


def test_relative_is_the_key_minus_the_query():
    """One pair at a time; the queries are the last five of seven keys."""
    relative = Places(ROWS, 5, 6).relative()
    assert relative.shape == (2, 5, 7)
    for b in range(2):
        for i in range(5):
            for j in range(7):
                assert relative[b, i, j] == ROWS[b, j] - ROWS[b, i + 2]


def test_queries_and_new_keys_are_the_last_ones():
    places = Places(ROWS, 2, 4)
    assert torch.equal(places.query, ROWS[:, 5:])
    assert torch.equal(places.new, ROWS[:, 3:])
    everything = Places.of(ROWS)
    assert torch.equal(everything.query, ROWS)
    assert torch.equal(everything.new, ROWS)
    part = Places.of(ROWS, n_query=1, n_new=3)
    assert (part.n_query, part.n_new, part.consecutive) == (1, 3, False)


def test_a_row_is_as_long_as_its_largest_position_says():
    """Unless it is known how long it is going to be."""
    assert Places.of(ROWS).row_lengths().tolist() == [[7], [21]]
    longest = torch.tensor([[30], [40]])
    assert Places(ROWS, 7, 7, longest=longest).row_lengths() is longest


def test_row_positions_count_real_tokens():
    """Padding in front, behind and between, in rows of Booleans; counted here one token at a time."""
    real = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]])
    positions = row_positions(real.bool())
    assert positions.dtype == torch.int64
    for row, places in zip(real.tolist(), positions.tolist(), strict=True):
        counted = 0
        for is_real, place in zip(row, places, strict=True):
            if is_real:
                assert place == counted
                counted += 1
            assert place >= 0
    assert positions[1].tolist() == [0, 0, 0, 1, 2]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("positions", "error", "message"),
    [
        (torch.rand(2, 7), TypeError, "positions must be integers, got torch.float32"),
        (torch.ones(2, 7, dtype=torch.bool), TypeError, "positions must be integers, got torch.bool"),
        (torch.arange(7), ValueError, r"positions must have shape \(batch, seq\), got \(7,\)"),
        (torch.zeros(2, 0, dtype=torch.long), ValueError, "n_query and n_new must be .* <= 0"),
    ],
)
def test_positions_that_are_none_are_refused(positions, error, message):
    with pytest.raises(error, match=message):
        Places.of(positions)


@pytest.mark.parametrize(("n_query", "n_new"), [(0, 7), (8, 8), (3, 2), (7, 8), (-1, 7)])
def test_more_queries_than_positions_are_refused(n_query, n_new):
    """A slice would silently take what there is, and zero would take everything."""
    with pytest.raises(ValueError, match=rf"<= 7, .*got n_query={n_query}, n_new={n_new}"):
        Places.of(ROWS, n_query=n_query, n_new=n_new)
