"""Fail the build when a page would ask another host for anything.

`scan` reads a built book as a browser would: from every page it follows the scripts and style sheets that
the page loads, the frames in it (their `srcdoc` too) and the widget modules in its saved state, and
collects every address on another host. An ordinary link is no request, so `<a href>` may point anywhere.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sphinx.errors import SphinxError
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

logger = logging.getLogger(__name__)

WIDGET_STATE = "application/vnd.jupyter.widget-state+json"

# Attributes whose address is fetched when the element is parsed.
LOADED_ATTRIBUTES = {
    "audio": ("src",),
    "base": ("href",),
    "embed": ("src",),
    "frame": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src",),
    "input": ("src",),
    "object": ("data",),
    "script": ("src", "href", "xlink:href"),
    "source": ("src",),
    "track": ("src",),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
    "body": ("background",),
}
SOURCE_SETS = {"img": "srcset", "source": "srcset", "link": "imagesrcset"}
# Kinds of <link> that make a browser open a connection; `canonical`, `next`, `license` and the like don't.
LOADED_LINKS = {
    "stylesheet", "icon", "apple-touch-icon", "apple-touch-icon-precomposed", "mask-icon", "manifest",
    "preload", "prefetch", "prerender", "modulepreload", "preconnect", "dns-prefetch", "pingback",
}  # fmt: skip

CSS_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
CSS_ADDRESS = re.compile(
    r"""url\(\s*(?:"([^"]*)"|'([^']*)'|([^)"'\s]*))\s*\)|@import\s+(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE
)

_ADDRESS = r"""(?P<quote>["'`])(?P<address>(?:https?:|wss?:)?//[^"'`\s]+)(?P=quote)"""
# A script can build an address in ways that no reading finds (the browser tests shut the network for that).
# These are the ways that occur: calls and assignments that fetch, and string constants that name a file to
# load.
SCRIPT_REQUESTS = [
    re.compile(opening + _ADDRESS)
    for opening in (
        r"\bimport\s*\(\s*(?:/\*[^*]*\*/\s*)?",
        r"\bimport\s*",
        r"\bfrom\s*",
        r"\b(?:fetch|importScripts|sendBeacon)\s*\(\s*",
        r"\bnew\s+(?:Shared)?(?:Worker|Request|WebSocket|EventSource)\s*\(\s*",
        r"\.open\(\s*[\"'][A-Z]+[\"']\s*,\s*",
        r"\.(?:src|srcset|poster)\s*=\s*",
        r"\.setAttribute\(\s*[\"'](?:src|srcset)[\"']\s*,\s*",
        r"\brequire(?:js)?\s*\(\s*\[?\s*",
    )
]
LOADABLE = re.compile(
    r"""["'`](?P<address>(?:https?:)?//[^"'`\s<>]+\.(?:m?js|css|woff2?|ttf|otf|wasm))(?:[?#][^"'`\s]*)?["'`]"""
)
CONTENT_HOSTS = re.compile(
    r"""["'`](?P<address>(?:https?:)?//(?:[\w-]+\.)*(?:cdnjs\.cloudflare\.com|jsdelivr\.net|unpkg\.com|esm\.sh"""
    r"""|skypack\.dev|jspm\.io|bootcdn\.net|bootstrapcdn\.com|googleapis\.com|gstatic\.com)(?:/[^"'`\s]*)?)["'`]"""
)
# Script types that a browser runs; anything else in a <script> is data.
RUN_TYPES = {
    "",
    "module",
    "text/javascript",
    "application/javascript",
    "text/ecmascript",
    "application/ecmascript",
}
META_REFRESH = re.compile(r"url\s*=\s*[\"']?([^\"'\s;]+)", re.IGNORECASE)


class ForeignRequestError(SphinxError):
    """The built book would ask another host for something."""

    category = "Foreign request"


@dataclass(frozen=True, order=True)
class ForeignRequest:
    """One address on another host that a page would ask for.

    `page` and `file` are relative to the book's folder; they differ when the address stands in a script or
    style sheet that the page loads. `means` names what asks: "script src", "@import", "iframe srcdoc: img
    src", ...
    """

    page: str
    file: str
    means: str
    address: str

    def __str__(self) -> str:
        place = f"{self.page} (through {self.file})" if self.file != self.page else self.page
        return f"{place}: {self.means} asks {self.address}"


def is_foreign(address: str) -> bool:
    """Whether asking for `address` leaves the book's own host."""
    parts = urlsplit(html.unescape(address).strip().replace("\\", "/"))
    return bool(parts.netloc) or parts.scheme in {"http", "https", "ws", "wss", "ftp", "file"}


def style_addresses(css: str) -> Iterator[tuple[str, str]]:
    """Every (means, address) that a style sheet names, foreign or not."""
    for match in CSS_ADDRESS.finditer(CSS_COMMENT.sub("", css)):
        means = "@import" if match.group(0).lower().startswith("@import") else "url()"
        yield means, next((group for group in match.groups() if group), "")


def script_addresses(script: str) -> Iterator[tuple[str, str]]:
    """Every (means, address) on another host that a script's text would fetch."""
    seen = set()
    for pattern in (*SCRIPT_REQUESTS, LOADABLE, CONTENT_HOSTS):
        for match in pattern.finditer(script):
            if match["address"] not in seen:
                seen.add(match["address"])
                yield "script", match["address"]


@dataclass
class _Asset:
    means: str
    address: str


@dataclass
class _Page(HTMLParser):
    """Collects what a page asks for: foreign addresses, and local files to follow."""

    prefix: str = ""
    asked: list[_Asset] = field(default_factory=list)
    _script_type: str | None = None
    _in_style: bool = False
    _text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def ask(self, means: str, address: str | None) -> None:
        if address:
            self.asked.append(_Asset(self.prefix + means, address.strip()))

    def nested(self, means: str, document: str) -> None:
        inner = _Page(prefix=f"{self.prefix}{means}: ")
        inner.feed(document)
        inner.close()
        self.asked += inner.asked

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for name in LOADED_ATTRIBUTES.get(tag, ()):
            self.ask(f"{tag} {name}", given.get(name))
        if tag in SOURCE_SETS:
            for candidate in (given.get(SOURCE_SETS[tag]) or "").split(", "):
                self.ask(f"{tag} {SOURCE_SETS[tag]}", candidate.strip().split(" ")[0])
        if tag == "link" and LOADED_LINKS & set((given.get("rel") or "").lower().split()):
            self.ask(f"link {given['rel']}", given.get("href"))
        if tag == "meta" and (given.get("http-equiv") or "").lower() == "refresh":
            for address in META_REFRESH.findall(given.get("content") or ""):
                self.ask("meta refresh", address)
        for means, address in style_addresses(given.get("style") or ""):
            self.ask(f"style {means}", address)
        if tag == "iframe":
            if given.get("srcdoc"):
                self.nested("iframe srcdoc", given["srcdoc"] or "")
            if (given.get("src") or "").startswith("data:text/html"):
                self.nested("iframe src", unquote((given["src"] or "").partition(",")[2]))
        for name, value in attrs:
            if name.startswith("on") and value:
                self.script(value)
        if tag == "script":
            self._script_type = (given.get("type") or "").lower().strip()
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        if self._script_type is not None or self._in_style:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        text = "".join(self._text)
        if tag == "script" and self._script_type is not None:
            if self._script_type in RUN_TYPES:
                self.script(text)
            elif self._script_type == WIDGET_STATE:
                self.widget_state(text)
            elif self._script_type == "importmap":
                for means, address in _import_map(text):
                    self.ask(means, address)
            self._script_type = None
        elif tag == "style" and self._in_style:
            for means, address in style_addresses(text):
                self.ask(f"style {means}", address)
            self._in_style = False
        else:
            return
        self._text.clear()

    def script(self, text: str) -> None:
        for means, address in script_addresses(text):
            self.ask(means, address)

    def widget_state(self, text: str) -> None:
        for model in json.loads(html.unescape(text) if "&quot;" in text else text).get("state", {}).values():
            state: dict[str, Any] = model.get("state", {})
            name = state.get("_anywidget_id", model.get("model_name", "model"))
            for means, address in script_addresses(str(state.get("_esm", ""))):
                self.ask(f"widget {name}: {means}", address)
            for means, address in style_addresses(str(state.get("_css", ""))):
                self.ask(f"widget {name}: {means}", address)


def _import_map(text: str) -> Iterator[tuple[str, str]]:
    declared = json.loads(text)
    tables = [declared.get("imports", {}), *declared.get("scopes", {}).values()]
    for table in tables:
        for address in table.values():
            yield "import map", str(address)


@dataclass
class _Scan:
    root: Path
    found: set[ForeignRequest] = field(default_factory=set)
    _parsed: dict[Path, list[_Asset]] = field(default_factory=dict)

    def assets(self, path: Path) -> list[_Asset]:
        """What the file at `path` asks for; read once, however many pages load it."""
        if path not in self._parsed:
            text = path.read_text(encoding="utf-8", errors="replace")
            if path.suffix in {".html", ".htm", ".svg"}:
                page = _Page()
                page.feed(text)
                page.close()
                self._parsed[path] = page.asked
            elif path.suffix == ".css":
                self._parsed[path] = [_Asset(means, address) for means, address in style_addresses(text)]
            else:
                self._parsed[path] = [_Asset(means, address) for means, address in script_addresses(text)]
        return self._parsed[path]

    def page(self, page: Path) -> None:
        waiting, seen = [page], {page}
        while waiting:
            path = waiting.pop()
            for asset in self.assets(path):
                if is_foreign(asset.address):
                    names = (page.relative_to(self.root).as_posix(), path.relative_to(self.root).as_posix())
                    self.found.add(ForeignRequest(*names, asset.means, asset.address))
                    continue
                target = self.local(path, asset.address)
                if target and target not in seen:
                    seen.add(target)
                    waiting.append(target)

    def local(self, origin: Path, address: str) -> Path | None:
        """The file in the book that `address` names, if it is one that can ask for more."""
        relative = unquote(urlsplit(address).path) if not urlsplit(address).scheme else ""
        if not relative:
            return None
        base = self.root / relative.lstrip("/") if relative.startswith("/") else origin.parent / relative
        target = base.resolve()
        followed = target.suffix in {".html", ".htm", ".css", ".js", ".mjs", ".svg"}
        return target if followed and target.is_file() and target.is_relative_to(self.root) else None


def scan(directory: Path) -> list[ForeignRequest]:
    """Every request to another host that the built pages under `directory` would make, sorted.

    Raises ValueError when `directory` holds no page, so that a wrong path can't pass as a clean book.
    """
    root = directory.resolve()
    pages = [page for page in root.rglob("*.html") if "_static" not in page.relative_to(root).parts]
    if not pages:
        raise ValueError(f"directory must hold a built book; {directory} has no .html page")
    found = _Scan(root)
    for page in pages:
        found.page(page)
    return sorted(found.found)


def fail_on_foreign_requests(app: Sphinx, exception: Exception | None) -> None:
    """Scan what was just built, and end the build with an error that names each page and address."""
    if exception is not None or app.builder.format != "html":
        return
    found = scan(Path(app.outdir))
    if found:
        lines = "\n  ".join(map(str, found[:40]))
        more = f"\n  ... and {len(found) - 40} more" if len(found) > 40 else ""
        raise ForeignRequestError(
            f"{len(found)} request(s) to other hosts; all a page loads must be in the book:\n  {lines}{more}"
        )
    logger.info("no page asks another host for anything")


def setup(app: Sphinx) -> None:
    """Scan last, after every other extension has written its files."""
    app.connect("build-finished", fail_on_foreign_requests, priority=990)
