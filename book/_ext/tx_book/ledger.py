"""The ledger of claims: what `book/claims.yml` says the book tests, and what the stored chapters measured.

    claims.yml     chapter -> {title, notebook, claims: [{id, claim}]}
    a notebook     cells tagged `claim:<id>`, whose output's metadata holds {"claim": {id, verdict, evidence}}

Nothing here needs Sphinx, so the tests of the notebooks read the ledger through it, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

# The verdicts a claim can get, and what each tells the reader.
VERDICTS = {
    "holds": "measured, and true as stated",
    "partly": "true under a condition that the cell shows",
    "fails": "measured, and not true as stated",
    "beyond-scale": "needs more scale than a reader has; the part that can be measured is",
}


@dataclass(frozen=True)
class Claim:
    """Something commonly said, which a chapter puts to the test."""

    id: str
    text: str


@dataclass(frozen=True)
class Chapter:
    """The claims that one notebook measures. `notebook` is relative to the book's root, without suffix."""

    key: str
    title: str
    notebook: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Verdict:
    """What a cell of a stored notebook found. `tagged` tells whether that cell carries the claim's tag."""

    id: str
    verdict: str
    evidence: str
    tagged: bool


def load_ledger(path: Path) -> list[Chapter]:
    """Read the ledger. Raises ValueError naming the entry that isn't as it must be."""
    chapters, seen = [], set()
    for key, entry in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).items():
        if not isinstance(entry, dict) or set(entry) != {"title", "notebook", "claims"}:
            raise ValueError(f"{path.name}: chapter {key!r} must have exactly title, notebook and claims")
        claims = []
        for item in entry["claims"]:
            if not isinstance(item, dict) or set(item) != {"id", "claim"}:
                raise ValueError(
                    f"{path.name}: each claim of {key!r} must have exactly id and claim; got {item!r}"
                )
            if not str(item["id"]).startswith(f"{key}-"):
                raise ValueError(f"{path.name}: the id {item['id']!r} must begin with its chapter, {key}-")
            if item["id"] in seen:
                raise ValueError(f"{path.name}: the id {item['id']!r} occurs twice")
            seen.add(item["id"])
            claims.append(Claim(item["id"], " ".join(str(item["claim"]).split())))
        chapters.append(Chapter(key, entry["title"], entry["notebook"], tuple(claims)))
    return chapters


def read_notebook(path: Path) -> dict[str, Any]:
    """The JSON of a stored notebook."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def cell_tags(cell: dict[str, Any]) -> list[str]:
    """The tags of a cell, none when it has none."""
    tags: list[str] = cell.get("metadata", {}).get("tags", [])
    return tags


def stored_verdicts(notebook: dict[str, Any]) -> list[Verdict]:
    """Every verdict recorded in a notebook's outputs, in order."""
    found = []
    for cell in notebook.get("cells", []):
        for output in cell.get("outputs", []):
            claim = output.get("metadata", {}).get("claim")
            if claim:
                name = str(claim.get("id", ""))
                tagged = f"claim:{name}" in cell_tags(cell)
                found.append(
                    Verdict(name, str(claim.get("verdict", "")), str(claim.get("evidence", "")), tagged)
                )
    return found


def problems(chapters: list[Chapter], verdicts: dict[str, list[Verdict]]) -> Iterator[str]:
    """What is wrong between the ledger and the verdicts of each notebook (`Chapter.notebook` -> verdicts).

    Every claim needs one verdict, of a known kind, with evidence, in a cell of its own chapter that carries
    its tag; and every verdict needs a claim.
    """
    for chapter in chapters:
        known = {claim.id for claim in chapter.claims}
        stored = verdicts.get(chapter.notebook, [])
        for claim in chapter.claims:
            count = sum(verdict.id == claim.id for verdict in stored)
            if count != 1:
                yield f"claim {claim.id!r} must have one verdict in {chapter.notebook}; it has {count}"
        for verdict in stored:
            if verdict.id not in known:
                yield f"{chapter.notebook} records a verdict on {verdict.id!r}, not a claim of the ledger"
            if verdict.verdict not in VERDICTS:
                choices = ", ".join(VERDICTS)
                yield f"the verdict on {verdict.id!r} is {verdict.verdict!r}; it must be one of {choices}"
            if not verdict.evidence.strip():
                yield f"the verdict on {verdict.id!r} must state its evidence"
            if not verdict.tagged:
                yield f"the cell with the verdict on {verdict.id!r} must carry the tag 'claim:{verdict.id}'"
