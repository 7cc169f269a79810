"""By which sshd ``shell --ssh`` may get into a job of a site."""

import msgspec
import pytest

from runner.core.errors import RefusedError
from runner.jobs.ssh import access_of
from runner.sites.loader import read_site


@pytest.mark.parametrize(
    ("site", "own", "nodes", "access"),
    [
        ("technion", True, None, "own sshd"),
        ("technion", True, True, "own sshd"),  # which is in the container with scp, too
        ("technion", False, True, "site's sshd"),
        ("hosts", False, None, "site's sshd"),
    ],
)
def test_how_ssh_may_get_into_a_job(site: str, own: bool, nodes: bool | None, access: str) -> None:
    assert access_of(msgspec.structs.replace(read_site(site), user_sshd=own, ssh_to_nodes=nodes)) == access


@pytest.mark.parametrize("nodes", [False, None])
def test_what_is_unknown_is_refused_with_the_question_for_support(nodes: bool | None) -> None:
    with pytest.raises(RefusedError, match="technion says neither") as raised:
        access_of(msgspec.structs.replace(read_site("technion"), ssh_to_nodes=nodes))
    assert "May I run `sshd -i` as myself" in raised.value.fix
