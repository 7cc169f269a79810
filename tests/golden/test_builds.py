"""What builders without an engine are given, compared byte for byte: it must be what the Dockerfile says.

After a deliberate change of a Dockerfile: ``pytest tests/golden --update-goldens``, and read the diff.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from runner.core import paths
from runner.images.building import apptainer, dockerfile
from runner.images.building.dockerfile import Stage
from runner.images.building.without_engine import arguments, dockerfile_stages
from runner.images.reference import DEFAULT_BASES

BUILDS = Path(__file__).parent / "builds"
DIGEST = "sha256:1f0ce1d2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6"
CONTEXT = paths.share("containers").parent


def is_directory(source: str) -> bool:
    return (CONTEXT / source).is_dir()


def read(framework: str) -> tuple[Stage, ...]:
    args = {"LEGACY_KERAS": "0"} if framework == "tensorflow" else {}
    values = {**arguments(framework, DEFAULT_BASES[framework], args, base_digest=DIGEST), "SOURCE": "0123abc"}
    return dockerfile_stages(framework, values)


def as_definition(framework: str) -> str:
    return apptainer.definition(read(framework), Path("/opt/gpu-runner"), is_directory, ("As `--definition` has it.",))


def as_script(framework: str, number: int) -> str:
    return dockerfile.stage_script(read(framework)[number], is_directory)


WRITTEN: dict[str, Callable[[], str]] = {
    "pytorch.def": partial(as_definition, "pytorch"),
    "tensorflow.def": partial(as_definition, "tensorflow"),
    "pytorch-wheel.sh": partial(as_script, "pytorch", 0),
    "tensorflow-image.sh": partial(as_script, "tensorflow", 1),
}


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_written(name: str, request: pytest.FixtureRequest) -> None:
    text, file = WRITTEN[name](), BUILDS / name
    if request.config.getoption("--update-goldens"):
        BUILDS.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


def test_every_golden_belongs_to_a_case() -> None:
    assert {path.name for path in BUILDS.iterdir()} == set(WRITTEN)
