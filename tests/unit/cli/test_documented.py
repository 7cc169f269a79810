"""Every command of the pages is one that the command line takes; those of images are tried without a container."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from runner.cli import VERBS
from runner.cli.examples import EXAMPLES
from runner.images.conversion.squashfs import parse_name
from tests.support.commands import Call
from tests.support.documented import commands, parse
from tests.support.terminal_picture import rendered

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs/images.md"
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if commands(page)]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("einops==0.8.1\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_parses(page: Path) -> None:
    for words in commands(page):
        parse(words)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_ends_with_examples_that_parse_and_a_page(verb: str, call: Call) -> None:
    page, *examples = EXAMPLES[verb]
    (ROOT / page if page == "README.md" else ROOT / "docs" / page).resolve(strict=True)
    for name in ("figures.tar", "train.py", "job.sbatch", "ours.yaml"):
        Path(name).touch()
    for example in examples:
        assert example.split()[0] == verb
        parse(shlex.split(example, comments=" #" in example))
    shown = call(verb, "--help").out
    named = page if page == "README.md" else f"gpu-runner docs {page.removesuffix('.md').removesuffix('/README')}"
    assert shown.endswith(f"More: {named}\n") and all(f" {example}\n" in shown for example in examples[:2])


@pytest.mark.parametrize(
    ("line", "says"),
    [("submit --gpsu 2", "No such option"), ("images lst", "No such command"), ("compare", "Missing argument"),
     ("logs -n x", "not a valid integer")],
)  # fmt: skip
def test_what_there_is_not_does_not_parse(line: str, says: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        parse(line.split())
    assert says in caught.value.format_message()


def test_the_picture_of_the_main_job_is_that_of_its_text() -> None:
    """``python -m tests.support.terminal_picture`` after a change of the text."""
    text = (ROOT / "docs/main-job.txt").read_text("utf-8")
    assert text.startswith("$ gpu-runner submit --gpus 16 --wait\n") and "\nverdict: measured (CPU" in text
    assert (ROOT / "docs/main-job.svg").read_text("utf-8") == rendered(text)


def test_the_page_of_images_builds_what_can_be_built(call: Call) -> None:
    """By the definition file of the same image; other builders and the package index are not asked."""
    builds = [words for words in commands(IMAGES) if words[0] == "build"]
    tried = [words for words in builds if not {"--with", "--wheels", "--requirement"} & set(words)]
    assert len(tried) >= 2
    for words in tried:
        given = ["technion" if word == "SITE" else word for word in words]
        given += [] if "--definition" in words else ["--definition", "FILE"]
        call(*given)
        assert "\nFrom: nvcr.io/nvidia/pytorch:" in Path("FILE").read_text()


def test_the_page_of_images_converts_each_kind_of_name() -> None:
    names = [words[-1].replace("[", "").replace("]", "") for words in commands(IMAGES) if words[0] == "convert"]
    kinds = [parse_name(name, "auto").kind for name in names]
    assert kinds == ["any", "registry", "registry", "docker-archive", "oci"]
