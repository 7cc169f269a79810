"""The pages that lead from login to the first result: each cluster has one, and their commands are what they seem."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from runner.cli import run
from runner.errors import Exit
from runner.sites.loader import names

PAGES = Path(__file__).parents[3] / "docs/first-result"
NO_CLUSTER = ("box", "hosts", "local", "slurm")
# What a machine that is not the cluster lacks.
NOT_HERE = re.compile(
    r"refused \[(image-unusable\]: the store"
    r"|(account-missing|path-not-visible|submit-directory|mount-source-missing)\])"
)
CLUSTERS = [name for name in names() if name not in NO_CLUSTER]


def commands(site: str) -> list[list[str]]:
    """The words of every ``python -m runner`` line in the blocks of a page."""
    lines = re.findall(r"^ {4,}python -m runner (.*)$", (PAGES / f"{site}.md").read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def test_every_cluster_has_its_page_and_the_readme_links_it() -> None:
    assert {path.stem for path in PAGES.iterdir()} == set(CLUSTERS)
    readme = (PAGES.parents[1] / "README.md").read_text()
    for site in CLUSTERS:
        assert f"(docs/first-result/{site}.md)" in readme
        assert ["submit", "--gpus", "16", "--site", site] in [words[:5] for words in commands(site)]


@pytest.mark.parametrize("site", CLUSTERS)
def test_what_a_page_submits_or_makes_is_no_wrong_usage(
    site: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a dry run, which may be refused for what is not here, but not as wrong usage."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Miniforge3-Linux-x86_64.sh").touch()
    tried = 0
    for words in commands(site):
        if words[0] == "submit" or words[:2] == ["env", "create"]:
            own = ["--scratch", str(tmp_path)] if "--scratch" not in words else []
            place = words.index("--") if "--" in words else len(words)
            dry = [] if "--dry-run" in words else ["--dry-run"]
            given = [*words[:place], *own, *dry, *words[place:]]
            code, said = run(given), capfd.readouterr().err
            assert code in (Exit.GOOD, Exit.REFUSED), (given, said)
            refused = [line for line in said.splitlines() if line.startswith("refused") and not NOT_HERE.match(line)]
            assert refused == [], given
            tried += 1
    assert tried >= 3
