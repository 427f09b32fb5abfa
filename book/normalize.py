"""Bring an executed notebook to the form in which it is stored: two executions give the same file.

What changes from one execution to the next and means nothing is removed or renamed: execution times, the
ids of widgets, addresses in memory, how the kernel cut its output into messages, which versions of Python
and matplotlib ran. Third-party JavaScript gives way to placeholders.
"""

from __future__ import annotations

import json
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator
from copy import deepcopy
from hashlib import md5
from typing import Any

from tx_from_scratch.bertviz_views import restore_placeholders

Json = dict[str, Any]

WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "pygments_lexer": "ipython3",
}
# What a notebook keeps of its metadata; editors leave more behind.
NOTEBOOK_METADATA = ("mystnb", "tx", "widgets")
CELL_METADATA = ("tags", "mystnb", "editable", "slideshow")

HEX_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
REFERENCE = re.compile(r'"IPY_MODEL_([0-9a-f]{32})"')
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")
BERTVIZ_ID = re.compile(r"bertviz-([0-9a-f]{32})")

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Text and time; what is drawn, and at which resolution, stays.
PNG_DROPPED = {b"tEXt", b"zTXt", b"iTXt", b"tIME", b"eXIf"}


def strip_png(data: bytes) -> bytes:
    """A PNG without its text and time chunks (matplotlib writes its version there).

    Raises ValueError when `data` is no PNG.
    """
    if not data.startswith(PNG_SIGNATURE):
        raise ValueError(f"data must be a PNG; it begins with {data[:8]!r}")
    kept, position = [PNG_SIGNATURE], len(PNG_SIGNATURE)
    while position < len(data):
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        if data[position + 4 : position + 8] not in PNG_DROPPED:
            kept.append(data[position:end])
        position = end
    return b"".join(kept)


def final_lines(text: str) -> str:
    """What a terminal shows in the end: after a carriage return a line is written anew."""
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def _data(kind: str, value: Any) -> Any:
    """One representation of an output."""
    if kind == "image/png":
        return b2a_base64(strip_png(a2b_base64(_text(value))), newline=False).decode()
    if kind == "text/html":
        return ADDRESS.sub("0x0", restore_placeholders(_text(value)))
    if kind.startswith("text/"):
        return ADDRESS.sub("0x0", _text(value))
    return value


def _outputs(outputs: list[Json], count: int) -> Iterator[Json]:
    """Outputs with messages of one stream joined, and each representation in its stored form."""
    stream: Json | None = None
    for output in outputs:
        if output["output_type"] == "stream":
            if stream is not None and stream["name"] == output["name"]:
                stream["text"] += _text(output["text"])
                continue
            stream = {**output, "text": _text(output["text"])}
            yield stream
            continue
        stream = None
        stored = {key: value for key, value in output.items() if key != "transient"}
        if "data" in stored:
            stored["data"] = {kind: _data(kind, value) for kind, value in sorted(stored["data"].items())}
        if stored["output_type"] == "execute_result":
            stored["execution_count"] = count
        yield stored


def _cells(cells: list[Json]) -> None:
    count = 0
    for cell in cells:
        cell["source"] = _text(cell["source"])
        cell["metadata"] = {key: cell["metadata"][key] for key in CELL_METADATA if key in cell["metadata"]}
        if cell["cell_type"] != "code":
            continue
        if not cell["source"].strip():
            cell["execution_count"] = None
            continue
        count += 1
        if cell["execution_count"] is not None:
            cell["execution_count"] = count
        cell["outputs"] = list(_outputs(cell["outputs"], count))
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                output["text"] = ADDRESS.sub("0x0", final_lines(output["text"]))


def _widget_order(cells: list[Json], state: dict[str, Json]) -> list[str]:
    """The ids of widget models: those shown, in order, each followed by the models that it refers to.

    The others (links, for one) follow, ordered by what they say, with ids already placed named by place.
    """
    order: list[str] = []

    def visit(identity: str) -> None:
        if identity in state and identity not in order:
            order.append(identity)
            for reference in REFERENCE.findall(json.dumps(state[identity]["state"], sort_keys=True)):
                visit(reference)

    for identity in re.findall(r'"model_id": "([0-9a-f]{32})"', json.dumps(cells)):
        visit(identity)

    def content(identity: str) -> str:
        places = {known: f"#{place}" for place, known in enumerate(order)}
        return HEX_ID.sub(
            lambda found: places.get(found[0], "#"), json.dumps(state[identity], sort_keys=True)
        )

    while rest := [identity for identity in state if identity not in order]:
        visit(min(rest, key=content))
    return order


def _rename_ids(notebook: Json) -> Json:
    """The ids of widgets and BertViz views, by place instead of by chance."""
    widgets = notebook["metadata"].get("widgets", {}).get(WIDGET_STATE, {})
    state: dict[str, Json] = widgets.get("state", {})
    text = json.dumps(notebook)
    names = {old: f"widget {place}" for place, old in enumerate(_widget_order(notebook["cells"], state))}
    names |= {old: f"view {place}" for place, old in enumerate(dict.fromkeys(BERTVIZ_ID.findall(text)))}
    renamed = {old: md5(new.encode(), usedforsecurity=False).hexdigest() for old, new in names.items()}
    result: Json = json.loads(HEX_ID.sub(lambda found: renamed.get(found[0], found[0]), text))
    if not state:
        result["metadata"].pop("widgets", None)
    return result


def normalize(notebook: Json) -> Json:
    """The stored form of a notebook's JSON, as a copy. Normalizing twice changes nothing more."""
    notebook = deepcopy(notebook)
    metadata = notebook["metadata"]
    notebook["metadata"] = {key: metadata[key] for key in NOTEBOOK_METADATA if key in metadata}
    notebook["metadata"] |= {"kernelspec": dict(KERNEL), "language_info": dict(LANGUAGE)}
    _cells(notebook["cells"])
    return _rename_ids(notebook)


def dumps(notebook: Json) -> str:
    """The text of a notebook's file, as Jupyter writes it: keys sorted, long texts split at line ends."""
    notebook = deepcopy(notebook)
    for cell in notebook["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = output["text"].splitlines(keepends=True)
            for kind, value in output.get("data", {}).items():
                if isinstance(value, str) and (kind.startswith("text/") or kind == "image/svg+xml"):
                    output["data"][kind] = value.splitlines(keepends=True)
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
