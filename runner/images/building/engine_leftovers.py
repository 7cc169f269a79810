"""Removes what builds leave in an engine when they are stopped or killed, or their engine dies.

The containers of a build's steps have no label of ours, and an engine that dies leaves the one that ran. So each is
recorded when the engine names it, and the next build removes those that still exist. The caller holds the lock of
builds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from runner.core import paths, process_identity

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
