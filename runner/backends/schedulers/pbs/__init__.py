"""PBS Pro and OpenPBS: how jobs are requested from them; clients and script are imported when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from runner.backends.schedulers import beside_by_ssh, check_options
from runner.core.registry import later
from runner.model.backends import SchedulerFacts, SchedulerSettings

if TYPE_CHECKING:
    from runner.model.plan import Plan


class PbsFacts(SchedulerSettings, frozen=True):
    """How jobs are requested from PBS Pro or OpenPBS.

    Attributes:
        chunk: resources of every chunk of ``select`` besides its number (``system: polaris``).
        whole_nodes: a chunk is a whole node, so that CPUs, GPUs and memory are not requested by number.
        place: value of ``-l place``.
        resources: further ``-l NAME=VALUE`` (``filesystems: home:eagle``).
        directives: further options of ``qsub``, one letter -> value.
        cpu_bind: value of ``mpiexec --cpu-bind``; the launcher binds where it is ``none``.
    """

    chunk: dict[str, str] = {}
    whole_nodes: bool = False
    place: str = "scatter"
    resources: dict[str, str] = {}
    cpu_bind: str = "none"

    def merged(self, job: Mapping[str, str]) -> tuple[PbsFacts, tuple[tuple[str, str], ...]]:
        from runner.backends.schedulers.pbs.options import in_words_of_qsub

        return self, tuple(sorted({**self.directives, **in_words_of_qsub(job)}.items()))

    def check(self) -> None:
        from runner.render import pbs_directive

        check_options(pbs_directive, directives=self.directives, resources=self.resources)

    def takes_whole_nodes(self, options: Mapping[str, str]) -> bool:
        return self.whole_nodes

    @property
    def asks_memory(self) -> bool:
        return True


FACTS = SchedulerFacts(
    title="PBS",
    nodes="allocated",
    launcher="mpiexec",
    section="pbs",
    settings=PbsFacts,
    detection="runner.sites.detection.pbs",
    lists_nodes=("pbsnodes", "-a"),
    options="runner.backends.schedulers.pbs.options",
    nodes_differ=True,
    steps=True,
    beside=True,
    without_launches="its mpiexec has no steps of a size of their own",
    submit="qsub",
    version=("qstat", "--version"),
    identity=("qstat", "-B", "-f"),
    cluster_name=r"^Server:\s*(\S+)",
    job_variable="PBS_JOBID",
    preference=20,
)


def settings(plan: Plan) -> PbsFacts:
    """How the plan's job is requested."""
    return msgspec.convert(plan.scheduler_settings, PbsFacts)


beside = beside_by_ssh
connect = later("runner.backends.schedulers.pbs.client", "Pbs")
allocation = later("runner.backends.schedulers.pbs.client", "allocation")
salloc = later("runner.backends.schedulers.pbs.script", "salloc")
render = later("runner.backends.schedulers.pbs.script", "render")
