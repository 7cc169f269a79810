"""A real registry on this machine's loopback (Debian's docker-registry), and an unkind proxy to put before it."""

import base64
import gzip
import hashlib
import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import requests
import yaml

from tests.support.http_servers import Answer, Received, serving
from tests.support.packages import unpacked

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"


@contextmanager
def running(directory: Path, *, htpasswd: Path | None = None) -> Iterator[str]:
    """``127.0.0.1:PORT`` of a registry that keeps everything below ``directory``; ``htpasswd``: who may have its images
    (bcrypt, as htpasswd(1) writes it).
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    host = f"127.0.0.1:{address[1]}"
    config = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(directory / "data")}},
        "http": {"addr": host},
        **({"auth": {"htpasswd": {"realm": "tests", "path": str(htpasswd)}}} if htpasswd else {}),
    }
    (directory / "config.yml").write_text(yaml.safe_dump(config))
    program = unpacked("docker-registry") / "usr/bin/docker-registry"
    with (directory / "log").open("wb") as log:
        child = subprocess.Popen([program, "serve", directory / "config.yml"], stdout=log, stderr=log)
    try:
        for _ in range(600):
            assert child.poll() is None, (directory / "log").read_text()
            with suppress(OSError), socket.create_connection(address, 1):
                break
            time.sleep(0.05)
        yield host
    finally:
        child.terminate()
        child.wait(20)


def digest(raw: bytes) -> str:
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


@dataclass(frozen=True)
class Pushed:
    raw: bytes
    media_type: str

    def descriptor(self, architecture: str = "") -> dict[str, object]:
        platform = {"platform": {"os": "linux", "architecture": architecture}} if architecture else {}
        return {"mediaType": self.media_type, "digest": digest(self.raw), "size": len(self.raw), **platform}


@dataclass(frozen=True)
class Repository:
    """Where images are pushed to, by the registry's own protocol."""

    host: str
    name: str

    @property
    def url(self) -> str:
        return f"http://{self.host}/v2/{self.name}"

    def reference(self, tag: str) -> str:
        return f"{self.host}/{self.name}:{tag}"

    def blob(self, raw: bytes, media_type: str = "") -> dict[str, object]:
        begun = requests.post(f"{self.url}/blobs/uploads/", timeout=60)
        done = requests.put(begun.headers["Location"], params={"digest": digest(raw)}, data=raw, timeout=60)
        assert done.status_code == 201, done.text
        return {"mediaType": media_type, "digest": digest(raw), "size": len(raw)}

    def manifest(self, document: Mapping[str, object], media_type: str, tag: str = "") -> Pushed:
        raw = json.dumps({"schemaVersion": 2, "mediaType": media_type, **document}).encode()
        name = tag or digest(raw)
        done = requests.put(f"{self.url}/manifests/{name}", raw, headers={"Content-Type": media_type}, timeout=60)
        assert done.status_code == 201, done.text
        return Pushed(raw, media_type)

    def image(
        self,
        layers: Sequence[bytes],
        tag: str = "",
        *,
        architecture: str = "amd64",
        media_type: str = OCI_MANIFEST,
        start: Mapping[str, object] | None = None,
        packed: Sequence[bytes] | None = None,
    ) -> Pushed:
        """An image of these tar archives; ``packed``: the same as they are stored, gzip where it is not given."""
        stored = packed or [gzip.compress(raw, mtime=0) for raw in layers]
        config = {
            "os": "linux",
            "architecture": architecture,
            "created": "2026-01-02T03:04:05Z",
            "config": start or {},
            "rootfs": {"type": "layers", "diff_ids": [digest(raw) for raw in layers]},
        }
        document = {
            "config": self.blob(json.dumps(config).encode(), OCI_CONFIG),
            "layers": [self.blob(raw, OCI_LAYER) for raw in stored],
        }
        return self.manifest(document, media_type, tag)


@dataclass
class Moods:
    """What the proxy does to those who ask; counters go down as it does so.

    Attributes:
        busy: how many requests get 429 with Retry-After: 1. failing: how many get 503. forbidden: everybody gets 403.
        cuts: how many answers to requests for blobs are cut off in their middle. whole_only: ranges are not served.
        slow_s: seconds between two pieces of a body, each of 1 MB. wrong: path endings whose bytes are falsified.
        basic, bearer: the login that is asked for.
        asked: (method, path, headers) of all requests.
    """

    busy: int = 0
    failing: int = 0
    cuts: int = 0
    slow_s: float = 0
    whole_only: bool = False
    wrong: tuple[str, ...] = ()
    forbidden: bool = False
    basic: str = ""
    bearer: str = ""
    tokens: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, name: str) -> bool:
        with self.lock:
            left = getattr(self, name)
            setattr(self, name, max(0, left - 1))
            return bool(left)


@contextmanager
def proxied(target: str, moods: Moods) -> Iterator[str]:
    with serving(lambda request: _answer(request, target, moods)) as server:
        yield f"127.0.0.1:{server.port}"


def _basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def _answer(request: Received, target: str, moods: Moods) -> Answer:  # noqa: PLR0911 -- a case each
    moods.asked.append((request.method, request.path, dict(request.headers)))
    shown = request.headers.get("Authorization", "")
    if request.path.startswith("/token"):
        if shown != _basic(moods.bearer):
            return Answer(401)
        token = base64.urlsafe_b64encode(os.urandom(12)).decode()
        moods.tokens.add(token)
        return Answer(body=json.dumps({"token": token}).encode())
    if moods.basic and shown != _basic(moods.basic):
        return Answer(401, {"WWW-Authenticate": 'Basic realm="here"'})
    if moods.bearer and shown.removeprefix("Bearer ") not in moods.tokens:
        said = f'Bearer realm="http://{request.headers["Host"]}/token",service="tests",scope="repository:x:pull"'
        return Answer(401, {"WWW-Authenticate": said})
    if moods.forbidden:
        denied = {"code": "DENIED", "message": "requested access to the resource is denied"}
        return Answer(403, {"Content-Type": "application/json"}, json.dumps({"errors": [denied]}).encode())
    if moods.take("busy"):
        return Answer(429, {"Retry-After": "1"})
    if moods.take("failing"):
        return Answer(503)
    return _passed_on(request, target, moods)


def _passed_on(request: Received, target: str, moods: Moods) -> Answer:
    left_out = ("Host", "Authorization", *(("Range",) if moods.whole_only else ()))
    headers = {name: value for name, value in request.headers.items() if name not in left_out}
    link = http.client.HTTPConnection(target, timeout=60)
    link.request(request.method, request.path, headers=headers)
    answer = link.getresponse()
    body = answer.read()
    link.close()
    if moods.wrong and request.path.endswith(moods.wrong):
        body = b"\0" * len(body)
    kept = {name: value for name, value in answer.getheaders() if name not in ("Date", "Connection")}
    if "/blobs/" in request.path and len(body) > 1 and moods.take("cuts"):
        body = body[: len(body) // 2]
    return Answer(answer.status, kept, body, moods.slow_s)
