"""Every page of the built book, opened in Chromium with the network shut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

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


# Contrast is what axe-core takes longest for, minutes on a page of code. It depends on the look of a text
# alone, so of all texts in an article that look the same one stays visible.
SHOW_ONE_OF_EACH_LOOK = """() => {
    const surroundings = (element) => {
        let ground = "";
        let opacity = 1;
        for (let at = element; at; at = at.parentElement) {
            const style = getComputedStyle(at);
            opacity *= style.opacity;
            const filled = style.backgroundImage !== "none" || !/, 0\\)$/.test(style.backgroundColor);
            if (!ground && filled) ground = style.backgroundImage + style.backgroundColor;
        }
        return `${ground} ${opacity}`;
    };
    const holdsText = ({ childNodes }) =>
        [...childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    const texts = [...document.querySelectorAll("article *")].filter(
        (element) => element instanceof HTMLElement && holdsText(element) && element.checkVisibility(),
    );
    const looks = new Set();
    for (const element of texts) {
        const { color, fontSize, fontWeight } = getComputedStyle(element);
        const look = [color, fontSize, fontWeight, surroundings(element)].join();
        element.style.setProperty("visibility", looks.has(look) ? "hidden" : "visible", "important");
        looks.add(look);
    }
}"""
SHOW_ALL = """() => {
    for (const element of document.querySelectorAll("article *")) element.style.removeProperty("visibility");
}"""


def serious(page: Page, options: dict[str, Any]) -> list[Any]:
    """What axe-core finds that keeps people out: the rule, the elements, and what is wrong."""
    found = Axe().run(page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [
        (rule["id"], [node["target"] for node in rule["nodes"]][:5], rule["nodes"][0]["failureSummary"])
        for rule in found
        if rule["impact"] in {"serious", "critical"}
    ]


def poor_contrasts(page: Page) -> list[Any]:
    """Texts that axe-core finds hard to read, one of those that look the same."""
    page.evaluate(SHOW_ONE_OF_EACH_LOOK)
    found = serious(page, {"runOnly": ["color-contrast"]})
    page.evaluate(SHOW_ALL)
    return found


@each_page
def test_page_is_accessible(opened: Any) -> None:
    """axe-core finds no serious and no critical violation; contrast has a test of its own."""
    assert serious(opened.page, {"rules": {"color-contrast": {"enabled": False}}}) == []


@each_page
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_contrast(opened: Any, scheme: str) -> None:
    """In either theme."""
    page = opened.page
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(f"document.documentElement.dataset.theme === '{scheme}'")
    assert poor_contrasts(page) == []


def test_one_faint_word_is_found(visit: Any, address: str) -> None:
    """Of many texts those are checked that look different: by color, by ground, or because they are faint."""
    page = visit(f"{address}/book/setup.html").page
    assert poor_contrasts(page) == []
    page.evaluate("""() => {
        const words = Array.from({ length: 30 }, (_, index) => `<p id="w${index}">word</p>`);
        document.querySelector("article").insertAdjacentHTML("beforeend", words.join(""));
        w7.style.color = "#bbb";
        w15.style.background = "#333";
        w22.style.opacity = 0.3;
    }""")
    (found,) = poor_contrasts(page)
    assert found[:2] == ("color-contrast", [["#w7"], ["#w15"], ["#w22"]])


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
