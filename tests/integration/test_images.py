"""Images on a real engine: bases, a build that fails, a build that is interrupted, conversions; private engines."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from runner.core import paths
from runner.core.errors import ProgramFailedError, RefusedError
from runner.core.progress import Silent
from runner.images.building import build as building
from runner.images.building.build import BuiltImage, build
from runner.images.conversion.squashfs import convert_engine_image
from runner.images.store import store
from runner.images.store.stored_image import StoredImage
from tests.support.commands import ran
from tests.support.light_base import small_root

pytestmark = pytest.mark.integration
SMALL = "gpu-runner/test-small:1"


def left_over(client: docker.DockerClient) -> tuple[set[str], set[str]]:
    label: dict[str, str | list[str] | bool] = {"label": "gpu-runner.part"}
    images = client.images.list(filters={**label, "dangling": True})
    return {str(one.id) for one in client.containers.list(all=True, filters=label)}, {str(one.id) for one in images}


@pytest.fixture
def small(engine_client: docker.DockerClient) -> Iterator[str]:
    """An image with one file; imported, as there is no registry."""
    changes = ["ENV A='it is $HOME \"x\"'", 'ENTRYPOINT ["/bin/true", "it\'s"]', "WORKDIR /work"]
    name, tag = SMALL.split(":")
    engine_client.api.import_image_from_data(small_root(), repository=name, tag=tag, changes=changes)
    yield SMALL
    engine_client.images.remove(SMALL, force=True)


def in_container(client: docker.DockerClient, image: str, *words: str) -> bytes:
    out: bytes = client.containers.run(image, list(words[1:]), entrypoint=[words[0]], network_mode="none", remove=True)
    return out


@pytest.mark.parametrize(
    ("name", "framework", "version", "horovod"),
    [
        ("horovod_image", "pytorch", "2.13.0", {"version": "0.28.1", "nccl": "", "controllers": ["MPI", "Gloo"],
                                                "operations": ["MPI", "Gloo"], "fixes": ["cxx-standard"]}),
        ("tensorflow_image", "tensorflow", "2.21.0", {"fixes": ["cxx-standard", "xla-ops-left-out"]}),
    ],
)  # fmt: skip
def test_the_image_proved_its_horovod_and_says_what_it_is(
    engine_client: docker.DockerClient, request: pytest.FixtureRequest,
    name: str, framework: str, version: str, horovod: dict[str, object],
) -> None:  # fmt: skip
    image: BuiltImage = request.getfixturevalue(name)
    about = json.loads(in_container(engine_client, image.digest, "cat", "/opt/runner/image.json"))
    assert image.about == about
    assert (about["framework"], about["framework_version"][:6]) == (framework, version)
    assert framework == "pytorch" or about["keras"].startswith("2."), "legacy Keras, which Horovod's optimizer knows"
    wanted = horovod | {"proven": ["gloo", "mpi"], "frameworks": [framework]}
    assert {key: about["horovod"][key] for key in wanted} == wanted
    assert (about["mpi"]["flavour"], about["mpi"]["pmi"], about["mpi"]["abi"]) == ("openmpi", ["pmix"], "libmpi.so.40")
    assert about["base_digest"] == image.base_digest == image.labels["org.opencontainers.image.base.digest"]
    assert image.base_digest.startswith("sha256:")
    assert image.labels["gpu-runner.horovod.fixes"].split(",") == wanted["fixes"]
    base = engine_client.images.get(image.base)
    assert image.size_bytes - int(base.attrs["Size"]) < 60_000_000, "what Horovod adds to the base"
    assert in_container(engine_client, image.reference, "ls", "/opt/recipes").strip()


def test_the_base_sets_the_traps_that_ngc_sets(engine_client: docker.DockerClient, horovod_image: BuiltImage) -> None:
    said = engine_client.containers.run(
        horovod_image.reference, ["bash", "-c", "pwd; env"], network_mode="none", remove=True
    ).decode()
    assert "== PyTorch ==" in said
    assert "NVIDIA Driver was not detected" in said
    assert "\n/workspace\n" in said
    for line in ("PYTORCH_VERSION=2.13.0", "PIP_CONSTRAINT=/etc/pip/constraint.txt", "STANDIN_SHINIT=1"):
        assert f"\n{line}\n" in said


def test_a_base_without_the_framework_is_reported(engine_client: docker.DockerClient, small: str) -> None:
    before = left_over(engine_client)
    with pytest.raises(ProgramFailedError, match="cannot be a base for pytorch"):
        build("pytorch", small, engine_client, Silent())
    assert left_over(engine_client) == before


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
    squashfs: StoredImage, horovod_image: BuiltImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert squashfs.digest == horovod_image.digest
    assert squashfs.environment["PYTORCH_VERSION"] == "2.13.0"
    assert (squashfs.workdir, squashfs.entrypoint) == ("/workspace", ("/opt/nvidia/nvidia_entrypoint.sh",))
    assert squashfs.about["horovod"]["proven"] == ["gloo", "mpi"]
    wanted = ["etc/rc", "etc/rc.local", "etc/environment", "etc/fstab", "ch/environment", "etc/hosts", "results"]
    ran(["unsquashfs", "-q", "-n", "-d", tmp_path / "x", squashfs.path, *wanted])
    assert "exec '/opt/nvidia/nvidia_entrypoint.sh' \"$@\"" in (tmp_path / "x/etc/rc").read_text()
    for name in ("etc/environment", "ch/environment"):
        assert "PYTORCH_VERSION=2.13.0\n" in (tmp_path / "x" / name).read_text()
    listing = ran(["unsquashfs", "-lls", squashfs.path]).out
    assert {line.split()[1] for line in listing.splitlines() if "squashfs-root" in line} == {"root/root"}
    assert listing.splitlines()[0].startswith("drwxr-xr-x")
    assert "squashfs-root/.dockerenv" not in listing
    assert "squashfs-root/dev/" not in listing
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")  # lookups need no engine
    for name in (squashfs.reference, squashfs.digest, str(squashfs.path)):
        known = store.lookup(name, squashfs.path.parent)
        assert known is not None
        assert known.path == squashfs.path


def test_an_unknown_image_says_what_to_do(engine_client: docker.DockerClient, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no image") as caught:
        convert_engine_image("gpu-runner/never:built", engine_client, Silent(), store_dir=tmp_path)
    assert "runner build" in caught.value.fix
