"""Build the book from the outputs stored in the notebooks, and serve it on this machine.

    python book/build.py                  build into _build/html (nothing to do when nothing changed)
    python book/build.py --serve          build, then serve on localhost and print the address
    python book/build.py --serve --port 9000

A build treats every warning as an error and runs no notebook.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HTML = ROOT / "_build" / "html"
# Records which sources the last successful build was made from.
STAMP = ROOT / "_build" / "sources.sha256"
SOURCES = (
    "_config.yml",
    "_toc.yml",
    "requirements.txt",
    "book/**/*",
    "chapters/*.ipynb",
    "tx_from_scratch/**/*.py",
)
DEFAULT_PORT = 8000


def source_digest(root: Path = ROOT) -> str:
    """SHA-256 over the names and contents of everything the book is made from."""
    digest = hashlib.sha256(sys.version.encode())
    for pattern in SOURCES:
        for path in sorted(root.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def is_fresh() -> bool:
    """Whether the book in _build/html was built from the sources as they are now."""
    return (
        STAMP.is_file()
        and (HTML / "index.html").is_file()
        and STAMP.read_text(encoding="utf-8") == source_digest()
    )


def build(*, force: bool = False) -> int:
    """Build the book, all of it: a partial build would hide the warnings of unchanged pages.

    Returns the exit status: 0 when the book is built, or was up to date.
    """
    if importlib.util.find_spec("jupyter_book") is None:
        print(
            "Jupyter Book is not installed here; run: python -m pip install -r requirements.txt",
            file=sys.stderr,
        )
        return 1
    if not force and is_fresh():
        print(f"The book is up to date: {HTML / 'index.html'}")
        return 0
    STAMP.unlink(missing_ok=True)
    shutil.rmtree(HTML, ignore_errors=True)
    digest, start = source_digest(), time.perf_counter()
    arguments = ["build", str(ROOT), "--all", "--warningiserror", "--nitpick", "--keep-going", "--quiet"]
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", *arguments]
    status = subprocess.run(command, check=False).returncode
    if status == 0:
        STAMP.write_text(digest, encoding="utf-8")
        print(f"Built in {time.perf_counter() - start:.0f} s: {HTML / 'index.html'}")
    return status


class Handler(SimpleHTTPRequestHandler):
    """Serves the book quietly; the types don't depend on the machine's registry."""

    extensions_map = {  # noqa: RUF012 (the base class declares it so)
        **SimpleHTTPRequestHandler.extensions_map,
        ".css": "text/css",
        ".html": "text/html; charset=utf-8",
        ".ipynb": "application/json",
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".svg": "image/svg+xml",
        ".woff": "font/woff",
        ".woff2": "font/woff2",
    }

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a line a request would bury the address."""


def open_server(port: int | None, directory: Path = HTML) -> ThreadingHTTPServer:
    """A server for `directory` on this machine only, at `port` or at the first free one from 8000 on.

    Raises OSError when the port that was asked for is taken.
    """
    handler = functools.partial(Handler, directory=str(directory))
    for candidate in [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + 100):
        try:
            return ThreadingHTTPServer(("127.0.0.1", candidate), handler)
        except OSError as error:
            taken = error
    raise taken


def serve(port: int | None) -> int:
    """Serve the built book until interrupted."""
    try:
        server = open_server(port)
    except OSError as error:
        print(f"Port {port} can't be used ({error.strerror}); choose another with --port.", file=sys.stderr)
        return 1
    with server:
        print(f"The book: http://localhost:{server.server_port}/  (Ctrl+C ends)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def port_number(text: str) -> int:
    """A port for the command line."""
    if not (text.isdecimal() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 (any free one) to 65535")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the book from stored outputs.")
    parser.add_argument("--serve", action="store_true", help="serve the book on localhost afterwards")
    parser.add_argument(
        "--port", type=port_number, help="port to serve on (default: the first free one from 8000)"
    )
    parser.add_argument("--force", action="store_true", help="build even when nothing changed")
    options = parser.parse_args(arguments)
    status = build(force=options.force)
    return status or (serve(options.port) if options.serve else 0)


if __name__ == "__main__":
    sys.exit(main())
