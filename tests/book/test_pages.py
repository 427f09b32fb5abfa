"""Every page of the built book, opened in Chromium with the network shut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.browser


def pages() -> list[str]:
    """The pages that the table of contents names, and those that Sphinx adds."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]
    return [f"{file}.html" for file in files] + ["genindex.html", "py-modindex.html", "search.html"]


def chapters() -> list[str]:
    """The pages made from notebooks."""
    return [page for page in pages() if page.startswith("chapters/")]


each_page = pytest.mark.parametrize("opened", pages(), indirect=True)
each_chapter = pytest.mark.parametrize("opened", chapters(), indirect=True)


def test_every_built_page_is_tested(html: Path) -> None:
    """No page is built that the tests below don't open; index.html only forwards to the preface."""
    built = {path.relative_to(html).as_posix() for path in html.rglob("*.html")}
    built = {name for name in built if not name.startswith("_static/")}
    assert built == {*pages(), "index.html"}


@each_page
def test_page_loads_alone(opened: Any) -> None:
    """Nothing is asked of another host, no script fails, and the mathematics is set."""
    page = opened.page
    assert opened.foreign == []
    assert opened.errors == []
    assert page.locator("mjx-merror").count() == 0
    unset = """() => [...document.querySelectorAll("article .math")]
        .filter((element) => !element.querySelector("mjx-container"))
        .map((element) => element.textContent)"""
    assert page.evaluate(unset) == []
    assert page.get_by_text("Loading widget").count() == 0


@each_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible(opened: Any, scheme: str) -> None:
    """axe-core finds no serious and no critical violation, in either theme."""
    page = opened.page
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if scheme == "dark":  # only colors depend on it
        options["runOnly"] = ["color-contrast"]
    found = Axe().run(page, options=options).response["violations"]
    serious = [
        (rule["id"], [node["target"] for node in rule["nodes"]][:5], rule["nodes"][0]["failureSummary"])
        for rule in found
        if rule["impact"] in {"serious", "critical"}
    ]
    assert serious == []


@each_page
def test_page_fits_a_phone(opened: Any) -> None:
    """At 390 pixels nothing makes the page scroll sideways."""
    page = opened.page
    page.set_viewport_size({"width": 390, "height": 844})
    too_wide = """() => {
        const width = document.scrollingElement.scrollWidth;
        if (width <= innerWidth) return [];
        return [...document.querySelectorAll("body *")]
            .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
            .map((element) => `${element.tagName}.${element.className}`)
            .slice(0, 10)
            .concat(`width ${width}`);
    }"""
    found = page.evaluate(too_wide)
    page.set_viewport_size({"width": 1280, "height": 900})
    assert found == []


@pytest.mark.parametrize("name", [page for page in pages() if page != "search.html"])  # it is a script
def test_page_reads_without_scripts(name: str, address: str, visit: Any) -> None:
    """With JavaScript off the text is there, and every picture says what it shows."""
    page = visit(f"{address}/{name}", javascript=False).page
    assert page.locator("article h1").is_visible()
    for picture in page.locator("article img:not(.toggler)").all():
        alternative = picture.get_attribute("alt") or ""
        assert alternative, f"no alternative text: {picture.get_attribute('src')}"
        assert not alternative.endswith((".png", ".svg")), alternative
        assert picture.is_visible()


@each_chapter
def test_bertviz_is_drawn(opened: Any) -> None:
    """Every BertViz frame of a chapter holds a drawing."""
    frames = opened.page.locator("iframe[srcdoc*='bertviz']")
    for index in range(frames.count()):
        frames.nth(index).scroll_into_view_if_needed()
        drawing = frames.nth(index).content_frame.locator("svg rect, svg line, svg path, svg text")
        drawing.first.wait_for(state="attached", timeout=20_000)
    assert opened.foreign == []


@each_chapter
def test_every_widget_is_alive(opened: Any) -> None:
    """Every widget of a chapter is mounted, and none had to give up."""
    page = opened.page
    views = page.locator(".tx-widget")
    if views.count():
        page.wait_for_function("document.documentElement.dataset.txWidgets === 'ready'", timeout=20_000)
    assert page.locator(".tx-widget-failed").all_inner_texts() == []
    assert page.locator(".tx-widget-mounted").count() == views.count()


def test_no_repository_link_while_the_address_is_unknown(html: Path) -> None:
    """Buttons that would lead nowhere are not there; once the address is set, test_extension holds."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    if config["repository"]["url"]:
        pytest.skip("the repository's address is set")
    text = (html / "book" / "setup.html").read_text(encoding="utf-8")
    for button in ("source-repository", "source-issues", "source-edit", "launch-buttons"):
        assert button not in text
