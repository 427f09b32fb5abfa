"""The library's docstrings on the API page.

They are plain text: prose with `code` in backticks, sections in Google's style ("Args:", "Raises:"), formulas
and little drawings as blocks of their own. reStructuredText would read those blocks as quotations, single
backticks as titles and every | and * as markup. `as_rst` says what is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTION = re.compile(r"^(Args|Attributes|Example|Examples|Note|Notes|Raises|Returns|Warns|Yields):$")
# Code, and emphasis: what prose means as markup.
MARKUP = re.compile(r"(``.+?``|`[^`]+`|(?<![\w*])\*[^\s*](?:[^*]*[^\s*])?\*(?![\w*]))")
# Two columns: every line has a gap of at least three spaces inside.
COLUMNS = re.compile(r"^\s*\S.*?\S?\s{3,}\S")


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Runs of lines without an empty one between them, and each empty line by itself."""
    run: list[str] = []
    for line in lines:
        if line.strip():
            run.append(line)
            continue
        if run:
            yield run
        run = []
        yield [""]
    if run:
        yield run


def _prose(line: str) -> str:
    """One line of prose: code in double backticks, *emphasis*, and nothing else taken for markup."""
    parts = MARKUP.split(line)
    for index, part in enumerate(parts):
        if index % 2:
            single = part.startswith("`") and not part.startswith("``")
            parts[index] = f"`{part}`" if single else part
        else:
            parts[index] = re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", part)
    return "".join(parts)


def as_rst(lines: list[str]) -> list[str]:
    """A docstring's lines as reStructuredText."""
    done: list[str] = []
    in_section = in_block = False
    for run in _paragraphs(lines):
        if run == [""]:
            done.append("")
            continue
        indented = run[0].startswith(" ")
        if not indented:
            in_section = bool(SECTION.match(run[0].strip()))
        block = not in_section and (indented or (len(run) > 1 and all(map(COLUMNS.match, run))))
        if block:
            if not in_block:
                done += [".. code-block:: text", ""]
            done += run if indented else [f"    {line}" for line in run]
        else:
            done += [_prose(line) for line in run]
        in_block = block
    return done


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring in place; runs before napoleon turns its sections into fields."""
    if name.startswith("tx_from_scratch"):
        lines[:] = as_rst(lines)


def setup(app: Sphinx) -> None:
    """Connect ahead of napoleon (priority 500)."""
    app.connect("autodoc-process-docstring", process, priority=400)
