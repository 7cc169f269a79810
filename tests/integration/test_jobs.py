"""Jobs through the real command line, on a real Slurm of two nodes, in real containers.

Everything but the torch job and Horovod's clients runs the standard-library probe.
"""

import base64
import dataclasses
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from runner import box
from runner.box import Box
from runner.images.store.stored_image import StoredImage
from runner.render import sbatch_directive
from tests.support.commands import Runner, extended, ran
from tests.support.daemons import own_box
from tests.support.documents import result
from tests.support.hostile import HARD, HOSTILE
from tests.support.json_schema import check
from tests.support.planted_faults import RECIPE
from tests.support.rank_records import arrived, document_of, has_started, printed, ranks_by_node, records
from tests.support.recipes import complete, meshes, over_a_bad_road
from tests.support.repositories import git, repository
from tests.support.waiting import until

pytestmark = pytest.mark.integration


def test_the_main_job(runner: Runner) -> None:
    """16 Horovod ranks, eight in each of two nodes' containers, form one world with no PMI, and are measured."""
    planned = runner("submit", "--gpus", "16", "--dry-run", code=0).out
    done = runner("submit", "--gpus", "16", "--wait", code=0)
    run = runner.newest()
    verdict, result_record = document_of(run, "verdict"), document_of(run, "result")
    starts, exits, reports = (records(run, kind) for kind in ("start", "exit", "report"))

    assert sorted(starts) == sorted(exits) == sorted(reports) == list(range(16))
    for record in (*starts.values(), *exits.values(), *reports.values(), result_record):
        check(record)
    places = [(host, local) for host in ("dgx01", "dgx02") for local in range(8)]
    assert sorted((start["host"], start["local_rank"]) for start in starts.values()) == places
    assert all(record["status"] == 0 for record in exits.values())
    assert all(report["world_size"] == 16 and report["device_kind"] == "cpu" for report in reports.values())
    assert len({report["gradient_checksum"] for report in reports.values()}) == 16
    assert len({report["parameter_checksum"] for report in reports.values()}) == 1
    assert verdict["outcome"] == "measured"
    assert verdict["uncut_images_per_s"] == pytest.approx(result_record["preliminary_images_per_s"])
    assert (run / "job.sh").read_text() == planned, "what a dry run prints is what was submitted"
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
    seen = [word for name in ("HOSTNAME", "NOTE", "PYTORCH_VERSION") for word in ("--env", name)]
    arguments = [*seen, "a b", "", "$(touch /tmp/no)", "'\"", "*", "é\n"]
    given = ("--env", f"NOTE={value}", "--env", "PYTORCH_VERSION=mine", "--mount", f"{source}:/mnt")
    runner("submit", "--recipe", "probe", "--gpus", "16", "--wait", *given, "--", *arguments, code=0)
    run = runner.newest()
    probes, starts = records(run, "probe"), records(run, "start")
    assert sorted(probes) == list(range(16))
    for probe in probes.values():
        own = {"HOSTNAME": starts[probe["rank"]]["host"], "NOTE": value, "PYTORCH_VERSION": "mine"}
        assert arrived(probe) == (arguments, own)
        assert base64.b64decode(probe["cwd_base64"]) == b"/results/recipe"
    verdict = document_of(run, "verdict")
    assert (verdict["outcome"], verdict["images_per_s"]) == ("ran", None)
    shown = result(runner("show", run.name, "--json", code=0).out)
    nodes = [(node["name"], node["gpus"]) for node in shown["node_list"]]
    assert nodes == [(name, list(range(8))) for name in ("dgx01", "dgx02")]


def test_a_copy_of_the_users_files_runs_in_a_container(runner: Runner, tmp_path: Path) -> None:
    top = repository(tmp_path / "r", {"my code/train.py": b"import os, helper\nprint(os.getcwd(), helper.VALUE)\n"})
    start = top / "my code"
    (start / "helper.py").write_text("VALUE = 'as submitted'\n")
    git(top, "add", "-A")
    runner("submit", "--gpus", "2", "--snapshot", "--", "python3", "train.py", code=0, cwd=start)
    (start / "helper.py").write_text("VALUE = 'edited'\n")
    run = runner.newest()
    runner("wait", run.name, code=0)
    assert printed(run, 1) == "/results/code/my code as submitted\n"


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
    with own_box("dirty", binds=(box.Bind(str(profile), "/etc/profile.d"),)) as here:
        yield dataclasses.replace(runner, site=Path(here.site), clients=here.bin_dir)
        assert (profile / "was-read").exists(), "a login shell has been dirty"


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
    assert ranks_by_node(runner.newest()) == placed


def test_a_run_goes_on_without_the_process_that_submitted_it(runner: Runner, tmp_path: Path) -> None:
    """The waiting process is killed outright; status, logs, wait and cancel go on from elsewhere."""
    child, run = runner.start_until(has_started(2), *PROBE, "2", "--wait", "--", "--sleep", "8")
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()

    stood = runner("status", run.name, "--json", code=0, cwd=tmp_path)
    assert result(stood.out)["state"] == "running"
    verdict = runner("wait", str(run), "--json", code=0, cwd=tmp_path)
    assert result(verdict.out)["verdict"]["outcome"] == "ran"
    assert "2 of 2 ranks met" in runner("logs", run.name, code=0, cwd=tmp_path).out


PROBE = ("submit", "--recipe", "probe", "--gpus")


def test_cancel(runner: Runner) -> None:
    run = runner.submitted(has_started(2), *PROBE, "2", "--", "--sleep", "300")
    runner("cancel", run.name, code=0)
    done = runner("wait", run.name, "--timeout", "60", code=5)
    assert "the job was cancelled" in done.out
    assert "has already ended" in runner("cancel", run.name, code=0).out


@pytest.mark.parametrize("cancels", [False, True])
def test_interrupting_the_wait_leaves_the_job_running_but_with_an_option(runner: Runner, cancels: bool) -> None:
    option = ("--cancel-on-interrupt",) if cancels else ()
    child, run = runner.start_until(has_started(1), *PROBE, "1", "--wait", *option, "--", "--sleep", "300")
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=90)
    assert child.returncode == 130
    if cancels:
        assert b"being cancelled" in err
        assert "the job was cancelled" in runner("wait", run.name, "--timeout", "60", code=5).out
        return
    assert b"continues" in err
    assert b"cancel" in err
    assert result(runner("status", run.name, "--json", code=0).out)["state"] == "running"
    began = time.monotonic()
    runner("wait", "--timeout", "1", code=9)
    assert time.monotonic() - began < 30, "it gives up at its timeout, and the job goes on"
    runner("cancel", code=0)
    runner("wait", "--timeout", "60", code=5)


def test_two_jobs_on_one_node_do_not_mix(runner: Runner, tmp_path: Path) -> None:
    """Each on half of the GPUs of a node, at the same time, each its own world."""
    site = extended(runner.site, tmp_path, slurm={"directives": {"nodelist": "dgx01"}})
    before = set(runner.runs.glob("[!.]*"))
    children = [
        runner.start("submit", "--recipe", "probe", "--gpus", "4", "--wait", "--", "--sleep", "8", site=site)
        for _ in "ab"
    ]
    for child in children:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, (out, err)
    one, other = (records(run, "exit").values() for run in set(runner.runs.glob("[!.]*")) - before)
    assert {record["host"] for record in one} == {record["host"] for record in other}
    assert min(r["ended_s"] for r in one) > max(r["started_s"] for r in other)
    assert min(r["ended_s"] for r in other) > max(r["started_s"] for r in one)


def test_slurm_refuses_and_says_why(runner: Runner) -> None:
    done = runner(*PROBE, "2", "--partition", "no such # 'one'", code=4)
    assert "invalid partition" in done.err.lower()
    assert runner("cancel", runner.newest().name, code=4).err.lower().startswith("error: ")
    listed = result(runner("status", "--all", "--json", code=0).out)
    assert runner.newest().name not in {run["run"] for run in listed["runs"]}


def test_a_directive_arrives_at_slurm_as_it_is(runner: Runner, tmp_path: Path) -> None:
    """What the site demands goes through a real sbatch's own reading of the script."""
    site = extended(runner.site, tmp_path, slurm={"directives": {"comment": f"# {HARD}"}})
    job = result(runner(*PROBE, "1", "--json", code=0, site=site).out)["job"]
    assert f"   Comment=# {HARD} \n" in ran([runner.clients / "scontrol", "show", "job", job]).out
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


def test_children_of_tests_leave_nothing(runner: Runner) -> None:
    """The queue is empty when every test has cleaned up after itself."""
    until(lambda: ran([runner.clients / "squeue", "--noheader"]).out.strip() == "", "no job", every_s=1)


def needed(runner: Runner) -> list[str]:
    """What pruning all of the store would keep. Only said: the store is everybody's."""
    said = result(runner("images", "prune", "--max-size", "0", "--dry-run", "--json", code=0).out)
    assert set(said["removed"]).isdisjoint(said["needed"])
    return list(said["needed"])


def test_a_running_jobs_image_stays_until_its_end(runner: Runner, squashfs: StoredImage) -> None:
    words = ("submit", "--gpus", "2", "--recipe", str(RECIPE), "--wait", "--cancel-on-interrupt")
    child, run = runner.start_until(has_started(2), *words, "--", "--fault", "hang")
    assert needed(runner) == [str(squashfs.path)]
    child.send_signal(signal.SIGINT)
    assert child.wait(90) == 130
    runner("wait", run.name, code=5)
    until(lambda: not needed(runner), "no image of a job that Slurm still ends", every_s=1)
    listed = result(runner("images", "list", "--json", code=0).out)
    assert [run.name] == [row["runs"][0] for row in listed if row["path"] == str(squashfs.path)]


def test_128_clients_form_their_mesh_in_a_job(runner: Runner) -> None:
    (told,) = meshes(runner, "--clients", "128")
    assert complete(told), told
    assert (told["clients"], told["tasks"]) == (128, 16)
    assert told["requests"] > 2.4 * 128**2


def test_a_mesh_forms_though_packets_are_lost_and_late() -> None:
    told = over_a_bad_road(16, loss=0.01, delay_ms=20)
    assert complete(told), told
    assert told["mesh_s"] > 2, "the road was as bad as it was to be: about 40 round trips of 40 ms, one after the other"
