"""Whether runs are the same, and in what they are not: copies of one launch, one kind of run, one program.

``FACTS`` is the one table of what runs are alike in. Each question asks for its rows: may two sides be compared, may
runs be points of one curve, are launches repeats of one job, is a study's figure made of one program?
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from statistics import fmean
from typing import Literal, NamedTuple, TypeVar

from runner.core.errors import UsageError
from runner.core.hide import hidden_command, hidden_variable
from runner.core.text import first_of
from runner.jobs import inputs
from runner.jobs.code_facts import changes_of, code_facts
from runner.jobs.code_record import is_source
from runner.jobs.directory import CODE_DIFF, Run
from runner.model.backends import SCHEDULERS
from runner.model.figure import AT_ONCE, Doubt, Figure, figure_of
from runner.model.plan import RESULTS, Plan, PlannedImage
from runner.model.records import Report, StartRecord
from runner.model.study import Span
from runner.model.verdict import Verdict
from runner.planning.environment import is_fabric
from runner.planning.options import options_of

Question = Literal["compare", "curve", "repeats", "study", "point", "sizes"]
Identity = tuple[object, ...]
NONE = "none"
FIX = "leave out the copy: a launch counts once"
# Largest mean over smallest: batches of text differ; a whole batch may not divide evenly, nor the last of an epoch.
SAME_BATCH, ONE_BATCH = 1.1, 1.02
# Of a plan: what launches of one program may have of their own, or another fact tells; and those of several sizes.
_OF_A_LAUNCH = frozenset(
    ("job_name", "site", "walltime_s", "limit_is_default", "account", "image", "env", "unset", "program",
     "demonstration", "starters", "unknown_starters", "samples_per_step", "tasks_per_node", "arms", "held",
     "existing_allocation", "launch", "hosts", "workdir", "umask", "trust", "forced", "recipe", "result", "framework",
     "world", "swept", "owners", "attempt", "attempts")
)  # fmt: skip
_OF_A_SIZE = frozenset(
    ("gpus_per_node", "gpu_type", "device", "cpus_per_task", "divides_cpus", "memory_mb", "memory_per_cpu_mb",
     "whole_nodes", "queue", "transport", "wireup", "mpi", "directives")
)  # fmt: skip
_MEANS = "mean size of a sample", (_PASSES := "forward passes of a step")  # of a window, as of batches that vary


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What ran, and what its figure is of.

    Attributes:
        batch: samples of a rank in a step, the mean of all ranks and of the window; None where unknown.
        varying: steps take as many as there are, so that no two runs take the same.
        figure: with its doubts; None unless it is ``measured``.
        device_name: of its first rank's device, as the framework says; empty where unknown.
        code: what ran, as ``runner.jobs.code_facts.code_facts``; only repeats and studies ask for it.
        changes: of its code, as ``runner.jobs.code_facts.changes_of``; None where it is not known.
        trained: as a meter saw it (``Report.trained``).
        ran_with: what its ranks recorded of that.
        machine: that no scheduler has chosen: this one, or the first of listed hosts; else empty.
    """

    plan: Plan
    batch: float | None = None
    varying: bool = False
    device_name: str = ""
    figure: Figure | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, str] | None = None
    trained: Mapping[str, str] = field(default_factory=dict)
    ran_with: inputs.RanWith | None = None
    machine: str = ""

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
        names: of what differs between runs, where it has parts, and it is not for a value to tell.
    """

    key: str
    words: str
    value: Callable[[Ran], str]
    questions: str
    names: Callable[[Sequence[Ran]], Sequence[str]] | None = None

    @property
    def code(self) -> str:
        """Of the refusal, and of ``--force``."""
        return f"other-{self.key}"

    def with_names(self, runs: Sequence[Ran]) -> str:
        """What it is, and which parts differ between these runs."""
        names = self.names(runs) if self.names else ()
        return f"{self.words} ({first_of(names, 3)})" if names else self.words


def _other_machines(runs: Sequence[Ran]) -> list[str]:
    names = sorted({each.machine for each in runs if each.machine})
    return names if len(names) > 1 else []


def _of_parts(_ran: Ran) -> str:
    return ""


def _parts(key: str, words: str, questions: str, names: Callable[[Sequence[Ran]], Sequence[str]]) -> Fact:
    return Fact(key, words, _of_parts, questions, names)


def _recorded(names: inputs.Named) -> Callable[[Sequence[Ran]], Sequence[str]]:
    """Of what ranks recorded; what one run did not record tells nothing."""
    return lambda runs: names([each.ran_with for each in runs if each.ran_with is not None])


def _other_given(runs: Sequence[Ran]) -> list[str]:
    """Without what a site sets for jobs on several nodes only."""
    of_site = {name for each in runs for name, _ in each.plan.env if is_fabric(name)}
    return [name for name in _recorded(inputs.other_given)(runs) if name not in of_site]


def _other_changes(runs: Sequence[Ran]) -> list[str]:
    """Files with other changes since the commit, unless a program wrote them, such as its results, or they are Python's
    and none read them, such as another script.
    """
    known = [each.changes for each in runs if each.changes is not None]
    written = {name for each in runs if each.ran_with is not None for name in each.ran_with.first.written}
    python = {name for each in runs if each.ran_with is not None for name in each.ran_with.python}
    is_known = all(map(_knows_python, runs))
    return [
        name
        for name in sorted({name for each in known for name in each})
        if len({each.get(name) for each in known}) > 1
        and not any(_is_below(name, own) for own in written)
        and not (is_known and name.endswith(".py") and not any(_is_below(name, own) for own in python))
    ]


def reads_none(runs: Iterable[Ran], names: Iterable[str]) -> bool:
    """Whether these files are of Python, and each launch recorded that it read none of them."""
    every, python = list(runs), {name for name in names if name.endswith(".py")}
    own = {name for each in every if each.ran_with is not None for name in each.ran_with.python}
    is_known = all(map(_knows_python, every)) and python == {*names}
    return is_known and not any(_is_below(name, each) for name in python for each in own)


def _knows_python(ran: Ran) -> bool:
    """Whether a launch recorded which of its files of Python it read."""
    return ran.ran_with is not None and bool(ran.ran_with.first.modules)


def _other_trained(runs: Sequence[Ran]) -> list[str]:
    """What of the training, as a meter saw it."""
    names = sorted({name for each in runs for name in each.trained})
    values = {name: {value for each in runs if (value := each.trained.get(name))} for name in names}
    batches = [each.batch for each in runs if each.batch]
    has_one_batch = not batches or max(batches) <= SAME_BATCH * min(batches)  # else a larger one may be accumulated
    return [
        name
        for name, each in values.items()
        if (len(each) > 1 if name not in _MEANS else _are_apart(each) and (name != _PASSES or has_one_batch))
    ]


def _are_apart(means: Collection[str]) -> bool:
    try:
        known = [float(each) for each in means]
    except ValueError:  # of another version
        return len(means) > 1
    return bool(known) and max(known) > SAME_BATCH * min(known)


def _is_below(name: str, other: str) -> bool:
    """Whether two names may be of one file, the one below its repository, the other below the program's directory."""
    return f"/{name}".endswith(f"/{other}") or other.endswith(f"/{name}")


def _option(name: str) -> Callable[[Ran], str]:
    return lambda ran: ran.options.get(name, NONE)


def _planned(of_a_launch: frozenset[str]) -> Callable[[Sequence[Ran]], Sequence[str]]:
    """Fields of plans, without those that launches may have of their own."""

    def names(runs: Sequence[Ran]) -> list[str]:
        fields = (name for name in Plan.__struct_fields__ if name not in of_a_launch)
        return [
            name for name in fields if any(getattr(each.plan, name) != getattr(runs[0].plan, name) for each in runs)
        ]

    return names


def _program(ran: Ran) -> str:
    """What a command without a recipe runs: the module behind ``-m``, the first file of source, or its first word."""
    words = [*ran.plan.program, ""]
    if ran.plan.recipe:
        return NONE
    return words[words.index("-m") + 1] if "-m" in words else next(filter(is_source, words), words[0])


def image_text(image: PlannedImage) -> str:
    """What tells an image from another; of a file without a digest its size, as it may be made again in its place."""
    return image.digest or image.sha256 or f"{image.path} {image.size_bytes or ''}".strip()


def _program_env(ran: Ran) -> tuple[tuple[str, str], ...]:
    """As a bundle has it."""
    env = (pair for pair in ran.plan.env if not inputs.names_a_launch(pair[0]))
    return tuple((name, hidden_variable(name, value)) for name, value in env)


def _without_fabric(env: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Without what a site sets for jobs on several nodes only."""
    return tuple(pair for pair in env if not is_fabric(pair[0]))


FACTS = (
    Fact("recipe", "recipe", lambda ran: ran.plan.recipe or NONE, "compare curve"),
    Fact("program", "program", _program, "curve"),
    Fact("model", "model", _option("model"), "compare curve"),
    Fact("precision", "precision", _option("precision"), "compare curve"),
    Fact("image-size", "image size", _option("image-size"), "compare curve"),
    Fact(
        "batch",
        "batch of a GPU",
        lambda ran: NONE if ran.batch is None or ran.varying else f"{ran.batch:.6g}",
        "compare curve repeats point",
    ),
    Fact("gpus", "number of GPUs", lambda ran: str(ran.gpus), "compare"),
    Fact(
        "placement",
        "ranks on each node",
        lambda ran: ",".join(map(str, ran.plan.tasks_per_node)),
        "compare repeats point",
    ),
    Fact("device", "device", lambda ran: f"{ran.plan.device} {ran.plan.gpu_type}".strip(), "compare curve sizes"),
    Fact("reported-device", "reported device", lambda ran: ran.device_name, "compare curve study"),
    Fact("site", "site", lambda ran: ran.plan.site, "compare curve repeats"),
    Fact("arm", "arm of the figure", lambda ran: ran.plan.arms[-1], "compare"),  # a report has a curve for each
    Fact("unit", "unit of the figure", lambda ran: ran.figure.unit if ran.figure else "images", "compare study"),
    Fact(
        "proof",
        "synchronisation",
        lambda ran: "not-examined" if ran.figure and ran.figure.has("not-examined") else "proven",
        "compare curve",
    ),
    Fact(
        "claim",
        "claim",
        lambda ran: "demonstration" if ran.figure and ran.figure.demonstration else "performance",
        "compare curve",
    ),
    Fact(
        "command",
        "command line",
        lambda ran: "\0".join(inputs.without_names(hidden_command(ran.plan.program))),
        "repeats point",
    ),
    Fact("image", "image", lambda ran: image_text(ran.plan.image), "repeats study"),
    Fact("env", "environment", lambda ran: f"{_program_env(ran)} {ran.plan.unset}", "repeats point"),
    Fact("own-env", "environment", lambda ran: f"{_without_fabric(_program_env(ran))} {ran.plan.unset}", "sizes"),
    _parts("machine", "machine", "point sizes", _other_machines),
    _parts("setup", "plan", "repeats point", _planned(_OF_A_LAUNCH)),
    _parts("own-setup", "plan", "sizes", _planned(_OF_A_LAUNCH | _OF_A_SIZE)),
    _parts("trained", "training as the meter saw it", "repeats point sizes", _other_trained),
    _parts("variables", "set of variables", "repeats point", _recorded(inputs.other_variables)),
    _parts("given", "set of variables", "sizes", _other_given),
    _parts("processors", "number of processors of a rank", "repeats point", _recorded(inputs.other_processors)),
    _parts("packages", "set of installed packages", "repeats point sizes", _recorded(inputs.other_packages)),
    _parts("read", "content of files that were read", "repeats point", _recorded(inputs.other_files)),
    _parts("own-read", "content of files that were read", "sizes", _recorded(partial(inputs.other_files, sizes=True))),
    Fact("software", "reported software", lambda ran: ran.code.get("software", ""), "repeats study"),
    Fact("copy", "program", lambda ran: ran.code.get("program", ""), "repeats study"),
    Fact("commit", "commit", lambda ran: ran.code.get("commit", ""), "repeats study"),
    _parts("changes", "changes since the commit", "repeats study", _other_changes),
    _parts("sources", "program as it started", "repeats study", _recorded(inputs.other_sources)),
    Fact("files", "program as it started", lambda ran: ran.code.get("files", ""), "repeats study"),
    _parts("modules", "content of modules", "repeats study point sizes", _recorded(inputs.other_modules)),
)
_OF_BOTH = frozenset(("files",))  # what one run has not recorded tells nothing


_AnyRan = TypeVar("_AnyRan", bound=Ran)


def beside_each_other(runs: Iterable[_AnyRan]) -> list[_AnyRan]:
    """The same, each of which knows the others: they may have made what it read."""
    every = list(runs)
    known = tuple(each.ran_with for each in every if each.ran_with is not None)
    return [replace(each, ran_with=each.ran_with and replace(each.ran_with, beside=known)) for each in every]


def facts_for(question: Question) -> tuple[Fact, ...]:
    """The facts that decide it."""
    return tuple(fact for fact in FACTS if question in fact.questions.split())


def differences(
    question: Question, first: Iterable[Ran], second: Iterable[Ran]
) -> Iterator[tuple[Fact, list[str], list[str]]]:
    """What two groups are not alike in, with the values of each; what one has not recorded tells nothing. Of batches
    that vary their means count.
    """
    sides = list(first), list(second)
    for fact in facts_for(question):
        one, two = (sorted({fact.value(ran) for ran in side}) for side in sides)
        if fact.names:
            if names := fact.names([*sides[0], *sides[1]]):
                yield fact, [], [*names]
        elif fact.key == "batch" and any(ran.varying for side in sides for ran in side):
            means = [fmean(ran.batch or 0.0 for ran in side) for side in sides]
            if all(means) and not _is_one_batch(means, [ran for side in sides for ran in side]):
                yield fact, [f"{means[0]:.4g} on average"], [f"{means[1]:.4g} on average"]
        elif one != two and [""] not in (one, two):
            yield fact, one, two


def first_difference(question: Question, one: Ran, other: Ran, *, recorded: bool = False) -> Fact | None:
    """The first thing that two runs are not alike in; of files, and with ``recorded``, of those that both recorded."""
    for fact in facts_for(question):
        values = fact.value(one), fact.value(other)
        if _are_unlike(fact, (one, other)) and (fact.names or all(values) or not (recorded or fact.key in _OF_BOTH)):
            return fact
    return None


def unlike(question: Question, runs: Sequence[Ran]) -> tuple[Fact, ...]:
    """The facts that have several values among these runs."""
    return tuple(fact for fact in facts_for(question) if _are_unlike(fact, runs))


def _are_unlike(fact: Fact, runs: Sequence[Ran]) -> bool:
    if fact.key == "batch" and any(ran.varying for ran in runs):
        return not _is_one_batch([ran.batch or 0.0 for ran in runs], runs)
    if fact.names:
        return bool(fact.names(runs))
    if fact.key == "commit":
        is_known = all(_knows_python(ran) and ran.code.get("other_sources") for ran in runs)
        what = "other_sources" if is_known else "sources"
        if len({ran.code.get(what) or fact.value(ran) for ran in runs}) == 1:
            return False
    return len({fact.value(ran) for ran in runs}) > 1


def _is_one_batch(means: Sequence[float], runs: Iterable[Ran]) -> bool:
    """Whether means are near each other, of which some are of runs whose steps differ in their batch."""
    return max(means) <= (SAME_BATCH if all(ran.varying for ran in runs) else ONE_BATCH) * min(means)


def ran_of(run: Run) -> Ran | None:
    """What a run was, by its own files; None where its plan cannot be read."""
    plan = run.plan
    if plan is None:
        return None
    code = code_facts(run)
    if f"{plan.workdir}/".startswith(f"{RESULTS}/"):
        # Of a program that was copied the copy tells, and the commit of the place it came from nothing more.
        code = {key: code.get(key, "") for key in ("program", "software", "files")}
    return ran_with(run, plan, run.verdict, code)


def ran_with(
    run: Run,
    plan: Plan,
    verdict: Verdict | None,
    code: Mapping[str, str],
    batch: Batch | None = None,
    *,
    recorded: bool = False,
) -> Ran:
    """What a run was, of what was read of it already; ``batch``: of ``batch_of``. ``recorded``: with what its ranks
    recorded, also without the code.
    """
    report, batch = run.records.report(0), batch or Batch()
    is_here = SCHEDULERS[plan.scheduler].nodes == "this-machine"
    return Ran(
        plan=plan,
        batch=plan.samples_per_step if batch.mean is None else batch.mean,
        varying=batch.varies,
        device_name=(report and report.device_name) or "",
        figure=figure_of(verdict, plan.arms[-1] if plan.arms else None),
        code=code,
        changes=changes_of(run.code, run.content(CODE_DIFF)) if "commit" in code else None,
        trained=_trained(run, report.trained if report else {}),
        ran_with=inputs.ran_with(run) if code or recorded else None,
        machine=plan.hosts.names[0] if plan.hosts else _first_host(run) if is_here else "",
    )


def _first_host(run: Run) -> str:
    """As its first rank said, whose records are sealed."""
    start = run.records.start(0)
    return start.host if start is not None else ""


def _trained(run: Run, first: Mapping[str, str]) -> Mapping[str, str]:
    """As the first rank's meter saw it, with the means of all ranks: each may have data of another size."""
    own = [name for name in _MEANS if first.get(name)]
    every = [each.trained for each in run.records.records("report", Report).values()] if own else []
    means = dict(first)
    for name in own:
        with suppress(ValueError):  # of another version, or a rank does not know it: the first one's
            means[name] = f"{fmean(float(each.get(name, '')) for each in every):.6g}"
    return means


class Batch(NamedTuple):
    """Samples of a rank in a step, the mean of its window and of all ranks, None where a rank recorded none; whether
    steps differ in them; the largest of the ranks' over the smallest.
    """

    mean: float | None = None
    varies: bool = False
    apart: float = 1.0


def batch_of(run: Run) -> Batch:
    """As its ranks recorded it."""
    reports = run.records.records("report", Report).values()
    batches = [
        fmean(each.group_samples) / each.group_steps if each.group_samples and each.group_steps else each.batch_size
        for each in reports
    ]
    known = [batch for batch in batches if batch]
    varies = any(len({*each.group_samples}) > 1 for each in reports)
    if not known or len(known) < len(batches):
        return Batch(None, varies)
    return Batch(fmean(known), varies, max(known) / min(known))


def identity_of(start: StartRecord | None, report: Report | None) -> Identity:
    """What no two launches share, as far as it is known, of their first ranks: job, job step and instant of the start,
    and the times of the window.
    """
    began = (start.job_id, start.token, start.time_s) if start and start.time_s is not None else None
    return tuple(filter(None, (began, report and report.ends_checksum)))


def at_once(spans: Iterable[Span]) -> list[tuple[str, str]]:
    """Pairs of which one began before the other had ended, on a node that both had, as far as these are known. Pure."""
    pairs: list[tuple[str, str]] = []
    running: list[Span] = []
    for each in sorted((span for span in spans if span.began_s > 0.0), key=lambda span: (span.began_s, span.run)):
        running = [other for other in running if other.ended_s > each.began_s]
        shared = (other for other in running if not (each.nodes and other.nodes) or {*each.nodes} & {*other.nodes})
        pairs += [(other.run, each.run) for other in shared]
        running.append(each)
    return pairs


def together_doubts(pairs: Iterable[tuple[str, str]]) -> tuple[Doubt, ...]:
    """Of figures of launches that ran ``at_once``, and may have waited for each other: the first two are named."""
    different = (pair for pair in pairs if pair[0] != pair[1])  # a run and its copy
    return tuple(Doubt("unequal", f"{one} and {other} {AT_ONCE}") for one, other in islice(different, 1))


def identities(runs: Iterable[Run]) -> Iterator[tuple[str, Identity]]:
    """Of each run its id and what ``identity_of`` finds in its records."""
    return ((run.run_id, identity_of(run.records.start(0), run.records.report(0))) for run in runs)


def copy_among(runs: Iterable[tuple[str, Identity]]) -> tuple[str, str] | None:
    """The first two, by name, that are one launch, as a copy under the same name is; None where each is a launch of its
    own. Pure.
    """
    seen: dict[object, tuple[int, str]] = {}
    for place, (name, identity) in enumerate(runs):
        for mark in identity:
            if (first := seen.setdefault(mark, (place, name)))[0] != place:
                return first[1], name
    return None


def check_launches(runs: Iterable[tuple[str, Identity]]) -> None:
    """A launch counts once, also where its run directory was copied. Raises UsageError: two are one."""
    if twice := copy_among(runs):
        what = f"{' and '.join(twice)} are one launch: the same ranks began at the same instant, or took the same times"
        raise UsageError(what, fix=FIX)
