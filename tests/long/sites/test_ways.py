"""Every way of every site with Slurm: accepted and run, and its ranks lie where the plan puts them.

Sites have GPUs and these clusters have none, so each run must report "saw no GPU" of all its ranks, and nothing else.
"""

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.images.store.stored_image import StoredImage
from runner.model.backends import RUNTIMES
from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.rank_records import arrived, document_of, records
from tests.support.sites.clusters import MACHINES, Cluster, cpus_of_a_rank
from tests.support.sites.ways import REAL, WAYS, Way
from tests.support.waiting import until

AtSite = Callable[[str], Cluster]
HOSTILE = 'it\'s "a" $HOME `id` \\ # % é,;'
NO_BLANKS = ("shifter", "enroot")
SEEN = ("CUDA_VISIBLE_DEVICES", "SLURM_CPUS_PER_TASK", "SLURM_JOB_PARTITION", "NOTE")


@pytest.mark.parametrize("site", MACHINES)
def test_it_is_run_and_its_ranks_lie_as_planned(at_site: AtSite, squashfs: StoredImage, site: str) -> None:
    """All of a site are submitted before any is waited for. They are held until they are watched one by one."""
    here = at_site(site)
    here.load(MACHINES[site].plugins)
    changed = {"submit_below": [str(here.directory)]} if site == "neuron" else {}
    runner = here.runner(squashfs.path, **changed)
    ways = [way for way in WAYS if way.site == site]
    if any(way.runtime == "native" for way in ways):
        here.environment()
    partition = ("scontrol", "update", f"PartitionName={MACHINES[site].partition}")
    here.daemons.inside(*partition, "State=DOWN")
    submitted = [(way, _submitted(runner, here, way)) for way in ways]
    here.daemons.inside("scontrol", "hold", ",".join(_job(run) for _way, run in submitted))
    here.daemons.inside(*partition, "State=UP")
    for way, run in submitted:
        here.daemons.inside("scontrol", "release", _job(run))
        _ran_as_planned(runner, here, way, run)


def _submitted(runner: Runner, here: Cluster, way: Way) -> Path:
    """Directories have blanks in their names where the runtime can mount such."""
    plain = way.runtime in NO_BLANKS
    data = here.directory / ("data" if plain else "My 'Data'")
    data.mkdir(exist_ok=True)
    runner = replace(runner, runs=here.directory / ("runs" if plain else "my runs"))
    native = way.runtime == "native"
    target = str(data) if native else "/data"
    what: tuple[str, ...] = ()
    program: tuple[str, ...] = ("--", "sh", "-c", 'ls "$0" && sleep 2', target)
    if way.wireup == "rendezvous":
        seen = (word for name in SEEN for word in ("--env", name))
        what, program = ("--recipe", "probe"), ("--", *seen, "--timeout", "240", "--sleep", "2", "ls", HOSTILE)
    form = RUNTIMES[way.runtime].image
    image = ("--scratch", str(here.directory)) if native else ("--image", here.image(form))
    request = ("--gpus", str(sum(way.ranks)), "--nodes", str(len(way.ranks)), "--runtime", way.runtime)
    mount = ("--mount", f"{data}:{target}", "--env", f"NOTE={HOSTILE}")
    said = runner("submit", *what, *request, *way.words, *image, *mount, "--json", *program, code=0)
    return Path(result(said.out)["directory"])


def _job(run: Path) -> str:
    return str(document_of(run, "job")["job_id"])


def _ran_as_planned(runner: Runner, here: Cluster, way: Way, run: Path) -> None:
    allocated = _allocated(here, _job(run))
    runner("wait", str(run), code=6)
    verdict, plan = document_of(run, "verdict"), document_of(run, "plan")
    (blind,) = verdict["reasons"]
    assert re.fullmatch(r"ranks? [\d, and more]+ saw no GPU", blind), (way.name, verdict)
    starts = records(run, "start")
    assert tuple(plan["tasks_per_node"]) == way.ranks, way.name
    assert [starts[rank]["local_size"] for rank in sorted(starts)] == [n for n in way.ranks for _ in range(n)]
    assert [starts[rank]["local_rank"] for rank in sorted(starts)] == [i for n in way.ranks for i in range(n)]
    hosts = list(dict.fromkeys(starts[rank]["host"] for rank in sorted(starts)))
    assert [[s["host"] for s in starts.values()].count(host) for host in hosts] == list(way.ranks), way.name
    cpus_of_each = cpus_of_a_rank(MACHINES[way.site], plan)
    for host, ranks in zip(hosts, way.ranks, strict=True):
        cpus, gpus = allocated[host]
        assert cpus >= ranks * cpus_of_each, (way.name, host)
        assert gpus == plan["gpus_per_node"], (way.name, host)
    probes = records(run, "probe")
    assert len(probes) == (sum(way.ranks) if way.wireup == "rendezvous" else 0)
    for rank, probe in probes.items():
        words, seen = arrived(probe)
        assert seen == {
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(plan["gpus_per_node"]))),
            "SLURM_CPUS_PER_TASK": str(cpus_of_each),
            "SLURM_JOB_PARTITION": MACHINES[way.site].partition,
            "NOTE": HOSTILE,
        }, (way.name, rank)
        where = f"{run}/recipe" if way.runtime == "native" or plan["host_paths"] else "/results/recipe"
        assert base64.b64decode(probe["cwd_base64"]).decode() == where, way.name
        assert words[-1] == HOSTILE
        assert probe["node_name"] == starts[rank]["host"]


def _allocated(here: Cluster, job: str) -> dict[str, tuple[int, int]]:
    """Node -> its CPUs and GPUs of a job, by their numbers (``CPU_IDs=0-15,32 ... GRES=gpu:a100:8(IDX:0-7)``).

    They are shown only while the job runs, and so this waits until it does.
    """

    def look() -> str:
        text = here.daemons.inside("scontrol", "show", "-d", "job", job)
        return text if "(IDX:" in text else ""

    shown = until(look, "its GPUs are shown", timeout_s=300)
    allocated: dict[str, tuple[int, int]] = {}
    for match in re.finditer(r"Nodes=(\S+) CPU_IDs=(\S+) Mem=\S+ GRES=gpu:\w+:\d+\(IDX:(\S+)\)", shown):
        names = here.daemons.inside("scontrol", "show", "hostnames", match[1]).split()
        allocated |= dict.fromkeys(names, (_count(match[2]), _count(match[3])))
    return allocated


def _count(numbers: str) -> int:
    """Of ``0-3,7``: five."""
    ends = (part.partition("-") for part in numbers.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def test_a_site_without_the_plugin_refuses_the_script_and_the_fix_is_shown(
    at_site: AtSite, squashfs: StoredImage
) -> None:
    """Shifter's directives, where no Shifter is."""
    here = at_site("perlmutter")
    here.load("")
    runner = replace(here.runner(squashfs.path), runs=here.directory / "runs")
    image = here.image("registry")
    words = ("submit", "--recipe", "probe", "--gpus", "4", "--account", "m1234", "--image", image)
    assert "[plugin-missing]: srun has no --image: the plugin of Shifter is not" in runner(*words, code=3).err
    said = runner(*words, "--force", "plugin-missing", code=4)
    assert "unrecognized option '--image=docker:registry.example.org/m1234/horovod:25.02'" in said.err
    assert "its plugin is not loaded" in said.err


def test_every_machine_is_tried_and_every_real_runtime_is_named() -> None:
    assert {way.site for way in WAYS} == set(MACHINES)
    assert {way.runtime for way in WAYS} >= REAL
