"""Scripts for a list of hosts, run by a real bash: an ssh that records its words and starts its bash here, recorders in
the place of the container and of the launcher.
"""

from __future__ import annotations

import pytest

from runner.core.errors import UsageError
from runner.model.request import Mount, Request
from tests.support.hostile import HARD
from tests.support.recording.direct import HOSTS, Ran, arrives_or_is_refused, executed, script


@pytest.mark.parametrize("via", ["native", "charliecloud"])
def test_hard_values_arrive(via: str) -> None:
    """One script; tests/integration/test_hostile_scripts.py makes many."""
    env = {"T_NOTE": HARD, "T_LINES": "one\ntwo\t*"}
    arguments = [HARD, "", "-n", "*", "é\n漢"]
    assert arrives_or_is_refused(via, arguments, env, HARD, ["/data/My Sets"], f"/m/{HARD}", HARD)


def on_hosts(via: str = "native", **env: str) -> Ran:
    return executed(script(Request(gpus=3), via, site=HOSTS), True, **env)


def test_every_rank_has_its_place_and_its_nodes_own_user() -> None:
    ran = on_hosts(SLURM_PROCID="5", RUNNER_JOB_ID="x", SSH_AUTH_SOCK="/x", TMPDIR="/tmp")
    names = (b"RANK", b"LOCAL_RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE", b"RUNNER_RDV_HOST", b"USER")
    assert [[ran.environment[rank][name] for name in names] for rank in range(3)] == [
        [b"0", b"0", b"3", b"2", b"10.0.0.1", b"me"],
        [b"1", b"1", b"3", b"2", b"10.0.0.1", b"me"],
        [b"2", b"0", b"3", b"1", b"10.0.0.1", b"me"],
    ]
    assert len({ran.environment[rank][b"RUNNER_RDV_PORT"] for rank in range(3)}) == 1
    assert [len(key) for key in {ran.environment[rank][b"RUNNER_RDV_KEY"] for rank in range(3)}] == [24]
    assert len({ran.environment[rank][b"RUNNER_JOB_ID"] for rank in range(3)} - {b"x"}) == 1
    assert not {b"SLURM_PROCID", b"SSH_AUTH_SOCK", b"TMPDIR"} & set(ran.environment[0])
    assert ran.environment[2][b"ON_NODE"] == b"nodeb"
    assert ran.environment[0][b"HOME"] != b"/submitter"


def test_a_container_gets_nothing_of_either_shell() -> None:
    clean = on_hosts("charliecloud").environment[2]
    dirty = {"PYTHONPATH": "/x", "OMPI_MCA_btl": "tcp", "BASH_FUNC_f%%": "() { true; }"}
    assert set(on_hosts("charliecloud", **dirty).environment[2]) == set(clean)
    assert b"ON_NODE" not in clean


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (Request(gpus=1, queue="q"), "--queue"),
        (Request(gpus=1, scheduler_options=(("reservation", "r"),)), "--scheduler-option"),
        (Request(gpus=1, mounts=(Mount("/a", "/b"),)), "--mount"),
    ],
)
def test_what_a_list_of_hosts_cannot_do_is_refused(request_: Request, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        script(request_, site=HOSTS)
    assert says in caught.value.where
