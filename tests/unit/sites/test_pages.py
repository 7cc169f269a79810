"""The page of each cluster: its commands are what they seem, and its lines of a job script stand in the script that is
made.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from runner.cli import run
from runner.core.errors import Exit
from runner.model.backends import RUNTIMES
from runner.sites.loader import names, read_site
from tests.support.documented import commands
from tests.support.sites.ways import own_values

PAGES = Path(__file__).parents[3] / "docs/first-result"
# Pages with jobs, and how many at least.
GPU, SCALE, METER = (PAGES.parent / f"{name}.md" for name in ("gpu", "scale", "meter"))
LEAST = {GPU: 6, SCALE: 2, METER: 1}
OVERVIEW = PAGES / "README.md"
RECIPES = PAGES.parent / "recipes"
REGISTRYS = "registry.nersc.gov/m1234/horovod:25.02"
NO_CLUSTER = ("box", "hosts", "local", "slurm")
# What a machine that is not the cluster lacks.
NOT_HERE = re.compile(
    r"refused \[(image-unusable\]: the store"
    r"|(account-missing|path-not-visible|submit-directory|mount-source-missing)\])"
)
CLUSTERS = [name for name in names() if name not in NO_CLUSTER]


def own(site: str) -> list[str]:
    """What an example leaves to the user's configuration; an image of a registry for a runtime that takes no other."""
    facts = read_site(site)
    image = ["--image", REGISTRYS] if RUNTIMES[facts.runtimes[0]].image == "registry" else []
    return [*own_values(site), *image]


def rows_of(page: Path) -> list[list[str]]:
    """The words of every ``submit``, ``scale`` and ``expect`` in the table of a recipe's page."""
    lines = re.findall(r"^\|.*`gpu-runner ((?:submit|scale|expect) [^`]*)`", page.read_text(), re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_cluster_has_its_page_and_it_is_linked() -> None:
    assert {path.stem for path in PAGES.iterdir()} == {"README", *CLUSTERS}
    readme, overview = (PAGES.parents[1] / "README.md").read_text(), OVERVIEW.read_text()
    assert "(docs/first-result/README.md)" in readme
    for site in CLUSTERS:
        assert f"({site}.md)" in overview
        assert ["submit", "--gpus", "16", "--site", site] in [words[:5] for words in commands(PAGES / f"{site}.md")]


@pytest.mark.parametrize("site", CLUSTERS)
def test_the_lines_of_a_pages_script_are_those_of_the_dry_run(
    site: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = PAGES / f"{site}.md"
    stated = re.findall(r"^    ((?:#[A-Z]+|module) .*)$", page.read_text(), re.MULTILINE)
    dry = next(words for words in commands(page) if "--dry-run" in words)
    run([*dry, "--scratch", str(tmp_path)])
    script = [line.removesuffix(" || exit 74") for line in capfd.readouterr().out.splitlines()]
    assert len(stated) >= 5
    assert [line for line in stated if line not in script] == []


def tried(words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As a dry run, which may be refused for what is not here, but not as wrong usage."""
    own = ["--scratch", str(tmp_path)] if "--scratch" not in words else []
    place = words.index("--") if "--" in words else len(words)
    dry = [] if "--dry-run" in words else ["--dry-run"]
    given = [*words[:place], *own, *dry, *words[place:]]
    code, said = run(given), capfd.readouterr().err
    assert code in (Exit.GOOD, Exit.REFUSED), (given, said)
    refused = [line for line in said.splitlines() if line.startswith("refused [") and not NOT_HERE.match(line)]
    assert refused == [], given


@pytest.mark.parametrize("site", CLUSTERS)
def test_the_session_of_the_tutorials_is_no_wrong_usage_anywhere(
    site: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    session = [words for words in commands(OVERVIEW) if words[0] == "submit"]
    assert len(session) >= 7
    for words in session:
        given = [site if word == "SITE" else word for word in words]
        tried([given[0], *own(site), *given[1:]], tmp_path, capfd)


def test_the_tutorials_look_at_a_script(capfd: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[2] / "support/training_scripts/correct/c01.py"
    checks = [words for words in commands(OVERVIEW) if words[:2] == ["recipe", "check"]]
    assert checks == [["recipe", "check", "train.py"]]
    assert run(["recipe", "check", str(script)]) == Exit.GOOD
    assert "8 average metrics" in capfd.readouterr().out


@pytest.mark.parametrize("page", [*LEAST, *(PAGES / f"{site}.md" for site in CLUSTERS)], ids=str)
def test_what_a_page_submits_or_makes_is_no_wrong_usage(
    page: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("Miniforge3-Linux-x86_64.sh", "train.py"):
        (tmp_path / name).touch()
    made = [words for words in commands(page) if words[0] in ("submit", "scale") or words[:2] == ["env", "create"]]
    made = [words for words in made if "--resume" not in words]
    assert len(made) >= LEAST.get(page, 3)
    for words in made:
        site = ["--site", "technion"] if words[0] != "env" and "--site" not in words else []
        tried([{"SITE": "technion", "DIR": str(tmp_path)}.get(word, word) for word in (words[0], *site, *words[1:])],
              tmp_path, capfd)  # fmt: skip


@pytest.mark.parametrize("page", sorted(page for page in RECIPES.glob("*.md") if rows_of(page)), ids=lambda p: p.stem)
def test_a_recipes_commands_are_no_wrong_usage_on_any_cluster(
    page: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    submits = [words for words in rows_of(page) if words[0] == "submit"]
    assert {"SITE", "local", "box"} <= {words[words.index("--site") + 1] for words in submits}
    for words in submits:
        for site in CLUSTERS if "SITE" in words else [""]:
            image = REGISTRYS if site == "perlmutter" else "mine:1"
            given = [{"SITE": site, "IMAGE": image}.get(word, word) for word in words]
            # What `--site local` takes by itself depends on what this machine has.
            runtime = ["--runtime", "charliecloud"] if "local" in words and "--runtime" not in words else []
            tried([given[0], *((site and own(site)) or runtime), *given[1:]], tmp_path, capfd)


def test_every_recipe_has_commands_on_a_page() -> None:
    of_pages = {words[words.index("--recipe") + 1] for page in RECIPES.glob("*.md") for words in rows_of(page)
                     if "--recipe" in words}  # fmt: skip
    shipped = {path.parent.name for path in (PAGES.parents[1] / "recipes").glob("*/recipe.yaml")}
    assert shipped - of_pages == {"horovod-pytorch", "horovod-train-keras", "prove"}
