"""One figure is made of one program, and launches are compared that ran on the same nodes and GPUs.

The program is that of the earliest proven run. What ran is the program's copy, else the commit of the user's code and
what differed from it; and the image. What a run did not record tells nothing. What it counts is the same in all, and
its command line in all launches of one point: a batch that another site file gives would be another program.

Each rank has a place in the study's allocation: which of its nodes, and which GPU there. By the ranks' own start
records a place must be the same in every launch that has it. Else the launches differ by more than their size and their
arm, and a comparison of them has no verdict.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.core.errors import RefusedError
from runner.core.hide import hidden_command
from runner.core.invocation import PROGRAM
from runner.core.text import gpus_text
from runner.jobs.code_facts import changes_of, commit_facts
from runner.jobs.code_record import changed_since
from runner.jobs.comparison import Ran, facts_for, first_difference, identity_of, image_text, ran_of, reads_none
from runner.jobs.differences import code_differences, recipe_difference
from runner.jobs.directory import LAUNCHES, Run, is_whole_id
from runner.model.job import CodeRecord
from runner.model.plan import LaunchPlace
from runner.model.study import Launch, Study
from runner.planning.options import options_of
from runner.preparation.job import PreparedJob, code_of
from runner.study.attempts import Attempt

TWICE = "its run is another launch's, too"
_STAMP = len("20261122-120000")  # with which the id of a run begins
_SHARING = "ranks that share its processors:"
_Place = tuple[int, int]  # number of the node in the allocation's order, number of the GPU there; both from 0


def only_first_program(
    launches: Iterable[Launch], made: Mapping[str, Sequence[Attempt]]
) -> dict[str, tuple[Attempt, ...]]:
    """The attempts of a study, in which a proven one counts as not proven if it ran another program than the first.

    Args:
        launches: of the study. made: by the launch's key, in the study's order.
    """
    alike = {key: tuple(each) for key, each in made.items()}
    first = _first_proven(made)
    if first is None:
        return alike
    if (program := ran_of(first.run)) is not None:
        alike = {key: tuple(_checked(attempt, first, program) for attempt in each) for key, each in alike.items()}
    points: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for each in launches:
        points[each.gpus, each.arm, each.arms, each.settings].append(each.key)
    for keys in points.values():
        of_point = {key: alike[key] for key in keys if key in alike}
        if (one := _first_proven(of_point)) is not None:
            words = _words(one.run)
            alike |= {key: tuple(_with_words(each, one, words) for each in made) for key, made in of_point.items()}
    return alike


def only_own(
    study: Study,
    made: Mapping[str, Sequence[Attempt]],
    launched: Mapping[str, Collection[str]] | None = None,
    *,
    bundled: Mapping[str, Collection[str]] | None = None,
) -> dict[str, tuple[Attempt, ...]]:
    """The attempts of a study, in which a proven one counts as not proven where it is not one of its launch: another
    launch has it too, its directory or plan was another launch's, or the log does not have it.

    Args:
        made: by the launch's key. launched: ids of the runs that the log has, by the launch's key; None without one.
    """
    noted = [
        (key, each.run)
        for key, attempts in made.items()
        for each in attempts
        if not each.is_gap and (launched is None or each.run.run_id in launched.get(key, ()))
    ]
    marks = {run.path: _marks(run) for _, run in noted}
    having: dict[object, set[str]] = defaultdict(set)
    for key, run in noted:
        for mark in marks[run.path]:
            having[mark].add(key)

    def checked(launch: Launch, attempt: Attempt) -> Attempt:
        run, why = attempt.run, ""
        if attempt.state != "proven":
            return attempt
        if launched is not None and run.run_id not in launched.get(launch.key, ()):
            why = "the study's log does not have its run as one of this launch"
        elif any(len(having[mark]) > 1 for mark in marks[run.path]):
            why = TWICE
        elif differs := _elsewhere(study, launch, run, (bundled or {}).get(launch.key, ())) or _not_planned(
            study, launch, run
        ):
            why = f"its run is of another launch ({differs})"
        return replace(attempt, state="not-proven", why=f"{why}: it proves nothing") if why else attempt

    by_key = {launch.key: launch for launch in study.launches}
    return {key: tuple(checked(by_key[key], each) for each in attempts) for key, attempts in made.items()}


def _marks(run: Run) -> tuple[object, ...]:
    """What only one run has: its id, its submission (an allocation has several runs), its first rank's identity."""
    record = run.submitted
    own = () if record is None or record.allocation else ((record.job_id, record.submitted_s),)
    return run.run_id, *own, *identity_of(run.records.start(0), run.records.report(0))


def _elsewhere(study: Study, launch: Launch, run: Run, bundled: Collection[str]) -> str:
    """Of which study and launch a run was, by its first rank's directory; empty where that is this one, or unknown: in
    a container it has another name. ``bundled``: as of ``only_own``, of this launch.
    """
    at = run.ran_in.parts[-4:]
    own = [(study.study, LAUNCHES, launch.key), run.path.parts[-4:-1]]  # a study's directory may have been renamed
    own += [(*at[:1], LAUNCHES, launch.key)] if run.run_id in bundled else []
    return f"it ran as {'/'.join(at)}" if at[-1:] and is_whole_id(at[-1]) and at[:3] not in own else ""


def _not_planned(study: Study, launch: Launch, run: Run) -> str:
    """What of a run's plan is not the launch's; empty where nothing is, or the plan cannot be read."""
    plan = run.plan
    if plan is None:
        return ""
    if launch.gpus not in (plan.tasks, plan.gpus):
        return f"{gpus_text(plan.tasks)} instead of {launch.gpus}"
    if other := {*plan.arms} - {*(launch.arms or ("full",))}:
        return f"with the arm {min(other)}"
    options = options_of(hidden_command(plan.program))
    for name, value in () if study.strong else launch.settings:  # a whole batch is divided
        ran = options.get(name, value)
        if ran != value and any((name, ran) in setting for setting in study.settings):
            return f"{name} {ran} instead of {value}"
    return ""


def _first_proven(made: Mapping[str, Sequence[Attempt]]) -> Attempt | None:
    """The earliest by the log; without one by the ids, of one second the first in the study's order."""
    proven = [attempt for each in made.values() for attempt in each if attempt.state == "proven"]
    return min(proven, key=lambda attempt: (attempt.place, attempt.run.run_id[:_STAMP]), default=None)


def _checked(attempt: Attempt, first: Attempt, program: Ran) -> Attempt:
    own = ran_of(attempt.run) if attempt.state == "proven" and attempt is not first else None
    fact = first_difference("study", program, own, recorded=True) if own else None
    if fact is None or own is None:
        return attempt
    if fact.names:
        differing = fact.with_names((program, own))
        return _left_out(attempt, f"it did not run with the {differing} of the study's first launch")
    if fact.key == "unit":
        counts = f"it counts {fact.value(own)}, and the study's first launch {fact.value(program)}"
        return _left_out(attempt, f"{counts}: state the batch (--meter-batch N)")
    values = _short(fact.value(own)), _short(fact.value(program))
    return _left_out(attempt, f"its {fact.words} ({values[0]}) is not that of the study's first launch ({values[1]})")


def _with_words(attempt: Attempt, first: Attempt, then: Sequence[str]) -> Attempt:
    """The attempt; not proven where its command line is not that of the first run of its point."""
    own = _words(attempt.run) if attempt.state == "proven" else ()
    differs = _changed(then, own) if then and own else ""
    why = f"its program's options are not those of {first.run.run_id} ({differs})"
    return _left_out(attempt, why) if differs else attempt


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
    first = _first_proven(made)
    if first is None:
        return
    now = prepare(next(each for each in launches if first in made.get(each.key, ())))
    proven = [each.run for attempts in made.values() for each in attempts if each.state == "proven"]
    for change in _since(first.run, proven, now):
        raise RefusedError(
            f"{change}: launches of the first one are proven, and no figure is made of two programs",
            where=str(first.run.path),
            fix="put the first one back, or begin a new study for the other",
        )


def _since(first: Run, proven: Iterable[Run], now: PreparedJob) -> Iterator[str]:
    """What of the program is not as it was, a sentence each. ``proven``: the first one, and others like it."""
    then, image = ran_of(first), now.plan.image
    recorded = {fact.key: fact.value(then) for fact in facts_for("study")} if then else {}
    for each in recipe_difference(first, now.recipe_directory):
        yield f"the program is not as it was ({each.first} -> {each.second})"
    code, text = code_of(now)
    known = commit_facts(code) if code else {}
    if then and code and known and not _only_unread_changed(proven, then.code.get("commit", ""), code):
        known |= {"other_sources": ""}
    after = (
        replace(then, code=known, changes=changes_of(code, text.encode("utf-8", "surrogateescape"))) if then else None
    )
    is_same = then and after and known and not first_difference("study", then, after, recorded=True)
    if recorded.get("commit") and not is_same:
        for each in code_differences(first, code, text):
            if each.key not in ("repository", "branch"):
                yield f"the code is not as it was ({each.key}: {each.first} -> {each.second})"
    words = _words(first)
    if words and (differs := _changed(words, hidden_command(now.plan.program))):
        yield f"the program's options are not as they were ({differs})"
    digest = image_text(image)
    if recorded.get("image") and digest != recorded["image"]:
        yield f"the image is not as it was ({recorded['image']} -> {digest})"


def _only_unread_changed(proven: Iterable[Run], commit: str, now: CodeRecord) -> bool:
    """Whether all that was committed since is Python that none of these runs read, such as another script."""
    names = changed_since(commit, now) or ()
    return bool(names) and reads_none(filter(None, map(ran_of, proven)), names)


def run_differences(runs: Mapping[str, Run]) -> tuple[str, ...]:
    """What is not the same for all launches, a sentence for each kind; empty where nothing differs.

    Args:
        runs: that have ended, by the keys of their launches, in their order.
    """
    first: dict[_Place, tuple[str, dict[str, str]]] = {}
    sentences: dict[str, list[str]] = defaultdict(list)
    for key, run in runs.items():
        for place, facts in sorted(_ranks(run), key=lambda each: each[0]):
            before_key, before = first.setdefault(place, (key, facts))
            for kind in _unequal(before, facts):
                values = f"{before[kind]} in {before_key}, {facts[kind]} in {key}"
                sentences[kind].append(f"GPU {place[1]} of node {place[0]}: {kind} {values}")
    return tuple(each[0] + (f" (and {len(each) - 1} more)" if len(each) > 1 else "") for each in sentences.values())


def _unequal(one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[str]:
    for kind, value in one.items():
        if kind == _SHARING and (one["processors"] != other["processors"] or not value or not other[kind]):
            continue
        if value != other[kind]:
            yield kind
            if kind == "node":  # then all else may differ, too
                return


def _ranks(run: Run) -> Iterator[tuple[_Place, dict[str, str]]]:
    """Each rank's place, with what is compared of it, as it is shown; who shares processors only of ranks on GPUs."""
    plan = run.plan
    place = (plan.launch if plan else None) or LaunchPlace()
    starts = run.records.starts.values()
    sharing = Counter((start.node_rank, start.cpus) for start in starts)
    for start in starts:
        gpu = (place.first_gpu + start.local_rank) % max(place.node_gpus, 1)
        facts = {
            "node": start.node_name or start.host,
            "UUID": start.device_uuid or "none",
            "processors": start.cpus or "unknown",
            _SHARING: str(sharing[start.node_rank, start.cpus]) if start.device_kind == "cuda" else "",
            "ports": ", ".join(start.device_ports) or "none",
        }
        yield (place.first_node + start.node_rank, gpu), facts
