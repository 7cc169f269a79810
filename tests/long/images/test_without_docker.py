"""The image built with no container engine: by Charliecloud's real ch-image, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runner import paths
from runner.images import standin, standins, store
from runner.images.progress import Silent
from tests.integration import registry as registries
from tests.long.images import charliecloud
from tests.long.images.test_matrix import GLOO, ROWS, benchmark

if TYPE_CHECKING:
    import docker

pytestmark = pytest.mark.integration
NOBODY = 65534
LIMIT_S = 1500


@dataclass(frozen=True)
class Login:
    """A login node without an engine: its variables, and whose."""

    variables: Mapping[str, str]
    home: Path

    def __call__(self, *words: str, code: int = 0, user: int = 0) -> subprocess.CompletedProcess[str]:
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        done = subprocess.run(
            [*become, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=self.home,
            env={**os.environ, **self.variables},
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def runner(self, *words: str, code: int = 0, user: int = 0) -> subprocess.CompletedProcess[str]:
        return self(sys.executable, "-m", "runner", *words, code=code, user=user)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A registry's certificate and its key: ch-image talks TLS only."""
    directory = tmp_path_factory.mktemp("tls")
    files = {"certificate": str(directory / "certificate.pem"), "key": str(directory / "key.pem")}
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", files["certificate"], "-keyout", files["key"]]
    subprocess.run(words, check=True, capture_output=True)
    directory.chmod(0o755)
    return files


@pytest.fixture(scope="module")
def base(
    engine_client: docker.DockerClient, certificate: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The stand-in base in a registry with TLS, where an engine has pushed it."""
    wanted = standins.find("pytorch", "standin")
    assert wanted is not None
    local = engine_client.images.get(standin.ensure(wanted, engine_client, Silent()))
    with registries.running(tmp_path_factory.mktemp("registry"), tls=certificate) as host:
        name = f"{host}/nvidia/pytorch"
        local.tag(name, "25.02-py3")
        try:
            said = engine_client.images.push(name, "25.02-py3", stream=True, decode=True)
            assert not [line for line in said if "error" in line]
        finally:
            engine_client.images.remove(f"{name}:25.02-py3")
        yield f"{name}:25.02-py3"


@pytest.fixture(scope="module")
def login(certificate: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    """A login node where the engine does not answer; an ordinary user may write there, too."""
    home = tmp_path_factory.mktemp("login")
    variables = charliecloud.tools(home)
    for name, place in (("HOME", "home"), ("RUNNER_CACHE", "cache"), ("RUNNER_STORE", "images"), ("TMPDIR", "tmp")):
        variables[name] = str(home / place)
    variables["DOCKER_HOST"] = "unix:///nowhere/docker.sock"
    variables["REQUESTS_CA_BUNDLE"] = certificate["certificate"]
    for place in ("home", "tmp", "cache"):
        (home / place).mkdir()
    kept = paths.cache_dir() / "wheels"  # a compile takes minutes; tests/long/images/test_matrix.py proves it
    shutil.copytree(kept, home / "cache/wheels")
    yield Login(variables, home)
    shutil.rmtree(home)


def built(login: Login, base: str, *words: str, user: int = 0) -> dict[str, object]:
    said = login.runner("build", "pytorch", "--with", "ch-image", "--base", base, "--json", *words, user=user)
    found = json.loads(said.stdout)
    assert isinstance(found, dict)
    return found


def trained(login: Login, image: str, *, user: int = 0) -> str:
    """What two ranks say that run in the squashfs."""
    words = ("ch-run", "--set-env", image, "--", *GLOO, *benchmark(ROWS[0]))
    return login(*words, user=user).stdout


def test_ch_image_builds_what_the_dockerfile_says_and_two_ranks_train_in_it(login: Login, base: str) -> None:
    first = built(login, base)
    path = Path(str(first["path"]))
    assert re.search(r"throughput: [\d.]+ images/s", trained(login, str(path)))
    found = store.lookup(str(first["reference"]), path.parent)
    assert found is not None
    assert found.path == path
    assert found.about["horovod"]["proven"] == ["gloo", "mpi"]
    assert found.about["base_digest"] == first["base_digest"] == found.labels["org.opencontainers.image.base.digest"]
    assert (found.environment["PYTORCH_VERSION"], found.workdir) == ("2.13.0", "/workspace")
    assert found.entrypoint == ("/opt/nvidia/nvidia_entrypoint.sh",)
    listed = json.loads(login.runner("images", "list", "--json").stdout)
    assert [(row["path"], row["problem"]) for row in listed] == [(str(path), "")]
    again = built(login, base)
    assert (again["up_to_date"], again["path"]) == (True, str(path))
    assert float(str(again["seconds"])) < 10
    left = login("ch-image", "--no-cache", "list").stdout.split()
    assert left == [base]
    assert list((login.home / "cache/builds").iterdir()) == []
