"""The reference of site files (``docs/sites.md``), generated from the structs that they are read into."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.image import Activate, Setup
from runner.model.request import Mount
from runner.model.site import (
    Fabric,
    Hardware,
    Home,
    MpiFacts,
    NodeShape,
    Queue,
    RuntimeAtSite,
    Scratch,
    SiteFile,
    SshFacts,
)

_HEAD = """\
# Site files

A site is one YAML file: a shipped one (`gpu-runner site list`), or your own, by its path. On a cluster's login node,
`gpu-runner site detect -o ours.yaml` writes one, with the source of each fact; `--on-node` also asks a GPU node. A
fact that jobs need and that could not be detected appears as `# UNKNOWN key: how to find out`; `gpu-runner site check
ours.yaml` refuses the file (exit 2) until you give each such key or delete its line. `# DEFAULT key` is a warning.
Then it tries a script of every way, and compares the file with the live cluster (exit 3 if they differ).

Your file may extend a shipped one and give only what differs. Unknown and duplicate keys, tags and aliases are
refused, with the line and the nearest valid key:

    name: ours
    description: "Our cluster"
    extends: slurm
    runtimes: [apptainer]
    node: {gpus: 8, gpu_type: a100, cores: 64, memory_mb: 1000000}

Your own values go into `~/.config/gpu-runner/config.yaml` (`RUNNER_CONFIG` names another file, by its whole path;
`gpu-runner site set account m1234` writes a line); options of a job override them. What `gpu-runner/config.yaml` in
`XDG_CONFIG_DIRS` and in `/etc` says for the users of a machine is below them. Files in `sites/`, and folders in
`recipes/`, beside each are known by name.

    site: perlmutter               # the default of --site
    account: m1234
    sites:
      perlmutter: {scratch: /pscratch/sd/e/elvis}
    registries:                    # another host that gives out a registry's tokens (docs/security.md)
      registry.example.org: {token_service: auth.example.org}

Without `--site`, `RUNNER_SITE` or `site` there, jobs go to the box if it is up, else to the Slurm or PBS that answers
(`--site slurm` means the same). It is detected once, without a GPU node; its file is kept as
`~/.local/state/gpu-runner/sites/CLUSTER.yaml` (`RUNNER_STATE` names another directory). Correct it there, or remove
it to detect anew; `site detect --on-node --keep` writes it anew. Partitions without GPUs, or closed to you, are left
out. If no scheduler answers, jobs are refused (exit 2 if there is none, 3 if it does not answer).

This page is the output of `gpu-runner site reference`. A key that is not required may be left out.
"""

_SECTIONS: tuple[tuple[str, Any], ...] = (
    ("The file", SiteFile),
    ("`node`", NodeShape),
    ("`hardware`", Hardware),
    ("`queues`: one entry", Queue),
    ("`ways`: one entry", RuntimeAtSite),
    ("`mounts` of a way: one entry", Mount),
    ("`setup` of the way `native`", Setup),
    ("`activate` of a setup", Activate),
    *((f"`{facts.section}`", facts.settings) for facts in SCHEDULERS.values() if facts.section),
    ("`ssh`", SshFacts),
    ("`mpi`", MpiFacts),
    ("`home`", Home),
    ("`scratch`", Scratch),
    ("`fabric`", Fabric),
)


def reference() -> str:
    """The whole text, Markdown."""
    return "\n".join([_HEAD, *(_section(title, kind) for title, kind in _SECTIONS), *_runtimes(), *_schedulers()])


def _runtimes() -> Iterator[str]:
    """A line for each runtime that a site can name."""
    yield from (
        "## Runtimes",
        "",
        "What can stand in `runtimes`, with the form of its images. A path that it cannot mount is refused.",
        "",
    )
    for name, facts in RUNTIMES.items():
        here = f"; without a scheduler: `{facts.install}`" if facts.without_scheduler else ""
        yield f"- `{name}`: {facts.image}{here}"
    yield from ("", "What brings NVIDIA's driver into each:", "")
    drivers: dict[str, list[str]] = {}
    for name, facts in RUNTIMES.items():
        drivers.setdefault(facts.driver, []).append(f"`{name}`")
    yield from (f"- {', '.join(names)}: {driver}" for driver, names in drivers.items())
    yield ""


def _schedulers() -> Iterator[str]:
    """Those that a site can name, with what starts tasks."""
    listed = (f"`{name}`{facts.launcher and f' (`{facts.launcher}`)'}" for name, facts in SCHEDULERS.items())
    yield from ("## Schedulers", "", f"What can stand in `scheduler`: {', '.join(listed)}.", "")


def _section(title: str, kind: Any) -> str:
    summary, _, attributes = (inspect.getdoc(kind) or "").partition("Attributes:")
    return "\n".join([f"## {title}", "", summary.strip(), "", *_bullets(kind, attributes), ""])


def _bullets(kind: Any, attributes: str) -> Iterator[str]:
    """One bullet for each entry of a docstring's section, a continuation line indented; then one for each other key."""
    types, keys = get_type_hints(kind), {field.name: field for field in msgspec.structs.fields(kind)}
    for line in re.sub(r"\bNone\b", "null", attributes).splitlines():
        entry = re.match(r"    (\S[\w, ]*): (.*)", line)
        if entry:
            yield f"- {', '.join(_key(keys.pop(name), types) for name in entry[1].split(', '))}: {entry[2]}"
        elif line.strip():
            yield f"  {line.strip()}"
    yield from (f"- {_key(field, types)}" for field in keys.values())


def _key(field: msgspec.structs.FieldInfo, types: dict[str, Any]) -> str:
    """A key with its type, and its default where it is not empty."""
    value = None if field.default is msgspec.NODEFAULT else field.default
    default = "required" if field.required else "" if value in (None, "", {}, ()) else f"`{_value(value)}`"
    default = "" if isinstance(value, msgspec.Struct) else default
    return f"`{field.name}` ({', '.join(filter(None, (_type(types[field.name]), default)))})"


def _value(value: object) -> str:
    return msgspec.json.encode(value).decode().strip('"')


def _type(kind: Any) -> str:
    """As YAML calls it; the choices of a literal."""
    names = {str: "text", int: "integer", float: "number", bool: "bool", dict: "map", tuple: "list"}
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"`{'|'.join(filter(None, args))}`"
    if origin in (Union, UnionType):
        return " or ".join(_type(each) for each in args if each is not NoneType)
    return names.get(origin or kind, "section")
