"""The ways in which a job ends, and what it leaves on its nodes: nothing, or what the next job there removes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import Runner
from tests.support.daemons import Daemons
from tests.support.documents import result
from tests.support.planted_faults import RECIPE, under_way
from tests.support.waiting import until

NODES = ("dgx01", "dgx02")
EVEN, UNEVEN = ("--gpus", "4", "--nodes", "2"), ("--gpus", "3", "--nodes", "2")


@dataclass(frozen=True)
class Ending:
    """How one job ends.

    Attributes:
        code: exit code of ``wait``. fault: of the recipe with faults; empty for none.
        when: holds of the run when ``act`` is called, which ends the job; None where it ends by itself.
        swept: what is left, if anything, is removed by the next job; else nothing may be left.
    """

    code: int
    fault: str = ""
    shape: tuple[str, ...] = EVEN
    options: tuple[str, ...] = ()
    when: Callable[[Path], bool] = lambda _run: True
    act: Callable[[Runner, Daemons, Path], None] | None = None
    swept: bool = False


def _cancel(runner: Runner, _daemons: Daemons, run: Path) -> None:
    runner("cancel", run.name, code=0)


def _die(runner: Runner, daemons: Daemons, run: Path) -> None:
    """All of the job on its second node is killed outright: nothing of it can clean up there."""
    daemons.inside("sh", "-c", _KILLED, "sh", daemons.process("dgx02"))
    _cancel(runner, daemons, run)


def _lose_node(_runner: Runner, daemons: Daemons, _run: Path) -> None:
    daemons.cut_power("dgx02")
    daemons.inside("scontrol", "update", "NodeName=dgx02", "State=DOWN", "Reason=test")
    daemons.begin("dgx02")


_IN_PROGRAM = under_way(4)
ENDINGS = {
    "well": Ending(0),
    "well, unevenly": Ending(0, shape=UNEVEN),
    "a rank fails": Ending(5, "exit:7@1", UNEVEN),
    "a rank is killed": Ending(5, "signal:9@2"),
    "cancelled": Ending(5, "hang", when=_IN_PROGRAM, act=_cancel),
    "cancelled, unevenly": Ending(5, "hang", UNEVEN, when=under_way(3), act=_cancel),
    "cancelled while the nodes are made ready": Ending(
        5, when=lambda run: (run / "logs" / "batch.out").exists(), act=_cancel
    ),
    "killed outright on one node": Ending(5, "hang", when=_IN_PROGRAM, act=_die, swept=True),
}
LONG_ENDINGS = {
    "at the time limit": Ending(5, "hang", options=("--time", "1:00")),
    "a node is lost": Ending(8, "hang", when=_IN_PROGRAM, act=_lose_node, swept=True),
}


def leaves_nothing(runner: Runner, daemons: Daemons, ending: Ending, *options: str) -> str:
    """One job ends so; what it leaves is nothing, at the latest after the next job. Returns what was left before."""
    words = ("--recipe", str(RECIPE), *ending.shape, *options, *ending.options, "--json")
    fault = ("--", "--fault", ending.fault) if ending.fault else ()
    run = Path(result(runner("submit", *words, *fault, code=0).out)["directory"])
    if ending.act:
        until(lambda: ending.when(run), "the job is where it is to be ended", timeout_s=180)
        ending.act(runner, daemons, run)
    runner("wait", str(run), code=ending.code)
    until(lambda: not daemons.inside("squeue", "--noheader"), "no job is in the queue")
    before = left(daemons)
    if ending.swept:
        runner("submit", *words, "--wait", code=0)
    else:
        assert not before
    assert not left(daemons)
    return before


def spares_a_running_job(runner: Runner, daemons: Daemons, *options: str, swept: bool = False) -> None:
    """A job removes nothing of another that runs on the same nodes; all is removed when both have ended.

    ``swept``: as of Ending, of the one that is cancelled.
    """
    words = ("submit", "--recipe", str(RECIPE), *EVEN, *options)
    run = runner.submitted(_IN_PROGRAM, *words, "--", "--fault", "hang", timeout_s=180)
    before = left(daemons)
    runner(*words, "--wait", code=0)
    assert left(daemons) == before != ""
    runner("cancel", run.name, code=0)
    runner("wait", str(run), code=5)
    if swept:
        until(lambda: not daemons.inside("squeue", "--noheader"), "no job is in the queue")
        runner(*words, "--wait", code=0)
    until(lambda: not left(daemons), "nothing is left")


def left(daemons: Daemons) -> str:
    """What any job has left on any node: a line each."""
    return "".join(daemons.on_node(node, "sh", "-c", _LEFT) for node in NODES)


_LEFT = """
ls -d /var/tmp/gpu-runner-stage-* 2>/dev/null
if command -v enroot >/dev/null; then enroot list; fi
"""
_KILLED = """
node=$(readlink "/proc/$1/ns/uts")
for signal in STOP KILL; do   # or what sees its parent end would clean up
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/ns/uts" 2>/dev/null)" = "$node" ] || continue
        [ "${process#/proc/}" = "$1" ] || kill -$signal "${process#/proc/}"
    done
done
true
"""
