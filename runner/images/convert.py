"""Convert an image of an engine into a squashfs in the store.

Its layers are packed where they lie (``layers``), or else its export as a stream (``rootfs``, ``pack``): either way
no tree on disk, and the same bytes for the same image. What is published was verified first: its superblock, and
its listing against the source's.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from runner import paths, process
from runner.errors import InfrastructureError, RefusedError, UsageError
from runner.images import layers, pack, rootfs, store
from runner.images import reference as references
from runner.images.keys import cold, key_of
from runner.images.locks import held
from runner.images.progress import Progress
from runner.model.plan import RESULTS

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container
    from docker.models.images import Image

CONVERTER = "runner-sqsh 2"  # the version goes into the key: raise it with every change of what is written
Way = Literal["auto", "layers", "stream"]
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
    image: str,
    client: docker.DockerClient,
    progress: Progress,
    *,
    store_dir: Path | None = None,
    packing: pack.Packing | None = None,
    way: Way = "auto",
) -> Conversion:
    """Convert ``image`` (a reference or an id) unless the store holds it; returns the stored image.

    Args:
        way: "layers" or "stream" takes that one or fails; "auto" the first that this machine allows.

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
    packing = packing or pack.Packing()
    key = key_of(str(source.id), CONVERTER, *packing.options(), *_DIRECTORIES)
    if not cold() and (found := store.by_key(key, target)) is not None:
        return Conversion(_referred(found, name), made=False, seconds=time.monotonic() - started)
    for program in ("mksquashfs", "unsquashfs"):
        if process.find(program) is None:
            raise RefusedError(f"{program} is not installed", mend="install the package squashfs-tools")
    with held(paths.made(target) / f".{key}.lock", progress.step):
        if not cold() and (found := store.by_key(key, target)) is not None:
            return Conversion(_referred(found, name), made=False, seconds=time.monotonic() - started)
        stored = _make(name, source, client, target, key, packing, way, progress)
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
    """When the image was made, seconds since the epoch: the squashfs carries this time and no later one. 0: unknown."""
    text = str(attrs.get("Created") or "")[:19]
    try:
        made = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
        return max(0, int(made.timestamp()))  # year 1 is how Go writes an unknown time
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
    name: str,
    source: Image,
    client: docker.DockerClient,
    target: Path,
    key: str,
    packing: pack.Packing,
    way: Way,
    progress: Progress,
) -> store.StoredImage:
    config = config_of(source.attrs)
    added = rootfs.additions(config, _DIRECTORIES, created_at(source.attrs))
    partial = target / f".{key}.partial"  # the lock is held: an older one is a killed conversion's
    try:
        partial.unlink(missing_ok=True)
        with _container(client, str(source.id)) as container:
            passed = _packed(name, container, client, added, partial, packing, way, progress)
        progress.step("verifying")
        _verify(partial, passed)
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
            options=packing.options(),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            omitted=rootfs.omitted(config.environment),
        )
        return store.publish(partial, stored)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _container(client: docker.DockerClient, image_id: str) -> Iterator[Container]:
    """A container of the image that is never started: what is exported, and what keeps the layers from removal."""
    import docker
    import requests

    try:
        container = client.containers.create(image_id, ["true"], network_mode="none", use_config_proxy=False)
        try:
            yield container
        finally:
            with suppress(docker.errors.APIError):
                container.remove(force=True, v=True)
    except (docker.errors.APIError, requests.exceptions.RequestException) as error:
        raise InfrastructureError(f"the engine failed: {error}", where=image_id) from error


def _packed(
    name: str,
    container: Container,
    client: docker.DockerClient,
    added: rootfs.Additions,
    out: Path,
    packing: pack.Packing,
    way: Way,
    progress: Progress,
) -> rootfs.Passed:
    if way != "stream":
        try:
            found = layers.directories(container.attrs, local=client.api.base_url.startswith("http+docker:"))
            progress.step(f"squashing {name}: the engine's {len(found)} layers, mounted")
            return layers.packed_layers(found, added, out, packing, progress, capture=(_ABOUT,))
        except layers.Unavailable as reason:
            if way == "layers":
                raise RefusedError(f"the layers cannot be packed here: {reason}", where="--way layers") from reason
            progress.line(f"not from the layers: {reason}")
    progress.step(f"squashing {name}: the engine's export, as a stream")
    size = client.images.get(str(container.attrs["Image"])).attrs.get("Size")
    chunks = cast("Iterator[bytes]", container.export(chunk_size=1 << 20))
    return pack.packed_stream(chunks, added, out, packing, progress, size=size, capture=(_ABOUT,))


def _verify(path: Path, passed: rootfs.Passed) -> None:
    """Superblock and size by unsquashfs, and the listing that went in (names with newlines span lines).

    Raises:
        InfrastructureError: the file is not what was packed.
    """
    process.run(["unsquashfs", "-s", path], timeout_s=_VERIFY_S)
    listing = process.run(["unsquashfs", "-l", path], timeout_s=_VERIFY_S).out
    wanted = b"".join(b"squashfs-root/" + os.fsencode(name) + b"\n" for name in passed.every())
    # As process decodes what a program says.
    missing = Counter(wanted.decode("utf-8", "replace").splitlines())
    missing.subtract(listing.splitlines())
    wrong = {line: count for line, count in missing.items() if count and line not in ("", "squashfs-root")}
    if wrong:
        raise InfrastructureError(
            f"the squashfs does not hold what the image holds ({len(wrong)} entries differ, such as "
            f"{min(wrong)!r}): not published",
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
