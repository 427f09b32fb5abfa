"""What all widgets share: colors, one script without imports, traits that refuse, a picture, links."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipywidgets
import numpy as np
import pytest
from coloraide import Color
from playwright.sync_api import expect
from widget_examples import NAMES, example

from tx_from_scratch import widgets
from tx_from_scratch.widgets.base import (
    FOLDER,
    MAX_STATE,
    Choice,
    RealNumber,
    Switch,
    WholeNumber,
    Widget,
    join,
)

KIT = sorted((FOLDER / "kit").glob("*.js"))
SCRIPTS = {name: FOLDER / getattr(widgets, name).script for name in NAMES}


# Colors. The oracle is coloraide, an independent implementation of color spaces and of the simulations.


@pytest.fixture(scope="module")
def scales(compute: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[Any, list[Color]]:
    """The 256 colors of each scale, by name and theme, as the browser makes them."""
    script = tmp_path_factory.mktemp("kit") / "colors_only.js"
    address = Path(os.path.relpath(FOLDER / "kit" / "colors.js", script.parent)).as_posix()
    script.write_text(
        f'import {{ colorScale }} from "./{address}";\nexport default {{ compute: {{ colorScale }} }};\n',
        encoding="utf-8",
    )
    module = SimpleNamespace(_esm=join(script))
    keys = list(itertools.product(("sequential", "diverging"), ("light", "dark")))
    made = {key: compute(module, "colorScale", key[0], key[1] == "dark") for key in keys}
    for scale in made.values():  # the packed pixels, as a canvas stores them, are the same colors
        pixels = scale["pixels"].view("u1").reshape(256, 4)
        np.testing.assert_array_equal(pixels[:, :3], scale["colors"])
        assert (pixels[:, 3] == 255).all()
    return {
        key: [Color("srgb", [part / 255 for part in color]) for color in scale["colors"]]
        for key, scale in made.items()
    }


def steps(colors: list[Color], width: int = 15) -> list[float]:
    """OKLab distances from each color to the one `width` further; wide enough to forget 8-bit rounding."""
    pairs = zip(colors[::width], colors[width::width], strict=False)
    return [first.distance(second, space="oklab") for first, second in pairs]


def halves(colors: list[Color]) -> list[list[Color]]:
    """A diverging scale from its middle outward, to both sides."""
    return [colors[127::-1], colors[128:]]


@pytest.mark.browser
def test_scales_lie_inside_srgb(scales: dict[Any, list[Color]]) -> None:
    """A color outside is clipped, which leaves a channel at its end; no color that is meant has one there."""
    for colors in scales.values():
        channels = np.array([color.coords() for color in colors])
        assert channels.min() > 0
        assert channels.max() < 1


@pytest.mark.browser
def test_steps_look_equally_large(scales: dict[Any, list[Color]]) -> None:
    """The largest of 17 steps is at most 12 % larger than the smallest; both halves go equally far."""
    for (name, _), colors in scales.items():
        for part in [colors] if name == "sequential" else halves(colors):
            distances = steps(part)
            assert max(distances) / min(distances) < 1.12
        if name == "diverging":
            below, above = (sum(steps(half)) for half in halves(colors))
            assert below / above == pytest.approx(1, abs=0.03)


@pytest.mark.browser
def test_lightness_tells_the_order(scales: dict[Any, list[Color]]) -> None:
    """Each color of a sequential scale is darker than the last on light ground, lighter on dark.

    On a diverging scale that holds from the middle outward; there, eight bits may make neighbors alike.
    """
    for (name, theme), colors in scales.items():
        for part in [colors] if name == "sequential" else halves(colors):
            lightness = np.array([color.convert("oklab")["lightness"] for color in part])
            outward = np.diff(lightness) * (-1 if theme == "light" else 1)
            assert outward.min() > (0 if name == "sequential" else -1e-3)
            assert outward.sum() > 0.5


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["protan", "deutan", "tritan"])
def test_sides_differ_to_color_blind_readers(scales: dict[Any, list[Color]], kind: str) -> None:
    """With one kind of cone missing, +x and −x still look different; 0.02 in OKLab is just noticeable."""
    for theme in ("light", "dark"):
        seen = [color.filter(kind) for color in scales["diverging", theme]]
        below, above = halves(seen)
        apart = np.array(
            [first.distance(second, space="oklab") for first, second in zip(below, above, strict=True)]
        )
        assert apart[16:].min() > 0.05
        assert apart[64:].min() > 0.12


STYLES = """(root) => Object.fromEntries([...new Set(
    [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
        .filter((rule) => rule.selectorText === ".txw")
        .flatMap((rule) => [...rule.style].filter((name) => name.startsWith("--txw-")))
)].map((name) => [name.slice(6), getComputedStyle(root).getPropertyValue(name).trim()]))"""


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_have_contrast(show: Callable[..., Any], dark: bool) -> None:
    """WCAG 2.1: 4.5 to 1 for text, 3 to 1 for the borders of controls and for lines in a figure."""
    page = show(example("Visibility"), dark=dark).page
    root = page.locator(".txw")
    expect(root).to_be_visible()
    colors = {name: Color(value) for name, value in root.evaluate(STYLES).items()}
    assert (colors["ground"].luminance() < 0.5) == dark

    def contrast(first: str, second: str) -> float:
        return colors[first].contrast(colors[second], method="wcag21")

    for text, ground in itertools.product(("ink", "quiet"), ("ground", "raised")):
        assert contrast(text, ground) >= 4.5, (text, ground)
    assert contrast("ground", "accent") >= 4.5  # the text of an option that is chosen
    lines = [name for name in colors if name.startswith("series-")]
    assert len(lines) == 4
    for line in ["line", "accent", "alarm", *lines]:
        assert contrast(line, "ground") >= 3, line


# One script


def top_level_names(source: str) -> list[str]:
    """What a module declares at its top level, where no line is indented."""
    names = []
    for found in re.findall(
        r"^(?:export )?(?:async )?(?:function\*?|class|const|let|var) +([\w$]+|\[[^\]]*\]|\{[^}]*\})",
        source,
        re.MULTILINE,
    ):
        names += re.findall(r"[\w$]+", found)
    return names


def test_top_level_names_are_found() -> None:
    """The reader of names sees every kind of declaration, and nothing that is nested."""
    source = (
        "const A = 1;\nlet b = 2,\n  c;\nexport function d() {\n  const e = 1;\n}\nclass F {}\n"
        "export const [G, H] = [1, 2];\nasync function i() {}\nfunction* j() {}\nconst { k, l } = d();\n"
    )
    assert top_level_names(source) == ["A", "b", "d", "F", "G", "H", "i", "j", "k", "l"]


@pytest.mark.parametrize("name", NAMES)
def test_joined_names_are_unique(name: str) -> None:
    """Joined modules share one scope, so no name may be declared twice in kit and widget."""
    sources = [path.read_text(encoding="utf-8") for path in [*KIT, SCRIPTS[name]]]
    counts = Counter(itertools.chain.from_iterable(top_level_names(source) for source in sources))
    assert sum(counts.values()) > 50
    assert [declared for declared, times in counts.items() if times > 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_joined_script_stands_alone(name: str) -> None:
    """No import, no export but the widget's own, no address but the name of SVG, no way to the network."""
    joined = getattr(widgets, name)._esm
    assert joined == join(SCRIPTS[name])
    outward = re.compile(r"^ *(?:import|export)\b.*", re.MULTILINE)
    own = outward.findall(SCRIPTS[name].read_text(encoding="utf-8"))
    assert outward.findall(joined) == [line for line in own if not line.startswith("import")]
    assert joined.count("export default ") == 1
    assert set(re.findall(r"https?://[^\s\"'`)]*", joined)) == {"http://www.w3.org/2000/svg"}
    forbidden = (
        r"\bimport\s*\(|\bfetch\s*\(|XMLHttpRequest|WebSocket|sendBeacon|EventSource|innerHTML|\beval\b"
    )
    assert re.findall(forbidden, joined) == []


def test_join_takes_every_module_once_and_first_what_is_imported(tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    files = {
        "kit/c.js": "export const c = 1;\n",
        "kit/a.js": 'import { c } from "./c.js";\nexport function a() { return c; }\n',
        "kit/b.js": 'import { c } from "./c.js";\nexport class B {}\nexport let b = c;\n',
        "w.js": 'import { a } from "./kit/a.js";\nimport { B, b } from "./kit/b.js";\n'
        "export function own() {}\nexport default { own };\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert join(tmp_path / "w.js") == (
        "const c = 1;\n\nfunction a() { return c; }\n\nclass B {}\nlet b = c;\n\n"
        "export function own() {}\nexport default { own };\n"
    )


# Traits


class Little(Widget):
    """One trait of each kind."""

    script = "visibility.js"
    whole = WholeNumber(3, 1, 8, "a whole number")
    real = RealNumber(0.5, 0.0, 2.0, 0.25, "a number")
    word = Choice("left", ("left", "right"), "a side")
    switch = Switch(False, "on or off")


@pytest.mark.parametrize(
    ("setting", "value", "error", "message"),
    [
        ("whole", 0, ValueError, "whole must be from 1 to 8, got 0"),
        ("whole", 9.0, ValueError, r"whole must be from 1 to 8, got 9\.0"),
        ("whole", 2.5, TypeError, r"whole must be an integer from 1 to 8, got 2\.5"),
        ("whole", True, TypeError, "whole must be an integer from 1 to 8, got True"),
        ("whole", "3", TypeError, "whole must be an integer from 1 to 8, got '3'"),
        ("whole", float("nan"), TypeError, "whole must be an integer from 1 to 8, got nan"),
        ("whole", float("inf"), TypeError, "whole must be an integer from 1 to 8, got inf"),
        ("whole", None, TypeError, "whole must be an integer from 1 to 8, got None"),
        ("real", 2.01, ValueError, r"real must be from 0 to 2, got 2\.01"),
        ("real", float("nan"), ValueError, "real must be from 0 to 2, got nan"),
        ("real", "1", TypeError, "real must be a number from 0 to 2, got '1'"),
        ("real", True, TypeError, "real must be a number from 0 to 2, got True"),
        ("word", "up", ValueError, "word must be one of left, right; got 'up'"),
        ("word", 1, ValueError, "word must be one of left, right; got 1"),
        ("switch", 1, TypeError, "switch must be True or False, got 1"),
        ("switch", None, TypeError, "switch must be True or False, got None"),
        ("sides", 1, TypeError, "Little has no setting 'sides'; it has real, switch, whole, word"),
    ],
)
def test_bad_settings_are_refused(setting: str, value: Any, error: type[Exception], message: str) -> None:
    """At construction and later; what was set before stays."""
    with pytest.raises(error, match=message):
        Little(**{setting: value})
    if setting != "sides":
        little = Little()
        with pytest.raises(error, match=message):
            setattr(little, setting, value)
        assert little.settings() == Little().settings()


def test_good_settings_are_taken() -> None:
    """Both ends, and numbers of other types, which become Python's."""
    little = Little(whole=np.int64(8), real=np.float32(2), word="right", switch=True)
    assert little.settings() == {"whole": 8, "real": 2.0, "word": "right", "switch": True}
    assert type(little.whole) is int
    assert type(little.real) is float
    little.whole = 1.0
    assert (little.whole, type(little.whole)) == (1, int)
    assert little._limits == {"whole": [1, 8, 1], "real": [0.0, 2.0, 0.25]}


@pytest.mark.parametrize("name", NAMES)
def test_representation_holds_no_address(name: str) -> None:
    """Widgets with the same settings read the same, so a stored notebook changes with its content only."""
    first, second = example(name), example(name)
    assert repr(first) == repr(second)
    assert repr(first).startswith(f"{name}(")
    assert "0x" not in repr(first)


@pytest.mark.parametrize("name", NAMES)
def test_bundle_has_a_view_and_a_picture(name: str) -> None:
    """The view for the browser; for paper a picture, with the words that replace it."""
    widget = example(name)
    data, metadata = widget._repr_mimebundle_()
    view = data["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == widget.model_id
    assert data["image/png"].startswith(b"\x89PNG\r\n")
    assert len(data["image/png"]) < 200_000
    assert metadata == {"image/png": {"alt": widget.describe()}}
    assert data["text/plain"] == widget.describe()
    assert re.search(r"\d", widget.describe())
    again = example(name)._repr_mimebundle_()[0]
    assert again["image/png"] == data["image/png"]
    values = (value for value in widget.get_state().values() if isinstance(value, bytes))
    assert sum(map(len, values)) < MAX_STATE


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_documented(name: str) -> None:
    """In the class's docstring, and with its range where Python's help shows it."""
    widget = example(name)
    for setting in widget.settings():
        # The class of a widget is one that traitlets derives from ours, without its docstring.
        assert re.search(rf"^ +{setting}: |`{setting}`", getattr(widgets, name).__doc__, re.MULTILINE), (
            setting
        )
        assert widget.traits()[setting].help


# Links on the static page


@pytest.fixture
def linked(request: pytest.FixtureRequest) -> Iterator[tuple[Widget, Widget]]:
    """Two widgets of a class, all of whose settings are linked in the browser."""
    first, second = example(request.param), example(request.param)
    links = [ipywidgets.jslink((first, name), (second, name)) for name in first.settings()]
    yield first, second
    for link in links:
        link.unlink()


SHOWN = """(root) => JSON.stringify([
    root.querySelector(".txw-readout").textContent,
    ...[...root.querySelectorAll("input, select")].map((input) => [input.value, input.checked]),
])"""


@pytest.mark.browser
@pytest.mark.parametrize("linked", NAMES, indirect=True)
def test_linked_widgets_show_the_same(show: Callable[..., Any], linked: tuple[Widget, Widget]) -> None:
    """Each control of the one moves the other along, and back again."""
    visited = show(*linked)
    roots = visited.page.locator(".txw")
    expect(roots).to_have_count(2)

    def shown() -> tuple[Any, ...]:
        # A radio button's name differs; its value and whether it is checked do not.
        return tuple(json.loads(root.evaluate(SHOWN)) for root in roots.all())

    before = shown()
    assert before[0] == before[1]
    for moved, root in enumerate(roots.all()):
        changes = 0
        for index, control in enumerate(
            root.locator("input[type=range], input[type=checkbox], select").all()
        ):
            start = shown()[0]
            if control.evaluate("(control) => control.localName") == "select":
                options = control.locator("option")
                control.select_option(index=(options.count() - 1) * (1 - moved))
            elif control.get_attribute("type") == "checkbox":
                control.press("Space")
            else:
                control.press("Home" if moved else "End")
            first, second = shown()
            assert first == second, (moved, index)
            changes += first != start
        for group in root.locator("fieldset").all():
            start = shown()[0]
            group.locator("input:checked").press("ArrowRight")
            first, second = shown()
            assert first == second
            assert first != start
        assert changes > 1
    assert visited.errors == []
    assert visited.foreign == []


@pytest.mark.browser
def test_ids_are_unique_on_a_page(show: Callable[..., Any]) -> None:
    """Widgets on one page are separate modules; with equal ids one would be clipped by another's plot."""
    shown = (widgets.BiasExplorer(), widgets.RoPEExplorer(), widgets.Complexity(), widgets.BiasExplorer())
    page = show(*shown).page
    expect(page.locator(".txw")).to_have_count(len(shown))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert sum(name.startswith("txw-") for name in ids) >= len(shown)
    assert [name for name, times in Counter(ids).items() if times > 1] == []


def test_modules_that_import_each_other_are_refused(tmp_path: Path) -> None:
    """Instead of joining them forever."""
    (tmp_path / "one.js").write_text(
        'import { b } from "./other.js";\nexport const a = 1;\n', encoding="utf-8"
    )
    (tmp_path / "other.js").write_text(
        'import { a } from "./one.js";\nexport const b = 1;\n', encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"script must not import itself, but one\.js does"):
        join(tmp_path / "one.js")
