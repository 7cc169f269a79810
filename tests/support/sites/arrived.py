"""What the plugin of the tests (tests/spank) has recorded of a job's tasks, and what a plan says should be there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.model.step import Argument, Export, StepSpec, Text


@dataclass(frozen=True)
class Task:
    """One task as Slurm was about to start it.

    Attributes:
        options: of the plugin, as srun and sbatch have parsed them; the empty string where one takes no argument.
        words: its command.
        variables: its environment.
    """

    host: str
    options: Mapping[str, bytes]
    words: tuple[bytes, ...]
    variables: Mapping[str, bytes]


def tasks(directory: Path, job: str) -> dict[str, dict[int, Task]]:
    """Step ("batch", "0", "1" ...) -> rank -> task, of a job that was submitted from the directory."""
    found: dict[str, dict[int, Task]] = {}
    for path in (directory / "spank").glob(f"{job}.*"):
        _job, step, rank = path.name.split(".")
        found.setdefault(step, {})[int(rank)] = _task(path.read_bytes())
    return found


def _task(record: bytes) -> Task:
    fields = record.split(b"\0")[:-1]
    triples = list(zip(fields[::3], fields[1::3], fields[2::3], strict=True))
    variables = (value.partition(b"=") for kind, _, value in triples if kind == b"variable")
    return Task(
        host=next(value.decode() for kind, name, value in triples if (kind, name) == (b"place", b"host")),
        options={name.decode(): value for kind, name, value in triples if kind == b"option"},
        words=tuple(value for kind, _, value in triples if kind == b"word"),
        variables={os.fsdecode(name): value for name, _, value in variables},
    )


def last_step(found: Mapping[str, dict[int, Task]], tasks_per_node: tuple[int, ...]) -> dict[int, Task]:
    """The tasks of the ranks: those of the step that has as many, and no step of one task a node."""
    (step,) = (step for step in found.values() if len(step) == sum(tasks_per_node) and _is_launch(step))
    return step


def _is_launch(step: Mapping[int, Task]) -> bool:
    return any(word.endswith(b"/lib/launch.py") for word in step[0].words)


def hosts(step: Mapping[int, Task]) -> list[int]:
    """Ranks on each node, in the order of the ranks; a node that comes twice stands twice."""
    counts: list[int] = []
    last = ""
    for rank in sorted(step):
        if step[rank].host != last:
            counts.append(0)
        counts[-1] += 1
        last = step[rank].host
    return counts


def expected(step: StepSpec, values: Mapping[str, str]) -> tuple[dict[str, bytes], tuple[bytes, ...], dict[str, bytes]]:
    """Options, words and variables of every task of a step, as the plan has them.

    Args:
        values: of the shell variables that the batch script itself sets.
    """
    known = dict(values)
    exported: dict[str, bytes] = {}
    for entry in step.prelude:
        if isinstance(entry, Export):
            known[entry.name] = _text(entry.value, known)
            exported[entry.name] = os.fsencode(known[entry.name])
    given = (_text(word, known).removeprefix("--").partition("=") for word in step.launcher)
    options = {name: os.fsencode(value) for name, _, value in given}
    return options, tuple(os.fsencode(_text(word, known)) for word in step.command), exported


def _text(word: Argument, values: Mapping[str, str]) -> str:
    return "".join(part.value if isinstance(part, Text) else values[part.name] for part in word)


def differing(seen: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> Iterable[tuple[str, bytes | None, bytes]]:
    """Name, what is there, and what should be."""
    return [(name, seen.get(name), value) for name, value in wanted.items() if seen.get(name) != value]
