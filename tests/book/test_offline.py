"""The scan for requests to other hosts: it must see every way a page can ask, and must not cry wolf."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
from tx_book.offline import WIDGET_STATE, is_foreign, scan

AWAY = "https://elsewhere.example/thing"


def found(tmp_path: Path, body: str, **files: str) -> list[str]:
    """The addresses that a page with this body asks for, next to other files of the book."""
    (tmp_path / "page.html").write_text(f"<!doctype html><html><body>{body}</body></html>", encoding="utf-8")
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return [request.address for request in scan(tmp_path)]


@pytest.mark.parametrize(
    "body",
    [
        f'<script src="{AWAY}.js"></script>',
        f'<script src="{AWAY.removeprefix("https:")}.js"></script>',
        f"<SCRIPT SRC={AWAY}></SCRIPT>",
        f'<img src="{AWAY}">',
        f'<img src="local.png" srcset="local.png 1x, {AWAY} 2x">',
        f'<picture><source srcset="{AWAY} 800w"></picture>',
        f'<link rel="stylesheet" href="{AWAY}">',
        f'<link rel="shortcut icon" href="{AWAY}">',
        f'<link rel="preconnect" href="{AWAY}">',
        f'<link rel="preload" as="image" imagesrcset="{AWAY} 1x">',
        f'<link rel="modulepreload" href="{AWAY}">',
        f'<iframe src="{AWAY}"></iframe>',
        f'<iframe srcdoc="{html.escape(f"<img src={AWAY}>")}"></iframe>',
        f'<iframe src="data:text/html,<img src={AWAY}>"></iframe>',
        f'<video poster="{AWAY}"></video>',
        f'<video><track src="{AWAY}"></video>',
        f'<object data="{AWAY}"></object>',
        f'<embed src="{AWAY}">',
        f'<input type="image" src="{AWAY}">',
        f'<svg><image href="{AWAY}"/></svg>',
        f'<svg><use xlink:href="{AWAY}#mark"/></svg>',
        f'<base href="{AWAY}">',
        f'<meta http-equiv="refresh" content="0; url={AWAY}">',
        f'<p style="background: url({AWAY})">',
        f"<style>@import '{AWAY}';</style>",
        f'<style>@import url("{AWAY}");</style>',
        f"<style>@font-face {{ src: url('{AWAY}') }}</style>",
        f'<script>import("{AWAY}")</script>',
        f'<script type="module">import thing from "{AWAY}"</script>',
        f'<script type="module">import"{AWAY}"</script>',
        f"<script>fetch(`{AWAY}`)</script>",
        f'<script>new Worker("{AWAY}")</script>',
        '<script>new WebSocket("wss://elsewhere.example/thing")</script>',
        f'<script>request.open("GET", "{AWAY}")</script>',
        f'<script>image.src = "{AWAY}"</script>',
        f'<script>importScripts("{AWAY}")</script>',
        f'<script>navigator.sendBeacon("{AWAY}")</script>',
        f'<script>const library = "{AWAY}.min.js"</script>',
        '<script>require.config({paths: {d3: "//cdnjs.cloudflare.com/ajax/libs/d3/5.7.0/d3.min"}})</script>',
        f"<button onclick=\"fetch('{AWAY}')\">",
        f'<script type="importmap">{{"imports": {{"d3": "{AWAY}"}}}}</script>',
    ],
)
def test_request_is_seen(tmp_path: Path, body: str) -> None:
    """Each way of asking another host, in a page of its own."""
    assert len(found(tmp_path, body)) == 1


@pytest.mark.parametrize(
    "body",
    [
        f'<a href="{AWAY}">an ordinary link</a>',
        f'<link rel="canonical" href="{AWAY}"><link rel="license" href="{AWAY}">',
        '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
        '<script>document.createElementNS("http://www.w3.org/2000/svg", "svg")</script>',
        f'<script type="application/json">{{"src": "{AWAY}"}}</script>',
        f"<script>// see {AWAY}\n</script>",
        f"<style>/* url({AWAY}) */</style>",
        f"<p>import('{AWAY}') and url({AWAY}) in the text</p><code>fetch(\"{AWAY}\")</code>",
        '<img src="data:image/png;base64,iVBO"><img src="../_static/a.png">',
        f'<meta property="og:image" content="{AWAY}">',
    ],
)
def test_no_false_alarm(tmp_path: Path, body: str) -> None:
    """What a browser doesn't fetch by itself."""
    assert found(tmp_path, body) == []


def test_files_that_a_page_loads_are_followed(tmp_path: Path) -> None:
    """A style sheet imported by a style sheet, and a script; but not files that no page loads."""
    body = '<link rel="stylesheet" href="a.css?v=1"><script src="s.js"></script>'
    files = {
        "a__css": '@import "b.css";',
        "b__css": f"p {{ background: url({AWAY}/from-b) }}",
        "s__js": f'import("{AWAY}/from-s")',
        "unused__css": f"p {{ background: url({AWAY}/unused) }}",
    }
    assert sorted(found(tmp_path, body, **files)) == [f"{AWAY}/from-b", f"{AWAY}/from-s"]
    messages = sorted(str(request) for request in scan(tmp_path))
    assert messages[0] == f"page.html (through b.css): url() asks {AWAY}/from-b"


def test_widget_modules_are_read(tmp_path: Path) -> None:
    """Code and styles in the saved state of widgets run on the page, so they are scanned like its own."""
    state = {"_esm": f'import d3 from "{AWAY}/module"', "_css": f"@import '{AWAY}/style';"}
    saved = json.dumps({"state": {"a": {"model_name": "AnyModel", "state": state}}})
    addresses = found(tmp_path, f'<script type="{WIDGET_STATE}">{saved}</script>')
    assert sorted(addresses) == [f"{AWAY}/module", f"{AWAY}/style"]


def test_frames_in_frames_are_read(tmp_path: Path) -> None:
    """A srcdoc within a srcdoc, escaped twice."""
    inner = html.escape(f'<script src="{AWAY}"></script>')
    outer = html.escape(f'<iframe srcdoc="{inner}"></iframe>')
    assert found(tmp_path, f'<iframe srcdoc="{outer}"></iframe>') == [AWAY]


@pytest.mark.parametrize(
    "address", ["a.png", "/a.png", "#here", "data:,x", "blob:null/1", "?q=1", "mailto:a@b"]
)
def test_local_addresses(address: str) -> None:
    """What stays on the book's own host, or goes to none."""
    assert not is_foreign(address)


@pytest.mark.parametrize(
    "address",
    ["http://a.b/c", "HTTPS://a.b", "//a.b/c", "\\\\a.b\\c", " https://a.b", "wss://a.b", "file:///etc"],
)
def test_foreign_addresses(address: str) -> None:
    """What leaves it, in each spelling a browser accepts."""
    assert is_foreign(address)


def test_an_empty_folder_is_no_clean_book(tmp_path: Path) -> None:
    """A wrong path must not pass."""
    with pytest.raises(ValueError, match=r"must hold a built book"):
        scan(tmp_path)
