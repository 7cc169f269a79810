"""Which engine is used: wrong URLs show no password; the private one's sockets lie where no other user may write."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from runner.core import process_identity
from runner.core.errors import InfrastructureError, ProgramFailedError, RefusedError, RunnerError, UsageError
from runner.core.progress import Silent
from runner.images import engine
from runner.images.building import engine_build
from runner.images.building.engine_build import EngineBase, base_image
from tests.support.http_servers import Answer, certificate, serving

SECRET = "secret" + "pw"


@pytest.mark.parametrize("url", ["tcp://1.2.3.4:99999999", "tcp://1.2.3.4:x", "http://[::1", "tcp://127.0.0.1:65536"])
def test_what_is_no_url_is_refused_as_such(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((UsageError, InfrastructureError)) as caught:
        engine.connect(url)
    assert caught.value.fix
    monkeypatch.setenv("DOCKER_HOST", url)
    with pytest.raises((UsageError, InfrastructureError)) as caught:
        engine.connect()
    assert caught.value.where == "DOCKER_HOST"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999999", "with@signs@127.0.0.1:1"])
@pytest.mark.parametrize("scheme", ["http://", "tcp://", ""])
def test_a_password_in_a_url_is_not_shown(scheme: str, address: str) -> None:
    with pytest.raises(RunnerError) as caught:
        engine.connect(f"{scheme}user:{SECRET}@{address}")
    assert SECRET not in str(caught.value)
    assert "***@127.0.0.1" in str(caught.value)


@pytest.fixture
def short_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the sockets go as the state's path is too long, and no runtime directory is there."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Path(engine.private_url(long_state(tmp_path)).removeprefix("unix://")).parent


def long_state(tmp_path: Path) -> Path:
    return tmp_path / ("long" * 30) / "engine"


@pytest.mark.parametrize("kind", ["open to others", "link", "file"])
def test_sockets_never_lie_in_another_users_directory(tmp_path: Path, short_place: Path, kind: str) -> None:
    assert short_place.parent == tmp_path
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "docker.sock").touch()
    if kind == "link":
        short_place.symlink_to(mine)
    elif kind == "file":
        short_place.touch()
    else:
        short_place.mkdir()
        short_place.chmod(0o777)
        (short_place / "docker.sock").touch()
    assert engine.private_url(long_state(tmp_path)) not in list(engine.default_urls(long_state(tmp_path)))
    with pytest.raises(RefusedError, match="other users may change") as caught:
        engine._make_private(short_place)
    assert caught.value.where == str(short_place)
    assert not engine.stop_private(long_state(tmp_path))
    assert (mine / "docker.sock").exists()


def test_a_private_place_is_taken_again(tmp_path: Path, short_place: Path) -> None:
    for _ in range(2):
        engine._make_private(short_place)
    assert engine.private_url(long_state(tmp_path)) in list(engine.default_urls(long_state(tmp_path)))


def test_the_users_runtime_directory_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as runtime:  # private, and short enough
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert engine.private_url(long_state(tmp_path)).startswith(f"unix://{runtime}/gpu-runner-")
        Path(runtime).chmod(0o755)
        assert not engine.private_url(long_state(tmp_path)).startswith(f"unix://{runtime}/")


def test_no_proxy_stands_between_this_machine_and_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_PROXY names it as the URL does, and the address is another word."""
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "localhost")
    with serving(lambda _: Answer(body=b'{"ApiVersion": "1.43"}')) as server:
        assert engine.connect(f"tcp://localhost:{server.port}").api.api_version == "1.43"
        assert [each.path for each in server.received] == ["/version", "/v1.43/_ping"]


def test_a_build_sends_no_login_to_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    auth = base64.b64encode(f"me:{SECRET}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"r.io": {"auth": auth}}}))
    with serving(lambda _: Answer(body=b'{"ApiVersion": "1.43"}')) as server:
        client = engine.connect(f"tcp://127.0.0.1:{server.port}")
        list(client.api.build(fileobj=io.BytesIO(b"x"), custom_context=True, decode=True))
    assert server.received[-1].path.partition("?")[0].endswith("/build")
    assert not [each for each in server.received if {"X-Registry-Config", "X-Registry-Auth"} & {*each.headers}]


@pytest.mark.parametrize("name", ["node7:1/lab/base:1", "node7.lab/base:1"])
def test_no_engine_sends_a_login_to_this_machine_where_anybody_may_listen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine needs no TLS where an address of the name is this machine's, as Debian's file of hosts writes it."""
    pulled = []

    def get(name: str) -> None:
        raise docker.errors.ImageNotFound(name)

    def pull(name: str, **_: object) -> list[dict[str, str]]:
        pulled.append(name)
        return [{"error": "it has none"}]

    images = SimpleNamespace(get=get)
    client: Any = SimpleNamespace(images=images, api=SimpleNamespace(base_url="http+docker://localhost", pull=pull))
    address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [address])
    monkeypatch.setattr("runner.core.loopback._listening", lambda port: [])
    with pytest.raises(InfrastructureError, match="nothing listens there"):
        base_image(client, name, None, Silent())
    assert not pulled
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(*address[:4], ("192.0.2.1", 0))])
    with pytest.raises(RunnerError, match="it has none"):
        base_image(client, name, None, Silent())
    assert pulled == [name]


def removed_by(containers: list[Any], call: Callable[[Any], object], **more: Any) -> list[str]:
    """Which containers and images a call removes of an engine that has these."""
    removed = list[str]()

    def containers_list(**_: object) -> list[Any]:
        for each in containers:
            each.remove = lambda name=each.name, **_: removed.append(name)
        return containers

    def get(name: str) -> Any:
        if name in removed:
            raise docker.errors.NotFound(name)

    images = SimpleNamespace(remove=removed.append, list=lambda filters: more["images"], get=lambda _: None)
    api = SimpleNamespace(
        containers=lambda all: [{"Id": each.name} for each in containers],
        images=lambda all: [{"Id": "sha256:" + "a" * 64}],
        remove_container=lambda name, **_: removed.append(name),
        build=lambda **_: more["said"],
    )
    versions, networks = dict[str, object](), SimpleNamespace(list=lambda filters: [1])
    client = SimpleNamespace(
        containers=SimpleNamespace(list=containers_list, get=get), images=images, api=api, info=dict, networks=networks,
        version=lambda: versions,
    )  # fmt: skip
    call(client)
    return removed


def test_only_what_has_a_dead_process_in_its_name_is_an_orphan() -> None:
    """What an image says of its containers is no matter: whoever made it could have them removed."""
    dead = re.sub(r"\.\d+$", ".1", process_identity.mark())
    labels = {"gpu-runner.owner": dead}
    names = (
        "any",
        engine.container_name(),
        f"gpu-runner-{dead}.0a",
        f"my-gpu-runner-{dead}",
        "gpu-runner-x",
    )
    containers = [SimpleNamespace(name=name, labels=labels) for name in names]
    assert removed_by(containers, engine.remove_orphans) == [f"gpu-runner-{dead}.0a"]


def test_a_cut_build_removes_what_it_made_and_nothing_that_a_step_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    other, step, images = "c" * 64, "d" * 64, [SimpleNamespace(id=f"sha256:{letter * 64}") for letter in "abe"]
    lines = ["Step 1/2 : RUN x", f" ---> Running in {step[:12]}", f" ---> Running in {other[:12]}"]
    lines += [f" ---> {letter * 12}" for letter in "ab"]
    said = [*({"stream": f"{line}\n"} for line in lines), {"error": "it failed"}]
    base = EngineBase("pytorch", "base", "id", {}, None)

    def build(client: Any) -> None:
        with pytest.raises(ProgramFailedError, match="it failed"):
            engine_build.run(client, base, Silent(), files=(), tag="x", args={})

    containers = [SimpleNamespace(name=other)]
    assert removed_by(containers, build, images=images, said=said) == [step[:12], f"sha256:{'b' * 64}"]
    assert [*(tmp_path / "steps").iterdir()] == []


def test_an_engine_on_another_host_proves_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    with pytest.raises(RefusedError, match="not used without TLS"):
        engine.connect("tcp://192.0.2.1:2375")
    ours = certificate(tmp_path)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
    with serving(lambda _: Answer(body=b'{"ApiVersion": "1.43"}'), ours) as server:
        url = f"tcp://127.0.0.1:{server.port}"
        with pytest.raises(UsageError, match="it names no directory"):
            engine.connect(url)
        for name in ("ca.pem", "cert.pem", "key.pem"):
            shutil.copy(ours, tmp_path / name)
        assert engine.connected(url)[0] == url, "as what is started with these variables takes it"
        (tmp_path / "other").mkdir()
        shutil.copy(certificate(tmp_path / "other"), tmp_path / "ca.pem")
        with pytest.raises(InfrastructureError, match="TLS with these certificates fails"):
            engine.connect(url)
        assert [each.path for each in server.received] == ["/version", "/v1.43/_ping"]
