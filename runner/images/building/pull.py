"""A base image in the engine, pulled where it is absent; what to do about a pull that fails."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from runner.core.errors import InfrastructureError, RefusedError
from runner.core.progress import Progress
from runner.images import reference
from runner.images.sources import credentials
from runner.images.sources.registry_http import HUB, login_needed

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image

FULL_FIX = "free space on the engine's disk: docker system df shows what takes it"
# The messages of Docker (20.10 to 28) and Podman for a registry's 401 and 403; Docker's hub answers 403 for an unknown
# name, too.
_NO_LOGIN = ("unauthorized", "no basic auth credentials", "authentication required", "401")
_DENIED = ("denied", "forbidden", "403")
_NO_PLATFORM = ("no matching manifest", "no image found in image index", "no image found in manifest list")


def base_image(client: docker.DockerClient, name: str, platform: str | None, progress: Progress) -> Image:
    """The base in the engine, pulled where it is absent, or there for another platform only.

    Raises:
        RefusedError: the registry has no such image, or denies access. InfrastructureError: the pull failed.
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
    progress.step(f"pulling {name}" + (f" for {platform}" if platform else ""))
    try:
        for chunk in client.api.pull(name, stream=True, decode=True, platform=platform):
            if "error" in chunk:
                raise pull_error(name, str(chunk["error"]), platform)
            if chunk.get("status") and not chunk.get("progress"):
                progress.line(" ".join(str(chunk[key]) for key in ("id", "status") if chunk.get(key)))
        found = client.images.get(name)
    except docker.errors.APIError as error:
        raise pull_error(name, str(error.explanation or error), platform) from error
    if platform is not None and not _is_for(found, platform):
        raise _not_made_for(name, platform, f"it is for {_platform(found)}")
    return found


def present_image(client: docker.DockerClient, name: str, platform: str | None) -> Image:
    """The base in the engine; it is not pulled.

    Raises:
        RefusedError: it is not there.
    """
    found = _present(client, name, platform)
    if found is None:
        raise RefusedError(
            f"the engine has no image {name}{f' for {platform}' if platform else ''}, and --wheels uses no network",
            where=name,
            fix=f"where there is one: docker pull {name} && docker save -o base.tar {name}; then here: docker load -i "
            "base.tar",
        )
    return found


def _present(client: docker.DockerClient, name: str, platform: str | None) -> Image | None:
    import docker

    with suppress(docker.errors.ImageNotFound):
        found = client.images.get(name)
        if platform is None or _is_for(found, platform):
            return found
    return None


def pull_error(name: str, message: str, platform: str | None = None) -> RefusedError | InfrastructureError:
    """The error for a failed pull, from the engine's message."""
    lower = message.lower()
    parsed = reference.parse(name)
    host = parsed.registry or HUB
    if any(word in lower for word in _NO_PLATFORM):
        return _not_made_for(name, platform or "this machine's platform", message)
    if any(word in lower for word in _NO_LOGIN):
        return login_needed(host, parsed.repository, credentials.find(host), 401)
    if any(word in lower for word in _DENIED):
        used = credentials.find(host)
        return RefusedError(
            f"{host} denies access to {name}{f' for the login in {used.source}' if used else ''}: {message}",
            where=name,
            fix=f"check the name; if it is right, {login_needed(host, parsed.repository, used, 403).fix}",
        )
    if any(word in lower for word in ("not found", "manifest unknown", "no such image", "name unknown")):
        return RefusedError(f"{host} has no image {name}: {message}", where=name, fix="check the name and the tag")
    if "no space left" in lower:
        return InfrastructureError(f"the engine's disk is full: {message}", where=name, fix=FULL_FIX)
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


def _is_for(image: Image, platform: str) -> bool:
    """Whether an engine's image is for ``OS/ARCH[/VARIANT]``; a variant is not compared."""
    return _platform(image) == "/".join(platform.split("/")[:2])
