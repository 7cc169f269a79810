"""A study from its question to its launches, each prepared as ``submit`` would, and what they are expected to cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from runner.core.errors import RefusedError, UsageError
from runner.core.text import gpus_text
from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.plan import Finding, Plan
from runner.model.request import Recipe, Request
from runner.model.study import REPEATS, Arm, Launch, Way, WayCost
from runner.planning.options import options_of
from runner.preparation import request as requests
from runner.preparation.job import PreparedJob
from runner.study import plan
from runner.study.plan import Setting, turns

# Until the first step, seconds: assumed. docs/start-up.md has what was measured; most of it is the framework's import.
_START_S, _START_NATIVE_S = 60.0, 30.0
# The least that a benchmark measures (gpu_runner_inside.benchmark.options), and a few seconds of a demonstration.
_WARMUP_S, _WINDOW_S, _DEMONSTRATION_S = 30.0, 30.0, 5.0
_BETWEEN_S = 10.0  # until GPUs and containers of the launch before are free, and its step has ended
# An allocation begins a launch where so many times its expected length, and so many seconds, are left.
_LONGER, _MORE_S = 1.5, 30
_AROUND_S = 60  # before the first launch of an allocation, and after the last
_PARALLEL = "the queue may run several at once: less time then, waiting for it not counted"
_ANY_GPU = "one GPU alone is any GPU, once a repeat"
_APART = (
    "figures only: no attribution of the loss and no A/B verdict, as the launches run apart; `compare` excepts those "
    "that ran in turns on the same nodes and GPUs"
)


def launch_s(plan: Plan, launch: Launch) -> float:
    """How long a launch is expected to take, seconds."""
    options = options_of(plan.program)
    if plan.result != "throughput":
        return float(plan.walltime_s)
    default_s = _DEMONSTRATION_S if "demonstration" in options else None
    warmup_s = _seconds(options, "warmup-seconds", _WARMUP_S if default_s is None else default_s)
    window_s = _seconds(options, "window-seconds", _WINDOW_S if default_s is None else default_s)
    windows = 2 * len(launch.arms) - 1 if launch.arms else 1  # a, b, full, b, a
    start_s = _START_S if RUNTIMES[plan.runtime].is_container else _START_NATIVE_S
    return min(start_s + warmup_s + windows * window_s, float(plan.walltime_s))


def separate_cost(launches: Sequence[Launch], plans: Mapping[str, Plan], *, queued: bool) -> WayCost:
    """Each launch as a job of its own.

    Args:
        plans: by the launch's key. queued: the scheduler gives out nodes.
    """
    lengths = [launch_s(plans[each.key], each) for each in launches]
    sizes = [plans[each.key].occupied_gpus for each in launches]
    notes = (_APART, *((_ANY_GPU,) if any(each.arm.startswith("solo") for each in launches) else ()))
    return WayCost(
        way="separate",
        jobs=len(launches),
        gpu_hours=math.fsum(size * length for size, length in zip(sizes, lengths, strict=True)) / 3600.0,
        most_gpu_hours=math.fsum(plans[each.key].occupied_gpus * plans[each.key].walltime_s for each in launches)
        / 3600.0,
        wall_s=math.fsum(lengths),
        notes=(*notes, _PARALLEL) if queued and len(launches) > 1 else notes,
    )


def one_allocation_cost(
    launches: Sequence[Launch], plans: Mapping[str, Plan], largest: Plan, *, site: str, idle_gpus_s: int | None
) -> WayCost:
    """One job of the largest size, with one launch after the other in it; single GPUs of different nodes at one time.

    Args:
        plans: by the launch's key. largest: the job of the study's largest launch.
        idle_gpus_s: after how long the site ends a job that leaves a GPU idle, seconds; None where that is unknown.
    """
    together = turns(launches)
    lengths = [max(launch_s(plans[each.key], each) for each in turn) + _BETWEEN_S for turn in together]
    limits = [
        (length, max(plans[each.key].walltime_s for each in turn))
        for turn, length in zip(together, lengths, strict=True)
    ]
    gpus = largest.occupied_gpus
    notes = (_idle(together, lengths, gpus, site, idle_gpus_s), *_alone(together))
    return WayCost(
        way="one-allocation",
        jobs=min(len(launches), 1),
        gpu_hours=gpus * math.fsum(lengths) / 3600.0,
        most_gpu_hours=gpus * most_s(limits) / 3600.0 if launches else 0.0,
        wall_s=math.fsum(lengths),
        notes=notes if launches else (),
    )


def _idle(
    together: Sequence[Sequence[Launch]], lengths: Sequence[float], gpus: int, site: str, idle_gpus_s: int | None
) -> str:
    """What the site does with GPUs that idle, and how long they will."""
    longest = run = 0.0
    for turn, length in zip(together, lengths, strict=True):
        run = run + length if sum(each.gpus for each in turn) < gpus else 0.0
        longest = max(longest, run)
    idle = f"GPUs idle for up to {longest / 60:.0f} min while smaller launches run"
    if idle_gpus_s is None:
        return f"{idle}; whether {site} ends such jobs is unknown"
    ends = longest > idle_gpus_s
    return f"{idle}; {site} ends such jobs after {idle_gpus_s / 60:.0f} min{': it would end this one' if ends else ''}"


def _alone(together: Sequence[Sequence[Launch]]) -> Iterator[str]:
    """How much of it is GPUs alone, and how there would be less."""
    alone = [turn for turn in together if turn[0].node is not None]
    if alone:
        gpus = len({(each.node, each.device) for turn in alone for each in turn})
        yield (
            f"{gpus_text(gpus)} alone, one of each node at a time: {len(alone)} of {len(together)} turns "
            "(--solo-gpus N: so many of each node a repeat)"
        )


def needed_s(expected_s: float, limit_s: int) -> int:
    """How many seconds of an allocation must be left for a launch to begin."""
    return min(math.ceil(expected_s * _LONGER) + _MORE_S, limit_s)


def most_s(launches: Sequence[tuple[float, int]]) -> int:
    """The time limit that an allocation is given for these launches, seconds, whole minutes.

    Args:
        launches: expected length and time limit of each, seconds; of those that run at one time, the longest.
    """
    wanted = sum(needed_s(expected_s, limit_s) for expected_s, limit_s in launches) + _AROUND_S
    return -(-wanted // 60) * 60


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        return default
    return value if math.isfinite(value) and value >= 0 else default


@dataclass(frozen=True)
class Question:
    """What is asked, before any site is looked at.

    Attributes:
        request: what all launches share; its options are the settings, several values of one with commas between them.
        strong: the batch that an option holds is the whole one, which the ranks of a launch share.
        solo_gpus: of each node that are alone in one repeat; None for all.
    """

    request: Request
    gpus: tuple[int, ...]
    arms: tuple[Arm, ...]
    repeats: int
    strong: bool
    solo_gpus: int | None = None

    @property
    def shared(self) -> Setting:
        """Options of the recipe that all launches share."""
        return plan.parse_settings(self.request.options)[0]

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The combinations of the others; at least one, which may be empty."""
        return plan.parse_settings(self.request.options)[1]

    def launches(self, solo_places: Sequence[int] | None = None) -> tuple[Launch, ...]:
        """All of them, in their order. ``solo_places``: as ``plan.launches`` takes them."""
        return plan.launches(
            self.gpus, self.arms, self.settings, self.repeats, solo_places=solo_places, solo_gpus=self.solo_gpus
        )

    def request_of(self, launch: Launch) -> Request:
        """The launch as a job of its own.

        Raises:
            UsageError: a whole batch that cannot be shared, or no option for it; an arm that the recipe does not have;
                the recipe measures nothing.
        """
        recipe = requests.recipe_of(self.request).recipe
        if recipe.result == "none":
            raise UsageError(
                f"the recipe {recipe.name} measures nothing", where="--recipe", fix="use one that measures throughput"
            )
        options = self._options(launch, recipe)
        return msgspec.structs.replace(self.request, gpus=launch.gpus, options=options)

    def _options(self, launch: Launch, recipe: Recipe) -> Setting:
        _check_arms(launch, recipe)
        if self.strong and not recipe.samples_option:
            raise UsageError(
                f"the recipe {recipe.name} has no option for the batch", where="--strong", fix="leave --strong out"
            )
        return plan.options_of(launch, self.shared, recipe.samples_option if self.strong else "")


def _check_arms(launch: Launch, recipe: Recipe) -> None:
    """Refuse a launch whose arms the recipe's program does not have."""
    turns = ",".join(launch.arms)
    option = "arms" if turns else "hooks-at-one" if launch.arm == "solo-hooks" else ""
    if not option:
        return
    if option not in recipe.options:
        raise UsageError(
            f"the recipe {recipe.name} has no arm {launch.arms[0] if turns else launch.arm}",
            where="--arms",
            fix=f"leave it out, or use a recipe with the option {option}, such as horovod-pytorch",
        )
    known = [str(choice) for choice in recipe.choices.get(option, ()) if "," in str(choice)]
    if turns and known and turns not in known:
        raise UsageError(
            f"the recipe {recipe.name} cannot alternate between {turns.replace(',', ', ')}",
            where="--arms",
            fix=f"--arms {' or --arms '.join(known)}",
        )


@dataclass(frozen=True)
class Offer:
    """One way to carry launches out.

    Attributes:
        launches: in their order. jobs: those that are submitted, as far as checks are concerned.
    """

    launches: tuple[Launch, ...]
    cost: WayCost
    jobs: tuple[PreparedJob, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the checks say of the jobs, each sentence once."""
        return tuple(dict.fromkeys(finding for job in self.jobs for finding in job.findings))

    @property
    def is_refused(self) -> bool:
        """Whether a check refuses one of the jobs."""
        return any(job.is_refused for job in self.jobs)


def ask(
    request: Request,
    gpus: str | Sequence[int],
    *,
    arms: str | Sequence[str] = "full",
    repeats: int = REPEATS,
    strong: bool = False,
    solo_gpus: int | None = None,
) -> Question:
    """A question from what a user gives.

    Args:
        gpus, arms: each, or with commas between them.

    Raises:
        UsageError: it cannot be read.
    """
    shared, settings = plan.parse_settings(request.options)
    if any(name == "arms" for setting in (shared, *settings) for name, _ in setting):
        raise UsageError("arms are no option of a study's recipe", where="--set arms", fix="use --arms full,uncoupled")
    found = plan.parse_arms(arms if isinstance(arms, str) else ",".join(arms))
    if solo_gpus is not None and not {"solo", "solo-hooks"} & set(found):
        raise UsageError("no GPU is alone in this study", where="--solo-gpus", fix="add it: --arms solo,...")
    sizes = plan.parse_sizes(gpus if isinstance(gpus, str) else ",".join(map(str, gpus)))
    return Question(request, sizes, found, repeats, strong, solo_gpus)


@dataclass
class Preparations:
    """Launches of a question that were prepared: one job for all repeats of a point.

    Attributes:
        prepare: as ``runner.preparation.job.prepare``.
    """

    question: Question
    prepare: Callable[[Request], PreparedJob]
    _made: dict[tuple[object, ...], PreparedJob] = field(default_factory=dict)

    def of(self, launch: Launch) -> PreparedJob:
        """The launch as a job.

        Raises:
            UsageError, RefusedError: it cannot be planned.
        """
        point = (launch.gpus, launch.arm, launch.arms, launch.settings)
        if point not in self._made:
            self._made[point] = self.prepare(self.question.request_of(launch))
        return self._made[point]


def offers(question: Question, jobs: Preparations) -> tuple[Offer, ...]:
    """Every way to carry the study out that there is, the plainest first.

    Raises:
        UsageError, RefusedError: a launch cannot be planned.
    """
    apart = offer("separate", question.launches(), jobs)
    largest = max(apart.jobs, key=lambda job: job.plan.gpus).plan
    if not SCHEDULERS[largest.scheduler].launches:
        return (apart,)
    return apart, offer("one-allocation", question.launches(largest.gpus_by_node), jobs)


def offer(way: Way, launches: tuple[Launch, ...], jobs: Preparations, of: Sequence[Launch] = ()) -> Offer:
    """What these launches are expected to cost this way, and the jobs that checks may refuse.

    Args:
        of: all launches of their study, where these are some: an allocation has the size of the largest of all.

    Raises:
        UsageError, RefusedError: a launch cannot be planned.
    """
    plans = {launch.key: jobs.of(launch).plan for launch in launches}
    made = tuple({id(job): job for job in map(jobs.of, launches)}.values())
    if way == "one-allocation":
        largest = jobs.of(max(of or launches, key=lambda launch: launch.gpus))
        site = largest.site
        estimate = one_allocation_cost(launches, plans, largest.plan, site=site.name, idle_gpus_s=site.idle_gpus_s)
        return Offer(launches, estimate, (largest,) if launches else ())
    queued = all(SCHEDULERS[each.started_by].nodes == "allocated" for each in plans.values())
    return Offer(launches, separate_cost(launches, plans, queued=queued), made)


def choose(question: Question, found: Sequence[Offer], *, same_nodes: bool) -> Offer:
    """The way that is taken: the fewest GPU-hours, or the one allocation.

    Raises:
        RefusedError: there is no one allocation here.
        UsageError: single GPUs are asked for, and launches are jobs of their own.
    """
    if not same_nodes:
        chosen = min(found, key=lambda each: each.cost.gpu_hours)
        _check_single_gpus(question, chosen.cost)
        return chosen
    for each in found:
        if each.cost.way == "one-allocation":
            return each
    raise RefusedError(
        "no launches can share an allocation with this scheduler",
        where="--same-nodes",
        fix="leave it out: each launch is a job of its own",
    )


def _check_single_gpus(question: Question, chosen: WayCost) -> None:
    """Refuse ``--solo-gpus`` where it changes nothing: which GPU a job of its own has is not chosen.

    Raises:
        UsageError: launches are jobs of their own.
    """
    if question.solo_gpus is not None and chosen.way == "separate":
        raise UsageError(
            "of separate jobs one GPU is alone, once a repeat, whichever it is",
            where="--solo-gpus",
            fix="add --same-nodes, or leave it out",
        )


def check_budget(chosen: WayCost, budget: float | None, used: float = 0.0) -> None:
    """Refuse what is expected to take more GPU-hours than there are.

    Args:
        budget: of the whole study, GPU-hours; None for no limit. used: by earlier runs of it, with
            what those that have not ended are expected to take.

    Raises:
        RefusedError: it is more.
    """
    if budget is None or used + chosen.gpu_hours <= budget:
        return
    before = f" after {used:.2f} that were used or are under way" if used else ""
    raise RefusedError(
        f"the study is expected to take {chosen.gpu_hours:.2f} GPU-hours{before}; the budget is {budget:g}",
        where="--budget",
        fix="give fewer or smaller --gpus, --repeats or --set values, or a larger --budget; nothing was submitted",
    )
