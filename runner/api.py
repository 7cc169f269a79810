"""gpu-runner from Python: ``from runner import submit, runs``; all of it: ``from runner.api import ...``.

The same stages as the command line's, and the same objects as its JSON. Nothing is printed; what goes wrong is raised
as an error of ``runner.core.errors``, whose ``code`` is the command line's exit code. docs/python.md is the page on it.
"""

from __future__ import annotations

import inspect
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, TypeVar, get_args, overload

from runner.core.errors import RefusedError, UsageError
from runner.core.files import guarded
from runner.core.paths import site_of_shell
from runner.jobs import directory as run_directories
from runner.jobs.facts import run_facts
from runner.model.expectation import Compared, Expectation
from runner.model.job import CommandLine
from runner.model.output import Cancellation, MadeBundle, Preparation, RunFacts, VerifiedBundle, shown_plan
from runner.model.plan import Finding
from runner.model.report import Report
from runner.model.request import Wireup
from runner.model.study import Arm, PlannedStudy, StudyFacts
from runner.model.verdict import Verdict
from runner.preparation import options as given
from runner.preparation.options import Options, taken

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from runner.figures.compare.compare import Side
    from runner.study.directory import StudyDirectory, Subject, SweepDirectory
    from runner.study.separate import Listener

__all__ = ["Chain", "CheckRefusedError", "Options", "Run", "Study", "bundle", "compare", "expect", "report", "runs",
           "scale", "submit", "verify"]  # fmt: skip
T = TypeVar("T")


def _nothing(*_: object) -> None:
    """Nothing is printed."""


class CheckRefusedError(RefusedError):
    """A check refuses the job: nothing was submitted.

    Attributes:
        findings: of all checks; each has ``code``, ``what`` and ``fix``.
    """

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        first = next(each for each in findings if each.severity == "refuse" and not each.forced)
        super().__init__(f"{first.what} [{first.code}]", fix=first.fix)


class _Directory:
    """A run or a study.

    Attributes:
        directory: all that it was given and left. id: by which the command line knows it, too.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self.id = self.directory.name

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.directory == other.directory

    def __hash__(self) -> int:
        return hash(self.directory)


class Run(_Directory):
    """A run: queued, running or ended."""

    @property
    def verdict(self) -> Verdict | None:
        """What the run is worth, once ``wait`` or ``status`` has judged it; no scheduler is queried."""
        return self._files.verdict

    def status(self) -> RunFacts:
        """All that is known of it now, as ``status --json`` shows it.

        Raises:
            UnknownStateError: the scheduler does not answer.
        """
        from runner.jobs.life import standing
        from runner.study.of_run import studies_of

        run = self._files
        return run_facts(run, standing(run), studies_of(run))

    def wait(self, timeout: float | None = None) -> Verdict:
        """Wait until it has ended, and judge it. Ctrl-C ends the waiting, not the job.

        Args:
            timeout: seconds to wait at most.

        Raises:
            UsageError: the timeout is no number of seconds.
            UnknownStateError: that time is over, or the scheduler does not answer.
        """
        from runner.jobs.life import finish

        _check_timeout(timeout)
        return finish(self._files, lambda _progress: None, _warn, timeout_s=timeout)

    def cancel(self) -> Cancellation:
        """Cancel its job; no error if it has already ended.

        Raises:
            RefusedError: it is another user's, or could be exchanged for it. UnknownStateError: the scheduler does not
                answer.
        """
        from runner.jobs.states import cancel_run

        job_id, had_ended = cancel_run(self._files)
        return Cancellation(self.id, str(self.directory), job_id, had_ended)

    def logs(self, rank: int | None = None) -> dict[str, str]:
        """Its logs that are not empty: file name -> text. ``rank``: only those of this rank."""
        run = self._files
        names = (name for name in run.names_in("logs") if rank is None or name.startswith(f"rank-{rank}."))
        texts = {name: run.content(f"logs/{name}").decode("utf-8", "replace") for name in sorted(names)}
        return {name: text for name, text in texts.items() if text}

    @property
    def _files(self) -> run_directories.Run:
        from runner.jobs.lookup import resolved

        return run_directories.Run(resolved(self.directory))

    def __repr__(self) -> str:
        verdict = self.verdict
        return f"<run {self.id}{f': {verdict.outcome}' if verdict else ''}>"


class Runs(list[Run]):
    """Runs, the newest first, or those of a sweep; a notebook shows them as a table, without a scheduler's query."""

    def wait(self, timeout: float | None = None) -> list[Verdict]:
        """Wait until all have ended, and judge them: as ``Run.wait``, but a scheduler is asked once for all of them."""
        from runner.jobs.life import finish
        from runner.jobs.states import Together

        _check_timeout(timeout)
        together, until = Together(each._files for each in self), time.monotonic() + (timeout or 0.0)
        verdicts = []
        for each in self:
            left_s = None if timeout is None else max(0.0, until - time.monotonic())
            verdicts.append(finish(each._files, _nothing, _warn, timeout_s=left_s, together=together))
        return verdicts

    def _repr_html_(self) -> str:
        from runner.core.columns import Column, as_html
        from runner.core.text import settings_text

        columns: tuple[Column[Run], ...] = (
            Column("run", lambda each: each.id),
            Column("values", lambda each: settings_text(each._files.swept.items())),
            Column("GPUs", lambda each: str(plan.gpus) if (plan := each._files.plan) else ""),
            Column("result", lambda each: verdict.outcome if (verdict := each.verdict) else "not judged yet"),
        )
        return as_html(columns, self)


class Chain(_Directory):
    """Attempts at one job until its program is done."""

    @property
    def attempts(self) -> Runs:
        """Those that were queued so far."""
        return Runs(Run(run.path) for run in self._files.submitted)

    @property
    def end(self) -> str:
        """Why no further attempt follows; empty while one may."""
        return self._files.end

    @property
    def left_out(self) -> tuple[str, ...]:
        """The nodes that later attempts leave out, each with why."""
        return self._files.left_out

    def wait(self, timeout: float | None = None) -> Verdict:
        """Wait until no attempt follows; the verdict is that of the last. Else as ``Run.wait``."""
        from runner.study.chain import wait

        _check_timeout(timeout)
        return wait(self._files, _warn, timeout_s=timeout)

    def cancel(self) -> tuple[str, ...]:
        """Cancel its jobs, and let no attempt follow; returns their ids."""
        from runner.study.chain import cancel

        return cancel(self._files)

    @property
    def _files(self) -> SweepDirectory:
        from runner.study.directory import find_sweep

        if (chain := find_sweep(str(self.directory))) is None:
            raise UsageError("there is no chain", where=str(self.directory), fix="name the directory of one")
        return chain

    def __repr__(self) -> str:
        return f"<chain {self.id}{f': {self.end}' if self.end else ''}>"


class Study(_Directory):
    """A study: launches of one program at several sizes."""

    def status(self) -> StudyFacts:
        """As it stands, as ``status --json`` shows it: points, efficiencies, losses, and what is not proven."""
        from runner.study.gather import facts

        return facts(self._files)

    def wait(self, timeout: float | None = None) -> StudyFacts:
        """Wait until none of its jobs is queued or runs. Ctrl-C ends the waiting, not the jobs.

        Args:
            timeout: seconds to wait at most.

        Raises:
            UsageError: the timeout is no number of seconds. UnknownStateError: that time is over.
        """
        from runner.study.gather import wait

        _check_timeout(timeout)
        return wait(self._files, _warn, timeout_s=timeout)

    def cancel(self) -> tuple[str, ...]:
        """Cancel its jobs, and let nothing more be started; returns their ids."""
        from runner.study import run

        return run.cancel(self._files)

    @property
    def _files(self) -> StudyDirectory:
        from runner.study.directory import find

        return find(str(self.directory))

    def __repr__(self) -> str:
        return f"<study {self.id}>"


Named: TypeAlias = Run | Study | str | os.PathLike[str]


@overload
def submit(
    gpus: int, command: Sequence[str] = (), *, dry_run: Literal[False] = False, **options: Unpack[Options]
) -> Run: ...


@overload
def submit(
    gpus: int, command: Sequence[str] = (), *, sweep: Mapping[str, Sequence[object]], at_once: int | None = ...,
    dry_run: Literal[False] = False, **options: Unpack[Options],
) -> Runs: ...  # fmt: skip


@overload
def submit(
    gpus: int, command: Sequence[str] = (), *, until_done: Literal[True], attempts: int = ...,
    gpu_hours: float | None = ..., dry_run: Literal[False] = False, **options: Unpack[Options],
) -> Chain: ...  # fmt: skip


@overload
def submit(
    gpus: int, command: Sequence[str] = (), *, sweep: Mapping[str, Sequence[object]] | None = ...,
    at_once: int | None = ..., until_done: bool = ..., attempts: int = ..., gpu_hours: float | None = ...,
    dry_run: Literal[True], **options: Unpack[Options],
) -> Preparation: ...  # fmt: skip


@overload
def submit(
    gpus: int, command: Sequence[str] = (), *, dry_run: bool, **options: Unpack[Options]
) -> Run | Preparation: ...


@guarded()
def submit(
    gpus: int, command: Sequence[str] = (), *, sweep: Mapping[str, Sequence[object]] | None = None,
    at_once: int | None = None, until_done: bool = False, attempts: int = 5, gpu_hours: float | None = None,
    dry_run: bool = False, **options: Unpack[Options],
) -> Run | Runs | Chain | Preparation:  # fmt: skip
    """Submit a job of ``gpus`` ranks, one for each GPU, and return its run without waiting for it.

    Args:
        command: the program and its arguments, started in the working directory: ``["python", "train.py"]``; with a
            recipe, arguments of the recipe's program. Without both, the default recipe, a benchmark, is run.
        sweep: values by name, ``{"lr": [0.1, 0.2]}``: a run for each combination, with ``{lr}`` in the command
            replaced; returns them as ``Runs``. at_once: how many of them may run at one time.
        until_done: through time limits and lost nodes; returns a ``Chain``. attempts, gpu_hours: of it, at most.
        dry_run: return the script (of a sweep that of its first run), the plan and the findings, and change nothing.
        options: see ``runner.preparation.options``; None stands for the default. In ``env`` None takes a variable away,
            and True gives it its value in this process; ``time`` is ``[D-][H:]M:S``, or seconds.

    Raises:
        UsageError: an option is wrong. CheckRefusedError, RefusedError: the job cannot run so.
        NotAcceptedError: the scheduler did not take it. UnknownStateError: it is unknown whether it did.
    """
    from runner.preparation.job import prepare, start
    from runner.preparation.request import make_request

    request = make_request({**given.values_of("submit", options), "gpus": gpus, "arguments": given.program_of(command)})
    if at_once is not None and not sweep:
        raise UsageError("it is for the runs of a sweep", where="at_once", fix="give a sweep")
    if until_done and sweep is not None:
        raise UsageError("a sweep has no attempts", where="until_done", fix="leave it out, or submit each run so")
    group = None
    if sweep is None:
        prepared = prepare(request, keep=not dry_run)
        if until_done:
            from runner.study import chain

            most = taken("attempts", given.count_of, attempts)
            prepared = chain.first_attempt(prepared, most, _optional("gpu_hours", given.number_of, gpu_hours))
    else:
        from runner.study import sweep as sweeps

        at_once = _optional("at_once", given.count_of, at_once)
        group = sweeps.prepare_sweep(
            request, taken("sweep", _swept, sweep), at_once, lambda r: prepare(r, keep=not dry_run)
        )
        prepared = next((job for job in group.jobs.values() if job.is_refused), group.jobs["1"])
    findings = group.findings if group else prepared.findings
    if dry_run:
        text, files = prepared.script.text, prepared.script.files
        return Preparation(text, shown_plan(prepared.plan), findings, prepared.unconfirmed, files)
    if prepared.is_refused:
        raise CheckRefusedError(findings)
    if until_done:
        first, _ = chain.start(prepared, CommandLine((), request.directory))
        return Chain(first.path.parents[2])
    if group is None:
        return Run(start(prepared)[0].path)
    made = sweeps.start(group, CommandLine((), request.directory), _Quiet().listener)
    return Runs(Run(run.path) for run in made.submitted)


def runs(name: str | None = None) -> Runs:
    """Your runs, the newest first; with ``name`` those whose id or name is this, or begins so. No scheduler is queried.

    Submissions that the scheduler did not take are left out.
    """
    from runner.jobs.lookup import was_refused

    head = name or ""
    meant = (run for run in run_directories.linked() if run.run_id.startswith(head) or run.name.startswith(head))
    return Runs(Run(run.path) for run in meant if not was_refused(run))


@overload
def scale(
    gpus: Sequence[int], command: Sequence[str] = (), *, arms: Sequence[Arm] = ..., repeats: int = ...,
    strong: bool = ..., same_nodes: bool = ..., solo_gpus: int | None = ..., budget: float | None = ...,
    attempts: int = ..., wait: bool = ...,
    dry_run: Literal[False] = False, **options: Unpack[Options],
) -> Study: ...  # fmt: skip


@overload
def scale(
    gpus: Sequence[int], command: Sequence[str] = (), *, arms: Sequence[Arm] = ..., repeats: int = ...,
    strong: bool = ..., same_nodes: bool = ..., solo_gpus: int | None = ..., budget: float | None = ...,
    attempts: int = ..., wait: bool = ...,
    dry_run: Literal[True], **options: Unpack[Options],
) -> PlannedStudy: ...  # fmt: skip


@guarded()
def scale(
    gpus: Sequence[int], command: Sequence[str] = (), *, arms: Sequence[Arm] = ("full",), repeats: int = 3,
    strong: bool = False, same_nodes: bool = False, solo_gpus: int | None = None, budget: float | None = None,
    attempts: int = 3, wait: bool = False,
    dry_run: bool = False, **options: Unpack[Options],
) -> Study | PlannedStudy:  # fmt: skip
    """Begin a study. It returns when every launch is in the queue; on this machine and on hosts, when all have ended.

    Args:
        gpus: the sizes. command, options: as of ``submit``, for every launch; in ``set`` a list of values makes a point
            of each: ``{"batch-size": [128, 256]}``.
        arms, repeats, strong, same_nodes, solo_gpus, budget, attempts: as of the command line.
        wait: until all have ended.
        dry_run: return the launches and what they cost, and submit nothing.

    Raises:
        CheckRefusedError, RefusedError: a launch cannot run so, or the budget is too small. Else as ``submit``.
    """
    from runner.preparation.request import make_request
    from runner.study import run as studies
    from runner.study.question import ask

    sizes = taken("gpus", _counts, gpus)
    named_arms = taken("arms", given.texts_of, arms)
    repeats, attempts = taken("repeats", given.count_of, repeats), taken("attempts", given.count_of, attempts)
    budget, solo_gpus = _optional("budget", given.number_of, budget), _optional("solo_gpus", given.count_of, solo_gpus)
    request = make_request({**given.values_of("scale", options), "gpus": 1, "arguments": given.program_of(command)})
    question = ask(request, sizes, arms=named_arms, repeats=repeats, strong=strong, solo_gpus=solo_gpus)
    how = studies.How(same_nodes, budget, attempts, wait, dry_run)
    done = studies.run(question, how, _Quiet(), lambda record: CommandLine((), record.request.directory, record.site))
    if not isinstance(done, PlannedStudy):
        return Study(done.path)
    if not dry_run:
        raise CheckRefusedError(done.findings)
    return done


def _signature(function: Callable[..., object]) -> inspect.Signature:
    """With each option of a job as a keyword of its own, for ``help`` and completion; None stands for its default."""
    own = inspect.signature(function)
    first = [each for each in own.parameters.values() if each.kind != each.VAR_KEYWORD]
    hints = ((name, get_args(hint)[0]) for name, hint in Options.__annotations__.items())
    keywords = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint) for name, hint in hints
    )
    return own.replace(parameters=[*first, *keywords])


for _function in (submit, scale):
    vars(_function)["__signature__"] = _signature(_function)


class _Quiet:
    """A ``runner.study.run.Caller`` that shows nothing but warnings, and agrees."""

    say = planned = begun = differs = staticmethod(_nothing)

    def preparing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def agrees(self, _planned: PlannedStudy) -> bool:
        return True

    def listening(self) -> AbstractContextManager[Listener]:
        return nullcontext(self.listener)

    @property
    def listener(self) -> Listener:
        from runner.study.separate import Listener

        return Listener(_nothing, _nothing, _warn)


def compare(
    first: Named | Sequence[Named],
    second: Named | Sequence[Named] | None = None,
    *,
    margin: float = 0.02,
    fail_below: float | None = None,
    reference: bool | str | os.PathLike[str] = False,
    force: Sequence[str] = (),
) -> Compared:
    """B against A, or A against its reference: the verdict of each point, or why there is none.

    Args:
        first, second: a run or a study, its name (``"STUDY:NAME=VALUE"`` for points of one), or a list of launches.
        margin: a share. fail_below: the ratio of B to A that B must reach; ``judgement`` says whether it does.
        reference: without ``second``: True for your references.yaml, or another file.
        force: codes of what is compared all the same.

    Raises:
        UsageError: something is named wrongly. NotProvenError: a run is not measured.
    """
    from runner.figures.compare.compare import compare_sides, compare_with_references
    from runner.figures.compare.references import default_file

    _check_share("margin", margin, 1.0)
    if fail_below is not None:
        _check_share("fail_below", fail_below, 10.0)
    if (second is None) == (reference is False or reference is None):
        raise UsageError("one thing to compare with is needed: a second side, or a reference", fix="give one of them")
    if second is None:
        file = default_file() if isinstance(reference, bool) else taken("reference", _place, reference)
        return compare_with_references(_side(first), margin, file)
    codes = taken("force", given.texts_of, force)
    return compare_sides(_side(first), _side(second), margin, fail_below=fail_below, force=codes)


@guarded()
def report(*subjects: Named, output: str | os.PathLike[str] | None = None) -> Report:
    """The report on a study or on runs, as ``report --json`` has it.

    Args:
        output: a directory for the page, the picture, the tables and the JSON; None writes nothing.

    Raises:
        UsageError: they are no runs or study, or cannot be in one report, or the directory holds something else.
        InfrastructureError: it cannot be written.
    """
    from runner.figures.report import writing
    from runner.study.readers import report_of

    place = _optional("output", _place, output)
    made, _ = report_of(_subjects(subjects), _warn)
    return made if place is None else writing.write(made, place, _nothing)


def expect(
    gpus: int | Sequence[int], *, nodes: int | None = None, site: str | os.PathLike[str] | None = None,
    recipe: str | os.PathLike[str] | None = None, set: Mapping[str, object] | None = None,
    one_gpu: Run | str | None = None, images_per_s: float | None = None, step_ms: float | None = None,
    input_images_per_s: float | None = None, nccl_tests: str | os.PathLike[str] | None = None,
    nccl_gpus: int | None = None, allreduce: Run | str | None = None, wireup: Wireup | None = None,
    assume: Mapping[str, float | tuple[float, float, float]] | None = None,
) -> Expectation:  # fmt: skip
    """What a recipe should reach on so many GPUs: ranges, with what they rest on. Nothing is run.

    Args:
        one_gpu, allreduce: measured runs. The others are those of the command line.
        assume: input -> value, or (low, value, high).

    Raises:
        UsageError: an option is wrong. RefusedError: nothing can be expected.
    """
    from runner.preparation.expectation import expectation

    if wireup is not None and wireup not in get_args(Wireup):
        raise UsageError(f"no wireup {wireup!r}", where="wireup", fix=f"one of {', '.join(get_args(Wireup))}")
    return expectation(
        taken("gpus", _counts, (gpus,) if isinstance(gpus, SupportsIndex) else gpus),
        nodes=_optional("nodes", given.count_of, nodes),
        site=_optional("site", given.path_of, site) or site_of_shell() or None,
        recipe=_optional("recipe", given.path_of, recipe),
        settings=taken("set", given.pairs_of, set or {}),
        one_gpu=_optional("one_gpu", _name, one_gpu),
        images_per_s=_optional("images_per_s", given.number_of, images_per_s),
        step_ms=_optional("step_ms", given.number_of, step_ms),
        input_images_per_s=_optional("input_images_per_s", given.number_of, input_images_per_s),
        nccl_tests=_optional("nccl_tests", _place, nccl_tests),
        nccl_gpus=_optional("nccl_gpus", given.count_of, nccl_gpus),
        allreduce=_optional("allreduce", _name, allreduce),
        wireup=wireup,
        assumed=taken("assume", _ranges, assume or {}),
    )


def _swept(values: Mapping[str, Sequence[object]]) -> dict[str, tuple[str, ...]]:
    if any(isinstance(each, str) for each in values.values()):
        raise TypeError('the values of a name must be a list: {"lr": [0.1, 0.2]}')
    return {name: tuple(map(str, each)) for name, each in values.items()}


def _counts(values: Sequence[int]) -> tuple[int, ...]:
    if isinstance(values, str | int):
        raise TypeError("the sizes are one value, and must be a list: [1, 2, 4, 8]")
    counts = tuple(map(given.count_of, values))
    if not counts:
        raise ValueError("no sizes are given")
    return counts


def _ranges(values: Mapping[str, object]) -> dict[str, tuple[float, float, float]]:
    """Each assumption as (low, value, high)."""
    ranges = {}
    for name, value in values.items():
        numbers = (
            tuple(map(given.number_of, value)) if isinstance(value, list | tuple) else (given.number_of(value),) * 3
        )
        if len(numbers) != 3:
            raise ValueError("an assumption is VALUE, or (LOW, VALUE, HIGH)")
        ranges[name] = (numbers[0], numbers[1], numbers[2])
    return ranges


@guarded()
def bundle(*subjects: Named, file: str | os.PathLike[str], sign: str | os.PathLike[str] | None = None) -> MadeBundle:
    """Write runs, or a study, with all that their figures are made from into one file, for ``verify``.

    Args:
        sign: an ssh key of yours.

    Raises:
        NotProvenError: one is not measured. UsageError: they cannot be in one bundle, or the key cannot sign.
    """
    from runner.study.readers import bundle_of

    target, key = taken("file", _place, file), _optional("sign", _place, sign)
    return bundle_of(_subjects(subjects), target, key)


def verify(file: str | os.PathLike[str], *, allowed_signers: str | os.PathLike[str] | None = None) -> VerifiedBundle:
    """Make every figure and verdict of a bundle anew from its records.

    Raises:
        NotProvenError: it was altered, or does not give what it says. UsageError: it cannot be read.
    """
    from runner.figures.bundle.verification import verify as verified
    from runner.study.gather import figures

    signers = _optional("allowed_signers", _place, allowed_signers)
    return verified(taken("file", _place, file), signers, figures)


def _place(value: object) -> Path:
    return Path(given.place_of(value))


def _name(subject: Named) -> str:
    return str(subject.directory) if isinstance(subject, Run | Study) else given.path_of(subject)


def _subjects(named: Sequence[Named]) -> tuple[Subject, ...]:
    from runner.study.directory import find_subjects

    if not named:
        raise UsageError("no run and no study is named", fix="give one, or several runs")
    return find_subjects([taken("subjects", _name, each) for each in named])


def _side(named: Named | Sequence[Named]) -> Side:
    from runner.study.readers import side, side_of_runs

    if isinstance(named, list | tuple):
        return side_of_runs([taken("a side", _name, each) for each in named])
    return side(taken("a side", _name, named))


def _check_share(name: str, value: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < most:
        raise UsageError(f"{value!r} does not lie between 0 and {most:g}", where=name, fix="a share such as 0.02")


def _optional(name: str, read: Callable[[Any], T], value: object) -> T | None:
    return None if value is None else taken(name, read, value)


def _check_timeout(timeout: float | None) -> None:
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout >= 0):  # nor NaN
        fix = "a number of seconds, zero or more; None waits to the end"
        raise UsageError(f"the timeout is {timeout!r}", where="timeout", fix=fix)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
