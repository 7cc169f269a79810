"""Podman as the engine, as root and rootless: an image built, converted, its faults reported; by its Docker API."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.core.errors import Exit
from runner.core.progress import Silent
from runner.images import engine
from runner.images.building.build import build
from runner.images.conversion.engine_source import Method
from runner.images.conversion.squashfs import convert_engine_image
from tests.support import light_base, podman
from tests.support.build_bench import BASE, Bench, read_until, wait_until_settled

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=[False, True], ids=["root", "rootless"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    work = tmp_path_factory.mktemp("work")
    for place in ("cache", "tmp"):
        (work / place).mkdir()
    with podman.running(rootless=request.param) as url:
        client = engine.connect(url)
        client.api.import_image_from_data(light_base.archive(), repository=BASE, changes=list(light_base.CHANGES))
        yield Bench(client, url, work, work)


@pytest.fixture(autouse=True)
def own_cache(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(bench.work / "cache"))


def test_an_image_is_built_and_kept_and_converted(bench: Bench, tmp_path: Path) -> None:
    built = build("pytorch", BASE, bench.client, Silent())
    assert built.labels["gpu-runner.framework"] == "pytorch"
    assert built.labels["org.opencontainers.image.base.digest"] == built.base_digest
    assert build("pytorch", BASE, bench.client, Silent()).up_to_date
    found = {}
    ways: tuple[Method, ...] = ("stream", "auto")
    for way in ways:
        done = convert_engine_image(built.reference, bench.client, Silent(), store_dir=tmp_path / way, method=way)
        assert done.image.about["base"] == BASE
        assert done.image.environment["LIGHT"] == "a b"
        assert done.image.workdir == "/workspace"
        found[way] = done.image.sha256
    assert found["stream"] == found["auto"]
    again = convert_engine_image(built.reference, bench.client, Silent(), store_dir=tmp_path / "auto")
    assert not again.made


def test_a_step_that_fails_is_reported_and_leaves_nothing(bench: Bench) -> None:
    bench.build(code=Exit.GOOD)
    before = bench.counted()
    said = bench.build("echo the last word && exit 7", code=Exit.PROGRAM_FAILED)
    assert "the last word" in said
    assert "RUN echo the last word" in said
    wait_until_settled(bench, before)


def test_ctrl_c_is_an_interruption(bench: Bench) -> None:
    """Podman 4.3 ends the step that runs at its own end only, and keeps its layers for the next build."""
    child = bench.start("echo now && sleep 20")
    read_until(child, "    now")
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said.splitlines()[-1]) == (Exit.INTERRUPTED, "interrupted")
    assert bench.client.containers.list(all=True) == []


def test_a_base_that_is_not_there(bench: Bench) -> None:
    before = bench.counted()
    assert "127.0.0.1:1" in bench.build(code=Exit.INFRASTRUCTURE, base="127.0.0.1:1/nvidia/pytorch:1")
    assert bench.counted() == before
