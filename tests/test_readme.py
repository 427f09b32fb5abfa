"""What the README and the contributing guide point to exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "LICENSE-PROSE.md", "CHANGELOG.md"])
def test_relative_links_lead_somewhere(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(
        r"(?:src|srcset|href)=\"([^\"#]+)\"", text
    )
    relative = [target for target in found if "://" not in target]
    assert [target for target in relative if not (ROOT / target).exists()] == []


def test_the_readme_names_only_scripts_that_exist():
    scripts = re.findall(r"python (\w[\w/]*\.py)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert scripts
    assert [script for script in scripts if not (ROOT / script).exists()] == []
