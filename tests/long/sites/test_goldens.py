"""Every golden script, byte for byte, through the real sbatch and srun of a cluster in the shape of its site.

The plugin of the tests (tests/spank) registers what the site's own plugin documents, so that the real programs parse
it, records what reaches each task, and ends the task there: nothing is run. What runs is in test_ways.py.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from runner.jobs.creation import write_script
from runner.model.step import JOB_ID, RENDEZVOUS, RUN_DIRECTORY, Argument, Export, StepSpec, Text
from runner.sites.loader import read_site
from tests.support.golden_jobs import CASES, planned, script
from tests.support.sites.clusters import MACHINES, cpus_of_a_rank
from tests.support.sites.ways import APART, TRIED_ON, AtSite, scripts


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
    steps = tasks(directory, job)
    ranks = last_step(steps, plan.tasks_per_node)
    values = {RUN_DIRECTORY: str(directory), JOB_ID: job, "USER": "root"}
    rendezvous = {key: ranks[0].variables[key].decode() for key in RENDEZVOUS}
    options, words, variables = expected(step, values | rendezvous | {"RANDOM": ""})
    options |= {key: value.encode() for key, value in step.directives}  # what sbatch has parsed, srun takes over
    assert hosts(ranks) == list(plan.tasks_per_node), name
    assert rendezvous["RUNNER_RDV_HOST"] == ranks[0].host
    cpus = cpus_of_a_rank(MACHINES[TRIED_ON[CASES[name][0]]], msgspec.to_builtins(plan))
    for rank, task in ranks.items():
        seen = {key: _without_random(value) for key, value in task.variables.items()}
        assert {key: _without_random(value) for key, value in task.options.items()} == options, (name, rank)
        assert tuple(map(_without_random, task.words)) == words, (name, rank)
        assert not differing(seen, variables), (name, rank)
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


@dataclass(frozen=True)
class Task:
    """One task as Slurm was about to start it.

    Attributes:
        options: of the plugin, as srun and sbatch have parsed them; the empty string where one takes no argument.
        words: its command.
        variables: its environment.
    """

    host: str
    options: Mapping[str, bytes]
    words: tuple[bytes, ...]
    variables: Mapping[str, bytes]


def tasks(directory: Path, job: str) -> dict[str, dict[int, Task]]:
    """Step ("batch", "0", "1" ...) -> rank -> task, of a job that was submitted from the directory."""
    steps: dict[str, dict[int, Task]] = {}
    for path in (directory / "spank").glob(f"{job}.*"):
        _job, step, rank = path.name.split(".")
        steps.setdefault(step, {})[int(rank)] = _task(path.read_bytes())
    return steps


def _task(record: bytes) -> Task:
    fields = record.split(b"\0")[:-1]
    triples = list(zip(fields[::3], fields[1::3], fields[2::3], strict=True))
    variables = (value.partition(b"=") for kind, _, value in triples if kind == b"variable")
    return Task(
        host=next(value.decode() for kind, name, value in triples if (kind, name) == (b"place", b"host")),
        options={name.decode(): value for kind, name, value in triples if kind == b"option"},
        words=tuple(value for kind, _, value in triples if kind == b"word"),
        variables={os.fsdecode(name): value for name, _, value in variables},
    )


def last_step(steps: Mapping[str, dict[int, Task]], tasks_per_node: tuple[int, ...]) -> dict[int, Task]:
    """The tasks of the ranks: those of the step that has as many, and no step of one task a node."""
    (step,) = (step for step in steps.values() if len(step) == sum(tasks_per_node) and _is_launch(step))
    return step


def _is_launch(step: Mapping[int, Task]) -> bool:
    return any(word.endswith(b"/lib/launch.py") for word in step[0].words)


def hosts(step: Mapping[int, Task]) -> list[int]:
    """Ranks on each node, in the order of the ranks; a node that comes twice stands twice."""
    counts: list[int] = []
    last = ""
    for rank in sorted(step):
        if step[rank].host != last:
            counts.append(0)
        counts[-1] += 1
        last = step[rank].host
    return counts


def _without_random(value: bytes) -> bytes:
    """Of a staged copy's path: the number that bash gives it."""
    return re.sub(rb"(/gpu-runner-stage-[^/ ]*~)\d+", rb"\1", value)


def expected(step: StepSpec, values: Mapping[str, str]) -> tuple[dict[str, bytes], tuple[bytes, ...], dict[str, bytes]]:
    """Options, words and variables of every task of a step, as the plan has them.

    Args:
        values: of the shell variables that the batch script itself sets.
    """
    known = dict(values)
    exported: dict[str, bytes] = {}
    for entry in step.prelude:
        if isinstance(entry, Export):
            known[entry.name] = _text(entry.value, known)
            exported[entry.name] = os.fsencode(known[entry.name])
    given = (_text(word, known).removeprefix("--").partition("=") for word in step.launcher)
    options = {name: os.fsencode(value) for name, _, value in given}
    return options, tuple(os.fsencode(_text(word, known)) for word in step.command), exported


def _text(word: Argument, values: Mapping[str, str]) -> str:
    return "".join(part.value if isinstance(part, Text) else values[part.name] for part in word)


def differing(seen: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> Iterable[tuple[str, bytes | None, bytes]]:
    """Name, what is there, and what should be."""
    return [(name, seen.get(name), value) for name, value in wanted.items() if seen.get(name) != value]
