"""What is known of each scheduler besides its clients and its scripts. Each scheduler's own module has it as FACTS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from runner.core.registry import Registry


class SchedulerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How jobs are requested from one scheduler: its section of a site file, and what a plan keeps of it.

    Each scheduler has a struct of its own, whose fields only its own modules read. What others ask of any scheduler are
    the methods here; the answers are those of a scheduler that knows nothing of the question.

    Attributes:
        directives: the scheduler's options that the site requires of every job, name -> value.
    """

    directives: dict[str, str] = {}

    def merged(self, job: Mapping[str, str]) -> tuple[SchedulerSettings, tuple[tuple[str, str], ...]]:
        """The settings of a job with these options of its own, and all options of the job, sorted by name."""
        return self, tuple(sorted({**self.directives, **job}.items()))

    def check(self) -> None:
        """Nothing where a site file may have these values. Raises UsageError whose ``where`` is the key."""

    def lets_share_nodes(self, options: Mapping[str, str]) -> bool:
        """Whether a job on whole nodes, with these options, may have other jobs beside it there."""
        return False

    def divides_cpus(self, options: Mapping[str, str]) -> bool:
        """Whether jobs on whole nodes request no number of CPUs, and divide what the nodes turn out to have."""
        return False

    def takes_whole_nodes(self, options: Mapping[str, str]) -> bool:
        """Whether a job gets all GPUs of its nodes, however few it asks for."""
        return False

    def shapes(self, key: str, options: Mapping[str, str], *, whole_nodes: bool, mpi: str | None) -> bool:
        """Whether a setting makes a difference to a job with these options, of whole nodes, with this ``--mpi``."""
        return True

    @property
    def lists_queues(self) -> bool:
        """What a site file calls queues are those that the scheduler lists."""
        return True

    @property
    def asks_memory(self) -> bool:
        """Every job asks for its memory."""
        return False

    @property
    def mpi(self) -> str | None:
        """How ranks that need no PMI are started: the value of ``srun --mpi``; None leaves the option out."""
        return "none"

    @property
    def wait_s(self) -> int | None:
        """How long the other ranks may go on after the first has ended well, seconds; None where nothing is said."""
        return None

    @property
    def login_shell(self) -> bool:
        """The scheduler starts a login shell on the node for the user's environment."""
        return True

    @property
    def hidden_gpus(self) -> tuple[str, ...]:
        """Settings that leave each rank its own GPU only, as a site file names them."""
        return ()

    @property
    def places_ranks(self) -> bool:
        """A setting places the ranks otherwise than the plan does."""
        return False


class SchedulerFacts(msgspec.Struct, frozen=True):
    """One scheduler.

    Attributes:
        title: its name in messages.
        nodes: where a job's nodes come from: the scheduler allocates them, the user lists them, or it is this machine.
        launcher: the program that starts a job's tasks; empty where the script itself does.
        section: of a site file, with the settings; empty without one.
        settings: the type of what stands there.
        exclusive_nodes: a job that has all GPUs of its nodes shares them with no other job.
        detection: module that reads a live cluster (see ``runner.sites.detection.cluster.Detection``); empty where
            none does, and ``site check`` compares nothing.
        nodes_differ: the nodes of one job can have different numbers of GPUs.
        steps: a job can run as a step of an allocation that the shell holds: ``allocation`` and ``salloc``.
        launches: the launches of a study can run one after another in one job: ``render_launches``.
        without_launches: why they cannot, for the message; empty where they can, or nothing is known.
        submit: the program that submits a script by hand.
        version: command whose first line of output has its version; empty where there is none to ask.
        identity: command whose output has the cluster's name; empty where there is none to ask.
        cluster_name: regular expression of the line with it, whose group is the name.
        job_variable: variable of a job's processes with its id; empty without one.
        variables: beginnings of the names of variables that must reach a job's script and its ranks, besides those of
            Slurm, PBS, PALS and PMI, which reach them in any case.
        memory_options: options of a job that say how much memory it gets; one replaces any other.
        memory_used: command that tells what memory a job ``{job}`` has used; empty where there is none.
        preference: where clients of several are on a machine, the one with the lowest number is asked first.
    """

    title: str
    nodes: Literal["allocated", "listed", "this-machine"]
    launcher: str = ""
    section: str = ""
    settings: type[SchedulerSettings] = SchedulerSettings
    exclusive_nodes: bool = True
    detection: str = ""
    nodes_differ: bool = False
    steps: bool = False
    launches: bool = False
    without_launches: str = ""
    submit: str = "bash"
    version: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    cluster_name: str = ""
    job_variable: str = ""
    variables: tuple[str, ...] = ()
    memory_options: tuple[str, ...] = ()
    memory_used: str = ""
    preference: int = 50


SCHEDULERS: Registry[SchedulerFacts] = Registry(
    "scheduler", "runner.backends.schedulers", "gpu_runner.schedulers", SchedulerFacts, where="scheduler"
)


def settings_of(scheduler: str, values: Mapping[str, Any]) -> SchedulerSettings:
    """Plain values as the settings of that scheduler."""
    return msgspec.convert(values, SCHEDULERS[scheduler].settings)
