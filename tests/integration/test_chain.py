"""Chains of attempts on a real Slurm: what ends an attempt and not the chain, and what ends the chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chains import ENDS, PROGRAM, Chain, kill_script, reach_limit
from tests.support.commands import Runner, extended
from tests.support.daemons import Daemons
from tests.support.documents import result
from tests.support.waiting import until

pytestmark = pytest.mark.integration
IN_IMAGE = ("--image", "gpu-runner/horovod-pytorch:standin")
PAGE = (Path(__file__).parents[2] / "docs/jobs.md").read_text()
LEAVES = "import signal, sys, time; signal.signal(10, lambda *_: sys.exit(0)); print(1, flush=True); time.sleep(1000)"


@pytest.fixture(scope="module")
def plain(daemons: Daemons, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner.at(daemons.box.site, tmp_path_factory.mktemp("chains"), daemons.box.bin_dir, runs="my runs")


def last_line(chain: Chain) -> str:
    return chain.runner("status", chain.home.name, code=0).out.splitlines()[-1].removeprefix("no attempt follows: ")


def test_a_chain_goes_through_four_limits(plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    chain = Chain.submitted(plain, daemons, tmp_path / "limits")
    for attempt in range(1, 5):
        chain.goes_on(attempt)
        reach_limit(chain, attempt)
    chain.goes_on(5)
    chain.ends_well(5)
    rows = result(plain("status", "limits", "--json", code=0).out)["runs"]
    assert [(row["outcome"], row["values"]["attempt"]) for row in rows] == [
        *(("failed", str(attempt)) for attempt in range(1, 5)), ("ran", "5"),
    ]  # fmt: skip
    assert "limits.4: failed; the job ran into its time limit\n" in plain("status", "limits", code=0).out
    assert last_line(chain) == "the program is done"
    assert len(result(plain("report", "limits", "--json", "-o", str(tmp_path / "report"), code=0).out)["rows"]) == 5


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_an_attempt_does_not_end_the_chain(end: str, plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    chain = Chain.submitted(plain, daemons, tmp_path / end.replace(" ", "-"))
    chain.goes_on(1)
    ENDS[end](chain, 1)
    chain.goes_on(2)
    chain.ends_well(2)


def test_a_program_that_leaves_when_it_is_warned_is_not_done(plain: Runner, daemons: Daemons, tmp_path: Path) -> None:
    chain = Chain.submitted(plain, daemons, tmp_path / "warned", "--runtime", "native", "--attempts", "2", code=LEAVES)
    for attempt in (1, 2):
        until(lambda number=attempt: chain.log(number), "it runs")  # type: ignore[misc]
        daemons.inside("scancel", "--batch", "--signal=USR1", chain.job(attempt))
    plain("wait", "warned", "--timeout", "120", code=0)
    assert last_line(chain) == "its attempts are used up"


@pytest.mark.parametrize(
    ("options", "program", "kills", "cancels", "code", "why"),
    [
        ((), "raise SystemExit(3)", 0, "", 5, "the program ended with exit code 3"),
        ((), PROGRAM, 0, "x", 5, "it was cancelled"),
        ((), PROGRAM, 0, "x.1", 5, "attempt 1 was cancelled"),  # the next one begins, and leaves
        (
            (),
            "import time; print(1, flush=True); time.sleep(1000)",
            2,
            "",
            8,
            "attempts 1 and 2 left no newer checkpoint",
        ),
        (("--gpu-hours", "0.15", "--time", "6:00"), PROGRAM, 1, "", 8, "its attempts are used up"),
    ],
)
def test_what_ends_a_chain(
    options: tuple[str, ...], program: str, kills: int, cancels: str, code: int, why: str,
    daemons: Daemons, tmp_path: Path,
) -> None:  # fmt: skip
    runner = Runner.at(daemons.box.site, tmp_path, daemons.box.bin_dir)
    chain = Chain.submitted(runner, daemons, tmp_path / "x", "--runtime", "native", *options, code=program)
    for attempt in range(1, kills + 1):
        until(lambda number=attempt: chain.log(number), "it runs")  # type: ignore[misc]
        kill_script(chain, attempt)
    if cancels:
        chain.goes_on(1)
        runner("cancel", cancels, code=0)
    runner("wait", "x", "--timeout", "120", code=code)
    assert (last_line(chain), chain.jobs()) == (why, 0)
    assert not (chain.run(kills + 1) / "began").exists() or kills == 0


def test_horovod_train_goes_on_where_it_was_in_a_container(ill: Runner, daemons: Daemons, tmp_path: Path) -> None:
    chain = Chain.submitted(ill, daemons, tmp_path / "digits", "--recipe", "horovod-train", "--set", "epochs=40")
    until((chain.path / "checkpoints/checkpoint.pt").exists, "there is a checkpoint", timeout_s=180)
    kill_script(chain, 1)
    ill("wait", "digits", "--timeout", "300", code=0)
    assert "resumed from /results/checkpoints/checkpoint.pt" in chain.log(2)
    assert "epoch 40: " in chain.log(2)


def test_the_page_shows_how_pytorch_does_it(ill: Runner, daemons: Daemons, tmp_path: Path) -> None:
    shown = PAGE.partition("# PyTorch, with ")[2].partition("# Lightning")[0].replace(" and file", "; file")
    given, load, save = (line.strip() for line in shown.splitlines() if line.strip())
    code = ("import os, time, torch", f"{given}; model = torch.nn.Linear(1, 1)", load,
            "print(float(model.bias), flush=True)", "torch.nn.init.constant_(model.bias, 7.0)", save,
            "time.sleep(1000 if os.environ['RUNNER_ATTEMPT'] == '1' else 0)")  # fmt: skip
    chain = Chain.submitted(ill, daemons, tmp_path / "page", *IN_IMAGE, code="\n".join(code))
    until((chain.path / "checkpoints/state.pt").exists, "it is saved", timeout_s=120)
    kill_script(chain, 1)
    ill("wait", "page", "--timeout", "300", code=0)
    assert chain.log(2) == "7.0\n"


def test_a_site_may_refuse_it(plain: Runner, tmp_path: Path) -> None:
    site = extended(plain.site, tmp_path, chaining=False)
    assert "chaining: no" in plain("submit", "--gpus", "1", "--until-done", "--", "true", site=site, code=3).err
