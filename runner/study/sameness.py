"""One figure is made of one program, and launches are compared that ran on the same nodes and GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.core.errors import RefusedError
from runner.core.hide import hidden_command
from runner.core.invocation import PROGRAM
from runner.jobs.comparison import Ran, code_differences, facts_for, first_difference, ran_of, recipe_difference
from runner.jobs.directory import Run
from runner.model.plan import LaunchPlace
from runner.model.study import Launch
from runner.planning.options import options_of
from runner.preparation.job import PreparedJob, code_of
from runner.study.attempts import Attempt

_STAMP = len("20261122-120000")  # with which the id of a run begins


def only_first_program(
    launches: Iterable[Launch], made: Mapping[str, Sequence[Attempt]]
) -> dict[str, tuple[Attempt, ...]]:
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


Place = tuple[int, int]  # number of the node in the allocation's order, number of the GPU there; both from 0


@dataclass(frozen=True)
class RankFacts:
    """A rank by its start record.

    Attributes:
        node: its name. gpu: UUID; empty without one. cpus: processors that it may run on, in the kernel's list format.
        ports: of the fabric, near its GPU. cuda: it computes on a GPU.
        sharing: ranks of its launch on that node that have the same processors, itself among them.
    """

    node: str
    gpu: str
    cpus: str
    ports: tuple[str, ...]
    cuda: bool = False
    sharing: int = 1


def place_differences(launches: Mapping[str, Mapping[Place, RankFacts]]) -> tuple[str, ...]:
    """What is not the same in all launches, a sentence for each kind; empty where nothing differs. Pure.

    Args:
        launches: by their keys, in their order: the ranks by their places.
    """
    first: dict[Place, tuple[str, RankFacts]] = {}
    found: dict[str, list[str]] = {}
    for key, ranks in launches.items():
        for place, facts in sorted(ranks.items(), key=lambda each: each[0]):
            before_key, before = first.setdefault(place, (key, facts))
            for kind, one, other in _unequal(before, facts):
                number, gpu = place
                sentence = f"GPU {gpu} of node {number}: {kind} {one} in {before_key}, {other} in {key}"
                found.setdefault(kind, []).append(sentence)
    return tuple(_with_count(each) for each in found.values())


def run_differences(runs: Iterable[tuple[str, Run]]) -> tuple[str, ...]:
    """The differences between runs that have ended, given with the keys of their launches."""
    return place_differences({key: dict(_ranks(run)) for key, run in runs})


def _unequal(one: RankFacts, other: RankFacts) -> Iterator[tuple[str, str, str]]:
    if one.node != other.node:  # then all else may differ, too
        yield "node", one.node, other.node
        return
    if one.gpu != other.gpu:
        yield "UUID", one.gpu or "none", other.gpu or "none"
    if one.cpus != other.cpus:
        yield "processors", one.cpus or "unknown", other.cpus or "unknown"
    elif one.cuda and one.sharing != other.sharing:
        yield "ranks that share its processors:", str(one.sharing), str(other.sharing)
    if one.ports != other.ports:
        yield "ports", ", ".join(one.ports) or "none", ", ".join(other.ports) or "none"


def _with_count(sentences: Sequence[str]) -> str:
    more = len(sentences) - 1
    return sentences[0] + (f" (and {more} more)" if more else "")


def _ranks(run: Run) -> Iterator[tuple[Place, RankFacts]]:
    plan = run.plan
    place = (plan.launch if plan else None) or LaunchPlace()
    starts = run.records.starts.values()
    together = sharing([(start.node_rank, start.cpus) for start in starts])
    for start, count in zip(starts, together, strict=True):
        number = place.first_node + start.node_rank
        gpu = (place.first_gpu + start.local_rank) % max(place.node_gpus, 1)
        yield (
            (number, gpu),
            RankFacts(
                start.node_name or start.host,
                start.device_uuid or "",
                start.cpus,
                start.device_ports,
                start.device_kind == "cuda",
                count,
            ),
        )


def sharing(ranks: Sequence[tuple[int, str]]) -> tuple[int, ...]:
    """For each rank, given by its node and its processors, how many of the same node have the very same. Pure."""
    counts: dict[tuple[int, str], int] = {}
    for each in ranks:
        counts[each] = counts.get(each, 0) + 1
    return tuple(counts[each] for each in ranks)
