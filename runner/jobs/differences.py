"""What differs between two runs, plans, or states of the code, a line for each thing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from runner.core.files import sha256
from runner.core.hide import hidden_command, hidden_value, hidden_variable, is_secret
from runner.core.text import rate
from runner.jobs.code_facts import copied_code, programs_of, software_of
from runner.jobs.comparison import NONE, ran_of, unlike
from runner.jobs.directory import CODE_DIFF, CODE_FILES, SCRIPT, Run
from runner.model.backends import SCHEDULERS
from runner.model.figure import in_words
from runner.model.job import CodeRecord
from runner.model.plan import Plan, PlannedImage
from runner.model.request import Mount

Area = Literal["request", "plan", "image", "code", "script", "environment", "versions", "verdict"]
_NOT_RECORDED = "not recorded"
# Of a plan: each has lines of its own, or is no decision; starters follow from the program, and quote its arguments.
_SEPARATE = ("image", "env", "unset", "forced", "owners", "starters", "unknown_starters")


class Difference(msgspec.Struct, frozen=True):
    """One thing in which two runs differ.

    Attributes:
        key: what, within its area. first, second: its value in each; ``none`` where it has none.
    """

    area: Area
    key: str
    first: str
    second: str


def run_differences(first: Run, second: Run) -> tuple[Difference, ...]:
    """All that differs between two runs, but for their ids, directories, jobs and times. Raises UsageError: a plan
    cannot be read.
    """
    runs, plans = (first, second), (first.needed_plan(), second.needed_plan())
    commands = [run.command for run in runs]
    scripts = [run.content(SCRIPT) for run in runs]
    verdicts = [run.verdict for run in runs]
    return (
        *_value(
            "request", "command", *(shlex.join(hidden_command(each.arguments)) or _NOT_RECORDED for each in commands)
        ),
        *_value("request", "directory", *(each.directory or _NOT_RECORDED for each in commands)),
        *plan_differences(*plans),
        *_value("plan", "forced", *(", ".join(plan.forced) for plan in plans)),
        *_code_differences((first.code, second.code), (first.content(CODE_DIFF), second.content(CODE_DIFF))),
        *_value("code", "program", *map(copied_code, runs)),
        *(Difference("code", what, "one", "another (digests alone are kept)") for what in _recorded_differences(runs)),
        *(
            [Difference("script", SCRIPT, *(str(run.path / SCRIPT) for run in runs))]
            if scripts[0] != scripts[1]
            else []
        ),
        *_mapping("versions", _versions(first), _versions(second)),
        *_value("verdict", "outcome", *(each.outcome if each else "none yet" for each in verdicts)),
        *_value("verdict", "reason", *(next(iter(each.reasons), "") if each else "" for each in verdicts)),
        *_value("verdict", "throughput", *map(_figure_text, runs)),
    )


def _recorded_differences(runs: Iterable[Run]) -> list[str]:
    """What their ranks recorded otherwise: variables, files, modules, packages."""
    sides = [ran for ran in map(ran_of, runs) if ran is not None]
    facts = (fact for fact in unlike("repeats", sides) if fact.names)
    return [fact.with_names(sides) for fact in facts if fact.key not in ("setup", "changes")]


def plan_differences(first: Plan, second: Plan) -> tuple[Difference, ...]:
    """What differs between two plans: their decisions, their images, and the variables of their ranks."""
    return (
        *_mapping("plan", _decisions(first), _decisions(second)),
        *_mapping("image", _image_values(first.image), _image_values(second.image)),
        *_environment(first, second),
    )


def _decisions(plan: Plan) -> dict[str, str]:
    decisions: dict[str, str] = {}
    for name in Plan.__struct_fields__:
        own = name == "scheduler_settings"
        value = plan.settings if own else getattr(plan, name)
        if name in _SEPARATE:
            continue
        if isinstance(value, msgspec.Struct):
            section = SCHEDULERS[plan.scheduler].section if own else name
            decisions |= {f"{section}.{key}": _text(each) for key, each in msgspec.structs.asdict(value).items()}
        else:
            shown = [(each, hidden_variable(each, of)) for each, of in plan.swept] if name == "swept" else value
            decisions[name] = shlex.join(hidden_command(value)) if name == "program" else _text(shown)
    return decisions


def _image_values(image: PlannedImage) -> dict[str, str]:
    name = image.reference.partition("@")[0]
    values = {"name": name, "digest": image.digest, "file": image.path, "sha256": image.sha256}
    return {key: value for key, value in values.items() if value}


def _environment(first: Plan, second: Plan) -> Iterator[Difference]:
    """Secret values are not shown, nor users and passwords in URLs: only that they differ."""
    one, two = (dict(plan.env) | dict.fromkeys(plan.unset, "taken away") for plan in (first, second))
    for difference in _mapping("environment", one, two):
        if any(is_secret(difference.key, each.get(difference.key, "")) for each in (one, two)):
            shown = ["***" if difference.key in each else NONE for each in (one, two)]
            another = "*** (another value)" if shown == ["***", "***"] else shown[1]
            yield msgspec.structs.replace(difference, first=shown[0], second=another)
        else:
            values = hidden_value(difference.first), hidden_value(difference.second)
            another = f"{values[1]} (another value)" if values[0] == values[1] else values[1]
            yield msgspec.structs.replace(difference, first=values[0], second=another)


def code_differences(first: Run, code: CodeRecord | None, text: str) -> tuple[Difference, ...]:
    """What differs between the code of a run and that of now, and what it differs from its commit (``text``)."""
    kept = text.encode("utf-8", "surrogateescape") if text else b""
    return tuple(_code_differences((first.code, code), (first.content(CODE_DIFF), kept)))


def _code_differences(
    records: tuple[CodeRecord | None, CodeRecord | None], kept: tuple[bytes, bytes]
) -> Iterator[Difference]:
    for key in ("repository", "commit", "branch"):
        yield from _value(
            "code", key, *(_NOT_RECORDED if each is None else str(getattr(each, key)) for each in records)
        )
    states = [_state(record) for record in records]
    yield from _value("code", "uncommitted changes", *states)
    if states[0] == states[1] and kept[0] != kept[1]:
        measures = (f"{each.count(10)} lines, sha256 {sha256(each)[:12]}" if each else "not kept" for each in kept)
        yield Difference("code", "content of the changes", *measures)


def recipe_difference(run: Run, recipe: Path | None) -> tuple[Difference, ...]:
    """Whether the programs of a recipe are still those that a run had; nothing where either had none."""
    now = programs_of(recipe) if recipe is not None else ""
    then = "" if run.content(CODE_FILES) else programs_of(run.path / "recipe", beside=recipe)
    return tuple(_value("code", "program", then, now)) if then and now else ()


def _state(record: CodeRecord | None) -> str:
    if record is None:
        return _NOT_RECORDED
    if record.dirty is None:
        return f"unknown: {record.problem}" if record.problem else "unknown"
    return ", ".join(record.changed) or NONE


def _versions(run: Run) -> dict[str, str]:
    """Of gpu-runner and its Python; of the runtime and the scheduler once the run was judged."""
    verdict, made = run.verdict, run.provenance
    own = {"gpu-runner": made.gpu_runner, "python": made.python, "software": software_of(run)}
    return {name: value for name, value in own.items() if value} | (verdict.versions if verdict else {})


def _figure_text(run: Run) -> str:
    figure = run.figure
    return "; ".join(filter(None, (f"{rate(figure.value)} {figure.unit}/s", in_words(figure.doubts)))) if figure else ""


def _mapping(area: Area, first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Difference]:
    lacking = _NOT_RECORDED if area == "versions" else NONE
    for key in dict.fromkeys((*first, *second)):
        yield from _value(area, key, first.get(key, lacking), second.get(key, lacking))


def _value(area: Area, key: str, first: str, second: str) -> Iterator[Difference]:
    if first != second:
        yield Difference(area, key, first or NONE, second or NONE)


def _text(value: Any) -> str:
    """A value of a plan in one line: lists with commas, pairs with ``=``, mounts as they are typed."""
    if value in (None, (), ""):
        return NONE
    if isinstance(value, Mount):
        return f"{value.source}:{value.target}{':ro' if value.read_only else ''}"
    if isinstance(value, msgspec.Struct):
        return ":".join(str(each) for each in msgspec.structs.astuple(value))
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return "=".join(map(str, value))
    if isinstance(value, tuple):
        return ", ".join(_text(each) for each in value)
    return str(value)
