"""The Sphinx extension, on small books built with the project's own configuration."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sphinx.errors import ConfigError
from tx_book.docstrings import as_rst
from tx_book.ledger import Chapter, Claim, Verdict, load_ledger, problems
from tx_book.repository import check_address, install_line

ROOT = Path(__file__).resolve().parents[2]
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def png(shade: int) -> str:
    """A small picture, base64."""
    buffer = io.BytesIO()
    Image.new("L", (8, 8), shade).save(buffer, "png")
    return base64.b64encode(buffer.getvalue()).decode()


def code(source: str, *outputs: dict[str, Any], tags: tuple[str, ...] = ()) -> dict[str, Any]:
    """A stored code cell."""
    shared = {"id": f"cell{abs(hash(source)) % 10**8}", "metadata": {"tags": list(tags)}}
    return {"cell_type": "code", "execution_count": 1, "source": source, "outputs": list(outputs), **shared}


def text(source: str) -> dict[str, Any]:
    """A Markdown cell."""
    return {"cell_type": "markdown", "id": "title", "metadata": {}, "source": source}


def shown(data: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A display output."""
    return {"output_type": "display_data", "data": data, "metadata": metadata}


def measured(
    name: str, verdict: str = "holds", evidence: str = "d_model = 64, *all* of it"
) -> dict[str, Any]:
    """A verdict's output."""
    record = {"id": name, "verdict": verdict, "evidence": evidence}
    return shown({"text/plain": f"{name}: {verdict}"}, claim=record)


LEDGER = """\
demo:
  title: A demonstration
  notebook: chapter
  claims:
    - id: demo-one
      claim: One of $d_k$ is true.
    - id: demo-two
      claim: Another is, too.
"""


def test_outputs_claims_and_repository(mini_book: Any) -> None:
    """A page with every kind of output, a page of claims, and the links that a known repository gives."""
    mini_book.config["repository"]["url"] = "https://github.com/somebody/something"
    placeholder = (
        "<div><iframe title='view' srcdoc=\"&lt;script&gt;/*@@tx:d3@@*/&lt;/script&gt;\"></iframe></div>"
    )
    widget = {WIDGET_VIEW: {"model_id": "m"}, "image/png": png(200), "text/plain": "Widget()"}
    mini_book.page("start.md", "# Start\n\n```{hosted-install}\n```\n\nSee {ref}`one <claim-demo-one>`.\n")
    mini_book.notebook(
        "chapter.ipynb",
        [
            text("# Chapter"),
            code("figure", shown({"image/png": png(10)}, **{"image/png": {"alt": 'Black, "quite"'}})),
            code("widget", shown(widget, **{"image/png": {"alt": "A gray square"}})),
            code("view", shown({"text/html": placeholder})),
            code("one", measured("demo-one"), tags=("claim:demo-one",)),
            code("two", measured("demo-two", "fails"), tags=("claim:demo-two",)),
        ],
        **KERNEL,
        widgets={WIDGET_STATE: {"state": {"m": {"model_name": "AnyModel", "state": {}}}}},
    )
    (mini_book.root / "claims.yml").write_text(LEDGER, encoding="utf-8")
    mini_book.page("claims.md", "# Claims\n\n```{claims}\n```\n")
    status, log = mini_book.build()
    assert status == 0, log

    chapter = mini_book.built("chapter.html")
    assert 'alt="Black, &quot;quite&quot;"' in chapter
    assert 'alt="A gray square" class="tx-widget-picture"' in chapter
    assert WIDGET_VIEW in chapter
    assert "tx-widgets.js" in chapter
    assert "/*@@tx:" not in chapter
    assert "https://d3js.org v5" in chapter
    assert "colab.research.google.com/github/somebody/something/blob/main/chapter.ipynb" in chapter
    assert "mybinder.org/v2/gh/somebody/something/main?urlpath=lab/tree/chapter.ipynb" in chapter
    for gone in ("thebe", "html-manager", "require.min.js", "jsdelivr"):
        assert gone not in chapter

    start = mini_book.built("start.html")
    assert "git+https://github.com/somebody/something@main" in start.replace("<wbr>", "")
    for link in ("something/edit/main/start.md", "something/issues/new"):
        assert link in start
    assert 'href="chapter.html#claim-demo-one"' in start

    claims = mini_book.built("claims.html")
    assert 'href="chapter.html#claim-demo-one"' in claims
    assert '<span class="tx-badge tx-fails">fails</span>' in claims
    assert "d_model = 64, *all* of it" in claims
    assert 'class="math notranslate' in claims


def test_faulty_claims_fail_the_build(mini_book: Any) -> None:
    """A claim that nothing measured and a verdict on no claim are named, and the build fails."""
    mini_book.page("start.md", "# Claims\n\n```{claims}\n```\n")
    mini_book.notebook(
        "chapter.ipynb",
        [
            text("# Chapter"),
            code("1", measured("demo-one"), tags=("claim:demo-one",)),
            code("2", measured("demo-three"), tags=("claim:demo-three",)),
        ],
        **KERNEL,
    )
    (mini_book.root / "claims.yml").write_text(LEDGER, encoding="utf-8")
    status, log = mini_book.build()
    assert status != 0
    assert "claim 'demo-two' must have one verdict in chapter; it has 0" in log
    assert "verdict on 'demo-three'" in log


def test_foreign_request_fails_the_build(mini_book: Any) -> None:
    """The build names the page and the address."""
    away = "https://elsewhere.example/picture.png"
    mini_book.page("start.md", f'# Start\n\n<img src="{away}" alt="a picture">\n')
    status, log = mini_book.build()
    assert status != 0
    assert f"start.html: img src asks {away}" in log


CHAPTER = Chapter("demo", "A demonstration", "chapter", (Claim("demo-one", "One."),))


@pytest.mark.parametrize(
    ("verdicts", "message"),
    [
        ([], "must have one verdict"),
        ([Verdict("demo-one", "holds", "1", True)] * 2, "it has 2"),
        ([Verdict("demo-one", "true", "1", True)], "must be one of holds, partly, fails, beyond-scale"),
        ([Verdict("demo-one", "holds", " ", True)], "must state its evidence"),
        ([Verdict("demo-one", "holds", "1", False)], "must carry the tag 'claim:demo-one'"),
    ],
)
def test_ledger_problem_is_named(verdicts: list[Verdict], message: str) -> None:
    """Each way in which ledger and notebook can disagree."""
    assert any(message in problem for problem in problems([CHAPTER], {"chapter": verdicts}))


def test_sound_ledger_has_no_problem() -> None:
    """One verdict of a known kind, with evidence, in its tagged cell."""
    assert list(problems([CHAPTER], {"chapter": [Verdict("demo-one", "partly", "1", True)]})) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("demo-two", "demo-one"), "occurs twice"),
        (("demo-two", "other-two"), "must begin with its chapter"),
        (("title:", "name:"), "must have exactly title, notebook and claims"),
        (("claim: Another", "note: Another"), "must have exactly id and claim"),
    ],
)
def test_malformed_ledger_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    """Each mistake in the file is an error that names the entry."""
    path = tmp_path / "claims.yml"
    path.write_text(LEDGER.replace(*change), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_ledger(path)


def test_ledger_and_library_know_the_same_verdicts() -> None:
    """The extension reads what `inspection.verdict` writes."""
    from tx_book.ledger import VERDICTS

    from tx_from_scratch import inspection

    assert set(VERDICTS) == set(inspection.VERDICTS)


@pytest.mark.parametrize("address", ["github.com/a/b", "http://github.com/a/b", "https://github.com/a", "x"])
def test_unusable_repository_is_refused(address: str) -> None:
    """A value that no link can be made of, such as one without https."""
    with pytest.raises(ConfigError, match=r"https://github\.com/OWNER/NAME"):
        check_address(address)


@pytest.mark.parametrize(
    "address", ["https://github.com/a/b", "https://github.com/a/b/", "https://github.com/a/b.git"]
)
def test_repository_spellings(address: str) -> None:
    """The address as people copy it."""
    assert check_address(address) == "https://github.com/a/b"
    assert check_address("") == ""


def test_install_line_while_the_address_is_unknown() -> None:
    """A stand-in that nobody mistakes for an address."""
    assert (
        install_line("", "main") == '%pip install "tx_from_scratch[bertviz] @ git+ADDRESS_OF_THE_REPOSITORY"'
    )


def test_docstrings_are_read_as_plain_text() -> None:
    """Drawings and aligned lines stay as they are, sections are left to napoleon, prose is no markup."""
    docstring = """One line: log p(Y | X), 2*3, *this* and `code_`.

    a ─┐   a drawing
       │

name      meaning
other     thing

Args:
    x: a * of `things`.

        More on x.
"""
    assert (
        "\n".join(as_rst(docstring.split("\n")))
        == r"""One line: log p(Y \| X), 2\*3, *this* and ``code_``.

.. code-block:: text

    a ─┐   a drawing
       │

    name      meaning
    other     thing

Args:
    x: a \* of ``things``.

        More on x.
"""
    )
