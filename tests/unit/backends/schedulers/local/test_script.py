"""Scripts for this machine, run by a real bash with recorders in the place of the container and of the launcher."""

from __future__ import annotations

import pytest

from runner.core.errors import UsageError
from runner.model.request import Mount, Request
from tests.support.hostile import HARD
from tests.support.recording.direct import arrives_or_is_refused, executed, script


@pytest.mark.parametrize("via", ["native", "charliecloud"])
def test_hard_values_arrive(via: str) -> None:
    """One script; tests/integration/test_hostile_scripts.py makes many."""
    env = {"T_NOTE": HARD, "T_LINES": "one\ntwo\t*"}
    arguments = [HARD, "", "-n", "*", "é\n漢"]
    assert arrives_or_is_refused(via, arguments, env, HARD, ["/data/My Sets"], f"/m/{HARD}")


def test_a_container_sees_nothing_of_a_dirty_shell_and_a_native_program_all_but_another_tasks_place() -> None:
    dirty = {
        "PYTHONPATH": "/x",
        "LD_PRELOAD": "",
        "OMPI_MCA_btl": "tcp",
        "CONDA_PREFIX": "/c",
        "http_proxy": "http://x/",
        "BASH_FUNC_f%%": "() { true; }",
    }
    place = {"SLURM_PROCID": "3", "PMIX_RANK": "3", "OMPI_COMM_WORLD_RANK": "3", "RUNNER_RDV_HOST": "x"}
    clean = {
        via: {name for name in executed(script(Request(gpus=2), via)).environment[1] if name != b"_"}
        for via in ("native", "charliecloud")
    }
    contained = executed(script(Request(gpus=2), "charliecloud"), **dirty, **place).environment[1]
    assert set(contained) - {b"_"} == clean["charliecloud"]
    native = executed(script(Request(gpus=2)), **dirty, **place).environment[1]
    assert set(native) - {b"_"} == clean["native"] | {name.encode() for name in dirty}
    assert native[b"RUNNER_RDV_HOST"] == b"127.0.0.1"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request(gpus=1, queue="q"), "--queue"),
        (Request(gpus=1, mounts=(Mount("/a", "/b"),)), "--mount"),
        (Request(gpus=1, mounts=(Mount("/a", "/a", read_only=True),)), "--mount"),
    ],
)
def test_what_this_machine_cannot_do_is_refused(request_: Request, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        script(request_)
    assert says in caught.value.where


def test_the_users_program_starts_in_its_directory() -> None:
    here = Request(gpus=2, directory="/tmp", program=("true",))
    assert executed(script(here)).environment[1][b"PWD"] == b"/tmp"
    contained = executed(script(here, "charliecloud")).words[1]
    assert b"/tmp:/workspace" in contained
    assert contained[contained.index(b"--cd") + 1] == b"/workspace"


def test_another_directory_may_be_mounted_in_its_place() -> None:
    request = Request(gpus=2, directory="/tmp", program=("true",), mounts=(Mount("/var", "/workspace"),))
    contained = executed(script(request, "charliecloud")).words[1]
    assert b"/var:/workspace" in contained
    assert b"/tmp:/workspace" not in contained
