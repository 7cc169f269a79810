"""Site files and the user's configuration: found, read once each, and checked; this machine's hardware as a site.

The configuration is ``~/.config/gpu-runner/config.yaml`` (``RUNNER_CONFIG`` overrides it) over the machine's.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from runner.core import files, ownership, paths, process, strict_yaml
from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.core.registry import Registry, T
from runner.core.strict_yaml import Document
from runner.core.text import instead
from runner.model.backends import NATIVE, RUNTIMES, SCHEDULERS, SchedulerSettings
from runner.model.image import Setup
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX
from runner.model.site import NO_NODE, NodeShape, Site, SiteFile, UserConfig
from runner.planning import placement

_FILES = Path(__file__).resolve().parent / "files"  # whatever links lead to an installation
_NOT_INHERITED = ("proven",)  # holds for one site alone
GENERIC = "slurm"  # the site to be extended: the shape of its nodes is an example
_SHAPE = ("gpus", "cores", "memory_mb")
_FROM_ONE_ON = (
    *("node.gpus", "node.cores", "node.threads_per_core", "node.memory_mb", "node.cpus_per_gpu", "walltime_s"),
    *("node.count", "max_walltime_s", "idle_gpus_s"),
)
# Without GPUs a rank is an ordinary process: as many as a DGX A100 has GPUs, or one for each CPU if there are more.
RANKS_WITHOUT_GPUS = 8
_LOGIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%\[\]+-]*\Z")


def read_config(path: Path | None = None) -> UserConfig:
    """The user's configuration; an empty one where there is no file. Raises UsageError: says file:line and key."""
    read = paths.config_files() if path is None else (path,)
    config = strict_yaml.layered(read, UserConfig, paths.check_settings)
    if path is None and paths.is_site_file(config.site):  # it counts from where it stands, not from where we are called
        file = where_configured("site").rsplit(":", 2)[0]
        site = paths.check_settings(Path(file).absolute().parent / config.site)
        return msgspec.structs.replace(config, site=str(site))
    return config


def where_configured(key: str) -> str:
    """``FILE:LINE: KEY`` of what counts in the configuration, which has the key."""
    documents = map(strict_yaml.read, filter(Path.is_file, paths.config_files()))
    return f"{next(each.marks[key,] for each in documents if (key,) in each.marks)}: {key}"


def set_value(key: str, value: str) -> Path:
    """Set a value of the user's configuration, and leave every other line of it as it is; returns its file. Raises
    UsageError: the file is not right, or has the value in more than a line.
    """
    path = paths.config_file()
    lines = strict_yaml.read(paths.check_settings(path)).text.splitlines() if path.exists() else []
    own = [at for at, line in enumerate(lines) if re.match(rf"{key}\s*:", line)] or [len(lines)]
    lines[own[0] :] = [f"{key}: {json.dumps(value, ensure_ascii=False)}", *lines[own[0] + 1 :]]
    text = "\n".join(lines) + "\n"
    made = strict_yaml.parse(text.encode("utf-8", "surrogateescape"), UserConfig, str(path))
    if getattr(made, key) != value:
        raise UsageError(f"{key} cannot be set there", where=str(path), fix=f"write it: {lines[own[0]]}")
    real = Path(os.path.realpath(paths.check_settings(path)))  # also of a link that leads nowhere
    files.make_closed(real.parent)
    files.write_private(real, text)
    return path


def names() -> tuple[str, ...]:
    """The shipped sites, by name."""
    return tuple(sorted(path.stem for path in _FILES.glob("*.yaml")))


def every_name() -> tuple[str, ...]:
    """All that can be named: the shipped sites, those beside the configuration, and those that are kept."""
    others = (*paths.configured("sites/*.yaml"), *kept_path("any").parent.glob("*.yaml"))
    return tuple(dict.fromkeys((*names(), *sorted(path.stem for path in others if PLAIN_NAME.match(path.stem)))))


def read_site(name_or_path: str) -> Site:
    """A shipped or a kept site by name, or a file by path (anything with a ``/`` or ending in ``.yaml``). Raises
    UsageError: it does not exist, or the file is invalid; says file:line and key.
    """
    return site_of(read_documents(name_or_path))


def read_documents(name_or_path: str, where: str = "--site") -> tuple[Document, ...]:
    """The file of a site and those that it extends, the nearest first; up to the one that closes a circle. Raises
    UsageError, with ``where`` it was named: it does not exist, or a file cannot be read or is not YAML; or as
    ``site_file``.
    """
    if paths.is_site_file(name_or_path):
        site_file(name_or_path, Path(), where)
    return with_bases(strict_yaml.read(_path(name_or_path, Path(), where)))


def site_file(name_or_path: str, below: Path, where: str = "--site") -> Path:
    """The file that this means for who is in ``below``. Raises UsageError: others can exchange it, and it is not named
    by a path.
    """
    file = below / name_or_path
    if os.path.lexists(file) or ownership.is_open(below):  # else there is none, as who reads it says
        paths.check_bare_name(name_or_path, file, "the site file", where, used=True)
    return file


def with_bases(document: Document) -> tuple[Document, ...]:
    """A site's document and those that it extends, as ``read_documents``. By a path one of another user leads to no
    third user's, nor to this one's: what is read there is shown.
    """
    documents = [document]
    while base := _extended(documents[-1]):
        owner, owners = documents[-1].owner, None
        path = _path(base, Path(documents[-1].name).parent, _where_extended(documents[-1]))
        if paths.is_site_file(base) and not ownership.is_first_come(Path(documents[-1].name), new=True):
            paths.check_settings(path)  # of a file that is not a stranger's itself, which the user has named
        if paths.is_site_file(base) and owner is not None and not ownership.is_trusted(owner):
            owners = (0, owner)
        if path.resolve() in {Path(each.name).resolve() for each in documents}:
            break
        documents.append(strict_yaml.read(path, owners))
    return tuple(documents)


def check_shape(documents: Sequence[Document]) -> None:
    """Refuse a site whose nodes are described by the example of the generic site alone: their shape is unknown. Raises
    UsageError: says the file and the keys.
    """
    given = {key: next((each.name for each in documents if ("node", key) in each.marks), "") for key in _SHAPE}
    missing = [f"node.{key}" for key, name in given.items() if name == str(_FILES / f"{GENERIC}.yaml")]
    if missing:
        raise UsageError(
            f"{', '.join(missing)}: not given, and no job is planned on a shape that is not known",
            where=documents[0].name,
            fix="give them in the file; on the cluster's login node "
            f"`{PROGRAM} site detect -o FILE` writes them into a new one",
        )


def site_of(documents: Sequence[Document]) -> Site:
    """The site that a file and those that it extends describe, the nearest first. Raises UsageError: they are invalid,
    or extend each other in a circle; says file:line and key.
    """
    path = Path(documents[0].name)
    if base := _extended(documents[-1]):
        fix = "a site cannot extend itself"
        raise UsageError(f"{base} extends this file", where=_where_extended(documents[-1]), fix=fix)
    merged = documents[-1]
    for document in reversed(documents[:-1]):
        merged = _over(document, merged)
    site = _typed(merged)
    its = next((each for each in documents if ("published",) in each.marks), documents[0])
    if Path(its.name).parent != _FILES and its.owner is not None and not ownership.is_trusted(its.owner):
        site = msgspec.structs.replace(site, published="")  # a stranger's file starts no program of this user's PATH
    if SCHEDULERS[site.scheduler].nodes == "this-machine" and site.node == NO_NODE:
        site = fit_to_machine(site, this_machine())
    for name, ranks in site.ssh.hosts.items():
        placement.check_host(name, ranks, f"{path}: ssh.hosts")
    if site.ssh.config and not site.ssh.config.startswith("/"):
        raise UsageError(f"{site.ssh.config!r} is not absolute", where=f"{path}: ssh.config", fix="start it with /")
    if SCHEDULERS[site.scheduler].nodes == "listed":
        site = placement.with_hosts(site)
    _check(site, path)
    return site


def _typed(document: Document) -> Site:
    value = document.value
    name = value.get("scheduler") if isinstance(value, dict) else None
    if not isinstance(name, str):  # says what is wrong
        return Site(**msgspec.structs.asdict(strict_yaml.typed(document, SiteFile)))
    scheduler = _backend(SCHEDULERS, name, document, "scheduler")
    keys = set(SiteFile.__struct_fields__)
    own, others = scheduler.section, {key for key in value if key not in keys} - {scheduler.section}
    if others:  # of schedulers that a file extending this one may have, and right in any case
        sections = {facts.section: facts.settings for facts in SCHEDULERS.values() if facts.section}
        others &= sections.keys()
        for key in others:
            _settings(document, key, sections[key])
    settings = _settings(document, own, scheduler.settings) if own else scheduler.settings()
    file = strict_yaml.typed(document, SiteFile, apart={own, *others} - {""})
    for index, runtime in enumerate(file.runtimes):
        _backend(RUNTIMES, runtime, document, "runtimes", index)
    for runtime in file.ways:
        _backend(RUNTIMES, runtime, document, "ways", runtime)
    return Site(**msgspec.structs.asdict(file), scheduler_settings=msgspec.to_builtins(settings))


def _backend(known: Registry[T], name: str, document: Document, *path: str | int) -> T:
    """The facts of the backend that a file names at that path."""
    try:
        return known[name]
    except UsageError as error:
        key = ".".join(each for each in path if isinstance(each, str))
        raise UsageError(error.what, where=f"{document.marks[path]}: {key}", fix=error.fix) from None


def _settings(document: Document, section: str, kind: type[SchedulerSettings]) -> SchedulerSettings:
    settings = strict_yaml.typed(document, kind, at=section)
    try:
        settings.check()
    except UsageError as error:
        raise UsageError(error.what, where=f"{document.name}: {section}.{error.where}", fix=error.fix) from None
    return settings


def _path(name_or_path: str, below: Path, where: str) -> Path:
    if paths.is_site_file(name_or_path):
        return below / name_or_path
    if PLAIN_NAME.match(name_or_path):
        if (shipped := _FILES / f"{name_or_path}.yaml").is_file():
            return shipped
        for file in (*paths.configured(f"sites/{name_or_path}.yaml"), kept_path(name_or_path)):
            if file.is_file():
                return paths.check_settings(file)
    known = every_name()
    what = f"no site named {name_or_path!r}"
    fix = instead(name_or_path, known, f"sites: {', '.join(known)}, or the path of a site file")
    raise UsageError(what, where=where, fix=fix)


def _over(document: Document, base: Document) -> Document:
    """The document laid over the one that it extends."""
    if not isinstance(base.value, dict):
        return document.over(base)
    inherited = {key: value for key, value in base.value.items() if key not in _NOT_INHERITED}
    sources = inherited.get("sources")
    if isinstance(sources, dict):  # of a value that this file gives anew, the old source says nothing
        inherited["sources"] = {
            key: source for key, source in sources.items() if tuple(key.split(".")) not in document.marks
        }
    runtimes, ways = document.value.get("runtimes"), inherited.get("ways")
    if isinstance(runtimes, list) and isinstance(ways, dict):  # of a runtime that this file drops, nothing is left
        inherited["ways"] = {name: way for name, way in ways.items() if name in runtimes}
    return document.over(replace(base, value=inherited))


def _extended(document: Document) -> str:
    """The site that a document extends; empty for none."""
    base = document.value.get("extends") if isinstance(document.value, dict) else None
    return base if isinstance(base, str) else ""


def _where_extended(document: Document) -> str:
    return f"{document.marks['extends',]}: extends"


def _check(site: Site, path: Path) -> None:
    if site.node == NO_NODE:
        raise UsageError("missing", where=f"{path}: node", fix="describe one node: cores, memory_mb, gpus")
    for key in _FROM_ONE_ON:
        value = attrgetter(key)(site)
        if value is not None and value < 1:
            raise UsageError(f"{value} is not a possible value", where=f"{path}: {key}", fix="use one or more")
    if not PLAIN_NAME.match(site.name):
        raise UsageError(f"{site.name!r} cannot be a site's name", where=f"{path}: name", fix=PLAIN_NAME_FIX)
    if site.login and not _LOGIN.match(site.login):
        raise UsageError(
            f"{site.login!r} is no login", where=f"{path}: login", fix="write USER@HOST, or a host of ssh's"
        )
    if not site.runtimes:
        raise UsageError("no runtime is given", where=f"{path}: runtimes")
    for way, facts in site.ways.items():
        if way not in site.runtimes:
            fix = instead(way, site.runtimes, f"runtimes: {', '.join(site.runtimes)}")
            raise UsageError(f"{way!r} is not one of its runtimes", where=f"{path}: ways", fix=fix)
        if "/" in facts.environment and not facts.environment.startswith("/"):  # it may be there where one calls from
            what = f"{facts.environment!r} is neither a name nor absolute"
            raise UsageError(what, where=f"{path}: ways.{way}.environment", fix="start it with /")
        if way != NATIVE and (facts.setup != Setup() or facts.environment):
            fix = "write lines that make a container runtime available as `load`"
            raise UsageError("is only for the way `native`", where=f"{path}: ways.{way}.setup", fix=fix)


def kept_path(name: str) -> Path:
    """Where the file of a detected site is kept under that name; it may not exist."""
    return paths.state(f"sites/{name}.yaml")


def keep_site(name: str, text: str) -> None:
    """Keep a detected site file, whole; only its owner may read it. Raises OSError where it cannot be written."""
    kept_path(name).parent.mkdir(parents=True, exist_ok=True)
    files.write_private(kept_path(name), text)


def kept_origin(text: str) -> str:
    """Of which scheduler and day the file is, as its first line has it; empty if that line has been changed."""
    origin = re.match(r"# Written by `site detect` on (\S+), from what (.+?) and its hosts say", text)
    return f"{origin[2]} on {origin[1]}" if origin else ""


MARK = "# UNKNOWN"
DEFAULT = "# DEFAULT"
CONTINUED = "#   "  # starts each further line of a remark
_MARKED = re.compile(
    rf"^[ \t]*({MARK}|{DEFAULT})[ \t]+([A-Za-z0-9_.-]+)[ \t]*:?[ \t]*(.*(?:\n[ \t]*{CONTINUED}[ \t]*\S.*)*)$",
    re.MULTILINE,
)
_NEXT_LINE = re.compile(rf"\s*\n[ \t]*{CONTINUED}[ \t]*")


@dataclass(frozen=True)
class Unknown:
    """One key: its dotted path, ``FILE:LINE`` of its comment, how to find its value out, and whether jobs need it."""

    key: str
    where: str
    how: str
    needed: bool = True


def unknowns(documents: Iterable[Document]) -> tuple[Unknown, ...]:
    """All that files leave unknown, in their order.

    Args:
        documents: a site's file and those that it extends, the nearest first: a key that one of them marks as unknown
            is known where it, or one that extends it, gives the key.
    """
    given: set[tuple[str | int, ...]] = set()
    entries: list[Unknown] = []
    for document in documents:
        given |= set(document.marks)
        for match in _MARKED.finditer(document.text):
            mark, key, how = match.groups()
            line = document.text.count("\n", 0, match.start()) + 1
            if tuple(key.split(".")) not in given:
                entries.append(Unknown(key, f"{document.name}:{line}", _NEXT_LINE.sub(" ", how), mark == MARK))
    return tuple(entries)


@dataclass(frozen=True)
class Machine:
    """One machine.

    Attributes:
        cpus: hardware threads that this process may use.
        memory_mb: all of it, MiB.
        gpus: NVIDIA GPUs that this user may open and that CUDA would show.
    """

    cpus: int
    memory_mb: int
    gpus: int


def this_machine(root: Path = Path("/")) -> Machine:
    """This machine, from /proc and /dev below ``root``, and what its driver lists."""
    gpus = sum(gpu["opens"] for gpu in _driver(root)["gpus"])
    memory = re.search(r"MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        memory_mb=int(memory[1]) // 1024 if memory else 1,
        gpus=gpus if visible is None else min(gpus, len([entry for entry in visible.split(",") if entry.strip()])),
    )


def gpu_uuids(root: Path = Path("/")) -> frozenset[str]:
    """The UUIDs of this machine's NVIDIA GPUs, as the driver lists them, visible to CUDA or not."""
    return frozenset(gpu["uuid"] for gpu in _driver(root)["gpus"] if gpu["uuid"])


def gpu_driver(root: Path = Path("/")) -> str:
    """The version of NVIDIA's driver, ``535.104.05``; empty where there is none."""
    return str(_driver(root)["driver"])


@cache
def _driver(root: Path) -> dict[str, Any]:
    """The driver and its GPUs, as jobs see them: by the launcher itself (gpu_runner_inside.launcher.binding)."""
    if not any((root / place).exists() for place in ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")):
        return {"driver": "", "gpus": []}
    code = "import sys; sys.path.insert(0, sys.argv[1]); from gpu_runner_inside.launcher.binding import main; "
    modules = paths.share("recipes") / "lib/modules"
    argv = [sys.executable, "-I", "-S", "-c", f"{code}main(sys.argv[2])", str(modules), str(root)]
    return dict(json.loads(process.run(argv, timeout_s=120.0).out))


def fit_to_machine(site: Site, machine: Machine) -> Site:
    """The site with this machine as its only node; without GPUs, also with the site's values for that case."""
    node = NodeShape(
        cores=machine.cpus,
        memory_mb=machine.memory_mb,
        gpus=machine.gpus or max(RANKS_WITHOUT_GPUS, machine.cpus),
        gpu_model="NVIDIA GPU" if machine.gpus else "rank on CPUs",
        count=1,
    )
    if machine.gpus:
        return msgspec.structs.replace(site, node=node)
    bare = site.without_gpus
    return msgspec.structs.replace(
        site,
        node=node,
        device="cpu",
        demonstration=bare.demonstration,
        image_tags={**site.image_tags, **bare.image_tags},
        env={**site.env, **bare.env},
        options={**site.options, **bare.options},
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
