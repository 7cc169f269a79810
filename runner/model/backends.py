"""What is known of each runtime and each scheduler. The module of each has it as FACTS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from runner.core.registry import Registry, UnknownNameError
from runner.model.request import ImageForm, Request

NATIVE = "native"  # no container: the program runs in an environment


class MountSyntax(msgspec.Struct, frozen=True):
    """The value of a runtime's mount option, and which paths it can hold.

    Attributes:
        forbidden: characters that its syntax gives a meaning and cannot escape.
        only: the characters that it accepts, as of a regular expression's class, with blanks between; empty for all.
        absolute: a path must start with ``/``.
        pair: how the option's value says what is mounted where, a format.
        read_only: what is appended to it for a mount that cannot be written to; empty where there is no such mount.
        writable: what is appended to it for any other.
    """

    forbidden: str = ""
    only: str = ""
    absolute: bool = True
    pair: str = "{source}:{target}"
    read_only: str = ":ro"
    writable: str = ""


class RuntimeFacts(msgspec.Struct, frozen=True):
    """One runtime.

    Attributes:
        title: its name in messages.
        image: the form in which it takes an image.
        mounts: the host paths that it can mount.
        program: its program in PATH; empty where it is only a plugin of srun.
        srun_option: the long option, without dashes, that its plugin adds to srun; empty without a plugin.
        plugin: file of that plugin, where it is needed.
        user_namespaces: it works only where ordinary users may make user namespaces.
        shows_home: programs see the home directory without a mount.
        without_scheduler: it works, without root, on a machine that no scheduler manages.
        brings_driver: GPUs of such a machine can be used in it with no further steps.
        driver: what brings NVIDIA's driver to its programs, and what to look at where it is not there.
        install: what installs it on such a machine.
        failure: regular expression of its lines that say why a container did not start; empty where unknown.
        versions: name -> command whose first line of output has the version of what runs its containers on a node.
        preference: where a site has several runtimes, the one with the lowest number is proposed first.
        version_variable: variable of the ranks that has the version of the runtime itself; empty without one.
        builds_images: it runs images that it built itself, ``localhost/NAME``.
        blanks: why a path with a blank may be no mount; empty where it is one.
    """

    title: str
    image: ImageForm
    mounts: MountSyntax = MountSyntax()
    program: str = ""
    srun_option: str = ""
    plugin: str = ""
    user_namespaces: bool = False
    shows_home: bool = False
    without_scheduler: bool = False
    driver: str = ""
    brings_driver: bool = False
    install: str = ""
    failure: str = ""
    versions: dict[str, tuple[str, ...]] = {}
    preference: int = 70
    version_variable: str = ""
    builds_images: bool = False
    blanks: str = ""

    @property
    def functions(self) -> tuple[str, ...]:
        """What its module must have besides."""
        return ("step",)

    @property
    def is_container(self) -> bool:
        """Whether it runs images."""
        return self.image != "none"


# Name -> what to do instead, of runtimes that were here.
GONE = {
    "sarus": "sites with Sarus now have Podman, or the Container Engine, which takes Enroot's images as Pyxis does: "
    "podman-hpc, enroot or pyxis"
}
RUNTIMES: Registry[RuntimeFacts] = Registry(
    "runtime", "runner.backends.runtimes", "gpu_runner.runtimes", RuntimeFacts, where="--runtime", gone=GONE
)


def run_runtime(name: str) -> RuntimeFacts:
    """Of the runtime that a run was in. Of one that is not here any more nothing is known but that it ran images."""
    try:
        return RUNTIMES[name]
    except UnknownNameError:
        return RuntimeFacts(title=name, image="registry")


def runtime_programs() -> dict[str, str]:
    """Runtime -> its program, of the containers that have one."""
    facts = {name: RUNTIMES[name] for name in RUNTIMES.every()}
    return {name: each.program for name, each in facts.items() if each.is_container and each.program}


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

    def with_variables(self, request: Request, shell: Mapping[str, str]) -> tuple[Request, tuple[str, ...]]:
        """The request with what variables of the shell that submits say of a job, as the scheduler's own program would
        count them; and lines that report it.
        """
        return request, ()

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
        lists_nodes: command that begins a line with the name of each node; empty where none does.
        options: module whose OTHER_NAMES has options of its programs, as they are typed -> what does it here.
        nodes_differ: the nodes of one job can have different numbers of GPUs.
        records: jobs of any origin are known to it, and a user's own script is submitted as it is: ``record`` and
            ``submit_script``.
        steps: a job can run as a step of an allocation that the shell holds: ``allocation`` and ``salloc``.
        beside: a program can be started on a node of a running job, which may have a terminal: ``beside``.
        launches: the launches of a study can run one after another in one job: ``render_launches``.
        arrays: runs that differ in their programs alone can be one array job: ``render_array`` and ``array_size``.
        chains: a job can queue the next attempt at its work: ``Plan.attempt``.
        without_launches: why they cannot, for the message; empty where they can, or nothing is known.
        submit: the program that submits a script by hand, and what stands before the script: ``bsub <``.
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
    options: str = ""
    nodes_differ: bool = False
    records: bool = False
    steps: bool = False
    beside: bool = False
    launches: bool = False
    arrays: bool = False
    chains: bool = False
    without_launches: str = ""
    submit: str = "bash"
    version: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    cluster_name: str = ""
    lists_nodes: tuple[str, ...] = ()
    job_variable: str = ""
    variables: tuple[str, ...] = ()
    memory_options: tuple[str, ...] = ()
    memory_used: str = ""
    preference: int = 50

    @property
    def functions(self) -> tuple[str, ...]:
        """What its module must have besides."""
        of_steps = ("allocation", "salloc") if self.steps else ()
        of_arrays = ("render_array", "array_size") if self.arrays else ()
        single = (*(("render_launches",) if self.launches else ()), *(("beside",) if self.beside else ()))
        return ("connect", "render", *single, *of_steps, *of_arrays)

    @property
    def has_srun(self) -> bool:
        """Whether srun starts a job's tasks."""
        return self.launcher == "srun"


SCHEDULERS: Registry[SchedulerFacts] = Registry(
    "scheduler", "runner.backends.schedulers", "gpu_runner.schedulers", SchedulerFacts, where="scheduler"
)


def job_variables() -> tuple[str, ...]:
    """The beginnings of the names of variables of jobs, of the schedulers that name some."""
    return tuple(start for facts in SCHEDULERS.values() for start in facts.variables)


def settings_of(scheduler: str, values: Mapping[str, Any]) -> SchedulerSettings:
    """Plain values as the settings of that scheduler."""
    return msgspec.convert(values, SCHEDULERS[scheduler].settings)
