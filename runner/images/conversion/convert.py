"""Convert an image into a squashfs in the store: an engine's, or any other ``Source``.

An engine's layers are packed where they lie (``layers``), or else its export as a stream (``rootfs``, ``pack``):
either way no tree on disk, and the same bytes for the same image. What is published was verified first: its
superblock, and its listing against the source's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import msgspec

from runner import paths, process
from runner.errors import InfrastructureError, RefusedError, UsageError
from runner.files import process_identity
from runner.files.hashes import key_of
from runner.files.hashes import sha256 as sha256_of
from runner.files.lease import abandoned, leased
from runner.images import reference as references
from runner.images.packing import mksquashfs, mounted_layers, rootfs, tarstream
from runner.images.store import integrity, squashfs_file, store
from runner.model.plan import RESULTS
from runner.progress import Progress

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container
    from docker.models.images import Image

CONVERTER = "runner-sqsh 2"  # the version goes into the key: raise it with every change of what is written
Way = Literal["auto", "layers", "stream"]
_ORDERS = ("walk", "layers")
_OWNER = "gpu-runner.owner"  # label of a container that is never started: the mark of the process that made it
_LATE_S = 2.0  # an engine makes a container in less
ABOUT = "opt/runner/image.json"  # what an image of ours says of itself
# A read-only root takes binds only where the directory exists: ours, and the usual ones of data.
_DIRECTORIES = (RESULTS.strip("/"), "data", "scratch", "ch")


@dataclass(frozen=True)
class Conversion:
    """The stored image; whether it was made now, and in how many seconds.

    moved_from: digest of the image that its name stood for until now; empty where it is the same or was not known.
    """

    image: store.StoredImage
    made: bool
    seconds: float
    moved_from: str = ""


class Source(Protocol):
    """An image that can be converted.

    Attributes:
        name: what it is called in the store: a reference, or its id. digest: its id.
        origin: digest by which registries know it; empty where none does. names: all such digests of it.
        order: of the files' data in what is packed: "walk" for that of a sorted walk, or another name.
        created: when it was made, ISO 8601, UTC; empty where unknown. architecture: as Go names it.
    """

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def origin(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def order(self) -> str: ...
    @property
    def created(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def config(self) -> rootfs.Config: ...

    def packed(
        self,
        added: rootfs.Additions,
        out: Path,
        packing: mksquashfs.Packing,
        progress: Progress,
        capture: tuple[str, ...],
    ) -> rootfs.Passed:
        """Pack its root with what is put in; returns what that holds."""


def convert(
    image: str,
    client: docker.DockerClient,
    progress: Progress,
    *,
    store_dir: Path | None = None,
    packing: mksquashfs.Packing | None = None,
    way: Way = "auto",
) -> Conversion:
    """Convert ``image`` (a reference or an id) unless the store holds it; returns the stored image.

    Args:
        way: "layers" or "stream" takes that one or fails; "auto" the first that this machine allows.

    Raises:
        UsageError: no image reference. RefusedError: the engine has no such image, or squashfs-tools are absent.
        InfrastructureError: the engine, mksquashfs or the disk failed; nothing is left behind.
    """
    return convert_source(engine_source(image, client, way), progress, store_dir=store_dir, packing=packing)


def engine_source(image: str, client: docker.DockerClient, way: Way = "auto") -> Source:
    """An engine's image (a reference or an id).

    Raises:
        UsageError: no image reference. RefusedError: the engine has no such image.
    """
    if references.is_path(image):
        raise UsageError(f"{image} is a file; only images of an engine are converted", where=image)
    name = image if image.startswith("sha256:") else str(references.parse(image))
    return _EngineImage(name, found_in_engine(image, client), client, way)


def convert_source(
    source: Source, progress: Progress, *, store_dir: Path | None = None, packing: mksquashfs.Packing | None = None
) -> Conversion:
    """Convert an image unless the store holds it; its name stands for it from now on.

    Raises:
        RefusedError: squashfs-tools are absent, or the source refuses.
        InfrastructureError: source, mksquashfs or the disk failed; nothing is left behind.
    """
    target = store_dir or store.directory()
    packing = packing or mksquashfs.Packing()
    # Whatever order its data have, it is the same root.
    first, *others = (_key(source.digest, order, packing) for order in dict.fromkeys((source.order, *_ORDERS)))

    def make() -> store.StoredImage:
        return _make(source, target, first, packing, progress)

    return kept_or_made(source, (first, *others), target, make, progress)


def kept_or_made(
    source: Source,
    keys: tuple[str, ...],
    target: Path,
    make: Callable[[], store.StoredImage],
    progress: Progress,
    form: store.Form = "squashfs",
) -> Conversion:
    """What the store ``target`` holds by one of ``keys``, or what ``make`` publishes there by the first of them.

    One process makes it while all others wait; what is sound is never made again.
    """
    started = time.monotonic()
    moved_from = _moved_from(source, target, form)

    def kept() -> Conversion | None:
        found = next(filter(None, (_sound(key, target, form) for key in keys)), None)
        return None if found is None else Conversion(_referred(found, source), False, elapsed(), moved_from)

    def elapsed() -> float:
        return time.monotonic() - started

    lease = store.lease_path(keys[0], target)
    if (done := kept()) is not None and not (os.access(target, os.W_OK) and abandoned(lease)):
        return done
    paths.made(target)
    with leased(lease, progress.step):
        store.sweep(keys[0], target)
        if (done := kept()) is not None:
            return done
        stored = make()
    return Conversion(_referred(stored, source), True, elapsed(), moved_from)


def _moved_from(source: Source, target: Path, form: store.Form) -> str:
    """Digest of another image that the source's name stands for in the store; empty where there is none."""
    with suppress(InfrastructureError):  # a sidecar that cannot be read: of that image nothing is known
        before = store.lookup(source.name, target, form)
        if before is not None and before.digest != source.digest:
            return before.origin or before.digest
    return ""


def _key(digest: str, order: str, packing: mksquashfs.Packing) -> str:
    return key_of(digest, CONVERTER, *packing.options(), *_DIRECTORIES, *([] if order == "walk" else [order]))


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


def about_of(raw: bytes | str | None) -> dict[str, Any]:
    """What an image says of itself in ``ABOUT``; nothing where that file is somebody else's, or is not there."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(raw or b"{}", type=dict[str, Any])
    return {}


def created_at(created: str) -> int:
    """When the image was made, seconds since the epoch: the squashfs carries this time and no later one. 0: unknown."""
    try:
        made = datetime.strptime(created[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return 0
    # Year 1 is how Go writes an unknown time.
    return int(made.timestamp()) if 0 <= made.timestamp() <= tarstream.LAST_S else 0


def found_in_engine(image: str, client: docker.DockerClient) -> Image:
    """The engine's image of that reference or id. Raises RefusedError where it has none."""
    import docker

    try:
        return client.images.get(image if image.startswith("sha256:") else str(references.parse(image)))
    except docker.errors.ImageNotFound as error:
        raise RefusedError(
            f"the engine has no image {image}",
            where=image,
            fix="build it first (python -m runner build pytorch), or pull it into the engine (docker pull)",
        ) from error


def _sound(key: str, target: Path, form: store.Form) -> store.StoredImage | None:
    """The stored image of this key; None where there is none, or none that could be used."""
    if paths.caches_ignored():
        return None
    with suppress(InfrastructureError):  # a sidecar that cannot be read: the image is made anew
        found = store.by_key(key, target, form)
        return found if found is not None and not integrity.problem(found) else None
    return None


def _referred(found: store.StoredImage, source: Source) -> store.StoredImage:
    """Every name of the source stands for the image from now on."""
    with suppress(InfrastructureError):  # a store of somebody else's serves as it is
        for name in (*source.names, source.name):
            store.confirm(name, found)
    return found


def described(
    source: Source,
    made: Path,
    target: Path,
    key: str,
    *,
    entries: int,
    about: Mapping[str, Any],
    converter: str,
    options: tuple[str, ...],
    omitted: tuple[str, ...] = (),
    form: store.Form = "squashfs",
) -> store.StoredImage:
    """A finished and verified file as the store ``target`` is to know it. Arguments: see ``StoredImage``."""
    config, sha256 = source.config, sha256_of(made)
    return store.StoredImage(
        path=target / store.file_name(source.name, source.digest, sha256, form),
        reference=source.name,
        digest=source.digest,
        origin=source.origin,
        size_bytes=made.stat().st_size,
        sha256=sha256,
        entries=entries,
        environment=config.environment,
        workdir=config.workdir or "/",
        entrypoint=config.entrypoint,
        command=config.command,
        labels=config.labels,
        about=about,
        architecture=source.architecture,
        key=key,
        converter=converter,
        options=options,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        omitted=omitted,
    )


def _make(source: Source, target: Path, key: str, packing: mksquashfs.Packing, progress: Progress) -> store.StoredImage:
    for program in ("mksquashfs", "unsquashfs"):
        if process.find(program) is None:
            raise RefusedError(f"{program} is not installed", fix="install the package squashfs-tools")
    config = source.config
    added = rootfs.additions(config, _DIRECTORIES, created_at(source.created))
    partial = store.partial_path(key, target)
    try:
        passed = source.packed(added, partial, packing, progress, (ABOUT,))
        progress.step("verifying")
        squashfs_file.check_listing(partial, passed.names)
        about = passed.captured.get(ABOUT)
        stored = described(
            source, partial, target, key, entries=passed.entries(), about=about_of(about), converter=CONVERTER,
            options=packing.options(), omitted=rootfs.omitted(config.environment),
        )  # fmt: skip
        progress.step("publishing")
        return store.publish(partial, stored)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _container(client: docker.DockerClient, image_id: str) -> Iterator[Container]:
    """A container of the image that is never started: what is exported, and what keeps the layers from removal."""
    import docker
    import requests

    mark = process_identity.unique()
    try:
        try:
            container = client.containers.create(
                image_id, ["true"], network_mode="none", use_config_proxy=False, labels={_OWNER: mark}
            )
        except (KeyboardInterrupt, SystemExit):
            _remove_late(client, mark)
            raise
        try:
            yield container
        finally:
            with suppress(docker.errors.APIError, requests.exceptions.RequestException):
                container.remove(force=True, v=True)
                _remove_orphans(client)  # at the end: an engine may make a container after its client has died
    except (docker.errors.APIError, requests.exceptions.RequestException) as error:
        raise InfrastructureError(f"the engine failed: {error}", where=image_id) from error


def _remove_late(client: docker.DockerClient, mark: str) -> None:
    """Remove the container with this mark: an engine makes it all the same when its client no longer waits."""
    import docker
    import requests

    until = time.monotonic() + _LATE_S
    with suppress(docker.errors.APIError, requests.exceptions.RequestException):
        while time.monotonic() < until:
            for container in client.containers.list(
                all=True, filters={"label": f"{_OWNER}={mark}"}, ignore_removed=True
            ):
                container.remove(force=True, v=True)
                return
            time.sleep(0.1)


def _remove_orphans(client: docker.DockerClient) -> None:
    """Remove the containers of conversions that were killed, where this machine can tell that they were."""
    import docker

    for container in client.containers.list(all=True, filters={"label": _OWNER}, ignore_removed=True):
        if process_identity.state(container.labels.get(_OWNER, "")) == "dead":
            with suppress(docker.errors.APIError):
                container.remove(force=True, v=True)


@dataclass(frozen=True)
class _EngineImage:
    """An image of an engine, packed from its layers as they lie there, or from the engine's export."""

    name: str
    image: Image
    client: docker.DockerClient
    way: Way
    origin: str = ""
    names: tuple[str, ...] = ()
    order: str = "walk"

    @property
    def digest(self) -> str:
        return str(self.image.id)

    @property
    def created(self) -> str:
        return str(self.image.attrs.get("Created") or "")

    @property
    def architecture(self) -> str:
        return str(self.image.attrs.get("Architecture") or "")

    @property
    def config(self) -> rootfs.Config:
        return config_of(self.image.attrs)

    def packed(
        self,
        added: rootfs.Additions,
        out: Path,
        packing: mksquashfs.Packing,
        progress: Progress,
        capture: tuple[str, ...],
    ) -> rootfs.Passed:
        with _container(self.client, self.digest) as container:
            if self.way != "stream":
                try:
                    local = self.client.api.base_url.startswith("http+docker:")
                    found = mounted_layers.directories(container.attrs, local=local)
                    progress.step(f"squashing {self.name}: the engine's {len(found)} layers, mounted")
                    return mounted_layers.packed_layers(found, added, out, packing, progress, capture=capture)
                except mounted_layers.Unavailable as reason:
                    if self.way == "layers":
                        raise RefusedError(
                            f"the layers cannot be packed here: {reason}", where="--way layers"
                        ) from reason
                    progress.line(f"not from the layers: {reason}")
            progress.step(f"squashing {self.name}: the engine's export, as a stream")
            size = self.image.attrs.get("Size")
            chunks = cast("Iterator[bytes]", container.export(chunk_size=1 << 20))
            return mksquashfs.packed_stream(chunks, added, out, packing, progress, size=size, capture=capture)
