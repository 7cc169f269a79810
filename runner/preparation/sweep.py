"""The requests of a sweep: each combination of its values, filled into the program's words. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import msgspec

from runner.core.errors import UsageError
from runner.model.request import PLAIN_NAME, Request
from runner.model.sweep import SweptRun

MOST = 1000  # runs
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z", re.ASCII)
_WHERE = "--sweep"


def values_of(texts: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """The values of each name from ``("lr", "0.1,0.2")``; ``\\,`` is a comma and ``\\\\`` a backslash. Raises
    UsageError: a name is given twice.
    """
    values: dict[str, tuple[str, ...]] = {}
    for name, text in texts:
        if name in values:
            raise UsageError(f"{name} is given twice", where=_WHERE, fix=f"once, with commas: --sweep {name}=A,B")
        parts = re.findall(r"((?:\\[\\,]|[^,])*),", f"{text},")
        values[name] = tuple(re.sub(r"\\([\\,])", r"\1", part) for part in parts)
    return values


def swept_runs(values: Mapping[str, Sequence[str]]) -> tuple[SweptRun, ...]:
    """A run for each combination; the values of the last name change fastest. Raises UsageError: they are none that a
    sweep can have.
    """
    for name, each in values.items():
        if not _NAME.match(name):
            raise UsageError(f"{name!r} is no name", where=_WHERE, fix="letters, digits and _ . -, no digit first")
        if not each or "" in each:
            what, fix = f"a value of {name} is empty", f"write --sweep {name}=A,B; a comma in a value is \\,"
            raise UsageError(what, where=_WHERE, fix=fix)
        if len(set(each)) < len(each):
            fix = "leave it out; to run the same again, sweep a seed"
            raise UsageError(f"{name} has a value twice", where=_WHERE, fix=fix)
    if (count := prod(map(len, values.values()))) > MOST:
        raise UsageError(f"these are {count} runs, and a sweep has at most {MOST}", where=_WHERE, fix="make several")
    return tuple(
        SweptRun(str(number), tuple(zip(values, each, strict=True)))
        for number, each in enumerate(product(*values.values()), 1)
    )


def filled_request(request: Request, run: SweptRun, name: str = "") -> Request:
    """The request of a run: ``{NAME}`` is its value in the program's arguments, and in the values of ``--set`` and
    ``--env``, for the names of the sweep; other braces stay. ``name``: of the sweep; that of the run has its number.

    Raises UsageError: a name stands nowhere, or the job's name is too long.
    """
    values, used = dict(run.values), set[str]()
    pattern = re.compile(rf"\{{({'|'.join(map(re.escape, values))})\}}")

    def fill(text: str) -> str:
        used.update(pattern.findall(text))
        return pattern.sub(lambda match: values[match[1]], text)  # at once: a value may have braces

    made = msgspec.structs.replace(
        request,
        program=tuple(map(fill, request.program)),
        arguments=tuple(map(fill, request.arguments)),
        options=tuple((key, fill(value)) for key, value in request.options),
        env=tuple((key, value and fill(value)) for key, value in request.env),
    )
    if unused := next((each for each in values if each not in used), ""):
        fix = f"write {{{unused}}} where its value is to be: -- python train.py --{unused} {{{unused}}}"
        raise UsageError(f"there is no {{{unused}}} in the command", where=f"{_WHERE} {unused}", fix=fix)
    job_name = f"{name}.{run.key}" if name else request.job_name
    if job_name is not None and not PLAIN_NAME.match(job_name):
        raise UsageError(f"{job_name!r} is no job name", where="--name", fix="use a shorter one: its runs get a number")
    return msgspec.structs.replace(made, job_name=job_name)
