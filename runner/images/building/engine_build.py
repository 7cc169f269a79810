"""Removes what builds leave in an engine when they are stopped or killed, or their engine dies.

The containers of a build's steps have no label of ours, and an engine that dies leaves the one that ran. So each is
recorded when the engine names it, and the next build removes those that still exist. The caller holds the lock of
builds.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from runner.core import package_directory, paths, process_identity
from runner.core.errors import InfrastructureError, ProgramFailedError, RefusedError
from runner.core.package_directory import MANIFEST, PackageDirectory
from runner.core.progress import Progress
from runner.images.building import buildlog
from runner.images.building.pull import FULL_FIX
from runner.images.engine.connection import needs_host_network

if TYPE_CHECKING:
    import docker


PART_LABEL = "gpu-runner.part"  # of images, also of those that have lost their names
OWNER_LABEL = "gpu-runner.owner"  # of a container that a process of ours made: its mark
_NOTES = "steps"
_STOP_S = 15.0


class StepContainers:
    """The containers in which one build's steps ran, in memory and in a file of the cache."""

    def __init__(self, client: docker.DockerClient) -> None:
        self._engine = _identity(client)
        self._names: list[str] = []
        self._note = paths.ensure_directory(paths.cache(_NOTES)) / process_identity.unique()

    def add(self, container: str) -> None:
        """The engine runs a step in this container."""
        self._names.append(container)
        self._note.write_text(json.dumps({"engine": self._engine, "containers": self._names}))

    def forget(self) -> None:
        """The build has ended, and the engine has removed them."""
        self._note.unlink(missing_ok=True)


def sweep(client: docker.DockerClient) -> None:
    """Remove containers of builds that were cut off, and untagged images of ours that nothing uses.

    No other build of ours runs, so every untagged image is a leftover.
    """
    import docker

    engine = _identity(client)
    for note in paths.cache(_NOTES).glob("*"):
        with suppress(ValueError):
            record = json.loads(note.read_text())
            if record["engine"] != engine:
                continue
            _remove(client, record["containers"])
        note.unlink()
    for container in client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True):
        if process_identity.state(container.labels.get(OWNER_LABEL, "")) == "dead":
            with suppress(docker.errors.APIError):
                container.remove(force=True, v=True)
    with suppress(docker.errors.APIError):
        client.images.prune(filters={"dangling": True, "label": [PART_LABEL]})


def _remove(client: docker.DockerClient, containers: list[str]) -> None:
    """Remove them; an engine needs a moment to stop the step of a build whose client went away."""
    import docker

    deadline = time.monotonic() + _STOP_S
    left = [name for name in containers if _exists(client.containers.get, name)]
    while left and time.monotonic() < deadline:
        for name in left:
            with suppress(docker.errors.APIError):
                client.api.remove_container(name, force=True, v=True)
        time.sleep(0.2)
        left = [name for name in left if _exists(client.containers.get, name)]


def _exists(get: Callable[[str], Any], name: str) -> bool:
    import docker

    try:
        get(name)
    except docker.errors.NotFound:
        return False
    return True


def _identity(client: docker.DockerClient) -> str:
    """Which engine this is: its machine and its data directory. (Podman's ID changes with each call.)"""
    info = client.info()
    return f"{info.get('Name')}:{info.get('DockerRootDir')}"


@dataclass(frozen=True)
class EngineBase:
    """What a build starts from.

    Attributes:
        framework: whose Dockerfile. reference: of the base; identity: its id in the engine.
        args: build arguments. platform: such as ``linux/arm64``; None leaves it to the engine.
        packages: what pip takes packages from; the build's steps then have no network.
    """

    framework: str
    reference: str
    identity: str
    args: Mapping[str, str]
    platform: str | None
    packages: PackageDirectory | None = None

    @property
    def package_files(self) -> tuple[tuple[str, Path], ...]:
        """(name beside ``build.py``, path) of the packages and their manifest; nothing where an index has them."""
        if self.packages is None:
            return ()
        files = (*self.packages.files(package_directory.HOROVOD), (MANIFEST, self.packages.path / MANIFEST))
        # NVIDIA's compiler was collected for environments: a base with CUDA has its own.
        return tuple((f"packages/{name}", path) for name, path in files if not name.startswith("nvidia_"))


def run(
    client: docker.DockerClient,
    base: EngineBase,
    progress: Progress,
    *,
    files: Sequence[tuple[str, Path]],
    tag: str,
    target: str | None,
    args: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
) -> None:
    """Stream one build of the framework's Dockerfile; a failed build leaves nothing behind.

    Args:
        files: (name in the context, path). target: the stage to stop at; None for the last.
        args: build arguments besides those of the base. labels: of the image.

    Raises:
        ProgramFailedError: a step failed; names it, with its last lines. InfrastructureError: the engine failed.
    """
    import docker
    import requests
    import urllib3

    containers = StepContainers(client)
    try:
        with tempfile.TemporaryFile() as context:
            packages = ((f"containers/horovod/{name}", path) for name, path in base.package_files)
            context.write(tar_of([*files, *packages]).getbuffer())
            context.seek(0)
            chunks = client.api.build(
                fileobj=context,
                custom_context=True,
                dockerfile=f"containers/{base.framework}/Dockerfile",
                tag=tag,
                target=target or "",
                buildargs={"BASE": base.reference, **base.args, **args},
                labels=dict(labels or {}),
                network_mode=_network(client, base),
                platform=base.platform,
                nocache=paths.caches_ignored(),
                rm=True,
                forcerm=True,
                decode=True,
            )
            _follow(chunks, containers, progress)
        containers.forget()
    except BaseException as error:
        with suppress(requests.exceptions.ConnectionError):  # the engine is gone; the next build sweeps
            sweep(client)
        if isinstance(error, docker.errors.APIError):
            raise _refused(str(error.explanation), tag) from error
        if isinstance(error, (requests.exceptions.RequestException, urllib3.exceptions.HTTPError)):
            raise InfrastructureError(
                "the engine went away in the middle of the build", where=tag, fix="start it again, and build again"
            ) from error
        raise


def _network(client: docker.DockerClient, base: EngineBase) -> str | None:
    """The network of a build's steps; None: the engine's usual one."""
    if base.packages is not None:
        return "none"
    return "host" if needs_host_network(client) else None


def _follow(chunks: Iterator[Mapping[str, Any]], containers: StepContainers, progress: Progress) -> None:
    log = buildlog.BuildLog()
    step = buildlog.Step(0, 0, "the beginning")
    last: list[str] = []

    def take(event: buildlog.Event) -> None:
        nonlocal step
        match event:
            case buildlog.Step():
                step = event
                last.clear()
                progress.step(event.text, event.number, event.total)
            case buildlog.Line(text):
                last.append(text)
                del last[: -buildlog.LAST_LINES]
                progress.line(text)
            case buildlog.Started(container):
                containers.add(container)
            case buildlog.Failed():
                raise _failure(event, step, last)

    for chunk in chunks:
        for event in log.feed(chunk):
            take(event)
    for event in log.end():
        take(event)


def _refused(message: str, tag: str) -> InfrastructureError:
    if "no space left" in message.lower():
        return InfrastructureError(f"the engine's disk is full: {message}", where=tag, fix=FULL_FIX)
    return InfrastructureError(f"the engine refused the build: {message}", where=tag)


def no_emulation(message: str, where: str) -> RefusedError | None:
    """The refusal where the engine cannot run programs of the image's processor; None for any other failure."""
    if "exec format error" not in message.lower():
        return None
    return RefusedError(
        "the engine's machine cannot run programs of this platform: exec format error",
        where=where,
        fix="build on a machine of that processor, or let the kernel emulate it: install qemu-user-static with"
        " binfmt-support (docker run --privileged --rm tonistiigi/binfmt --install all)",
    )


def _failure(
    event: buildlog.Failed, step: buildlog.Step, last: Sequence[str]
) -> ProgramFailedError | InfrastructureError | RefusedError:
    output = "\n".join([*last, event.message])
    if "no space left" in output.lower():
        return InfrastructureError("the engine's disk is full", where=step.text, fix=FULL_FIX)
    if (refused := no_emulation(output, step.text)) is not None:
        return refused
    return ProgramFailedError(
        f"build step {step.number}/{step.total} failed"
        + (f" with exit code {event.code}" if event.code else "")
        + f":\n{output}",
        where=step.text,
        fix="the lines above are the step's last ones; fix what they name and build again",
    )


def remove_image(client: docker.DockerClient, name: str) -> None:
    """Remove an image, unless another name or a container still uses it."""
    import docker

    with suppress(docker.errors.APIError):
        client.images.remove(name)


def tar_of(files: Sequence[tuple[str, Path]]) -> io.BytesIO:
    """A tar that depends only on names, contents and the permission to execute, so that engines' caches hit."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, path in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            content: IO[bytes]
            with path.open("rb") as content:
                tar.addfile(entry, content)
    archive.seek(0)
    return archive


def content(client: docker.DockerClient, image: str, path: str) -> bytes | None:
    """A file of an image; None where it is not there."""
    import docker

    with container_of(client, image, ["true"]) as container:
        try:
            chunks, _ = container.get_archive(path)
        except docker.errors.NotFound:
            return None
        archive = io.BytesIO(b"".join(chunks))
    with tarfile.open(fileobj=archive) as tar:
        member = tar.next()
        file = tar.extractfile(member) if member is not None else None
        return file.read() if file is not None else None


@contextmanager
def container_of(
    client: docker.DockerClient,
    image: str,
    command: Sequence[str],
    *,
    platform: str | None = None,
    env: Mapping[str, str] | None = None,
    network: bool = True,
) -> Iterator[Any]:
    """A created container, removed at the end whatever happens."""
    import docker

    more: dict[str, Any] = {"environment": dict(env or {}), "labels": {OWNER_LABEL: process_identity.mark()}}
    if not network:
        more["network_mode"] = "none"
    elif needs_host_network(client):
        more["network_mode"] = "host"
    if platform:
        more["platform"] = platform
    container = client.containers.create(image, list(command[1:]), entrypoint=[command[0]], **more)
    try:
        yield container
    finally:
        with suppress(docker.errors.APIError):
            container.remove(force=True, v=True)
