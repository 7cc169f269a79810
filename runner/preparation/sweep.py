"""The requests of a sweep: each combination of its values, filled into the program's words. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import msgspec

from runner.core.errors import UsageError
from runner.core.hide import first_secret, hidden_command
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX, Request
from runner.planning.options import tells_runs_apart

MOST = 1000  # runs
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z", re.ASCII)


def values_of(texts: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """The values of each name from ``("lr", "0.1,0.2")``; ``\\,`` is a comma and ``\\\\`` a backslash. Raises
    UsageError: a name is given twice.
    """
    values: dict[str, tuple[str, ...]] = {}
    for name, text in texts:
        if name in values:
            raise UsageError(f"{name} is given twice", where="--sweep", fix=f"once, with commas: {name}=A,B")
        parts = re.findall(r"((?:\\[\\,]|[^,])*),", f"{text},")
        values[name] = tuple(re.sub(r"\\([\\,])", r"\1", part) for part in parts)
    return values


def combinations(values: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """The values of each run by its number, from 1; those of the last name change fastest. Raises UsageError: no sweep
    can have them.
    """
    for name, each in values.items():
        if not _NAME.match(name):
            raise UsageError(f"{name!r} is no name", where="--sweep", fix="letters, digits and _ . -, no digit first")
        if not each or "" in each or len(set(each)) < len(each):
            what, fix = f"{name} has an empty value, or one twice", r"write NAME=A,B; \, is a comma in a value"
            raise UsageError(what, where="--sweep", fix=fix)
    if (count := prod(map(len, values.values()))) > MOST:
        raise UsageError(f"these are {count} runs, and a sweep has at most {MOST}", where="--sweep", fix="make several")
    runs = enumerate(product(*values.values()), 1)
    return {str(number): dict(zip(values, each, strict=True)) for number, each in runs}


def filled_request(request: Request, values: Mapping[str, str], job_name: str | None) -> Request:
    """The request of a run: ``{NAME}`` is its value in the program's words, and in the values of ``--set`` and
    ``--env``, for the names of the sweep; other braces stay. Raises UsageError: a name stands nowhere, a value is
    secret, or the job's name is too long.
    """
    used: set[str] = set()
    pattern = re.compile(rf"\{{({'|'.join(map(re.escape, values))})\}}")

    def fill(text: str) -> str:
        used.update(pattern.findall(text))
        return pattern.sub(lambda match: values[match[1]], text)  # all at once: a value may have braces

    made = msgspec.structs.replace(
        request,
        program=tuple(map(fill, request.program)),
        arguments=tuple(map(fill, request.arguments)),
        options=tuple((key, fill(value)) for key, value in request.options),
        env=tuple((key, value and fill(value)) for key, value in request.env),
        job_name=job_name,
        swept=tuple(values.items()),
    )
    if unused := next((each for each in values if each not in used), ""):
        fix = f"write {{{unused}}} where its value is to be: -- python train.py --{unused} {{{unused}}}"
        raise UsageError(f"there is no {{{unused}}} in the command", where=f"--sweep {unused}", fix=fix)
    before, after = _words(request), _words(made)
    shown = zip(before, after, hidden_command(before), hidden_command(after), strict=True)
    secret = next((was for was, now, *both in shown if was != now and len({*both}) == 1), "")  # it hides the values
    if name := first_secret(values.items()) or next((each for each in values if f"{{{each}}}" in secret), ""):
        raise tells_runs_apart(name, f"--sweep {name}")
    if job_name is not None and not PLAIN_NAME.match(job_name):
        raise UsageError(f"{job_name!r} cannot be a job's name", where="--name", fix=PLAIN_NAME_FIX)
    return made


def _words(request: Request) -> tuple[str, ...]:
    return (*request.program, *request.arguments, *(f"{key}={value}" for key, value in request.options + request.env))
