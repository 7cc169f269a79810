"""A base image in the engine, pulled where it is absent; what to do about a pull that fails."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from runner.errors import InfrastructureError, RefusedError
from runner.images import reference
from runner.images.progress import Progress

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image

FULL_MEND = "free space on the engine's disk: docker system df shows what takes it"


def base_image(client: docker.DockerClient, name: str, platform: str | None, progress: Progress) -> Image:
    """The base in the engine, pulled where it is absent.

    Raises:
        RefusedError: the registry has no such image, or does not give it out. InfrastructureError: the pull failed.
    """
    import docker

    with suppress(docker.errors.ImageNotFound):
        return client.images.get(name)
    progress.step(f"pulling {name}")
    try:
        for chunk in client.api.pull(name, stream=True, decode=True, platform=platform):
            if "error" in chunk:
                raise _pull_error(name, str(chunk["error"]))
            if chunk.get("status") and not chunk.get("progress"):
                progress.line(" ".join(str(chunk[key]) for key in ("id", "status") if chunk.get(key)))
        return client.images.get(name)
    except docker.errors.APIError as error:
        raise _pull_error(name, str(error.explanation or error)) from error


def _pull_error(name: str, said: str) -> RefusedError | InfrastructureError:
    """What to do about a pull that failed, from what the engine said."""
    lower = said.lower()
    host = reference.parse(name).registry or "docker.io"
    if any(word in lower for word in ("unauthorized", "denied", "401", "authentication required")):
        user = " (user name $oauthtoken, password your NGC API key)" if host == "nvcr.io" else ""
        return RefusedError(
            f"{host} does not give out {name}: {said}",
            where=name,
            mend=f"check the name, then log the engine in: docker login {host}{user}",
        )
    if any(word in lower for word in ("not found", "manifest unknown", "no such image")):
        return RefusedError(f"{host} has no image {name}: {said}", where=name, mend="check the name and the tag")
    if "no space left" in lower:
        return InfrastructureError(f"the engine's disk is full: {said}", where=name, mend=FULL_MEND)
    return InfrastructureError(
        f"pulling {name} failed: {said}",
        where=name,
        mend=f"check that the engine reaches {host}; with no registry, `--base standin` makes a test base locally",
    )
