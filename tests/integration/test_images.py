"""Images on a real engine: a private one, bases, a build that fails, a build that is interrupted, conversions."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from runner.core import paths
from runner.core.errors import InfrastructureError, ProgramFailedError, RefusedError
from runner.core.progress import Silent
from runner.images import engine
from runner.images.building import build as building
from runner.images.building.build import BuiltImage, build
from runner.images.building.engine_build import PART_LABEL
from runner.images.conversion.publishing import Conversion
from runner.images.conversion.squashfs import convert_engine_image
from runner.images.store import store
from runner.images.store.stored_image import StoredImage
from tests.support.light_base import small_root

pytestmark = pytest.mark.integration
SMALL = "gpu-runner/test-small:1"


def left_over(client: docker.DockerClient) -> tuple[set[str], set[str]]:
    """Ids of our containers, and of untagged images of ours."""
    label: dict[str, str | list[str] | bool] = {"label": PART_LABEL}
    images = client.images.list(filters={**label, "dangling": True})
    return {str(one.id) for one in client.containers.list(all=True, filters=label)}, {str(one.id) for one in images}


def host_state() -> dict[str, str]:
    """What a private engine must leave as it is (listening ports: test_host_untouched, where nothing else runs)."""
    commands = {"links": ["ip", "link"], "rules": ["iptables-save"]}
    said = {}
    for name, words in commands.items():
        if shutil.which(words[0]):
            out = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
            said[name] = re.sub(r"(?m)^#.*\n|\[\d+:\d+\]", "", out)
    etc = sorted(f"{path} {path.lstat().st_mtime_ns}" for path in Path("/etc").rglob("*"))
    groups = sorted(str(path) for path in Path("/sys/fs/cgroup").glob("**/gpu-runner-engine*/**"))
    run = sorted(str(path) for path in Path("/run").iterdir())
    mounts = sorted(line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return {
        **said,
        "etc": "\n".join(etc),
        "cgroups": "\n".join(groups),
        "mounts": "\n".join(mounts),
        "run": "\n".join(run),
    }


@pytest.fixture
def small(engine_client: docker.DockerClient) -> Iterator[str]:
    """A tiny image, with everything a root may hold; imported, as there is no registry."""
    root = io.BytesIO()
    with tarfile.open(fileobj=root, mode="w", format=tarfile.PAX_FORMAT) as tar:
        entries: tuple[tuple[str, bytes, dict[str, object]], ...] = (
            ("bin/true", b"#!", {"mode": 0o4755}),
            ("grüße/ein name/\U0001f600", b"x" * 5000, {"mode": 0o600, "uid": 1234}),
            ("deep/" * 30 + "n" * 90, b"y", {}),
            ("etc/environment", b"OLD=1\n", {}),
            ("hard", b"", {"type": tarfile.LNKTYPE, "linkname": "bin/true", "mode": 0o4755}),
            ("soft", b"", {"type": tarfile.SYMTYPE, "linkname": "../elsewhere"}),
            ("fifo", b"", {"type": tarfile.FIFOTYPE}),
        )
        for path, content, attributes in entries:
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            for key, value in attributes.items():
                setattr(entry, key, value)
            tar.addfile(entry, io.BytesIO(content))
    changes = ["ENV A='it is $HOME \"x\"'", 'ENTRYPOINT ["/bin/true", "it\'s"]', "WORKDIR /work"]
    name, tag = SMALL.split(":")
    engine_client.api.import_image_from_data(root.getvalue(), repository=name, tag=tag, changes=changes)
    yield SMALL
    engine_client.images.remove(SMALL, force=True)


def test_the_image_proved_its_horovod_and_says_what_it_is(
    engine_client: docker.DockerClient, horovod_image: BuiltImage
) -> None:
    raw = engine_client.containers.run(
        horovod_image.digest, ["/opt/runner/image.json"], entrypoint=["cat"], network_mode="none", remove=True
    )
    about = json.loads(raw)
    assert about["framework"] == "pytorch"
    assert about["framework_version"].startswith("2.13.0")
    assert about["horovod"]["version"] == "0.28.1"
    assert about["horovod"]["proven"] == ["gloo", "mpi"]
    assert about["horovod"]["controllers"] == about["horovod"]["operations"] == ["MPI", "Gloo"]
    assert about["horovod"]["nccl"] == ""
    assert horovod_image.about == about
    assert about["horovod"]["frameworks"] == ["pytorch"]
    assert (about["mpi"]["flavour"], about["mpi"]["pmi"], about["mpi"]["abi"]) == ("openmpi", ["pmix"], "libmpi.so.40")
    assert about["base_digest"] == horovod_image.base_digest
    assert horovod_image.labels["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert horovod_image.labels["gpu-runner.horovod.fixes"] == "cxx-standard"
    base = engine_client.images.get(horovod_image.base)
    assert horovod_image.size_bytes - int(base.attrs["Size"]) < 60_000_000, "what Horovod adds to the base"
    listed = engine_client.containers.run(
        horovod_image.reference, ["/opt/recipes"], entrypoint=["ls"], network_mode="none", remove=True
    )
    assert listed.strip(), "the recipes are in the image"


def test_the_base_sets_the_traps_that_ngc_sets(engine_client: docker.DockerClient, horovod_image: BuiltImage) -> None:
    said = engine_client.containers.run(
        horovod_image.reference, ["bash", "-c", "pwd; env"], network_mode="none", remove=True
    ).decode()
    assert "== PyTorch ==" in said
    assert "NVIDIA Driver was not detected" in said
    assert "\n/workspace\n" in said
    for line in ("PYTORCH_VERSION=2.13.0", "PIP_CONSTRAINT=/etc/pip/constraint.txt", "STANDIN_SHINIT=1"):
        assert f"\n{line}\n" in said


def test_an_image_with_the_same_inputs_is_up_to_date_at_once(
    engine_client: docker.DockerClient, horovod_image: BuiltImage
) -> None:
    again = build("pytorch", "standin", engine_client, Silent())
    assert again.up_to_date
    assert again.digest == horovod_image.digest
    assert again.seconds < 2


def test_a_base_without_the_framework_is_reported(engine_client: docker.DockerClient, small: str) -> None:
    before = left_over(engine_client)
    with pytest.raises(ProgramFailedError, match="cannot be a base for pytorch"):
        build("pytorch", small, engine_client, Silent())
    assert left_over(engine_client) == before


def test_a_missing_base_says_what_to_do(engine_client: docker.DockerClient) -> None:
    with pytest.raises((RefusedError, InfrastructureError)) as caught:
        build("pytorch", "registry.invalid/no/such:image", engine_client, Silent())
    assert "registry.invalid" in str(caught.value)
    assert caught.value.fix


@pytest.fixture
def broken_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped directories with another last step in the Dockerfile."""
    for name in ("containers", "recipes"):
        shutil.copytree(paths.share(name), tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(paths, "share", lambda name: tmp_path / name)
    monkeypatch.setattr(building, "image_name", lambda *_, **__: "gpu-runner/test-broken:1")
    return tmp_path / "containers" / "pytorch" / "Dockerfile"


def test_a_failing_step_is_named_with_its_last_lines_and_leaves_nothing(
    engine_client: docker.DockerClient, horovod_image: BuiltImage, broken_containers: Path
) -> None:
    before = left_over(engine_client)
    with broken_containers.open("a") as dockerfile:
        dockerfile.write("RUN echo before the end && echo to stderr >&2 && exit 7\n")
    with pytest.raises(ProgramFailedError) as caught:
        build("pytorch", "standin", engine_client, Silent())
    assert "failed with exit code 7" in caught.value.what
    assert {"before the end", "to stderr"} <= set(caught.value.what.splitlines())
    assert caught.value.where.startswith("RUN echo before the end")
    assert left_over(engine_client) == before


def test_a_proof_that_fails_fails_the_build(
    engine_client: docker.DockerClient, horovod_image: BuiltImage, broken_containers: Path
) -> None:
    prove = broken_containers.parents[1] / "horovod" / "prove.py"
    prove.write_text(prove.read_text().replace("RIGHT = [11.0", "RIGHT = [12.0"))
    with pytest.raises(ProgramFailedError, match=r"PROOF FAILED: Gloo.*reduced to"):
        build("pytorch", "standin", engine_client, Silent())


INTERRUPTED = """
import sys, pathlib
from runner.images.engine import connect
from runner.images.building import build
from runner.core.progress import Silent
share = pathlib.Path(sys.argv[1])
build.paths.share = lambda name: share / name
build.image_name = lambda *_, **__: "gpu-runner/test-broken:1"
class Loud(Silent):
    def line(self, text): print(text, flush=True)
try:
    build.build("pytorch", "standin", connect(), Loud())
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupted_build_leaves_nothing(
    engine_client: docker.DockerClient, horovod_image: BuiltImage, broken_containers: Path
) -> None:
    before = left_over(engine_client)
    with broken_containers.open("a") as dockerfile:
        dockerfile.write("RUN echo now-interrupt-me && sleep 300\n")
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(broken_containers.parents[2])], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if "now-interrupt-me" in line:
                child.send_signal(signal.SIGINT)
                break
        assert child.wait(60) == 130
    assert left_over(engine_client) == before


def test_the_stored_image_is_what_enroot_and_charliecloud_expect(
    squashfs: StoredImage, horovod_image: BuiltImage, tmp_path: Path
) -> None:
    assert squashfs.digest == horovod_image.digest
    assert squashfs.environment["PYTORCH_VERSION"] == "2.13.0"
    assert (squashfs.workdir, squashfs.entrypoint) == ("/workspace", ("/opt/nvidia/nvidia_entrypoint.sh",))
    assert squashfs.about["horovod"]["proven"] == ["gloo", "mpi"]
    wanted = ["etc/rc", "etc/rc.local", "etc/environment", "etc/fstab", "ch/environment", "etc/hosts", "results"]
    subprocess.run(["unsquashfs", "-q", "-n", "-d", tmp_path / "x", squashfs.path, *wanted], check=True)
    assert "exec '/opt/nvidia/nvidia_entrypoint.sh' \"$@\"" in (tmp_path / "x/etc/rc").read_text()
    assert "PYTORCH_VERSION=2.13.0\n" in (tmp_path / "x/etc/environment").read_text()
    assert "PYTORCH_VERSION=2.13.0\n" in (tmp_path / "x/ch/environment").read_text()
    listing = subprocess.run(
        ["unsquashfs", "-lls", squashfs.path], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert {line.split()[1] for line in listing.splitlines() if "squashfs-root" in line} == {"root/root"}
    assert listing.splitlines()[0].startswith("drwxr-xr-x")
    assert "squashfs-root/.dockerenv" not in listing
    assert "squashfs-root/dev/" not in listing


def test_lookups_need_no_engine(squashfs: StoredImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    for name in (squashfs.reference, squashfs.digest, str(squashfs.path)):
        found = store.lookup(name, squashfs.path.parent)
        assert found is not None
        assert found.path == squashfs.path


def converted(small: str, client: docker.DockerClient, directory: Path) -> Conversion:
    return convert_engine_image(small, client, Silent(), store_dir=directory)


def test_conversion_is_reproducible_kept_and_whole(
    engine_client: docker.DockerClient, small: str, tmp_path: Path
) -> None:
    one, two = (converted(small, engine_client, tmp_path / name) for name in ("one", "two"))
    assert one.image.sha256 == two.image.sha256
    again = converted(small, engine_client, tmp_path / "one")
    assert (again.made, again.image) == (False, one.image)
    root = tmp_path / "root"
    subprocess.run(["unsquashfs", "-q", "-n", "-d", root, one.image.path], check=True)
    assert (root / "grüße" / "ein name" / "\U0001f600").read_bytes() == b"x" * 5000
    assert (root / "bin/true").stat().st_mode & 0o7777 == 0o4755
    assert (root / "hard").stat().st_ino == (root / "bin/true").stat().st_ino
    assert (root / "soft").readlink() == Path("../elsewhere")
    assert (root / "fifo").is_fifo()
    assert (root / "etc/environment").read_text() == 'A=it is $HOME "x"\n'
    assert "exec '/bin/true' 'it'\\''s' \"$@\"" in (root / "etc/rc").read_text()
    assert (root / "work").is_dir()
    assert not (root / ".dockerenv").exists()
    assert list((root / "dev").iterdir()) == []


def test_a_conversion_that_fails_publishes_and_leaves_nothing(
    engine_client: docker.DockerClient, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "mksquashfs").write_text('#!/bin/sh\nhead -c 100 > "$2"; echo "No space left on device" >&2; exit 1\n')
    (tools / "mksquashfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    before = len(engine_client.containers.list(all=True))
    with pytest.raises(InfrastructureError, match="No space left") as caught:
        converted(small, engine_client, tmp_path / "store")
    assert "--store DIR" in caught.value.fix
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    assert len(engine_client.containers.list(all=True)) == before


def test_an_unknown_image_says_what_to_do(engine_client: docker.DockerClient, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no image") as caught:
        converted("gpu-runner/never:built", engine_client, tmp_path)
    assert "runner build" in caught.value.fix


def test_no_engine_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InfrastructureError, match="does not answer") as caught:
        engine.connect("unix:///nowhere/docker.sock")
    assert caught.value.code == 8
    assert caught.value.where == "--engine"


def test_a_private_engine_leaves_the_host_as_it_was() -> None:
    """Started twice, where the path is too long for a socket, and stopped: nothing but its own state is left."""
    parent = Path(tempfile.mkdtemp(prefix="engine-"))
    state = parent / ("long" * 30) / "engine"
    before = host_state()
    try:
        url = engine.start_private(state)
        assert engine.start_private(state) == url
        client = engine.connect(url)
        assert engine.needs_host_network(client)
        client.api.import_image_from_data(small_root(), repository="private", tag="1")
        assert host_state()["mounts"] == before["mounts"]
        client.close()
        assert engine.stop_private(state)
        assert not engine.stop_private(state)
        assert host_state() == before
        engine.remove_private(state)
        assert not state.exists()
    finally:
        engine.remove_private(state)
        shutil.rmtree(parent)


@pytest.mark.parametrize("left_alive", [True, False], ids=["containerd goes on", "nothing goes on"])
def test_a_private_engine_that_was_killed_starts_again(tmp_path: Path, left_alive: bool) -> None:
    state = tmp_path / "engine"
    try:
        url = engine.start_private(state)
        run_dir = Path(url.removeprefix("unix://")).parent
        pids = [int((run_dir / "dockerd.pid").read_text())]
        pids += [] if left_alive else [int((run_dir / "x/containerd/containerd.pid").read_text())]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert engine.start_private(state) == url
        engine.connect(url).close()
    finally:
        engine.remove_private(state)
