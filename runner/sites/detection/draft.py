"""A site file from what was detected: facts with their sources, and a comment for each unknown key."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence

from runner.sites.detection.cluster import Detected, entries
from runner.sites.detection.facts import Entry, Fact, Unknown, Value
from runner.sites.loader import CONTINUED, DEFAULT, MARK, read_site

_SECTION = "the scheduler's own section"  # and what else has no place below
_ORDER = (
    *("name", "description", "extends", "scheduler", "runtimes", "ways", "node", "queues", "needs"),
    _SECTION,
    *("mpi", "hardware", "device", "demonstration", "local_scratch", "scratch", "home", "env", "image_tags", "sources"),
)
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*\Z", re.ASCII)
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_WIDTH = 118


def draft(found: Detected, name: str, partition: str | None = None) -> str:
    """The file's text. ``site check`` refuses it until every ``# UNKNOWN`` in it is filled or deleted, and warns of
    every ``# DEFAULT``.

    Args:
        name: of the site. partition: whose nodes are meant, as it was detected with.
    """
    found_entries = entries(found, partition)
    facts = [entry for entry in found_entries if isinstance(entry, Fact)]
    everything = [*_head(found, name), *found_entries, Fact("sources", _sources(facts), "")]
    lines = [
        f"# Written by `site detect` on {found.day}, from what {found.scheduler} and its hosts say.",
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


def _head(found: Detected, name: str) -> Iterator[Entry]:
    """What does not come from the cluster: a name, and what every cluster of its kind has in common."""
    yield Fact("name", name, "")
    yield Fact("description", f"{name}: {found.scheduler}", "")
    base = read_site("slurm")
    if found.scheduler_name == base.scheduler:
        yield Fact("extends", base.name, "")
        return
    yield Fact("scheduler", found.scheduler_name, "")
    yield Fact("env", {name: value for name, value in base.env.items() if value is not None}, "")
    yield Fact("image_tags", dict(base.image_tags), "")


def _block(found_entries: Sequence[Entry], path: tuple[str, ...], indent: str) -> Iterator[str]:
    """The lines of all entries below ``path``; where only remarks are below a key, no key is written."""
    depth = len(path)
    below: dict[str, list[Entry]] = {}
    for entry in found_entries:
        below.setdefault(_step(entry, depth), []).append(entry)
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


def _step(entry: Entry, depth: int) -> str:
    return entry.key.split(".")[depth]


def _holds_facts(found_entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry, Fact) for entry in found_entries)


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
