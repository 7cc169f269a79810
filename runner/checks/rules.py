"""Checks of one rule each. What a family of rules shares is in the module of the family."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import get_args

from runner.checks.registry import Case, rule
from runner.core.invocation import PROGRAM
from runner.core.text import counted, first_of
from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.plan import Finding, Plan, Starter
from runner.model.site import Owned, RuntimeAtSite, Site
from runner.planning.environment import is_visible
from runner.planning.launchers import script_of
from runner.planning.starters import Counts, conflicts, counts, plain, starts_of, unread_count
from runner.planning.wireup import BY_MPI, CYCLE_MS_PER_RANK, RENDEZVOUS_RANKS, mesh_s

_SLICE = re.compile(r"\dg\.\d+gb")


@rule("image-unusable")
def _image(case: Case) -> Iterator[Finding]:
    if case.observed.image_problem:
        yield Finding("image-unusable", "refuse", case.observed.image_problem, case.observed.image_fix)
    owner = case.observed.image_owner
    if owner:
        what = f"the image or its name was put into the store by {owner}, who alone vouches for what it holds"
        fix = "use it if you trust that user; else convert the image into a store of your own (convert --store DIR)"
        yield Finding("image-of-another-user", "warn", what, fix)


@rule("environment-lacks")
def _environment(case: Case) -> Iterator[Finding]:
    if case.observed.environment_problem:
        yield Finding("environment-lacks", "refuse", case.observed.environment_problem, case.observed.environment_fix)
    reason = case.observed.login_node
    if reason:
        what = f"this machine looks like a cluster's login node ({reason}), and would compute itself"
        fix = "use the cluster's own site, or `run` in an allocation"
        yield Finding("computes-on-a-login-node", "warn", what, fix)


@rule("program-not-startable", "open-directory", "own-disk")
def _program(case: Case) -> Iterator[Finding]:
    if case.observed.program_problem:
        yield Finding("program-not-startable", "refuse", case.observed.program_problem, case.observed.program_fix)
    if case.observed.directory_problem:
        yield Finding("open-directory", "refuse", case.observed.directory_problem, case.observed.directory_fix)
    if place := case.observed.own_disk:
        what = (
            f"{place} lies on this machine's own disk, or leads there, where all may write: "
            "on the job's nodes it may be another user's"
        )
        yield Finding("own-disk", "refuse", what, "use a directory that all nodes share")
    loaded = {name for line in case.plan.load if line[:2] == ("module", "load") for name in line[2:]}
    dropped = [each for each in case.observed.modules if not {each, each.partition("/")[0]} & loaded]
    if dropped:
        what = f"modules of this shell are not loaded in the job: {', '.join(dropped)}"
        fix = f"where the program needs them: {' '.join(f'--module {name}' for name in dropped)}"
        yield Finding("modules-dropped", "warn", what, fix)


@rule("mount-source-missing", "run-directory-unmountable")
def _mounts(case: Case) -> Iterator[Finding]:
    for source in case.observed.missing_sources:
        what = f"the mount source {source!r} does not exist here"
        fix = "correct the path, or make it"
        yield Finding("mount-source-missing", "refuse", what, fix)
    problem = case.observed.run_directory_problem
    if problem:
        yield Finding("run-directory-unmountable", "refuse", problem, "choose another with --runs")


@rule()
def _snapshot(case: Case) -> Iterator[Finding]:
    links = case.observed.links_left_out
    if links:
        more = f" and {len(links) - 1} more" if len(links) > 1 else ""
        what = f"the copy has no link {links[0]!r}{more}: it leads out of the repository, or by an absolute path"
        fix = "give the program the path itself, with --mount in a container; or make the link relative"
        yield Finding("links-not-copied", "warn", what, fix)
    if files := case.observed.files_left_out:
        what = f"{counted(len(files), 'file')} of other users not copied, as all may write there: {first_of(files, 3)}"
        yield Finding("files-not-copied", "warn", what, "make them yours: copy them, and `chmod go-w` their directory")


def _is_below(paths: Iterable[str], tops: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{top.rstrip('/')}/") for top in tops for path in paths)


@rule("path-not-visible")
def _visible(case: Case) -> Iterator[Finding]:
    """Where containers show only some of the host's directories, and a job relies on it."""
    plan = case.plan
    shown = case.site.ways.get(plan.runtime, RuntimeAtSite()).visible
    if not shown or not case.observed.run_directory:
        return
    own = [(mount.source,) for mount in plan.mounts if mount.target == plan.workdir]
    for names in (case.observed.run_directory, *own):
        if not _is_below(names, shown):
            title = RUNTIMES[plan.runtime].title
            what = f"containers of {title} at {plan.site} show {', '.join(shown)}, and not {names[0]}"
            fix = "work below one of these: start there, and --runs DIR; others are `visible` in a site file"
            yield Finding("path-not-visible", "refuse", what, fix)


@rule()
def _arguments(case: Case) -> Iterator[Finding]:
    """What a program is to read, and its container does not show."""
    plan = case.plan
    facts = RUNTIMES[plan.runtime]
    if not facts.is_container:
        return
    targets = [mount.target for mount in plan.mounts]
    shown = [*targets, *case.site.ways.get(plan.runtime, RuntimeAtSite()).visible]
    shown += case.observed.home if facts.shows_home else ()
    here = [mount.source for mount in plan.mounts if mount.target == plan.workdir]
    for path in case.observed.named_paths:
        if _is_below([path], shown):
            continue
        what = f"the container does not show {path}, which the program's arguments name"
        fix = f"--mount {posixpath.dirname(path)}:{posixpath.dirname(path)}"
        if _is_below([path], here):
            fix = f"name it as seen from this directory: {posixpath.relpath(path, here[0])}"
        yield Finding("argument-not-visible", "warn", what, fix)


@rule()
def _shell_environment(case: Case) -> Iterator[Finding]:
    if case.observed.unused_environment:
        what = f"this shell's environment {case.observed.unused_environment} is not used: the job runs in an image"
        yield Finding("environment-not-used", "warn", what, "--runtime native runs it there; --image NAME says which")


@rule()
def _blanks(case: Case) -> Iterator[Finding]:
    sources = (path for mount in case.plan.mounts for path in (mount.source, mount.target))
    blank = [path for path in (*sources, *case.observed.run_directory) if re.search(r"\s", path)]
    why = RUNTIMES[case.plan.runtime].blanks
    if blank and why:
        fix = "use a path without blanks, unless such a mount is known to work there"
        yield Finding("mount-with-blank", "warn", f"{why}: {blank[0]!r}", fix)


@rule("runtime-not-at-site")
def _runtime(case: Case) -> Iterator[Finding]:
    if case.plan.runtime not in case.site.runtimes:
        what = f"{case.plan.site} is not known to have {case.plan.runtime}"
        fix = f"use a runtime of the site ({', '.join(case.site.runtimes)}), or add it to `runtimes` in a site file"
        yield Finding("runtime-not-at-site", "refuse", what, fix)


@rule("plugin-missing")
def _plugin(case: Case) -> Iterator[Finding]:
    if case.observed.plugin_problem:
        yield Finding("plugin-missing", "refuse", case.observed.plugin_problem, case.observed.plugin_fix)


@rule(*(f"{name}-missing" for name in get_args(Owned)))
def _personal(case: Case) -> Iterator[Finding]:
    for name in case.observed.absent:
        fix = f"--{name} NAME, or `{name}:` in ~/.config/gpu-runner/config.yaml"
        fix += "; --account none leaves it to the scheduler" if name == "account" else ""
        fix += f"; {case.site.hints[name]}" if name in case.site.hints else ""
        yield Finding(f"{name}-missing", "refuse", f"{case.plan.site} needs your {name}, which is not set", fix)
    yield from not_listed(case.site, [each for each in case.observed.unlisted if each[0] in str(case.plan.directives)])


def not_listed(site: Site, unlisted: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Of values that the site's own list does not have, each with the nearest there."""
    for value, near in unlisted:
        fix = f"did you mean {near!r}?" if near else "name one that it lists: --field, `applications` of the site"
        yield Finding("value-not-listed", "warn", f"`{site.published}` of {site.name} does not list {value!r}", fix)


@rule("submit-directory")
def _submit_directory(case: Case) -> Iterator[Finding]:
    below, here = case.site.submit_below, case.observed.run_directory
    if below and not _is_below(here, below):
        what = f"{case.plan.site} takes jobs only from below {', '.join(below)}, not from {' or '.join(here)}"
        yield Finding("submit-directory", "refuse", what, f"--runs {below[0].rstrip('/')}/runs")


@rule()
def _home(case: Case) -> Iterator[Finding]:
    """Some runtimes show the home directory, elsewhere a mount may."""
    local = [f"{home.rstrip('/')}/.local" for home in case.observed.home[:1]]
    mounted = _is_below(local, [posixpath.normpath(mount.target) for mount in case.plan.mounts])
    seen = mounted or RUNTIMES[case.plan.runtime].shows_home
    if seen and dict(case.plan.env).get("PYTHONNOUSERSITE") != "1":
        what = "programs see the home directory: packages in ~/.local would replace those of the image or environment"
        yield Finding("user-packages", "warn", what, "--env PYTHONNOUSERSITE=1")


@rule()
def _caches(case: Case) -> Iterator[Finding]:
    plan = case.plan
    hidden = [path for path in case.observed.caches if not is_visible(path, plan.runtime, plan.mounts)]
    if plan.caches == "node" and hidden:
        above = posixpath.dirname(hidden[0])
        what = f"programs do not see your caches ({', '.join(hidden)}): they begin with empty ones on each node"
        yield Finding("caches-not-visible", "warn", what, f"--mount {above}:{above} --env XDG_CACHE_HOME={above}")


@rule("directive-emptied")
def _directives(case: Case) -> Iterator[Finding]:
    """An option that the site requires of every job, set to nothing."""
    given, memory = dict(case.plan.directives), SCHEDULERS[case.plan.scheduler].memory_options
    sized = any(option in given for option in memory)
    for option, value in case.site.settings.directives.items():
        if value and not given.get(option) and not (sized and option in memory):
            what = f"{case.plan.site} requires {option} of every job (its value there: {value!r}); the job empties it"
            yield Finding("directive-emptied", "refuse", what, f"-S {option}=VALUE, or leave it out")


@rule("site-unfinished")
def _left_open(case: Case) -> Iterator[Finding]:
    observed = case.observed
    if observed.left_open:
        what = f"the file of {case.plan.site} is not finished, it leaves open: {', '.join(observed.left_open)}"
        fix = f"`{PROGRAM} site check {shlex.quote(observed.site_file)}` says how to find out each of them"
        yield Finding("site-unfinished", "refuse", what, fix)


@rule()
def _wireup(case: Case) -> Iterator[Finding]:
    plan = case.plan
    if plan.wireup in BY_MPI and f"{plan.runtime}/{plan.wireup}" not in case.site.proven:
        what = (
            f"{plan.wireup} has not been proven with {plan.runtime} at {plan.site} (the image's MPI: "
            f"{plan.image.mpi or 'unknown'}): ranks that do not find each other each form a world of one"
        )
        fix = "rely on the verdict, which detects this; or use --wireup rendezvous, which needs no MPI"
        yield Finding("wireup-unproven", "warn", what, fix)
    if plan.wireup == "rendezvous" and plan.tasks > RENDEZVOUS_RANKS:
        low, high = (plan.tasks * ms for ms in CYCLE_MS_PER_RANK)
        what = (
            f"{plan.tasks} ranks form a mesh, which takes about {mesh_s(plan.tasks):.2g} s (as measured on "
            f"two cores), and coordinate through a ring: {low:.0f}-{high:.0f} ms per cycle, estimated"
        )
        fix = "prefer MPI where image and host are proven to fit (--wireup)"
        yield Finding("rendezvous-at-scale", "warn", what, fix)


@rule("gpus-hidden")
def _gpus(case: Case) -> Iterator[Finding]:
    """GPUs that peers would not see, and slices that do not talk to each other."""
    plan = case.plan
    hiding = plan.settings.hidden_gpus
    if hiding:
        what = "each rank would see its own GPU only: ranks pin themselves by local rank, and NCCL wants its peers"
        fix = f"take {' and '.join(hiding)} out of `{SCHEDULERS[plan.scheduler].section}` of {plan.site}"
        yield Finding("gpus-hidden", "refuse", what, fix)
    if _SLICE.search(plan.gpu_type) and plan.gpus > 1:
        what = f"{plan.gpu_type} is a slice of a GPU: NCCL does not connect two slices of one GPU"
        yield Finding("mig-slices", "warn", what, "ask for whole GPUs, or for one rank")


@rule()
def _meter(case: Case) -> Iterator[Finding]:
    """The meter judges ranks that the launcher starts only (docs/meter.md)."""
    starter = next(iter(case.plan.starters), None)
    if starter is not None and "RUNNER_METER" in dict(case.plan.env):
        what = f"{starter.name} starts the ranks itself: --meter prints a rate, and the verdict has none"
        yield Finding("meter-not-judged", "warn", what, f"--wireup torchrun, and no {starter.name} in the command")


@rule("other-world")
def _starters(case: Case) -> Iterator[Finding]:
    """Programs that start ranks themselves, and would form another world than the one that is asked for."""
    plan = case.plan
    judged = [(each, *_conflict(plan, each)) for each in plan.starters if plan.world not in ("none", "any")]
    is_one_right = any(not what and not each.is_choice for each, what, _ in judged)  # an evaluation may have its own
    for each, what, fix in judged:
        if what and (each.is_choice or is_one_right):
            yield Finding("unknown-starter", "warn", f"{_line(plan, each)}if this runs, {what}", fix)
        elif what:
            yield Finding("other-world", "refuse", _line(plan, each) + what, fix)
        elif number := unread_count(each):
            unread = f"{_line(plan, each)}{each.name} starts as many as `{number}` says, which only a run tells"
            leave = f"see that it fits, or leave the option out: {each.name} gets it from gpu-runner"
            yield Finding("unknown-starter", "warn", unread, leave)


def _conflict(plan: Plan, each: Starter) -> tuple[str, str]:
    """Why a starter would form another world, and the fix; empty texts where it would not."""
    line = plain(each)
    leave = f"leave {each.name} out, as a rank is started for each GPU" + (f": -- {shlex.join(line)}" if line else "")
    starts, processes = starts_of(plan, each)
    unit = "node" if plan.wireup == "own" else "rank"
    what = next(conflicts(each, starts, processes, by_gpu=plan.device == "cuda", unit=unit), "")
    if plan.wireup in BY_MPI or (plan.wireup != "own" and counts(each) == Counts()):
        what = f"{each.name} starts ranks itself: started for each GPU, each would form a world of its own"
        return what, f"{leave}; leave --wireup out"
    if each.name == "srun" or (starts > 1 and each.name in ("horovodrun", "mpirun")):
        return what, leave
    if not what and isinstance(plan.world, int) and plan.world not in (starts * processes, processes):
        what = f"{each.name} forms a world of {starts * processes}, and --world asks for {plan.world}"
        return what, "leave --world out, or request as many GPUs"
    if each.line and "by its name alone" in what:
        fix = f"write these arguments there, or {each.name} without a path and with nothing before it, run by bash"
        return what, fix
    return what, f"leave the option out, {each.name} gets it from gpu-runner; or request the GPUs that it says"


@rule()
def _unknown_starters(case: Case) -> Iterator[Finding]:
    """Programs that may start ranks, in a way that is not known."""
    plan = case.plan
    unit = "node" if plan.wireup == "own" else "GPU"
    is_open = plan.world is None or (plan.starters and plan.world == plan.gpus)  # else the user says what forms
    for each in plan.unknown_starters if is_open and plan.gpus > 1 else ():
        what = f"gpu-runner cannot tell whether {each.name} starts ranks; it gets {counted(plan.tasks, 'start')}, "
        fix = "see that each start is one rank; if it starts ranks itself, --wireup own starts it once for each node"
        yield Finding("unknown-starter", "warn", f"{_line(plan, each)}{what}one for each {unit}", fix)


def _line(plan: Plan, starter: Starter) -> str:
    return f"line {starter.line} of {script_of(plan.program) or 'the script'}: " if starter.line else ""
