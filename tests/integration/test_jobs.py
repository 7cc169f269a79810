"""Jobs through the real command line, on a real Slurm of two nodes, in real containers.

Everything but the one torch job runs the standard-library probe.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from runner import box
from runner.box import Box
from runner.render import sbatch_directive
from tests.support.commands import Runner
from tests.support.documents import result
from tests.support.hostile import HOSTILE
from tests.support.rank_records import has_started, records
from tests.support.repositories import git, repository
from tests.support.schema import check
from tests.support.waiting import until

pytestmark = pytest.mark.integration


def with_directives(site: Path, directory: Path, **directives: str) -> Path:
    """A copy of the site file that demands these, too."""
    facts = msgspec.yaml.decode(site.read_bytes())
    facts["slurm"]["directives"] = directives
    copy = directory / "site.yaml"
    copy.write_bytes(msgspec.yaml.encode(facts))
    return copy


def test_the_main_job(runner: Runner) -> None:
    """16 Horovod ranks, eight in each of two nodes' containers, form one world with no PMI, and are measured."""
    printed = runner("submit", "--gpus", "16", "--dry-run", code=0).out
    done = runner("submit", "--gpus", "16", "--wait", code=0)
    run = runner.newest()
    verdict = json.loads((run / "verdict.json").read_text())
    starts, exits, reports = (records(run, kind) for kind in ("start", "exit", "report"))

    assert sorted(starts) == sorted(exits) == sorted(reports) == list(range(16))
    for record in (*starts.values(), *exits.values(), *reports.values(), json.loads((run / "result.json").read_text())):
        check(record)
    assert {start["host"] for start in starts.values()} == {"dgx01", "dgx02"}
    assert sorted((start["host"], start["local_rank"]) for start in starts.values()) == [
        (host, local) for host in ("dgx01", "dgx02") for local in range(8)
    ]
    assert all(record["status"] == 0 for record in exits.values())
    assert all(report["world_size"] == 16 and report["device_kind"] == "cpu" for report in reports.values())
    assert len({report["gradient_checksum"] for report in reports.values()}) == 16
    assert len({report["parameter_checksum"] for report in reports.values()}) == 1
    assert verdict["outcome"] == "measured"
    preliminary = json.loads((run / "result.json").read_text())["preliminary_images_per_s"]
    assert verdict["uncut_images_per_s"] == pytest.approx(preliminary)
    assert (run / "job.sh").read_text() == printed, "what a dry run prints is what was submitted"
    for line in ("verdict: measured", "images/s", "no performance claim", str(run)):
        assert line in done.out
    elapsed = max(e["ended_s"] for e in exits.values()) - min(s["time_s"] for s in starts.values())
    memory = sum(record["max_rss_bytes"] for record in exits.values())
    print(f"main job: {elapsed:.0f} s from first start to last end, {memory / 2**30:.1f} GiB in all")
    assert memory < 8 * 2**30


def test_a_probe_sees_what_was_requested(runner: Runner, tmp_path: Path) -> None:
    """Arguments, environment and mounts arrive byte for byte, and the user's value wins over the image's."""
    source = tmp_path / "My $HOME 'sets'"
    source.mkdir()
    (source / "file").write_text("seen")
    value = 'it\'s "quoted" $HOME `id` \\ # % é\n\ttwo lines *'
    arguments = [
        "--env",
        "HOSTNAME",
        "--env",
        "NOTE",
        "--env",
        "PYTORCH_VERSION",
        "a b",
        "",
        "$(touch /tmp/no)",
        "'\"",
        "*",
        "é\n",
    ]
    runner(
        "submit", "--recipe", "probe", "--gpus", "16", "--wait",
        "--env", f"NOTE={value}", "--env", "PYTORCH_VERSION=mine", "--mount", f"{source}:/mnt",
        "--", *arguments, code=0,
    )  # fmt: skip
    run = runner.newest()
    probes, starts = records(run, "probe"), records(run, "start")
    assert sorted(probes) == list(range(16))
    for probe in probes.values():
        assert [base64.b64decode(word).decode() for word in probe["argv_base64"]] == arguments
        seen = {name: base64.b64decode(raw).decode() for name, raw in probe["environment_base64"].items()}
        assert seen.pop("HOSTNAME") == starts[probe["rank"]]["host"]
        assert seen == {"NOTE": value, "PYTORCH_VERSION": "mine"}
        assert base64.b64decode(probe["cwd_base64"]) == b"/results/recipe"
    assert json.loads((run / "verdict.json").read_text())["outcome"] == "ran"
    assert json.loads((run / "verdict.json").read_text())["images_per_s"] is None
    shown = result(runner("show", run.name, "--json", code=0).out)
    assert [(node["name"], node["gpus"]) for node in shown["node_list"]] == [
        (name, list(range(8))) for name in ("dgx01", "dgx02")
    ]


def test_a_copy_of_the_users_files_runs_in_a_container(runner: Runner, tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {"my code/train.py": b"import os, helper\nprint(os.getcwd(), helper.VALUE)\n"})
    start = top / "my code"
    (start / "helper.py").write_text("VALUE = 'as submitted'\n")
    git(top, "add", "-A")
    runner("submit", "--gpus", "2", "--snapshot", "--", "python3", "train.py", code=0, cwd=start)
    (start / "helper.py").write_text("VALUE = 'edited'\n")
    run = runner.newest()
    runner("wait", run.name, code=0)
    assert (run / "logs" / "rank-1.out").read_text() == "/results/code/my code as submitted\n"


# What would change a rank: interpreters, libraries, MPI, Horovod, and ways to the network that are not the node's.
DIRT = {
    "PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": "/nowhere", "VIRTUAL_ENV": "/nowhere",
    "LD_LIBRARY_PATH": "/nowhere", "LD_PRELOAD": "/nowhere.so", "BASH_ENV": "/nowhere",
    "CONDA_PREFIX": "/conda", "CONDA_SHLVL": "1", "OMPI_MCA_btl": "tcp", "PMIX_MCA_gds": "hash",
    "HOROVOD_CYCLE_TIME": "99", "HOROVOD_TIMELINE": "/nowhere", "http_proxy": "http://x:1/", "HTTPS_PROXY": "http://x:1/",
    "all_proxy": "socks5://x:1/", "NO_PROXY": "x",
}  # fmt: skip


@pytest.fixture
def dirty(runner: Runner, tmp_path: Path) -> Iterator[Runner]:
    """The command line in a dirty shell, against a box where every login shell of the nodes makes itself dirty, too."""
    profile = tmp_path / "profile.d"
    profile.mkdir()
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in DIRT.items() if name != "LD_PRELOAD"]
    (profile / "dirty.sh").write_text("".join(lines) + f"touch {profile}/was-read\n")
    name = f"dirty-{os.getpid()}"
    try:
        here = box.up(box.BoxSpec(name=name, binds=(box.Bind(str(profile), "/etc/profile.d"),)))
        yield dataclasses.replace(runner, site=Path(here.site), clients=here.bin_dir)
        assert (profile / "was-read").exists(), "a login shell has been dirty"
    finally:
        box.down(name)


def test_the_environment_of_a_dirty_login_shell_does_not_reach_a_rank(runner: Runner, dirty: Runner) -> None:
    """Here nor there; and what a rank had is in its record, by name, with the values of what explains a run."""
    seen, recorded = [], []
    # No Python starts in an environment with PYTHONHOME.
    extra = {name: value for name, value in DIRT.items() if name not in ("PYTHONHOME", "PYTHONPATH", "LD_PRELOAD")}
    for command, env in ((runner, {}), (dirty, {**extra, "PYTHONPATH": "/nowhere"})):
        command("submit", "--recipe", "probe", "--gpus", "2", "--wait", code=0, env=env)
        seen.append(records(command.newest(), "probe")[0]["environment_names"])
        recorded.append(records(command.newest(), "start")[0])
    assert seen[0] == seen[1]
    assert set(recorded[1]["environment_names"]) <= {*seen[1], "_"}
    assert recorded[1]["environment"]["HOROVOD_CONTROLLER"] == "gloo"
    assert "HOROVOD_CYCLE_TIME" not in recorded[1]["environment"]


@pytest.mark.parametrize(
    ("gpus", "nodes", "placed"), [(13, None, [8, 5]), (3, 2, [2, 1]), (12, None, [6, 6]), (2, None, [2])]
)
def test_ranks_are_placed_as_planned(runner: Runner, gpus: int, nodes: int | None, placed: list[int]) -> None:
    more = ("--nodes", str(nodes)) if nodes else ()
    runner("submit", "--recipe", "probe", "--gpus", str(gpus), *more, "--wait", code=0)
    hosts = [start["host"] for start in records(runner.newest(), "start").values()]
    assert sorted((hosts.count(host) for host in set(hosts)), reverse=True) == placed


def test_a_program_that_is_not_there(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "recipe.yaml").write_text(
        "name: r\ndescription: x\nimage: gpu-runner/horovod-pytorch\nprogram: [no-such-program]\n"
    )
    done = runner("submit", "--recipe", str(tmp_path / "r"), "--gpus", "2", "--wait", code=5)
    assert "program-not-found" in done.out


def test_a_run_goes_on_without_the_process_that_submitted_it(runner: Runner, tmp_path: Path) -> None:
    """The waiting process is killed outright; status, logs, wait and cancel go on from elsewhere."""
    words = ("submit", "--recipe", "probe", "--gpus", "2", "--wait", "--", "--sleep", "8")
    child, run = runner.start_until(has_started(2), *words)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()

    stood = runner("status", run.name, "--json", code=0, cwd=tmp_path)
    assert result(stood.out)["state"] == "running"
    verdict = runner("wait", str(run), "--json", code=0, cwd=tmp_path)
    assert result(verdict.out)["verdict"]["outcome"] == "ran"
    assert "2 of 2 ranks met" in runner("logs", run.name, code=0, cwd=tmp_path).out


def test_cancel(runner: Runner) -> None:
    child, run = runner.start_until(
        has_started(2), "submit", "--recipe", "probe", "--gpus", "2", "--", "--sleep", "300"
    )
    assert child.wait(60) == 0
    runner("cancel", run.name, code=0)
    done = runner("wait", run.name, "--timeout", "60", code=5)
    assert "the job was cancelled" in done.out
    assert "has already ended" in runner("cancel", run.name, code=0).out


def test_wait_gives_up_at_its_timeout_and_the_job_goes_on(runner: Runner) -> None:
    runner("submit", "--recipe", "probe", "--gpus", "1", "--", "--sleep", "300", code=0)
    began = time.monotonic()
    runner("wait", "--timeout", "1", code=9)
    assert time.monotonic() - began < 30
    runner("cancel", code=0)
    runner("wait", "--timeout", "60", code=5)


def test_two_jobs_on_one_node_do_not_mix(runner: Runner, tmp_path: Path) -> None:
    """Each on half of the GPUs of a node, at the same time, each its own world."""
    site = with_directives(runner.site, tmp_path, nodelist="dgx01")
    before = set(runner.runs.iterdir())
    children = [
        runner.start("submit", "--recipe", "probe", "--gpus", "4", "--wait", "--", "--sleep", "8", site=site)
        for _ in "ab"
    ]
    for child in children:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, (out, err)
    one, other = (records(run, "exit").values() for run in set(runner.runs.iterdir()) - before)
    assert {record["host"] for record in one} == {record["host"] for record in other}
    assert min(r["ended_s"] for r in one) > max(r["started_s"] for r in other)
    assert min(r["ended_s"] for r in other) > max(r["started_s"] for r in one)


def test_interrupting_the_wait_leaves_the_job_running(runner: Runner) -> None:
    words = ("submit", "--recipe", "probe", "--gpus", "1", "--wait", "--", "--sleep", "300")
    child, run = runner.start_until(has_started(1), *words)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert b"continues" in err
    assert b"cancel" in err
    assert result(runner("status", run.name, "--json", code=0).out)["state"] == "running"
    runner("cancel", code=0)


def test_interrupting_the_wait_cancels_the_job_with_that_option(runner: Runner) -> None:
    words = ("submit", "--recipe", "probe", "--gpus", "1", "--wait", "--cancel-on-interrupt", "--", "--sleep", "300")
    child, run = runner.start_until(has_started(1), *words)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=90)
    assert child.returncode == 130
    assert b"being cancelled" in err
    assert "the job was cancelled" in runner("wait", run.name, "--timeout", "60", code=5).out


def test_slurm_refuses_and_says_why(runner: Runner) -> None:
    done = runner("submit", "--recipe", "probe", "--gpus", "2", "--partition", "no such # 'one'", code=4)
    assert "invalid partition" in done.err.lower()
    assert runner("cancel", runner.newest().name, code=4).err.lower().startswith("error: ")
    listed = result(runner("status", "--all", "--json", code=0).out)
    assert runner.newest().name not in {run["run"] for run in listed["runs"]}


@pytest.mark.parametrize(
    "comment",
    ["plain", "two words", 'it\'s "quoted"', "# not a comment", "50% of $HOME `id` \\ back", "é 漢", "-x", "a=b,c:d"],
)
def test_a_directive_arrives_at_slurm_as_it_is(runner: Runner, tmp_path: Path, comment: str) -> None:
    """What the site demands goes through a real sbatch's own reading of the script."""
    site = with_directives(runner.site, tmp_path, comment=comment)
    said = runner("submit", "--recipe", "probe", "--gpus", "1", "--json", code=0, site=site)
    job = result(said.out)["job"]
    shown = subprocess.run(
        [runner.clients / "scontrol", "show", "job", job], capture_output=True, text=True, check=True
    )
    assert f"   Comment={comment} \n" in shown.stdout
    runner("wait", code=0)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(comment=HOSTILE.filter(lambda text: text and not set(text) & set("\n\r")))
def test_hostile_directives_arrive_at_slurm_as_they_are(cluster: Box, comment: str) -> None:
    """Scripts that are held and never run, so that there can be many."""
    script = f"#!/bin/bash\n{sbatch_directive('comment', comment)}\n#SBATCH --hold\n"

    def client(name: str, *words: str, given: bytes = b"") -> bytes:
        return subprocess.run(
            [cluster.bin_dir / name, *words], input=given, stdout=subprocess.PIPE, cwd="/", check=True, timeout=60
        ).stdout

    job = client("sbatch", "--parsable", given=script.encode("utf-8", "surrogateescape")).decode().strip()
    try:
        assert client("squeue", "--noheader", "--format=%k", f"--jobs={job}") == os.fsencode(comment) + b"\n"
    finally:
        client("scancel", job)


def test_no_slurm_client_in_path(runner: Runner, tmp_path: Path) -> None:
    site = tmp_path / "s.yaml"
    site.write_text(runner.site.read_text().replace("box: ", "# box: "))
    done = runner("submit", "--recipe", "probe", "--gpus", "2", code=4, site=site, env={"PATH": "/usr/bin:/bin"})
    assert "no Slurm client" in done.err


def test_children_of_tests_leave_nothing(runner: Runner) -> None:
    """The queue is empty when every test has cleaned up after itself."""
    queue = [str(runner.clients / "squeue"), "--noheader"]
    until(lambda: subprocess.run(queue, stdout=subprocess.PIPE, check=True).stdout.strip() == b"", "no job", every_s=1)
