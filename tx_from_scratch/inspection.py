"""Looking inside: attention weights, source code, and what the measurements say.

capture_attention    the weights of every attention in a block of code
show_source          the library's own code in a notebook, never a copy of it
verdict              what a claim's measurement found, shown and recorded
"""

from __future__ import annotations

import ast
import html
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
from IPython.display import Markdown, display
from jaxtyping import Float
from torch import Tensor, nn

from tx_from_scratch.attention import ObservableAttention, observe_weights

VERDICTS = {
    "holds": "measured, and true as stated",
    "partly": "true under a condition that the cell shows",
    "fails": "measured, and not true as stated",
    "beyond-scale": "needs more scale than this experiment has",
}


class AttentionMaps(dict[str, list[Tensor]]):
    """Attention weights by module path, such as `decoder.layers.0.cross_attention`, in order of calls.

    Each value lists one tensor (batch, heads, query, key) for every call of that module; a single forward
    pass calls each module once.
    """

    def __missing__(self, path: str) -> list[Tensor]:
        raise KeyError(f"path {path!r} is none of the captured ones: {self._captured()}")

    def stack(self, pattern: str) -> Float[Tensor, "layers batch heads query key"]:
        """The weights of all modules whose path matches, layer by layer.

        Args:
            pattern: a path with `*` for the layer's number, such as `encoder.layers.*.attention`.

        Raises:
            ValueError: nothing matches, a module was called more than once, or the shapes differ.
        """
        matching = {path: calls for path, calls in self.items() if fnmatchcase(path, pattern)}
        if not matching:
            raise ValueError(f"pattern {pattern!r} matches none of the captured paths: {self._captured()}")
        repeated = [path for path, calls in matching.items() if len(calls) != 1]
        if repeated:
            raise ValueError(
                f"{repeated[0]} was called {len(self[repeated[0]])} times; capture a single forward pass, "
                "or take the call you want from maps[path]"
            )
        weights = [calls[0] for calls in matching.values()]
        shapes = {tuple(layer.shape) for layer in weights}
        if len(shapes) > 1:
            raise ValueError(f"pattern {pattern!r} matches maps of different shapes: {sorted(shapes)}")
        return torch.stack(weights)

    def _captured(self) -> str:
        return ", ".join(map(repr, self)) or "there are none yet; call the model inside the block"


@contextmanager
def capture_attention(model: nn.Module) -> Iterator[AttentionMaps]:
    """Collect the attention weights that `model` computes inside the block.

    Attention then takes the explicit path, which gives the same output. The weights are detached copies;
    nothing is left behind on the modules.

        with capture_attention(model) as maps:
            model(source, target)
        maps["encoder.layers.0.attention"][0]  # (batch, heads, query, key)

    Raises:
        TypeError: `model` is not a module.
        ValueError: none of its modules is an `ObservableAttention`, so nothing could ever be captured.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    paths = {module: path for path, module in model.named_modules()}
    if not any(isinstance(module, ObservableAttention) for module in paths):
        raise ValueError(
            "model must hold an attention module of this library (an ObservableAttention, such as "
            f"MultiHeadAttention), got a {type(model).__name__} without one; PyTorch's own attention "
            "does not report its weights. To watch whatever runs, use attention.observe_weights"
        )
    maps = AttentionMaps()

    def observe(module: nn.Module, weights: Tensor) -> None:
        if module in paths:
            maps.setdefault(paths[module], []).append(weights.detach().clone())

    with observe_weights(observe):
        yield maps


def show_source(thing: Callable[..., object] | type, *, docstring: bool = False) -> None:
    """Show the source of a function, method or class in a notebook, and say which file it stands in.

    Args:
        thing: anything that has Python source.
        docstring: show docstrings too.

    Raises:
        TypeError: `thing` has no Python source, as built-in functions have none.
    """
    try:
        source = textwrap.dedent(inspect.getsource(thing))
    except (TypeError, OSError):
        raise TypeError(
            f"thing must be a function, method or class written in Python, got {thing!r}"
        ) from None
    if not docstring:
        source = without_docstrings(source)
    file = (inspect.getmodule(thing) or thing).__name__.replace(".", "/") + ".py"
    display(Markdown(f"`{file}`\n\n```python\n{source.rstrip()}\n```"))


def without_docstrings(source: str) -> str:
    """The same code, comments included, less its docstrings."""
    lines = source.splitlines()
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if ast.get_docstring(node, clean=False) is None:
            continue
        first, last = node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno
        if len(node.body) == 1:  # nothing would be left: keep the function whole
            continue
        indent = lines[first - 1].encode()[: node.body[0].col_offset]
        if indent.strip() or node.body[1].lineno == last:  # other code shares its lines
            continue
        dropped.update(range(first, last + 1))
        if last < len(lines) and not lines[last].strip():  # the blank line behind it
            dropped.add(last + 1)
    return "\n".join(line for number, line in enumerate(lines, start=1) if number not in dropped)


def verdict(claim: str, verdict: str, evidence: str) -> None:
    """Say what the measurement of a claim found: shown in the notebook, recorded for the page "Claims".

    Args:
        claim: the claim's id in book/claims.yml, such as `original-path-length`.
        verdict: one of `holds`, `partly`, `fails`, `beyond-scale`.
        evidence: the measured figures in a sentence.

    Raises:
        ValueError: `verdict` is none of the four, or `evidence` is empty.
    """
    if verdict not in VERDICTS:
        raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}; got {verdict!r}")
    if not evidence.strip():
        raise ValueError(f"evidence must say what was measured for {claim!r}, got an empty text")
    card = (
        f'<div class="tx-verdict tx-{verdict}"><strong title="{VERDICTS[verdict]}">{verdict}</strong> '
        f"<code>{html.escape(claim)}</code> {html.escape(evidence)}</div>"
    )
    display(
        {"text/plain": f"{verdict}: {claim}: {evidence}", "text/html": card},
        raw=True,
        metadata={"claim": {"id": claim, "verdict": verdict, "evidence": evidence}},
    )
