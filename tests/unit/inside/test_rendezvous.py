"""The rendezvous server, asked as Horovod's client asks; a rank that joins compares its clock with rank 0's."""

import json
import socket
import threading
import time
from typing import Any

import pytest
from gpu_runner_inside.launcher import meeting, rendezvous, rendezvous_server
from gpu_runner_inside.launcher.lobby import Lobby
from gpu_runner_inside.launcher.world import World

from tests.support.rendezvous import TOKEN, served
from tests.support.waiting import until


def ask(store: rendezvous.Store, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    return rendezvous.request("127.0.0.1", store.port, method, path, body)


def test_a_value_of_any_bytes_comes_back(store: rendezvous.Store) -> None:
    value = bytes(range(256)) * 4000
    store.put("global", "0", value)
    assert store.get("global", "0", 1.0) == value
    store.put("global", "0", b"")
    assert store.get("global", "0", 1.0) == b""


def test_horovods_address_carries_the_token(store: rendezvous.Store) -> None:
    # HTTPStore: "http://" + ADDR + ":" + PORT + "/" + scope + "/" + key, with ADDR = "127.0.0.1:PORT/TOKEN".
    path = f"/{TOKEN}:{store.port}/global/rank_0"
    assert ask(store, "PUT", path, b"dgx01") == (200, b"")
    assert store.get("global", "rank_0", 1.0) == b"dgx01"


def test_a_get_waits_for_the_put_and_no_longer_than_it_may(store: rendezvous.Store) -> None:
    threading.Timer(0.1, store.put, ("global", "1", b"late")).start()
    assert ask(store, "GET", f"/{TOKEN}/global/1") == (200, b"late")
    assert ask(store, "GET", f"/{TOKEN}/global/none") == (404, b"")
    assert store.get("global", "none", 0.1) is None


@pytest.mark.parametrize(("size", "most_mb"), [(1, 68), (16, 68), (512, 68), (4096, 2900)])
def test_no_more_may_be_held_than_one_mesh_takes_or_64_mb(size: int, most_mb: int) -> None:
    mesh = size * (size - 1) * 136
    assert max(mesh + 1000 * size, 64 << 20) <= rendezvous_server.most_held_bytes(size) < most_mb * 1_000_000


def test_no_more_is_held_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one rank fills the memory of a node. What is replaced, taken away or cut off counts no more."""
    monkeypatch.setattr(rendezvous_server, "most_held_bytes", lambda _size: 100_000)
    with served() as (_server, store):
        value = b"x" * 30_000
        for _ in range(5):
            store.put("scope", "0", value)
            store.put("scope", "1", value)
        for _ in range(5):
            with socket.create_connection((store.address, store.port)) as client:
                client.sendall(b"PUT /%s/scope/2 HTTP/1.1\r\nContent-Length: 15000\r\n\r\n" % TOKEN.encode())
        until(lambda: _refused(store, 19_000) is False)
        assert _refused(store, 40_000)
        assert ask(store, "DELETE", f"/{TOKEN}/scope/0") == (200, b"")
        assert not _refused(store, 40_000)


def _refused(store: rendezvous.Store, length: int) -> bool:
    try:
        store.put("scope", "2", b"x" * length)
    except OSError:
        return True
    return False


@pytest.mark.parametrize("path", ["/global/0", "/fedcba9876543210/global/0", f"/{TOKEN}x/global/0"])
def test_another_jobs_request_is_refused(store: rendezvous.Store, path: str) -> None:
    store.put("global", "0", b"ours")
    assert ask(store, "GET", path) == (403, b"")
    assert ask(store, "PUT", path, b"theirs") == (403, b"")
    assert store.get("global", "0", 1.0) == b"ours"


def test_a_finished_rank_takes_its_keys_along_so_that_horovod_may_start_anew(store: rendezvous.Store) -> None:
    for key in ("1", "rank_1", "rank_10"):
        store.put("global", key, b"x")
    assert ask(store, "DELETE", f"/{TOKEN}/global/1")[0] == 200
    assert [store.get("global", key, 0.0) for key in ("1", "rank_1", "rank_10")] == [None, None, b"x"]


@pytest.mark.parametrize(
    "raw",
    [
        b"GET\r\n\r\n",
        b"\r\n\r\n",
        b"POST /0123456789abcdef/a/b HTTP/1.1\r\n\r\n",
        b"PUT /0123456789abcdef/a/b HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"PUT /0123456789abcdef/a/b HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"PUT /0123456789abcdef/a/b HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT /0123456789abcdef/a/b HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"GET /0123456789abcdef/a HTTP/1.1\r\n\r\n",
        b"x" * 100_000,
    ],
)
def test_nonsense_is_refused_and_the_server_lives_on(store: rendezvous.Store, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", store.port), timeout=5) as sock:
        sock.sendall(raw)
        answer = sock.recv(1000)
    assert answer.split()[1] in (b"400", b"413")
    store.put("a", "b", b"still here")


def test_a_request_in_pieces_and_clients_that_leave(store: rendezvous.Store) -> None:
    for part in (b"", b"PU", b"GET /0123456789abcdef/a/never HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", store.port)) as sock:
            sock.sendall(part)
    with socket.create_connection(("127.0.0.1", store.port), timeout=5) as sock:
        for piece in (b"PUT /01234567", b"89abcdef/a/b HTTP/1.1\r\nContent-", b"Length: 4\r\n\r\nab", b"cd"):
            sock.sendall(piece)
            time.sleep(0.03)
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    time.sleep(0.3)
    assert store.get("a", "b", 1.0) == b"abcd"


def of_lobby(store: rendezvous.Store, name: str) -> Any:
    return json.loads(store.get("lobby", name, 0.0) or b"")


def test_the_lobby_lists_who_is_missing(store: rendezvous.Store) -> None:
    assert of_lobby(store, "missing") == {"count": 2, "first": [0, 1]}
    for _again in range(2):
        store.put("lobby", "1", b"")
    assert of_lobby(store, "missing") == {"count": 1, "first": [0]}
    assert of_lobby(store, "present")["present"] == 1
    assert store.get("lobby", "everyone", 0.0) is None
    store.put("lobby", "0", b"")
    assert store.get("lobby", "everyone", 1.0) == b"", "that all are there, and nothing of what they said"
    assert of_lobby(store, "missing") == {"count": 0, "first": []}


@pytest.mark.parametrize("name", ["2", "99", "-1", "1_0", "\u0661", "", "present", "9" * 5000])
def test_only_a_rank_of_the_world_comes_to_the_lobby(store: rendezvous.Store, name: str) -> None:
    assert ask(store, "PUT", f"/{TOKEN}/lobby/{name}", b"{}") == (400, b"")
    store.put("lobby", "0", b"[" * 200_000)
    assert of_lobby(store, "missing") == {"count": 1, "first": [1]}


def test_no_answer_of_the_lobby_grows_with_the_world() -> None:
    lobby = Lobby(16384)
    assert lobby.missing() == [0, 1, 2, 3, 4, 5, 6, 7]
    for rank in range(16384):
        assert lobby.enter(b"%d" % rank)
        assert len(lobby.missing()) == min(8, 16383 - rank)
    assert lobby.complete


def test_only_the_one_address_is_bound(store: rendezvous.Store) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), timeout=2).close()


def test_the_service_counts_which_ranks_programs_came_to_it(store: rendezvous.Store) -> None:
    def counts() -> tuple[int, int]:
        present = of_lobby(store, "present")
        return present["values"], present["horovod_ranks"]

    store.put("lobby", "0", b"")
    store.get("global", "0", 0.0)
    assert counts() == (0, 0)
    for scope, key in (("global", "1"), ("global", "rank_1"), ("global", "1"), ("local_host", "0"), ("mine", "x")):
        store.put(scope, key, b"x")
    assert counts() == (5, 1)


AHEAD_S = 100.0
SLOW_S = 0.2


class SlowAndAhead(rendezvous_server.Server):
    def _present(self) -> dict[str, Any]:
        time.sleep(SLOW_S)
        return dict(super()._present(), time_s=time.time() + AHEAD_S, master_port=0)


def test_the_offset_of_the_clocks_is_measured_with_its_error() -> None:
    """Rank 0's clock is AHEAD_S ahead, and it takes SLOW_S to answer."""
    with served(SlowAndAhead) as (_server, store):
        store.put("lobby", "1", b"")
        joined = meeting.join(World(0, 2, 0, 2, 0, 1, (2,), "plain"), "127.0.0.1", store.port, TOKEN, 10.0)
    assert joined.clock_offset_s is not None
    assert joined.clock_error_s is not None
    assert SLOW_S / 2 <= joined.clock_error_s < 2.0
    assert abs(joined.clock_offset_s - AHEAD_S) <= joined.clock_error_s
