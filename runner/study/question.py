"""A study from its question to its launches, each prepared as ``submit`` would, and what they are expected to cost.

A launch takes its start (container, the framework's import, the world), its warm-up and its windows. Where a program
does not say how long it measures, the time limit is what it is expected to take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from runner.checks.limits import over_budget
from runner.core.errors import RefusedError, UsageError
from runner.core.text import gpus_text
from runner.jobs.cost import BUDGET, left_of_budget
from runner.model.backends import RUNTIMES, SCHEDULERS
from runner.model.plan import Finding, Plan
from runner.model.request import Request
from runner.model.study import REPEATS, Arm, Launch, Setting, Way, WayCost
from runner.planning.options import options_of
from runner.preparation.job import PreparedJob
from runner.preparation.program_source import imports
from runner.preparation.request import recipe_of, refuse_missing_script
from runner.study.plan import launch_options, launches, parse_arms, parse_settings, parse_sizes, turns

# Until the first step, seconds: assumed; most of it is the framework's import.
_START_S, _START_NATIVE_S = 60.0, 30.0
# The least that a benchmark measures (gpu_runner_inside.benchmark.options), and a few seconds of a demonstration.
_WARMUP_S, _WINDOW_S, _DEMONSTRATION_S = 30.0, 30.0, 5.0
_BETWEEN_S = 10.0  # until GPUs and containers of the launch before are free, and its step has ended
# An allocation begins a launch where so many times its expected length, and so many seconds, are left.
_LONGER, _MORE_S = 1.5, 30
_AROUND_S = 60  # before the first launch of an allocation, and after the last
# Of these a program imports one where the meter sees its training: PyTorch's, what is made on it, and the meter itself.
_MEASURED = frozenset(
    ("torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "deepspeed", "composer", "runner_meter")
)
_APART = (
    "figures only: no attribution of the loss and no A/B verdict, as the launches run apart; `compare` excepts those "
    "that ran in turns on the same nodes and GPUs"
)


def launch_s(plan: Plan, launch: Launch) -> float:
    """How long a launch is expected to take, seconds."""
    if plan.result != "throughput":
        return float(plan.walltime_s)
    options = options_of(plan.program)
    warmup_s, window_s = (_DEMONSTRATION_S,) * 2 if "demonstration" in options else (_WARMUP_S, _WINDOW_S)
    windows = 2 * len(launch.arms) - 1 if launch.arms else 1  # a, b, full, b, a
    measured_s = _seconds(options, "warmup-seconds", warmup_s) + windows * _seconds(options, "window-seconds", window_s)
    start_s = _START_S if RUNTIMES[plan.runtime].is_container else _START_NATIVE_S
    return min(start_s + measured_s, float(plan.walltime_s))


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        return default
    return value if math.isfinite(value) and value >= 0 else default


def needed_s(expected_s: float, limit_s: int) -> int:
    """How many seconds of an allocation must be left for a launch to begin."""
    return min(math.ceil(expected_s * _LONGER) + _MORE_S, limit_s)


def most_s(lengths: Sequence[tuple[float, int]]) -> int:
    """The time limit that an allocation is given for these launches, seconds, whole minutes.

    Args:
        lengths: expected length and time limit of each, seconds; of those that run at one time, the longest.
    """
    wanted = sum(needed_s(expected_s, limit_s) for expected_s, limit_s in lengths) + _AROUND_S
    return -(-wanted // 60) * 60


def separate_cost(of: Sequence[Launch], plans: Mapping[str, Plan], *, queued: bool) -> WayCost:
    """Each launch as a job of its own. ``plans``: by the launch's key; ``queued``: the scheduler gives out nodes."""
    jobs = [(plans[each.key], launch_s(plans[each.key], each)) for each in of]
    notes = [_APART]
    if any(plan.result != "throughput" for plan, _ in jobs):
        notes.append("how long this program takes is unknown: a launch counts with its time limit (--time shortens it)")
    if any(each.arm.startswith("solo") for each in of):
        notes.append("one GPU alone is any GPU, once a repeat")
    if queued and len(of) > 1:
        notes.append("the queue may run several at once: less time then, waiting for it not counted")
    return WayCost(
        way="separate",
        jobs=len(of),
        gpu_hours=math.fsum(plan.occupied_gpus * length for plan, length in jobs) / 3600.0,
        most_gpu_hours=math.fsum(plan.most_gpu_hours for plan, _ in jobs),
        wall_s=math.fsum(length for _, length in jobs),
        notes=tuple(notes),
    )


def one_allocation_cost(
    of: Sequence[Launch], plans: Mapping[str, Plan], largest: Plan, *, site: str, idle_gpus_s: int | None
) -> WayCost:
    """One job of the largest size, with one launch after the other in it; single GPUs of different nodes at one time.

    Args:
        plans: by the launch's key. largest: the job of the study's largest launch.
        idle_gpus_s: after how long the site ends a job that leaves a GPU idle, seconds; None where that is unknown.
    """
    if not of:
        return WayCost("one-allocation", 0, 0.0, 0.0, 0.0)
    together, gpus = turns(of), largest.occupied_gpus
    lengths = [max(launch_s(plans[each.key], each) for each in turn) + _BETWEEN_S for turn in together]
    limits = [max(plans[each.key].walltime_s for each in turn) for turn in together]
    longest = idle_s = 0.0
    for turn, length in zip(together, lengths, strict=True):
        idle_s = idle_s + length if sum(each.gpus for each in turn) < gpus else 0.0
        longest = max(longest, idle_s)
    then = f"whether {site} ends such jobs is unknown"
    if idle_gpus_s is not None:
        ends = ": it would end this one" if longest > idle_gpus_s else ""
        then = f"{site} ends such jobs after {idle_gpus_s / 60:.0f} min{ends}"
    notes = [f"GPUs idle for up to {longest / 60:.0f} min while smaller launches run; {then}"]
    if alone := [turn for turn in together if turn[0].node is not None]:
        notes.append(
            f"{gpus_text(len({(each.node, each.device) for turn in alone for each in turn}))} alone, one of each node "
            f"at a time: {len(alone)} of {len(together)} turns (--solo-gpus N: so many of each node a repeat)"
        )
    return WayCost(
        way="one-allocation",
        jobs=1,
        gpu_hours=gpus * math.fsum(lengths) / 3600.0,
        most_gpu_hours=gpus * most_s(list(zip(lengths, limits, strict=True))) / 3600.0,
        wall_s=math.fsum(lengths),
        notes=tuple(notes),
    )


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
    def settings(self) -> tuple[Setting, ...]:
        """The combinations of options that have several values; at least one, which may be empty."""
        return parse_settings(self.request.options)[1]

    def launches(self, solo_places: Sequence[int] | None = None) -> tuple[Launch, ...]:
        """All of them, in their order. ``solo_places``: as ``plan.launches`` takes them."""
        most = self.solo_gpus
        return launches(self.gpus, self.arms, self.settings, self.repeats, solo_places=solo_places, solo_gpus=most)

    def request_of(self, launch: Launch) -> Request:
        """The launch as a job of its own. Raises UsageError where the recipe cannot be launched so."""
        recipe = recipe_of(self.request).recipe
        if recipe.result == "none":
            fix = "use one that measures throughput"
            raise UsageError(f"the recipe {recipe.name} measures nothing", where="--recipe", fix=fix)
        arms = ",".join(launch.arms)
        option = "arms" if arms else "hooks-at-one" if launch.arm == "solo-hooks" else ""
        if option and option not in recipe.options:
            raise UsageError(
                f"the recipe {recipe.name} has no arm {launch.arms[0] if arms else launch.arm}",
                where="--arms",
                fix=f"leave it out, or use a recipe with the option {option}, such as horovod-pytorch",
            )
        known = [str(choice) for choice in recipe.choices.get(option, ()) if "," in str(choice)]
        if arms and known and arms not in known:
            raise UsageError(
                f"the recipe {recipe.name} cannot alternate between {arms.replace(',', ', ')}",
                where="--arms",
                fix=f"--arms {' or --arms '.join(known)}",
            )
        if self.strong and not recipe.samples_option:
            what = f"the recipe {recipe.name} has no option for the batch"
            raise UsageError(what, where="--strong", fix="leave --strong out")
        shared, _ = parse_settings(self.request.options)
        options = launch_options(launch, shared, recipe.samples_option if self.strong else "")
        return msgspec.structs.replace(self.request, gpus=launch.gpus, options=options)


def ask(
    request: Request,
    gpus: str | Sequence[int],
    *,
    arms: str | Sequence[str] = "full",
    repeats: int = REPEATS,
    strong: bool = False,
    solo_gpus: int | None = None,
) -> Question:
    """A question from what a user gives; ``gpus`` and ``arms`` may have commas between them. Raises UsageError."""
    shared, settings = parse_settings(request.options)
    if any(name == "arms" for setting in (shared, *settings) for name, _ in setting):
        raise UsageError("arms are no option of a study's recipe", where="--set arms", fix="use --arms full,uncoupled")
    if request.meter_batch is None and recipe_of(request).recipe.result == "if-left":
        request = msgspec.structs.replace(request, meter=True)  # a program of the user's has no figure without
    wanted = parse_arms(arms if isinstance(arms, str) else ",".join(arms))
    if solo_gpus is not None and not {"solo", "solo-hooks"} & set(wanted):
        raise UsageError("no GPU is alone in this study", where="--solo-gpus", fix="add it: --arms solo,...")
    sizes = parse_sizes(gpus if isinstance(gpus, str) else ",".join(map(str, gpus)))
    return Question(request, sizes, wanted, repeats, strong, solo_gpus)


@dataclass
class Preparations:
    """Launches of a question that were prepared: one job for all repeats of a point."""

    question: Question
    prepare: Callable[[Request], PreparedJob]
    _made: dict[tuple[object, ...], PreparedJob] = field(default_factory=dict)

    def of(self, launch: Launch) -> PreparedJob:
        """The launch as a job. Raises UsageError, RefusedError: it cannot be planned."""
        point = (launch.gpus, launch.arm, launch.arms, launch.settings)
        if point not in self._made:
            self._made[point] = self.prepare(self.question.request_of(launch))
        return self._made[point]


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


def offers(question: Question, jobs: Preparations) -> tuple[Offer, ...]:
    """Every way to carry the study out that there is, the plainest first. Raises as ``Preparations.of``."""
    apart = offer("separate", question.launches(), jobs)
    largest = max(apart.jobs, key=lambda job: job.plan.gpus).plan
    if not SCHEDULERS[largest.scheduler].launches:
        return (apart,)
    return apart, offer("one-allocation", question.launches(largest.gpus_by_node), jobs)


def offer(way: Way, wanted: tuple[Launch, ...], jobs: Preparations, of: Sequence[Launch] = ()) -> Offer:
    """What these launches are expected to cost this way, and the jobs that checks may refuse.

    Args:
        of: all launches of their study, where these are some: an allocation has the size of the largest of all.
    """
    plans = {launch.key: jobs.of(launch).plan for launch in wanted}
    if way == "one-allocation":
        largest = jobs.of(max(of or wanted, key=lambda launch: launch.gpus))
        site = largest.site
        cost = one_allocation_cost(wanted, plans, largest.plan, site=site.name, idle_gpus_s=site.idle_gpus_s)
        return Offer(wanted, cost, (largest,) if wanted else ())
    queued = all(SCHEDULERS[each.started_by].nodes == "allocated" for each in plans.values())
    made = tuple({id(job): job for job in map(jobs.of, wanted)}.values())
    return Offer(wanted, separate_cost(wanted, plans, queued=queued), made)


def choose(question: Question, of: Sequence[Offer], *, same_nodes: bool) -> Offer:
    """The way that is taken: the fewest GPU-hours, or the one allocation.

    Raises:
        RefusedError: there is no one allocation here.
        UsageError: single GPUs are asked for, and launches are jobs of their own: which GPU one has is not chosen.
    """
    allowed = [each for each in of if each.cost.way == "one-allocation" or not same_nodes]
    if not allowed:
        raise RefusedError(
            "no launches can share an allocation with this scheduler",
            where="--same-nodes",
            fix="leave it out: each launch is a job of its own",
        )
    chosen = min(allowed, key=lambda each: each.cost.gpu_hours)
    if question.solo_gpus is not None and chosen.cost.way == "separate":
        raise UsageError(
            "of separate jobs one GPU is alone, once a repeat, whichever it is",
            where="--solo-gpus",
            fix="add --same-nodes, or leave it out",
        )
    return chosen


def check_measures(job: PreparedJob, chosen: WayCost, *, waits: bool) -> None:
    """Refuse a program that is not seen to train with PyTorch where no launch is looked at before the next one starts.
    Raises RefusedError; UsageError: the program's script is not there.
    """
    request, one_by_one = job.request, waits or SCHEDULERS[job.plan.started_by].nodes != "allocated"
    if job.plan.result != "if-left" or not request.program or (one_by_one and chosen.way == "separate"):
        return
    start, runs_here = Path(request.directory), SCHEDULERS[job.plan.scheduler].nodes == "this-machine"
    refuse_missing_script(request.program, start, job.plan.mounts, Path(request.runs), runs_here=runs_here)
    if not imports(request.program, start, request.mounts) & _MEASURED:
        what = "nothing in the program's source is seen that the meter measures: its launches may have no figure"
        fix = "--wait, without --same-nodes: its first launch is seen before the others start; or gpu-runner docs meter"
        raise RefusedError(what, where=" ".join(request.program[:3]), fix=f"{fix}; nothing was submitted")


def check_user_budget(request: Request, needed: float) -> None:
    """Refuse jobs that may together take more than RUNNER_BUDGET leaves; each alone has a check of its own.

    Args:
        needed: GPU-hours, by their time limits.
    """
    left = left_of_budget(Path(request.runs))
    if left is not None and needed > left and "over-budget" not in request.force:
        finding = over_budget(needed, left)
        raise RefusedError(finding.what, where=BUDGET, fix=f"{finding.fix}; or --force {finding.code}")


def check_budget(chosen: WayCost, budget: float | None, used: float = 0.0) -> None:
    """Refuse what is expected to take more GPU-hours than there are.

    Args:
        budget: of the whole study, GPU-hours; None for no limit. used: by earlier runs of it, with
            what those that have not ended are expected to take.
    """
    if budget is None or used + chosen.gpu_hours <= budget:
        return
    before = f" after {used:.2f} that were used or are under way" if used else ""
    raise RefusedError(
        f"the study is expected to take {chosen.gpu_hours:.2f} GPU-hours{before}; the budget is {budget:g}",
        where="--budget",
        fix="give fewer or smaller --gpus, --repeats or --set values, or a larger --budget; nothing was submitted",
    )
