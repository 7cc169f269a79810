"""Backends of other distributions: an entry point is read for a name that no built-in has, and its faults reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.errors import UsageError
from runner.core.registry import Registry
from runner.model.backends import RUNTIMES, RuntimeFacts

FACTS = "from runner.model.backends import RuntimeFacts\nFACTS = RuntimeFacts(title='X', image='none', preference=1)\n"
WHOLE = f"{FACTS}def step(plan): ...\n"


@pytest.fixture
def runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[RuntimeFacts]:
    """The runtimes, and those of distributions below ``tmp_path``, apart from what other tests look up."""
    monkeypatch.syspath_prepend(tmp_path)
    return Registry("runtime", "runner.backends.runtimes", "gpu_runner.runtimes", RuntimeFacts, where="--runtime")


def distribution(directory: Path, name: str, module: str, code: str, runtime: str = "crun") -> None:
    (directory / f"{module}.py").write_text(code)
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gpu_runner.runtimes]\n{runtime} = {module}\n")


def test_an_entry_point_is_a_backend_like_any_other(tmp_path: Path, runtimes: Registry[RuntimeFacts]) -> None:
    distribution(tmp_path, "other", "other_crun", WHOLE)
    assert "crun" not in list(runtimes), "nothing of others is loaded before it is asked for"
    assert runtimes["crun"].title == "X"
    assert next(iter(runtimes)) == "crun", "the preferred one first"
    assert set(runtimes) == {*RUNTIMES, "crun"}


def test_a_built_in_name_is_not_taken_over(tmp_path: Path, runtimes: Registry[RuntimeFacts]) -> None:
    distribution(tmp_path, "other", "other_enroot", FACTS, "enroot")
    assert runtimes["enroot"].title == "Enroot"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_module_of_theirs\n", "No module named 'no_such_module_of_theirs'"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("step = None\n", "is no module with FACTS"),
        ("FACTS = 1\n", "is no module with FACTS"),
        ("import sys; sys.exit(3)\n", "SystemExit: 3"),
        (FACTS, "has no function step"),
        (f"{FACTS}step = 1\n", "has no function step"),
    ],
)
def test_one_that_cannot_be_used_names_its_package(
    tmp_path: Path, runtimes: Registry[RuntimeFacts], code: str, says: str
) -> None:
    distribution(tmp_path, "other", f"other_{abs(hash(code))}", code)
    with pytest.raises(UsageError, match=says) as caught:
        runtimes["crun"]
    assert "package other " in caught.value.what
    assert "crun" not in runtimes.every(), "it does not keep the others from being listed"


def test_ctrl_c_while_one_is_imported_ends_the_program(tmp_path: Path, runtimes: Registry[RuntimeFacts]) -> None:
    distribution(tmp_path, "other", "other_interrupted", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        runtimes["crun"]


def test_a_name_that_two_packages_offer_is_neithers(tmp_path: Path, runtimes: Registry[RuntimeFacts]) -> None:
    distribution(tmp_path, "one", "one_crun", FACTS)
    distribution(tmp_path, "two", "two_crun", FACTS)
    with pytest.raises(UsageError, match="one, two"):
        runtimes["crun"]


@pytest.mark.parametrize("name", ["", "common", "pyxi", "podman_hpc", "../etc", "pyxis.step", "Pyxis"])
def test_a_name_that_no_backend_has_is_refused(name: str) -> None:
    assert name not in RUNTIMES
    with pytest.raises(UsageError, match="no runtime named"):
        RUNTIMES[name]
