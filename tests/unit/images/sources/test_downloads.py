"""Downloads from registries that are slow, hang up, cannot be trusted, or compress in an unusual way."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import zstandard

from runner.core.errors import InfrastructureError
from runner.core.files import sha256
from runner.core.progress import Silent
from runner.images import reference as references
from runner.images.sources import blobs, layered, registry, registry_http
from runner.images.sources.manifests import Descriptor
from runner.images.sources.registry import Registry
from tests.support.http_servers import Answer, Received, certificate, serving
from tests.support.waiting import until

LAYER = os.urandom(100_000)
LAYER_DIGEST = f"sha256:{sha256(LAYER)}"
CONFIG = json.dumps({"os": "linux", "rootfs": {"diff_ids": [LAYER_DIGEST]}}).encode()
IMAGE = {"schemaVersion": 2, "config": {"digest": f"sha256:{sha256(CONFIG)}", "size": len(CONFIG)},
         "layers": [{"digest": LAYER_DIGEST, "size": len(LAYER)}]}  # fmt: skip
MANIFEST = json.dumps(IMAGE).encode()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, place in (("HOME", "home"), ("RUNNER_CACHE", "cache"), ("RUNNER_STORE", "store")):
        monkeypatch.setenv(name, str(tmp_path / place))
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    return tmp_path / "cache"


def image(request: Received, layer: Callable[[Received], Answer]) -> Answer:
    """A registry of one image."""
    if "/manifests/" in request.path:
        return Answer(body=MANIFEST)
    return layer(request) if request.path.endswith(LAYER_DIGEST) else Answer(body=CONFIG)


def fetch(host: str) -> bytes:
    """The layer from the registry at this ``HOST:PORT``."""
    wanted = Descriptor(LAYER_DIGEST, len(LAYER))
    return Registry(references.parse(f"{host}/a/b:1"), print).layers((wanted,), Silent())[LAYER_DIGEST].read_bytes()


DRIP = Answer(body=LAYER, piece=1, slow_s=0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("answer", [DRIP, replace(DRIP, slow_s=60)], ids=["dripping", "silent"])
def test_a_signal_ends_a_slow_download_at_once(cache: Path, number: signal.Signals, code: int, answer: Answer) -> None:
    partial_file = cache / "blobs" / f".{LAYER_DIGEST[7:]}.partial"
    with serving(partial(image, layer=lambda _: answer)) as server:
        words = [sys.executable, "-m", "runner", "convert", f"docker://127.0.0.1:{server.port}/a/b:1"]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as child:
            until(partial_file.exists, "the layer is on its way", timeout_s=30, every_s=0.01)
            time.sleep(0.3)
            child.send_signal(number)
            began = time.monotonic()
            assert child.wait(60) == code
            took_s, began = time.monotonic() - began, time.monotonic()
            subprocess.run([sys.executable, "-c", ""], check=True)
            assert took_s < 2 + 5 * (time.monotonic() - began), "seconds, and what a busy machine adds"


def cut(request: Received) -> Answer:
    """One byte, and the connection is lost."""
    at = int(request.headers.get("Range", "bytes=0-")[6:-1])
    headers = {"Content-Length": str(len(LAYER) - at), "Content-Range": f"bytes {at}-{len(LAYER)}/{len(LAYER)}"}
    return Answer(206 if at else 200, headers, LAYER[at : at + 1])


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (lambda _: replace(DRIP, slow_s=0.02), "has sent [0-9]+ bytes in [01] s, which is too slow"),
        (cut, "was lost again and again"),
    ],
)
def test_a_registry_that_sends_next_to_nothing_is_not_waited_for(
    layer: Callable[[Received], Answer], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_http, "_LEAST_S", 0.5)
    monkeypatch.setattr(registry, "FIRST_PAUSE_S", 0.0)
    with serving(partial(image, layer=layer)) as server, pytest.raises(InfrastructureError, match=says) as caught:
        fetch(f"127.0.0.1:{server.port}")
    assert "what has arrived is kept" in caught.value.fix
    assert [path.suffix for path in blobs.directory().iterdir() if path.stat().st_size] == [".partial"]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(headers={f"X-{number}": "x" for number in range(90)}, slow_head_s=0.02),
        replace(DRIP, code=307, headers={"Location": "/"}, slow_s=0.02),
        replace(DRIP, headers={"Transfer-Encoding": "chunked"}, body=b"1;" + b"x" * 1000, slow_s=0.02),
    ],
    ids=["head", "redirect", "chunk"],
)
def test_nothing_else_of_an_answer_is_waited_for_without_end(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_http, "_LEAST_S", 0.5)
    says = "127.0.0.1:[0-9]+ has sent [0-9]+ bytes in [01] s, which is too slow"
    with serving(partial(image, layer=lambda _: answer)) as server, pytest.raises(InfrastructureError, match=says):
        fetch(f"127.0.0.1:{server.port}")


def test_a_registrys_cookie_goes_to_no_other_port() -> None:
    """Cookies know no ports, and on a login node each may be another user's."""
    with serving(lambda request: Answer(body=b'{"token": "t"}' if "/token" in request.path else LAYER)) as other:
        place = f"http://127.0.0.1:{other.port}"

        def answer(request: Received) -> Answer:
            cookie = {"Set-Cookie": "session=secret; Path=/"}
            if "Authorization" in request.headers:
                return Answer(307, {"Location": place + request.path, **cookie})
            return Answer(401, {"WWW-Authenticate": f'Bearer realm="{place}/token"', **cookie})

        with serving(answer) as server:
            assert fetch(f"127.0.0.1:{server.port}") == LAYER
    assert [request.headers.get("Cookie") for request in other.received] == [None, None]


def test_a_registry_at_an_address_of_version_6() -> None:
    try:
        with serving(partial(image, layer=lambda _: Answer(body=LAYER)), address="::1") as server:
            assert fetch(f"[::1]:{server.port}") == LAYER
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        pytest.skip("this machine has no ::1")


def test_a_token_service_that_speaks_no_tls_is_explained() -> None:
    with serving(lambda _: Answer()) as plain:
        challenge = {"WWW-Authenticate": f'Bearer realm="https://127.0.0.1:{plain.port}/token"'}
        says = rf"127.0.0.1:{plain.port} cannot be reached: TLS failed \([a-z ]+\)"
        with serving(lambda _: Answer(401, challenge)) as server, pytest.raises(InfrastructureError, match=says):
            fetch(f"127.0.0.1:{server.port}")


@pytest.mark.parametrize(
    ("bundle", "says"),
    [("", "self-signed certificate"), ("own/certificate.pem", ""), ("other/certificate.pem", "self-signed"),
     ("garbage", "no certificate or crl found")],
)  # fmt: skip
def test_a_certificate_that_is_not_trusted_is_explained(
    tmp_path: Path, bundle: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
        certificate(tmp_path / name)
    (tmp_path / "garbage").write_text("no certificate")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / bundle) if bundle else "")
    with serving(partial(image, layer=lambda _: Answer(body=LAYER)), tmp_path / "own/certificate.pem") as server:
        if not says:
            assert fetch(f"127.0.0.1:{server.port}") == LAYER
            return
        with pytest.raises(InfrastructureError, match=f"certificate that cannot be verified: .*{says}") as caught:
            fetch(f"127.0.0.1:{server.port}")
    assert "export REQUESTS_CA_BUNDLE=FILE.pem" in caught.value.fix


def skipped(number: int) -> bytes:
    return bytes([number]) + b"\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"aside"


@pytest.mark.parametrize("number", [0x50, 0x5F])
def test_zstd_with_frames_that_are_to_be_skipped(number: int) -> None:
    """As pzstd and estargz write them: before the first frame, too."""
    raw = skipped(number) + zstandard.compress(b"first") + skipped(number) + zstandard.compress(b"second")
    with layered._unpacked(lambda: io.BytesIO(raw), layered._Reading()) as source:
        assert source.read() == b"firstsecond"
