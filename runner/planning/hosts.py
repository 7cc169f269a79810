"""Nodes by a list of names: in the words of horovodrun, mpirun and Hydra, and which ranks go where. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from runner.errors import RefusedError, UsageError
from runner.model.plan import ListedHosts
from runner.model.schedulers import SCHEDULERS
from runner.model.site import NO_NODE, NodeShape, Site
from runner.planning.placement import spread

Host = tuple[str, int]

_NAME = re.compile(r"([A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9_][A-Za-z0-9._-]*\Z", re.ASCII)
_SLOTS = re.compile(r"\d{1,5}\Z", re.ASCII)
_FORMS = "NAME:8,NAME:8, or lines of a host file: NAME slots=8 (horovodrun, mpirun), NAME:8 (Hydra)"


def parse(text: str, where: str = "--hosts") -> tuple[Host, ...]:
    """``nodea:8,nodeb:8`` as names and ranks. A name without a number has room for one rank each time that it stands
    there, as for ``mpirun --host``.

    Raises:
        UsageError: a name or number that cannot be taken; says which.
    """
    return _gathered(_entry(part.strip(), where) for part in text.split(",") if part.strip())


def parse_file(text: str, path: str) -> tuple[Host, ...]:
    """A host file: lines of ``NAME``, ``NAME slots=8 [max_slots=8]`` or ``NAME:8``; ``#`` begins a comment.

    Raises:
        UsageError: a line that cannot be taken; says which.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if words:
            found.append(_line(words, f"{path}:{number}"))
    return _gathered(found)


def _line(words: list[str], where: str) -> Host:
    name, ranks = _entry(words[0], where)
    said = {}
    for word in words[1:]:
        key, _, value = word.replace("-", "_").partition("=")
        if key not in ("slots", "max_slots") or not _SLOTS.match(value):
            raise UsageError(f"{word!r} is nothing that a host file says here", where=where, fix=_FORMS)
        said[key] = int(value)
    ranks = said.get("slots", said.get("max_slots", ranks))
    return valid(name, min(ranks, said.get("max_slots", ranks)), where)


def _entry(text: str, where: str) -> Host:
    name, colon, number = text.partition(":")
    if colon and not _SLOTS.match(number):
        raise UsageError(f"{text!r} is no host with its number of ranks", where=where, fix=_FORMS)
    return valid(name, int(number) if colon else 1, where)


def valid(name: str, ranks: int, where: str) -> Host:
    """The host, whose name ssh takes for a name and for nothing else.

    Raises:
        UsageError: it does not, or there is no rank for it.
    """
    if not _NAME.match(name):
        fix = "use the name by which `ssh NAME` reaches it; all else belongs into ssh's configuration"
        raise UsageError(f"{name!r} is no name of a host", where=where, fix=fix)
    if ranks < 1:
        raise UsageError(f"{name} has room for {ranks} ranks", where=where, fix="give it one or more, or leave it out")
    return name, ranks


def _gathered(hosts: Iterable[Host]) -> tuple[Host, ...]:
    room: dict[str, int] = {}
    for name, ranks in hosts:
        room[name] = room.get(name, 0) + ranks
    return tuple(room.items())


def shaped(site: Site, asked: tuple[Host, ...] = ()) -> Site:
    """The site with the hosts that are asked for, if any are, and its node in the shape of the largest of its hosts.

    Raises:
        UsageError: hosts are asked for where a scheduler gives out the nodes.
    """
    if SCHEDULERS[site.scheduler].nodes != "listed":
        if asked:
            raise UsageError(
                f"the nodes of {site.name} are given out by {site.scheduler}",
                where="--hosts",
                fix="leave it out, or use --site hosts",
            )
        return site
    hosts = dict(asked) or site.ssh.hosts
    most = max(hosts.values(), default=1)
    known = site.node if site.node != NO_NODE else NodeShape(cores=most, memory_mb=1, gpus=most)
    node = msgspec.structs.replace(known, gpus=most, cores=max(known.cores, most), count=max(1, len(hosts)))
    return msgspec.structs.replace(site, node=node, ssh=msgspec.structs.replace(site.ssh, hosts=hosts))


def place(gpus: int, nodes: int | None, hosts: Mapping[str, int]) -> tuple[int, ...]:
    """Ranks of each host, in the list's order: of the fewest hosts from its beginning that hold them, or of ``nodes``.

    Raises:
        UsageError: no hosts are named, a number below one, or more nodes than ranks.
        RefusedError: the hosts have not so much room.
    """
    room = tuple(hosts.values())
    if not room:
        fix = "--hosts nodea:8,nodeb:8, --hostfile FILE, or `ssh: {hosts: {nodea: 8}}` in a site file"
        raise UsageError("no hosts are named", where="--site hosts", fix=fix)
    for option, number in (("--gpus", gpus), ("--nodes", nodes)):
        if number is not None and number < 1:
            raise UsageError(f"{number} cannot be asked for", where=option, fix="ask for one or more")
    if nodes is not None and nodes > gpus:
        fix = f"ask for {gpus} nodes or fewer"
        raise UsageError(f"{gpus} GPUs cannot be spread over {nodes} nodes", where="--nodes", fix=fix)
    if nodes is None:
        nodes = next((count for count in range(1, len(room) + 1) if sum(room[:count]) >= gpus), len(room))
    if nodes > len(room) or sum(room[:nodes]) < gpus:
        raise RefusedError(
            f"{gpus} GPUs on {nodes} of the hosts that are named do not fit: {_shown(hosts)}",
            where="--hosts",
            fix="name more hosts, or more room on them (NAME:8), or ask for less",
        )
    return spread(gpus, room[:nodes])


def chosen(site: Site, nodes: int, *, program: str = "", modules: tuple[str, ...] = ()) -> ListedHosts | None:
    """The first hosts of the site's list; None where a scheduler gives out the nodes.

    Args:
        program: what each must have in PATH.
        modules: what the ``python3`` of each must be able to import.
    """
    if SCHEDULERS[site.scheduler].nodes != "listed":
        return None
    programs = (program,) if program else ()
    return ListedHosts(tuple(site.ssh.hosts)[:nodes], site.ssh.config, programs, modules)


def _shown(hosts: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{ranks}" for name, ranks in hosts.items())
