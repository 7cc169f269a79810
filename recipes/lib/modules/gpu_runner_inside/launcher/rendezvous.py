"""The rendezvous of a job step as its ranks see it: requests to the server, and a store of values made of them.

Every call ends within its time-out, even if the other end sends one byte at a time.
"""

from __future__ import annotations

import hmac
import os
import socket
from time import monotonic, sleep  # taken here: the meter's program may replace those of the module

from gpu_runner_inside.launcher import http_message
from gpu_runner_inside.launcher.rendezvous_server import greeting

ATTEMPT_S = 30.0  # for one request; the server lets a GET wait for up to a third of it
CONNECT_S = 1.0
ROUND_TRIP_S = 1.0  # for a value that is there already
_ATTEMPTS = 5


class NotOursError(ConnectionError):
    """What answers at this port does not show that it knows the job's secret.

    Attributes:
        status: of its answer.
    """

    def __init__(self, status: int, address: str, port: int) -> None:
        super().__init__(f"what answers at {address}:{port} is not this job's rendezvous: status {status}")
        self.status = status


def request(
    address: str, port: int, method: str, path: str, body: bytes = b"", timeout_s: float = ATTEMPT_S
) -> tuple[int, bytes]:
    """One request as Horovod's client makes it: (status, body).

    Raises:
        OSError: not reachable, or no whole answer within ``timeout_s`` seconds; then it is a socket.timeout.
    """
    until = monotonic() + timeout_s
    with _connected(address, port, until) as sock:
        return _exchange(sock, method, path, body, until)


def present(address: str, port: int, token: str, timeout_s: float) -> bytes:
    """What the job's service says at once. Raises as ``request``; NotOursError: something else answers there."""
    until = monotonic() + timeout_s
    with _connected(address, port, until) as sock:
        return _greet(sock, token, until)


def _greet(sock: socket.socket, token: str, until: float) -> bytes:
    """What the job's service says at once, when it has shown that it knows the token; a request may follow then. Where
    rank 0 has ended, anybody may have its port.
    """
    address, port = sock.getpeername()
    nonce = os.urandom(16).hex()
    ask, answer = greeting(token, nonce, address, port)
    status, body = _exchange(sock, "GET", f"/{nonce}{ask}/lobby/present", b"", until)
    if status != 200 or not hmac.compare_digest(body[: len(answer)], answer.encode()):
        raise NotOursError(status, address, port)
    return body[len(answer) :]


def _exchange(sock: socket.socket, method: str, path: str, body: bytes, until: float) -> tuple[int, bytes]:
    head = f"{method} {path} HTTP/1.1\r\nHost: {sock.getpeername()[0]}\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.settimeout(_left_s(until))
    sock.sendall(head.encode() + body)
    return _answer(sock, until)


def _connected(address: str, port: int, until: float) -> socket.socket:
    """Where the server's queue is full, the kernel would wait twice as long before each further attempt."""
    while True:
        try:
            return socket.create_connection((address, port), timeout=min(_left_s(until), CONNECT_S))
        except socket.timeout:
            _left_s(until)


def _answer(sock: socket.socket, until: float) -> tuple[int, bytes]:
    """Read one whole answer, and no more bytes than one may have."""
    data = bytearray()
    end = -1
    while end < 0 and len(data) <= http_message.MAX_HEAD_BYTES:
        searched = max(len(data) - len(http_message.HEAD_END) + 1, 0)
        data += _received(sock, until)
        end = data.find(http_message.HEAD_END, searched)
    head = http_message.answer_head(bytes(data[:end])) if end >= 0 else None
    if head is None or not 0 <= head[1] <= http_message.MAX_BODY_BYTES:
        raise ConnectionError("the answer is not HTTP")
    status, length = head
    start = end + len(http_message.HEAD_END)
    while len(data) < start + length:
        data += _received(sock, until)
    return status, bytes(data[start : start + length])


def _received(sock: socket.socket, until: float) -> bytes:
    sock.settimeout(_left_s(until))
    chunk = sock.recv(1 << 18)
    if not chunk:
        raise ConnectionError("the answer is not HTTP, or was cut off")
    return chunk


def _left_s(until: float) -> float:
    left_s = until - monotonic()
    if left_s <= 0:
        raise socket.timeout("timed out")
    return left_s


class Store:
    """The rendezvous as a rank sees it: values that every rank of this job step, and no other, can read."""

    def __init__(self, address: str, port: int, token: str) -> None:
        self.address, self.port, self._token = address, port, token

    @classmethod
    def of_environment(cls, env: dict[str, str] | None = None) -> Store:
        """The store that the launcher names in RUNNER_RENDEZVOUS (``ADDRESS:PORT/TOKEN``)."""
        place, _, token = (env or dict(os.environ))["RUNNER_RENDEZVOUS"].partition("/")
        address, _, port = place.rpartition(":")
        return cls(address, int(port), token)

    def put(self, scope: str, key: str, value: bytes, timeout_s: float = ATTEMPT_S) -> None:
        """Set a value. Raises OSError, after ``timeout_s`` seconds at the latest."""
        self._ask("PUT", scope, key, value, monotonic() + timeout_s)

    def get(self, scope: str, key: str, timeout_s: float) -> bytes | None:
        """A value, waiting for it up to ``timeout_s`` seconds, a second at least; None when it did not come.

        Raises:
            OSError: no answer, or a refusal.
        """
        began = monotonic()
        until = began + max(timeout_s, ROUND_TRIP_S)
        while True:
            try:
                status, body = self._ask("GET", scope, key, b"", until)
            except socket.timeout:  # the server still waits for the key, and we need not
                status, body = 404, b""
            if status == 200:
                return body
            if monotonic() >= began + timeout_s:
                return None

    def _ask(self, method: str, scope: str, key: str, body: bytes, until: float) -> tuple[int, bytes]:
        path = f"/{self._token}/{scope}/{key}"
        for attempt in range(_ATTEMPTS):
            try:
                end = monotonic() + min(_left_s(until), ATTEMPT_S)
                with _connected(self.address, self.port, end) as sock:
                    _greet(sock, self._token, end)
                    status, content = _exchange(sock, method, path, body, end)
            except (socket.timeout, NotOursError):
                raise
            except OSError:
                pause_s = 0.2 * 2**attempt
                if attempt == _ATTEMPTS - 1 or monotonic() + pause_s >= until:
                    raise
                sleep(pause_s)
                continue
            if status not in (200, 404):
                raise ConnectionError(f"the rendezvous at {self.address}:{self.port} refused: status {status}")
            return status, content
        raise AssertionError("unreachable")
