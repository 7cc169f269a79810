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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests
import yaml

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
        basic, bearer: what is asked for. elsewhere: where requests for blobs are sent.
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
    elsewhere: str = ""
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
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(target, moods))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _handler(target: str, moods: Moods) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None: ...

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            self.close_connection = True
            moods.asked.append((self.command, self.path, dict(self.headers)))
            shown = self.headers.get("Authorization", "")
            if self.path.startswith("/token"):
                self._token(shown)
            elif moods.basic and shown != f"Basic {base64.b64encode(moods.basic.encode()).decode()}":
                self._say(401, {"WWW-Authenticate": 'Basic realm="here"'})
            elif moods.bearer and shown.removeprefix("Bearer ") not in moods.tokens:
                realm = f"http://{self.headers['Host']}/token"
                said = f'Bearer realm="{realm}",service="tests",scope="repository:x:pull"'
                self._say(401, {"WWW-Authenticate": said})
            elif moods.forbidden:
                denied = {"code": "DENIED", "message": "requested access to the resource is denied"}
                self._say(403, {"Content-Type": "application/json"}, json.dumps({"errors": [denied]}).encode())
            elif moods.take("busy"):
                self._say(429, {"Retry-After": "1"})
            elif moods.take("failing"):
                self._say(503, {})
            elif moods.elsewhere and "/blobs/" in self.path:
                self._say(307, {"Location": f"http://{moods.elsewhere}{self.path}"})
            else:
                self._pass_on()

        def _token(self, shown: str) -> None:
            if moods.bearer != "anybody" and shown != f"Basic {base64.b64encode(moods.bearer.encode()).decode()}":
                return self._say(401, {})
            token = base64.urlsafe_b64encode(os.urandom(12)).decode()
            moods.tokens.add(token)
            return self._say(200, {}, json.dumps({"token": token}).encode())

        def _pass_on(self) -> None:
            headers = {name: value for name, value in self.headers.items() if name not in ("Host", "Authorization")}
            if moods.whole_only:
                headers.pop("Range", None)
            link = http.client.HTTPConnection(target, timeout=60)
            link.request(self.command, self.path, headers=headers)
            answer = link.getresponse()
            body = answer.read()
            link.close()
            if moods.wrong and self.path.endswith(moods.wrong):
                body = b"\0" * len(body)
            kept = {name: value for name, value in answer.getheaders() if name not in ("Date", "Connection")}
            cut = "/blobs/" in self.path and len(body) > 1 and moods.take("cuts")
            self._say(answer.status, kept, body[: len(body) // 2] if cut else body)

        def _say(self, code: int, headers: Mapping[str, str], body: bytes = b"") -> None:
            self.send_response(code)
            for name, value in ({"Content-Length": str(len(body))} | dict(headers)).items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked is gone
                for start in range(0, 0 if self.command == "HEAD" else len(body), 1_000_000):
                    self.wfile.write(body[start : start + 1_000_000])
                    time.sleep(moods.slow_s)

    return Handler
