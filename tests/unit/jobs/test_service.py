"""What ``serve`` runs on a node: by what is to be served, and by how a tunnel gets there."""

from pathlib import Path

import msgspec
import pytest

from runner.core.errors import UsageError
from runner.jobs.service import Kind, program_inside, program_of
from runner.model.request import Request
from runner.sites.loader import read_site

NEAR, FAR = "/scratch/elvis/runs", f"/scratch/{'long/' * 20}"


def words_of(kind: Kind, words: str, runs: str, ssh: bool | None) -> tuple[str, ...]:
    site = msgspec.structs.replace(read_site("technion"), ssh_to_nodes=ssh)
    return program_of(kind, words.split(), Request(1, runs=runs, job_name="serve"), site, idle_s=60)


@pytest.mark.parametrize(
    ("kind", "words", "runs", "ssh", "way"),
    [
        ("notebook", "", NEAR, True, "socket"),
        ("notebook", "", FAR, True, "loopback"),
        ("notebook", "", NEAR, None, "address"),
        ("tensorboard", "/logs", NEAR, True, "loopback"),
        ("command", "x {socket}", NEAR, True, "socket"),
        ("command", "x --at={address}:{port}", NEAR, False, "address"),
    ],
)
def test_where_it_listens(kind: Kind, words: str, runs: str, ssh: bool | None, way: str) -> None:
    assert words_of(kind, words, runs, ssh) == (*program_inside("serve"), way, "60", kind, *words.split())


@pytest.mark.parametrize(
    ("words", "runs", "ssh", "what", "fix"),
    [
        ("x", NEAR, True, "listens at {port}, or at {socket}", "{address} {port}"),
        ("x {port} {socket}", NEAR, True, "one of them", "{address} {port}"),
        ("x {socket}", NEAR, None, "technion does not say `ssh_to_nodes: true`", "at {port} of {address}"),
        ("x {socket}", FAR, True, "too long", "--runs DIR"),
    ],
)
def test_what_cannot_be_reached(words: str, runs: str, ssh: bool | None, what: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        words_of("command", words, runs, ssh)
    assert what in caught.value.what and caught.value.where and fix in caught.value.fix


def test_no_kernel_starts_where_all_may_put_modules(tmp_path: Path) -> None:
    """Python finds them before its own."""
    tmp_path.chmod(0o1777)
    asked = Request(1, runs=NEAR, job_name="serve", directory=str(tmp_path))
    with pytest.raises(UsageError, match="modules of others"):
        program_of("notebook", (), asked, read_site("technion"), idle_s=60)
    assert program_of("tensorboard", ("/logs",), asked, read_site("technion"), idle_s=60)
