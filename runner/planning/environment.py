"""What a rank gets in its environment: variables, caches, the meter's settings, the setup of a native one. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping

import msgspec

from runner.core.errors import UsageError
from runner.model.backends import RUNTIMES, SCHEDULERS, job_variables
from runner.model.image import Setup
from runner.model.plan import RESULTS
from runner.model.request import Caches, Mount, Recipe, Request
from runner.model.site import Site

# Variables by which users place their caches: of all programs, Hugging Face, torch.hub and Keras.
OF_USERS = (
    "XDG_CACHE_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TORCH_HOME",
    "KERAS_HOME",
    "TFHUB_CACHE_DIR",
)


def choose_caches(site: Site, runtime: str, mounts: Iterable[Mount], home: str) -> Caches:
    """Which caches the launcher puts into a directory of the job's own: see ``Plan.caches``."""
    if RUNTIMES[runtime].shows_home:
        return "home" if site.home.for_jobs else "node"
    return "home" if home and is_visible(f"{home.rstrip('/')}/.cache", runtime, mounts) else "node"


def is_visible(path: str, runtime: str, mounts: Iterable[Mount]) -> bool:
    """Whether a program sees a directory of the host under the same path, and may write to it."""
    if not RUNTIMES[runtime].is_container:
        return True
    shown = (
        posixpath.normpath(mount.target)
        for mount in mounts
        if posixpath.normpath(mount.source) == posixpath.normpath(mount.target) and not mount.read_only
    )
    return any(f"{posixpath.normpath(path)}/".startswith(f"{target.rstrip('/')}/") for target in shown)


def carried_caches(of_shell: Mapping[str, str], runtime: str, mounts: tuple[Mount, ...]) -> dict[str, str]:
    """Of the submitting shell's variables that place caches: those whose directories the program sees."""
    return {
        name: value
        for name, value in of_shell.items()
        if name in OF_USERS and value.startswith("/") and is_visible(value, runtime, mounts)
    }


def meter_variables(recipe: Recipe, request: Request) -> dict[str, str]:
    """Variables of every rank, which the launcher and ``gpu_runner_inside.meter`` read; none without ``--meter``.
    Raises UsageError: the recipe's program leaves its own records, or the batch size is impossible.
    """
    if not request.meter and request.meter_batch is None:
        return {}
    if recipe.result != "if-left":
        what = f"the program of the recipe {recipe.name} leaves records of its own"
        raise UsageError(what, where="--meter", fix="leave it out, or give a program after --")
    if request.meter_batch is None:
        return {"RUNNER_METER": "1"}
    if request.meter_batch < 1:
        what = f"{request.meter_batch} samples a step are not possible"
        raise UsageError(what, where="--meter-batch", fix="give one or more")
    return {"RUNNER_METER": "1", "RUNNER_METER_BATCH": str(request.meter_batch)}


def with_modules(setup: Setup, of_site: Setup, request: Request, runtime: str) -> Setup:
    """The setup with the modules that the user asks for: found where the site looks for modules, after its own, as a
    hierarchy wants it; one of the site's with another version gives way. Raises UsageError: it is for a container.

    >>> site = Setup(use=("/m",), modules=("gcc", "cuda/11"))
    >>> with_modules(site, site, Request(gpus=1, modules=("cuda/12", "x")), "native").modules
    ('gcc', 'cuda/12', 'x')
    """
    if not request.modules:
        return setup
    if RUNTIMES[runtime].is_container:
        what = f"a program in a container of {RUNTIMES[runtime].title} sees no modules of the cluster"
        raise UsageError(what, where="--module", fix="leave it out, or --runtime native")
    modules = modules_after((*of_site.modules, *setup.modules), request.modules)
    use = tuple(dict.fromkeys((*of_site.use, *setup.use)))
    return msgspec.structs.replace(setup, purge=setup.purge or of_site.purge, use=use, modules=modules)


def modules_after(of_site: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    """The modules with ``given`` after the site's, of which one with another version gives way."""
    names = {name.partition("/")[0] for name in given}
    return tuple(dict.fromkeys((*(name for name in of_site if name.partition("/")[0] not in names), *given)))


def modules_of_environment(of_site: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
    """The same for a whole environment: who names the site's first module names a hierarchy of their own.

    >>> modules_of_environment(("release/24.04", "GCC/12"), ("Horovod/0.28",))
    ('release/24.04', 'GCC/12', 'Horovod/0.28')
    >>> modules_of_environment(("release/24.04", "GCC/12"), ("release/23.04", "Horovod/0.28"))
    ('release/23.04', 'Horovod/0.28')
    """
    first = of_site[0].partition("/")[0] if of_site else ""
    own = any(name.partition("/")[0] == first for name in given)
    return given if own else modules_after(of_site, given)


def setup_lines(setup: Setup) -> tuple[tuple[str, ...], ...]:
    """Argument lists, one a line, in their order (``runner.model.step.Load`` takes them).

    >>> setup_lines(Setup(modules=("gcc", "cuda/11.7")))
    (('module', 'load', 'gcc', 'cuda/11.7'),)
    """
    conda, virtualenv = setup.activate.conda, setup.activate.virtualenv
    return (
        *((("module", "purge"),) if setup.purge else ()),
        *(("module", "use", directory) for directory in setup.use),
        *((("module", "load", *setup.modules),) if setup.modules else ()),
        *((("source", f"{setup.conda.rstrip('/')}/etc/profile.d/conda.sh"),) if setup.conda else ()),
        *((("conda", "activate", conda),) if conda else ()),
        *((("source", f"{virtualenv.rstrip('/')}/bin/activate"),) if virtualenv else ()),
    )


NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)

# Setting these for a whole job breaks the container or the launcher, and a value for them from the host would
# replace the image's own (facts on Pyxis's --container-env).
CONTAINER_OWNED = frozenset(
    ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
)
# bash computes or protects these: a value exported by a script is lost or is an error (bash(1), Shell Variables).
BASH_OWNED = frozenset((
    "BASHOPTS", "BASHPID", "BASH_ALIASES", "BASH_ARGC", "BASH_ARGV", "BASH_ARGV0", "BASH_CMDS", "BASH_COMMAND",
    "BASH_LINENO", "BASH_REMATCH", "BASH_SOURCE", "BASH_SUBSHELL", "BASH_VERSINFO", "BASH_VERSION", "COMP_WORDBREAKS",
    "DIRSTACK", "EPOCHREALTIME", "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "HISTCMD", "IFS", "LINENO", "OLDPWD",
    "OPTARG", "OPTIND", "OPTERR", "PIPESTATUS", "POSIXLY_CORRECT", "PPID", "PWD", "RANDOM", "SECONDS", "SHELLOPTS",
    "SHLVL", "SRANDOM", "UID", "_",
))  # fmt: skip
# Reserved by the scheduler, the container runtimes and the launcher.
RESERVED_PREFIXES = (
    "SLURM_", "SLURMD_", "SRUN_", "PMI_", "PMIX_", "PALS_", "PBS_", "PYXIS_", "ENROOT_", "APPTAINER", "SINGULARITY",
    "SHIFTER", "RUNNER_", "runner_", "BASH_FUNC_",
)  # fmt: skip
# Of these, what a job may set: the launcher reads it (recipes/lib/launch.py).
LAUNCHER_READS = frozenset({"RUNNER_RDV_TIMEOUT_S", "RUNNER_DRIVER_TIMEOUT_S", "RUNNER_METER_PATIENCE_S"})
LAUNCHER_OWNED = frozenset((
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HOROVOD_RANK",
    "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE",
    "HOROVOD_HOSTNAME", "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS", "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
))  # fmt: skip

# What chooses networks, interfaces and adapters. On one node there is nothing to choose, and a name that the node does
# not have (a network plugin, an interface) ends even a job that needs no network (NCCL's guide, "Environment
# Variables"; fi_cxi(7); UCX's parameters; Enroot's 99-mellanox).
_FABRIC = re.compile(
    r"(NCCL_(NET|NET_\w+|IB_\w+|SOCKET_\w+|CROSS_NIC|COLLNET_\w+|SHARP_\w+|PROTO)|OFI_NCCL_\w+|FI_\w+|UCX_NET_DEVICES"
    r"|HOROVOD_GLOO_IFACE|GLOO_SOCKET_IFNAME|TP_SOCKET_IFNAME|MELLANOX_VISIBLE_DEVICES)\Z",
    re.ASCII,
)


class Variables(msgspec.Struct, frozen=True):
    """The environment of every rank.

    Attributes:
        env: names and values, sorted by name.
        unset: names that the user takes away, sorted: also where the image or a module sets them.
    """

    env: tuple[tuple[str, str], ...]
    unset: tuple[str, ...] = ()


def is_fabric(name: str) -> bool:
    """Whether a variable only concerns data between nodes."""
    return bool(_FABRIC.match(name))


def refuse_reason(name: str) -> str | None:
    """Why ``name`` may not be set for a job; None if it may."""
    if not NAME.match(name):
        return "is not a variable name: use letters, digits and '_', not starting with a digit"
    if name in CONTAINER_OWNED:
        return "belongs to the container: a value from outside would replace the image's; set it inside the program"
    if name in BASH_OWNED:
        return "belongs to bash, which would not pass on the value"
    if name in LAUNCHER_OWNED:
        return "is set by the launcher for every rank"
    if name.startswith((*RESERVED_PREFIXES, *job_variables())) and name not in LAUNCHER_READS:
        return "belongs to the scheduler, the container runtime or the launcher"
    return None


def nccl_log(site: Site) -> dict[str, str]:
    """What makes NCCL say which ways data take, for the verdict; none where jobs have one node, or no GPU.

    ``NET`` and ``INIT`` hold every line that is read (runner/diagnosis/logs.py).
    """
    if site.device != "cuda" or SCHEDULERS[site.scheduler].nodes == "this-machine" or site.node.count == 1:
        return {}
    file = f"{RESULTS}/nccl/%h.%p.log"
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": file}


def merge(
    site: Mapping[str, str | None],
    recipe: Mapping[str, str | None],
    user: Iterable[tuple[str, str | None]],
    *,
    nodes: int,
) -> Variables:
    """The environment of every rank; user wins over recipe, recipe over site, and None takes away what was set before.

    Args:
        nodes: of the job. On one node, the site's variables of the fabric are left out.

    Raises UsageError: a name that may not be set, or a NUL in a value; says who set it.
    """
    merged: dict[str, str] = {}
    unset: set[str] = set()
    for origin, pairs in (("the site's env", site.items()), ("the recipe's env", recipe.items()), ("--env", user)):
        for name, value in pairs:
            reason = refuse_reason(name)
            if reason:
                raise UsageError(f"{name!r} {reason}", where=origin, fix="leave it out")
            if value is not None and "\0" in value:
                raise UsageError(f"the value of {name} contains a NUL character", where=origin)
            merged.pop(name, None)
            unset.discard(name)
            if value is None:
                unset.update((name,) if origin == "--env" else ())
            elif nodes > 1 or origin != "the site's env" or not is_fabric(name):
                merged[name] = value
    return Variables(tuple(sorted(merged.items())), tuple(sorted(unset)))
