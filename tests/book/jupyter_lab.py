"""A JupyterLab for the tests: a folder and settings of its own, nothing asked of any other host."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving import ROOT

# What JupyterLab would ask of other hosts by itself: its news, and whether there is a newer version.
QUIET = ("--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate")
QUIET += ("--LabApp.extension_manager=readonly",)


@contextmanager
def jupyter_lab(folder: Path, settings: dict[str, object], *, patience: float = 90) -> Iterator[str]:
    """Serve the notebooks of `folder` with these settings; gives the address.

    Args:
        folder: an empty folder; the notebooks go into its folder `notebooks`.
        settings: JupyterLab's, by the name of the plugin, as in `overrides.json`.
        patience: seconds that it may take to start.
    """
    notebooks = folder / "notebooks"
    for path in (notebooks, folder / "app"):
        path.mkdir(exist_ok=True)
    (folder / "app" / "overrides.json").write_text(json.dumps(settings), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    places += ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    environment = {**os.environ, **{place: str(folder / place.lower()) for place in places}}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "book")])
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="]
    command += [f"--ServerApp.root_dir={notebooks}", f"--LabApp.app_settings_dir={folder / 'app'}"]
    command += ["--LabApp.expose_app_in_browser=True", *QUIET]
    address = f"http://127.0.0.1:{port}"
    log = folder / "server.log"
    with log.open("w", encoding="utf-8") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait(address, server, log, patience)
            yield address
        finally:
            server.terminate()  # it ends its kernels
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _wait(address: str, server: subprocess.Popen[bytes], log: Path, patience: float) -> None:
    end = time.monotonic() + patience
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/api/status", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')[-3000:]}")
