"""The frameworks, versions and MPIs that an image is built and tried with."""

import json
from dataclasses import dataclass
from typing import Any

import docker
import pytest

from runner.core.progress import Silent
from runner.images import engine
from runner.images.building import standin
from runner.images.building.build import BuiltImage, build

SMALL = (
    "--model", "tiny", "--image-size", "32", "--batch-size", "2", "--precision", "fp32", "--warmup-steps", "3",
    "--steps", "20", "--demonstration", "--device", "cpu",
)  # fmt: skip
# --disable-cache: it would be below the home directory, which a runtime may leave out or mount read-only.
GLOO = ("horovodrun", "--disable-cache", "--gloo", "-np", "2")
# The controller by name, as a site would set it; a container may not read another process's memory.
MPI = (
    "mpirun", "--allow-run-as-root", "-np", "2", "--host", "localhost:2", "--bind-to", "none",
    "--mca", "btl_vader_single_copy_mechanism", "none",
    "-x", "HOROVOD_CONTROLLER=mpi", "-x", "HOROVOD_CPU_OPERATIONS=mpi",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One combination: how it is called, its base, what Horovod must have proven there."""

    name: str
    framework: str
    base: str
    proven: tuple[str, ...] = ("gloo", "mpi")
    keras3: bool = False
    modes: tuple[str, ...] = ()


ROWS = (
    Row("torch 2.13, Debian 12, Open MPI 4.1", "pytorch", "standin"),
    Row("torch 2.13, Debian 12, CMake 4, no MPI", "pytorch", "standin-gloo", ("gloo",)),
    Row("Debian 13's own torch 2.6, Open MPI 5.0", "pytorch", "standin-trixie"),
    Row("tensorflow-cpu 2.21, legacy Keras", "tensorflow", "standin", modes=("tape", "fit", "graph")),
    Row("tensorflow-cpu 2.21, Keras 3", "tensorflow", "standin", keras3=True, modes=("tape",)),
)


def shown_at_the_end(config: pytest.Config, table: list[str], *head: str) -> None:
    """On the terminal, although all is good."""
    capture = config.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled():
        print("\n" + "\n".join((*head, *table)))


def inside(client: docker.DockerClient, image: str, *words: str, **environment: str) -> str:
    network = "host" if engine.needs_host_network(client) else "none"
    env = {"OMP_NUM_THREADS": "1", **environment}
    out: bytes = client.containers.run(
        image, list(words), environment=env, network_mode=network, remove=True, stderr=True
    )
    return out.decode("utf-8", "replace")


def benchmark(row: Row, *options: str) -> list[str]:
    return ["python3", f"/opt/recipes/horovod-{row.framework}/main.py", *SMALL, *options]


def about(client: docker.DockerClient, image: str) -> dict[str, Any]:
    file = ["/opt/runner/image.json"]
    facts: dict[str, Any] = json.loads(
        client.containers.run(image, file, entrypoint=["cat"], network_mode="none", remove=True)
    )
    return facts


def image_of(client: docker.DockerClient, row: Row) -> BuiltImage:
    return build(row.framework, row.base, client, Silent(), args={"LEGACY_KERAS": "0"} if row.keras3 else {})


def base_of(client: docker.DockerClient, row: Row = ROWS[0]) -> str:
    """The row's base, in the engine."""
    wanted = standin.find_standin(row.framework, row.base)
    assert wanted is not None
    return standin.ensure_standin(wanted, client, Silent())
