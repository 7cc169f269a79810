"""Studies, reports, comparisons, expectations and bundles from Python: as the command line has them, and as thin."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from runner.api.arguments import arguments_of, pairs_of, path_of, place_of, values_of, words_of
from runner.api.jobs import CheckRefusedError, Options, Run, check_timeout, check_types, warn
from runner.errors import UsageError
from runner.model.bundle import MadeBundle, VerifiedBundle
from runner.model.compared import Compared
from runner.model.expectation import Expectation
from runner.model.names import Wireup
from runner.model.origin import CommandLine
from runner.model.report import Report
from runner.model.study import Arm, Launch, PlannedStudy, StudyFacts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from runner.compare.compare import Side
    from runner.preparation.request import JobOptions
    from runner.study.directory import StudyDirectory
    from runner.study.subject import Subject

T = TypeVar("T")


class Study:
    """A study: launches of one program at several sizes.

    Attributes:
        directory: all that it was asked, given and left.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    @property
    def id(self) -> str:
        """Its id, by which the command line knows it, too."""
        return self.directory.name

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
        from runner.study.waiting import wait

        check_timeout(timeout)
        return wait(self._files, warn, timeout_s=timeout)

    def cancel(self) -> tuple[str, ...]:
        """Cancel its jobs, and let nothing more be started; returns their ids."""
        from runner.study.ways import way

        study = self._files
        study.stop()
        return way(study.study.way).cancel(study)

    @property
    def _files(self) -> StudyDirectory:
        from runner.study.lookup import find

        return find(str(self.directory))

    def __repr__(self) -> str:
        return f"<study {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Study) and self.directory == other.directory

    def __hash__(self) -> int:
        return hash(self.directory)


Named: TypeAlias = Run | Study | str | os.PathLike[str]


@overload
def scale(
    gpus: Sequence[int], command: Sequence[str] = (), *, arms: Sequence[Arm] = ..., repeats: int = ...,
    strong: bool = ..., same_nodes: bool = ..., budget: float | None = ..., attempts: int = ..., wait: bool = ...,
    dry_run: Literal[False] = False, **options: Unpack[Options],
) -> Study: ...  # fmt: skip


@overload
def scale(
    gpus: Sequence[int], command: Sequence[str] = (), *, arms: Sequence[Arm] = ..., repeats: int = ...,
    strong: bool = ..., same_nodes: bool = ..., budget: float | None = ..., attempts: int = ..., wait: bool = ...,
    dry_run: Literal[True], **options: Unpack[Options],
) -> PlannedStudy: ...  # fmt: skip


def scale(
    gpus: Sequence[int],
    command: Sequence[str] = (),
    *,
    arms: Sequence[Arm] = ("full",),
    repeats: int = 3,
    strong: bool = False,
    same_nodes: bool = False,
    budget: float | None = None,
    attempts: int = 3,
    wait: bool = False,
    dry_run: bool = False,
    **options: Unpack[Options],
) -> Study | PlannedStudy:
    """Begin a study. It returns when every launch is in the queue; on this machine and on hosts, when all have ended.

    Args:
        gpus: the sizes. command, options: as of ``submit``, for every launch; in ``set`` a list of values makes a point
            of each: ``{"batch-size": [128, 256]}``.
        arms, repeats, strong, same_nodes, budget, attempts: as of the command line. wait: until all have ended.
        dry_run: return the launches and what they cost, and submit nothing.

    Raises:
        CheckRefusedError, RefusedError: a launch cannot run so, or the budget is too small. Else as ``submit``.
    """
    from runner.preparation.job import prepare
    from runner.preparation.request import make_options
    from runner.study.beginning import begin
    from runner.study.question import Preparations, ask, check_budget, choose, offers, recipe_of
    from runner.study.ways import Listener, Work, way

    if isinstance(gpus, str | int):
        raise UsageError("the sizes are one value", where="gpus", fix="a list of numbers: [1, 2, 4, 8]")
    if not isinstance(repeats, int) or repeats < 1:
        raise UsageError(f"{repeats!r} repeats are not possible", where="repeats", fix="one or more")
    words = words_of(command)
    pairs = pairs_of(options.get("set") or {})
    question = ask(",".join(map(str, gpus)), ",".join(arms), pairs, repeats, strong=strong)
    shared: dict[str, Any] = {name: value for name, value in options.items() if name != "set"}
    values = values_of("scale", shared, Options.__annotations__)
    keep_diff, runs = not values.pop("no_diff", False), values.get("runs", Path("runs"))
    recipe = recipe_of(make_options(gpus=1, arguments=words, **values))

    def options_of(launch: Launch) -> JobOptions:
        chosen = make_options(
            gpus=launch.gpus, arguments=words, **{**values, "options": question.options(launch, recipe)}
        )
        check_types(chosen.request)
        return chosen

    jobs = Preparations(options_of, lambda job: prepare(job, keep=not dry_run))
    found = offers(question, jobs)
    chosen = choose(found, same_nodes=same_nodes)
    if not chosen.is_refused:
        check_budget(chosen.cost, budget)
    if dry_run:
        return PlannedStudy(chosen.cost.way, chosen.launches, tuple(each.cost for each in found), chosen.findings)
    if chosen.is_refused:
        raise CheckRefusedError(chosen.findings)

    def line_of(verb: str, more: Mapping[str, object], site: str) -> CommandLine:
        given = arguments_of({**shared, **more})
        return CommandLine((verb, *given, "--", *words), str(Path.cwd()), "" if shared.get("site") else site)

    def command_of(launch: Launch) -> CommandLine:
        more = {"gpus": launch.gpus, "set": dict(question.options(launch, recipe))}
        return line_of("submit", more, jobs.of(launch).site_file)

    asked = {
        "gpus": ",".join(map(str, gpus)), "arms": ",".join(arms), "repeats": repeats, "strong": strong,
        "same_nodes": same_nodes, "set": dict(pairs),
    }  # fmt: skip
    first = jobs.of(chosen.launches[0])
    study = begin(question, chosen, first, line_of("scale", asked, first.site_file), runs)
    work = Work(
        study, jobs.of, command_of, Listener(_nothing, _nothing, warn), keep_diff=keep_diff, waits=wait, limit=attempts
    )
    with study.exclusive(_nothing):
        way(study.study.way).carry_out(work, chosen.launches)
    return Study(study.path)


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
    from runner.compare.compare import compare_sides, compare_with_references
    from runner.compare.references import default_file

    _check_share("margin", margin, 1.0)
    if fail_below is not None:
        _check_share("fail_below", fail_below, 10.0)
    if (second is None) == (reference is False):
        raise UsageError("one thing to compare with is needed: a second side, or a reference", fix="give one of them")
    if second is None:
        file = default_file() if isinstance(reference, bool) else place_of(reference)
        return compare_with_references(_side(first), margin, file)
    return compare_sides(_side(first), _side(second), margin, fail_below=fail_below, force=tuple(force))


def report(*subjects: Named, output: str | os.PathLike[str] | None = None) -> Report:
    """The report on a study or on runs, as ``report --json`` has it.

    Args:
        output: a directory for the page, the picture, the tables and the JSON; None writes nothing.

    Raises:
        UsageError: they are no runs or study, or cannot be in one report, or the directory holds something else.
        InfrastructureError: it cannot be written.
    """
    from runner.report import writing
    from runner.study.subject import report_of

    made, _ = report_of(_subjects(subjects), warn)
    return made if output is None else writing.write(made, place_of(output), _nothing)


def expect(
    gpus: int | Sequence[int],
    *,
    nodes: int | None = None,
    site: str | os.PathLike[str] | None = None,
    recipe: str | os.PathLike[str] | None = None,
    set: Mapping[str, object] | None = None,
    one_gpu: Run | str | None = None,
    images_per_s: float | None = None,
    step_ms: float | None = None,
    input_images_per_s: float | None = None,
    nccl_tests: str | os.PathLike[str] | None = None,
    nccl_gpus: int | None = None,
    allreduce: Run | str | None = None,
    wireup: Wireup | None = None,
    assume: Mapping[str, float | tuple[float, float, float]] | None = None,
) -> Expectation:
    """What a recipe should reach on so many GPUs: ranges, with what they rest on. Nothing is run.

    Args:
        one_gpu, allreduce: measured runs. The others are those of the command line.
        assume: input -> value, or (low, value, high).

    Raises:
        UsageError: an option is wrong. RefusedError: nothing can be expected.
    """
    from runner.preparation.expectation import expectation

    sizes = (gpus,) if isinstance(gpus, int) else tuple(gpus)
    if not sizes or not all(isinstance(each, int) for each in sizes):
        raise UsageError("no sizes are given", where="gpus", fix="a number, or a list of numbers")
    given = {
        name: (float(value),) * 3 if isinstance(value, int | float) else tuple(map(float, value))
        for name, value in (assume or {}).items()
    }
    ranges = {name: (each[0], each[1], each[2]) for name, each in given.items() if len(each) == 3}
    if len(ranges) != len(given):
        raise UsageError("an assumption is no value and no range", where="assume", fix="VALUE, or (LOW, VALUE, HIGH)")
    return expectation(
        sizes,
        nodes=nodes,
        site=_optional(path_of, site) or os.environ.get("RUNNER_SITE") or None,
        recipe=_optional(path_of, recipe),
        settings=pairs_of(set or {}),
        one_gpu=_optional(_name, one_gpu),
        images_per_s=images_per_s,
        step_ms=step_ms,
        input_images_per_s=input_images_per_s,
        nccl_tests=_optional(place_of, nccl_tests),
        nccl_gpus=nccl_gpus,
        allreduce=_optional(_name, allreduce),
        wireup=wireup,
        assumed=ranges,
    )


def bundle(*subjects: Named, file: str | os.PathLike[str], sign: str | os.PathLike[str] | None = None) -> MadeBundle:
    """Write runs, or a study, with all that their figures are made from into one file, for ``verify``.

    Args:
        sign: an ssh key of yours.

    Raises:
        NotProvenError: one is not measured. UsageError: they cannot be in one bundle, or the key cannot sign.
    """
    from runner.study.subject import bundle_of

    return bundle_of(_subjects(subjects), place_of(file), _optional(place_of, sign))


def verify(file: str | os.PathLike[str], *, allowed_signers: str | os.PathLike[str] | None = None) -> VerifiedBundle:
    """Make every figure and verdict of a bundle anew from its records.

    Raises:
        NotProvenError: it was altered, or does not give what it says. UsageError: it cannot be read.
    """
    from runner.bundle.verification import verify as verified
    from runner.study.gather import figures

    return verified(place_of(file), _optional(place_of, allowed_signers), figures)


def _name(subject: Named) -> str:
    return str(subject.directory) if isinstance(subject, Run | Study) else path_of(subject)


def _subjects(named: Sequence[Named]) -> tuple[Subject, ...]:
    from runner.study.subject import find_subjects

    if not named:
        raise UsageError("no run and no study is named", fix="give one, or several runs")
    return find_subjects([_name(each) for each in named])


def _side(named: Named | Sequence[Named]) -> Side:
    from runner.study.subject import side, side_of_each

    if isinstance(named, list | tuple):
        return side_of_each([_name(each) for each in named])
    return side(_name(named))  # type: ignore[arg-type]


def _check_share(name: str, value: float, most: float) -> None:
    if not isinstance(value, int | float) or not 0.0 < value < most:
        raise UsageError(f"{value!r} does not lie between 0 and {most:g}", where=name, fix="a share such as 0.02")


def _optional(read: Callable[[Any], T], value: object) -> T | None:
    return None if value is None else read(value)


def _nothing(*_: object) -> None:
    """Nothing is printed."""
