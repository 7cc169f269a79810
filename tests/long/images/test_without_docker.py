"""The image built with no container engine, by an ordinary user: in a writable root, by the real ch-run."""

import getpass
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import docker
import pytest

from runner.core.errors import Exit
from runner.images.building import dockerfile
from runner.images.store import store
from tests.support import light_base
from tests.support import registry as registries
from tests.support.build_bench import read_until
from tests.support.commands import Output, ran
from tests.support.documents import result
from tests.support.framework_matrix import GLOO, ROWS, base_of, benchmark
from tests.support.packages import ch_run_tools
from tests.support.users import given_up

pytestmark = pytest.mark.integration
LIMIT_S = 2400  # Horovod is compiled: no wheel was made in this base before
CHECKOUT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Login:
    """A login node without an engine: a user's variables and home there."""

    variables: Mapping[str, str]
    home: Path
    become: tuple[str, ...]

    def __call__(self, *words: str, code: int = 0) -> Output:
        env = {**os.environ, **self.variables}
        return ran([*self.become, *words], code=code, timeout_s=LIMIT_S, cwd=self.home, env=env)

    def runner(self, *words: str, code: int = 0) -> Output:
        return self(sys.executable, "-m", "runner", *words, code=code)

    def build(self, base: str) -> dict[str, Any]:
        said = self.runner("build", "pytorch", "--with", "ch-run", "--base", base, "--json")
        image: dict[str, Any] = result(said.out)
        return image


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registries.running(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture(scope="module")
def base(engine_client: docker.DockerClient, registry: str) -> str:
    return pushed(engine_client, base_of(engine_client), f"{registry}/nvidia/pytorch:25.02-py3")


def light(client: docker.DockerClient, registry: str, tag: str, **more: bytes) -> str:
    local = f"gpu-runner/test-light-{os.getpid()}:{tag}"
    client.api.import_image_from_data(light_base.archive(**more), repository=local, changes=list(light_base.CHANGES))
    try:
        return pushed(client, local, f"{registry}/light/pytorch:{tag}")
    finally:
        client.images.remove(local)


def pushed(client: docker.DockerClient, local: str, name: str) -> str:
    repository, _, tag = name.rpartition(":")
    client.images.get(local).tag(repository, tag)
    try:
        said = client.images.push(repository, tag, stream=True, decode=True)
        assert not [line for line in said if "error" in line]
    finally:
        client.images.remove(name)
    return name


@pytest.fixture(scope="module")
def login() -> Iterator[Login]:
    """The home of an ordinary user; no engine answers."""
    home = Path(tempfile.mkdtemp(prefix="login-"))
    home.chmod(0o755)
    variables = ch_run_tools(home)
    for name, place in (("HOME", "home"), ("RUNNER_CACHE", "cache"), ("RUNNER_STORE", "images"), ("TMPDIR", "tmp")):
        variables[name] = str(home / place)
    variables["DOCKER_HOST"] = "unix:///nowhere/docker.sock"
    variables["PYTHONPATH"] = str(CHECKOUT)
    for place in ("home", "tmp", "cache"):
        (home / place).mkdir()
    become = given_up(home)
    try:
        yield Login(variables, home, become)
    finally:
        shutil.rmtree(home)


def test_every_step_is_done(login: Login, engine_client: docker.DockerClient, registry: str) -> None:
    name = light(engine_client, registry, "1")
    first = login.build(name)
    image = store.lookup(first["reference"], Path(first["path"]).parent)
    assert image is not None
    assert image.about == {"framework": "pytorch", "base": name, "base_digest": first["base_digest"]}
    assert (image.environment["LIGHT"], image.workdir, image.command) == ("a b", "/workspace", ("/bin/bash",))
    assert image.labels["gpu-runner.part"] == "horovod-pytorch"
    assert {"opt/recipes/lib/launch.py", "results", "opt/runner/image.json"} <= names_in(image.path)
    assert login.build(name)["up_to_date"]
    nothing_is_left(login)


def test_ctrl_c_in_the_middle_leaves_nothing(login: Login, engine_client: docker.DockerClient, registry: str) -> None:
    name = light(engine_client, registry, "slow", slow=b"")
    words = (sys.executable, "-m", "runner", "build", "pytorch", "--with", "ch-run", "--base", name)
    child = subprocess.Popen(
        [*login.become, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=login.home,
        env={**os.environ, **login.variables},
    )  # fmt: skip
    read_until(child, "    now")
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said.splitlines()[-1]) == (Exit.INTERRUPTED, "interrupted")
    nothing_is_left(login)


def test_a_missing_base_is_reported_before_anything_is_pulled(login: Login, registry: str) -> None:
    said = login.runner("build", "pytorch", "--with", "ch-run", "--base", f"{registry}/no/such:1", code=Exit.REFUSED)
    assert f"{registry} has no such image" in said.err


def test_it_builds_what_the_dockerfile_says_and_two_ranks_train_in_it(login: Login, base: str) -> None:
    first = login.build(base)
    path = Path(first["path"])
    # A squashfs is mounted by /dev/fuse, which a machine may keep from its users: this is done as we are.
    mounts = replace(login, become=(), variables={"PATH": login.variables["PATH"], "USER": getpass.getuser()})
    said = mounts("ch-run", "--set-env", str(path), "--", *GLOO, *benchmark(ROWS[0])).out
    assert re.search(r"throughput: [\d.]+ images/s", said), said
    image = store.lookup(first["reference"], path.parent)
    assert image is not None
    assert image.path == path
    assert image.about["horovod"]["proven"] == ["gloo", "mpi"]
    assert image.about["base_digest"] == first["base_digest"] == image.labels["org.opencontainers.image.base.digest"]
    assert (image.environment["PYTORCH_VERSION"], image.workdir) == ("2.13.0", "/workspace")
    assert image.entrypoint == ("/opt/nvidia/nvidia_entrypoint.sh",)
    assert not [name for name in names_in(path) if name.startswith(dockerfile.BROUGHT)]
    rows = result(login.runner("images", "list", "--json").out)
    assert [row["problem"] for row in rows if row["path"] == str(path)] == [""]
    again = login.build(base)
    assert (again["up_to_date"], again["path"]) == (True, str(path))
    assert again["seconds"] < 10
    nothing_is_left(login)


def names_in(squashfs: Path) -> set[str]:
    return {line.removeprefix("squashfs-root/") for line in ran(["unsquashfs", "-l", squashfs]).out.splitlines()}


def nothing_is_left(login: Login) -> None:
    """Of images in the making; the base stays in the store, as an engine's would."""
    assert list((login.home / "cache/builds").iterdir()) == []
    assert list((login.home / "tmp").iterdir()) == []
