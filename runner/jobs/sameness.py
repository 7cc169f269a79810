"""Whether runs are the same: copies of one launch, one kind of run, one program.

``FACTS`` is the one table of what runs are alike in. Each question asks for its rows: may two sides be compared, may
runs be points of one curve, are launches repeats of one job, is a study's figure made of one program?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from runner.core.hide import hidden_command
from runner.jobs.code_record import is_source
from runner.jobs.comparison import code_facts
from runner.jobs.run import Run
from runner.model.figure import Figure, figure_of
from runner.model.plan import RESULTS, Plan
from runner.model.records import StartRecord
from runner.model.verdict import Verdict
from runner.planning.options import options_of

Question = Literal["compare", "curve", "repeats", "study", "point"]
Identity = tuple[str | None, str | None, float]
NONE = "none"
FIX = "leave out the copy: a launch counts once"


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What ran, and what its figure is of.

    Attributes:
        batch: samples of a rank in a step; None where unknown.
        figure: with its doubts; None unless it is ``measured``.
        code: what ran, as ``runner.jobs.comparison.code_facts``; only repeats and studies ask for it.
    """

    plan: Plan
    batch: int | None = None
    figure: Figure | None = None
    code: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs of the run, as its plan counts them."""
        return self.plan.gpus

    @cached_property
    def options(self) -> Mapping[str, str]:
        """Of the program: ``--NAME VALUE`` and ``--NAME=VALUE``; a flag has an empty value."""
        return options_of(self.plan.program)


@dataclass(frozen=True)
class Fact:
    """One thing that runs are alike in, or not.

    Attributes:
        key: names it; ``other-KEY`` is the code by which ``compare`` refuses, and of ``--force``.
        words: what it is. value: of a run; empty where it is not recorded.
        questions: those that it decides, with blanks between.
    """

    key: str
    words: str
    value: Callable[[Ran], str]
    questions: str

    @property
    def code(self) -> str:
        """Of the refusal, and of ``--force``."""
        return f"other-{self.key}"


def _option(name: str) -> Callable[[Ran], str]:
    return lambda ran: ran.options.get(name, NONE)


def _code(name: str) -> Callable[[Ran], str]:
    return lambda ran: ran.code.get(name, "")


def _program(ran: Ran) -> str:
    """What a command without a recipe runs: the module behind ``-m``, the first file of source, or its first word."""
    program = ran.plan.program
    words = [*program, ""]
    if ran.plan.recipe:
        return NONE
    return words[words.index("-m") + 1] if "-m" in program else next(filter(is_source, program), words[0])


def _image(ran: Ran) -> str:
    image = ran.plan.image
    return image.digest or image.sha256 or image.path


def _unit(ran: Ran) -> str:
    return ran.figure.unit if ran.figure else "images"


def _proof(ran: Ran) -> str:
    return "not-examined" if ran.figure and ran.figure.has("not-examined") else "proven"


def _claim(ran: Ran) -> str:
    return "demonstration" if ran.figure and ran.figure.demonstration else "performance"


FACTS = (
    Fact("recipe", "recipe", lambda ran: ran.plan.recipe, "compare curve"),
    Fact("program", "program", _program, "curve"),
    Fact("model", "model", _option("model"), "compare curve"),
    Fact("precision", "precision", _option("precision"), "compare curve"),
    Fact("image-size", "image size", _option("image-size"), "compare curve"),
    Fact("batch", "batch of a GPU", lambda ran: NONE if ran.batch is None else str(ran.batch), "compare curve"),
    Fact("gpus", "number of GPUs", lambda ran: str(ran.gpus), "compare"),
    Fact("placement", "ranks on each node", lambda ran: ",".join(map(str, ran.plan.tasks_per_node)), "compare repeats"),
    Fact("device", "device", lambda ran: f"{ran.plan.device} {ran.plan.gpu_type}".strip(), "compare curve"),
    Fact("site", "site", lambda ran: ran.plan.site, "compare curve repeats"),
    Fact("arm", "arm of the figure", lambda ran: ran.plan.arms[-1], "compare"),  # a report has a curve for each
    Fact("unit", "unit of the figure", _unit, "compare study"),
    Fact("proof", "synchronisation", _proof, "compare curve"),
    Fact("claim", "claim", _claim, "compare curve"),
    Fact("command", "command line", lambda ran: "\0".join(hidden_command(ran.plan.program)), "repeats point"),
    Fact("image", "image", _image, "repeats study"),
    Fact("env", "environment", lambda ran: f"{ran.plan.env} {ran.plan.unset}", "repeats"),
    Fact("runtime", "runtime", lambda ran: ran.plan.runtime, "repeats"),
    Fact("copy", "program", _code("program"), "repeats study"),
    Fact("commit", "commit", _code("commit"), "repeats study"),
    Fact("changes", "changes since the commit", _code("changes"), "repeats study"),
)


def facts_for(question: Question) -> tuple[Fact, ...]:
    """The facts that decide it."""
    return tuple(fact for fact in FACTS if question in fact.questions.split())


def differences(
    question: Question, first: Iterable[Ran], second: Iterable[Ran]
) -> Iterator[tuple[Fact, list[str], list[str]]]:
    """What two groups are not alike in, with the values of each."""
    sides = list(first), list(second)
    for fact in facts_for(question):
        one, two = (sorted({fact.value(ran) for ran in side}) for side in sides)
        if one != two:
            yield fact, one, two


def first_difference(question: Question, one: Ran, other: Ran, *, recorded: bool = False) -> Fact | None:
    """The first thing that two runs are not alike in; with ``recorded``, of those that both have recorded."""
    for fact in facts_for(question):
        values = fact.value(one), fact.value(other)
        if values[0] != values[1] and (all(values) or not recorded):
            return fact
    return None


def unlike(question: Question, runs: Sequence[Ran]) -> tuple[Fact, ...]:
    """The facts that have several values among these runs."""
    return tuple(fact for fact in facts_for(question) if len({fact.value(ran) for ran in runs}) > 1)


def ran_of(run: Run) -> Ran | None:
    """What a run was, by its own files; None where its plan cannot be read."""
    plan = run.plan
    if plan is None:
        return None
    code = code_facts(run)
    if f"{plan.workdir}/".startswith(f"{RESULTS}/"):
        # Of a program that was copied the copy tells, and the commit of the place it came from nothing more.
        code = {"program": code.get("program", "")}
    return ran_with(run, plan, run.verdict, code)


def ran_with(run: Run, plan: Plan, verdict: Verdict | None, code: Mapping[str, str]) -> Ran:
    """What a run was, of what was read of it already."""
    report = run.records.report(0)
    return Ran(
        plan=plan,
        batch=report.batch_size if report and report.batch_size is not None else plan.samples_per_step,
        figure=figure_of(verdict, plan.arms[-1] if plan.arms else None),
        code=code,
    )


def identity_of(start: StartRecord | None) -> Identity | None:
    """What no two launches share: job, job step and instant of the first rank's start; None where that is unknown."""
    return None if start is None or start.time_s is None else (start.job_id, start.token, start.time_s)


def first_rank_of(run: Run) -> StartRecord | None:
    """The start record of a run's first rank."""
    return run.records.start(0)


def copy_among(runs: Iterable[tuple[str, Identity | None]]) -> tuple[str, str] | None:
    """The first two, by name, that are one launch; None where each is a launch of its own. Pure."""
    seen: dict[Identity, str] = {}
    for name, identity in runs:
        if identity is not None and (first := seen.setdefault(identity, name)) != name:
            return first, name
    return None
