"""How many ranks on which node, in which queue; lists of hosts as horovodrun, mpirun and Hydra write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from runner.core.errors import RefusedError, UsageError
from runner.core.text import counted, gpus_text
from runner.model.backends import SCHEDULERS
from runner.model.job import Allocation
from runner.model.plan import StepNodes
from runner.model.request import Request
from runner.model.site import NO_NODE, NodeShape, Queue, Site

MOST_NODES = 10_000  # more than any cluster has today


def queue_misfit(queue: Queue, gpus: int, nodes: int, walltime_s: int) -> str:
    """Why a job does not fit into a queue; empty if it does."""
    of_nodes = next((longest for most, longest in queue.walltimes_s if nodes <= most), None)
    limits = (
        (nodes, queue.min_nodes, queue.max_nodes, "takes", "nodes"),
        (gpus, 0, queue.max_gpus, "takes", "GPUs"),
        (walltime_s, 0, of_nodes, f"takes jobs of {counted(nodes, 'node')} for", "s"),
        (walltime_s, queue.min_walltime_s, queue.max_walltime_s, "takes jobs of", "s"),
    )
    for requested, least, most, takes, unit in limits:
        if requested < least:
            return f"{takes} at least {least} {unit}, and {requested} are requested"
        if most is not None and requested > most:
            return f"{takes} at most {most} {unit}, and {requested} are requested"
    return ""


def fitting_queue(queues: Mapping[str, Queue], gpus: int, nodes: int, walltime_s: int) -> str | None:
    """The first queue that takes such a job without being named; None if there is none."""
    for name, queue in queues.items():
        if not queue.by_name and not queue_misfit(queue, gpus, nodes, walltime_s):
            return name
    return None


def choose_queue(site: Site, request: Request, nodes: int, walltime_s: int) -> str | None:
    """The queue of a job: the user's, else the site's, else the first that fits, else the first of all (which a check
    will refuse); None leaves it to the scheduler. Of a step the first that is for interactive work comes before.
    """
    size = (request.gpus, nodes, walltime_s)
    fitting = (name for name, queue in site.queues.items() if queue.interactive and not queue_misfit(queue, *size))
    of_step = next(fitting, None) if request.step else None
    chosen = request.queue or of_step or site.queue or fitting_queue(site.queues, *size)
    return chosen or next(iter(site.queues), None)


def with_queue(site: Site, request: Request) -> tuple[Site, Request]:
    """The site with the nodes of the queue that is requested, by its name or by the type of its GPUs; and the request,
    without a type that the queue decides. Raises UsageError: the type is that of another queue.
    """
    wanted = (request.gpu_type or "").lower()
    of_type = next((name for name, queue in site.queues.items() if wanted and queue.gpu_type == wanted), None)
    name = request.queue or of_type or site.queue
    queue = site.queues.get(name or "", Queue())
    if of_type is not None and queue.gpu_type not in ("", wanted):
        what = f"the GPUs of {name} are {queue.gpu_type}; {wanted} are in {of_type}"
        raise UsageError(what, where="--gpu-type and --queue", fix=f"leave out --queue, or name {of_type}")
    if wanted and queue.gpu_type == wanted:
        request = msgspec.structs.replace(request, queue=name, gpu_type=None)
    node, hardware = queue.node or site.node, queue.hardware or site.hardware
    return msgspec.structs.replace(site, node=node, hardware=hardware), request


def choose_nodes(allocation: Allocation, tasks_per_node: Sequence[int], gpus: int, cpus_per_task: int) -> StepNodes:
    """For each node of the job the first free node of the allocation that has what it needs.

    Args:
        gpus: of every node.

    Raises RefusedError: the job does not fit; says what it needs and what the allocation has.
    """
    free = list(allocation.nodes)
    chosen: list[str] = []
    for tasks in tasks_per_node:
        node = next((node for node in free if node.gpus >= gpus and node.cpus >= tasks * cpus_per_task), None)
        if node is None:
            needed = f"{gpus_text(gpus)} and {counted(max(tasks_per_node) * cpus_per_task, 'CPU')} each"
            has = (
                f"{each.name} with {gpus_text(each.gpus)} and {counted(each.cpus, 'CPU')}" for each in allocation.nodes
            )
            raise RefusedError(
                f"a step of {counted(len(tasks_per_node), 'node')} with {needed} does not fit the existing allocation: "
                + ", ".join(has),
                where=f"job {allocation.job_id}",
                fix="request less (--gpus, --nodes), or get a larger allocation",
            )
        free.remove(node)
        chosen.append(node.name)
    return StepNodes(tuple(chosen), overlap=allocation.in_step, job_id=allocation.job_id)


def place(gpus: int, nodes: int | None, shape: NodeShape) -> tuple[int, ...]:
    """Ranks per node, one rank per GPU, in node order.

    The fewest nodes that hold them, or ``nodes``; an equal split where it divides, else full nodes first with at least
    one rank on every node. Raises UsageError: a number below one, or more nodes than ranks; RefusedError: more than the
    site's nodes hold.
    """
    if gpus < 1:
        raise UsageError(f"{gpus} GPUs are not possible", where="--gpus", fix="request one or more")
    if nodes is not None and nodes < 1:
        raise UsageError(f"{nodes} nodes are not possible", where="--nodes", fix="request one or more")
    _check_spread(gpus, nodes)
    needed = nodes if nodes is not None else -(-gpus // shape.gpus)
    if gpus > needed * shape.gpus:
        what = f"{gpus} GPUs do not fit on {counted(needed, 'node')} of {shape.gpus}"
        raise RefusedError(what, where="--nodes", fix=f"request {counted(-(-gpus // shape.gpus), 'node')} or more")
    if shape.count is not None and needed > shape.count:
        all_gpus = gpus_text(shape.count * shape.gpus)
        what = f"{gpus} GPUs need {needed} nodes; this site has {shape.count} ({all_gpus})"
        raise RefusedError(what, where="--gpus", fix=f"request {all_gpus} or fewer")
    if needed > MOST_NODES:
        what = f"{gpus} GPUs need more than {MOST_NODES} nodes of {shape.gpus}"
        raise RefusedError(what, where="--gpus", fix="request fewer")
    return _spread(gpus, (shape.gpus,) * needed)


def place_on_hosts(gpus: int, nodes: int | None, hosts: Mapping[str, int]) -> tuple[int, ...]:
    """Ranks of each host, in the list's order: of the fewest hosts from its beginning that hold them, or of ``nodes``.
    Raises UsageError: no hosts are given, a number below one, or more nodes than ranks; RefusedError: the hosts do not
    have enough room.
    """
    room = tuple(hosts.values())
    if not room:
        fix = "--hosts nodea:8,nodeb:8, --hostfile FILE, or `ssh: {hosts: {nodea: 8}}` in a site file"
        raise UsageError("no hosts are given", where="--site hosts", fix=fix)
    for option, number in (("--gpus", gpus), ("--nodes", nodes)):
        if number is not None and number < 1:
            raise UsageError(f"{number} is not possible", where=option, fix="request one or more")
    _check_spread(gpus, nodes)
    if nodes is None:
        nodes = next((count for count in range(1, len(room) + 1) if sum(room[:count]) >= gpus), len(room))
    if nodes > len(room) or sum(room[:nodes]) < gpus:
        listed = ",".join(f"{name}:{ranks}" for name, ranks in hosts.items())
        what = f"{gpus} GPUs do not fit on {nodes} of these hosts: {listed}"
        fix = "list more hosts, or more room on them (NAME:8), or request fewer GPUs"
        raise RefusedError(what, where="--hosts", fix=fix)
    return _spread(gpus, room[:nodes])


def _check_spread(gpus: int, nodes: int | None) -> None:
    if nodes is not None and nodes > gpus:
        fix = f"request {counted(gpus, 'node')} or fewer"
        raise UsageError(f"{gpus_text(gpus)} cannot be spread over {nodes} nodes", where="--nodes", fix=fix)


def _spread(gpus: int, room: Sequence[int]) -> tuple[int, ...]:
    """Ranks of each node, whose rooms together hold them all."""
    equal, rest = divmod(gpus, len(room))
    if not rest and equal <= min(room):
        return (equal,) * len(room)
    placed: list[int] = []
    for after, most in zip(range(len(room) - 1, -1, -1), room, strict=True):
        placed.append(min(most, gpus - sum(placed) - after))
    return tuple(placed)


Host = tuple[str, int]

_NAME = re.compile(r"([A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9_][A-Za-z0-9._-]*\Z", re.ASCII)
_SLOTS = re.compile(r"\d{1,5}\Z", re.ASCII)
_FORMS = "NAME:8,NAME:8, or lines of a host file: NAME slots=8 (horovodrun, mpirun), NAME:8 (Hydra)"


def parse_hosts(text: str, where: str = "--hosts") -> tuple[Host, ...]:
    """``nodea:8,nodeb:8`` as names and ranks. A name without a number has room for one rank for each time that it
    occurs, as in ``mpirun --host``. Raises UsageError: an invalid name or number; says which.
    """
    return _gathered(_entry(part.strip(), where) for part in text.split(",") if part.strip())


def parse_host_file(text: str, path: str) -> tuple[Host, ...]:
    """A host file: lines of ``NAME``, ``NAME slots=8 [max_slots=8]`` or ``NAME:8``; ``#`` begins a comment. Raises
    UsageError: an invalid line; says which.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if fields:
            hosts.append(_line(fields, f"{path}:{number}"))
    return _gathered(hosts)


def _line(fields: list[str], where: str) -> Host:
    name, ranks = _entry(fields[0], where)
    slots = {}
    for field in fields[1:]:
        key, _, value = field.replace("-", "_").partition("=")
        if key not in ("slots", "max_slots") or not _SLOTS.match(value):
            raise UsageError(f"{field!r} has no meaning in a host file", where=where, fix=_FORMS)
        slots[key] = int(value)
    ranks = slots.get("slots", slots.get("max_slots", ranks))
    return check_host(name, min(ranks, slots.get("max_slots", ranks)), where)


def _entry(text: str, where: str) -> Host:
    name, colon, number = text.partition(":")
    if colon and not _SLOTS.match(number):
        raise UsageError(f"{text!r} is not a host with its number of ranks", where=where, fix=_FORMS)
    return check_host(name, int(number) if colon else 1, where)


def check_host(name: str, ranks: int, where: str) -> Host:
    """The host, if ssh can take its name for nothing but a name. Raises UsageError: ssh could take it for an option or
    a command, or it has no room for a rank.
    """
    if not _NAME.match(name):
        fix = "use a name that `ssh NAME` accepts; put all other settings in ssh's configuration"
        raise UsageError(f"{name!r} is not a host name", where=where, fix=fix)
    if ranks < 1:
        raise UsageError(f"{name} has room for {ranks} ranks", where=where, fix="give it one or more, or leave it out")
    return name, ranks


def _gathered(hosts: Iterable[Host]) -> tuple[Host, ...]:
    room: dict[str, int] = {}
    for name, ranks in hosts:
        room[name] = room.get(name, 0) + ranks
    return tuple(room.items())


def with_hosts(site: Site, requested: tuple[Host, ...] = ()) -> Site:
    """The site with the requested hosts, if any, and its node in the shape of its largest host. Raises UsageError:
    hosts are requested where a scheduler allocates the nodes.
    """
    nodes = SCHEDULERS[site.scheduler].nodes
    if nodes != "listed":
        if requested:
            here = f"jobs of the site {site.name} run on this machine only"
            what = here if nodes == "this-machine" else f"{site.scheduler} allocates the nodes of {site.name}"
            raise UsageError(what, where="--hosts", fix="leave out --hosts, or use --site hosts")
        return site
    hosts = dict(requested) or site.ssh.hosts
    most = max(hosts.values(), default=1)
    known = site.node if site.node != NO_NODE else NodeShape(cores=most, memory_mb=1, gpus=most)
    node = msgspec.structs.replace(known, gpus=most, cores=max(known.cores, most), count=max(1, len(hosts)))
    return msgspec.structs.replace(site, node=node, ssh=msgspec.structs.replace(site.ssh, hosts=hosts))
