"""Images that are built and run: frameworks, Pythons, compilers and MPIs, with two ranks under each controller.

``make test-images`` prints the table; it belongs in docs/proofs.md.
"""

import ast
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from runner.box import Box
from runner.core.progress import Silent
from runner.images.building.build import build
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.daemons import own_box
from tests.support.documents import result
from tests.support.framework_matrix import GLOO, MPI, ROWS, Row, about, benchmark, image_of, inside, shown_at_the_end

pytestmark = pytest.mark.integration
TABLE: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def table(pytestconfig: pytest.Config) -> Iterator[None]:
    yield
    head = "| image | Python | compiler | MPI | controllers run | adds MB | built in s | up to date in s |"
    shown_at_the_end(pytestconfig, TABLE, head, "|---|---|---|---|---|---|---|---|")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_it_is_built_and_trains(engine_client: docker.DockerClient, row: Row) -> None:
    built = image_of(engine_client, row)
    began = time.monotonic()
    assert image_of(engine_client, row).up_to_date
    again_s = time.monotonic() - began
    assert again_s < 5
    facts = about(engine_client, built.reference)
    assert facts["framework"] == row.framework
    assert tuple(facts["horovod"]["proven"]) == row.proven
    added = built.size_bytes - int(engine_client.images.get(built.base).attrs["Size"])
    assert added < 60_000_000
    ways: list[tuple[str, ...]] = [("--mode", mode) for mode in row.modes]
    for options in ways or [()]:
        said = inside(engine_client, built.reference, *GLOO, *benchmark(row, *options))
        assert re.search(r"throughput: [\d.]+ images/s", said), said
    if "mpi" in row.proven:
        said = inside(engine_client, built.reference, *MPI, *benchmark(row))
        assert "2 ranks" in said
        assert re.search(r"throughput: [\d.]+ images/s", said), said
    compiler = inside(engine_client, built.reference, "g++", "-dumpfullversion").split()[-1]
    seconds = "cached" if built.up_to_date else f"{built.seconds:.0f}"
    mpi = f"{facts['mpi']['flavour']} {facts['mpi']['version']}".strip() or "none"
    cells = (row.name, facts["python"], f"GCC {compiler}", mpi, ", ".join(row.proven), f"{added / 1e6:.0f}", seconds)
    TABLE.append(f"| {' | '.join(cells)} | {again_s:.1f} |")


def test_missing_headers_of_a_base_are_reported(engine_client: docker.DockerClient) -> None:
    """As Debian's torch lacks them without libtorch-dev: its Python part works, and nothing compiles."""
    program = (
        "import sys; sys.path.insert(0, '/opt/runner'); import frameworks as f; torch = f.FRAMEWORKS['pytorch']; "
        "include = f.ask_framework(torch)['include']; "
        "print([f.headers_problem(torch, include), f.headers_problem(torch, include[1:])])"
    )
    said = inside(engine_client, image_of(engine_client, ROWS[0]).reference, "python3", "-c", program)
    whole, part = ast.literal_eval(said.strip().splitlines()[-1])
    assert whole == ""
    assert "torch/extension.h: No such file" in part
    assert "libtorch-dev" in part


def test_keras_3s_own_step_is_not_synchronised_and_says_so(engine_client: docker.DockerClient) -> None:
    row = ROWS[-1]
    said = inside(engine_client, image_of(engine_client, row).reference, *GLOO, *benchmark(row, "--mode", "fit"))
    assert "NOT PROVEN, so no throughput: parameters differ between ranks" in said
    assert "images/s" not in said


def test_a_graph_wants_legacy_keras(engine_client: docker.DockerClient) -> None:
    row = ROWS[-1]
    words = ["sh", "-c", " ".join([*benchmark(row, "--mode", "graph"), "2>&1 || true"])]
    said = inside(engine_client, image_of(engine_client, row).reference, *words)
    assert "wants Keras 2: set TF_USE_LEGACY_KERAS=1" in said


def test_a_horovod_that_the_base_ships_is_taken_where_it_passes_the_proof(engine_client: docker.DockerClient) -> None:
    """The base is an image of ours: it ships a Horovod, as NVIDIA's TensorFlow images do."""
    shipping = image_of(engine_client, ROWS[0])
    built = build("pytorch", shipping.reference, engine_client, Silent())
    try:
        assert built.labels["gpu-runner.horovod.wheel"] == "shipped"
        facts = about(engine_client, built.reference)
        assert (facts["horovod"]["wheel_key"], facts["horovod"]["fixes"]) == ("shipped", [])
        assert facts["horovod"]["proven"] == ["gloo", "mpi"]
    finally:
        engine_client.images.remove(built.reference)


def test_a_broken_horovod_of_the_base_is_replaced(engine_client: docker.DockerClient) -> None:
    """The base's Horovod has lost its library: it imports no more, so one is built (here: taken from the cache)."""
    shipping = image_of(engine_client, ROWS[0])
    spoil = "import horovod, pathlib; [p.write_bytes(b'') for p in pathlib.Path(horovod.__path__[0]).rglob('*.so')]"
    container = engine_client.containers.create(
        shipping.reference, ["-c", spoil], entrypoint=["python3"], network_mode="none"
    )
    try:
        container.start()
        assert container.wait()["StatusCode"] == 0
        container.commit(repository="gpu-runner/test-broken-horovod", tag="1")
    finally:
        container.remove()
    left = ["gpu-runner/test-broken-horovod:1"]
    try:
        built = build("pytorch", left[0], engine_client, Silent())
        left.insert(0, built.reference)
        assert built.labels["gpu-runner.horovod.wheel"] == shipping.labels["gpu-runner.horovod.wheel"]
        assert about(engine_client, built.reference)["horovod"]["proven"] == ["gloo", "mpi"]
    finally:
        for name in left:
            engine_client.images.remove(name)


def output_in(box: Box, *words: str | Path) -> str:
    done = subprocess.run(
        [box.bin_dir / "in-box", *words, *GLOO, *benchmark(ROWS[0])],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.stdout


def assert_two_ranks_measured(said: str) -> None:
    assert "2 ranks" in said, said
    assert re.search(r"throughput: [\d.]+ images/s", said), said


@pytest.fixture(scope="module")
def with_apptainer() -> Iterator[Box]:
    with own_box("one-line", slurm="26.05") as made:
        yield made


def test_ch_run(cluster: Box, squashfs: StoredImage) -> None:
    assert_two_ranks_measured(output_in(cluster, "ch-run", "--set-env", squashfs.path, "--"))


def test_apptainer_exec(with_apptainer: Box, engine_client: docker.DockerClient, tmp_path: Path) -> None:
    image = image_of(engine_client, ROWS[0])
    runner = Runner.at(with_apptainer.site, tmp_path, with_apptainer.bin_dir)
    tools = {"PATH": f"{with_apptainer.bin_dir}:/usr/bin:/bin:/usr/sbin:/sbin"}
    sif = result(runner("convert", "--format", "sif", "--json", image.digest, code=0, env=tools).out)
    assert_two_ranks_measured(output_in(with_apptainer, "apptainer", "exec", "--nv", sif["path"]))
