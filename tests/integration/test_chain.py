"""Chains of attempts on a real Slurm: what ends an attempt and not the chain, and what ends the chain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.chains import ENDS, PROGRAM, Chain, kill_script, reach_limit
from tests.support.commands import Runner, extended
from tests.support.daemons import Daemons
from tests.support.documents import result
from tests.support.waiting import until

pytestmark = pytest.mark.integration
WITHOUT_CHECKPOINT = "import time; time.sleep(1000)"
LEAVES_WHEN_WARNED = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
if os.environ["RUNNER_ATTEMPT"] == "1":
    print("here", flush=True)
    time.sleep(1000)
"""


@pytest.fixture(scope="module")
def plain(daemons: Daemons, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner.at(daemons.box.site, tmp_path_factory.mktemp("chains"), daemons.box.bin_dir, runs="my runs")


def statuses(chain: Chain) -> str:
    return chain.runner("status", chain.home.name, code=0).out


def test_a_chain_goes_through_four_limits(plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    chain = Chain.submitted(plain, daemons, tmp_path / "limits")
    for attempt in range(1, 5):
        chain.await_attempt(attempt)
        reach_limit(chain, attempt)
    chain.await_attempt(5)
    chain.finish(5)
    rows = result(plain("status", "limits", "--json", code=0).out)["runs"]
    assert [(row["outcome"], row["values"]) for row in rows] == [
        *[("failed", {"attempt": str(attempt)}) for attempt in range(1, 5)], ("ran", {"attempt": "5"}),
    ]  # fmt: skip
    said = statuses(chain)
    assert "limits.4: failed; the job ran into its time limit\n" in said
    assert said.endswith("no attempt follows: the program is done\n")
    assert len(result(plain("report", "limits", "--json", "-o", str(tmp_path / "report"), code=0).out)["rows"]) == 5


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_an_attempt_does_not_end_the_chain(end: str, plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    chain = Chain.submitted(plain, daemons, tmp_path / end.replace(" ", "-"))
    chain.await_attempt(1)
    ENDS[end](chain, 1)
    chain.await_attempt(2)
    chain.finish(2)


def test_a_program_that_leaves_when_it_is_warned_is_not_done(plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    chain = Chain.submitted(plain, daemons, tmp_path / "warned", code=LEAVES_WHEN_WARNED)
    log = chain.run(1) / "logs/rank-0.out"
    until(lambda: log.exists() and log.read_text(), "it runs")
    daemons.inside("scancel", "--batch", "--signal=USR1", chain.job(1))
    plain("wait", "warned", "--timeout", "120", code=0)
    assert "warned.1: ran\nwarned.2: ran\nno attempt follows: the program is done" in statuses(chain)


def test_a_failure_of_the_program_ends_the_chain(plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    chain = Chain.submitted(plain, daemons, tmp_path / "failure", code="raise SystemExit(3)")
    plain("wait", "failure", "--json", "--timeout", "120", code=5)
    assert not chain.queue()
    assert statuses(chain).endswith("no attempt follows: the program ended with exit code 3\n")


@pytest.mark.parametrize("named", ["cancelled", "cancelled.1"])
def test_cancel_ends_all_of_it(named: str, plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    """By the name of one attempt, too: the next one begins, and leaves."""
    name = f"{named}x".replace(".1x", "-one")
    chain = Chain.submitted(plain, daemons, tmp_path / name)
    chain.await_attempt(1)
    plain("cancel", named.replace("cancelled", name), code=0)
    plain("wait", name, "--timeout", "120", code=5)
    assert not chain.queue()
    assert "cancelled" in statuses(chain).splitlines()[-1]
    assert not (chain.run(2) / "began").exists()


def test_a_chain_without_a_newer_checkpoint_ends(plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    chain = Chain.submitted(plain, daemons, tmp_path / "idle", code=WITHOUT_CHECKPOINT)
    for attempt in (1, 2):
        until((chain.run(attempt) / "ranks/0.start.json").exists, f"{attempt} runs")
        kill_script(chain, attempt)
    plain("wait", "idle", "--timeout", "120", code=8)
    assert statuses(chain).endswith("no attempt follows: attempts 1 and 2 left no newer checkpoint\n")
    assert not chain.queue()


def test_attempts_are_used_up(plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    chain = Chain.submitted(plain, daemons, tmp_path / "few", "--attempts", "2", code=PROGRAM)
    for attempt in (1, 2):
        chain.await_attempt(attempt)
        kill_script(chain, attempt)
    plain("wait", "few", "--timeout", "120", code=8)
    assert statuses(chain).endswith("no attempt follows: its attempts are used up\n")


def test_gpu_hours_are_a_limit(plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    """An attempt that left no record of its end counts as if it had run to its limit."""
    chain = Chain.submitted(plain, daemons, tmp_path / "dear", "--time", "6:00", "--gpu-hours", "0.15")
    chain.await_attempt(1)
    kill_script(chain, 1)
    plain("wait", "dear", "--timeout", "120", code=8)
    assert statuses(chain).endswith("no attempt follows: --gpu-hours leaves no time for attempt 2\n")


def test_a_recipe_in_a_container_goes_on_where_it_was(ill: Runner, daemons: Daemons) -> None:
    words = ("--recipe", "horovod-train", "--gpus", "2", "--until-done", "--set", "epochs=40", "--name", "digits")
    ill("submit", *words, code=0)
    chain = Chain(ill, daemons, Path("digits"), next(ill.runs.glob("*-digits-chain")))
    saved = chain.path / "checkpoints" / "checkpoint.pt"
    until(saved.exists, "there is a checkpoint", timeout_s=180)
    kill_script(chain, 1)
    ill("wait", "digits", "--timeout", "300", code=0)
    log = (chain.run(2) / "logs/rank-0.out").read_text()
    assert "resumed from /results/checkpoints/checkpoint.pt" in log
    assert len(json.loads(saved.with_name("history.json").read_text())) == 40
    assert not chain.queue()


def test_the_page_shows_how_pytorch_does_it(ill: Runner, daemons: Daemons, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
    shown = page.partition("    # PyTorch, with ")[2].partition("    # Lightning")[0]
    given, *lines = shown.replace(" and file", "; file").splitlines()
    load, save = (line.strip() for line in lines if line.strip())
    code = f"""
import os, time, torch
{given}; model = torch.nn.Linear(1, 1)
{load}
print("bias", float(model.bias), flush=True)
torch.nn.init.constant_(model.bias, 7.0)
{save}
time.sleep(1000 if os.environ["RUNNER_ATTEMPT"] == "1" else 0)
"""
    (tmp_path / "t.py").write_text(code)
    words = ("submit", "--gpus", "1", "--until-done", "--name", "page", "--image", "gpu-runner/horovod-pytorch:standin")
    ill(*words, "--", "python3", "t.py", code=0, cwd=tmp_path)
    chain = Chain(ill, daemons, tmp_path / "page", next(ill.runs.glob("*-page-chain")))
    until((chain.path / "checkpoints" / "state.pt").exists, "it is saved", timeout_s=120)
    kill_script(chain, 1)
    ill("wait", "page", "--timeout", "300", code=0)
    assert (chain.run(2) / "logs/rank-0.out").read_text() == "bias 7.0\n"


def test_a_site_may_refuse_it(plain: Runner, tmp_path: Path) -> None:
    site = extended(plain.site, tmp_path, chaining=False)
    words = ("submit", "--gpus", "1", "--runtime", "native", "--until-done", "--", "true")
    assert "chaining: no" in plain(*words, site=site, code=3).err
