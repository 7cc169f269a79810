"""Which container engine is used: the one that was named, or the first that answers here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.errors import InfrastructureError, RefusedError
from runner.images.engine import private_engine
from runner.images.engine.client import NO_ENGINE_FIX, open_client

if TYPE_CHECKING:
    import docker


def connect(url: str | None = None, *, state: Path | None = None) -> docker.DockerClient:
    """A client of the first engine that answers: ``url``, DOCKER_HOST, Docker's socket, Podman's, our private one.

    Raises:
        UsageError: what was named is no URL. InfrastructureError: the engine that was named does not answer.
        RefusedError: none was named and none answers.
    """
    return connected(url, state=state)[1]


def connected(url: str | None = None, *, state: Path | None = None) -> tuple[str, docker.DockerClient]:
    """The URL of that engine, and its client; raises as ``connect`` does."""
    named = url or os.environ.get("DOCKER_HOST")
    if named:
        return named, open_client(named, where="--engine" if url else "DOCKER_HOST")
    tried: list[str] = []
    for candidate in default_urls(state or private_engine.default_state()):
        if not Path(candidate.removeprefix("unix://")).exists():
            continue
        try:
            return candidate, open_client(candidate, where=candidate)
        except InfrastructureError as error:
            tried.append(error.what)
    raise RefusedError("no container engine answers", where="; ".join(tried), fix=NO_ENGINE_FIX)


def needs_host_network(client: docker.DockerClient) -> bool:
    """Whether containers need the host's network: the engine has no bridge network, or is Podman, which lists one that
    its plugins cannot create, and none when rootless. The host's network always works.
    """
    return _is_podman(client) or not client.networks.list(filters={"driver": "bridge"})


def default_urls(state: Path) -> Iterator[str]:
    """Where an engine may answer: Docker's sockets, Podman's, and the private engine's of this ``state``."""
    yield "unix:///var/run/docker.sock"
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    yield f"unix://{runtime_dir}/docker.sock"
    yield f"unix://{runtime_dir}/podman/podman.sock"
    if private_engine.has_own_sockets(state):
        yield private_engine.url(state)


def _is_podman(client: docker.DockerClient) -> bool:
    components = client.version().get("Components") or []
    return any("podman" in str(part.get("Name", "")).lower() for part in components)
