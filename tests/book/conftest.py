"""The built book, a server for it on this machine, and a browser that reaches nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np
import pytest
import yaml
from chromium import ARGUMENTS, HELP, find
from playwright.sync_api import Browser, Page, Request, Route, sync_playwright
from serving import ROOT, build, serve
from static_page import STATIC, widget_page


@pytest.fixture(scope="session")
def html() -> Path:
    """The book's folder; built first when its sources have changed since the last build."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "book" / "build.py")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return build.HTML


@dataclass
class MiniBook:
    """A book of the few pages that a test writes, with the project's own configuration and extension."""

    root: Path
    config: dict[str, Any]
    pages: list[str] = field(default_factory=list)

    def page(self, name: str, text: str) -> None:
        """Add a page (the first one is the root)."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.pages.append(str(Path(name).with_suffix("").as_posix()))

    def notebook(self, name: str, cells: list[dict[str, Any]], **metadata: Any) -> None:
        """Add a stored notebook."""
        content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
        self.page(name, json.dumps(content))

    def build(self) -> tuple[int, str]:
        """Build as the project does. Returns the status, and what was printed."""
        toc: dict[str, Any] = {"format": "jb-book", "root": self.pages[0]}
        if self.pages[1:]:
            toc["chapters"] = [{"file": page} for page in self.pages[1:]]
        (self.root / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
        (self.root / "_config.yml").write_text(yaml.safe_dump(self.config), encoding="utf-8")
        command = ["from jupyter_book.cli.main import main; main()", "build", str(self.root), "-W", "-n"]
        result = subprocess.run(
            [sys.executable, "-c", *command, "--keep-going"], capture_output=True, text=True, check=False
        )
        return result.returncode, result.stdout + result.stderr

    def built(self, name: str) -> str:
        """The HTML of a built page."""
        return (self.root / "_build" / "html" / name).read_text(encoding="utf-8")


@pytest.fixture
def mini_book(tmp_path: Path) -> MiniBook:
    """An empty book with the project's configuration."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    for folder in ("_ext", "images"):
        shutil.copytree(
            ROOT / "book" / folder, tmp_path / "book" / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    (tmp_path / "book" / "references.bib").write_text("", encoding="utf-8")
    return MiniBook(tmp_path, config)


@pytest.fixture(scope="session")
def address(html: Path) -> Iterator[str]:
    """Where the built book is served."""
    yield from serve(html)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium. Without one the tests are skipped, but in continuous integration they fail."""
    path = find()
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(HELP)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


@dataclass
class Visit:
    """An open page, and what went wrong on it."""

    page: Page
    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


Open = Callable[..., Visit]


def network_watch(page: Page, *, quiet: float = 0.4, patience: float = 60) -> Callable[[], None]:
    """A function that waits until nothing has been on its way to the page for `quiet` seconds.

    Playwright's own "networkidle" counts what a page makes of itself too, such as a widget's module; on a
    busy machine it was seen to wait until it gave up.
    """
    waiting: dict[Request, str] = {}
    changed = time.monotonic()

    def note(request: Request, begins: bool) -> None:
        nonlocal changed
        if not request.url.startswith(("data:", "blob:")):
            changed = time.monotonic()
            waiting.pop(request, None)
            if begins:
                waiting[request] = request.url

    page.on("request", lambda request: note(request, True))
    page.on("requestfinished", lambda request: note(request, False))
    page.on("requestfailed", lambda request: note(request, False))

    def idle() -> None:
        end = time.monotonic() + patience
        while waiting or time.monotonic() - changed < quiet:
            page.wait_for_timeout(20)
            if time.monotonic() > end:
                raise TimeoutError(f"still on their way after {patience} s: {sorted(waiting.values())}")

    return idle


@contextmanager
def visiting(browser: Browser) -> Iterator[Open]:
    """A function that opens an address with the network shut, apart from the host that serves it."""
    contexts = []

    def open_page(url: str, *, javascript: bool = True, width: int = 1280, dark: bool = False) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            java_script_enabled=javascript,
            reduced_motion="reduce",
            color_scheme="dark" if dark else "light",
            has_touch=width < 500,
        )
        contexts.append(context)
        host = "/".join(url.split("/")[:3]) + "/"
        result = Visit(context.new_page())

        def gate(route: Route) -> None:
            if route.request.url.startswith((host, "data:", "blob:")):
                route.continue_()
            else:
                result.foreign.append(route.request.url)
                route.abort()

        context.route("**/*", gate)
        idle = network_watch(result.page)
        result.page.on("pageerror", lambda error: result.errors.append(str(error)))
        result.page.on(
            "console", lambda line: result.errors.append(line.text) if line.type == "error" else None
        )
        result.page.goto(url, wait_until="load")
        if javascript:
            # The page's own scripts have run by now, so MathJax, where there is some, has made its promise.
            result.page.evaluate("window.MathJax?.startup?.promise")
        idle()
        return result

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Open addresses for one test."""
    with visiting(browser) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest, browser: Browser, address: str) -> Iterator[Visit]:
    """A page of the book, opened once for all the tests that only look at it."""
    with visiting(browser) as open_page:
        yield open_page(f"{address}/{request.param}")


@pytest.fixture
def show(tmp_path: Path, visit: Open) -> Iterator[Open]:
    """A function that opens a page with the widgets given, mounted by the book's runtime."""
    for source in STATIC:
        (tmp_path / source.name).write_bytes(source.read_bytes())
    server = serve(tmp_path)
    address = next(server)

    def open_page(*widgets: ipywidgets.DOMWidget, **options: Any) -> Visit:
        (tmp_path / "page.html").write_text(widget_page(*widgets), encoding="utf-8")
        return visit(f"{address}/page.html", **options)

    yield open_page
    next(server, None)


# Arrays travel to the browser and back as bytes: as JSON a large table would take seconds.
CALL = """async ([source, what, values]) => {
    window.loaded ??= new Map();
    if (!loaded.has(source)) {
        const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
        loaded.set(source, (await import(address)).default);
        URL.revokeObjectURL(address);
    }
    const { compute } = loaded.get(source);
    const decode = (value) => {
        if (value === null || typeof value !== "object") return value;
        if (Array.isArray(value)) return value.map(decode);
        if (value.type === undefined) {
            return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, decode(part)]));
        }
        const bytes = Uint8Array.from(atob(value.bytes), (character) => character.charCodeAt(0));
        return new globalThis[value.type](bytes.buffer);
    };
    const encode = (value) => {
        if (ArrayBuffer.isView(value)) {
            const bytes = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
            let text = "";
            for (let start = 0; start < bytes.length; start += 8192) {
                text += String.fromCharCode(...bytes.subarray(start, start + 8192));
            }
            return { type: value.constructor.name, bytes: btoa(text) };
        }
        if (value instanceof Map) return encode(Object.fromEntries(value));
        if (Array.isArray(value)) return value.map(encode);
        if (value === null || typeof value !== "object") return value;
        return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, encode(part)]));
    };
    const called = compute[what] ?? eval(what)(compute);
    return encode(called(...values.map(decode)));
}"""
ARRAY_TYPES = {"Float32Array": "<f4", "Float64Array": "<f8", "Uint8Array": "u1", "Uint16Array": "<u2"}
ARRAY_TYPES |= {"Int32Array": "<i4", "Uint32Array": "<u4"}


def to_browser(value: Any) -> Any:
    """Arrays as their type and bytes."""
    if isinstance(value, np.ndarray):
        name = next(name for name, code in ARRAY_TYPES.items() if np.dtype(code) == value.dtype)
        return {"type": name, "bytes": b64encode(value.tobytes()).decode()}
    if isinstance(value, dict):
        return {key: to_browser(part) for key, part in value.items()}
    return [to_browser(part) for part in value] if isinstance(value, list) else value


def from_browser(value: Any) -> Any:
    """The reverse, inside lists and dicts too."""
    if isinstance(value, dict) and value.keys() == {"type", "bytes"}:
        return np.frombuffer(b64decode(value["bytes"]), ARRAY_TYPES[value["type"]])
    if isinstance(value, dict):
        return {key: from_browser(part) for key, part in value.items()}
    return [from_browser(part) for part in value] if isinstance(value, list) else value


@pytest.fixture(scope="session")
def compute(browser: Browser) -> Iterator[Callable[..., Any]]:
    """A function that calls a widget's own functions in the browser, those that it draws from itself.

    compute(Widget, "name", *values) calls the function of that name in the script's `compute`. For many calls
    at once, compute(Widget, "({ name }) => (values) => values.map(name)", values).
    """
    page = browser.new_page()
    yield lambda widget, what, *values: from_browser(
        page.evaluate(CALL, [widget._esm, what, [to_browser(value) for value in values]])
    )
    page.close()
