"""Studies, reports, comparisons, expectations and bundles from Python: as the command line has them, and as thin."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, TypeVar, get_args, overload

from runner.api.arguments import (
    arguments_of,
    count_of,
    given_as,
    number_of,
    pairs_of,
    path_of,
    place_of,
    texts_of,
    values_of,
    words_of,
)
from runner.api.jobs import CheckRefusedError, Options, Run, check_timeout, check_types, warn
from runner.core.errors import UsageError
from runner.model.bundle import MadeBundle, VerifiedBundle
from runner.model.compared import Compared
from runner.model.expectation import Expectation
from runner.model.names import Wireup
from runner.model.origin import CommandLine
from runner.model.report import Report
from runner.model.study import Arm, Launch, PlannedStudy, StudyFacts

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from runner.figures.compare.compare import Side
    from runner.preparation.request import JobOptions
    from runner.study.directory import StudyDirectory
    from runner.study.lookup import Subject

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


def scale(
    gpus: Sequence[int],
    command: Sequence[str] = (),
    *,
    arms: Sequence[Arm] = ("full",),
    repeats: int = 3,
    strong: bool = False,
    same_nodes: bool = False,
    solo_gpus: int | None = None,
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
        arms, repeats, strong, same_nodes, solo_gpus, budget, attempts: as of the command line.
        wait: until all have ended.
        dry_run: return the launches and what they cost, and submit nothing.

    Raises:
        CheckRefusedError, RefusedError: a launch cannot run so, or the budget is too small. Else as ``submit``.
    """
    from runner.preparation.job import prepare
    from runner.preparation.request import make_options
    from runner.study.beginning import begin
    from runner.study.question import Preparations, ask, check_budget, choose, offers, recipe_of
    from runner.study.ways import Listener, Work, way

    sizes = ",".join(map(str, given_as("gpus", _counts, gpus)))
    named_arms = ",".join(given_as("arms", texts_of, arms))
    repeats, attempts = given_as("repeats", count_of, repeats), given_as("attempts", count_of, attempts)
    if budget is not None:
        given_as("budget", number_of, budget)
    words = words_of(command)
    pairs = given_as("set", pairs_of, options.get("set") or {})
    if solo_gpus is not None:
        solo_gpus = given_as("solo_gpus", count_of, solo_gpus)
    question = ask(sizes, named_arms, pairs, repeats, strong=strong, solo_gpus=solo_gpus)
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
    chosen = choose(question, found, same_nodes=same_nodes)
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
        "gpus": sizes, "arms": named_arms, "repeats": repeats, "strong": strong,
        "same_nodes": same_nodes, "set": dict(pairs), "solo_gpus": solo_gpus,
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
    from runner.figures.compare.compare import compare_sides, compare_with_references
    from runner.figures.compare.references import default_file

    _check_share("margin", margin, 1.0)
    if fail_below is not None:
        _check_share("fail_below", fail_below, 10.0)
    if (second is None) == (reference is False or reference is None):
        raise UsageError("one thing to compare with is needed: a second side, or a reference", fix="give one of them")
    if second is None:
        file = default_file() if isinstance(reference, bool) else given_as("reference", place_of, reference)
        return compare_with_references(_side(first), margin, file)
    codes = given_as("force", texts_of, force)
    return compare_sides(_side(first), _side(second), margin, fail_below=fail_below, force=codes)


def report(*subjects: Named, output: str | os.PathLike[str] | None = None) -> Report:
    """The report on a study or on runs, as ``report --json`` has it.

    Args:
        output: a directory for the page, the picture, the tables and the JSON; None writes nothing.

    Raises:
        UsageError: they are no runs or study, or cannot be in one report, or the directory holds something else.
        InfrastructureError: it cannot be written.
    """
    from runner.figures.report import writing
    from runner.study.subject import report_of

    place = _optional("output", place_of, output)
    made, _ = report_of(_subjects(subjects), warn)
    return made if place is None else writing.write(made, place, _nothing)


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

    if wireup is not None and wireup not in get_args(Wireup):
        raise UsageError(f"no wireup {wireup!r}", where="wireup", fix=f"one of {', '.join(get_args(Wireup))}")
    return expectation(
        given_as("gpus", _counts, (gpus,) if isinstance(gpus, SupportsIndex) else gpus),
        nodes=_optional("nodes", count_of, nodes),
        site=_optional("site", path_of, site) or os.environ.get("RUNNER_SITE") or None,
        recipe=_optional("recipe", path_of, recipe),
        settings=given_as("set", pairs_of, set or {}),
        one_gpu=_optional("one_gpu", _name, one_gpu),
        images_per_s=_optional("images_per_s", number_of, images_per_s),
        step_ms=_optional("step_ms", number_of, step_ms),
        input_images_per_s=_optional("input_images_per_s", number_of, input_images_per_s),
        nccl_tests=_optional("nccl_tests", place_of, nccl_tests),
        nccl_gpus=_optional("nccl_gpus", count_of, nccl_gpus),
        allreduce=_optional("allreduce", _name, allreduce),
        wireup=wireup,
        assumed=given_as("assume", _ranges, assume or {}),
    )


def _counts(values: Sequence[int]) -> tuple[int, ...]:
    if isinstance(values, str | int):
        raise TypeError("the sizes are one value, and must be a list: [1, 2, 4, 8]")
    counts = tuple(map(count_of, values))
    if not counts:
        raise ValueError("no sizes are given")
    return counts


def _ranges(values: Mapping[str, object]) -> dict[str, tuple[float, float, float]]:
    """Each assumption as (low, value, high)."""
    found = {}
    for name, value in values.items():
        numbers = tuple(map(number_of, value)) if isinstance(value, list | tuple) else (number_of(value),) * 3
        if len(numbers) != 3:
            raise ValueError("an assumption is VALUE, or (LOW, VALUE, HIGH)")
        found[name] = (numbers[0], numbers[1], numbers[2])
    return found


def bundle(*subjects: Named, file: str | os.PathLike[str], sign: str | os.PathLike[str] | None = None) -> MadeBundle:
    """Write runs, or a study, with all that their figures are made from into one file, for ``verify``.

    Args:
        sign: an ssh key of yours.

    Raises:
        NotProvenError: one is not measured. UsageError: they cannot be in one bundle, or the key cannot sign.
    """
    from runner.study.subject import bundle_of

    target, key = given_as("file", place_of, file), _optional("sign", place_of, sign)
    return bundle_of(_subjects(subjects), target, key)


def verify(file: str | os.PathLike[str], *, allowed_signers: str | os.PathLike[str] | None = None) -> VerifiedBundle:
    """Make every figure and verdict of a bundle anew from its records.

    Raises:
        NotProvenError: it was altered, or does not give what it says. UsageError: it cannot be read.
    """
    from runner.figures.bundle.verification import verify as verified
    from runner.study.gather import figures

    signers = _optional("allowed_signers", place_of, allowed_signers)
    return verified(given_as("file", place_of, file), signers, figures)


def _name(subject: Named) -> str:
    return str(subject.directory) if isinstance(subject, Run | Study) else path_of(subject)


def _subjects(named: Sequence[Named]) -> tuple[Subject, ...]:
    from runner.study.lookup import find_subjects

    if not named:
        raise UsageError("no run and no study is named", fix="give one, or several runs")
    return find_subjects([given_as("subjects", _name, each) for each in named])


def _side(named: Named | Sequence[Named]) -> Side:
    from runner.study.subject import side, side_of_each

    if isinstance(named, list | tuple):
        return side_of_each([given_as("a side", _name, each) for each in named])
    return side(given_as("a side", _name, named))


def _check_share(name: str, value: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < most:
        raise UsageError(f"{value!r} does not lie between 0 and {most:g}", where=name, fix="a share such as 0.02")


def _optional(name: str, read: Callable[[Any], T], value: object) -> T | None:
    return None if value is None else given_as(name, read, value)


def _nothing(*_: object) -> None:
    """Nothing is printed."""
