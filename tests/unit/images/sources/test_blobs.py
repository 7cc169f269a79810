"""Kept layers and documents: only their owner may read them."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.images.sources import blobs

CONTENT = b"a layer" * 1000
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
OTHER_USER = 65534


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    before = os.umask(0)
    yield tmp_path / "cache"
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_layers_and_documents_are_private_from_their_first_byte_on() -> None:
    seen: list[int] = []

    def fetch(start: int) -> tuple[int, Iterator[bytes]]:
        def chunks() -> Iterator[bytes]:
            yield CONTENT[:100]
            seen.extend(mode(path) for path in blobs.directory().glob(".*.partial"))
            yield CONTENT[100:]

        return 0, chunks()

    path = blobs.obtain(DIGEST, len(CONTENT), fetch, lambda _: None, lambda _: None)
    assert seen == [0o600]
    assert mode(path) == 0o600
    blobs.keep("sha256:" + "a" * 64, b"{}")
    assert mode(blobs.directory() / ("a" * 64)) == 0o600


def test_what_was_kept_for_all_to_read_becomes_private_when_it_is_used() -> None:
    blobs.keep(DIGEST, CONTENT)
    path = blobs.directory() / DIGEST.removeprefix("sha256:")
    path.chmod(0o644)
    assert blobs.find(DIGEST) == path
    assert mode(path) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="takes two users")
def test_another_users_layer_is_reported_in_words(cache: Path) -> None:
    blobs.keep(DIGEST, CONTENT)
    for directory in (*cache.parents, cache, blobs.directory()):
        directory.chmod(directory.stat().st_mode | 0o755)
    program = (
        "import os, sys; from runner.images.sources import blobs; from runner.core.errors import RunnerError\n"
        f"os.setgroups([]); os.setgid({OTHER_USER}); os.setuid({OTHER_USER})\n"
        "try: blobs.find(sys.argv[1])\n"
        "except RunnerError as error: print(error.what, error.where, error.fix, sep='|')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, DIGEST], stdout=subprocess.PIPE, text=True, check=True, env={**os.environ}
    )
    path = blobs.directory() / DIGEST.removeprefix("sha256:")
    told = f"a kept layer cannot be read: Operation not permitted|{path}|set RUNNER_CACHE to a directory of your own\n"
    assert done.stdout.replace("Permission denied", "Operation not permitted") == told
