"""A client of the container engine at a URL, once it has answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.core.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    import docker

NO_ENGINE_FIX = (
    "start Docker or Podman, or name one with --engine URL or DOCKER_HOST; `make quickstart` starts a private one"
)


def open_client(url: str, *, where: str) -> docker.DockerClient:
    """A client of the engine. ``where``: what named the URL, for messages.

    Raises:
        UsageError: this is no URL of an engine. InfrastructureError: the engine does not answer.
    """
    import docker
    import requests

    try:
        # Builds and exports are silent for minutes: the timeout is for one read, in seconds.
        client = docker.DockerClient(base_url=url, timeout=900, use_ssh_client=url.startswith("ssh://"))
        client.ping()
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        denied = "ermission denied" in str(error)
        raise InfrastructureError(
            f"the container engine at {_without_login(url)} does not answer"
            + (": permission denied" if denied else ""),
            where=where,
            fix="join the group that owns the socket (often `docker`), then log in again" if denied else NO_ENGINE_FIX,
        ) from error
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{_without_login(url)!r} is not the URL of a container engine",
            where=where,
            fix="write it as unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST",
        ) from error
    return client


def _without_login(url: str) -> str:
    """The URL without its user name and password."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    has_user = "@" in rest and not rest.startswith("/")
    return f"{scheme}{separator}***@{rest.rpartition('@')[2]}" if has_user else url
