"""One build in an engine: its base pulled, its steps streamed, and all removed that a build which is cut off leaves."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from runner.core import loopback, package_directory, paths, process_identity
from runner.core.errors import InfrastructureError, ProgramFailedError, RefusedError
from runner.core.package_directory import MANIFEST, PackageDirectory
from runner.core.progress import Progress
from runner.images import reference
from runner.images.building import buildlog
from runner.images.conversion.publishing import ABOUT, about_of
from runner.images.engine import best_effort, container_name, find_image, needs_host_network, remove_orphans
from runner.images.sources import credentials
from runner.images.sources.registry_http import HUB, login_needed

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image


_NOTES = "steps"
_BY_SOCKET = "http+docker://localhost"  # of docker-py: an engine of this machine
_STOP_S = 15.0
_FULL_FIX = "free space on the engine's disk: docker system df shows what takes it"
# The messages of Docker (20.10 to 28) and Podman for a registry's 401 and 403; Docker's hub answers 403 for an unknown
# name, too. A status stands alone: ports, tags and digests have such digits, too.
_NO_LOGIN = re.compile(
    r"unauthorized|no basic auth credentials|authentication required|(?<![\w.:/-])401(?![\w./-]|:\S)"
)
_DENIED = re.compile(r"denied|forbidden|(?<![\w.:/-])403(?![\w./-]|:\S)")
_NO_PLATFORM = ("no matching manifest", "no image found in image index", "no image found in manifest list")


def sweep(client: docker.DockerClient) -> None:
    """Remove what builds of ours have left: containers, and images without a name that nothing uses. No other build of
    ours runs.
    """
    engine, images = _identity(client), list[str]()
    for note in paths.cache(_NOTES).glob("*"):
        with suppress(ValueError):
            record = json.loads(note.read_text())
            if record["engine"] != engine:
                continue
            _remove(client, record["containers"])
            images += record.get("images", ())  # which earlier versions did not note
        note.unlink()
    remove_orphans(client)
    for image in client.images.list(filters={"dangling": True}) if images else ():
        if str(image.id).removeprefix("sha256:").startswith(tuple(images)):
            remove_image(client, str(image.id))


def _remove(client: docker.DockerClient, containers: list[str]) -> None:
    """Remove them; an engine needs a moment to stop the step of a build whose client went away."""
    import docker

    def exists(name: str) -> bool:
        try:
            client.containers.get(name)
        except docker.errors.NotFound:
            return False
        return True

    deadline = time.monotonic() + _STOP_S
    left = list(filter(exists, containers))
    while left and time.monotonic() < deadline:
        for name in left:
            with best_effort():
                client.api.remove_container(name, force=True, v=True)
        time.sleep(0.2)
        left = list(filter(exists, left))


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

    def package_files(self) -> Iterator[tuple[str, bytes]]:
        """(name beside ``build.py``, content) of the packages and their manifest; nothing where an index has them.
        Raises as ``PackageDirectory.content``.
        """
        if self.packages is not None:
            yield f"packages/{MANIFEST}", msgspec.json.encode(self.packages.manifest)
            for file in self.packages.manifest.files:
                part, _, name = file.name.partition("/")
                # NVIDIA's compiler was collected for environments: a base with CUDA has its own.
                if part == package_directory.HOROVOD and not name.startswith("nvidia_"):
                    yield f"packages/{name}", self.packages.content(file)


def run(
    client: docker.DockerClient,
    base: EngineBase,
    progress: Progress,
    *,
    files: Sequence[tuple[str, Path]],
    tag: str,
    args: Mapping[str, str],
    target: str = "",
    labels: Mapping[str, str] | None = None,
) -> Image:
    """Stream one build of the framework's Dockerfile; the image that had its name before is removed if nothing else
    uses it. A failed build leaves nothing behind; its error names the step, with its last lines.

    Args:
        files: (name in the context, path). target: the stage to stop at; empty for the last.
        args: build arguments besides those of the base. labels: of the image.
    """
    import docker
    import requests
    import urllib3

    # What the steps run in, and what comes of them, for the sweep: that of a later build if this one is killed.
    note = paths.ensure_directory(paths.cache(_NOTES)) / process_identity.unique()
    engine, made = _identity(client), {"containers": list[str](), "images": list[str]()}
    before = find_image(client, tag)
    # A step may print what an engine says, with the id of anything.
    there = (*client.api.containers(all=True), *client.api.images(all=True))
    others = [str(each["Id"]).removeprefix("sha256:") for each in there]
    # Of the steps; None: the engine's usual one.
    network = "none" if base.packages is not None else "host" if needs_host_network(client) else None
    try:
        with tempfile.TemporaryFile() as context:
            packages = ((f"containers/horovod/{name}", content) for name, content in base.package_files())
            context.write(tar_of([*files, *packages]).getbuffer())
            context.seek(0)
            chunks = client.api.build(
                fileobj=context,
                custom_context=True,
                dockerfile=f"containers/{base.framework}/Dockerfile",
                tag=tag,
                target=target,
                buildargs={"BASE": base.reference, **base.args, **args},
                labels=dict(labels or {}),
                network_mode=network,
                platform=base.platform,
                nocache=paths.caches_ignored(),
                rm=True,
                forcerm=True,
                decode=True,
            )
            log, report = buildlog.BuildLog(), buildlog.Report(progress)
            for event in chain(chain.from_iterable(map(log.feed, chunks)), log.end()):
                if isinstance(event, buildlog.Made):
                    if not any(each.startswith(event.id) for each in others):
                        made[event.kind].append(event.id)
                        note.write_text(json.dumps({"engine": engine, **made}))
                elif isinstance(event, buildlog.Failed):
                    raise _failure(event, report.step, report.last)
                else:
                    report.take(event)
        sweep(client)
    except BaseException as error:
        with suppress(requests.exceptions.ConnectionError):  # the engine is gone; the next build sweeps
            sweep(client)
        if isinstance(error, docker.errors.APIError):
            what = f"the engine refused the build: {error.explanation}"
            if "no space left" in what.lower():
                full = f"the engine's disk is full: {error.explanation}"
                raise InfrastructureError(full, where=tag, fix=_FULL_FIX) from error
            raise InfrastructureError(what, where=tag) from error
        if isinstance(error, (requests.exceptions.RequestException, urllib3.exceptions.HTTPError)):
            raise InfrastructureError(
                "the engine went away in the middle of the build", where=tag, fix="start it again, and build again"
            ) from error
        raise
    image = client.images.get(tag)
    if before is not None and before.id != image.id:
        remove_image(client, str(before.id))
    return image


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
    output, where = "\n".join([*last, event.message]), step.text or "the beginning"
    if "no space left" in output.lower():
        return InfrastructureError("the engine's disk is full", where=where, fix=_FULL_FIX)
    if (refused := no_emulation(output, where)) is not None:
        return refused
    return ProgramFailedError(
        f"build step {step.number}/{step.total} failed"
        + (f" with exit code {event.code}" if event.code else "")
        + f":\n{output}",
        where=where,
        fix="the lines above are the step's last ones; fix what they name and build again",
    )


def remove_image(client: docker.DockerClient, name: str) -> None:
    """Remove an image, unless another name or a container still uses it."""
    with best_effort():
        client.images.remove(name)


def tar_of(files: Sequence[tuple[str, Path | bytes]]) -> io.BytesIO:
    """A tar of files, or of what is to be in them, that depends only on names, contents and the permission to execute,
    so that engines' caches hit.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, source in sorted(files, key=lambda each: each[0]):
            content = source if isinstance(source, bytes) else source.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if isinstance(source, Path) and os.access(source, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    archive.seek(0)
    return archive


def files_of(client: docker.DockerClient, image: str, path: str) -> dict[str, bytes]:
    """The files at a path of an image, or below it, by name; none where it is not there."""
    import docker

    with container_of(client, image, ["true"]) as container:
        try:
            chunks, _ = container.get_archive(path)
        except docker.errors.NotFound:
            return {}
        archive = io.BytesIO(b"".join(chunks))
    with tarfile.open(fileobj=archive) as tar:
        files = ((member.name, tar.extractfile(member)) for member in tar if member.isreg())
        return {name: file.read() for name, file in files if file is not None}


def about(client: docker.DockerClient, image: str) -> dict[str, Any]:
    """What an image says of itself."""
    return about_of(next(iter(files_of(client, image, f"/{ABOUT}").values()), None))


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
    more: dict[str, Any] = {"environment": dict(env or {}), "name": container_name()}
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
        with best_effort():
            container.remove(force=True, v=True)


def base_image(client: docker.DockerClient, name: str, platform: str | None, progress: Progress) -> Image:
    """The base in the engine, pulled where it is absent, or there for another platform only. RefusedError: the registry
    has no such image, or denies access. InfrastructureError: the pull failed.
    """
    import docker

    present = _present(client, name, platform)
    if present is not None:
        return present
    if str(reference.parse(name)).startswith(reference.OURS):
        raise RefusedError(
            f"the engine has no image {name}, and at {HUB} that name could be anybody's",
            where=name,
            fix="build it first, or name the registry that it was pushed to",
        )
    registry = reference.parse(name).registry
    engine = client.api.base_url
    if loopback.is_here(registry) and (engine == _BY_SOCKET or loopback.is_here(urlsplit(engine).netloc)):
        # The engine gets a login that docker-py finds, and takes this machine's registries without TLS, too.
        at = registry if urlsplit(f"//{registry}").port else f"{registry}:443"
        loopback.ensure_own_port(at, by_name=True)
    progress.step(f"pulling {name}" + (f" for {platform}" if platform else ""))
    try:
        for chunk in client.api.pull(name, stream=True, decode=True, platform=platform):
            if "error" in chunk:
                raise pull_error(name, str(chunk["error"]), platform)
            if chunk.get("status") and not chunk.get("progress"):
                progress.line(" ".join(str(chunk[key]) for key in ("id", "status") if chunk.get(key)))
        pulled = client.images.get(name)
    except docker.errors.APIError as error:
        raise pull_error(name, str(error.explanation or error), platform) from error
    if not _is_for(pulled, platform):
        raise _not_made_for(name, str(platform), f"it is for {_platform(pulled)}")
    return pulled


def present_image(client: docker.DockerClient, name: str, platform: str | None) -> Image:
    """The base in the engine; it is not pulled. RefusedError: it is not there."""
    present = _present(client, name, platform)
    if present is None:
        raise RefusedError(
            f"the engine has no image {name}{f' for {platform}' if platform else ''}, and --wheels uses no network",
            where=name,
            fix=f"where there is one: docker pull {name} && docker save -o base.tar {name}; then here: docker load -i "
            "base.tar",
        )
    return present


def _present(client: docker.DockerClient, name: str, platform: str | None) -> Image | None:
    image = find_image(client, name)
    return image if image is not None and _is_for(image, platform) else None


def pull_error(name: str, message: str, platform: str | None = None) -> RefusedError | InfrastructureError:
    """The error for a failed pull, from the engine's message."""
    lower = message.lower()
    parsed = reference.parse(name)
    host = parsed.registry or HUB
    if any(word in lower for word in _NO_PLATFORM):
        return _not_made_for(name, platform or "this machine's platform", message)
    if _NO_LOGIN.search(lower):
        return login_needed(host, parsed.repository, credentials.find(host), 401)
    if _DENIED.search(lower):
        used = credentials.find(host)
        return RefusedError(
            f"{host} denies access to {name}{f' for the login in {used.source}' if used else ''}: {message}",
            where=name,
            fix=f"check the name; if it is right, {login_needed(host, parsed.repository, used, 403).fix}",
        )
    if any(word in lower for word in ("not found", "manifest unknown", "no such image", "name unknown")):
        return RefusedError(f"{host} has no image {name}: {message}", where=name, fix="check the name and the tag")
    if "no space left" in lower:
        return InfrastructureError(f"the engine's disk is full: {message}", where=name, fix=_FULL_FIX)
    return InfrastructureError(
        f"pulling {name} failed: {message}",
        where=name,
        fix=f"check that the engine reaches {host}; with no registry, `--base standin` makes a test base locally",
    )


def _not_made_for(name: str, platform: str, reason: str) -> RefusedError:
    return RefusedError(
        f"{name} is not made for {platform}: {reason}", where="--platform", fix="choose a base that is, or leave it out"
    )


def _platform(image: Image) -> str:
    return f"{image.attrs.get('Os')}/{image.attrs.get('Architecture')}"


def _is_for(image: Image, platform: str | None) -> bool:
    """Whether an engine's image is for ``OS/ARCH[/VARIANT]``, or any (None); a variant is not compared."""
    return platform is None or _platform(image) == "/".join(platform.split("/")[:2])
