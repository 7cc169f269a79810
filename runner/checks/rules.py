"""Checks of one rule each. What a family of rules shares is in the module of the family."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from typing import get_args

from runner.checks.registry import Case, rule
from runner.core.invocation import PROGRAM
from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.plan import Finding
from runner.model.site import Owned, RuntimeAtSite
from runner.planning.environment import is_visible
from runner.planning.starters import TORCHRUN, conflict, starter
from runner.planning.wireup import BY_MPI, CYCLE_MS_PER_RANK, RENDEZVOUS_RANKS, mesh_s

_SLICE = re.compile(r"\dg\.\d+gb")


@rule("image-unusable")
def _image(case: Case) -> Iterator[Finding]:
    if case.observed.image_problem:
        yield Finding("image-unusable", "refuse", case.observed.image_problem, case.observed.image_fix)
    if case.observed.image_owner:
        yield Finding(
            "image-of-another-user",
            "warn",
            f"the image was put into the store by {case.observed.image_owner}, who alone vouches for what it holds",
            "use it if you trust that user; else convert the image into a store of your own (convert --store DIR)",
        )


@rule("environment-lacks")
def _environment(case: Case) -> Iterator[Finding]:
    if case.observed.environment_problem:
        yield Finding("environment-lacks", "refuse", case.observed.environment_problem, case.observed.environment_fix)
    if case.observed.login_node:
        yield Finding(
            "computes-on-a-login-node",
            "warn",
            f"this machine looks like a cluster's login node ({case.observed.login_node}), and would compute itself",
            "use the cluster's own site, or `run` in an allocation",
        )


@rule("mount-source-missing", "run-directory-unmountable")
def _mounts(case: Case) -> Iterator[Finding]:
    for source in case.observed.missing_sources:
        yield Finding(
            "mount-source-missing",
            "refuse",
            f"the mount source {source!r} does not exist here",
            "correct the path; a node would fail to start the container",
        )
    if case.observed.run_directory_problem:
        yield Finding(
            "run-directory-unmountable", "refuse", case.observed.run_directory_problem, "choose another with --runs"
        )


@rule()
def _snapshot(case: Case) -> Iterator[Finding]:
    links = case.observed.links_left_out
    if links:
        more = f" and {len(links) - 1} more" if len(links) > 1 else ""
        yield Finding(
            "links-not-copied",
            "warn",
            f"the copy has no link {links[0]!r}{more}: it leads out of the repository, or by an absolute path",
            "give the program the path itself, with --mount in a container; or make the link relative",
        )


@rule("path-not-visible")
def _visible(case: Case) -> Iterator[Finding]:
    """Where containers show only some of the host's directories, and a job relies on it."""
    shown = case.site.ways.get(case.plan.runtime, RuntimeAtSite()).visible
    if not shown or not case.observed.run_directory:
        return
    own = [(mount.source,) for mount in case.plan.mounts if mount.target == case.plan.workdir]
    for names in (case.observed.run_directory, *own):
        if not any(f"{path}/".startswith(f"{top.rstrip('/')}/") for top in shown for path in names):
            title = RUNTIMES[case.plan.runtime].title
            yield Finding(
                "path-not-visible",
                "refuse",
                f"containers of {title} at {case.plan.site} show {', '.join(shown)}, and not {names[0]}",
                "work below one of these: start there, and --runs DIR; others are `visible` in a site file",
            )


@rule()
def _blanks(case: Case) -> Iterator[Finding]:
    sources = (path for mount in case.plan.mounts for path in (mount.source, mount.target))
    blank = [path for path in (*sources, *case.observed.run_directory) if re.search(r"\s", path)]
    why = RUNTIMES[case.plan.runtime].blanks
    if blank and why:
        yield Finding(
            "mount-with-blank",
            "warn",
            f"{why}: {blank[0]!r}",
            "use a path without blanks, unless such a mount is known to work there",
        )


@rule("runtime-not-at-site")
def _runtime(case: Case) -> Iterator[Finding]:
    if case.plan.runtime not in case.site.runtimes:
        yield Finding(
            "runtime-not-at-site",
            "refuse",
            f"{case.plan.site} is not known to have {case.plan.runtime}",
            f"use a runtime of the site ({', '.join(case.site.runtimes)}), or add it to `runtimes` in a site file",
        )


@rule("plugin-missing")
def _plugin(case: Case) -> Iterator[Finding]:
    if case.observed.plugin_problem:
        yield Finding("plugin-missing", "refuse", case.observed.plugin_problem, case.observed.plugin_fix)


@rule(*(f"{name}-missing" for name in get_args(Owned)))
def _personal(case: Case) -> Iterator[Finding]:
    for name in case.observed.absent:
        yield Finding(
            f"{name}-missing",
            "refuse",
            f"{case.plan.site} needs your {name}, which is not set",
            f"--{name} NAME, or `{name}:` in ~/.config/gpu-runner/config.yaml"
            + (f"; {case.site.hints[name]}" if name in case.site.hints else ""),
        )


@rule("submit-directory")
def _submit_directory(case: Case) -> Iterator[Finding]:
    below, here = case.site.submit_below, case.observed.run_directory
    if below and not any(f"{path}/".startswith(f"{top.rstrip('/')}/") for top in below for path in here):
        yield Finding(
            "submit-directory",
            "refuse",
            f"{case.plan.site} takes jobs only from below {', '.join(below)}, not from {' or '.join(here)}",
            f"--runs {below[0].rstrip('/')}/runs",
        )


@rule()
def _home(case: Case) -> Iterator[Finding]:
    """Some runtimes show the home directory, elsewhere a mount may."""
    home = case.observed.home.rstrip("/")
    targets = [posixpath.normpath(mount.target) for mount in case.plan.mounts]
    mounted = bool(home) and any(f"{home}/.local/".startswith(f"{target}/") for target in targets)
    seen = mounted or RUNTIMES[case.plan.runtime].shows_home
    if seen and dict(case.plan.env).get("PYTHONNOUSERSITE") != "1":
        yield Finding(
            "user-packages",
            "warn",
            "programs see the home directory: packages in ~/.local would replace those of the image or environment",
            "--env PYTHONNOUSERSITE=1",
        )


@rule()
def _caches(case: Case) -> Iterator[Finding]:
    plan = case.plan
    hidden = [path for path in case.observed.caches if not is_visible(path, plan.runtime, plan.mounts)]
    if plan.caches == "node" and hidden:
        above = posixpath.dirname(hidden[0])
        yield Finding(
            "caches-not-visible",
            "warn",
            f"programs do not see your caches ({', '.join(hidden)}): they begin with empty ones on each node",
            f"--mount {above}:{above} --env XDG_CACHE_HOME={above}",
        )


@rule("directive-emptied")
def _directives(case: Case) -> Iterator[Finding]:
    """An option that the site requires of every job, set to nothing."""
    given, memory = dict(case.plan.directives), SCHEDULERS[case.plan.scheduler].memory_options
    sized = any(option in given for option in memory)
    for option, value in case.site.settings.directives.items():
        if sized and option in memory:
            continue
        if value and not given.get(option):
            yield Finding(
                "directive-emptied",
                "refuse",
                f"{case.plan.site} requires {option} of every job (its value there: {value!r}); the job empties it",
                f"-S {option}=VALUE, or leave it out",
            )


@rule("site-unfinished")
def _left_open(case: Case) -> Iterator[Finding]:
    if case.observed.left_open:
        yield Finding(
            "site-unfinished",
            "refuse",
            f"the file of {case.plan.site} is not finished, it leaves open: {', '.join(case.observed.left_open)}",
            f"`{PROGRAM} site check {shlex.quote(case.observed.site_file)}` says how to find out each of them",
        )
    if case.observed.defaulted:
        yield Finding(
            "site-defaults",
            "warn",
            f"the file of {case.plan.site} leaves to their defaults: {', '.join(case.observed.defaulted)}",
            "give them in the file, or delete their lines; "
            f"`{PROGRAM} site check {shlex.quote(case.observed.site_file)}` says more",
        )


@rule()
def _wireup(case: Case) -> Iterator[Finding]:
    way = f"{case.plan.runtime}/{case.plan.wireup}"
    if case.plan.wireup in BY_MPI and way not in case.site.proven:
        known = case.plan.image.mpi or "unknown"
        yield Finding(
            "wireup-unproven",
            "warn",
            f"{case.plan.wireup} has not been proven with {case.plan.runtime} at {case.plan.site} (the image's MPI: "
            f"{known}): ranks that do not find each other each form a world of one",
            "rely on the verdict, which detects this; or use --wireup rendezvous, which needs no MPI",
        )
    if case.plan.wireup == "rendezvous" and case.plan.tasks > RENDEZVOUS_RANKS:
        low, high = (case.plan.tasks * ms for ms in CYCLE_MS_PER_RANK)
        yield Finding(
            "rendezvous-at-scale",
            "warn",
            f"{case.plan.tasks} ranks form a mesh, which takes about {mesh_s(case.plan.tasks):.2g} s (as measured on "
            f"two cores), and coordinate through a ring: {low:.0f}-{high:.0f} ms per cycle, estimated",
            "prefer MPI where image and host are proven to fit (--wireup)",
        )


@rule("gpus-hidden")
def _gpus(case: Case) -> Iterator[Finding]:
    """GPUs that peers would not see, and slices that do not talk to each other."""
    plan = case.plan
    hiding = plan.settings.hidden_gpus
    if hiding:
        yield Finding(
            "gpus-hidden",
            "refuse",
            "each rank would see its own GPU only: ranks pin themselves by local rank, and NCCL wants its peers",
            f"take {' and '.join(hiding)} out of `{SCHEDULERS[plan.scheduler].section}` of {plan.site}",
        )
    if _SLICE.search(plan.gpu_type) and plan.gpus > 1:
        yield Finding(
            "mig-slices",
            "warn",
            f"{plan.gpu_type} is a slice of a GPU: NCCL does not connect two slices of one GPU",
            "ask for whole GPUs, or for one rank",
        )


@rule("other-world")
def _starter(case: Case) -> Iterator[Finding]:
    """Programs that start ranks themselves, each of whose starts would form a world of its own."""
    plan, found = case.plan, starter(case.plan.program)
    if found is None:
        return
    line = f": -- {shlex.join(found.plain)}" if found.plain else ""
    fix = f"leave {found.name} out, as a rank is started for each GPU{line}"
    if plan.wireup != "own":
        what = f"{found.name} starts ranks itself: started for each GPU, each would form a world of its own"
        instead_of = (
            "leave --wireup out" if found.name == TORCHRUN else "--wireup own starts it once a node, if it must be"
        )
        yield Finding("other-world", "refuse", what, f"{fix}; {instead_of}")
    elif found.name == TORCHRUN:
        what = conflict(found, plan.nodes, plan.gpus_per_node, by_gpu=plan.device == "cuda")
        if what:
            fix = "leave it out, torchrun learns it from gpu-runner; or request the GPUs that it says"
            yield Finding("other-world", "refuse", what, fix)
