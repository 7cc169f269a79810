"""Ask a live cluster which scheduler answers and what it and its hosts report; and a site file of that."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from runner.core.errors import RefusedError
from runner.core.text import instead
from runner.model.backends import NATIVE, RUNTIMES, SCHEDULERS, runtime_programs
from runner.sites.detection import facts as answers
from runner.sites.detection import host
from runner.sites.detection.facts import Answer, Cluster, Entry, Fact, Note, Unknown, Value
from runner.sites.loader import CONTINUED, DEFAULT, MARK, read_site
from runner.sites.user import login_name

ON_NODE_S = 120.0  # for a job of one task to begin and answer


class Detection(Protocol):
    """What the module offers that ``SchedulerFacts.detection`` names.

    It may have ``on_node``, too: from a partition and further options to the command that starts a task on a GPU node;
    and ``trials``: the cluster without queues that take no job of this user's, by further commands.
    """

    def commands(self, user: str) -> Mapping[str, tuple[str, ...]]:
        """Name -> argument list of all that is asked; without an answer of the first the scheduler is not here."""

    def answered(self, answers: Mapping[str, Answer]) -> bool:
        """Whether these are answers of a cluster."""

    def read(self, answers: Mapping[str, Answer]) -> Cluster:
        """The cluster that gave these answers, by the names of ``commands``."""


@dataclass(frozen=True)
class Detected:
    """What was detected.

    Attributes:
        scheduler_name: of the scheduler that answered, as a site file names it; cluster: what it tells.
        login: this host. node: a GPU node, where one was asked.
        modules: that ``module avail`` lists here.
        day: when, ``2026-11-21``.
    """

    scheduler_name: str
    cluster: Cluster
    login: host.Host | None
    node: host.Host | None
    modules: tuple[str, ...]
    day: str

    @property
    def scheduler(self) -> str:
        """What it is, with its version."""
        return f"{SCHEDULERS[self.scheduler_name].title} {self.cluster.version}".strip()

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Container runtimes found: plugins of srun's, programs of the GPU node, else of this host."""
        plugins = [name for name, facts in RUNTIMES.items() if facts.srun_option in self.cluster.options]
        where = self.node or self.login
        here = where.runtimes if where is not None else ()
        loaded = [name for name in runtime_programs() if self.module_of(name)]
        return tuple(dict.fromkeys((*plugins, *here, *loaded)))

    def module_of(self, runtime: str) -> str:
        """The last module listed that brings a runtime; empty where there is none, or none is needed."""
        where = self.node or self.login
        if where is not None and runtime in where.runtimes:
            return ""
        program = runtime_programs().get(runtime, runtime)
        return next((name for name in reversed(self.modules) if name.split("/")[0].lower() == program), "")


def detect(
    clients: Path | None = None,
    *,
    partition: str | None = None,
    on_node: tuple[str, ...] | None = None,
    queues: Iterable[str] = (),
) -> Detected:
    """Ask the cluster that this host belongs to.

    Args:
        clients: where the scheduler's client programs lie; None for PATH.
        partition: whose nodes are meant; None for those with the most GPUs.
        on_node: also start a task of two minutes at most on one GPU node, with these further options.
        queues: one of these starts it where no partition is named, if jobs can go to one; else one that has GPUs.

    Raises RefusedError: no scheduler is here, none answers, or there is no such partition.
    """
    day = time.strftime("%Y-%m-%d")
    schedulers = {name: SCHEDULERS[name] for name in SCHEDULERS.every() if SCHEDULERS[name].detection}
    modules = {name: cast(Detection, import_module(facts.detection)) for name, facts in schedulers.items()}
    commands = {name: module.commands(login_name()) for name, module in modules.items()}
    asked = answers.ask_all(
        {f"{name} {key}": words for name, those in commands.items() for key, words in those.items()}
        | {"here": host.here(), "modules": host.MODULES},
        clients,
    )
    given = {name: {key: asked[f"{name} {key}"] for key in those} for name, those in commands.items()}
    name = next((name for name, module in modules.items() if module.answered(given[name])), "")
    if not name:
        raise _no_scheduler({schedulers[name].title: next(iter(each.values())) for name, each in given.items()})
    cluster = modules[name].read(given[name])
    trials = getattr(modules[name], "trials", None)
    if trials is not None:
        cluster = trials(cluster, lambda commands: answers.ask_all(commands, clients))
    known = cluster.partitions_known
    if partition is not None and known and partition not in known:
        fix = instead(partition, known, f"partitions: {', '.join(known)}")
        raise RefusedError(f"no partition {partition!r} here", where="--partition", fix=fix)
    node = None
    if on_node is not None:
        start = getattr(modules[name], "on_node", None)
        if start is None:
            what = f"a node of {schedulers[name].title} is asked by a job of your own: it has no command for one task"
            raise RefusedError(what, where="--on-node", fix="leave it out")
        holding = (*cluster.gpu_queues(set(queues) & cluster.queue_limits().keys()), None)
        node = _node(start(partition or (holding[0].name if holding[0] else None), on_node), clients)
    return Detected(
        scheduler_name=name,
        cluster=cluster,
        login=host.read(asked["here"]),
        node=node,
        modules=host.modules(asked["modules"]),
        day=day,
    )


def entries(detected: Detected, partition: str | None = None) -> tuple[Entry, ...]:
    """All that goes into a site file, in the order of ``draft``."""
    of_scheduler = detected.cluster.entries(partition, detected.day)
    unanswered = detected.cluster.silent.items()
    silence = [Note("description", f"no answer from `{command}`: {why}") for command, why in unanswered]
    hosts = host.entries(detected.login, detected.node, detected.modules, detected.day)
    everything = (*silence, *_runtime_entries(detected), *of_scheduler, *hosts)
    known = {entry.key for entry in everything if isinstance(entry, Fact)}
    return tuple(entry for entry in everything if not (isinstance(entry, Unknown) and entry.key in known))


def _runtime_entries(detected: Detected) -> tuple[Entry, ...]:
    where = f"on {detected.node.name}" if detected.node is not None else "here; a GPU node was not asked"
    containers = ", ".join(name for name in RUNTIMES if name != NATIVE)
    none = Note("runtimes", f"no container runtime on PATH {where}; put in front what the site has of {containers}")
    loads = ((name, detected.module_of(name)) for name in detected.runtimes)
    source = f"module avail, {detected.day}"
    return (
        *(() if detected.runtimes else (none,)),
        Fact("runtimes", [*detected.runtimes, NATIVE], f"`srun --help` and PATH {where}, {detected.day}"),
        *(Fact(f"ways.{name}.load", [["module", "load", module]], source) for name, module in loads if module),
    )


def _node(start: tuple[str, ...], clients: Path | None) -> host.Host:
    """What a GPU node says of itself, in a task that ``start`` starts. Raises RefusedError where it does not answer."""
    answer = answers.ask((*start, *host.here()), clients, ON_NODE_S, on_node=True)
    node = host.read(answer)
    if node is None:
        what = f"no GPU node answered: {answer.problem or f'{start[0]} said nothing'}"
        fix = "options that the site demands: --on-node -S account=NAME -S partition=NAME; or leave --on-node out"
        raise RefusedError(what, where=" ".join(start), fix=fix)
    return node


def _no_scheduler(first: Mapping[str, Answer]) -> RefusedError:
    """The error where no scheduler answers; ``first``: the title of each -> what became of its first command."""
    silent = next((answer for answer in first.values() if not answer.absent), None)
    if silent is None:
        what = f"no client of {' or '.join(first)} is here"
        fix = "run this on the cluster's login node; for this machine alone there is `--site local`"
        return RefusedError(what, where="PATH", fix=fix)
    return RefusedError(
        f"the scheduler does not answer: {silent.problem}", where=silent.command, fix="try again when it does"
    )


_SECTION = "the scheduler's own section"  # and what else has no place below
_ORDER = (
    *("name", "description", "extends", "scheduler", "runtimes", "ways", "node", "queues", "needs", "hints"),
    _SECTION,
    *("mpi", "hardware", "device", "demonstration", "local_scratch", "scratch", "home", "env", "sources"),
)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z", re.ASCII)
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_WIDTH = 118


def draft(detected: Detected, name: str, partition: str | None = None) -> str:
    """The file's text. ``site check`` refuses it until every ``# UNKNOWN`` in it is filled or deleted, and warns of
    every ``# DEFAULT``.

    Args:
        name: of the site. partition: whose nodes are meant, as it was detected with.
    """
    listed = entries(detected, partition)
    facts = [entry for entry in listed if isinstance(entry, Fact)]
    everything = [*_head(detected, name), *listed, Fact("sources", _sources(facts), "")]
    lines = [
        f"# Written by `site detect` on {detected.day}, from what {detected.scheduler} and its hosts say.",
        f"# A line `{MARK} key` is unknown here and jobs need it: put the key there, or delete the line to leave",
        "# it to the default. `site check FILE` refuses the file until then. A line",
        f"# `{DEFAULT} key` is unknown, too, and left to the default, which is warned of until the line is deleted.",
        *_block(everything, (), ""),
    ]
    return "\n".join(lines) + "\n"


def _sources(facts: Sequence[Fact]) -> dict[str, str]:
    """Where each is from: said once of a section, and again only of those of its keys that are from elsewhere."""
    sources: dict[str, str] = {}
    for fact in facts:
        section = fact.key.partition(".")[0]
        if sources.setdefault(section, fact.source) != fact.source:
            sources[fact.key] = fact.source
    return dict(sorted(sources.items()))


def _head(detected: Detected, name: str) -> Iterator[Entry]:
    """What does not come from the cluster: a name, and what every cluster of its kind has in common."""
    yield Fact("name", name, "")
    yield Fact("description", f"{name}: {detected.scheduler}", "")
    base = read_site("slurm")
    if detected.scheduler_name == base.scheduler:
        yield Fact("extends", base.name, "")
        return
    yield Fact("scheduler", detected.scheduler_name, "")
    yield Fact("env", {name: value for name, value in base.env.items() if value is not None}, "")


def _block(listed: Sequence[Entry], path: tuple[str, ...], indent: str) -> Iterator[str]:
    """The lines of all entries below ``path``; where only remarks are below a key, no key is written."""
    depth = len(path)
    below: dict[str, list[Entry]] = {}
    for entry in listed:
        below.setdefault(entry.key.split(".")[depth], []).append(entry)
    order = {name: place for place, name in enumerate(_ORDER)}
    for step in sorted(below, key=lambda name: order.get(name, order[_SECTION]) if depth == 0 else 0):
        here = [entry for entry in below[step] if entry.key == ".".join((*path, step))]
        deeper = [entry for entry in below[step] if entry not in here]
        for entry in (*here, *(() if _holds_facts(deeper) else deeper)):
            yield from _comment(entry, indent)
        values = [entry.value for entry in here if isinstance(entry, Fact)]
        if values:
            yield from _value(step, values, indent)
        if _holds_facts(deeper):
            yield f"{indent}{_word(step)}:"
            yield from _block(deeper, (*path, step), indent + "  ")


def _holds_facts(listed: Sequence[Entry]) -> bool:
    return any(isinstance(entry, Fact) for entry in listed)


def _comment(entry: Entry, indent: str) -> Iterator[str]:
    if isinstance(entry, Fact):
        return
    if isinstance(entry, Unknown):
        text = f"{MARK if entry.needed else DEFAULT} {entry.key}: {entry.how}"
    else:
        text = f"# {entry.text}"
    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent + CONTINUED, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _value(key: str, values: Sequence[Value], indent: str) -> Iterator[str]:
    """One value; mappings of the same key are one, the later winning, with a line for each of their keys."""
    if not isinstance(values[0], dict):
        yield f"{indent}{_word(key)}: {_flow(values[-1])}"
        return
    merged = {name: item for value in values if isinstance(value, dict) for name, item in value.items()}
    if not merged:
        yield f"{indent}{_word(key)}: {{}}"
        return
    yield f"{indent}{_word(key)}:"
    for name, item in merged.items():
        yield f"{indent}  {_word(name)}: {_flow(item)}"


def _flow(value: object) -> str:
    """A value on one line: YAML takes JSON's strings; words that could be nothing else go without quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_word(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _word(value) if isinstance(value, str) else json.dumps(value)


def _word(text: str) -> str:
    plain = _PLAIN.match(text) and text.lower() not in _WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)
