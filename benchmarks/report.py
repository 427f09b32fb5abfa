"""Turn the results of a run into Markdown tables and put them into README.md, between its two markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

START, END = "<!-- results: start -->", "<!-- results: end -->"


def insert(page: str, tables: str) -> str:
    """The page with everything between the markers replaced.

    Raises:
        ValueError: the page does not hold each marker once, in order.
    """
    if page.count(START) != 1 or page.count(END) != 1 or page.index(START) > page.index(END):
        raise ValueError(f"the page must hold {START} and then {END}, each once")
    return f"{page.partition(START)[0]}{START}\n\n{tables}\n\n{END}{page.partition(END)[2]}"


def to_markdown(results: dict[str, Any]) -> str:
    """All tables of a run, each under its title, and a line that says where they come from."""
    parts = [_source(results["provenance"])]
    for name, (title, table) in TABLES.items():
        if name in results:
            parts += [f"### {title}", table(results[name])]
    return "\n\n".join(parts)


def _source(run: dict[str, Any]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
    load = "" if run["load_at_start"] is None else f", load {run['load_at_start']:.1f} at the start"
    return (
        f"{run['date']}, {run['processor']}, "
        f"{run['threads']} threads on {run['processors']} processors{load}; "
        f"Python {run['python']}, {versions}; commit {run['commit'] or 'unknown'}."
    )


def _ratios(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| implementation | time | middle half | processor time | parameters | differs in |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        low, high = row["quartiles"]
        parameters = "" if row["parameters"] is None else f"{row['parameters']:,}"
        # The reference's ratio to itself says nothing about how much it varies.
        spread = "" if row is rows[0] else f"{low:.2f} to {high:.2f}"
        lines.append(
            f"| {row['name']} | {row['ratio']:.2f} | {spread} | {row['processor_ratio']:.2f} "
            f"| {parameters} | {row['note']} |"
        )
    return "\n".join(lines)


def _paths(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| length | causal | time, explicit / fused | memory, explicit / fused | memory, fused |",
        "|--:|---|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['length']:,} | {'yes' if row['causal'] else 'no'} | {row['time_ratio']:.2f} "
            f"| {row['memory_ratio']:.1f} | {row['fused_mebibytes']:.1f} MiB |"
        )
    return "\n".join(lines)


TABLES: dict[str, tuple[str, Callable[[Sequence[dict[str, Any]]], str]]] = {
    "encoder_layer": ("One encoder layer, forward and backward", _ratios),
    "decoding": ("Greedy decoding of 200 tokens with a cache", _ratios),
    "rotation": ("Turning queries and keys by RoPE, forward and backward", _ratios),
    "language_model": ("A training step of a language model", _ratios),
    "attention_paths": ("Explicit against fused attention", _paths),
}
