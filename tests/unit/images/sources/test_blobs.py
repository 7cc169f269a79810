"""Kept layers and documents: only their owner may read them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.core.errors import InfrastructureError
from runner.core.files import sha256
from runner.images.sources import blobs
from tests.support.users import AS_ROOT, UNPRIVILEGED, outcome_as

CONTENT = b"a layer" * 1000
DIGEST = f"sha256:{sha256(CONTENT)}"


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The layer's place in the cache of a user who lets others read everything."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o755)
    before = os.umask(0)
    yield blobs.directory() / DIGEST.removeprefix("sha256:")
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_layers_and_documents_are_private_from_their_first_byte_on(kept: Path) -> None:
    seen: list[int] = []

    def chunks() -> Iterator[bytes]:
        yield CONTENT[:100]
        seen.extend(mode(path) for path in blobs.directory().glob(".*.partial"))
        yield CONTENT[100:]

    assert blobs.obtain(DIGEST, len(CONTENT), lambda _: (0, chunks()), lambda _: None, print) == kept
    assert (seen, mode(kept)) == ([0o600], 0o600)
    blobs.keep("sha256:" + "a" * 64, b"{}")
    assert mode(blobs.directory() / ("a" * 64)) == 0o600
    kept.chmod(0o644)  # what was kept for all to read becomes private when it is used
    assert blobs.find(DIGEST) == kept
    assert mode(kept) == 0o600


@AS_ROOT
def test_another_users_layer_is_reported_in_words(kept: Path) -> None:
    blobs.keep(DIGEST, CONTENT)
    for directory in kept.parents:
        directory.chmod(directory.stat().st_mode | 0o755)
    outcome = outcome_as(UNPRIVILEGED, blobs.find, DIGEST)
    assert outcome.what.replace("Permission denied", "Operation not permitted") == (
        "a kept layer cannot be read: Operation not permitted"
    )
    assert (outcome.where, outcome.fix) == (str(kept), "set RUNNER_CACHE to a directory of your own")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_what_hangs_in_the_network_does_not_hold_up_the_end(error: type[BaseException]) -> None:
    stop, never = threading.Event(), threading.Event()

    def tick() -> None:
        raise error

    began = time.monotonic()
    with pytest.raises(error):
        blobs.run_in_parallel([never.wait, never.wait], workers=2, tick=tick, stop=stop)
    assert stop.is_set()
    assert time.monotonic() - began < 2
    never.set()


def test_after_a_failure_nothing_is_begun() -> None:
    """It would wait for ever: no thread takes up work once all is to stop."""
    stop = threading.Event()
    stop.set()
    with pytest.raises(InfrastructureError, match="something before it failed"):
        blobs.run_in_parallel([lambda: 1], workers=1, tick=lambda: None, stop=stop)
