"""Builds that go wrong on real engines of this test's own: what is reported, with which code, and what is left behind.

All containers, images and files are counted before and after; the table is in docs/proofs.md. And Podman as the engine,
as root and rootless, by its Docker API: an image built, converted, its faults reported.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from runner.core.errors import Exit, InfrastructureError
from runner.core.progress import Silent
from runner.images import engine
from runner.images.building.build import build
from runner.images.conversion.engine_source import Method
from runner.images.conversion.squashfs import convert_engine_image
from tests.support import light_base
from tests.support.build_bench import BASE, SLOW, Bench, read_until, start_bench, wait_until_settled
from tests.support.packages import unpacked
from tests.support.users import UNPRIVILEGED, become
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    state = Path(tempfile.mkdtemp(prefix="engine-"))
    try:
        yield start_bench(state, work_directory(tmp_path_factory))
    finally:
        engine.remove_private(state)


# The base and what a build says once it is in a step, and while the base is inspected.
MOMENTS = pytest.mark.parametrize(
    ("base", "words"), [(BASE, "    now"), (SLOW, "finding out which Horovod the base needs")], ids=["step", "asked"]
)


@MOMENTS
def test_ctrl_c_leaves_nothing(bench: Bench, base: str, words: str) -> None:
    before = bench.counted()
    child = bench.start("echo now && sleep 300", base=base)
    read_until(child, words)
    running(bench)
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said.splitlines()[-1]) == (Exit.INTERRUPTED, "interrupted")
    assert bench.counted() == before


def running(bench: Bench) -> None:
    until(bench.client.containers.list, "a container", every_s=0.05)


@MOMENTS
def test_killed_outright_and_swept_by_the_next_build(bench: Bench, base: str, words: str) -> None:
    before = bench.counted()
    child = bench.start("echo now && sleep 300", base=base)
    read_until(child, words)
    running(bench)
    child.kill()
    child.communicate(timeout=60)
    bench.build("echo the next && exit 7", code=Exit.PROGRAM_FAILED)
    wait_until_settled(bench, before)


def test_an_engine_that_dies_in_the_middle_and_comes_back(bench: Bench) -> None:
    before = bench.counted()
    child = bench.start("echo now && sleep 300")
    read_until(child, "    now")
    os.kill(int((Path(bench.url.removeprefix("unix://")).parent / "dockerd.pid").read_text()), signal.SIGKILL)
    said, _ = child.communicate(timeout=120)
    assert "Traceback" not in said, said
    assert child.returncode == Exit.INFRASTRUCTURE
    assert "the engine went away in the middle of the build" in said
    assert engine.start_private(bench.state) == bench.url
    bench.build("echo the next && exit 7", code=Exit.PROGRAM_FAILED)
    wait_until_settled(bench, before)


def test_a_full_disk_of_the_engine(tmp_path: Path) -> None:
    """Its data lie in 100 MB of memory, of which the base takes some."""
    state = Path(tempfile.mkdtemp(prefix="engine-"))
    for place in (state / "data", tmp_path / "cache", tmp_path / "tmp"):
        place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100M", "tmpfs", state / "data"], check=True)
    try:
        bench = start_bench(state, tmp_path)
        before = bench.counted()
        said = bench.build("dd if=/dev/zero of=/big bs=1M count=200", code=Exit.INFRASTRUCTURE)
        assert "the engine's disk is full" in said
        assert "docker system df" in said
        assert bench.counted() == before
        bench.build(code=Exit.GOOD)
    finally:
        engine.stop_private(state)
        subprocess.run(["umount", "--lazy", state / "data"], check=True)
        engine.remove_private(state)


@pytest.fixture(scope="module", params=[False, True], ids=["root", "rootless"])
def podman_bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    work = work_directory(tmp_path_factory)
    with podman(rootless=request.param) as url:
        client = engine.connect(url)
        client.api.import_image_from_data(light_base.archive(), repository=BASE, changes=list(light_base.CHANGES))
        yield Bench(client, url, work, work)


@contextmanager
def podman(*, rootless: bool) -> Iterator[str]:
    root = unpacked("podman", *_OTHERS)
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="podman-", ignore_cleanup_errors=True) as place,
    ):
        state = Path(place)
        (state / "containers.conf").write_text(_CONFIGURATION.format(state=state))
        for directory in ("home", "run"):
            (state / directory).mkdir(mode=0o700)
        variables = [f"HOME={state}/home", f"XDG_RUNTIME_DIR={state}/run", f"CONTAINERS_CONF={state}/containers.conf"]
        words = ["env", *variables, "podman", "--cgroup-manager", "cgroupfs", "--runtime", "runc"]
        if rootless:
            patch.setenv("RUNNER_TRUST", str(UNPRIVILEGED))
            for path in (state, *state.rglob("*")):
                os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
            words = [*become(UNPRIVILEGED), *words]
        else:
            words += ["--root", f"{state}/data", "--runroot", f"{state}/run/root"]
        url = f"unix://{state}/podman.sock"
        words += ["system", "service", "--time", "0", url]
        spaces = ["--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc"]
        start = ["unshare", *spaces, "sh", "-c", _START, "sh", str(root), *words]
        with (state / "log").open("wb") as log:
            child = subprocess.Popen(start, stdout=log, stderr=log, cwd=state)
        try:
            yield _answering(url, child, state / "log")
        finally:
            for first in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split():
                os.kill(int(first), signal.SIGKILL)  # and with it all of its process namespace
            child.wait(30)


def test_a_step_that_fails_under_podman(podman_bench: Bench) -> None:
    podman_bench.build(code=Exit.GOOD)
    before = podman_bench.counted()
    said = podman_bench.build("echo the last word && exit 7", code=Exit.PROGRAM_FAILED)
    for words in ("exit status 7", "the last word", "RUN echo the last word"):
        assert words in said
    wait_until_settled(podman_bench, before)


def test_an_image_is_built_and_kept_and_converted(
    podman_bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(podman_bench.work / "cache"))
    client = podman_bench.client
    built = build("pytorch", BASE, client, Silent())
    assert built.labels["gpu-runner.framework"] == "pytorch"
    assert built.labels["org.opencontainers.image.base.digest"] == built.base_digest
    assert build("pytorch", BASE, client, Silent()).up_to_date
    sums = set()
    ways: tuple[Method, ...] = ("stream", "auto")
    for way in ways:
        image = convert_engine_image(built.reference, client, Silent(), store_dir=tmp_path / way, method=way).image
        assert (image.about["base"], image.environment["LIGHT"], image.workdir) == (BASE, "a b", "/workspace")
        sums.add(image.sha256)
    assert len(sums) == 1
    assert not convert_engine_image(built.reference, client, Silent(), store_dir=tmp_path / "auto").made


def test_ctrl_c_is_an_interruption(podman_bench: Bench) -> None:
    """Podman 4.3 ends the step that runs at its own end only, and keeps its layers for the next build."""
    child = podman_bench.start("echo now && sleep 20")
    read_until(child, "    now")
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said.splitlines()[-1]) == (Exit.INTERRUPTED, "interrupted")
    assert podman_bench.client.containers.list(all=True) == []


def test_a_base_that_is_not_there(podman_bench: Bench) -> None:
    before = podman_bench.counted()
    assert "127.0.0.1:1" in podman_bench.build(code=Exit.INFRASTRUCTURE, base="127.0.0.1:1/nvidia/pytorch:1")
    assert podman_bench.counted() == before


_OTHERS = (
    *("conmon", "golang-github-containers-common", "golang-github-containers-image", "libgpgme11", "libassuan0"),
    *("libsubid4", "libdevmapper1.02.1", "libyajl2", "libostree-1-1", "catatonit"),
)
# No network of its own, nothing in the host's /etc, no cgroups by systemd.
_CONFIGURATION = """[containers]
default_ulimits = []
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
[network]
network_config_dir = "{state}/networks"
"""
# Arguments: the unpacked root, the words that become the user.
_START = """set -e
root=$1; shift
mount -t overlay overlay -o "lowerdir=$root/lib:/usr/lib" /usr/lib
mount -t overlay overlay -o "lowerdir=$root/usr:/usr" /usr
mount -t overlay overlay -o "lowerdir=$root/etc:/etc" /etc
exec "$@"
"""


def _answering(url: str, child: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(600):
        assert child.poll() is None, log.read_text()
        with suppress(InfrastructureError):
            engine.connect(url).close()
            return url
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def work_directory(factory: pytest.TempPathFactory) -> Path:
    work = factory.mktemp("work")
    for place in ("cache", "tmp"):
        (work / place).mkdir()
    return work
