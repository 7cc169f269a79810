"""The server through which the ranks of one job step find each other, and the client calls on it.

It speaks the key-value protocol of Horovod's Gloo rendezvous (horovod 0.28.1, common/gloo/http_store.cc and
runner/http/http_server.py): PUT, GET and DELETE of ``/scope/key``, each on a connection of its own. Three things
differ from Horovod's own server, because forming a mesh of N ranks takes about 2.5 N^2 requests:

- A GET waits (bounded) until the key is there. Horovod's client polls every 10 ms otherwise, and reads
  ``rank_I`` of its peers without polling at all.
- One thread, epoll, one read and one write a request, a backlog of 4096, one bound address.
- Every path begins with the job's token: a request of another job's rank gets 403, never a foreign value. Horovod's
  client composes its URL as ``http://ADDR:PORT/scope/key`` and takes everything up to the first slash for the
  host (HTTPRequest.hpp), so an ADDR of ``10.0.0.5:12042/TOKEN`` carries the token and needs no change in it.

A DELETE of ``/scope/R`` is how rank R says that its mesh stands: what it put is dropped, so the scope serves again
if the program shuts Horovod down and starts it anew.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any

BACKLOG = 4096
WAIT_S = 10.0  # how long a GET waits for its key before it answers 404
IDLE_S = 60.0  # how long a connection may stay silent before it is closed
MAX_REQUEST_BYTES = 64 << 20  # a value holds N - 1 addresses of 136 bytes: 9 MB is 65,000 ranks
_EVERYONE = b"lobby/everyone"

_OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
_DONE = _OK % 0
_STATUS = {
    400: b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    403: b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    404: b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    413: b"HTTP/1.1 413 Payload Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
}


def listen(address: str, port: int) -> socket.socket:
    """A listening socket on this one address.

    Raises:
        OSError: EADDRINUSE when the port is taken, EADDRNOTAVAIL when the address is not this host's.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        # Wake us when the request has come, not when the handshake ends: one event a request.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class _Connection:
    """One request under way: bytes read, bytes still to write, and since when."""

    __slots__ = ("received", "since", "sock", "to_send")

    def __init__(self, sock: socket.socket, now: float) -> None:
        self.sock = sock
        self.received = b""
        self.to_send = memoryview(b"")
        self.since = now


class Server:
    """Serves one job step until ``stop_fd`` is readable or closed at its other end.

    Args:
        sock: from ``listen``.
        token: the job's; the first part of every path.
        size: ranks of the job step, for the lobby.
        welcome: what ``GET /TOKEN/lobby/present`` answers beside the ranks that are there.
        wait_s: how long a GET waits for its key.

    The scope ``lobby`` is the launchers' own: each rank puts a JSON value under its number; ``present`` tells at
    once who is there, and ``everyone`` appears, as the list of all values by rank, when the last one has come.
    """

    def __init__(
        self, sock: socket.socket, token: str, size: int, welcome: dict[str, Any], wait_s: float = WAIT_S
    ) -> None:
        self._sock = sock
        self._prefix = b"/" + token.encode() + b"/"
        # Horovod appends its port to ADDR, which here ends with the token: "/TOKEN:PORT/scope/key".
        self._prefix_and_port = b"/" + token.encode() + b":%d/" % sock.getsockname()[1]
        self._size = size
        self._welcome = welcome
        self._wait_s = wait_s
        self._values: dict[bytes, bytes] = {}  # key path -> whole response
        self._lobby: dict[int, Any] = {}
        self._waiting: dict[bytes, list[_Connection]] = {}
        self._deadlines: list[tuple[float, int, bytes, _Connection]] = []
        self._ticket = 0
        self._open: dict[int, _Connection] = {}
        self._epoll = select.epoll()
        self.requests = 0
        self.refused = 0
        self.notified = 0  # how many launchers were notified that every rank is there

    def serve(self, stop_fd: int) -> None:
        listener = self._sock.fileno()
        self._epoll.register(listener, select.EPOLLIN)
        self._epoll.register(stop_fd, select.EPOLLIN)
        swept = time.monotonic()
        while True:
            for fd, event in self._epoll.poll(self._pause_s(), 1024):
                if fd == listener:
                    self._accept()
                elif fd == stop_fd:
                    return
                else:
                    self._ready(fd, event)
            now = time.monotonic()
            self._expire(now)
            if now - swept > IDLE_S / 2:
                swept = now
                self._sweep(now)

    def _pause_s(self) -> float:
        if not self._deadlines:
            return IDLE_S / 2
        return min(max(self._deadlines[0][0] - time.monotonic(), 0.0), IDLE_S / 2)

    def _accept(self) -> None:
        for _ in range(256):
            try:
                sock, _address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors: those who wait in the backlog are taken when some are free again.
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    time.sleep(0.01)
                return
            sock.setblocking(False)
            connection = _Connection(sock, time.monotonic())
            self._read(connection)

    def _ready(self, fd: int, event: int) -> None:
        connection = self._open.get(fd)
        if connection is None:
            return  # closed by an earlier event of the same batch
        if event & select.EPOLLOUT:
            self._write(connection)
        else:
            self._read(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            while True:
                # A first read fits any GET; a large buffer would cost a mapping of its own for each of them.
                chunk = connection.sock.recv(1 << 18 if connection.received else 1 << 12)
                if not chunk:
                    return self._close(connection)
                connection.received = connection.received + chunk if connection.received else chunk
                if self._take(connection):
                    return None
        except BlockingIOError:
            self._watch(connection, select.EPOLLIN)
        except OSError:
            self._close(connection)
        return None

    def _take(self, connection: _Connection) -> bool:
        """Answer a request if all of it is there."""
        data = connection.received
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > 1 << 16:
                self._answer(connection, _STATUS[400])
                return True
            return False
        line_end = data.find(b"\r\n")
        words = data[:line_end].split(b" ")
        length = _content_length(data[line_end : end + 2])
        if len(words) != 3 or length < 0:
            self._answer(connection, _STATUS[400])
            return True
        if length > MAX_REQUEST_BYTES:
            self._answer(connection, _STATUS[413])
            return True
        if len(data) < end + 4 + length:
            return False
        self.requests += 1
        self._handle(connection, words[0], words[1], data[end + 4 : end + 4 + length])
        return True

    def _handle(self, connection: _Connection, method: bytes, path: bytes, body: bytes) -> None:
        if path.startswith(self._prefix_and_port):
            key = path[len(self._prefix_and_port) :]
        elif path.startswith(self._prefix):
            key = path[len(self._prefix) :]
        else:
            self.refused += 1
            return self._answer(connection, _STATUS[403])
        if key.count(b"/") != 1 or method not in (b"GET", b"PUT", b"DELETE"):
            return self._answer(connection, _STATUS[400])
        if method == b"GET":
            response = self._values.get(key)
            if response is not None:
                self.notified += key == _EVERYONE
                return self._answer(connection, response)
            if key == b"lobby/present":
                return self._answer(connection, self._present())
            return self._wait(connection, key)
        if method == b"PUT":
            self._put(key, body)
        else:
            scope, name = key.split(b"/")
            for gone in (key, scope + b"/rank_" + name):
                self._values.pop(gone, None)
        return self._answer(connection, _DONE)

    def _put(self, key: bytes, body: bytes) -> None:
        response = _OK % len(body) + body
        self._values[key] = response
        waiting = self._waiting.pop(key, [])
        self.notified += len(waiting) if key == _EVERYONE else 0
        for connection in waiting:
            self._answer(connection, response)
        if key.startswith(b"lobby/"):
            with suppress(ValueError):
                self._lobby[int(key[len(b"lobby/") :])] = json.loads(body.decode("utf-8", "replace"))
                if len(self._lobby) == self._size:
                    everyone = [self._lobby[rank] for rank in sorted(self._lobby)]
                    self._lobby.clear()
                    self._put(_EVERYONE, json.dumps(everyone).encode())

    def _present(self) -> bytes:
        ranks = list(range(self._size)) if _EVERYONE in self._values else sorted(self._lobby)
        body = json.dumps(
            dict(
                self._welcome,
                size=self._size,
                ranks=ranks,
                requests=self.requests,
                refused=self.refused,
                notified=self.notified,
            )
        ).encode()
        return _OK % len(body) + body

    def _wait(self, connection: _Connection, key: bytes) -> None:
        self._waiting.setdefault(key, []).append(connection)
        self._ticket += 1
        heapq.heappush(self._deadlines, (time.monotonic() + self._wait_s, self._ticket, key, connection))

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _at, _ticket, key, connection = heapq.heappop(self._deadlines)
            queue = self._waiting.get(key, [])
            if connection in queue:
                queue.remove(connection)
                if not queue:
                    del self._waiting[key]
                self._answer(connection, _STATUS[404])

    def _answer(self, connection: _Connection, response: bytes) -> None:
        connection.to_send = memoryview(response)
        self._write(connection)

    def _write(self, connection: _Connection) -> None:
        try:
            sent = connection.sock.send(connection.to_send)
        except BlockingIOError:
            sent = 0
        except OSError:
            return self._close(connection)
        if sent == len(connection.to_send):
            return self._close(connection)
        connection.to_send = connection.to_send[sent:]
        connection.since = time.monotonic()
        return self._watch(connection, select.EPOLLOUT)

    def _watch(self, connection: _Connection, events: int) -> None:
        fd = connection.sock.fileno()
        if fd in self._open:
            self._epoll.modify(fd, events)
        else:
            self._open[fd] = connection
            self._epoll.register(fd, events)

    def _close(self, connection: _Connection) -> None:
        self._open.pop(connection.sock.fileno(), None)
        connection.sock.close()

    def _sweep(self, now: float) -> None:
        for connection in [each for each in self._open.values() if now - each.since > IDLE_S]:
            self._close(connection)


def _content_length(headers: bytes) -> int:
    """The body's length in bytes; 0 where the header does not say, -1 where it says nonsense."""
    at = headers.find(b"\r\nContent-Length:")
    if at < 0:
        at = headers.lower().find(b"\r\ncontent-length:")
        if at < 0:
            return 0
    text = headers[at + 17 : headers.find(b"\r\n", at + 2)].strip()
    return int(text) if text.isdigit() else -1


def start(sock: socket.socket, token: str, size: int, welcome: dict[str, Any]) -> int:
    """Serve in a child process, so that no program's interpreter lock delays it; returns its process id.

    The child ends with this process, however that ends: it watches the read end of a pipe whose write end only
    we hold. Signals meant for the job don't end it, or the last ranks of a job that saves its state would hang.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(read_end)
        sock.close()
        return child
    status = 1
    try:
        os.close(write_end)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        _raise_descriptor_limit()
        Server(sock, token, size, welcome).serve(read_end)
        status = 0
    finally:
        os._exit(status)


def _raise_descriptor_limit() -> None:
    """N ranks hold N waiting connections: take what the hard limit allows."""
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def request(
    address: str, port: int, method: str, path: str, body: bytes = b"", timeout_s: float = WAIT_S + 20.0
) -> tuple[int, bytes]:
    """One request as Horovod's client makes it: (status, body).

    Raises:
        OSError: not reachable, or no whole answer within ``timeout_s`` seconds a read.
    """
    with socket.create_connection((address, port), timeout=timeout_s) as sock:
        head = f"{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        parts = []
        while True:
            chunk = sock.recv(1 << 18)
            if not chunk:
                break
            parts.append(chunk)
    data = b"".join(parts)
    head_bytes, separator, content = data.partition(b"\r\n\r\n")
    words = head_bytes.split(b" ", 2)
    if not separator or len(words) < 3 or not words[1].isdigit():
        raise ConnectionError("the answer is not HTTP, or was cut off")
    if len(content) != _content_length(b"\r\n" + head_bytes.split(b"\r\n", 1)[-1] + b"\r\n"):
        raise ConnectionError("the answer was cut off")
    return int(words[1]), content


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

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Set a value. Raises OSError."""
        self._ask("PUT", scope, key, value)

    def get(self, scope: str, key: str, timeout_s: float) -> bytes | None:
        """A value, waiting for it up to ``timeout_s`` seconds; None when it did not come. Raises OSError."""
        until = time.monotonic() + timeout_s
        while True:
            left_s = until - time.monotonic()
            try:
                status, body = self._ask("GET", scope, key, patience_s=min(max(left_s, 1.0), WAIT_S + 20.0))
            except socket.timeout:  # the server still waits for the key, and we need not
                status, body = 404, b""
            if status == 200:
                return body
            if time.monotonic() >= until:
                return None

    def _ask(
        self, method: str, scope: str, key: str, body: bytes = b"", patience_s: float = WAIT_S + 20.0
    ) -> tuple[int, bytes]:
        path = f"/{self._token}/{scope}/{key}"
        for attempt in range(5):
            try:
                status, content = request(self.address, self.port, method, path, body, patience_s)
            except socket.timeout:
                raise
            except OSError:
                if attempt == 4:
                    raise
                time.sleep(0.2 * 2**attempt)
                continue
            if status not in (200, 404):
                raise ConnectionError(f"the rendezvous at {self.address}:{self.port} refused: status {status}")
            return status, content
        raise AssertionError("unreachable")
