"""An image of an engine as a source: packed from its layers where they lie, or else from the engine's export.

Either way there is no tree on disk, and the root is the same for the same image.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from runner.core.errors import InfrastructureError, RefusedError, RunnerError
from runner.core.invocation import PROGRAM
from runner.images import reference as references
from runner.images.conversion import assembly
from runner.images.engine import container_name, find_image, remove_orphans
from runner.images.packing import mksquashfs, rootfs
from runner.images.packing.mksquashfs import PackJob, Source
from runner.images.packing.squashfs_tables import UnfitError
from runner.images.sources.manifests import StartUp
from runner.images.store.stored_image import StoredImage

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container
    from docker.models.images import Image

Method = Literal["auto", "layers", "stream"]
_LATE_S = 2.0  # an engine creates a container in less


def engine_image(
    image: str, client: docker.DockerClient, method: Method = "auto", relatives: Sequence[StoredImage] = ()
) -> Source:
    """The engine's image of that reference or id. UsageError: it is neither. RefusedError: the engine has none. method:
    "layers" or "stream" packs from these or fails; "auto" from the layers where this machine allows it. relatives:
    images from which it is assembled where that is possible.
    """
    if references.is_path(image):
        raise references.path_without_format(image, exists=Path(image).exists())
    name = image if image.startswith("sha256:") else str(references.parse(image))
    known = find_image(client, name)
    if known is None:
        pull = (
            f", or read it from there ({PROGRAM} convert --from registry {image})"
            if references.names_registry(image)
            else ""
        )
        fix = f"build it first ({PROGRAM} build pytorch){pull}"
        raise RefusedError(f"the engine has no image {image}", where=image, fix=fix)
    packed = partial(_packed, name, known, client, relatives)
    return Source(
        name=name,
        digest=str(known.id),
        created=str(known.attrs.get("Created") or ""),
        architecture=str(known.attrs.get("Architecture") or ""),
        config=msgspec.convert(known.attrs.get("Config") or {}, StartUp).of_container(name),
        packed=partial(packed, method),
        otherwise=partial(packed, "stream") if method == "auto" else None,
    )


def _packed(
    name: str, image: Image, client: docker.DockerClient, relatives: Sequence[StoredImage], method: Method, job: PackJob
) -> rootfs.Passed:
    import docker

    with _container(client, str(image.id)) as container:
        if method != "stream":
            try:
                local = client.api.base_url.startswith("http+docker:")
                layers = mksquashfs.directories(container.attrs, local=local)
                if (nearest := _nearest(layers, client, relatives)) is not None:
                    try:
                        relative, others = nearest
                        names = assembly.differing(layers, others)
                        client.images.get(relative.digest)  # else its layers were being removed while they were read
                        return assembly.from_layers(layers, others, names, relative, job)
                    except (UnfitError, mksquashfs.Unavailable, RunnerError, OSError, docker.errors.NotFound) as reason:
                        job.progress.line(f"not assembled: {reason}")
                job.progress.step(f"squashing {name}: the engine's {len(layers)} layers, mounted")
                return mksquashfs.packed_layers(layers, job)
            except mksquashfs.Unavailable as reason:
                if method == "layers":
                    what = f"the layers cannot be packed here: {reason}"
                    raise RefusedError(what, where="--way layers") from reason
                job.progress.line(f"not from the layers: {reason}")
        job.progress.step(f"squashing {name}: the engine's export, as a stream")
        chunks = cast("Iterator[bytes]", container.export(chunk_size=1 << 20))
        return mksquashfs.packed_stream(chunks, job, size=image.attrs.get("Size"))


def _nearest(
    layers: Sequence[Path], client: docker.DockerClient, relatives: Sequence[StoredImage]
) -> tuple[StoredImage, Sequence[Path]] | None:
    """The relative, known to the engine, that has most of these layers; with its own."""
    import docker

    best, nearest = 0, None
    for relative in relatives:
        with suppress(docker.errors.DockerException, mksquashfs.Unavailable):
            image = client.images.get(relative.digest)
            others = mksquashfs.directories(image.attrs, local=True)
            if (count := assembly.shared(layers, others)) > best:
                best, nearest = count, (relative, others)
    return nearest


@contextmanager
def _container(client: docker.DockerClient, image_id: str) -> Iterator[Container]:
    """A container of the image that is never started: what is exported, and what keeps the layers from removal."""
    import docker
    import requests

    name = container_name()
    try:
        try:
            container = client.containers.create(
                image_id, ["true"], network_mode="none", use_config_proxy=False, name=name
            )
        except (KeyboardInterrupt, SystemExit):
            with suppress(docker.errors.APIError, requests.exceptions.RequestException):
                _remove_late(client, name)
            raise
        try:
            yield container
        finally:
            with suppress(docker.errors.APIError, requests.exceptions.RequestException):
                container.remove(force=True, v=True)
                remove_orphans(client)  # at the end: an engine may make a container after its client has died
    except (docker.errors.APIError, requests.exceptions.RequestException) as error:
        raise InfrastructureError(f"the engine failed: {error}", where=image_id) from error


def _remove_late(client: docker.DockerClient, name: str) -> None:
    """Remove the container of this name: an engine makes it even if its client no longer waits."""
    import docker

    until = time.monotonic() + _LATE_S
    while time.monotonic() < until:
        with suppress(docker.errors.NotFound):
            client.api.remove_container(name, force=True, v=True)
            return
        time.sleep(0.1)
