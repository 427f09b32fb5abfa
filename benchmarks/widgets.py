"""Widgets in a browser: from input to the end of drawing, from opening a page to its last widget, and bytes.

    python -m benchmarks.widgets            every widget at its largest size; writes benchmarks/widgets.json
    python -m benchmarks.widgets --quick    a fifth of the events, nothing is written

Input to drawn: an event goes to a control as a reader's would, and the clock stops when every listener has
run, the page is laid out and each canvas is painted; the screen shows it with the next frame. Milliseconds
depend on the machine and on who else is using it: run this on an idle one.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from ipywidgets.embed import embed_data
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.provenance import provenance
from tx_from_scratch import widgets
from tx_from_scratch.widgets.base import Widget

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "book")]

from chromium import ARGUMENTS, HELP, find  # noqa: E402
from serving import build, serve  # noqa: E402
from static_page import STATIC, widget_page  # noqa: E402

MEASURE = (HERE / "input_to_drawn.js").read_text(encoding="utf-8")
READY = """new MutationObserver((changes, observer) => {
    if (!document.documentElement.dataset.txWidgets) return;
    window.ready = performance.now();
    observer.disconnect();
}).observe(document, { attributes: true, subtree: true, attributeFilter: ["data-tx-widgets"] });"""
INLINE = """() => [...document.scripts]
    .filter(({ src, type }) => !src && ["", "module", "text/javascript"].includes(type))
    .map(({ text }) => text)"""
STATE_TYPE = "application/vnd.jupyter.widget-state+json"


def _attention_map(layers: int, heads: int, length: int) -> Widget:
    weights = torch.randn(layers, heads, length, length).softmax(dim=-1)
    return widgets.AttentionMap(weights, [f"token{index}" for index in range(length)])


# At the largest size that each offers, and where its work is hardest; a widget without an entry as it comes.
LARGEST: dict[str, dict[str, Callable[[], Widget]]] = {
    "AttentionMap": {
        "12 layers, 12 heads, 50 tokens": lambda: _attention_map(12, 12, 50),
        "1 head, 600 tokens": lambda: _attention_map(1, 1, 600),
    },
    "BiasExplorer": {
        "512 positions, 16 heads, ALiBi": lambda: widgets.BiasExplorer(n_heads=16, length=512),
        "512 positions, 16 heads, Transformer-XL, both sides": lambda: widgets.BiasExplorer(
            transformer_xl=torch.randn(16, 512) / 10,
            scheme="transformer_xl",
            length=512,
            causal=False,
            trained_length=128,
        ),
    },
    "RoPEExplorer": {
        "width 128, 4,096 positions": lambda: widgets.RoPEExplorer(d_head=128, target_length=4096),
        "width 128, 4,096 positions, dynamic NTK": lambda: widgets.RoPEExplorer(
            d_head=128, target_length=4096, method="dynamic_ntk"
        ),
    },
    "SinusoidalTable": {
        "width 256, 256 positions": lambda: widgets.SinusoidalTable(d_model=256, length=256),
    },
    "SoftmaxSaturation": {
        "width 1024, 64 keys": lambda: widgets.SoftmaxSaturation(d_k=1024, n_keys=64, activation=4.0),
    },
    "Visibility": {
        "128 tokens, narrow window": lambda: widgets.Visibility(
            length=128, causal=False, window=1, n_random=1, n_layers=12
        ),
        "128 tokens, all parts": lambda: widgets.Visibility(
            length=128, causal=False, window=127, n_global=32, n_random=32, n_layers=12
        ),
    },
}


@dataclass(frozen=True)
class Speed:
    """How long one widget takes from an input event to the end of drawing, over all its controls.

    Attributes:
        widget: its class.
        size: the settings it starts from.
        events: how many were measured.
        median, percentile_95: milliseconds.
        slowest: the control with the largest median.
        slowest_median: that median, milliseconds.
        script_bytes: its JavaScript, the kit included.
        state_bytes: its data in a stored notebook, without script and style.
        errors: what the browser complained about.
    """

    widget: str
    size: str
    events: int
    median: float
    percentile_95: float
    slowest: str
    slowest_median: float
    script_bytes: int
    state_bytes: int
    errors: list[str]


@dataclass(frozen=True)
class Loading:
    """What a page with widgets loads, and when they live.

    Attributes:
        page: which one.
        n_widgets: how many views it has.
        seconds: from the start of the navigation until the last widget is mounted, median of several loads.
        files: bytes of the scripts that it fetches, by name.
        inline: bytes of the scripts in the page itself.
        modules: bytes of the widgets' scripts, each kind once.
        javascript: all of these.
        foreign: requests to other hosts.
    """

    page: str
    n_widgets: int
    seconds: float
    files: dict[str, int]
    inline: int
    modules: int
    javascript: int
    foreign: int


def cases() -> Iterator[tuple[str, str, Callable[[], Widget]]]:
    """Every widget that the library exports, with the sizes to measure it at."""
    for name in widgets.__all__:
        for size, make in LARGEST.get(name, {"as it comes": getattr(widgets, name)}).items():
            yield name, size, make


def speed(browser: Browser, name: str, size: str, widget: Widget, *, events: int) -> Speed:
    """Send `events` events to each control of a widget."""
    page = browser.new_page(viewport={"width": 800, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    with _served(widget) as address:
        page.goto(f"{address}/page.html")
        page.wait_for_selector("html[data-tx-widgets] .txw")
        controls: dict[str, list[float]] = page.evaluate(MEASURE, events)
    page.close()
    taken = [time for times in controls.values() for time in times]
    medians = {control: statistics.median(times) for control, times in controls.items()}
    slowest = max(medians, key=medians.__getitem__)
    return Speed(
        widget=name,
        size=size,
        events=len(taken),
        median=round(statistics.median(taken), 2),
        percentile_95=round(statistics.quantiles(taken, n=20)[-1], 2),
        slowest=slowest,
        slowest_median=round(medians[slowest], 2),
        script_bytes=len(str(widget._esm).encode()),
        state_bytes=_state_bytes(widget),
        errors=errors,
    )


def loading(browser: Browser, title: str, address: str, *, loads: int) -> Loading:
    """Open a page several times, each time as a reader who has never been there."""
    host = "/".join(address.split("/")[:3]) + "/"
    seconds: list[float] = []
    files: dict[str, int] = {}
    foreign: list[str] = []
    inline = modules = n_widgets = 0
    for _ in range(loads):
        context = browser.new_context(viewport={"width": 800, "height": 900})
        page = context.new_page()
        page.add_init_script(READY)
        scripts: dict[str, int] = {}

        def note(response: Any, scripts: dict[str, int] = scripts) -> None:
            if response.request.resource_type == "script" and response.url.startswith(host):
                scripts[response.url.removeprefix(host).partition("?")[0]] = len(response.body())

        page.on("response", note)
        page.on(
            "request", lambda request: foreign.append(request.url) if _is_foreign(request.url, host) else None
        )
        page.goto(address, wait_until="load")
        page.wait_for_function("window.ready")
        page.wait_for_load_state("networkidle")
        seconds.append(page.evaluate("window.ready") / 1000)
        files = dict(sorted(scripts.items()))
        inline = sum(len(text.encode()) for text in page.evaluate(INLINE))
        modules, n_widgets = _modules(page)
        context.close()
    return Loading(
        page=title,
        n_widgets=n_widgets,
        seconds=round(statistics.median(seconds), 2),
        files=files,
        inline=inline,
        modules=modules,
        javascript=sum(files.values()) + inline + modules,
        foreign=len(foreign),
    )


def _modules(page: Page) -> tuple[int, int]:
    """Bytes of the widgets' own scripts that the page stores, each kind once; and how many views it has."""
    stored = json.loads(page.locator(f'script[type="{STATE_TYPE}"]').text_content() or "{}")
    scripts = {model["state"]["_esm"] for model in stored["state"].values() if "_esm" in model["state"]}
    return sum(len(script.encode()) for script in scripts), page.locator(".tx-widget-mounted").count()


def _is_foreign(url: str, host: str) -> bool:
    return not url.startswith((host, "data:", "blob:"))


def _state_bytes(widget: Widget) -> int:
    """What a notebook stores for the widget, as JSON with bytes in base64, without its script and style."""
    state = embed_data(views=[widget], drop_defaults=False)["manager_state"]["state"][widget.model_id]
    own = {name: value for name, value in state["state"].items() if name not in ("_esm", "_css")}
    return len(json.dumps({**state, "state": own}).encode())


@contextmanager
def _served(*shown: Widget) -> Iterator[str]:
    """A static page with these widgets on this machine, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        for source in STATIC:
            (Path(folder) / source.name).write_bytes(source.read_bytes())
        (Path(folder) / "page.html").write_text(widget_page(*shown), encoding="utf-8")
        yield from serve(Path(folder))


def _book_pages() -> list[str]:
    """The pages of the built book that hold widgets; none if it has not been built."""
    pages = build.HTML.glob("chapters/*.html")
    return sorted(page.name for page in pages if STATE_TYPE in page.read_text(encoding="utf-8"))


def to_markdown(results: dict[str, Any]) -> str:
    """Both tables of a run."""
    lines = [
        "| widget | size | input to drawn, median | 95th percentile | slowest control | script | state |",
        "|---|---|--:|--:|---|--:|--:|",
    ]
    for row in results["speed"]:
        lines.append(
            f"| {row['widget']} | {row['size']} | {row['median']:.1f} ms | {row['percentile_95']:.1f} ms "
            f"| {row['slowest']}, {row['slowest_median']:.1f} ms | {row['script_bytes'] / 1000:.0f} kB "
            f"| {row['state_bytes'] / 1000:.0f} kB |"
        )
    lines += [
        "",
        "| page | widgets | last one alive after | JavaScript, all | of that, widgets | foreign requests |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in results["loading"]:
        lines.append(
            f"| {row['page']} | {row['n_widgets']} | {row['seconds']:.2f} s "
            f"| {row['javascript'] / 1000:,.0f} kB | {row['modules'] / 1000:.0f} kB | {row['foreign']} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """See `python -m benchmarks.widgets --help`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.widgets", description="Widgets in a browser.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the events; nothing is written")
    quick = parser.parse_args(arguments).quick
    path = find()
    if path is None:
        parser.exit(1, HELP + "\n")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    results: dict[str, Any] = {"provenance": provenance(), "speed": [], "loading": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        results["provenance"]["browser"] = f"Chromium {browser.version}"
        for name, size, make in cases():
            print(f"{name}, {size} ...", flush=True)
            measured = speed(browser, name, size, make(), events=12 if quick else 60)
            results["speed"].append(asdict(measured))
        load = functools.partial(loading, browser, loads=3 if quick else 11)
        print("loading ...", flush=True)
        first = {name: make for name, _, make in reversed(list(cases()))}
        with _served(*(make() for make in first.values())) as address:
            results["loading"].append(
                asdict(load("one of each widget, nothing else", f"{address}/page.html"))
            )
        if pages := _book_pages():
            book = serve(build.HTML)
            address = next(book)
            for page in pages:
                results["loading"].append(asdict(load(f"chapters/{page}", f"{address}/chapters/{page}")))
            next(book, None)
        browser.close()
    print(f"\n{to_markdown(results)}")
    if quick:
        print("\nNothing written: only a full run is kept.")
        return
    (HERE / "widgets.json").write_text(
        json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print("\nWritten: benchmarks/widgets.json")


if __name__ == "__main__":
    main()
