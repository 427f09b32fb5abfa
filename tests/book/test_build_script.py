"""book/build.py and the search for a browser: the parts that a reader meets before any page."""

from __future__ import annotations

import shutil
import urllib.request
from pathlib import Path

import chromium
import pytest
from serving import ROOT, build, serve


def test_digest_follows_the_sources(tmp_path: Path) -> None:
    """A page, a module or a new file makes the book stale; bytecode doesn't."""
    (tmp_path / "book").mkdir()
    (tmp_path / "tx_from_scratch").mkdir()
    shutil.copy(ROOT / "_config.yml", tmp_path)
    digests = [build.source_digest(tmp_path)]
    for name, text in (
        ("book/page.md", "# Page"),
        ("book/page.md", "# Changed"),
        ("tx_from_scratch/module.py", "x = 1"),
        ("book/renamed.md", ""),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        digests.append(build.source_digest(tmp_path))
    assert len(set(digests)) == len(digests)
    cache = tmp_path / "book" / "__pycache__"
    cache.mkdir()
    (cache / "page.pyc").write_bytes(b"1")
    assert build.source_digest(tmp_path) == digests[-1]


def test_server_is_local_and_knows_its_types(tmp_path: Path) -> None:
    """Modules must arrive as JavaScript, whatever this machine's registry says."""
    (tmp_path / "a.js").write_text("export {}", encoding="utf-8")
    server = serve(tmp_path)
    address = next(server)
    with urllib.request.urlopen(f"{address}/a.js") as answer:
        assert answer.headers["Content-Type"] == "text/javascript"
    next(server, None)


def test_taken_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for, a taken port is an error that names the way out; unasked, the next free one is used."""
    with build.open_server(0, tmp_path) as first:
        assert first.server_address[0] == "127.0.0.1"
        assert build.serve(first.server_port) == 1
        assert f"Port {first.server_port} can't be used" in capsys.readouterr().err
    with build.open_server(None, tmp_path) as first, build.open_server(None, tmp_path) as second:
        assert second.server_port > first.server_port >= build.DEFAULT_PORT


@pytest.mark.parametrize("port", ["-1", "65536", "http", "80.5"])
def test_unusable_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line says what a port is."""
    with pytest.raises(SystemExit):
        build.main([f"--port={port}"])
    assert "is no port" in capsys.readouterr().err


def test_unusable_browser_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CHROMIUM set to something that doesn't start is an error, not a silent choice of another browser."""
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="CHROMIUM must be the path of a Chromium that starts"):
        chromium.find()


def test_missing_browser_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When none can be had, the message names three ways to get one."""
    monkeypatch.setattr(chromium, "find", lambda: None)
    monkeypatch.setattr(chromium, "attempt", lambda *command, timeout: None)
    assert chromium.find_or_install() is None
    message = capsys.readouterr().err
    for way in ("apt-get install chromium", "playwright install --with-deps chromium", "CHROMIUM"):
        assert way in message
