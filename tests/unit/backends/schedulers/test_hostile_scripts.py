"""Whole scripts with hostile strings in them, run by a real bash with recording parts: nothing may change on the way.

What a runtime cannot express is refused with the option and the text named; all else arrives byte for byte. One script
each here; tests/integration/test_hostile_scripts.py makes hundreds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from runner.backends.runtimes import runtime
from runner.backends.schedulers import render
from runner.backends.schedulers.script_parts import COMMON
from runner.core.errors import UsageError
from runner.model.backends import RUNTIMES
from runner.model.plan import PlannedImage
from runner.model.request import Mount, Request
from runner.model.site import NodeShape, Site
from runner.planning.plan import plan
from runner.render import sbatch_directive
from tests.support.commands import ran
from tests.support.hostile import HARD, HOSTILE
from tests.support.recording import RECIPE, direct, slurm
from tests.support.recording.direct import HERE, HOSTS, executed, script

CONTAINERS = tuple(name for name, facts in RUNTIMES.items() if facts.is_container)
ARGUMENTS = [HARD, "", "-n", "*", "é\n漢"]


@pytest.mark.parametrize("via", CONTAINERS)
def test_hard_values_arrive_in_a_job_of_slurm(via: str) -> None:
    of_user = {"T_NOTE": HARD, "T_BLANKS": " two\t* "}
    envs = ({"T_SITE": HARD, "T_BOTH": "the site's"}, {"T_BOTH": HARD}, of_user)
    values = (ARGUMENTS, [HARD], envs, HARD, [("/data/My.Sets", "/data")], "/m/i.img", HARD)
    assert slurm.arrives_or_is_refused(via, *values) > 0


@pytest.mark.parametrize("via", ["native", "charliecloud"])
def test_hard_values_arrive_without_a_scheduler(via: str) -> None:
    env = {"T_NOTE": HARD, "T_LINES": "one\ntwo\t*"}
    assert direct.arrives_or_is_refused(via, ARGUMENTS, env, HARD, ["/data/My Sets"], f"/m/{HARD}")
    assert direct.arrives_or_is_refused(via, ARGUMENTS, env, HARD, ["/data/My Sets"], f"/m/{HARD}", HARD)


def test_what_a_script_leaves_goes_through_no_link_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("mine")
    for target in ("private", "directory"):
        (tmp_path / "directory").mkdir(exist_ok=True)
        (tmp_path / "exit.json").unlink(missing_ok=True)
        (tmp_path / "exit.json").symlink_to(target)
        ran(["bash", "-c", '. "$0"; echo left | runner_leave exit.json', COMMON], cwd=tmp_path)
        assert (tmp_path / "exit.json").read_text() == "left\n" and not (tmp_path / "exit.json").is_symlink()
    assert (tmp_path / "private").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["directory", "exit.json", "private"]


@settings(max_examples=150, deadline=None)
@given(HOSTILE)
def test_a_directive_is_one_line_or_refused(value: str) -> None:
    try:
        line = sbatch_directive("comment", value)
    except UsageError as error:
        assert any(character in value for character in "\n\r\0")
        assert "--comment" in error.where
        return
    assert "\n" not in line
    assert line.startswith("#SBATCH --comment=")


def test_a_newline_in_a_sites_directive_is_refused_with_its_key() -> None:
    site = Site(
        name="s", description="", scheduler="slurm", runtimes=("pyxis",), node=NodeShape(cores=8, memory_mb=1, gpus=4),
        scheduler_settings={"directives": {"comment": "a\nb"}},
    )  # fmt: skip
    planned = plan(RECIPE, site, Request(gpus=1), PlannedImage("i", "", "/i"))
    with pytest.raises(UsageError, match="newline") as caught:
        render(planned, runtime("pyxis").step(planned))
    assert "--comment" in caught.value.where


def on_hosts(via: str, **env: str) -> dict[int, dict[bytes, bytes]]:
    """The environments of three ranks on two hosts."""
    return executed(script(Request(gpus=3), via, site=HOSTS), True, **env).environment


def test_a_container_sees_nothing_of_a_dirty_shell_and_a_native_program_all_but_another_tasks_place() -> None:
    dirty = {
        "PYTHONPATH": "/x", "LD_PRELOAD": "", "OMPI_MCA_btl": "tcp", "CONDA_PREFIX": "/c", "http_proxy": "http://x/",
        "BASH_FUNC_f%%": "() { true; }",
    }  # fmt: skip
    place = {"SLURM_PROCID": "3", "PMIX_RANK": "3", "OMPI_COMM_WORLD_RANK": "3", "RUNNER_RDV_HOST": "x"}

    def names(via: str, **env: str) -> set[bytes]:
        return set(executed(script(Request(gpus=2), via), **env).environment[1]) - {b"_"}

    assert names("charliecloud", **dirty, **place) == names("charliecloud")
    assert names("native", **dirty, **place) == names("native") | {name.encode() for name in dirty}
    native = executed(script(Request(gpus=2)), **dirty, **place).environment[1]
    assert native[b"RUNNER_RDV_HOST"] == b"127.0.0.1"
    clean = on_hosts("charliecloud")[2]
    assert set(on_hosts("charliecloud", **dirty)[2]) == set(clean)
    assert b"ON_NODE" not in clean


@pytest.mark.parametrize(
    ("where", "options", "says"),
    [
        (HERE, {"queue": "q"}, "--queue"),
        (HERE, {"mounts": (Mount("/a", "/b"),)}, "--mount"),
        (HERE, {"mounts": (Mount("/a", "/a", read_only=True),)}, "--mount"),
        (HERE, {"scheduler_options": (("nodelist", "n1"),)}, "--scheduler-option"),
        (HOSTS, {"queue": "q"}, "--queue"),
        (HOSTS, {"scheduler_options": (("reservation", "r"),)}, "--scheduler-option"),
        (HOSTS, {"mounts": (Mount("/a", "/b"),)}, "--mount"),
    ],
)
def test_what_cannot_be_done_without_a_scheduler_is_refused(where: Site, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        script(Request(gpus=1, **options), site=where)
    assert says in caught.value.where


def test_the_users_program_starts_in_its_directory_unless_another_is_mounted_there() -> None:
    here = Request(gpus=2, directory="/tmp", program=("true",))
    assert executed(script(here)).environment[1][b"PWD"] == b"/tmp"
    contained = executed(script(here, "charliecloud")).words[1]
    assert b"/tmp:/workspace" in contained
    assert contained[contained.index(b"--cd") + 1] == b"/workspace"
    mounted = msgspec.structs.replace(here, mounts=(Mount("/var", "/workspace"),))
    contained = executed(script(mounted, "charliecloud")).words[1]
    assert b"/var:/workspace" in contained
    assert b"/tmp:/workspace" not in contained


def test_every_rank_over_ssh_has_its_place_and_its_nodes_own_user() -> None:
    shell = {"SLURM_PROCID": "5", "RUNNER_JOB_ID": "x", "SSH_AUTH_SOCK": "/x", "TMPDIR": "/tmp"}
    ranks = on_hosts("native", **shell)
    names = (b"RANK", b"LOCAL_RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE", b"RUNNER_RDV_HOST", b"USER")
    assert [[ranks[rank][name] for name in names] for rank in range(3)] == [
        [b"0", b"0", b"3", b"2", b"10.0.0.1", b"me"],
        [b"1", b"1", b"3", b"2", b"10.0.0.1", b"me"],
        [b"2", b"0", b"3", b"1", b"10.0.0.1", b"me"],
    ]
    of_all = {name: {ranks[rank][name] for rank in range(3)} for name in (b"RUNNER_RDV_PORT", b"RUNNER_RDV_KEY")}
    assert len(of_all[b"RUNNER_RDV_PORT"]) == 1
    assert [len(key) for key in of_all[b"RUNNER_RDV_KEY"]] == [24]
    assert len({ranks[rank][b"RUNNER_JOB_ID"] for rank in range(3)} - {b"x"}) == 1
    assert not {b"SLURM_PROCID", b"SSH_AUTH_SOCK", b"TMPDIR"} & set(ranks[0])
    assert ranks[2][b"ON_NODE"] == b"nodeb"
    assert ranks[0][b"HOME"] != b"/submitter"
