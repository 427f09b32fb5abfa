"""Links that follow from the repository's address.

`repository.url` in `_config.yml` is the only place where the address stands. While it is empty no page
links to a repository. Once it is set, every page gets the repository, edit and issue buttons, notebooks get
launch buttons, and the `hosted-install` directive shows the line that installs the library in a hosted
notebook.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.errors import ConfigError
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

ADDRESS = re.compile(
    r"https://(?P<host>github\.com|gitlab\.com|bitbucket\.org)/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)"
)
UNKNOWN = "ADDRESS_OF_THE_REPOSITORY"
# Where a reader runs a notebook without installing anything; both open public repositories only.
LAUNCH = {"colab_url": "https://colab.research.google.com", "binderhub_url": "https://mybinder.org"}


def check_address(address: str) -> str:
    """`address` without a trailing slash, or "" when it isn't set.

    Raises ConfigError when it is set to something that no link can be made of.
    """
    address = (address or "").strip().rstrip("/").removesuffix(".git")
    if address and not ADDRESS.fullmatch(address):
        raise ConfigError(
            f"repository.url in _config.yml is {address!r}; it must be empty or like "
            "https://github.com/OWNER/NAME (GitHub, GitLab or Bitbucket)"
        )
    return address


def theme_options(address: str) -> dict[str, Any]:
    """The theme's options for a repository at `address`; with "" they turn every link to it off."""
    known = bool(address)
    options: dict[str, Any] = dict.fromkeys(
        ("use_repository_button", "use_edit_page_button", "use_issues_button"), known
    )
    options["repository_url"] = address
    on_github = address.startswith("https://github.com/")
    options["launch_buttons"] = {"notebook_interface": "jupyterlab", **(LAUNCH if on_github else {})}
    return options


def install_line(address: str, branch: str) -> str:
    """The line that installs the library, with what BertViz views need, in a hosted notebook."""
    source = f"git+{address}@{branch}" if address else f"git+{UNKNOWN}"
    return f'%pip install "tx_from_scratch[bertviz] @ {source}"'


def configure(app: Sphinx, config: Config) -> None:
    """Derive the theme's options from the one variable."""
    options = config.html_theme_options
    options.update(theme_options(check_address(options.get("repository_url", ""))))


class HostedInstall(SphinxDirective):
    """The install line for hosted notebooks; it names a stand-in while the address isn't known."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """A code block with one line."""
        options = self.config.html_theme_options
        branch = options.get("repository_branch") or "main"
        line = install_line(check_address(options.get("repository_url", "")), branch)
        return [nodes.literal_block(line, line, language="ipython3", classes=["tx-hosted-install"])]


def setup(app: Sphinx) -> None:
    """Run before the theme reads its options (at `builder-inited`)."""
    app.add_directive("hosted-install", HostedInstall)
    app.connect("config-inited", configure, priority=20)
