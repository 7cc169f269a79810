"""An image of an engine as a source: packed from its layers where they lie, or else from the engine's export.

Either way there is no tree on disk, and the root is the same for the same image.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from runner.core import process_identity
from runner.core.errors import InfrastructureError, RefusedError
from runner.core.invocation import PROGRAM
from runner.images import reference as references
from runner.images.packing import mksquashfs, rootfs
from runner.images.packing.mksquashfs import PackJob

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container
    from docker.models.images import Image

Method = Literal["auto", "layers", "stream"]
_OWNER = "gpu-runner.owner"  # label of a container that is never started: the mark of the process that made it
_LATE_S = 2.0  # an engine creates a container in less


@dataclass(frozen=True)
class EngineImage:
    """An image of an engine. ``method``: "layers" or "stream" packs from these or fails; "auto" from the layers where
    this machine allows it.
    """

    name: str
    image: Image
    client: docker.DockerClient
    method: Method = "auto"
    origin: str = ""
    names: tuple[str, ...] = ()
    data_order: str = "walk"

    @property
    def digest(self) -> str:
        """The image's id."""
        return str(self.image.id)

    @property
    def created(self) -> str:
        """When it was made, ISO 8601, UTC; empty where the engine does not say."""
        return str(self.image.attrs.get("Created") or "")

    @property
    def architecture(self) -> str:
        """As Go names it."""
        return str(self.image.attrs.get("Architecture") or "")

    @property
    def config(self) -> rootfs.Config:
        """How a container of it starts, from the engine's description of it."""
        raw = self.image.attrs.get("Config") or {}
        return rootfs.Config(
            environment=dict(line.partition("=")[::2] for line in raw.get("Env") or ()),
            workdir=raw.get("WorkingDir") or "",
            entrypoint=tuple(raw.get("Entrypoint") or ()),
            command=tuple(raw.get("Cmd") or ()),
            labels=dict(raw.get("Labels") or {}),
            volumes=tuple(raw.get("Volumes") or ()),
        )

    def another_way(self) -> EngineImage:
        """From the export, where the layers were taken."""
        return replace(self, method="stream") if self.method == "auto" else self

    def packed(self, job: PackJob) -> rootfs.Passed:
        """Pack its root with what is put in. RefusedError: the layers cannot be packed here, and nothing else is
        allowed. InfrastructureError: the engine, mksquashfs or the disk failed.
        """
        with _container(self.client, self.digest) as container:
            if self.method != "stream":
                try:
                    local = self.client.api.base_url.startswith("http+docker:")
                    layers = mksquashfs.directories(container.attrs, local=local)
                    job.progress.step(f"squashing {self.name}: the engine's {len(layers)} layers, mounted")
                    return mksquashfs.packed_layers(layers, job)
                except mksquashfs.Unavailable as reason:
                    if self.method == "layers":
                        raise RefusedError(
                            f"the layers cannot be packed here: {reason}", where="--way layers"
                        ) from reason
                    job.progress.line(f"not from the layers: {reason}")
            job.progress.step(f"squashing {self.name}: the engine's export, as a stream")
            chunks = cast("Iterator[bytes]", container.export(chunk_size=1 << 20))
            return mksquashfs.packed_stream(chunks, job, size=self.image.attrs.get("Size"))


def engine_image(image: str, client: docker.DockerClient, method: Method = "auto") -> EngineImage:
    """The engine's image of that reference or id. UsageError: it is neither. RefusedError: the engine has none."""
    import docker

    if references.is_path(image):
        raise references.path_without_format(image, exists=Path(image).exists())
    name = image if image.startswith("sha256:") else str(references.parse(image))
    try:
        return EngineImage(name, client.images.get(name), client, method)
    except docker.errors.ImageNotFound as error:
        pull = ", or pull it into the engine (docker pull)" if references.names_registry(image) else ""
        fix = f"build it first ({PROGRAM} build pytorch){pull}"
        raise RefusedError(f"the engine has no image {image}", where=image, fix=fix) from error


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
            with suppress(docker.errors.APIError, requests.exceptions.RequestException):
                _remove_late(client, mark)
            raise
        try:
            yield container
        finally:
            with suppress(docker.errors.APIError, requests.exceptions.RequestException):
                container.remove(force=True, v=True)
                # At the end: an engine may make a container after its client has died. Those of conversions that were
                # killed are removed where this machine can tell that they were.
                for other in client.containers.list(all=True, filters={"label": _OWNER}, ignore_removed=True):
                    if process_identity.state(other.labels.get(_OWNER, "")) == "dead":
                        with suppress(docker.errors.APIError):
                            other.remove(force=True, v=True)
    except (docker.errors.APIError, requests.exceptions.RequestException) as error:
        raise InfrastructureError(f"the engine failed: {error}", where=image_id) from error


def _remove_late(client: docker.DockerClient, mark: str) -> None:
    """Remove the container with this mark: an engine makes it even if its client no longer waits."""
    until = time.monotonic() + _LATE_S
    while time.monotonic() < until:
        for container in client.containers.list(all=True, filters={"label": f"{_OWNER}={mark}"}, ignore_removed=True):
            container.remove(force=True, v=True)
            return
        time.sleep(0.1)
