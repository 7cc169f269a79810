"""Planted losses, for real: ranks that sleep, on this machine and over a slow or delayed link, land in their rows."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec
import pytest

from runner.jobs import arms, creation, figure
from runner.jobs.collect import Evidence, collect
from runner.model.request import RunArm
from runner.model.study import Launch, LaunchFacts, Loss
from runner.statistics import loss
from tests.support.commands import Runner
from tests.support.evidence import COMPLETED
from tests.support.launchers import by_srun
from tests.support.plans import PLAN
from tests.support.timed import launched
from tests.support.two_networks import ADDRESS, TwoNetworks, box_program, two_networks

pytestmark = pytest.mark.integration
REPEATS = (1, 2, 3)
STEP = {"compute_seconds": 0.04, "window_seconds": 0.8}


def share(made: Loss, *rows: str) -> float:
    """Of the whole loss, in these rows; all rows and the efficiency add up to 1."""
    assert made.efficiency is not None, made.why
    values = {row.name: row.loss.value for row in made.rows}
    whole = math.fsum(values.values())
    assert whole + made.efficiency.value == pytest.approx(1.0)
    assert whole > 0.1, "the planted loss is there"
    return math.fsum(values[row] for row in rows) / whole


@pytest.mark.parametrize(
    ("gpus", "solo_ranks", "planted", "row"),
    [
        (2, (0, 1), {"slow_rank": 1, "slow_factor": 1.5}, loss.WAITING),
        (4, (0, 2), {"slow_node": 1, "ranks_per_node": 2, "slow_factor": 1.5}, loss.WAITING),
        (4, (0,), {"jitter": 0.4, "compute_seconds": 0.02, "window_seconds": 2.4}, loss.WAITING),
        (3, (0,), {"input_seconds": 0.01}, loss.NODE),
        (2, (0,), {"shared_factor": 1.5}, loss.NODE),
        (2, (0,), {"hooks_seconds": 0.02}, loss.HOOKS),
        (2, (0,), {"coordination_seconds": 0.02}, loss.COORDINATION),
        (2, (0,), {"overlap_factor": 1.5}, loss.OVERLAP),
        (4, (0,), {"communication_seconds": 0.02}, loss.EXPOSED),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_planted_loss_lands_in_its_row(
    local: Runner, gpus: int, solo_ranks: tuple[int, ...], planted: dict[str, object], row: str
) -> None:
    made: list[LaunchFacts] = []
    for repeat in REPEATS:
        step = STEP | planted
        made += [launched(local, "solo", 1, repeat, solo_rank=rank, **step) for rank in solo_ranks]
        if row == loss.HOOKS:
            made.append(launched(local, "solo-hooks", 1, repeat, **step))
        made.append(launched(local, "full", gpus, repeat, **step))
    attributed = loss.attribution(gpus, (), made, "one-allocation")
    print({each.name: round(each.loss.value, 3) for each in attributed.rows})
    assert share(attributed, row) >= 0.8


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedNetworks]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with timed_networks(tmp_path_factory.mktemp("networks")) as made:
        yield made


@pytest.mark.parametrize("link", ["slow", "delayed"])
def test_a_bad_link_between_two_nodes_is_communication(networks: TimedNetworks, link: str) -> None:
    """A link of 20 Mbit/s slows what is large. One that delays is felt by the negotiation, too, which comes first."""
    options = ("--compute-seconds", "0.04", "--window-seconds", "0.8")
    payload = ("--payload-bytes", "30000") if link == "slow" else ()
    made: list[LaunchFacts] = []
    for repeat in REPEATS:
        made.append(networks.launched(1, repeat, "", *options))
        made.append(networks.launched(2, repeat, link, *options, *payload))
    attributed = loss.attribution(2, (), made, "one-allocation")
    print({each.name: round(each.loss.value, 3) for each in attributed.rows})
    rows = (loss.EXPOSED,) if link == "slow" else (loss.COORDINATION, loss.EXPOSED)
    assert share(attributed, *rows) >= 0.8


ROOT = Path(__file__).resolve().parents[3]
TURNS: tuple[RunArm, ...] = ("uncoupled", "coordination", "full")
_PROXY_PORT, _DELAY_S = 29700, 0.006
_SLOW = ("rate", "20mbit", "burst", "8kb", "latency", "400ms")


@dataclass(frozen=True)
class TimedNetworks:
    """Two nodes with two links: ``fast0`` is used as it is, or with a delay; ``slow0`` has a token bucket."""

    networks: TwoNetworks
    place: Path
    number: Iterator[int]

    def launched(self, ranks: int, repeat: int, link: str, *options: str) -> LaunchFacts:
        """One launch with a rank on each node; ``link``: ``slow`` or ``delayed``."""
        run = creation.create(self.place / "runs", f"timed-{next(self.number)}", 0.0)
        planned: tuple[RunArm, ...] = TURNS if ranks > 1 else ("full",)
        plan = msgspec.structs.replace(
            PLAN, tasks_per_node=(1,) * ranks, device="cpu", framework="none", arms=planned, samples_per_step=8
        )
        run.write("plan.json", plan)
        shutil.copytree(ROOT / "recipes/lib", run.path / "lib")
        shutil.copytree(ROOT / "tests/support/timed_recipe", run.path / "recipe")
        words = ("--model", "sleep", "--precision", "fp32", "--batch-size", "8", "--demonstration", *options)
        started = [
            self._rank(run.path, rank, ranks, link, *words, "--arms", ",".join(planned)) for rank in range(ranks)
        ]
        try:
            ended = [process.communicate(timeout=120) for process in started]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0] * ranks, ended
        return facts(collect(run, COMPLETED), repeat)

    def _rank(self, run: Path, rank: int, ranks: int, link: str, *options: str) -> subprocess.Popen[str]:
        address = ADDRESS["slow0" if link == "slow" else "fast0"].format(1)
        launch = [sys.executable, str(run / "lib/launch.py"), "--run", str(run), "--bind", "none"]
        sizes = ",".join("1" * ranks)
        env = {"PATH": "/usr/bin:/bin", **by_srun(rank, (1,) * ranks), "RUNNER_RDV_HOST": address}
        if link == "delayed":
            env["TIMED_VIA"] = str(_PROXY_PORT)
        return subprocess.Popen(
            [
                "nsenter", f"--target={self.networks.holders[rank]}", "--net", *launch,
                "--world", str(ranks), "--local-sizes", sizes, "--",
                sys.executable, "-u", "main.py", *options,
            ],
            env=env, cwd=run / "recipe", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def facts(evidence: Evidence, repeat: int) -> LaunchFacts:
    """What the judge makes of the records, which must hold it."""
    assert [*figure.faults(evidence), *arms.faults(evidence)] == []
    made = figure.figure(evidence)
    ranks, planned = evidence.plan.tasks, evidence.plan.arms
    figures = arms.figures(evidence, made) if ranks > 1 else ()
    launch = Launch(f"g{ranks}-r{repeat}", ranks, "full" if ranks > 1 else "solo", repeat, 0, arms=planned)
    return LaunchFacts(launch, "proven", images_per_s=made.throughput.samples_per_s, arms=figures)


@contextmanager
def timed_networks(place: Path) -> Iterator[TimedNetworks]:
    with two_networks() as networks:
        for holder in networks.holders:
            qdisc = ("qdisc", "add", "dev", "slow0", "root", "tbf", *_SLOW)
            subprocess.run(["nsenter", f"--target={holder}", "--net", *box_program("usr/sbin/tc"), *qdisc], check=True)
        proxy = subprocess.Popen(
            [
                "nsenter", f"--target={networks.holders[1]}", "--net", sys.executable,
                str(ROOT / "tests/support/delaying_proxy.py"), str(_PROXY_PORT), str(_DELAY_S),
            ]
        )  # fmt: skip
        try:
            yield TimedNetworks(networks, place, count())
        finally:
            proxy.kill()
            proxy.wait()
