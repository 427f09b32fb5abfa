"""The `claims` directive: the page of claims, generated from the verdicts stored in the chapters.

    ```{claims}
    ```

The ledger is claims.yml in the page's folder. A claim without a verdict, a verdict without a claim and
whatever else `ledger.problems` finds are warnings, so a build with -W fails on them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from tx_book.ledger import (
    VERDICTS,
    Chapter,
    Claim,
    Verdict,
    load_ledger,
    problems,
    read_notebook,
    stored_verdicts,
)

if TYPE_CHECKING:
    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)


def badge(verdict: str) -> nodes.inline:
    """A verdict as a label; the word itself says it, color only repeats it."""
    return nodes.inline(verdict, verdict, classes=["tx-badge", f"tx-{verdict}"])


class Claims(SphinxDirective):
    """Every claim of the ledger, by chapter: verdict, evidence, link to the cell that measured it."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """A summary table, then one section a chapter."""
        path = Path(self.env.relfn2path("claims.yml")[1])
        self.env.note_dependency(str(path))
        try:
            chapters = load_ledger(path)
        except (OSError, ValueError) as error:
            raise self.error(f"claims: {error}") from error
        stored: dict[str, list[Verdict]] = {}
        for chapter in chapters:
            notebook = Path(self.env.srcdir) / f"{chapter.notebook}.ipynb"
            self.env.note_dependency(str(notebook))
            if notebook.is_file():
                stored[chapter.notebook] = stored_verdicts(read_notebook(notebook))
        for problem in problems(chapters, stored):
            logger.warning("claims: %s", problem, location=self.get_location())
        by_claim = {v.id: v for verdicts in stored.values() for v in verdicts if v.verdict in VERDICTS}
        sections = [self.section(chapter, by_claim) for chapter in chapters]
        return [self.summary(chapters, by_claim), *sections]

    def summary(self, chapters: list[Chapter], verdicts: dict[str, Verdict]) -> nodes.table:
        """How many claims of each chapter got each verdict."""
        rows = []
        for chapter in chapters:
            counts = Counter(verdicts[claim.id].verdict for claim in chapter.claims if claim.id in verdicts)
            rows.append([chapter.title, *(str(counts[name]) for name in VERDICTS)])
        return table(["Chapter", *VERDICTS], rows)

    def section(self, chapter: Chapter, verdicts: dict[str, Verdict]) -> nodes.section:
        """One chapter's claims."""
        section = nodes.section(ids=[f"claims-{chapter.key}"], names=[f"claims-{chapter.key}"])
        section += nodes.title(chapter.title, chapter.title)
        entries = nodes.bullet_list(classes=["tx-claims"])
        for claim in chapter.claims:
            entries += self.entry(claim, verdicts.get(claim.id))
        section += entries
        return section

    def entry(self, claim: Claim, verdict: Verdict | None) -> nodes.list_item:
        """One claim: what is said, what was found, and where."""
        item = nodes.list_item(ids=[f"ledger-{claim.id}"])
        statement = nodes.Element()
        self.state.nested_parse(StringList([claim.text], source=claim.id), self.content_offset, statement)
        item += statement.children
        if verdict is None:
            item += nodes.paragraph("", "Not measured yet.")
            return item
        found = nodes.paragraph(classes=["tx-evidence"])
        link = addnodes.pending_xref(
            "",
            nodes.inline("", "the cell that measures it"),
            refdomain="std",
            reftype="ref",
            reftarget=f"claim-{claim.id}",
            refexplicit=True,
            refdoc=self.env.docname,
            refwarn=True,
        )
        found += [badge(verdict.verdict), nodes.Text(f" {verdict.evidence} "), nodes.Text("→ "), link]
        item += found
        return item


def table(header: list[str], rows: list[list[str]]) -> nodes.table:
    """A plain table with one header row."""

    def row(cells: list[str]) -> nodes.row:
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", cell)) for cell in cells))

    group = nodes.tgroup("", cols=len(header))
    group += [nodes.colspec(colwidth=1) for _ in header]
    group += [nodes.thead("", row(header)), nodes.tbody("", *map(row, rows))]
    return nodes.table("", group, classes=["tx-summary"])


def setup(app: Sphinx) -> None:
    """Register the directive."""
    app.add_directive("claims", Claims)
