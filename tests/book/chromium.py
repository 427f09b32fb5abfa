"""Find a Chromium for the browser tests, or install one by the platform's usual means."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "msedge",
)
PLACES = {
    "Darwin": (
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "/Applications/Chromium.app/Contents/MacOS/Chromium",
        "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
    ),
    "Windows": (
        r"C:\Program Files\Google\Chrome\Application\chrome.exe",
        r"C:\Program Files (x86)\Google\Chrome\Application\chrome.exe",
        r"C:\Program Files (x86)\Microsoft\Edge\Application\msedge.exe",
    ),
}
ARGUMENTS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
]
HELP = """\
No Chromium was found and none could be installed, so the browser tests can't run. Any of these helps:
  - install Chromium, Chrome or Edge (Debian and Ubuntu: apt-get install chromium)
  - python -m playwright install --with-deps chromium
  - set the environment variable CHROMIUM to the path of such a program"""


def works(path: str) -> bool:
    """Whether the program starts at all; a download may lack the system's libraries."""
    if not Path(path).is_file():
        return False
    if platform.system() == "Windows":  # there, --version opens a window
        return True
    try:
        return (
            subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def downloaded() -> str | None:
    """The path of playwright's own Chromium, whether or not it has been downloaded."""
    code = (
        "from playwright.sync_api import sync_playwright\n"
        "with sync_playwright() as playwright: print(playwright.chromium.executable_path)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def find() -> str | None:
    """A Chromium that works: CHROMIUM, then the usual names and places, then playwright's own.

    Raises ValueError when CHROMIUM is set to something that doesn't start.
    """
    given = os.environ.get("CHROMIUM")
    if given:
        if not works(given):
            raise ValueError(f"CHROMIUM must be the path of a Chromium that starts; it is {given!r}")
        return given
    candidates = [*(shutil.which(name) for name in NAMES), *PLACES.get(platform.system(), ())]
    return next((path for path in candidates if path and works(path)), None) or next(
        (path for path in [downloaded()] if path and works(path)), None
    )


def attempt(*command: str, timeout: int) -> None:
    """Run a command that may fail."""
    print("trying:", " ".join(command), flush=True)
    environment = {
        **os.environ,
        "DEBIAN_FRONTEND": "noninteractive",
        "PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": "10000",
    }
    try:
        subprocess.run(command, env=environment, check=False, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)


def find_or_install() -> str | None:
    """A Chromium that works, installed if need be; None, after saying what to do, when none can be had."""
    found = find()
    if found:
        return found
    attempt(sys.executable, "-m", "playwright", "install", "chromium", timeout=240)
    found = find()
    if not found and shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        attempt("apt-get", "update", timeout=240)
        attempt("apt-get", "install", "--yes", "--no-install-recommends", "chromium", timeout=600)
        found = find()
    if not found:
        print(HELP, file=sys.stderr)
    return found
