"""Find and read a site file, and those that it extends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from runner import strict_yaml
from runner.errors import UsageError
from runner.model.environment import Setup
from runner.model.names import PLAIN_NAME, PLAIN_NAME_FIX
from runner.model.site import NO_NODE, Site
from runner.planning import hosts
from runner.render import pbs, sbatch
from runner.sites.machine import fitted, observe
from runner.strict_yaml import Document
from runner.suggest import instead

_FILES = Path(__file__).parent / "files"
_OF_ITS_OWN = ("proven",)  # what a file says of its site alone, and none that extends it takes over


def names() -> tuple[str, ...]:
    """The shipped sites, by name."""
    return tuple(sorted(path.stem for path in _FILES.glob("*.yaml")))


def read_site(name_or_path: str) -> Site:
    """A shipped site by name, or a file by path (anything with a ``/`` or ending in ``.yaml``).

    Raises:
        UsageError: there is none, or the file is not right; says file:line and key.
    """
    path = _path(name_or_path, Path(), "--site")
    site = strict_yaml.typed(_with_its_bases(path, ()), Site)
    if site.scheduler == "local" and site.node == NO_NODE:
        site = fitted(site, observe())
    for name, ranks in site.ssh.hosts.items():
        hosts.valid(name, ranks, f"{path}: ssh.hosts")
    if site.ssh.config and not site.ssh.config.startswith("/"):
        raise UsageError(f"{site.ssh.config!r} is not absolute", where=f"{path}: ssh.config", fix="start it with /")
    site = hosts.shaped(site)
    _check(site, path)
    return site


def files_of(name_or_path: str) -> tuple[Path, ...]:
    """The file of a site, and those that it extends, the nearest first.

    Raises:
        UsageError: there is none, or one cannot be read.
    """
    path = _path(name_or_path, Path(), "--site")
    found: dict[Path, Path] = {}  # by where it really is: a circle is read_site's to refuse
    while path.resolve() not in found:
        found[path.resolve()] = path
        base = _extended(strict_yaml.read(path))
        path = _path(base, path.parent, f"{path}: extends") if base else path
    return tuple(found.values())


def _path(name_or_path: str, below: Path, where: str) -> Path:
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        return below / name_or_path
    if name_or_path in names():
        return _FILES / f"{name_or_path}.yaml"
    raise UsageError(
        f"no site named {name_or_path!r}",
        where=where,
        fix=instead(name_or_path, names(), f"sites: {', '.join(names())}, or the path of a site file"),
    )


def _with_its_bases(path: Path, above: tuple[Path, ...]) -> Document:
    """The document, laid over the one that it extends; ``above``: those that extend it."""
    document = strict_yaml.read(path)
    base = _extended(document)
    if not base:
        return document
    where = f"{document.marks['extends',]}: extends"
    found = _path(base, path.parent, where)
    if found.resolve() in (path.resolve(), *(file.resolve() for file in above)):
        raise UsageError(f"{base} extends this file", where=where, fix="a site cannot extend itself")
    below = _with_its_bases(found, (*above, path))
    for key in _OF_ITS_OWN:
        below.value.pop(key, None)
    kept, ways = document.value.get("runtimes"), below.value.get("ways")
    if isinstance(kept, list) and isinstance(ways, dict):  # of a runtime that this file does without, nothing is left
        below.value["ways"] = {name: way for name, way in ways.items() if name in kept}
    return document.over(below)


def _extended(document: Document) -> str:
    """What a document extends; empty where that is nothing."""
    base = document.value.get("extends") if isinstance(document.value, dict) else None
    return base if isinstance(base, str) else ""


def _check(site: Site, path: Path) -> None:
    if site.node == NO_NODE:
        raise UsageError("missing", where=f"{path}: node", fix="say what one node has: cores, memory_mb, gpus")
    for key, value in (
        ("node.gpus", site.node.gpus),
        ("node.cores", site.node.cores),
        ("node.threads_per_core", site.node.threads_per_core),
        ("node.memory_mb", site.node.memory_mb),
        ("node.cpus_per_gpu", site.node.cpus_per_gpu),
        ("walltime_s", site.walltime_s),
        ("node.count", site.node.count),
        ("max_walltime_s", site.max_walltime_s),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{value} is not a possible value", where=f"{path}: {key}", fix="use one or more")
    if not PLAIN_NAME.match(site.name):
        raise UsageError(f"{site.name!r} cannot be a site's name", where=f"{path}: name", fix=PLAIN_NAME_FIX)
    if not site.runtimes:
        raise UsageError("names no runtime", where=f"{path}: runtimes")
    if site.queue is not None and site.queues and site.queue not in site.queues:
        fix = instead(site.queue, site.queues, f"queues: {', '.join(site.queues)}")
        raise UsageError(f"no queue {site.queue!r} among its queues", where=f"{path}: queue", fix=fix)
    for way, facts in site.ways.items():
        if way not in site.runtimes:
            fix = instead(way, site.runtimes, f"runtimes: {', '.join(site.runtimes)}")
            raise UsageError(f"{way!r} is none of its runtimes", where=f"{path}: ways", fix=fix)
        if way != "native" and (facts.setup != Setup() or facts.environment):
            fix = "write lines that make a container runtime available as `load`"
            raise UsageError("is for the way `native` alone", where=f"{path}: ways.{way}.setup", fix=fix)
    _check_directives(path, "slurm.directives", site.slurm.directives, sbatch.directive)
    _check_directives(path, "pbs.directives", site.pbs.directives, pbs.directive)
    _check_directives(path, "pbs.resources", site.pbs.resources, pbs.directive)


def _check_directives(
    path: Path, key: str, directives: Mapping[str, str], directive: Callable[[str, str], str]
) -> None:
    for option, text in directives.items():
        try:
            directive(option, text)
        except UsageError as error:
            raise UsageError(error.what, where=f"{path}: {key}.{option}", fix=error.fix) from None
