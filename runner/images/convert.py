"""Convert an image of an engine into a squashfs in the store.

The engine's export streams through the filter of ``rootfs`` into mksquashfs: no tree on disk, the same bytes for
the same image. What is published was verified first: its superblock, and its entries counted against the stream's.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec

from runner import paths, process
from runner.errors import InfrastructureError, RefusedError, UsageError
from runner.images import reference as references
from runner.images import rootfs, store
from runner.images.keys import cold, key_of
from runner.images.locks import held
from runner.images.progress import Progress
from runner.model.plan import RESULTS

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image

CONVERTER = "runner-sqsh 1"  # the version goes into the key: raise it with every change of what is written
OPTIONS = ("-comp", "zstd", "-Xcompression-level", "3", "-b", "1M", "-all-root", "-root-mode", "755")
_ABOUT = "opt/runner/image.json"
# A read-only root takes binds only where the directory exists: ours, and the usual ones of data.
_DIRECTORIES = (RESULTS.strip("/"), "data", "scratch", "ch")
_VERIFY_S = 600.0


@dataclass(frozen=True)
class Conversion:
    """The stored image; whether it was made now, and in how many seconds."""

    image: store.StoredImage
    made: bool
    seconds: float


def convert(
    image: str, client: docker.DockerClient, progress: Progress, *, store_dir: Path | None = None
) -> Conversion:
    """Convert ``image`` (a reference or an id) unless the store holds it; returns the stored image.

    Raises:
        UsageError: no image reference. RefusedError: the engine has no such image, or squashfs-tools are absent.
        InfrastructureError: the engine, mksquashfs or the disk failed; nothing is left behind.
    """
    started = time.monotonic()
    if references.is_path(image):
        raise UsageError(f"{image} is a file; only images of an engine are converted", where=image)
    source = _source(image, client)
    name = image if image.startswith("sha256:") else str(references.parse(image))
    target = store_dir or store.directory()
    key = key_of(str(source.id), CONVERTER, *OPTIONS, *_DIRECTORIES)
    if not cold() and (found := store.by_key(key, target)) is not None:
        return Conversion(_referred(found, name), made=False, seconds=time.monotonic() - started)
    for program in ("mksquashfs", "unsquashfs"):
        if process.find(program) is None:
            raise RefusedError(f"{program} is not installed", mend="install the package squashfs-tools")
    with held(paths.made(target) / f".{key}.lock", progress.step):
        if not cold() and (found := store.by_key(key, target)) is not None:
            return Conversion(_referred(found, name), made=False, seconds=time.monotonic() - started)
        stored = _make(name, source, client, target, key, progress)
    return Conversion(stored, made=True, seconds=time.monotonic() - started)


def config_of(attrs: Mapping[str, Any]) -> rootfs.Config:
    """Start-up configuration out of what the engine says of an image."""
    raw = attrs.get("Config") or {}
    return rootfs.Config(
        environment=dict(line.partition("=")[::2] for line in raw.get("Env") or ()),
        workdir=raw.get("WorkingDir") or "",
        entrypoint=tuple(raw.get("Entrypoint") or ()),
        command=tuple(raw.get("Cmd") or ()),
        labels=dict(raw.get("Labels") or {}),
        volumes=tuple(raw.get("Volumes") or ()),
    )


def created_at(attrs: Mapping[str, Any]) -> int:
    """When the image was made, seconds since the epoch: the squashfs carries this time and no later one."""
    text = str(attrs.get("Created") or "")[:19]
    try:
        return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp())
    except ValueError:
        return 0


def _source(image: str, client: docker.DockerClient) -> Image:
    import docker

    try:
        return client.images.get(image if image.startswith("sha256:") else str(references.parse(image)))
    except docker.errors.ImageNotFound as error:
        raise RefusedError(
            f"the engine has no image {image}",
            where=image,
            mend="build it first (python -m runner build pytorch), or pull it into the engine (docker pull)",
        ) from error


def _referred(found: store.StoredImage, name: str) -> store.StoredImage:
    if found.reference != name:
        store.refer(name, found)
    return found


def _make(
    name: str, source: Image, client: docker.DockerClient, target: Path, key: str, progress: Progress
) -> store.StoredImage:
    config = config_of(source.attrs)
    epoch = created_at(source.attrs)
    partial = target / f".{key}.partial"  # the lock is held: an older one is a killed conversion's
    passed = rootfs.Passed()
    try:
        partial.unlink(missing_ok=True)
        progress.step(f"squashing {name}")
        _squash(str(source.id), client, config, partial, epoch, passed)
        progress.step("verifying")
        _verify(partial, passed.entries())
        digest = _fsynced_sha256(partial)
        about = passed.captured.get(_ABOUT)
        stored = store.StoredImage(
            path=target / store.file_name(name, str(source.id), key),
            reference=name,
            digest=str(source.id),
            size_bytes=partial.stat().st_size,
            sha256=digest,
            entries=passed.entries(),
            environment=config.environment,
            workdir=config.workdir or "/",
            entrypoint=config.entrypoint,
            command=config.command,
            labels=config.labels,
            about=msgspec.json.decode(about, type=dict[str, Any]) if about else {},
            architecture=str(source.attrs.get("Architecture") or ""),
            key=key,
            converter=CONVERTER,
            options=OPTIONS,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            omitted=rootfs.omitted(config.environment),
        )
        return store.publish(partial, stored)
    finally:
        partial.unlink(missing_ok=True)


def _squash(
    image_id: str, client: docker.DockerClient, config: rootfs.Config, out: Path, epoch: int, passed: rootfs.Passed
) -> None:
    import docker
    import requests

    words = ["mksquashfs", "-", str(out), "-tar", *OPTIONS, "-noappend", "-no-progress", "-quiet"]
    directories = (*_DIRECTORIES, *filter(None, [config.workdir.strip("/")]))
    container = client.containers.create(image_id, ["true"], network_mode="none", use_config_proxy=False)
    with tempfile.TemporaryFile() as said:
        squasher = process.start(
            words,
            stdin=process.PIPE,
            stdout=process.DEVNULL,
            stderr=said.fileno(),
            env=dict(os.environ, SOURCE_DATE_EPOCH=str(epoch)),
        )
        try:
            assert squasher.stdin is not None
            chunks = cast("Iterator[bytes]", container.export(chunk_size=1 << 20))
            export = io.BufferedReader(rootfs.ChunkReader(chunks), 1 << 20)
            with suppress(BrokenPipeError), squasher.stdin as pipe:
                for block in rootfs.filtered(
                    export,
                    rootfs.injected_files(config),
                    directories,
                    passed,
                    mtime=epoch,
                    capture=(_ABOUT,),
                ):
                    pipe.write(block)
            code = squasher.wait()
        except (docker.errors.APIError, requests.exceptions.RequestException) as error:
            raise InfrastructureError(f"the engine's export failed: {error}", where=image_id) from error
        finally:
            if squasher.poll() is None:
                process.kill_group(squasher)
            with suppress(docker.errors.APIError):
                container.remove(force=True, v=True)
        if code != 0:
            raise _squash_error(code, said, out)


def _squash_error(code: int, said: IO[bytes], out: Path) -> InfrastructureError:
    said.seek(0)
    text = said.read().decode("utf-8", "replace").strip()
    full = "No space left" in text
    return InfrastructureError(
        f"mksquashfs failed with exit code {code}: " + "\n".join(text.splitlines()[-8:]),
        where=str(out.parent),
        mend="free space there, or name another store with --store DIR" if full else "",
    )


def _verify(path: Path, expected: int) -> None:
    """Superblock and size by unsquashfs, and as many entries as went in (names with newlines span lines).

    Raises:
        InfrastructureError: the file is not what was streamed.
    """
    process.run(["unsquashfs", "-s", path], timeout_s=_VERIFY_S)
    listing = process.run(["unsquashfs", "-l", path], timeout_s=_VERIFY_S).out
    found = sum(line.startswith("squashfs-root/") for line in listing.splitlines())
    if found != expected:
        raise InfrastructureError(
            f"the squashfs holds {found} entries, the image {expected}: not published",
            where=str(path),
            mend="convert again; if it stays so, check the disk",
        )


def _fsynced_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as squashfs:
        os.fsync(squashfs.fileno())
        while block := squashfs.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
