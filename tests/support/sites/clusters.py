"""Boxes in the shapes of sites, each with what its cluster has besides Slurm: a plugin's options, container commands,
environment modules. The shapes are the machines' own, not those of the site files that are tried on them.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner import box
from runner.box import Bind, BoxSpec, NodeShape
from runner.core import process
from runner.environments.directory import RECORD
from runner.environments.script import environment_spec, setup_of_jobs
from runner.model.image import Environment, ImageFacts
from runner.sites.loader import GENERIC, read_site
from runner.sites.user import expand_placeholders
from tests.support.commands import Runner
from tests.support.daemons import Daemons
from tests.support.golden_jobs import ELVIS, ENVIRONMENT
from tests.support.squashfs import sif_of
from tests.support.waiting import until

SOURCE = Path(__file__).parents[2] / "spank" / "site_options.c"
STAND_IN = Path(__file__).parent / "stand_in.sh"
STANDS_FOR = ("apptainer", "singularity", "shifter", "podman-hpc", "podman", "enroot")
# A compiler for the plugin, which is built for the version of Slurm that is to load it; a database for accounting.
PACKAGES = ("gcc", "libc6-dev", "libslurm-dev", "mariadb-server", "slurmdbd")
IMAGES = {"sif": "image.sif", "registry": "registry.example.org/m1234/horovod:25.02"}


@dataclass(frozen=True)
class Machine:
    """What a site's GPU nodes are, and its srun's and sbatch's plugins; ``further``: more partitions."""

    nodes: int
    shape: NodeShape
    partition: str = "batch"
    plugins: str = ""
    further: tuple[str, ...] = ()
    slurm: str = box.DEFAULT_SLURM


def cpus_of_a_rank(machine: Machine, plan: Mapping[str, Any]) -> int:
    """What a rank gets there: as planned, or its part of the node where the script divides that."""
    most = max(plan["tasks_per_node"])
    return machine.shape.cpus // most if plan["divides_cpus"] else int(plan["cpus_per_task"])


# By the sites' public guides, read 2026-11 (see runner/sites/files); `slurm` is any small cluster.
MACHINES = {
    "technion": Machine(2, NodeShape(), plugins="pyxis"),
    "perlmutter": Machine(
        4,
        NodeShape(sockets=1, memory_mb=256_000, gpus=4, features=("gpu", "hbm40g")),
        plugins="shifter",
        slurm="24.11",  # with 22.05.8, srun --gpu-bind=none hides CUDA_VISIBLE_DEVICES from every task
    ),
    "alpha": Machine(2, NodeShape(cores_per_socket=24, threads_per_core=1), "alpha", further=("alpha-interactive",)),
    "capella": Machine(4, NodeShape(cores_per_socket=32, threads_per_core=1, memory_mb=773_000, gpus=4), "capella"),
    "neuron": Machine(
        2,
        NodeShape(cores_per_socket=32, threads_per_core=1, memory_mb=512_000),
        "amd_a100nv_8",
        further=("cas_v100nv_8",),
        plugins="pyxis",
    ),
    "slurm": Machine(
        4, NodeShape(cores_per_socket=16, threads_per_core=1, memory_mb=256_000, gpus=4), plugins="pyxis shifter"
    ),
}


@dataclass(frozen=True)
class Cluster:
    """A box in the shape of a site; both its nodes and this process see the directory. ``plugin``: for its Slurm."""

    site: str
    daemons: Daemons
    directory: Path
    plugin: Path

    @property
    def box(self) -> box.Box:
        return self.daemons.box

    def load(self, words: str) -> None:
        """From the next job on the plugin has these words in plugstack.conf; without any it is not loaded."""
        line = f"required {self.plugin} {words}\n" if words else ""
        self.daemons.inside("sh", "-c", 'printf %s "$1" >/etc/slurm/plugstack.conf', "sh", line)

    def runner(self, squashfs: Path, **changed: object) -> Runner:
        """The command line at that site, with what differs in its file."""
        without_driver = {"RUNNER_DRIVER_TIMEOUT_S": "0"}  # sites have GPUs, this machine may have none
        facts = {"name": self.site, "extends": self.site, "box": self.box.name, "env": without_driver, **changed}
        if self.site == GENERIC:  # whose own shape is an example
            facts["node"] = {"gpus": 4, "cores": 32, "memory_mb": 250_000}
        shown = {name: {"visible": ["/"]} for name, way in read_site(self.site).ways.items() if way.visible}
        if shown:  # the directories of the tests are others
            facts["ways"] = shown
        path = self.directory / "site.yaml"
        path.write_text(json.dumps(facts))  # which is YAML
        sif = self.directory / IMAGES["sif"]
        if not sif.exists():
            small = self.directory / "small.sqsh"
            process.run(["mksquashfs", self.directory / "stand-ins", small, "-quiet"], timeout_s=60)
            sif_of(small, sif)
        link = self.directory / "image.sqsh"
        if not link.exists():
            link.symlink_to(squashfs)
        return Runner(path, self.directory / "my runs", self.directory / "state", self.box.bin_dir)

    def environment(self) -> None:
        """One as `env create` leaves it for the site's native way, but of the nodes' own Python."""
        wanted = environment_spec(expand_placeholders(read_site(self.site), ELVIS), "horovod-pytorch")
        root = self.directory / "gpu-runner/environments" / wanted.name
        made = root / wanted.kind
        (made / "bin").mkdir(parents=True)
        (made / "bin/activate").write_text(': "$PS1"  # which is not set\n')
        (made / "bin/python3").symlink_to(sys.executable)
        setup = setup_of_jobs(wanted, str(made))
        record = Environment(wanted.name, wanted.kind, wanted.framework, str(made), "0bad", setup, ImageFacts())
        (root / RECORD).write_bytes(msgspec.json.encode(record))

    def image(self, form: str) -> str:
        """What ``--image`` gets for a runtime that takes this form."""
        named = IMAGES.get(form, "image.sqsh")
        return named if form == "registry" else str(self.directory / named)

    def at_rest(self, timeout_s: float = 300) -> None:
        """Wait until no job is left in the queue."""
        queue = ("squeue", "--noheader", "--format=%i %T %r")
        until(lambda: self.daemons.inside(*queue) == "", "no job", timeout_s=timeout_s, every_s=0.3)


@contextmanager
def cluster(site: str, directory: Path, slurm: str = "") -> Iterator[Cluster]:
    """The site's cluster, or with another Slurm, taken down at the end. Mounts are made as only root may in a box."""
    if os.geteuid() != 0:
        pytest.skip("mounts directories in jobs: run it as root")
    machine = MACHINES[site]
    stand_ins = directory / "stand-ins"
    stand_ins.mkdir()
    for name in STANDS_FOR:
        (stand_ins / name).write_bytes(STAND_IN.read_bytes())
        (stand_ins / name).chmod(0o755)
    spec = BoxSpec(
        name=f"sites-{site}-{os.getpid()}", nodes=machine.nodes, slurm=slurm or machine.slurm, shape=machine.shape,
        partition=machine.partition, packages=PACKAGES, binds=(Bind(str(stand_ins), "/usr/local/bin"),),
    )  # fmt: skip
    try:
        daemons = Daemons(box.up(spec))
        plugin = Path("/usr/local/lib/site_options.so")  # which every user may load
        daemons.inside(*COMPILER, str(plugin), str(SOURCE))
        daemons.inside("sh", "-c", f"cat >/etc/profile.d/modules.sh <<'E'\n{MODULES}E\n")
        daemons.inside("sh", "-c", ENVIRONMENTS)
        for partition in machine.further:
            daemons.inside("scontrol", "create", f"PartitionName={partition}", "Nodes=ALL", "State=UP")
        made = Cluster(site, daemons, directory, plugin)
        made.load(machine.plugins)
        yield made
    finally:
        box.down(spec.name)


COMPILER = ("gcc", "-shared", "-fPIC", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o")
MODULES = """\
module() { printf "%s\\n" "$*" >>"${SLURM_SUBMIT_DIR:-.}/modules"; }
conda() { printf "conda %s\\n" "$*" >>"${SLURM_SUBMIT_DIR:-.}/modules"; }
"""
# What the golden scripts and the sites' own ways source: of nodes whose own Python serves.
ENVIRONMENTS = f"""
for file in {ENVIRONMENT}/virtualenv/bin/activate /scratch/{ELVIS.user}/miniconda3/etc/profile.d/conda.sh; do
  mkdir -p "${{file%/*}}" && echo 'echo activated >>"$SLURM_SUBMIT_DIR/modules"' >"$file"
done
"""
