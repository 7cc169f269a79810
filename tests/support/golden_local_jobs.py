"""The jobs without a scheduler whose scripts are kept in tests/golden/scripts: of this machine, of hosts, of a held
allocation.
"""

import msgspec

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import render
from runner.model.image import Activate, Setup
from runner.model.job import AllocatedNode, Allocation
from runner.model.request import Mount, Request
from runner.model.site import RuntimeAtSite, Site, SshFacts
from runner.model.step import JobScript
from runner.planning.placement import parse_hosts, with_hosts
from runner.planning.plan import plan
from runner.sites.loader import Machine, fit_to_machine, read_site
from tests.support.golden_jobs import FILE as IMAGE
from tests.support.golden_jobs import HOSTILE, TRAIN

# Two machines; what the one that runs this test has stays out.
CPUS, DGX = Machine(cpus=2, memory_mb=8000, gpus=0), Machine(cpus=256, memory_mb=1_000_000, gpus=8)
HELD = Allocation("7", (AllocatedNode("dgx01", 128, 4), AllocatedNode("dgx02", 128, 4)))
HERE = msgspec.structs.replace(HOSTILE, account=None, mounts=(Mount("/data/My Sets/$HOME", "/data/My Sets/$HOME"),))


def local(machine: Machine) -> Site:
    return fit_to_machine(read_site("local"), machine)


def hosts(text: str) -> Site:
    return with_hosts(read_site("hosts"), parse_hosts(text))


def with_environment(machine: Machine) -> Site:
    setup = Setup(modules=("gcc/12",), activate=Activate(virtualenv="/scratch/e/environments/hvd/virtualenv-0bad"))
    return msgspec.structs.replace(local(machine), ways={"native": RuntimeAtSite(setup=setup)})


CASES: dict[str, tuple[Site, str, Request, Allocation | None]] = {
    "local-container-2": (local(CPUS), "charliecloud", Request(gpus=2), None),
    "local-gpus-8": (local(DGX), "native", Request(gpus=8, walltime_s=600), None),
    "local-environment-2": (with_environment(CPUS), "native", Request(gpus=2), None),
    "local-hostile": (local(CPUS), "native", msgspec.structs.replace(HERE, gpus=2), None),
    "hosts-container-16": (hosts("nodea:8,nodeb:8"), "charliecloud", Request(gpus=16), None),
    "hosts-staged-8": (hosts("nodea:4,nodeb:4"), "charliecloud", Request(gpus=8, stage=True), None),
    "hosts-hostile-3": (
        with_hosts(
            msgspec.structs.replace(read_site("hosts"), ssh=SshFacts({"me@a": 2, "nodeb": 1}, "/my $ssh/config"))
        ),
        "native",
        msgspec.structs.replace(HERE, gpus=3),
        None,
    ),
    "held-8": (read_site("box"), "charliecloud", Request(gpus=8, nodes=2), HELD),
    "held-3-uneven-pyxis": (
        read_site("technion"),
        "pyxis",
        Request(gpus=3, nodes=2),
        msgspec.structs.replace(HELD, in_step=True),
    ),
}


def script(name: str) -> JobScript:
    site, via, request, allocation = CASES[name]
    planned = plan(TRAIN, site, msgspec.structs.replace(request, runtime=via), IMAGE, allocation=allocation)
    return render(planned, common.staged_step(planned, runtime(via)))
