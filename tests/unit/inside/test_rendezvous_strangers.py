"""The rendezvous among strangers: whatever anyone sends or does not send, the ranks of the job meet."""

import json
import multiprocessing
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import pytest
from gpu_runner_inside.launcher import meeting, network, rendezvous, rendezvous_server
from gpu_runner_inside.launcher.world import World

from tests.recipes.mesh.mesh_clients import Herd
from tests.support.rendezvous import TOKEN, served

WORLD = 16
REQUESTS = 10_000


@dataclass(frozen=True)
class Service:
    """A server of ``WORLD`` ranks in a process of its own, as a launcher starts it."""

    port: int

    @property
    def store(self) -> rendezvous.Store:
        return rendezvous.Store("127.0.0.1", self.port, TOKEN)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def present(self) -> dict[str, int]:
        counts: dict[str, int] = json.loads(self.store.get("lobby", "present", 5.0) or b"{}")
        return counts


@pytest.fixture
def service() -> Iterator[Service]:
    sock = rendezvous_server.listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    pid = rendezvous_server.start(sock, TOKEN, WORLD, {"token": TOKEN, "master_port": 0})
    yield Service(port)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the server has ended"
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def answered(sock: socket.socket) -> bytes:
    """The status that came; empty where the connection was closed without an answer."""
    with suppress(ConnectionResetError):
        return sock.recv(1000)[9:12]
    return b""


@pytest.mark.parametrize("length", [b"67108000", b"9" * 5000, b"-1"])
def test_a_stranger_is_refused_before_any_body(service: Service, length: bytes) -> None:
    with service.connect() as sock:
        sock.sendall(b"PUT /stranger/x/y HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n")
        assert answered(sock) == b"403"


def test_strangers_that_push_bodies_do_not_delay_a_rank(service: Service) -> None:
    with ExitStack() as opened:
        strangers = [opened.enter_context(service.connect()) for _ in range(6)]
        for sock in strangers:
            sock.sendall(b"PUT /stranger/x/y HTTP/1.1\r\nContent-Length: 67108000\r\n\r\n")
        with ThreadPoolExecutor(len(strangers)) as pool:
            pushes = [pool.submit(push, sock, 63 << 20) for sock in strangers]
            service.store.put("global", "1", b"value")
            assert not any(each.result(60) for each in pushes), "they are cut off, not read to the end"
    assert service.store.get("global", "1", 5.0) == b"value"


def test_of_a_flood_only_the_first_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_server, "MAX_REFUSALS", 3)
    monkeypatch.setattr(rendezvous_server, "_SWEEP_S", 60.0)
    with served() as (server, store):
        for number in range(6):
            with Service(store.port).connect() as sock:
                sock.sendall(b"PUT /stranger/x/y HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
                assert answered(sock) == (b"403" if number < 3 else b"")
        store.put("a", "b", b"value")
        with pytest.raises(ConnectionError, match="refused: status 400"):
            store.put("a/b", "c", b"")
        assert server.refused == 6


def push(sock: socket.socket, size: int) -> bool:
    """Whether the other end took so many bytes."""
    try:
        sock.sendall(bytes(size))
    except OSError:
        return False
    return True


def test_512_ranks_are_served_while_strangers_take_all_the_room_that_they_get(service: Service) -> None:
    with ExitStack() as opened:
        strangers = [opened.enter_context(service.connect()) for _ in range(rendezvous_server.MAX_STRANGERS)]
        for sock in strangers:
            sock.sendall(b"GET /nobo")
        ranks = [opened.enter_context(service.connect()) for _ in range(512)]
        for sock in ranks:
            sock.sendall(f"GET /{TOKEN}/global/late HTTP/1.1\r\n\r\n".encode())
        late = [opened.enter_context(service.connect()) for _ in range(50)]
        for sock in late:
            sock.sendall(b"GET /nobo")
        for sock in strangers[: len(late)]:
            assert answered(sock) == b"", "the oldest make room for the newest"
        service.store.put("global", "late", b"value")
        assert [answered(sock) for sock in ranks] == [b"200"] * len(ranks)
        late[-1].sendall(b"dy/x/y HTTP/1.1\r\n\r\n")
        assert answered(late[-1]) == b"403"


def test_a_head_that_comes_byte_by_byte_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_server, "HEAD_S", 0.5)
    with (
        served() as (_server, store),
        socket.create_connection((store.address, store.port), timeout=10) as sock,
        pytest.raises((BrokenPipeError, ConnectionResetError)),
    ):
        for _ in range(400):
            sock.sendall(b"x")
            time.sleep(0.05)


def test_bytes_after_a_request_that_waits_are_not_a_second_one(service: Service) -> None:
    with service.connect() as sock:
        for part in (f"GET /{TOKEN}/s/k HTTP/1.1\r\n", "\r\n", "more"):
            sock.sendall(part.encode())
            time.sleep(0.05)
        service.store.put("s", "k", b"value")
        assert answered(sock) == b"200"
    assert service.present()["requests"] == 3, "the GET, the PUT, and this question"


def test_an_exception_ends_the_connection_that_caused_it_and_no_other() -> None:
    class Faulty(rendezvous_server.Server):
        def _serve(self, connection: rendezvous_server._Connection, body: bytes | bytearray) -> bool:
            return super()._serve(connection, body) if body != b"fault" else bool(1 // 0)

    with served(Faulty) as (server, store):
        with pytest.raises(OSError, match=r"cut off|reset"):
            rendezvous.request("127.0.0.1", store.port, "PUT", f"/{TOKEN}/a/b", b"fault")
        store.put("a", "b", b"value")
    assert server.faults == 1


@contextmanager
def another_service(
    talk: Callable[[socket.socket], object], place: tuple[str, int] = ("127.0.0.1", 0)
) -> Iterator[int]:
    """The port of a service that accepts, and talks so with each client until it leaves."""

    def talk_to(sock: socket.socket) -> None:
        with sock, suppress(OSError):
            talk(sock)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=talk_to, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(place) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_who_knows_a_jobs_number_takes_one_of_its_ports() -> None:
    ports = network.candidates(network.FIRST_PORT, TOKEN)
    others = network.candidates(network.FIRST_PORT, "0" * 32)
    assert (len(set(ports)), set(ports) & set(others)) == (network.CANDIDATES, {network.FIRST_PORT})
    with ExitStack() as stack:
        for port in ports:
            with suppress(OSError):  # it is taken already
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        with pytest.raises(meeting.MeetingError, match=f"every port of {', '.join(map(str, ports))} is taken"):
            meeting.serve("127.0.0.1", ports[0], TOKEN, 2)


def test_a_service_that_drips_holds_no_rank_beyond_its_time_out() -> None:
    def drip(sock: socket.socket) -> None:
        while True:
            sock.sendall(b"x")
            time.sleep(0.1)

    with another_service(drip) as port:
        began = time.monotonic()
        with pytest.raises(socket.timeout):
            rendezvous.request("127.0.0.1", port, "GET", "/", timeout_s=0.5)
        assert rendezvous.Store("127.0.0.1", port, TOKEN).get("a", "b", 0.5) is None
        with pytest.raises(meeting.MeetingError, match=r"waited 2 s for rank 0 to serve the rendezvous"):
            meeting.join(rank_of(1), "127.0.0.1", port, TOKEN, 2.0)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000,
        b'HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n{"token": "0123456789abcdef"}',
        b"x" * 100_000,
    ],
)
def test_another_service_is_not_taken_for_ours(answer: bytes) -> None:
    """It may be another user's, who is shown nothing by which the job's own service would take them for a rank."""
    heard = []

    def say(sock: socket.socket) -> None:
        heard.append(sock.recv(1000))
        sock.sendall(answer)

    waited = pytest.raises(meeting.MeetingError, match=r"waited 0\.3 s for rank 0 to serve the rendezvous")
    with another_service(say) as port, waited:
        meeting.join(rank_of(1), "127.0.0.1", port, TOKEN, 0.3)
    assert heard
    assert TOKEN.encode() not in b"".join(heard)


def test_a_greeting_is_worth_nothing_elsewhere_or_for_another_key(service: Service) -> None:
    nonce = "0" * 32
    places = (("127.0.0.1", service.port), ("127.0.0.1", service.port + 1), ("127.0.0.2", service.port))
    here, *elsewhere = (nonce + rendezvous_server.greeting(TOKEN, nonce, *place)[0] for place in places)
    refused = [f"{here}/a/b", *(f"{each}/lobby/present" for each in (*elsewhere, here.replace("0" * 32, "1" * 32)))]
    for path, status in ((f"{here}/lobby/present", 200), *((each, 403) for each in refused)):
        assert rendezvous.request("127.0.0.1", service.port, "GET", f"/{path}")[0] == status


def test_a_greeting_opens_the_connection_to_no_other_request_and_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous_server, "HEAD_S", 0.3)
    monkeypatch.setattr(rendezvous_server, "_SWEEP_S", 0.1)
    with served() as (server, store):
        hello = greeting_of(store.port)
        for after, status in ((b"GET /stranger/a/b HTTP/1.1\r\n\r\n", b"403"), (hello, b"403"), (b"", b"")):
            with Service(store.port).connect() as sock:
                sock.sendall(hello)
                assert answered(sock) == b"200"
                sock.sendall(after)
                assert answered(sock) == status
        assert server.faults == 0


def greeting_of(port: int) -> bytes:
    nonce = "0" * 32
    ask, _answer = rendezvous_server.greeting(TOKEN, nonce, "127.0.0.1", port)
    return f"GET /{nonce}{ask}/lobby/present HTTP/1.1\r\n\r\n".encode()


def test_who_has_the_port_after_the_service_is_given_neither_the_token_nor_a_value() -> None:
    """Not even one who knows what the service has answered before."""
    with served() as (_server, store):
        store.put("a", "b", b"value")
        with Service(store.port).connect() as sock:
            sock.sendall(greeting_of(store.port))
            known = sock.recv(1000)
    heard = []

    def say(sock: socket.socket) -> None:
        heard.append(sock.recv(1000))
        sock.sendall(known)

    with another_service(say, ("127.0.0.1", store.port)):
        with pytest.raises(ConnectionError, match="is not this job's rendezvous: status 200"):
            store.put("a", "b", b"value")
        with pytest.raises(ConnectionError, match="is not this job's rendezvous: status 200"):
            store.get("lobby", "everyone", 1.0)
    assert len(heard) == 2, "it is not asked again"
    assert not any(each in b"".join(heard) for each in (TOKEN.encode(), b"value", b"everyone"))


def test_who_hands_on_to_the_service_from_another_address_is_shown_no_token(service: Service) -> None:
    """As an ordinary user can, at the same port of another address of rank 0's node."""
    heard = []

    def hand_on(sock: socket.socket) -> None:
        heard.append(sock.recv(1000))
        with service.connect() as onward:
            onward.sendall(heard[-1])
            sock.sendall(onward.recv(1000))

    refused = pytest.raises(meeting.MeetingError, match="another job's answers, which refuses this task's token")
    with another_service(hand_on, ("127.0.0.2", service.port)), refused:
        meeting.join(rank_of(1), "127.0.0.2", service.port, TOKEN, 0.3)
    assert heard
    assert TOKEN.encode() not in b"".join(heard)


def rank_of(rank: int) -> World:
    return World(rank, WORLD, rank, WORLD, 0, 1, (WORLD,), "plain")


def test_worlds_form_beside_10000_mutated_requests(service: Service) -> None:
    """Launchers meet and Horovod's clients form mesh after mesh while the requests come; none of them fails once."""
    context = multiprocessing.get_context("fork")
    strangers = context.Process(target=send_mutants, args=(service.port, 20261121))
    with ThreadPoolExecutor(WORLD) as pool:

        def join(rank: int) -> str:
            return meeting.join(rank_of(rank), "127.0.0.1", service.port, TOKEN, 120).token

        strangers.start()
        joining = [pool.submit(join, rank) for rank in range(WORLD - 1)]
        meshes = 0
        while strangers.is_alive() or meshes < 2:
            herd = Herd(f"127.0.0.1:{service.port}/{TOKEN}", service.port, first=0, count=8, size=8, timeout_s=60)
            herd.go()
            herd.meshed()
            counts = herd.leave()
            assert (counts.failed, counts.retries) == (0, 0), f"mesh {meshes}"
            meshes += 1
        strangers.join()
        assert strangers.exitcode == 0
        assert not any(each.done() for each in joining), "one rank is missing yet"
        joining.append(pool.submit(join, WORLD - 1))
        assert [each.result(60) for each in joining] == [TOKEN] * WORLD
    present = service.present()
    assert (present["faults"], present["notified"]) == (0, WORLD)
    assert present["refused"] > REQUESTS / 10


LENGTHS = (b"0", b"1", b"-1", b"+1", b"1e3", b"0x10", b"\xb2", b"", b"9" * 12, b"9" * 13, b"9" * 5000, b"67108864")


def send_mutants(port: int, seed: int) -> None:
    """Send ``REQUESTS`` requests, good and bad, whole and in pieces; some connections stay open for a while."""
    chance = random.Random(seed)
    kept: deque[socket.socket] = deque()
    for _ in range(REQUESTS):
        sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        with suppress(ConnectionError):
            data = mutant(chance)
            cut = chance.randrange(len(data) + 1) if chance.random() < 0.2 else len(data)
            sock.sendall(data[:cut])
            sock.sendall(data[cut:])
        kept.append(sock)
        while len(kept) > 300 or (kept and chance.random() < 0.45):
            kept.popleft().close()


def mutant(chance: random.Random) -> bytes:
    """A request, or what is left of one; those that show the token touch no key of the worlds that form."""
    if chance.random() < 0.1:
        return chance.randbytes(chance.randrange(600))
    token = chance.choice((TOKEN, TOKEN, "fedcba9876543210", TOKEN[:-1], ""))
    key = chance.choice(("fuzz/1", "fuzz/rank_1", "fuzz/", "/", "fuzz", "lobby/99", "lobby/1_0", "lobby/present"))
    method = chance.choice(("GET", "PUT", "PUT", "DELETE", "POST", "get"))
    body = chance.randbytes(chance.choice((0, 1, 100, 5000)))
    length = chance.choice(LENGTHS) if chance.random() < 0.3 else b"%d" % len(body)
    data = bytearray(f"{method} /{token}/{key} HTTP/1.1\r\nContent-Length: ".encode() + length + b"\r\n\r\n" + body)
    for _ in range(chance.choice((0, 1, 2, 8))):
        at = chance.randrange(len(data) + 1)
        until = min(at + chance.randrange(40), len(data))
        change = chance.randrange(4)
        if change == 0:
            data[at:until] = chance.randbytes(until - at)
        elif change == 1:
            del data[at:until]
        elif change == 2:
            data[at:at] = data[at:until] * chance.choice((1, 300))
        else:
            data[at:at] = chance.choice((b"\r\n", b" ", b"\r\n\r\n", b"\0", b"\xff", b"/", b":"))
    return bytes(data)
