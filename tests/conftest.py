"""Options of the test run, and the parts that integration tests share, each made once: an engine, the image, its
squashfs, a cluster. In continuous integration (``CI`` set) no selected test may skip.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests.support.commands import Runner

if TYPE_CHECKING:
    import docker

    from runner.box import Box
    from runner.images.building.build import BuiltImage
    from runner.images.store.stored_image import StoredImage
    from tests.support.daemons import Daemons

_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)
# Started in the background by a shell, this process ignores SIGINT, and so would every child that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The configuration of the user who runs the tests stays out of them.
os.environ["RUNNER_CONFIG"] = os.devnull + "/no-configuration"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden scripts anew; read the diff")
    parser.addoption("--leave", type=Path, metavar="FILE", help="leave the reports of this run for --count-in")
    parser.addoption(
        "--count-in", type=Path, metavar="FILE", help="the reports of an earlier run are part of this one's"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the modules to the processes of pytest-xdist: else those of one directory, most of which wait, come last."""
    if hasattr(config, "workerinput"):
        modules = dict.fromkeys(item.path for item in items)
        turns = {path: number % config.workerinput["workercount"] for number, path in enumerate(modules)}
        items.sort(key=lambda item: turns[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A failure of the earlier run is one of this run. With ``-k``, one of the two may have no test."""
    earlier = earlier_reports(session.config)
    empty = session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.getoption("keyword")
    if empty and (session.config.getoption("leave") or any(earlier.values())):
        session.exitstatus = pytest.ExitCode.OK
    if (earlier.get("failed") or earlier.get("error")) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One account of both runs, and the wall time of all of ``make test``, above pytest's own last line."""
    config = terminalreporter.config
    if hasattr(config, "workerinput"):
        return  # one of the processes of pytest-xdist, each of which has a part of the reports
    count_in(earlier_reports(config), terminalreporter)
    if config.getoption("leave"):
        leave(config.getoption("leave"), terminalreporter)
    began = os.environ.get("MAKE_TEST_BEGAN")
    if began:
        terminalreporter.write_line(f"wall time of make test so far: {time.time() - int(began):.0f} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _without_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _without_skip((yield))


def _without_skip(report: _Report) -> _Report:
    """In continuous integration what is skipped has failed."""
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped in continuous integration: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def engine_client() -> docker.DockerClient:
    """The engine that answers, else the private one below the cache directory; it is left running."""
    from runner.core.errors import RefusedError
    from runner.images import engine

    try:
        return engine.connect()
    except RefusedError:
        return engine.connect(engine.start_private(engine.private_state()))


def _built(framework: str, client: docker.DockerClient) -> BuiltImage:
    """Its image on the stand-in base: by the very Dockerfile that is used on NGC."""
    from runner.core.progress import Silent
    from runner.images.building.build import build

    return build(framework, "standin", client, Silent())


def _stored(image: BuiltImage, client: docker.DockerClient) -> StoredImage:
    from runner.core.progress import Silent
    from runner.images.conversion.squashfs import convert_engine_image

    return convert_engine_image(image.reference, client, Silent()).image


@pytest.fixture(scope="session")
def horovod_image(engine_client: docker.DockerClient) -> BuiltImage:
    return _built("pytorch", engine_client)


@pytest.fixture(scope="session")
def tensorflow_image(engine_client: docker.DockerClient) -> BuiltImage:
    return _built("tensorflow", engine_client)


@pytest.fixture(scope="session")
def squashfs(engine_client: docker.DockerClient, horovod_image: BuiltImage) -> StoredImage:
    return _stored(horovod_image, engine_client)


@pytest.fixture(scope="session")
def tensorflow_squashfs(engine_client: docker.DockerClient, tensorflow_image: BuiltImage) -> StoredImage:
    return _stored(tensorflow_image, engine_client)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Box]:
    from tests.support.daemons import own_box

    with own_box("test") as box:
        yield box


@pytest.fixture(scope="session")
def runner(cluster: Box, squashfs: StoredImage, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The command line against that box, with the image in the store."""
    return Runner.at(cluster.site, tmp_path_factory.mktemp("runs"), cluster.bin_dir, runs="my runs")


@pytest.fixture(scope="session")
def ch_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the ch-run of the box's root, as this machine's own."""
    from runner.box import DEFAULT_SLURM, root

    box_root = root.ensure(DEFAULT_SLURM, lambda _line: None).path
    directory = tmp_path_factory.mktemp("bin")
    loader, libraries = box_root / "lib64/ld-linux-x86-64.so.2", box_root / f"usr/lib/{os.uname().machine}-linux-gnu"
    program = directory / "ch-run"
    program.write_text(f'#!/bin/sh\nexec {loader} --library-path {libraries} {box_root}/usr/bin/ch-run "$@"\n')
    program.chmod(0o755)
    return directory


@pytest.fixture
def local(tmp_path: Path) -> Runner:
    """The command line with this machine as its site; ``runs`` and PATH hold what quoting is for."""
    return Runner.at("local", tmp_path, runs="my $runs")


@pytest.fixture
def contained(tmp_path: Path, squashfs: StoredImage, ch_run: Path) -> Runner:
    """The same, for containers: the image is in the store."""
    return Runner.at("local", tmp_path, PATH=f"{ch_run}:{os.environ['PATH']}")


@pytest.fixture(scope="session")
def daemons() -> Iterator[Daemons]:
    """The daemons of a second box, to be ended at will: its cluster is ill now and then."""
    from tests.support.daemons import Daemons, own_box

    with own_box("faults") as box:
        yield Daemons(box)


@pytest.fixture(scope="session")
def ill(daemons: Daemons, squashfs: StoredImage, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The command line against that second box."""
    return Runner.at(daemons.box.site, tmp_path_factory.mktemp("ill"), daemons.box.bin_dir)


COUNTED = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")


def leave(path: Path, reporter: pytest.TerminalReporter) -> None:
    """Write the reports of this run; which process made each is left out."""
    serialise = reporter.config.hook.pytest_report_to_serializable
    reports = {
        category: [
            {**serialise(config=reporter.config, report=each), "node": None}
            for each in reporter.stats.get(category, [])
        ]
        for category in COUNTED
    }
    path.write_text(json.dumps(reports), "utf-8")


def earlier_reports(config: pytest.Config) -> dict[str, list[dict[str, Any]]]:
    """Those that an earlier run has left, by category; nothing where there was none."""
    path: Path | None = config.getoption("count_in")
    reports: dict[str, list[dict[str, Any]]] = json.loads(path.read_text("utf-8")) if path else {}
    return reports


def count_in(earlier: dict[str, list[dict[str, Any]]], reporter: pytest.TerminalReporter) -> None:
    """Add the reports that an earlier run has left to those of this one."""
    read = reporter.config.hook.pytest_report_from_serializable
    for category, reports in earlier.items():
        for each in reports:
            report = read(config=reporter.config, data=each)
            if isinstance(report.longrepr, list):
                report.longrepr = tuple(report.longrepr)  # of a skipped test; JSON knows no tuples
            reporter.stats.setdefault(category, []).append(report)
