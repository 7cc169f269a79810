"""Chains of attempts on a real Slurm: what ends an attempt and not the chain, and what ends the chain."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.chains import PROGRAM, Chain, cancel_in_slurm, fail_gpu, kill, lose_node, reach_limit, requeue
from tests.support.commands import Output, Runner, extended, ran
from tests.support.daemons import Daemons
from tests.support.documents import result
from tests.support.waiting import until

pytestmark = pytest.mark.integration
NATIVE = ("--runtime", "native")
IDLE = "import time; time.sleep(999)"


def _pytorch() -> str:
    page = (Path(__file__).parents[2] / "docs/jobs.md").read_text()
    shown = page.partition("# PyTorch, with ")[2].partition("# Lightning")[0].replace(" and file", "; file")
    given, load, save = (line.strip() for line in shown.splitlines() if line.strip())
    before = f"import os, time, torch; {given}; model = torch.nn.Linear(1, 1)\n{load}\nprint(float(model.bias))"
    wait = "time.sleep(999 if os.environ['RUNNER_ATTEMPT'] == '1' else 0)"
    return f"{before}\ntorch.nn.init.constant_(model.bias, 7.0)\n{save}\n{wait}"


@pytest.fixture
def chain(daemons: Daemons, tmp_path: Path) -> Chain:
    return Chain(Runner.at(daemons.box.site, tmp_path, daemons.box.bin_dir, runs="my runs"), daemons, tmp_path / "x")


def test_a_chain_goes_through_four_limits(chain: Chain, tmp_path: Path) -> None:
    chain.submit(*NATIVE).goes_through(*[reach_limit] * 4)
    rows = result(chain.runner("status", "x", "--json", code=0).out)["runs"]
    ends = [(row["outcome"], row["values"]) for row in rows]
    assert result(chain.runner("status", "--json", code=0).out)["refused"] == 0
    assert ends == [*(("failed", {"attempt": n}) for n in "1234"), ("ran", {"attempt": "5"})]
    said = chain.runner("status", "x", code=0).out
    assert "x.4: failed; the job ran into its time limit\n" in said
    assert said.endswith("no attempt follows: the program is done\n")
    assert "-x.5-1; others" in chain.runner("logs", "x", code=0).err, "the last attempt, though earlier ones failed"
    report = chain.runner("report", "x", "--json", "-o", str(tmp_path / "report"), code=0).out
    assert len(result(report)["rows"]) == 5


@pytest.mark.parametrize("end", [kill, lose_node, requeue])
def test_what_ends_an_attempt_does_not_end_the_chain(end: Callable[[Chain, int], None], chain: Chain) -> None:
    chain.submit(*NATIVE).goes_through(end)


def test_a_sick_node_is_left_out(chain: Chain) -> None:
    chain.submit(*NATIVE).goes_through(fail_gpu, lose_node)  # of two nodes: then there is no other
    (first,), (second,), (third,) = map(chain.nodes, (1, 2, 3))
    assert first != second and third in (first, second)  # whichever is free first
    said = chain.runner("status", "x", code=0).out
    ecc = f"{first} (attempt 1: uncorrectable ECC error)"
    assert f"later attempts leave out {ecc}, {second} (attempt 2: it failed)\n" in said
    assert "x.1: infrastructure; rank 0" in said


def test_a_node_that_is_down_is_no_other_one(chain: Chain) -> None:
    chain.submit(*NATIVE).goes_on(1)
    (first,) = chain.nodes(1)
    (other,) = {"dgx01", "dgx02"} - {first}
    set_down = ("scontrol", "update", f"NodeName={other}", "State=DOWN", "Reason=test")
    chain.daemons.inside(*set_down)
    fail_gpu(chain, 1)
    chain.goes_on(2)
    assert chain.nodes(2) == [first]

    chain.daemons.await_up(other)
    fail_gpu(chain, 2)
    chain.goes_on(3)
    assert chain.nodes(3) == [other]

    chain.daemons.cut_power(other)  # with the script there, and the next one leaves the first node out
    try:
        chain.daemons.inside(*set_down)
        (command,) = until(
            lambda: re.findall(r"x\.4: .* are left out: (.*)\n", chain.runner("status", "x", code=0).out)
        )
        chain.daemons.inside(*command.split())
        chain.goes_on(4)
        assert chain.nodes(4) == [first]
        chain.runner("cancel", "x", code=0)
    finally:
        chain.daemons.begin(other)


def test_ranks_that_could_not_meet_are_tried_again(chain: Chain) -> None:
    chain.daemons.signal("dgx02", "STOP")
    try:
        chain.submit(*NATIVE, "--gpus", "2", "--nodes", "2", "--env", "RUNNER_RDV_TIMEOUT_S=4", code=IDLE)
        until(chain.file(1, "ranks/0.exit.json").exists, "it waited", timeout_s=100)
    finally:
        chain.daemons.signal("dgx02", "CONT")
    assert json.loads(chain.file(1, "ranks/0.exit.json").read_text())["error"] == "rendezvous-timeout"
    until(chain.file(2, "ranks/1.start.json").exists, "the next one starts", timeout_s=100)
    chain.runner("cancel", "x", code=0)


def test_a_script_that_was_killed_had_started(chain: Chain) -> None:
    chain.submit(*NATIVE, "--attempts", "1").goes_on(1)
    kill(chain, 1)
    assert "the job's script was killed outright on dgx0" in chain.runner("wait", "x", "--timeout", "120", code=8).out


@pytest.mark.parametrize(
    ("options", "program", "kills", "cancels", "code", "why"),
    [
        ((), "raise SystemExit(3)", 0, "", 5, "the program ended with exit code 3"),
        ((), PROGRAM, 0, "x", 5, "it was cancelled"),
        ((), PROGRAM, 0, "x.1", 5, "attempt 1 was cancelled"),
        ((), PROGRAM, 0, "job", 5, "attempt 1 was cancelled"),
        ((), IDLE, 2, "", 8, "attempts 1 and 2 left no newer checkpoint"),
        (("--gpu-hours", "0.15", "--time", "6:00"), PROGRAM, 1, "", 8, "its attempts are used up"),
    ],
)  # fmt: skip
def test_what_ends_a_chain(
    options: tuple[str, ...], program: str, kills: int, cancels: str, code: int, why: str, chain: Chain
) -> None:
    chain.submit(*NATIVE, *options, code=program)
    for attempt in range(1, kills + 1):
        until(chain.file(attempt, "logs/rank-0.out").exists, "it runs", timeout_s=100)
        kill(chain, attempt)
    if cancels == "job":
        chain.goes_on(1)
        cancel_in_slurm(chain, 1)
        until(lambda: chain.jobs() == 0, "the next leaves the queue", timeout_s=5)
    elif cancels:
        chain.goes_on(1)
        chain.runner("cancel", cancels, code=0)
    chain.runner("wait", "x", "--timeout", "120", code=code)
    assert chain.runner("status", "x", code=0).out.endswith(f"no attempt follows: {why}\n")
    assert chain.jobs() == 0


ILL_ONCE = "import os; os.environ['RUNNER_ATTEMPT'] == '2' or exit('CUDA error: uncorrectable ECC error encountered')"
FROM_PYTHON = """
import sys
from runner import submit
site, runs, program = sys.argv[1:]
own = {"site": site, "runs": runs, "runtime": "native", "name": "py", "until_done": True}
assert "runner_begin_attempt 1 2" in submit(1, ["true"], attempts=2, dry_run=True, **own).script
chain = submit(1, ["python3", "-c", program], **own)
verdict = chain.wait(timeout=200)
print(verdict.outcome, chain.end, [each.id[-6:] for each in chain.attempts], chain.left_out, chain.cancel())
"""


def test_from_python_and_what_depends_on_it(chain: Chain) -> None:
    def after(name: str, code: int) -> Output:
        words = ("submit", "--gpus", "1", *NATIVE, "--dependency", f"afterok:{name}", "--wait", "--", "true")
        return chain.runner(*words, code=code)

    words = [sys.executable, "-c", FROM_PYTHON, chain.runner.site, chain.runner.runs, ILL_ONCE]
    said = ran(words, env=chain.runner.environment()).out
    assert said.startswith("ran the program is done ['py.1-1', 'py.2-1'] ('dgx0")
    assert said.endswith(" (attempt 1: uncorrectable ECC error)',) ()\n")
    after("py", 0)  # which waits for its last attempt
    chain.submit(*NATIVE)
    assert '"x" is a chain' in after("x", 2).err
    chain.runner("cancel", "x", code=0)


@pytest.mark.parametrize(
    ("options", "code", "saved", "says"),
    [
        (
            ("--recipe", "horovod-train", "--set", "epochs=40"),
            "",
            "checkpoint.pt",
            "resumed from /results/checkpoints/",
        ),
        (("--image", "gpu-runner/horovod-pytorch:standin"), _pytorch(), "state.pt", "7.0\n"),
    ],
    ids=["the recipe horovod-train", "PyTorch as on the page"],
)
def test_training_in_a_container_goes_on_where_it_was(
    options: tuple[str, ...], code: str, saved: str, says: str, ill: Runner, daemons: Daemons, tmp_path: Path
) -> None:
    chain = Chain(ill, daemons, tmp_path / saved[:5]).submit(*options, code=code)
    until(chain.checkpoint(saved).exists, "there is a checkpoint", timeout_s=180)
    kill(chain, 1)
    ill("wait", saved[:5], "--timeout", "300", code=0)
    assert says in chain.log(2)
    assert chain.file(2, "first-step").exists() == (not code)  # by the recipe


def test_a_site_may_refuse_it(chain: Chain, tmp_path: Path) -> None:
    for facts, says in (({"chaining": False}, "(chaining: no) cannot queue"), ({"extends": "local"}, "cannot queue")):
        words = ("submit", "--gpus", "1", *NATIVE, "--until-done", "--", "true")
        assert says in chain.runner(*words, site=extended(chain.runner.site, tmp_path, **facts), code=3).err
