"""Options of sbatch: what the plan decides or a run cannot have, what goes through, and what the shell says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from runner.backends.schedulers.slurm import MEMORY
from runner.core.errors import UsageError
from runner.model.request import Request, parse_sbatch_time_s

if TYPE_CHECKING:
    from runner.backends.schedulers.slurm import SlurmFacts

# Options of sbatch that are refused: the plan decides them, or they would break a run. Everything else goes through as
# it is (sbatch(1), Slurm 22.05 to 26.05).
# Option -> what it follows from.
PLANNED = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "mincpus"), "--gpus and --nodes"),
    **dict.fromkeys(("ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu", "overcommit"), "--gpus and --nodes"),
    **dict.fromkeys(("sockets-per-node", "cores-per-socket", "extra-node-info", "spread-job"), "--gpus and --nodes"),
    **dict.fromkeys(("gpus", "gpus-per-node", "gres"), "--gpus and --gpu-type"),
    "job-name": "--name",
    "partition": "--queue",
    "account": "--account",
    "cpus-per-task": "--cpus-per-gpu",
    "cpus-per-gpu": "--cpus-per-gpu",
    "time": "--time",
    "image": "--image",
    "module": "the site's ways",
}
_HIDES = "each rank would see its own GPU only, and ranks pin themselves by local rank"
_IN_CONTAINER = "the batch script itself would run in the container, where there is no srun: use --runtime and --image"
_FILES = "a run keeps its script's output below logs/"
REFUSED = {
    "array": "all its jobs would write into one run directory: --sweep makes one for each",
    "requeue": "a second start would find the records of the first: `rerun RUN` submits it again",
    **dict.fromkeys(("gpus-per-task", "gpus-per-socket", "gpu-bind", "tres-bind", "tres-per-task"), _HIDES),
    **dict.fromkeys(("output", "error", "input", "open-mode"), _FILES),
    "chdir": "the script starts in the run directory: see --runs",
    "wrap": "the runner writes the script",
    **dict.fromkeys(
        ("export", "export-file", "get-user-env"),
        "nothing of a login shell reaches a job: use --env, or slurm.export of a site file",
    ),
    "signal": "the script forwards signals to the ranks, and asks for one near the time limit itself",
    "no-requeue": "every script has it",
    "distribution": "the plan says which rank is on which node",
    "clusters": "states and logs come from the cluster that this host belongs to: submit from a host of the other one",
    "wait": "sbatch would not return until the job ends: `submit --wait`, or `wait` (-S wait=SECONDS is srun's option)",
    **dict.fromkeys(("test-only", "help", "usage", "version"), "sbatch would submit nothing: use --dry-run"),
    **dict.fromkeys(("parsable", "quiet", "verbose"), "the runner reads sbatch's output"),
    **dict.fromkeys(("uid", "gid"), "a run belongs to the user who submits it"),
    "container": _IN_CONTAINER,
}
# What goes through, besides the options that a job has by their own names here.
_CARRIED = (
    "acctg-freq batch bb bbf cluster-constraint comment contiguous core-spec cpu-freq deadline delay-boot exclusive "
    "gpu-freq gres-flags hint hold ignore-pbs kill-on-invalid-dep licenses mcs-label mem-bind mem-per-cpu mem-per-gpu "
    "network nice no-kill nodefile oom-kill-step oversubscribe power prefer priority profile propagate reboot segment "
    "spread-segments switches thread-spec threads-per-core time-min tmp use-min-nodes wait-all-nodes wckey"
)
_LETTERS = (
    "a:array b:begin B:extra-node-info c:cpus-per-task d:dependency D:chdir e:error F:nodefile G:gpus H:hold i:input "
    "k:no-kill L:licenses m:distribution M:clusters n:ntasks o:output O:overcommit q:qos Q:quiet s:oversubscribe "
    "v:verbose V:version W:wait"
)


def _here(option: str) -> str:
    """What an option of sbatch is here."""
    if option in PLANNED:
        return f"it follows from {PLANNED[option]}" if " and " in PLANNED[option] else PLANNED[option]
    carried = f"-S {option}=VALUE (-S {option}= where it takes none)" if option in _CARRIED.split() else f"--{option}"
    return REFUSED.get(option, carried)


# What it is here -> names of srun's own options, Pyxis's among them, as they are typed.
_SRUN = {
    "--image IMAGE": "--container-image --container-id --container-type",
    "--mount SRC:DST": "--container-mounts",
    "--env NAME=VALUE": "--container-env",
    "a container starts in the working directory": "--container-workdir --container-name",
    "--wireup": "--mpi",
    "--bind auto or none": "--cpu-bind",
    "`logs --all` names the rank of each line": "-l --label",
    "`run`, in an allocation": "--pty --jobid --overlap --exact -I --immediate",
    "every job has it: a rank that fails ends all": "-K --kill-on-bad-exit",
    "--env PYTHONUNBUFFERED=1": "-u --unbuffered",
    "all ranks run one program: -- bash -c, and RANK in it": "--multi-prog --het-group",
    "-- bash -c 'before; exec PROGRAM'": "--prolog --epilog --task-prolog --task-epilog",
    "an option of srun stands in a site file: `slurm: {step: {NAME: VALUE}}`": "--async --bcast --bcast-exclude "
    "--compress --disable-status --ignore-signals --no-allocate --preserve-env --quit-on-interrupt --relative "
    "--resv-ports --send-libs --slurmd-debug --threads --wait-for-children -E -T -X -Z -r",
}
OTHER_NAMES = {
    **{f"--{option}": _here(option) for option in (*PLANNED, *REFUSED, *_CARRIED.split())},
    **{f"-{each[0]}": f"sbatch's --{each[2:]}: {_here(each[2:])}" for each in _LETTERS.split()},
    **{name: here for here, names in _SRUN.items() for name in names.split()},
}

# Options whose variable is of their own name: SBATCH_MEM_PER_CPU (sbatch(1), INPUT ENVIRONMENT VARIABLES; 22.05's own
# table). SBATCH_EXPORT never counts: what a job has of a shell's variables is --env.
_BY_NAME = (
    "account acctg-freq batch clusters cluster-constraint constraint container core-spec cpus-per-gpu delay-boot "
    "distribution error exclusive get-user-env gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task "
    "gres gres-flags hint input job-name mem-bind mem-per-cpu mem-per-gpu network no-kill open-mode output overcommit "
    "partition power profile qos requeue reservation signal spread-job thread-spec threads-per-core tres-bind "
    "tres-per-task use-min-nodes wait wait-all-nodes wckey"
)
VARIABLES = {
    **{f"SBATCH_{option.upper().replace('-', '_')}": option for option in _BY_NAME.split()},
    **{"SBATCH_ARRAY_INX": "array", "SBATCH_BURST_BUFFER": "bb", "SBATCH_CPU_FREQ_REQ": "cpu-freq"},
    **{"SBATCH_MEM_PER_NODE": "mem", "SBATCH_REQ_SWITCH": "switches", "SBATCH_TIMELIMIT": "time"},
}
_BARE = ("exclusive", "no-kill", "use-min-nodes")  # need no value
_FIELDS = {"account": "account", "job-name": "job_name", "time": "walltime_s", "cpus-per-gpu": "cpus_per_gpu"}


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


_READ: dict[str, Callable[[str], object]] = {"time": parse_sbatch_time_s, "cpus-per-gpu": _whole}


def with_variables(settings: SlurmFacts, request: Request, shell: Mapping[str, str]) -> tuple[Request, tuple[str, ...]]:
    """As ``SchedulerSettings.with_variables``: options of the request go before variables, and these before the site's.
    A QOS is the queue where the site's queues are that. Raises UsageError: a variable's value cannot be read.
    """
    of_fields = {**_FIELDS, settings.queue_option: "queue"}
    options, fields = dict(request.scheduler_options), dict[str, Any]()
    if of_fields.get("qos") == "queue" and request.queue is None and "qos" in options:
        fields["queue"] = options.pop("qos")
    sized, counted, lines = any(option in options for option in MEMORY), [], []
    for variable, option in VARIABLES.items():
        value = shell.get(variable)
        if value is None or (not value and option not in _BARE):
            continue
        if option == "switches" and shell.get("SBATCH_WAIT4SWITCH"):
            value = f"{value}@{shell['SBATCH_WAIT4SWITCH']}"
        field = of_fields.get(option)
        if field is None and (option in REFUSED or option in PLANNED):
            lines.append(f"{variable} does not count: {_here(option)}")
            continue
        if field is not None and field not in fields and getattr(request, field) is None:
            try:
                fields[field] = _READ.get(option, str)(value)
            except ValueError as error:
                raise UsageError(str(error), where=variable, fix="correct or unset it") from None
        elif field is None and option not in options and not (sized and option in MEMORY):
            options[option] = "" if option == "use-min-nodes" else value
        else:
            continue
        counted.append(f"{variable}={value}")
    if counted:
        lines.insert(0, f"from this shell, as sbatch would count it: {', '.join(counted)}")
    return msgspec.structs.replace(request, scheduler_options=tuple(options.items()), **fields), tuple(lines)
