"""The built book, a server for it on this machine, and a browser that reaches nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from chromium import ARGUMENTS, HELP, find
from playwright.sync_api import Browser, Page, Route, sync_playwright
from serving import ROOT, build, serve


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


@contextmanager
def visiting(browser: Browser) -> Iterator[Open]:
    """A function that opens an address with the network shut, apart from the host that serves it."""
    contexts = []

    def open_page(url: str, *, javascript: bool = True) -> Visit:
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, java_script_enabled=javascript, reduced_motion="reduce"
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
        result.page.on("pageerror", lambda error: result.errors.append(str(error)))
        result.page.on(
            "console", lambda line: result.errors.append(line.text) if line.type == "error" else None
        )
        result.page.goto(url, wait_until="load")
        if javascript:
            # The page's own scripts have run by now, so MathJax, where there is some, has made its promise.
            result.page.evaluate("window.MathJax?.startup?.promise")
        result.page.wait_for_load_state("networkidle")
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
