"""Horovod's ranks by MPI under ``srun --mpi=pmix``, in Charliecloud, on a real Slurm: no rendezvous of ours in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runner import box
from runner.images.store.stored_image import StoredImage
from tests.support.commands import Runner
from tests.support.rank_records import records


@pytest.fixture(scope="module")
def cluster() -> Iterator[box.Box]:
    name = f"pmix-{os.getpid()}"
    try:
        yield box.up(box.BoxSpec(name=name))
    finally:
        box.down(name)


def test_the_main_job_by_pmix(cluster: box.Box, squashfs: StoredImage, tmp_path: Path) -> None:
    """Two ranks on each of two nodes. What the box alone needs: its nodes keep PMIx's directories in /run, and reach
    each other by addresses of the loopback interface, which Open MPI leaves out.
    """
    assert squashfs.path.is_file()
    site = tmp_path / "site.yaml"
    facts = {"name": "px", "extends": str(cluster.site), "mpi": {"pmi": ["pmix"]}}
    site.write_bytes(msgspec.yaml.encode(facts))
    runner = Runner(site, tmp_path / "my runs", tmp_path / "state", cluster.bin_dir)
    loopback = ("--env", "OMPI_MCA_if_base_retain_loopback=1", "--env", "OMPI_MCA_btl_tcp_if_include=lo")
    shape = ("--gpus", "4", "--nodes", "2", "--time", "5:00", "--mount", "/run:/run")
    done = runner("submit", "--wireup", "pmix", *shape, *loopback, "--wait", code=0)
    assert "verdict: measured" in done.out
    assert "wireup-unproven" in done.err
    run = runner.newest()
    assert {report["world_size"] for report in records(run, "report").values()} == {4}
    for start in records(run, "start").values():
        assert (start["wireup"], start["rendezvous"], start["met"]) == ("env", None, True)
    assert json.loads((run / "plan.json").read_text())["mpi"] == "pmix"
