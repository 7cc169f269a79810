"""The one function that decides a job."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

import msgspec

from runner.core.errors import UsageError
from runner.core.text import counted
from runner.model.backends import RUNTIMES, SCHEDULERS, SchedulerFacts
from runner.model.image import Environment
from runner.model.job import Allocation
from runner.model.plan import COPY, RESULTS, WORKSPACE, ListedHosts, Plan, PlannedImage, PlannedPython, Starter
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX, Mount, Recipe, Request, World
from runner.model.site import MpiFacts, RuntimeAtSite, Site
from runner.planning import placement, wireup
from runner.planning.environment import (
    carried_caches,
    choose_caches,
    merge,
    meter_variables,
    nccl_log,
    setup_lines,
    with_modules,
)
from runner.planning.launchers import launchers
from runner.planning.options import arguments, arms, samples_per_step
from runner.planning.shell_text import Read, nothing
from runner.planning.shell_words import unread
from runner.planning.starters import KINDS

# Of a node and a job that runs: their values are known only there.
_OF_NODES = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "HOSTNAME", "CUDA_VISIBLE_DEVICES")
_OF_JOBS = tuple(
    f"SLURM_{name}"
    for name in ("NODEID", "JOB_ID", "JOBID", "JOB_NODELIST", "NODELIST", "GPUS_ON_NODE", "GPUS_PER_NODE", "JOB_GPUS")
)
# Variables of tasks, which a program that starts its own processes has not (gpu_runner_inside.launcher.wireup).
_OF_TASKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")


def plan(
    recipe: Recipe,
    site: Site,
    request: Request,
    image: PlannedImage,
    environment: Environment | None = None,
    *,
    allocation: Allocation | None = None,
    python: PlannedPython | None = None,
    read: Read = nothing,
) -> Plan:
    """Decide everything about a job.

    Args:
        environment: replaces the setup of the site's native way.
        allocation: an existing one that the job becomes a step of; None for a job that gets its own.
        python: that each node must have, without a container.
        read: gives the text of a shell script that the program is, or that such a script calls; empty for none.

    Raises UsageError, RefusedError: the request cannot be planned; says which option and the fix.
    """
    scheduler, node = SCHEDULERS[site.scheduler], site.node
    listed = scheduler.nodes == "listed"
    if listed:
        tasks_per_node = placement.place_on_hosts(request.gpus, request.nodes, site.ssh.hosts)
    else:
        tasks_per_node = placement.place(request.gpus, request.nodes, node)
    nodes, most = len(tasks_per_node), max(tasks_per_node)
    walltime_s = request.walltime_s if request.walltime_s is not None else site.walltime_s
    queue = placement.choose_queue(site, request, nodes, walltime_s)
    name = request.job_name if request.job_name is not None else recipe.name
    if not PLAIN_NAME.match(name):
        raise UsageError(f"{name!r} cannot be a job's name", where="--name", fix=PLAIN_NAME_FIX)

    runtime = request.runtime or site.runtimes[0]
    way = site.ways.get(runtime, RuntimeAtSite())
    mounts = (*way.mounts, *_with_directory(request))
    of_shell = carried_caches(dict(request.caches), runtime, mounts)
    provided = nccl_log(site) | (environment.env if environment else {})
    variables = merge({**provided, **site.env, **way.env, **of_shell}, recipe.env, request.env, nodes=nodes)
    env = (*variables.env, *meter_variables(recipe, request).items())
    of_site = {} if request.program else site.options.get(recipe.name, {})  # a script may have a recipe's name
    options = arguments(recipe, of_site, request.options)
    program = (*recipe.program, *options, *request.arguments)
    started = launchers(program, read, _of_script(scheduler, nodes, most) | dict(variables.env))
    found = tuple(each for each in started if each.name in KINDS)
    requested = request.wireup or ("own" if recipe.processes == "own" or found else None)
    gloo_needed = recipe.framework == "horovod"
    chosen = wireup.choose(site, image, runtime, requested, request.gpus, gloo_needed=gloo_needed)
    placed = wireup.task_a_node(tasks_per_node) if chosen.wireup == "own" else tasks_per_node
    mpi = site.mpi if chosen.wireup in wireup.BY_MPI else MpiFacts()
    mounts = (*mounts, *mpi.mounts)
    _check_mounts(mounts, request.mounted_directory, is_container=RUNTIMES[runtime].is_container)

    whole = most == node.gpus
    site_settings, given = site.settings, dict(request.scheduler_options)
    # A job has all CPUs of its whole nodes without a number, but where it shares them (``exclusive=user``).
    divides = site_settings.divides_cpus(given) and scheduler.exclusive_nodes
    divides = divides and whole and request.cpus_per_gpu is None
    settings, directives = site_settings.merged(given)
    cpus_per_gpu = _cpus_per_gpu(site, request, most, allocation if divides else None)
    cpus_per_task = cpus_per_gpu * (most if chosen.wireup == "own" else 1)

    setup = with_modules(environment.setup if environment else way.setup, way.setup, request, runtime)
    load = (*way.load, *setup_lines(setup), *mpi.load)
    caches = choose_caches(site, runtime, mounts, request.home)
    hosts = None
    if listed:
        needed = recipe.needs if not RUNTIMES[runtime].is_container and not load else ()
        programs = (RUNTIMES[runtime].program or runtime,)
        hosts = ListedHosts(tuple(site.ssh.hosts)[:nodes], site.ssh.config, programs, needed)
    return Plan(
        job_name=name,
        recipe=recipe.name,
        framework=recipe.framework,
        result=recipe.result,
        site=site.name,
        scheduler=site.scheduler,
        runtime=runtime,
        tasks_per_node=placed,
        gpus_per_node=most,
        gpu_type=node.gpu_type if request.gpu_type is None else request.gpu_type,
        cpus_per_task=cpus_per_task,
        divides_cpus=divides and allocation is None,
        memory_mb=0 if whole else node.memory_mb * most // node.gpus,
        memory_per_cpu_mb=node.memory_mb // node.cpus,
        whole_nodes=whole and scheduler.exclusive_nodes,
        walltime_s=walltime_s,
        queue=queue,
        account=request.account,
        scheduler_settings=msgspec.to_builtins(settings),
        mpi=chosen.mpi,
        directives=directives,
        load=load,
        modules=way.modules,
        host_paths=bool(way.visible),
        library_path=way.library_path,
        library_variable=mpi.library_variable,
        runtime_options=way.options,
        image=image,
        mounts=mounts,
        env=tuple(sorted(env)),
        unset=variables.unset,
        program=program,
        samples_per_step=request.meter_batch or samples_per_step(program, recipe.samples_option),
        arms=arms(program, recipe.options),
        wireup=chosen.wireup,
        starters=found,
        unknown_starters=tuple(each for each in started if each.name not in KINDS),
        world=_world(site.world if request.world is None else request.world, request.gpus, found),
        swept=request.swept,
        device=site.device,
        transport=site.transport,
        demonstration=_demonstration(site, program),
        workdir=_workdir(request),
        stage=site.local_scratch if request.stage else "",
        umask=request.umask,
        trust=request.trust,
        caches=caches,
        existing_allocation=placement.choose_nodes(allocation, placed, most, cpus_per_task) if allocation else None,
        hosts=hosts,
        bind=request.bind,
        python=python,
        limit_is_default=request.walltime_s is None,
    )


def _of_script(scheduler: SchedulerFacts, nodes: int, gpus: int) -> dict[str, str]:
    """What a script finds that is started once a node, as far as that is known."""
    of_slurm = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes) if scheduler.has_srun else "")
    counts = {"NNODES": str(nodes), "NPROC_PER_NODE": str(gpus), **of_slurm}
    only_there = (*_OF_NODES, *(_OF_JOBS if scheduler.has_srun else ()))
    return counts | dict.fromkeys(_OF_TASKS, "") | {name: unread(name) for name in only_there}


def _world(asked: World | None, gpus: int, found: Sequence[Starter]) -> World | None:
    """The world that is asked for: by the user or the site, else by a program that starts ranks. Raises UsageError: a
    job of so many GPUs cannot form it.
    """
    if asked is None and found:
        return gpus
    if isinstance(asked, int) and not 1 <= asked <= gpus:
        what = f"a world of {asked} devices is not possible with {counted(gpus, 'GPU')}"
        raise UsageError(what, where="--world", fix="give the devices of one world, or none, or any")
    return asked


def _cpus_per_gpu(site: Site, request: Request, gpus: int, divided: Allocation | None) -> int:
    """As requested, or an equal share of the node's, or of those of an allocation that the job divides.

    Args:
        gpus: of each of the job's nodes.
    """
    if request.cpus_per_gpu is not None:
        if request.cpus_per_gpu < 1:
            what = f"{request.cpus_per_gpu} CPUs are not possible"
            raise UsageError(what, where="--cpus-per-gpu", fix="request one or more")
        return request.cpus_per_gpu
    if divided:
        return max(1, min(node.cpus for node in divided.nodes) // gpus)
    share, most = site.node.cpus // site.node.gpus, site.node.most_cpus_per_gpu(gpus)
    return max(1, share if most is None else min(share, most))


def _demonstration(site: Site, program: Sequence[str]) -> str:
    is_profiled = re.search(r"(?:^|[\s/])nsys\s+profile\s", " ".join(program))
    return "; ".join(filter(None, (site.demonstration, is_profiled and "profiled by nsys, which costs time")))


def _workdir(request: Request) -> str:
    """Where the program starts. A copy is in the run directory, which every rank sees: no script needs its path."""
    if request.copied_start is not None:
        return posixpath.normpath(posixpath.join(RESULTS, COPY, request.copied_start))
    return f"{RESULTS}/recipe" if request.starts_in is None else WORKSPACE


def _with_directory(request: Request) -> tuple[Mount, ...]:
    """The mounts, and the program's directory at WORKSPACE, unless the user mounts another one there."""
    directory = request.mounted_directory
    if directory is None or any(posixpath.normpath(mount.target) == WORKSPACE for mount in request.mounts):
        return request.mounts
    return (Mount(directory, WORKSPACE), *request.mounts)


def _check_mounts(mounts: Iterable[Mount], directory: str | None, *, is_container: bool) -> None:
    """``directory``: the one that the program starts in; without a container it is no mount."""
    taken = {RESULTS: "the run directory"}
    for mount in mounts:
        if not mount.target.startswith("/"):
            what = f"the mount point {mount.target!r} is not absolute"
            raise UsageError(what, where="--mount", fix="start it with /")
        target = posixpath.normpath(mount.target).replace("//", "/")
        if target == "/":
            raise UsageError("a mount over the container's root would hide the whole image", where="--mount")
        if target.startswith(f"{RESULTS}/"):
            raise UsageError(f"{target} is inside {RESULTS}, the run directory", where="--mount")
        if target in taken:
            raise UsageError(f"{target} is already the mount point of {taken[target]}", where="--mount")
        taken[target] = mount.source
        own = mount.source == directory and target == WORKSPACE
        where, fix = f"--mount {mount.source!r}", "give the directory another name"
        if own:
            where, fix = f"the program's directory {directory!r}", f"{fix}, or use --runtime native"
        for character, name in (("\n", "newline"), ("\0", "NUL")):
            if (is_container or not own) and (character in mount.source or character in mount.target):
                raise UsageError(f"a {name} is not possible in a mount", where=where, fix=fix)
