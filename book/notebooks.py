"""Execute the chapters again and store them, so that the same code gives the same file.

    python book/notebooks.py                        every chapter
    python book/notebooks.py 01_original            those whose name begins so
    python book/notebooks.py --check                say which are stale or not in stored form; execute nothing
    python book/notebooks.py --normalize-only       bring them to stored form; execute nothing

A chapter runs in chapters/ on the CPU, whatever the machine has, because the stored outputs are compared with
those of other machines. It records a digest of its own code and of the library modules it uses; it is stale
when they have changed since.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ROOT / "chapters"
PACKAGE = "tx_from_scratch"
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from normalize import dumps, normalize  # noqa: E402

Json = dict[str, Any]
CELL_TIMEOUT = 900  # seconds; a chapter as a whole should take less than 90


def load(path: Path) -> Json:
    """A stored notebook."""
    notebook: Json = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def code_of(notebook: Json) -> str:
    """The code of a notebook, without the lines that only IPython reads."""
    cells = ("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    return re.sub(r"^\s*[%!].*$", "pass", "\n".join(cells), flags=re.MULTILINE)


def imported(code: str, package: str) -> Iterator[str]:
    """The library modules that a piece of code imports, as dotted names; names of their contents, too.

    `package` is the one that the code belongs to, for relative imports.
    """
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parts, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def module_file(name: str) -> Path | None:
    """The file of a library module, if `name` is one."""
    if name.split(".")[0] != PACKAGE:
        return None
    path = ROOT.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def library_files(code: str) -> list[Path]:
    """The library's files that a notebook's code reaches through imports."""
    found: set[Path] = set()
    waiting = list(imported(code, ""))
    while waiting:
        path = module_file(waiting.pop())
        if path is None or path in found:
            continue
        found.add(path)
        package = ".".join(path.relative_to(ROOT).parent.parts)
        waiting += [package, *imported(path.read_text(encoding="utf-8"), package)]
    for path in list(found):  # a widget's script is stored with its state
        found.update(path.parent.glob(f"{path.stem}.js"))
    widgets = ROOT / PACKAGE / "widgets"
    if widgets / "base.py" in found:
        found.update(file for file in (widgets / "kit").iterdir() if file.is_file())
    return sorted(found)


def digest(notebook: Json) -> str:
    """SHA-256 of a notebook's code, of the library files it imports, and of the studies that it names."""
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    studies = sorted((ROOT / PACKAGE / "experiments").glob("*.json"))
    files = [*library_files(code_of(notebook)), *(path for path in studies if path.stem in code)]
    result = hashlib.sha256(code.encode())
    for path in files:
        # Read as text, so that line ends don't count.
        result.update(f"\0{path.relative_to(ROOT).as_posix()}\0{path.read_text(encoding='utf-8')}".encode())
    return result.hexdigest()


def faults(path: Path) -> list[str]:
    """What keeps a stored notebook from being up to date: "stale", "not in stored form", "not executed"."""
    notebook = load(path)
    found = []
    code = [
        cell for cell in notebook["cells"] if cell["cell_type"] == "code" and "".join(cell["source"]).strip()
    ]
    if any(cell["execution_count"] is None for cell in code):
        found.append("not executed")
    if notebook["metadata"].get("tx", {}).get("digest") != digest(notebook):
        found.append("stale")
    if path.read_text(encoding="utf-8") != dumps(normalize(notebook)):
        found.append("not in stored form")
    return found


def execute(notebook: Json, directory: Path) -> Json:
    """Run a notebook from top to bottom in `directory`, on the CPU, and return it with its outputs.

    Raises nbclient.exceptions.CellExecutionError when a cell raises.
    """
    import nbformat
    from nbclient import NotebookClient

    # A fixed hash seed, so that the order of a set of strings is the same each time.
    environment = {**os.environ, "TX_DEVICE": "cpu", "PYTHONHASHSEED": "0"}
    fresh = normalize(notebook)
    fresh["metadata"].pop("widgets", None)
    node = nbformat.from_dict(fresh)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        node, timeout=CELL_TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(directory)}}
    )
    client.execute(env=environment)
    result: Json = json.loads(nbformat.writes(node))  # type: ignore[no-untyped-call]
    return result


def update(path: Path, *, run: bool) -> bool:
    """Execute (with `run`) and normalize one notebook. Returns whether its file changed."""
    before = path.read_text(encoding="utf-8")
    notebook = json.loads(before)
    if run:
        notebook = execute(notebook, path.parent)
        notebook["metadata"]["tx"] = {"digest": digest(notebook)}
    after = dumps(normalize(notebook))
    if after != before:
        path.write_text(after, encoding="utf-8", newline="\n")
    return after != before


def select(names: list[str], directory: Path = CHAPTERS) -> list[Path]:
    """The notebooks whose names begin with one of `names`; all of them when there is none.

    Raises ValueError when a name fits no notebook.
    """
    stored = sorted(directory.glob("*.ipynb"))
    chosen: list[Path] = []
    for name in [Path(name).name.removesuffix(".ipynb") for name in names] or [""]:
        fitting = [path for path in stored if path.name.startswith(name)]
        if not fitting:
            choices = ", ".join(path.stem for path in stored) or "none"
            raise ValueError(f"no chapter begins with {name!r}; there are: {choices}")
        chosen += [path for path in fitting if path not in chosen]
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 when a notebook failed, or when --check found something."""
    parser = argparse.ArgumentParser(description="Execute the chapters and store their outputs.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="beginning of a notebook's name (default: all)"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="only say which are stale or not in stored form")
    mode.add_argument("--normalize-only", action="store_true", help="bring to stored form without executing")
    options = parser.parse_args(arguments)
    try:
        notebooks = select(options.names)
    except ValueError as error:
        parser.error(str(error))
    status = 0
    for path in notebooks:
        start = time.perf_counter()
        if options.check:
            found = faults(path)
            print(f"{path.stem}: {', '.join(found) or 'up to date'}")
            status |= bool(found)
            continue
        try:
            changed = update(path, run=not options.normalize_only)
        except Exception as error:  # one chapter that fails does not stop the others
            print(f"{path.stem}: failed, the stored file is unchanged\n{error}", file=sys.stderr)
            status = 1
            continue
        outcome = "changed" if changed else "unchanged"
        print(f"{path.stem}: {outcome}, {time.perf_counter() - start:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
