"""The scripts of a study in one allocation, kept in tests/golden/scripts: the allocation's own, and its launches'."""

from collections.abc import Callable

import msgspec

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import render, render_launches
from runner.model.job import ListedLaunch
from runner.model.plan import LaunchPlace, Plan
from runner.model.request import Request
from runner.model.site import Site
from runner.model.step import JobScript, StepSpec
from runner.planning.plan import plan
from runner.sites.loader import read_site
from tests.support.golden_jobs import CHARLIECLOUD, TRAIN
from tests.support.golden_jobs import FILE as IMAGE
from tests.support.golden_local_jobs import CPUS, HERE, hosts, local

LAUNCHES = (
    ListedLaunch("/lustre/u/runs/s-study/launches/g0016-full-r1/20261122-120000-hvd-16", 200, 0, 2),
    ListedLaunch(
        "/lustre/u/runs/s-study/launches/g0001-solo-n000d2-r1/20261122-120010-hvd-1", 140, 0, 1, with_next=True
    ),
    ListedLaunch("/lustre/u/my 'runs'/$HOME/launches/g0001-solo-n001d3-r1/`id`", 140, 1, 1),
)


def prepared(site: Site, via: str, request: Request, place: LaunchPlace | None = None) -> tuple[Plan, StepSpec]:
    planned = plan(TRAIN, site, msgspec.structs.replace(request, runtime=via), IMAGE)
    planned = msgspec.structs.replace(planned, launch=place)
    return planned, common.staged_step(planned, runtime(via))


def allocation(site: Site, via: str, request: Request) -> JobScript:
    return render_launches(*prepared(site, via, request), LAUNCHES)


def launch(site: Site, via: str, request: Request, place: LaunchPlace) -> JobScript:
    return render(*prepared(site, via, request, place))


BOX, DGX = read_site("box"), read_site("technion")
WHOLE = LaunchPlace(node_gpus=8)
CASES: dict[str, Callable[[], JobScript]] = {
    "allocation-box-16": lambda: allocation(BOX, "charliecloud", Request(gpus=16, walltime_s=3600)),
    "allocation-technion-pyxis-16": lambda: allocation(DGX, "pyxis", Request(gpus=16, job_name="my-study")),
    "allocation-partial-node": lambda: allocation(BOX, "charliecloud", Request(gpus=4)),
    "allocation-local": lambda: allocation(local(CPUS), "native", msgspec.structs.replace(HERE, gpus=2)),
    "allocation-hosts": lambda: allocation(hosts("nodea:8,nodeb:8"), "charliecloud", Request(gpus=16)),
    "launch-box-16-hostile": lambda: launch(BOX, "charliecloud", CHARLIECLOUD, WHOLE),
    "launch-technion-pyxis-16": lambda: launch(DGX, "pyxis", Request(gpus=16), WHOLE),
    "launch-technion-pyxis-4": lambda: launch(DGX, "pyxis", Request(gpus=4), WHOLE),
    "launch-technion-solo": lambda: launch(DGX, "pyxis", Request(gpus=1), LaunchPlace(1, 3, 8)),
    "launch-partial-node-2": lambda: launch(BOX, "charliecloud", Request(gpus=2), LaunchPlace(node_gpus=4)),
    "launch-uneven-3": lambda: launch(BOX, "charliecloud", Request(gpus=3, nodes=2), LaunchPlace(node_gpus=2)),
    "launch-local-solo": lambda: launch(local(CPUS), "native", Request(gpus=1), LaunchPlace(0, 1, 2)),
}
