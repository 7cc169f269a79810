"""What a study is expected to cost, each way, and which way is taken."""

import msgspec
import pytest

from runner.core.errors import RefusedError
from runner.model.request import Request
from runner.model.study import Launch
from runner.study import question
from runner.study.plan import launches
from runner.study.question import Offer, ask, check_budget, choose
from tests.support.plans import PLAN

# A job of that many ranks on nodes of 8 GPUs, in a container, on parts of nodes; 10 minutes at most.
PLANS = {
    ranks: msgspec.structs.replace(
        PLAN, tasks_per_node=(min(ranks, 8),) * -(-ranks // 8), gpus_per_node=min(ranks, 8), whole_nodes=ranks >= 8,
        walltime_s=600, program=("python3", "main.py"),
    )
    for ranks in (1, 8, 16)
}  # fmt: skip
LAUNCHES = tuple(Launch(f"g{ranks}", ranks, "full", 1, place) for place, ranks in enumerate(PLANS))
BY_KEY = {f"g{ranks}": plan for ranks, plan in PLANS.items()}


def launch_s(*program: str, **changes: object) -> float:
    plan = msgspec.structs.replace(PLANS[1], program=("python3", "main.py", *program), **changes)
    return question.launch_s(plan, LAUNCHES[0])


def test_a_launch_counts_with_start_warm_up_and_window() -> None:
    assert launch_s() == 60 + 30 + 30
    assert launch_s("--warmup-seconds", "10", "--window-seconds=100") == 60 + 10 + 100
    assert launch_s("--demonstration", runtime="native") == 30 + 5 + 5
    assert launch_s("--window-seconds", "nan") == launch_s("--window-seconds", "x") == launch_s()
    assert launch_s("--window-seconds", "9999") == 600, "never more than its time limit"
    assert launch_s(result="if-left") == 600, "a program that does not say how long it measures"


def test_arms_in_one_process_are_windows_there_and_back() -> None:
    launch = msgspec.structs.replace(LAUNCHES[1], arms=("uncoupled", "coordination", "full"))
    assert question.launch_s(PLANS[8], launch) == 60 + 30 + 5 * 30


def test_separate_jobs_have_their_own_gpus_and_one_allocation_has_the_largest_size() -> None:
    apart = question.separate_cost(LAUNCHES, BY_KEY, queued=True)
    assert (apart.jobs, apart.wall_s) == (3, 3 * 120)
    assert apart.gpu_hours == pytest.approx((1 + 8 + 16) * 120 / 3600)
    assert apart.most_gpu_hours == pytest.approx((1 + 8 + 16) * 600 / 3600)
    assert "no attribution of the loss and no A/B verdict" in apart.notes[0]
    together = question.one_allocation_cost(LAUNCHES, BY_KEY, PLANS[16], site="s", idle_gpus_s=None)
    assert (together.jobs, together.wall_s) == (1, 3 * 130)
    assert together.gpu_hours == pytest.approx(16 * 3 * 130 / 3600)
    assert together.most_gpu_hours > together.gpu_hours
    rest = question.one_allocation_cost(LAUNCHES[:1], BY_KEY, PLANS[16], site="s", idle_gpus_s=None)
    assert rest.gpu_hours == pytest.approx(16 * 130 / 3600), "what is left of it is paid for with its whole size"


@pytest.mark.parametrize(
    ("idle_gpus_s", "says"),
    [
        (None, "whether s ends such jobs is unknown"),
        (1800, "s ends such jobs after 30 min"),
        (120, "s ends such jobs after 2 min: it would end this one"),
    ],
)
def test_a_site_that_ends_jobs_whose_gpus_idle_is_named(idle_gpus_s: int | None, says: str) -> None:
    """The launches of 1 and of 8 GPUs, 130 s each, leave some of 16 idle."""
    (note,) = question.one_allocation_cost(LAUNCHES, BY_KEY, PLANS[16], site="s", idle_gpus_s=idle_gpus_s).notes
    assert note == f"GPUs idle for up to 4 min while smaller launches run; {says}"


def test_the_cheaper_way_is_taken_unless_the_same_nodes_are_requested() -> None:
    asked = ask(Request(gpus=1), "1,8,16")
    apart = Offer(LAUNCHES, question.separate_cost(LAUNCHES, BY_KEY, queued=True), ())
    together = Offer(
        LAUNCHES, question.one_allocation_cost(LAUNCHES, BY_KEY, PLANS[16], site="s", idle_gpus_s=None), ()
    )
    assert choose(asked, (apart, together), same_nodes=False) is apart
    assert choose(asked, (apart, together), same_nodes=True) is together
    with pytest.raises(RefusedError, match="no launches can share an allocation"):
        choose(asked, (apart,), same_nodes=True)


def test_the_budget_holds_with_what_was_used_before() -> None:
    chosen = question.separate_cost(LAUNCHES, BY_KEY, queued=True)  # 0.83 GPU-hours
    check_budget(chosen, None)
    check_budget(chosen, 1.0, used=0.1)
    says = r"0\.83 GPU-hours after 0\.20 that were used or are under way; the budget is 1"
    with pytest.raises(RefusedError, match=says):
        check_budget(chosen, 1.0, used=0.2)


def test_single_gpus_on_different_nodes_cost_the_time_of_one() -> None:
    """Two nodes of 8 GPUs: 16 launches of 120 s in 8 turns, and the whole of both nodes is paid for."""
    alone = launches((16,), ("full", "solo"), ((),), 1, solo_places=(8, 8))
    plans = {each.key: PLANS[each.gpus] for each in alone}
    apart = question.separate_cost(alone[:1], plans, queued=True)
    assert apart.notes[-1] == "one GPU alone is any GPU, once a repeat"
    together = question.one_allocation_cost(alone, plans, PLANS[16], site="s", idle_gpus_s=None)
    assert together.wall_s == 9 * 130
    assert together.gpu_hours == pytest.approx(16 * 9 * 130 / 3600)
    assert together.most_gpu_hours == pytest.approx(16 * (9 * (130 * 1.5 + 30) + 60) / 3600, rel=0.02)
    assert together.notes == (
        "GPUs idle for up to 17 min while smaller launches run; whether s ends such jobs is unknown",
        "16 GPUs alone, one of each node at a time: 8 of 9 turns (--solo-gpus N: so many of each node a repeat)",
    )
