"""A base that the engine does not get: what a real registry answered, and what to do about it."""

import base64
import json
import re
import struct
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import docker
import pytest

from runner.cli import run
from runner.core.errors import Exit, RefusedError, RunnerError
from runner.core.progress import Silent
from runner.images import engine
from runner.images.building.build import build
from runner.images.building.engine_build import base_image, pull_error
from tests.support import registry as registries
from tests.support.layers import tar_of
from tests.support.registry import OCI_INDEX, Moods, Repository, proxied

IMAGE = "nvidia/pytorch:1"
FILE = "DIR/config.json"
pytestmark = pytest.mark.integration
USER, PASSWORD = "tests", "open " + "sesame"
# What `htpasswd -B` writes of that password.
HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("locked")
    (directory / "htpasswd").write_text(HTPASSWD)
    with registries.running(directory, htpasswd=directory / "htpasswd") as host:
        yield host


@pytest.fixture(scope="module")
def own_engine() -> Iterator[str]:
    """An engine where no other process makes or removes anything, so that all can be counted."""
    state = Path(tempfile.mkdtemp(prefix="engine-"))
    try:
        yield engine.start_private(state)
    finally:
        engine.remove_private(state)


@pytest.fixture
def client(own_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> docker.DockerClient:
    """A client of it whose logins are this test's own: none."""
    monkeypatch.setenv("DOCKER_HOST", own_engine)
    for name in ("DOCKER_CONFIG", "XDG_CONFIG_HOME", "ENROOT_CONFIG_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    return engine.connect()


def everything(client: docker.DockerClient) -> tuple[set[str], set[str]]:
    containers = {str(one.id) for one in client.containers.list(all=True)}
    return containers, {str(one.id) for one in client.images.list(all=True)}


def refused(client: docker.DockerClient, name: str) -> RunnerError:
    before = everything(client)
    with pytest.raises(RunnerError) as caught:
        base_image(client, name, None, Silent())
    assert everything(client) == before
    return caught.value


@pytest.mark.parametrize(
    ("password", "forbidden", "what", "fix"),
    [
        (None, False, "HOST requires a login for nvidia/pytorch (401), and there is none here", "docker login HOST"),
        (PASSWORD, False, "HOST has no image", ""),
        ("wrong", False, "denies the login in DIR/config.json access to nvidia/pytorch (401)", ""),
        (None, True, "HOST denies access to", "check the name"),
    ],
    ids=["no login", "the engine's own login, and no image", "a wrong password", "forbidden"],
)
def test_what_the_registry_answered_is_reported_and_what_to_do(
    client: docker.DockerClient, locked: str, tmp_path: Path, password: str | None, forbidden: bool, what: str, fix: str
) -> None:
    if password is not None:
        word = base64.b64encode(f"{USER}:{password}".encode()).decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {locked: {"auth": word}}}))
        client = engine.connect()
    with proxied(locked, Moods(forbidden=True)) if forbidden else nullcontext(locked) as host:
        error = refused(client, f"{host}/{IMAGE}")
        places = {"HOST": host, "DIR": str(tmp_path)}
    assert error.code == Exit.REFUSED
    for text, part in ((error.what, what), (error.fix, fix)):
        assert re.sub("HOST|DIR", lambda name: places[name[0]], part) in text


def test_a_registry_that_is_away_is_worth_another_try(client: docker.DockerClient) -> None:
    error = refused(client, f"127.0.0.1:1/{IMAGE}")
    assert error.code == Exit.INFRASTRUCTURE
    assert "127.0.0.1:1" in error.fix


def test_nvidias_registry_names_its_user_and_where_the_key_is_made() -> None:
    for said in ("unauthorized: authentication required", "no basic auth credentials"):
        error = pull_error("nvcr.io/nvidia/pytorch:25.02-py3", said)
        assert isinstance(error, RefusedError)
        for words in ("docker login nvcr.io", "$oauthtoken", "https://org.ngc.nvidia.com/setup/api-keys"):
            assert words in error.fix


def layer(machine: int) -> bytes:
    """A program: the head of an ELF file for this machine (elf.h, e_machine): 183 is AArch64's."""
    content = b"\x7fELF\x02\x01\x01" + bytes(9)
    content += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0) + bytes(56)
    return tar_of(("usr/bin/python3", content, {"mode": 0o755}))


@pytest.fixture
def arms(client: docker.DockerClient, tmp_path: Path) -> Iterator[str]:
    """A base for two processors, of which this machine runs one."""
    place = tmp_path / "registry"
    place.mkdir()
    with registries.running(place) as host:
        repository = Repository(host, "nvidia/both")
        start = {"Env": ["PATH=/usr/bin"]}
        images = {
            name: repository.image([layer(number)], architecture=name, start=start)
            for name, number in (("amd64", 62), ("arm64", 183))
        }
        described = [image.descriptor(name) for name, image in images.items()]
        repository.manifest({"manifests": described}, OCI_INDEX, "1")
        yield repository.reference("1")
        client.images.remove(repository.reference("1"), force=True)


def test_the_requested_platform_is_pulled_even_where_another_is_there(client: docker.DockerClient, arms: str) -> None:
    for architecture in ("amd64", "arm64", "amd64"):
        image = base_image(client, arms, f"linux/{architecture}", Silent())
        assert image.attrs["Architecture"] == architecture
    with pytest.raises(RefusedError, match="is not made for linux/s390x") as caught:
        base_image(client, arms, "linux/s390x", Silent())
    assert caught.value.where == "--platform"


def test_a_platform_that_the_engines_machine_cannot_run_is_refused_with_the_fix(
    client: docker.DockerClient, arms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))  # builds of others hold the lock there
    with pytest.raises(RefusedError, match="cannot run programs of this platform") as caught:
        build("pytorch", arms, client, Silent(), platform="linux/arm64")
    assert "binfmt" in caught.value.fix
    assert client.images.get(arms).attrs["Architecture"] == "arm64"
    assert client.containers.list(all=True) == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--engine", "unix:///nowhere/docker.sock"), Exit.INFRASTRUCTURE, "does not answer"),
        (("--engine", "tcp://here:there"), Exit.USAGE, "is not the URL of a container engine"),
        (("--base", "registry.invalid/no/such:image"), Exit.INFRASTRUCTURE, "registry.invalid"),
        (("--base", "NOT A NAME"), Exit.USAGE, "is not an image reference"),
        (("--with", "enroot"), Exit.REFUSED, "enroot was not found"),
        (("--with", "enroot", "--platform", "linux/arm64"), Exit.USAGE, "--platform does not go with --with enroot"),
        (("--with", "apptainer"), Exit.REFUSED, "neither apptainer nor singularity was found"),
        (("--with", "ch-image", "--base", "standin"), Exit.REFUSED, "is made in a container engine"),
        (("--definition", "--base", "standin"), Exit.REFUSED, "is made in a container engine"),
        (("--definition", "--with", "enroot"), Exit.USAGE, "--with does not go with --definition"),
    ],
)
def test_bad_input_is_refused_with_its_exit_code(
    client: docker.DockerClient,
    words: tuple[str, ...],
    code: Exit,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    before = everything(client)
    assert run(["build", "pytorch", *words]) == code
    said = capfd.readouterr().err
    assert message in said
    assert {Exit.USAGE: "error:"}.get(code, "fix:") in said
    assert everything(client) == before
