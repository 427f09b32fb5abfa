"""What all tests share: shapes checked at run time, fixed seeds, repeatable property tests.

Every function and class of the library is imported through jaxtyping's hook, so each call checks the shapes
that its signature promises. A wrong argument is then refused by the checker before the library sees it: tests
of the library's own error messages ask for the fixture `without_shape_checks`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import hypothesis
import jaxtyping
import pytest
import torch
from torch import Tensor

if TYPE_CHECKING:
    from tx_from_scratch.transformer import Transformer, TransformerConfig

jaxtyping.install_import_hook("tx_from_scratch", "shape_checks.check")

# The same examples at every run. HYPOTHESIS_PROFILE=explore looks for new ones.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, max_examples=40
)
hypothesis.settings.register_profile("explore", deadline=None, database=None, max_examples=1_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# Our tensors are too small to share, and threads that wait for each other on a busy machine cost tenfold.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """No test depends on which ones ran before it."""
    torch.manual_seed(20_170_612)


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """Let wrong arguments reach the library, as they do for its users."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a notebook would show, one entry for each output: its data and metadata by MIME type."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.interactiveshell import InteractiveShell

    shell = SimpleNamespace(display_pub=CapturingDisplayPublisher(), display_formatter=DisplayFormatter())
    monkeypatch.setattr(InteractiveShell, "initialized", lambda: True)
    monkeypatch.setattr(InteractiveShell, "instance", lambda: shell)
    shown: list[dict[str, Any]] = shell.display_pub.outputs
    return shown


@pytest.fixture
def tiny() -> TransformerConfig:
    """A Transformer with sizes that all differ and special tokens in unusual places."""
    from tx_from_scratch.transformer import TransformerConfig

    return TransformerConfig(
        vocab_size=13,
        d_model=12,
        n_heads=3,
        n_encoder_layers=2,
        n_decoder_layers=1,
        d_ff=20,
        dropout=0.0,
        pad_id=4,
        bos_id=7,
        eos_id=1,
    )


@pytest.fixture
def model(tiny: TransformerConfig) -> Transformer:
    """In evaluation mode, every parameter perturbed: no two layers, norms or biases look alike."""
    from tx_from_scratch.transformer import Transformer

    built = Transformer(tiny).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return built


@pytest.fixture
def tokens(tiny: TransformerConfig) -> Callable[[int, int], Tensor]:
    """Draws a batch of random tokens, none of them padding."""

    def draw(batch: int, length: int) -> Tensor:
        drawn = torch.randint(0, tiny.vocab_size - 1, (batch, length))
        return drawn + (drawn >= tiny.pad_id)

    return draw


@pytest.fixture
def source(tiny: TransformerConfig, tokens: Callable[[int, int], Tensor]) -> Tensor:
    """Two sources, of 7 and 4 tokens."""
    rows = tokens(2, 7)
    rows[1, 4:] = tiny.pad_id
    return rows


@pytest.fixture
def target(tiny: TransformerConfig, tokens: Callable[[int, int], Tensor]) -> Tensor:
    """Two targets of 5 tokens, the start token included."""
    return torch.cat([torch.full((2, 1), tiny.bos_id), tokens(2, 4)], dim=1)
