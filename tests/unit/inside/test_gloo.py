"""A Horovod that cannot meet in the rendezvous stops a measurement in words, before each rank is a world of its own."""

import json
from pathlib import Path

import pytest

from tests.support.launchers import by_names, start

GLOO = b"\0HOROVOD_GLOO_RENDEZVOUS_ADDR\0"


def horovod(site: Path, *libraries: bytes) -> None:
    """A package with the libraries of so many frameworks, which nothing can load."""
    for number, content in enumerate(libraries):
        (site / f"horovod/framework{number}").mkdir(parents=True)
        (site / f"horovod/framework{number}/mpi_lib.so").write_bytes(b"\x7fELF" + content)
    (site / "horovod").mkdir(parents=True, exist_ok=True)
    (site / "horovod/__init__.py").write_text("raise ImportError('this would load a framework')\n")


def launched(tmp_path: Path, framework: str, wireup: str = "rendezvous") -> list[tuple[int, str]]:
    """Exit code and output of two ranks on this machine."""
    run = tmp_path / "run"
    (run / "ranks").mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"framework": framework}))
    port = {"RUNNER_RDV_PORT": "0" if wireup == "env" else "27431", "PYTHONPATH": str(tmp_path / "site")}
    words = ["--world", "2", "--wireup", wireup, "--bind", "none", "--", "true"]
    return [task.end() for task in [start(run, words, rank, by_names(rank, 2) | port) for rank in range(2)]]


def test_a_measurement_is_not_started(tmp_path: Path) -> None:
    horovod(tmp_path / "site", b"HOROVOD_CONTROLLER")
    for code, said in launched(tmp_path, "horovod"):
        assert code == 117
        assert "horovod-without-gloo: Horovod here has no Gloo" in said
        assert "--wireup pmix" in said
    exits = [json.loads(path.read_text()) for path in (tmp_path / "run/ranks").glob("*.exit.json")]
    assert {each["error"] for each in exits} == {"horovod-without-gloo"}


@pytest.mark.parametrize(
    ("libraries", "framework", "wireup", "warned"),
    [
        ((b"x", GLOO), "horovod", "rendezvous", False),
        ((), "horovod", "rendezvous", False),
        ((b"x",), "none", "rendezvous", True),
        ((b"x",), "horovod", "env", False),
        ((b"x",), "horovod", "torchrun", False),
    ],
)
def test_what_meets_in_another_way_or_by_gloo_is_started(
    tmp_path: Path, libraries: tuple[bytes, ...], framework: str, wireup: str, warned: bool
) -> None:
    horovod(tmp_path / "site", *libraries)
    for code, said in launched(tmp_path, framework, wireup):
        assert code == 0, said
        assert ("Horovod here has no Gloo" in said) is warned
