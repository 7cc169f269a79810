"""Every golden script, byte for byte, through the real sbatch and srun of a cluster in the shape of its site.

The plugin of the tests (tests/spank) registers what the site's own plugin documents, so that the real programs parse
it, records what reaches each task, and ends the task there: nothing is run. What runs is in test_ways.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from runner.jobs.directory import write_script
from runner.model.step import JOB_ID, RENDEZVOUS, RUN_DIRECTORY
from runner.sites.loader import read_site
from tests.support.golden_jobs import CASES, planned, script
from tests.support.sites import arrived
from tests.support.sites.clusters import MACHINES, cpus_of_a_rank
from tests.support.sites.golden_scripts import APART, TRIED_ON, AtSite, scripts


def test_no_script_for_slurm_is_left_out() -> None:
    tried = {name for site in MACHINES for name in scripts(site)} | APART
    assert {name for name in CASES if read_site(CASES[name][0]).scheduler == "slurm"} == tried


@pytest.mark.parametrize("site", MACHINES)
def test_it_is_accepted_and_its_tasks_lie_and_look_as_planned(at_site: AtSite, site: str, tmp_path: Path) -> None:
    here = at_site(site)
    here.load(f"{MACHINES[site].plugins} only")
    jobs: dict[str, tuple[Path, str]] = {}
    for name in scripts(site):
        directory = tmp_path / f"{name}'s run $x"
        (directory / "logs").mkdir(parents=True)
        write_script(directory, script(name))
        done = subprocess.run(
            [here.box.bin_dir / "sbatch", "--parsable", "job.sh"],
            cwd=directory, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (name, done.stderr)
        jobs[name] = directory, done.stdout.strip()
    here.at_rest()
    for name, (directory, job) in jobs.items():
        said = (directory / "logs" / "batch.err").read_text()
        assert '"exit":0' in (directory / "exit.json").read_text(), (name, said)
        assert "srun: error" not in said, name
        _is_as_planned(name, directory, job)


def _is_as_planned(name: str, directory: Path, job: str) -> None:
    plan, step = planned(name)
    found = arrived.tasks(directory, job)
    ranks = arrived.last_step(found, plan.tasks_per_node)
    values = {RUN_DIRECTORY: str(directory), JOB_ID: job, "USER": "root"}
    rendezvous = {key: ranks[0].variables[key].decode() for key in RENDEZVOUS}
    options, words, variables = arrived.expected(step, values | rendezvous)
    options |= {key: value.encode() for key, value in step.directives}  # what sbatch has parsed, srun takes over
    assert arrived.hosts(ranks) == list(plan.tasks_per_node), name
    assert rendezvous["RUNNER_RDV_HOST"] == ranks[0].host
    cpus = cpus_of_a_rank(MACHINES[TRIED_ON[CASES[name][0]]], msgspec.to_builtins(plan))
    for rank, task in ranks.items():
        assert task.options == options, (name, rank)
        assert task.words == words, (name, rank)
        assert not arrived.differing(task.variables, variables), (name, rank)
        assert task.variables["SLURM_PROCID"] == str(rank).encode()
        assert task.variables["SLURM_CPUS_PER_TASK"] == str(cpus).encode()
        # A job with part of a node may lie beside another.
        assert len(set(task.variables["CUDA_VISIBLE_DEVICES"].split(b","))) == plan.gpus_per_node


@pytest.mark.parametrize(
    ("site", "words", "says"),
    [
        ("technion", ("--container-imagee=/x", "true"), "unrecognized option '--container-imagee=/x'"),
        ("technion", ("--container-image",), "requires an argument"),
        ("technion", ("--no-container-entrypoint=yes", "true"), "doesn't allow an argument"),
        ("technion", ("--image=docker:x", "true"), "'--image=docker:x'"),
        ("perlmutter", ("--container-image=/x", "true"), "unrecognized option '--container-image=/x'"),
        ("perlmutter", ("--modul3=gpu", "true"), "unrecognized option '--modul3=gpu'"),
        ("alpha", ("--container-image=/x", "true"), "unrecognized option '--container-image=/x'"),
    ],
)
def test_srun_refuses_what_no_plugin_of_the_site_has_registered(
    at_site: AtSite, site: str, words: tuple[str, ...], says: str
) -> None:
    here = at_site(site)
    here.load(MACHINES[site].plugins)
    srun = [str(here.box.bin_dir / "srun"), *words]
    done = subprocess.run(srun, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert says in done.stderr
