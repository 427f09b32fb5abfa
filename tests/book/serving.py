"""Serve a folder on this machine for as long as a test needs it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "book"), str(ROOT / "book" / "_ext")]

import build  # noqa: E402


def serve(directory: Path) -> Iterator[str]:
    """Serve `directory`; yields its address."""
    with build.open_server(0, directory) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
