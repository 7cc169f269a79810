"""Slurm: how jobs are requested from it; its clients and its scripts are imported when they are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from runner.backends.schedulers import check_options
from runner.core.errors import UsageError
from runner.core.registry import later
from runner.model.backends import SchedulerFacts, SchedulerSettings

if TYPE_CHECKING:
    from runner.model.plan import Plan
    from runner.model.request import Request

# How much memory a job gets of each node, or for each processor or GPU: sbatch takes one of them (sbatch(1)).
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_SECONDS = re.compile(r"[0-9]{1,9}\Z", re.ASCII)
# Options of a step that leave a rank its own GPU only (srun(1)).
_HIDING = ("gpu-bind", "gpus-per-task", "ntasks-per-gpu", "tres-bind", "tres-per-task")


class SlurmFacts(SchedulerSettings, frozen=True):
    """How jobs are requested from Slurm.

    Attributes:
        queue_option: what a queue is: a ``partition``, or a ``qos``.
        tasks: ``per-node`` for ``--ntasks-per-node``; ``total`` for ``--ntasks`` with ``--mincpus``.
        gpus: ``per-node`` for ``--gpus-per-node``, ``gres`` for ``--gres=gpu:``, ``total`` for ``--gpus``.
        cpus: ``planned`` requests for every rank its share of the node's CPUs, as ``node`` has them; ``allocated``
            requests none for whole nodes, and divides what they turn out to have.
        memory: ``per-node`` for ``--mem``, ``per-cpu`` for ``--mem-per-cpu``, ``none`` where jobs request none.
            ``mem``, ``mem-per-cpu`` or ``mem-per-gpu`` in ``directives``, or as ``-S`` of a job, replaces it.
        mpi: value of ``srun --mpi`` for a launch that needs no PMI; null leaves the option out.
        exclusive: request ``--exclusive`` when whole nodes are used.
        export: value of ``sbatch --export``. With ``none``, Slurm starts a login shell on the node for the user's
            environment; where that is slow, jobs are held ("user env retrieval failed requeued held"). ``nil`` and
            ``all`` start none: the script cleans the environment and reads the node's /etc/profile. With ``all``,
            PATH of the submitting shell comes last, for sites where nothing else leads to Slurm's clients.
        wait_s: how long ``srun`` lets the other ranks go on after the first has ended well, seconds; 0 for as long as
            they need. By default 60 for recipes that measure and 0 for other programs. ``-S wait=SECONDS`` of a job
            replaces it.
        directives: further ``#SBATCH`` options that the site requires, long name without dashes -> value.
        step: further options of ``srun``, long name -> value.
    """

    queue_option: Literal["partition", "qos"] = "partition"
    tasks: Literal["per-node", "total"] = "per-node"
    gpus: Literal["per-node", "gres", "total"] = "per-node"
    cpus: Literal["planned", "allocated"] = "planned"
    memory: Literal["per-node", "per-cpu", "none"] = "per-node"
    mpi: str | None = "none"
    exclusive: bool = True
    export: Literal["none", "nil", "all"] = "none"
    wait_s: int | None = None
    step: dict[str, str] = {}

    def merged(self, job: Mapping[str, str]) -> tuple[SlurmFacts, tuple[tuple[str, str], ...]]:
        """As of any scheduler. An option of memory replaces any other of memory, and ``-S wait=SECONDS`` is an option
        of the step (srun), and not of the job.
        """
        sized = any(option in job for option in MEMORY)
        site = {option: value for option, value in self.directives.items() if not (sized and option in MEMORY)}
        options = {**site, **job}
        settings = self
        if _SECONDS.match(options.get("wait", "")):
            settings = msgspec.structs.replace(self, wait_s=int(options.pop("wait")))
        return settings, tuple(sorted(options.items()))

    def with_variables(self, request: Request, shell: Mapping[str, str]) -> tuple[Request, tuple[str, ...]]:
        from runner.backends.schedulers.slurm.options import with_variables

        return (request, ()) if request.step else with_variables(self, request, shell)

    def check(self) -> None:
        from runner.render import sbatch_directive

        if "wait" in self.step:
            raise UsageError("is decided by slurm.wait_s", where="step.wait", fix="write `slurm: {wait_s: N}`")
        check_options(sbatch_directive, directives=self.directives)

    def lets_share_nodes(self, options: Mapping[str, str]) -> bool:
        return options.get("exclusive", "" if self.exclusive else "no") != ""  # exclusive=user is shared, too

    def divides_cpus(self, options: Mapping[str, str]) -> bool:
        return self.cpus == "allocated" and not self.lets_share_nodes(options)

    def takes_whole_nodes(self, options: Mapping[str, str]) -> bool:
        return "exclusive" in options

    def shapes(self, key: str, options: Mapping[str, str], *, whole_nodes: bool, mpi: str | None) -> bool:
        if key == "memory":
            return not any(option in options for option in MEMORY)
        return {"mpi": mpi == self.mpi, "exclusive": whole_nodes}.get(key, True)

    @property
    def lists_queues(self) -> bool:
        return self.queue_option == "partition"

    @property
    def asks_memory(self) -> bool:
        return self.memory != "none"

    @property
    def login_shell(self) -> bool:
        return self.export == "none"

    @property
    def hidden_gpus(self) -> tuple[str, ...]:
        return tuple(f"step.{option}" for option in _HIDING if self.step.get(option, "none") != "none")

    @property
    def places_ranks(self) -> bool:
        return "distribution" in self.step


FACTS = SchedulerFacts(
    title="Slurm",
    nodes="allocated",
    launcher="srun",
    section="slurm",
    settings=SlurmFacts,
    detection="runner.sites.detection.slurm",
    lists_nodes=("sinfo", "--noheader", "--all", "--Node", "--format=%N"),
    records=True,
    options="runner.backends.schedulers.slurm.options",
    steps=True,
    beside=True,
    launches=True,
    arrays=True,
    chains=True,
    submit="sbatch",
    version=("srun", "--version"),
    identity=("scontrol", "show", "config"),
    cluster_name=r"^ClusterName\s*=\s*(\S+)",
    job_variable="SLURM_JOB_ID",
    memory_options=MEMORY,
    memory_used="sacct -j {job} --format=JobID,MaxRSS,ReqMem",
    preference=10,
)


def settings(plan: Plan) -> SlurmFacts:
    """How the plan's job is requested."""
    return msgspec.convert(plan.scheduler_settings, SlurmFacts)


connect = later("runner.backends.schedulers.slurm.client", "Slurm")
render = later("runner.backends.schedulers.slurm.script", "render")
render_launches = later("runner.backends.schedulers.slurm.script", "render_launches")
render_array = later("runner.backends.schedulers.slurm.script", "render_array")
array_size = later("runner.backends.schedulers.slurm.client", "array_size")
beside = later("runner.backends.schedulers.slurm.client", "beside")
allocation = later("runner.backends.schedulers.slurm.client", "allocation")
record = later("runner.backends.schedulers.slurm.client", "record")
submit_script = later("runner.backends.schedulers.slurm.client", "submit_script")
salloc = later("runner.backends.schedulers.slurm.script", "salloc")
