"""One figure is made of one program: which attempts of a study ran the first one, and whether a launch still would.

The first is that of the earliest proven run. What ran is the program's copy, else the commit of the user's code and
what differed from it; and the image. What a run did not record tells nothing. What it counts is the same in all, and
its command line in all launches of one point: a batch that another site file gives would be another program.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.core.errors import RefusedError
from runner.core.hide import hidden_command
from runner.core.invocation import PROGRAM
from runner.jobs.comparison import Ran, code_differences, facts_for, first_difference, ran_of, recipe_difference
from runner.jobs.directory import Run
from runner.model.study import Launch
from runner.planning.options import options_of
from runner.preparation.job import PreparedJob, code_of
from runner.study.attempts import Attempt

_STAMP = len("20261122-120000")  # with which the id of a run begins


def of_one_program(launches: Iterable[Launch], made: Mapping[str, Sequence[Attempt]]) -> dict[str, tuple[Attempt, ...]]:
    """The attempts of a study, in which a proven one counts as not proven if it ran another program than the first.

    Args:
        launches: of the study. made: by the launch's key, in the study's order.
    """
    first = first_proven(made)
    if first is None:
        return {key: tuple(each) for key, each in made.items()}
    program = ran_of(first.run)
    alike = {key: tuple(_checked(attempt, first, program) for attempt in each) for key, each in made.items()}
    points: dict[tuple[object, ...], list[str]] = {}
    for each in launches:
        points.setdefault((each.gpus, each.arm, each.arms, each.settings), []).append(each.key)
    for keys in points.values():
        of_point = {key: alike[key] for key in keys if key in alike}
        if (one := first_proven(of_point)) is not None:
            then, name = _words(one.run), one.run.run_id
            alike |= {
                key: tuple(_with_words(then, name, attempt) for attempt in each) for key, each in of_point.items()
            }
    return alike


def first_proven(made: Mapping[str, Sequence[Attempt]]) -> Attempt | None:
    """The earliest; of one second, the first in the study's order."""
    proven = [attempt for each in made.values() for attempt in each if attempt.state == "proven"]
    return min(proven, key=lambda attempt: attempt.run.run_id[:_STAMP], default=None)


def refuse_another(
    launches: Iterable[Launch],
    made: Mapping[str, Sequence[Attempt]],
    prepare: Callable[[Launch], PreparedJob],
) -> None:
    """Refuse launches of another program than that of the launches which are proven: no figure could have both.

    Args:
        launches, made: the study's, and their attempts. prepare: a launch, as it would be submitted.

    Raises:
        RefusedError: it is another one.
    """
    first = first_proven(made)
    if first is None:
        return
    now = prepare(next(each for each in launches if first in made.get(each.key, ())))
    changed = tuple(_since(first.run, now))
    if changed:
        raise RefusedError(
            f"{changed[0]}: launches of the first one are proven, and no figure is made of two programs",
            where=str(first.run.path),
            fix="put the first one back, or begin a new study for the other",
        )


def _since(first: Run, now: PreparedJob) -> Iterator[str]:
    """What of the program is not as it was, a sentence each."""
    then, image = ran_of(first), now.plan.image
    recorded = {fact.key: fact.value(then) for fact in facts_for("study")} if then else {}
    for each in recipe_difference(first, now.recipe_directory):
        yield f"the program is not as it was ({each.first} -> {each.second})"
    if recorded.get("commit"):
        for each in code_differences(first, *code_of(now)):
            if each.key not in ("repository", "branch"):
                yield f"the code is not as it was ({each.key}: {each.first} -> {each.second})"
    words = _words(first)
    if words and (differs := _changed(words, hidden_command(now.plan.program))):
        yield f"the program's options are not as they were ({differs})"
    digest = image.digest or image.sha256 or image.path
    if recorded.get("image") and digest != recorded["image"]:
        yield f"the image is not as it was ({recorded['image']} -> {digest})"


def _checked(attempt: Attempt, first: Attempt, program: Ran | None) -> Attempt:
    if attempt.state != "proven" or attempt is first:
        return attempt
    own = ran_of(attempt.run)
    fact = first_difference("study", program, own, recorded=True) if program and own else None
    if fact is None or program is None or own is None:
        return attempt
    values = _short(fact.value(own)), _short(fact.value(program))
    return _left_out(attempt, f"its {fact.words} ({values[0]}) is not that of the study's first launch ({values[1]})")


def _with_words(then: Sequence[str], first: str, attempt: Attempt) -> Attempt:
    """The attempt; not proven where its command line is not that of the first run of its point."""
    own = _words(attempt.run) if attempt.state == "proven" else ()
    differs = _changed(then, own) if then and own else ""
    return _left_out(attempt, f"its program's options are not those of {first} ({differs})") if differs else attempt


def _left_out(attempt: Attempt, why: str) -> Attempt:
    again = f"`{PROGRAM} scale --resume` measures it anew"
    return replace(attempt, state="not-proven", why=f"{why}: no figure is made of both; {again}")


def _words(run: Run) -> tuple[str, ...]:
    """The program's command line; empty where it is not recorded."""
    plan = run.plan
    return hidden_command(plan.program) if plan else ()


def _changed(first: Sequence[str], second: Sequence[str]) -> str:
    """``--batch-size 8 -> 16``: the first option that differs, else both command lines; empty where none does."""
    if tuple(first) == tuple(second):
        return ""
    one, other = options_of(first), options_of(second)
    for name in (*one, *other):
        if one.get(name) != other.get(name):
            return f"--{name} {one.get(name, 'not given')} -> {other.get(name, 'not given')}"
    return f"{shlex.join(first)} -> {shlex.join(second)}"


def _short(value: str) -> str:
    """Enough of a hash to tell it from another."""
    algorithm, separator, digest = value.replace("sha256 ", "sha256:").rpartition(":")
    return f"{algorithm}{separator}{digest[:12]}" if len(digest) >= 32 else value
