"""What ``serve`` runs on a node, and the tunnel to it: pure functions of the request and the site."""

import msgspec
import pytest

from runner.core.errors import UsageError
from runner.jobs.service import PROGRAM, Kind, program_of, reach_of, url
from runner.model.request import Request
from runner.model.site import Site
from runner.sites.loader import read_site

REQUEST = Request(1, program=PROGRAM, runs="/scratch/elvis/runs", job_name="serve")
FAR = msgspec.structs.replace(REQUEST, runs=f"/scratch/{'long/' * 20}")


def site(ssh: bool | None) -> Site:
    return msgspec.structs.replace(read_site("technion"), ssh_to_nodes=ssh)


def test_a_tunnel_goes_by_ssh_only_where_that_is_known_to_reach_the_node() -> None:
    assert [reach_of(site(ssh)) for ssh in (True, False, None)] == ["ssh", "tcp", "tcp"]
    assert [reach_of(read_site(name)) for name in ("local", "hosts")] == ["here", "ssh"]


@pytest.mark.parametrize(
    ("kind", "words", "request_", "ssh", "way"),
    [
        ("notebook", (), REQUEST, True, "socket"),
        ("notebook", (), FAR, True, "loopback"),
        ("notebook", (), REQUEST, None, "address"),
        ("tensorboard", ("/logs",), REQUEST, True, "loopback"),
        ("command", ("x", "{socket}"), REQUEST, True, "socket"),
        ("command", ("x", "--at={address}:{port}"), REQUEST, True, "loopback"),
        ("command", ("x", "{port}"), REQUEST, False, "address"),
    ],
)
def test_where_it_listens(kind: Kind, words: tuple[str, ...], request_: Request, ssh: bool | None, way: str) -> None:
    assert program_of(kind, words, request_, site(ssh), idle_s=60) == (*PROGRAM, way, "60", kind, *words)


@pytest.mark.parametrize(
    ("words", "request_", "ssh", "what", "fix"),
    [
        (("x",), REQUEST, True, "listens at {port}, or at {socket}", "{address} {port}"),
        (("x", "{port}", "{socket}"), REQUEST, True, "one of them", "{address} {port}"),
        (("x", "{socket}"), REQUEST, None, "technion does not say", "at {port} of {address}"),
        (("x", "{socket}"), FAR, True, "too long", "--runs DIR"),
    ],
)
def test_what_cannot_be_reached(
    words: tuple[str, ...], request_: Request, ssh: bool | None, what: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        program_of("command", words, request_, site(ssh), idle_s=0)
    assert what in caught.value.what and caught.value.where and fix in caught.value.fix


def test_the_address_for_the_browser_has_the_token() -> None:
    assert url("notebook", "t0k") == "http://localhost:8888/?token=t0k"
    assert url("tensorboard", "t0k") == "http://localhost:8888/t0k/"
