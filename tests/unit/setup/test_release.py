"""What `make release` refuses, and that the version is one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner import __version__
from tests.support.commands import ran

CHECKOUT = Path(__file__).parents[3]
SECTION = "## [1.2.3] - 2026-11-27\n"


def test_the_version_is_one() -> None:
    """The changelog's newest section has it, or says what it becomes."""
    texts = [(CHECKOUT / name).read_text() for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md")]
    forms = (r'^version = "(.+)"$', r"^version: (.+)$", r"^(?:## \[|This becomes )(\d[\d.]*)(?:\] - |,)")
    versions = [re.search(form, text, re.MULTILINE) for form, text in zip(forms, texts, strict=True)]
    assert [match and match[1] for match in versions] == [__version__] * 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"CITATION.cff": "version: 1.2.2\n"}, "CITATION.cff has not the version of pyproject.toml, 1.2.3"),
        ({"runner/__init__.py": '__version__ = "1.2.4"\n'}, "runner/__init__.py has not the version"),
        ({"CHANGELOG.md": "## [Unreleased]\n"}, "CHANGELOG.md has no section of 1.2.3"),
        ({"CHANGELOG.md": SECTION.replace(".2.", "x2.")}, "CHANGELOG.md has no section of 1.2.3"),
        ({"new": ""}, "changes that are not committed"),
        ({}, "v1.2.3 is tagged already"),
    ],
)
def test_nothing_is_made_of_what_is_not_ready(changes: dict[str, str], says: str, tmp_path: Path) -> None:
    files = {
        "pyproject.toml": 'version = "1.2.3"\n',
        "CITATION.cff": "version: 1.2.3\n",
        "runner/__init__.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": SECTION,
    }
    (tmp_path / "runner").mkdir()
    for name, text in (files | {each: text for each, text in changes.items() if each in files}).items():
        (tmp_path / name).write_text(text)
    git = ("git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message=a"), ("tag", "v1.2.3")):
        subprocess.run([*git, *words], check=True, capture_output=True)
    if "new" in changes:
        (tmp_path / "new").touch()
    refused = ran(("sh", CHECKOUT / "runner/setup/release.sh", sys.executable), code=3, cwd=tmp_path).err
    assert says in refused and "\n  fix:   " in refused
    assert not (tmp_path / "dist").exists()
