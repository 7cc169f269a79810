"""``site check`` and ``site detect``: a site's files, tried, and compared with the cluster that answers here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.checks.image_fit import version
from runner.checks.registry import UNCONFIRMED
from runner.checks.rules import not_listed
from runner.core import paths
from runner.core.errors import Exit, RunnerError, UsageError
from runner.core.strict_yaml import read
from runner.core.text import gpus_text, instead
from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.plan import Finding, PlannedImage
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX, ImageForm, Request
from runner.model.site import RuntimeAtSite, Site
from runner.planning.plan import plan
from runner.preparation.observation import clients, unlisted
from runner.preparation.site import UserSite, plain_name, site_here, with_user_values
from runner.recipes.loader import read_recipe
from runner.sites import loader
from runner.sites.detection.cluster import Detected, detect, draft
from runner.sites.detection.facts import count_of
from runner.sites.loader import GENERIC, Unknown, check_shape, read_config, read_documents, site_of, unknowns
from runner.sites.user import NO_ACCOUNT


def differences(site: Site, detected: Detected) -> tuple[Finding, ...]:
    """What differs, refusals first: what would fail is refused, what would only be planned worse is warned of."""
    if site.scheduler != detected.scheduler_name:
        what = f"{site.name} has {site.scheduler}, and {detected.scheduler} answers here"
        fix = "check it on its own login node, or correct `scheduler`"
        return (Finding("scheduler-differs", "refuse", what, fix),)
    # Queues that jobs can go to now, with their limits; none where the file's queues are something else.
    live = detected.cluster.queue_limits() if site.settings.lists_queues else {}
    closed = {queue.name: queue.refusal for queue in detected.cluster.queues if queue.refusal}
    by_key: dict[str, list[str]] = {}  # what says of nodes what they are -> the queues that have such
    for name in filter(live.__contains__, site.queues):
        by_key.setdefault(f"queues.{name}.node" if site.queues[name].node else "node", []).append(name)
    findings = [
        *_queues(site, live, closed),
        *(each for key, queues in (by_key or {"node": []}).items() for each in _node(site, key, detected, queues)),
        *_runtimes(site, detected),
        *_host(site, detected),
    ]
    return tuple(sorted(findings, key=lambda finding: finding.severity != "refuse"))


def _queues(site: Site, live: dict[str, dict[str, int]], closed: dict[str, str]) -> Iterator[Finding]:
    """Queues that are gone, and limits that are stricter than the file says: a job that it takes for good would be
    refused, or never start. ``closed``: those that take no job of this user's -> why.
    """
    for name in dict.fromkeys((*((site.queue,) if site.queue else ()), *site.queues)) if live else ():
        if name in closed:
            what = f"the queue {name!r} takes no job of yours as it is: {closed[name]}"
            fix = f"take it out, or always name the account that it is for; queues for you: {', '.join(live)}"
            yield Finding("queue-closed", "warn", what, fix)
            continue
        if name not in live:
            fix = instead(name, live, f"queues: {', '.join(live)}")
            yield Finding("queue-gone", "refuse", f"there is no queue {name!r} (any more)", fix)
            continue
        for key, theirs in live[name].items() if name in site.queues else ():
            ours = getattr(site.queues[name], key)
            if ours is None or (ours < theirs if key == "min_nodes" else ours > theirs):
                shown = "no limit" if ours is None else str(ours)
                what = f"queue {name}: {key} is {theirs}, the file says {shown}"
                yield Finding("queue-limit-differs", "warn", what, f"queues.{name}.{key}: {theirs}")


def _node(site: Site, key: str, detected: Detected, queues: list[str]) -> Iterator[Finding]:
    """A file that claims more than a node has makes jobs that never start; one that claims less wastes."""
    node = (site.queues[queues[0]].node if queues else None) or site.node
    there = detected.cluster.gpu_nodes(queues)
    if not there:
        where = f"in {', '.join(queues or site.queues)}" if site.queues else "here"
        yield Finding("gpus-differ", "refuse", f"no node {where} has GPUs", "name queues that hold GPU nodes")
        return
    first, memory_mb = there[0], min(each.memory_mb for each in there)
    kinds, cpus = dict(first.gpus), first.cpus
    if node.gpu_type and node.gpu_type not in kinds:
        what = f"the nodes have GPUs of type {', '.join(kinds) or 'none'}, the file says {node.gpu_type!r}"
        fix = instead(node.gpu_type, kinds, f"correct {key}.gpu_type; empty where GPUs have no type")
        yield Finding("gpu-type-differs", "refuse", what, fix)
    gpus = kinds.get(node.gpu_type) or count_of(first.whole_gpus or first.gpus)
    if gpus != node.gpus:
        what = f"a node has {gpus_text(gpus)}, the file says {node.gpus}"
        yield Finding("gpus-differ", "refuse", what, f"{key}.gpus: {gpus}")
    if cpus != node.cpus:
        what = f"a node has {cpus} CPUs to give, the file says {node.cores} cores of {node.threads_per_core} threads"
        fix = f"{key}.cores and {key}.threads_per_core (`scontrol show node`, `pbsnodes`)"
        yield Finding("cpus-differ", "refuse" if cpus < node.cpus else "warn", what, fix)
    if memory_mb < node.memory_mb:
        what = f"a node has {memory_mb} MiB, the file says {node.memory_mb}"
        asked = site.settings.asks_memory
        yield Finding("memory-differs", "refuse" if asked else "warn", what, f"{key}.memory_mb: {memory_mb}")
    if not any(each.usable for each in there):
        yield Finding("nodes-down", "warn", f"none of the {len(there)} GPU nodes is up", "wait", who="administrator")
    elif node.count is not None and node.count > len(there):
        what = f"there are {len(there)} such nodes, the file says {node.count}"
        yield Finding("fewer-nodes", "warn", what, f"{key}.count: {len(there)}")


def _runtimes(site: Site, detected: Detected) -> Iterator[Finding]:
    for name in site.runtimes:
        severity: Literal["refuse", "warn"] = "refuse" if name == site.runtimes[0] else "warn"  # jobs take the first
        facts = RUNTIMES[name]
        if name in detected.runtimes or not facts.is_container or site.ways.get(name, RuntimeAtSite()).load:
            continue
        if not facts.program:
            what = f"srun has no --{facts.srun_option}: the {facts.title} plugin is not loaded (plugstack.conf)"
            yield Finding("runtime-missing", severity, what, f"load {facts.plugin} for srun", who="administrator")
        elif detected.node is not None:
            what = f"{name} is not on {detected.node.name}"
            fix = f"install it on the nodes, or say how it is loaded (ways.{name}.load)"
            yield Finding("runtime-missing", severity, what, fix, who="administrator")
        else:
            what = f"{name} is not on this host; whether GPU nodes have it was not asked"
            yield Finding("runtime-not-here", "warn", what, "site check --on-node")


def _host(site: Site, detected: Detected) -> Iterator[Finding]:
    ways, node, stated = detected.cluster.mpi, detected.node, site.hardware
    where = node or detected.login
    for kind in site.mpi.pmi if ways else ():
        if not any(name.startswith(kind) for name in ways):
            what = f"srun has no --mpi={kind} (it has {', '.join(ways)})"
            yield Finding("pmi-missing", "refuse", what, "take it out of mpi.pmi")
    needing = [name for name in site.runtimes if RUNTIMES[name].user_namespaces]
    if where is not None and where.namespaces is False and needing:
        what = f"ordinary users may make no user namespaces on {where.name}, and {', '.join(needing)} need them"
        fix = "sysctl user.max_user_namespaces=65536 (and kernel.unprivileged_userns_clone=1 on Debian)"
        yield Finding("user-namespaces-off", "refuse" if node else "warn", what, fix, who="administrator")
    if where is not None and stated.cpu and where.cpu and where.cpu != stated.cpu:
        what = f"{where.name} is {where.cpu}, the file says {stated.cpu}"
        yield Finding("cpu-differs", "refuse" if node else "warn", what, f"hardware.cpu: {where.cpu}")
    if node is None:
        return
    if stated.driver and node.driver and version(node.driver) < version(stated.driver):
        what = f"{node.name} has driver {node.driver}, the file says {stated.driver}"
        yield Finding("driver-older", "refuse", what, f"hardware.driver: {node.driver}")
    if site.device == "cuda" and not node.driver:
        what = f"{node.name} has no NVIDIA driver loaded, and jobs are to compute on its GPUs"
        yield Finding("driver-missing", "refuse", what, "load the driver on the nodes", who="administrator")


# By the form that a runtime takes; nothing looks at the files.
_IMAGES: dict[ImageForm, PlannedImage] = {
    "squashfs": PlannedImage(reference="/image.sqsh", digest="", path="/image.sqsh"),
    "sif": PlannedImage(reference="/image.sif", digest="", path="/image.sif"),
    "registry": PlannedImage(reference="registry.example.org/image:1", digest="", path=""),
    "none": PlannedImage(reference="", digest="", path=""),
}


class SiteReport(msgspec.Struct, frozen=True):
    """The result of checking a site.

    Attributes:
        left_open: keys that jobs need and its files leave unknown; nothing else was checked then.
        defaulted: keys that its files leave unknown and to the default.
        findings: where the live cluster differs.
        remarks: further results, a line each.
    """

    left_open: tuple[Unknown, ...] = ()
    defaulted: tuple[Unknown, ...] = ()
    findings: tuple[Finding, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def exit_code(self) -> Exit:
        """2 for an unfinished file, 3 where the cluster contradicts it."""
        if self.left_open:
            return Exit.USAGE
        refused = any(finding.severity == "refuse" for finding in self.findings)
        return Exit.REFUSED if refused else Exit.GOOD


def check_site(name: str, *, offline: bool, on_node: bool, options: tuple[tuple[str, str], ...]) -> SiteReport:
    """Check a site: its files, a script of each of its ways, and the cluster that answers here. Raises UsageError: a
    file is not right; says file:line and key; RefusedError: a GPU node did not answer.
    """
    documents = read_documents(name)
    unknown = unknowns(documents)
    left_open, defaulted = (tuple(each for each in unknown if each.needed is needed) for needed in (True, False))
    if left_open:
        return SiteReport(left_open=left_open, defaulted=defaulted)
    if name != GENERIC:
        check_shape(documents)
    site = site_of(documents)
    user_site = with_user_values(site, Request(gpus=1), read_config())
    if SCHEDULERS[site.scheduler].nodes == "allocated":
        _try_every_way(user_site)
    remarks = [f"{site.name}: the file is valid; its runtimes: {', '.join(site.runtimes)}"]
    unconfirmed = sorted(key for key, source in site.sources.items() if UNCONFIRMED in source)
    if unconfirmed:
        remarks.append(f"unconfirmed: {', '.join(unconfirmed)}")
    missing = user_site.missing
    if missing:
        remarks.append(
            f"jobs there also need your {', '.join(missing)}: --{missing[0]} NAME, or set it in your configuration"
        )
    if offline or not SCHEDULERS[site.scheduler].detection:
        return SiteReport(defaulted=defaulted, remarks=tuple(remarks))
    values = dict.fromkeys((user_site.personal.field, *site.applications.values()))
    listed = tuple(not_listed(site, unlisted(site, values)))
    try:
        account = None if missing else user_site.account
        detected = detect_cluster(site, on_node=on_node, options=options, account=account)
    except RunnerError as error:
        if on_node:
            raise
        remarks.append(f"not compared with a live cluster: {error.what}")
        return SiteReport(defaulted=defaulted, findings=listed, remarks=tuple(remarks))
    findings = (*differences(site, detected), *listed)
    agrees = "" if findings else "; it agrees"
    remarks.append(f"compared with {detected.scheduler}{agrees}")
    return SiteReport(defaulted=defaulted, findings=findings, remarks=tuple(remarks))


def detect_cluster(
    site: Site | None,
    *,
    partition: str | None = None,
    on_node: bool,
    options: tuple[tuple[str, str], ...] = (),
    account: str | None = None,
) -> Detected:
    """The cluster that answers here, or the box that a site names. Raises RefusedError: none answers.

    Args:
        options: of srun for ``on_node``. account: that its task is charged to where they name none; without a site
            that of the configuration.
    """
    charged = read_config().account if site is None else account
    given = {**({"account": charged} if charged and charged != NO_ACCOUNT else {}), **dict(options)}
    srun_options = tuple(f"--{name}={value}" if value else f"--{name}" for name, value in given.items())
    where, queues = (None, ()) if site is None else (clients(site), tuple(site.queues))
    return detect(where, partition=partition, on_node=srun_options if on_node else None, queues=queues)


def site_name(detected: Detected, requested: str | None) -> str:
    """The site's name: the one requested, else the cluster's, else ``detected``; plain, as names must be. Raises
    UsageError: the one requested is not plain.
    """
    if requested is not None and not PLAIN_NAME.match(requested):
        raise UsageError(f"{requested!r} cannot be a site's name", where="--name", fix=PLAIN_NAME_FIX)
    return requested or plain_name(detected.cluster.name)


def keep_detected(options: tuple[tuple[str, str], ...] = ()) -> tuple[Path, Detected]:
    """Detect this cluster anew, with a GPU node, and keep its file; one that was kept before stays as ``.before``.
    Raises RefusedError: no cluster, or no GPU node, answers.
    """
    detected = detect_cluster(None, on_node=True, options=options)
    path = loader.kept_path(site_here())
    text = draft(detected, path.stem)
    if path.exists():
        path.replace(f"{path}.before")
    loader.keep_site(path.stem, text)
    return path, detected


def write_draft(path: Path, text: str) -> tuple[Unknown, ...]:
    """Write a new site file, whole, for whom the user's umask lets read it; returns the keys that it leaves unknown.
    Raises UsageError: the file exists.
    """
    if path.exists():
        raise UsageError("the file exists, and may hold what you have filled in", where=str(path),
                         fix="use another name, or move the file away")  # fmt: skip
    paths.write_output(path, text.encode())
    return unknowns((read(path),))


def _try_every_way(user_site: UserSite) -> None:
    """Plan and render a small job in each of the site's ways: finds what only a scheduler's directives refuse."""
    recipe = read_recipe("probe").recipe
    for name in user_site.site.runtimes:
        request = Request(gpus=1, runtime=name, account=user_site.account)
        planned = plan(recipe, user_site.site, request, _IMAGES[RUNTIMES[name].image])
        render(planned, runtime(name).step(planned))
