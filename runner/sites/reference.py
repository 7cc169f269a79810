"""The reference of site files (``docs/sites.md``), generated from the structs that they are read into."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.image import Activate, EnvironmentKind, FrameworkSource, Setup
from runner.model.request import Mount, Option, Transport
from runner.model.site import (
    Fabric,
    Home,
    MpiFacts,
    NodeShape,
    Owned,
    Queue,
    RuntimeAtSite,
    Scratch,
    SiteFile,
    SshFacts,
)

_HEAD = """\
# Site files

A site is one YAML file: a shipped one (`gpu-runner site list`), or your own, by its path. Unknown keys,
duplicate keys, tags and aliases are refused; the error names the file, the line and the nearest valid key. Your file
may extend a shipped one and give only what differs:

    name: ours
    description: "Our cluster"
    extends: slurm
    runtimes: [apptainer]
    node: {gpus: 8, gpu_type: a100, cores: 64, memory_mb: 1000000}

Set your account, project and scratch directory once, in `~/.config/gpu-runner/config.yaml` (`RUNNER_CONFIG` names
another file). `--account`, `--project` and `--scratch` override it. If a site has no entry, an entry of a name that
differs by a letter is refused as misspelt:

    site: perlmutter               # the default of --site
    account: m1234
    sites:
      perlmutter: {scratch: /pscratch/sd/e/elvis}
    registries:                    # another host that gives out a registry's tokens (docs/security.md)
      registry.example.org: {token_service: auth.example.org}

On a cluster's login node, `gpu-runner site detect -o ours.yaml` writes such a file. It gives the source of each
fact; `--on-node` also queries a GPU node. A fact that could not be detected appears as `# UNKNOWN key: how to find
out` if jobs need it: `gpu-runner site check ours.yaml` refuses the file (exit 2) until you give each such key or
delete its line. What has a default that will do appears as `# DEFAULT key: how to find out`, which is a warning.
Then it tries a script of every way and compares the file with the live cluster (exit 3 if they differ).

Without `--site`, `RUNNER_SITE` and `site` in the configuration, jobs and environments are for the box if it is up, else
for the Slurm or PBS that answers. Such a cluster is detected as above, without a GPU node, once: its file is kept as
`~/.local/state/gpu-runner/sites/CLUSTER.yaml` (`RUNNER_STATE` names another directory), and a line on stderr reports it
each time. Correct it there, or remove it to detect anew; `--site CLUSTER` names it. `site detect --on-node --keep`
writes it anew with what a GPU node says of itself. Partitions without GPUs, and those that take no job of yours
(`sbatch --test-only`), are left out of it. A dry run keeps nothing. If no scheduler answers, jobs are refused (exit 2
if there is none, 3 if its client gets no answer), and environments are for
this machine. Nodes of Slurm with the feature `fake-gpus`, which a box's have, become `device: cpu` in the file: jobs
there are demonstrations. Any other cluster is taken to have real GPUs. `--site slurm` is the Slurm that answers, too:
the generic site's own node is an example, on which no job is planned. A file that extends it gives `node.gpus`,
`node.cores` and `node.memory_mb`.

This page is the output of `gpu-runner site reference`; a test keeps it up to date.
"""

_SECTIONS: tuple[tuple[str, Any], ...] = (
    ("The file", SiteFile),
    ("`node`", NodeShape),
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
_ALIASES = {
    name: str(alias).replace("typing.", "")
    for name, alias in (
        *(("Owned", Owned), ("Option", Option)),
        *(("Transport", Transport), ("EnvironmentKind", EnvironmentKind), ("FrameworkSource", FrameworkSource)),
    )
}


def reference() -> str:
    """The whole text, Markdown."""
    return "\n".join([_HEAD, *(_section(title, kind) for title, kind in _SECTIONS), *_runtimes(), *_schedulers()])


def _runtimes() -> Iterator[str]:
    """A row for each runtime that a site can name."""
    yield from ("## Runtimes", "", "What can stand in `runtimes`. Site files say where each has been proven.", "")
    yield from (
        "| runtime | image | cannot mount paths with | found by | without a scheduler |",
        "|---|---|---|---|---|",
    )
    for name, facts in RUNTIMES.items():
        syntax = facts.mounts
        paths = " ".join(map(_code, syntax.forbidden))
        if syntax.only:
            paths = f"characters other than `{syntax.only}`"
        plugin = f"`srun --{facts.srun_option}`" if facts.srun_option else ""
        program = f"`{facts.program}`" if facts.program else ""
        found = " or ".join(filter(None, (program, plugin)))
        alone = f"yes: `{facts.install}`" if facts.without_scheduler else "no"
        yield f"| `{name}` | {facts.image} | {paths} | {found} | {alone} |"
    yield from ("", "What brings NVIDIA's driver into each:", "")
    drivers: dict[str, list[str]] = {}
    for name, facts in RUNTIMES.items():
        drivers.setdefault(facts.driver, []).append(f"`{name}`")
    yield from (f"- {', '.join(names)}: {driver}" for driver, names in drivers.items())
    yield ""


def _code(character: str) -> str:
    """A character as Markdown code; blanks that cannot be seen as escapes."""
    shown = character if character.isprintable() else repr(character)[1:-1]
    return "`` ` ``" if shown == "`" else "`' '`" if shown == " " else f"`{shown}`"


def _schedulers() -> Iterator[str]:
    """A row for each scheduler that a site can name."""
    nodes = {"allocated": "it allocates them", "listed": "the user lists them", "this-machine": "this machine"}
    yield from ("## Schedulers", "", "What can stand in `scheduler`.", "")
    yield from ("| scheduler | nodes | tasks are started by | options of every job | `site check` compares |",)
    yield "|---|---|---|---|---|"
    for name, facts in SCHEDULERS.items():
        launcher = f"`{facts.launcher}`" if facts.launcher else "the job's own script"
        options = f"`{facts.section}.directives`" if facts.section else ""
        compared = "yes" if facts.detection else "no"
        yield f"| `{name}` | {nodes[facts.nodes]} | {launcher} | {options} | {compared} |"
    yield ""


def _section(title: str, kind: Any) -> str:
    docstring = inspect.getdoc(kind) or ""
    summary, _, attributes = docstring.partition("Attributes:")
    rows = "\n".join(_rows(kind))
    lines = [f"## {title}", "", summary.strip(), "", "| key | type | default |", "|---|---|---|", rows, ""]
    return "\n".join([*lines, *_bullets(attributes)])


def _rows(kind: Any) -> Iterator[str]:
    names = {name: text for base in reversed(kind.__mro__) for name, text in inspect.get_annotations(base).items()}
    for field in msgspec.structs.fields(kind):
        default = "required" if field.required else _default(field)
        kind_of = re.sub(r"[A-Za-z]+", lambda word: _ALIASES.get(word[0], word[0]), str(names[field.name]))
        kind_of = kind_of.replace("|", "\\|")
        yield f"| `{field.name}` | `{kind_of}` | {default} |"


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct):
        return "as below"
    return "" if value in (None, "", {}, ()) else f"`{msgspec.json.encode(value).decode()}`"


def _bullets(attributes: str) -> Iterator[str]:
    """One bullet for each entry of a docstring's section; a continuation line is indented deeper."""
    for line in attributes.splitlines():
        entry = re.match(r"    (\S.*)", line)
        if entry:
            yield f"- {entry[1]}"
        elif line.strip():
            yield f"  {line.strip()}"
    yield ""
