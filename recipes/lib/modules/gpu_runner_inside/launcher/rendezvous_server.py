"""The server through which the ranks of one job step find each other.

It speaks the key-value protocol of Horovod's Gloo rendezvous (horovod 0.28.1, common/gloo/http_store.cc and
runner/http/http_server.py): PUT, GET and DELETE of ``/scope/key``, each on a connection of its own. Three things
differ from Horovod's own server, because forming a mesh of N ranks takes about 2.5 N^2 requests:

- A GET waits (bounded) until the key is there. Horovod's client polls every 10 ms otherwise, and reads
  ``rank_I`` of its peers without polling at all.
- One thread, epoll, one read and one write a request, a backlog of 4096, one bound address.
- Every path begins with the job's token: a request of another job's rank gets 403, never a foreign value. Horovod's
  client composes its URL as ``http://ADDR:PORT/scope/key`` and takes everything up to the first slash for the
  host (HTTPRequest.hpp), so an ADDR of ``10.0.0.5:12042/TOKEN`` carries the token and needs no change in it.
  Our own ranks greet first on each connection (``greeting``), and show the token to this service alone.

A DELETE of ``/scope/R`` is how rank R says that its mesh stands: what it put is dropped, so the scope serves again
if the program shuts Horovod down and starts it anew.

Anyone on the network can connect. A connection that has not shown the token is a stranger's: it may send one head of
bounded length, no body of it is read, it lasts HEAD_S at most, the oldest of more than MAX_STRANGERS is closed, and of
their refusals only MAX_REFUSALS a second are answered.
Values and bodies of the job's own ranks are held up to ``most_held_bytes``; a PUT beyond that gets 413.
"""

from __future__ import annotations

import errno
import heapq
import hmac
import json
import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Any

from gpu_runner_inside.launcher import http_message
from gpu_runner_inside.launcher.lobby import Lobby

BACKLOG = 4096
WAIT_S = 10.0  # how long a GET waits for its key before it answers 404
HEAD_S = 10.0  # from the connection to the end of the request's head
BODY_S = 60.0  # from there to the end of its body
ANSWER_S = 60.0  # for the whole answer
MAX_STRANGERS = 256
MAX_REFUSALS = 256  # that are answered in a second
_DISCARDED_BYTES = 1 << 20  # read after a refusal
_SWEEP_S = 1.0

_OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
_DONE = _OK % 0
_STATUS = {
    400: b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    403: b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    404: b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    413: b"HTTP/1.1 413 Payload Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
}
_AT_ONCE = socket.MSG_DONTWAIT  # instead of a system call for each connection that makes it non-blocking
_NOTHING = memoryview(b"")
_METHODS = (b"GET", b"PUT", b"DELETE")
_LOBBY = b"lobby/"
_HOROVOD = b"global/"  # common/gloo/gloo_context.cc: every rank puts its addresses at /global/RANK
_PRESENT, _MISSING, _EVERYONE = b"lobby/present", b"lobby/missing", b"lobby/everyone"


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


def most_held_bytes(size: int) -> int:
    """How much is held at once for a world of ``size`` ranks: one mesh, with a quarter for heads and host names, and
    64 MB at least. Gloo needs the square: every rank puts an address of 136 bytes for each other one. It needs no
    second mesh: a rank deletes its value before it puts that of its next scope (common/gloo/gloo_context.cc).
    """
    return max(64 << 20, 170 * size * size)


class _Connection:
    """One request under way.

    Attributes:
        received: so far of the head; when that is complete, of the body.
        method, key, length: of the request, once it has shown the token and may be served; the key is empty before,
            the method is not set. The length is that of the body, bytes, which count as held.
        discarded: bytes read since the request was refused; -1 where it was not.
        to_send: what is left of the answer.
        greeted: whether its greeting was answered: it knows the token, or has heard one who does.
        deadline: when this part of the exchange must be over.
    """

    __slots__ = ("deadline", "discarded", "greeted", "key", "length", "method", "received", "sock", "to_send")
    method: bytes

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.sock = sock
        self.received: bytearray | None = None
        self.key = b""
        self.greeted = False
        self.length = 0
        self.discarded = -1
        self.to_send = _NOTHING
        self.deadline = deadline


class Server:
    """Serves one job step until ``stop_fd`` is readable or closed at its other end.

    Args:
        sock: from ``listen``.
        token: the job's; the first part of every path.
        size: ranks of the job step, for the lobby.
        welcome: what ``present`` in the lobby answers beside the counts.
        wait_s: how long a GET waits for its key.

    The scope ``lobby`` is the launchers' own: each rank PUTs its number; ``everyone`` answers, with nothing, when the
    last one has; ``present`` tells at once how many are there, and ``missing`` names the first of those who are not.
    """

    def __init__(
        self, sock: socket.socket, token: str, size: int, welcome: dict[str, Any], wait_s: float = WAIT_S
    ) -> None:
        self._sock = sock
        self._prefix = b"/" + token.encode() + b"/"
        # Horovod appends its port to ADDR, which here ends with the token: "/TOKEN:PORT/scope/key".
        self._prefix_and_port = b"/" + token.encode() + b":%d/" % sock.getsockname()[1]
        self._token, self._place = token, sock.getsockname()
        self._welcome = welcome
        self._wait_s = wait_s
        self._values: dict[bytes, bytes] = {}  # key path -> whole response
        self._held, self._most = 0, most_held_bytes(size)  # bytes
        self._lobby = Lobby(size)
        self._waiting: dict[bytes, dict[_Connection, None]] = {}
        self._deadlines: list[tuple[float, int, bytes, _Connection]] = []
        self._ticket = 0
        self._watched: dict[int, _Connection] = {}  # those that epoll watches, by descriptor
        self._strangers: dict[_Connection, None] = {}  # of these, those that have not shown the token; oldest first
        self._epoll = select.epoll()
        self._now = time.monotonic()
        self.requests = 0
        self.refused = self._refusals = 0  # the second: since the last sweep
        self.faults = 0  # unforeseen exceptions; each closed its connection
        self.values = 0  # that programs have left
        self._came: set[bytes] = set()  # keys in Horovod's scope of all ranks: each puts its own
        self.notified = 0  # how many launchers were notified that every rank is there

    def serve(self, stop_fd: int) -> None:
        listener = self._sock.fileno()
        self._epoll.register(listener, select.EPOLLIN)
        self._epoll.register(stop_fd, select.EPOLLIN)
        swept = self._now
        while True:
            events = self._epoll.poll(self._pause_s(), 1024)
            self._now = time.monotonic()
            for fd, _event in events:
                if fd == listener:
                    self._accept()
                elif fd == stop_fd:
                    return
                elif fd in self._watched:  # and not closed by an earlier event of the same batch
                    self._go_on(self._watched[fd])
            self._expire()
            if self._now - swept >= _SWEEP_S:
                swept, self._refusals = self._now, 0
                for connection in [each for each in self._watched.values() if each.deadline <= self._now]:
                    self._close(connection)

    def _pause_s(self) -> float | None:
        """Until when nothing is to be done unless something comes; None: forever."""
        pause = _SWEEP_S if self._watched else None
        if self._deadlines:
            next_s = max(self._deadlines[0][0] - time.monotonic(), 0.0)
            pause = next_s if pause is None else min(pause, next_s)
        return pause

    def _accept(self) -> None:
        for _ in range(256):
            try:
                sock, _address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    return
                # Out of descriptors: strangers go first; those who wait in the backlog are taken when some are free.
                if not self._strangers:
                    time.sleep(0.01)
                    return
                self._close(next(iter(self._strangers)))
                continue
            self._go_on(_Connection(sock, self._now + HEAD_S))

    def _go_on(self, connection: _Connection) -> None:
        """Read or write what there is; whatever a request brings about ends its own connection at most."""
        try:
            if connection.discarded >= 0:
                self._discard(connection)
            elif connection.to_send:
                self._write(connection)
            else:
                self._read(connection)
        except OSError:  # the client has left
            self._close(connection)
        except Exception:
            self.faults += 1
            self._close(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            while True:
                # A first read fits any GET; a large buffer would cost a mapping of its own for each of them.
                chunk = connection.sock.recv(1 << 18 if connection.key else 1 << 12, _AT_ONCE)
                if not chunk:
                    return self._close(connection)
                if connection.key:
                    if self._take_body(connection, chunk):
                        return None
                elif self._take_head(connection, chunk):
                    return None
        except BlockingIOError:
            if not (connection.key or connection.greeted):
                self._strangers[connection] = None
            self._watch(connection, select.EPOLLIN)
        return None

    def _take_head(self, connection: _Connection, chunk: bytes) -> bool:
        """Take the next bytes of the head, and perhaps of the body; whether there is no more to be read."""
        data: bytes | bytearray = chunk
        searched = 0
        if connection.received is not None:
            searched = max(len(connection.received) - len(http_message.HEAD_END) + 1, 0)
            connection.received += chunk
            data = connection.received
        end = data.find(http_message.HEAD_END, searched)
        if end < 0 and len(data) <= http_message.MAX_HEAD_BYTES:
            if connection.received is None:
                connection.received = bytearray(chunk)
            return False
        whole = chunk[:end] if data is chunk else bytes(data[:end])
        head = http_message.request_head(whole) if 0 <= end <= http_message.MAX_HEAD_BYTES else None
        if head is None:
            return self._refuse(connection, 400)
        method, path, length = head
        key = self._key_of(path)
        if not (key or connection.greeted) and self._greet(connection, path):
            return False
        status = self._refusal(method, key, length)
        if status:
            return self._refuse(connection, status, shown=bool(key))
        connection.method, connection.key, connection.length = method, key, length
        self._held += length
        if data is not chunk:
            self._strangers.pop(connection, None)
        body = data[end + len(http_message.HEAD_END) :]
        if len(body) >= length:
            return self._serve(connection, body[:length])
        connection.received = bytearray(body)
        connection.deadline = self._now + BODY_S
        return False

    def _key_of(self, path: bytes) -> bytes:
        """What follows the job's token in a path; empty where it does not begin with that."""
        if path.startswith(self._prefix_and_port):
            return path[len(self._prefix_and_port) :]
        return path[len(self._prefix) :] if path.startswith(self._prefix) else b""

    def _greet(self, connection: _Connection, path: bytes) -> bool:
        """Answer a greeting, after which this connection's request may come; whether it is one."""
        if path[65:] != b"/" + _PRESENT:
            return False
        ask, answer = greeting(self._token, path[1:33].decode("latin-1"), *self._place)
        if not hmac.compare_digest(path[33:65], ask.encode()):
            return False
        connection.sock.send(_json(self._present(), answer), _AT_ONCE)
        connection.greeted, connection.received = True, None
        self._strangers.pop(connection, None)
        return True

    def _refusal(self, method: bytes, key: bytes, length: int) -> int:
        """The status with which a request is refused; 0 where it may be served."""
        if not key:
            self.refused += 1
            return 403
        if key.count(b"/") != 1 or method not in _METHODS or length < 0:
            return 400
        return 413 if length > min(http_message.MAX_BODY_BYTES, self._most - self._held) else 0

    def _take_body(self, connection: _Connection, chunk: bytes) -> bool:
        """Take the next bytes of the body; whether there is no more to be read."""
        assert connection.received is not None
        connection.received += chunk
        if len(connection.received) < connection.length:
            return False
        body, connection.received = connection.received, None
        return self._serve(connection, body[: connection.length] if len(body) > connection.length else body)

    def _serve(self, connection: _Connection, body: bytes | bytearray) -> bool:
        """Answer a request, or let it wait for its key; True: nothing more is to be read."""
        self.requests += 1
        method, key = connection.method, connection.key
        if key.startswith(_LOBBY):
            return self._serve_lobby(connection, method, key)
        if method == b"GET":
            response = self._values.get(key)
            return self._wait(connection) if response is None else self._answer(connection, response)
        if method == b"PUT":
            response = _OK % len(body) + body
            self._held += len(response) - len(self._values.get(key, b""))
            self._values[key] = response
            self.values += 1
            if key.startswith(_HOROVOD):
                self._came.add(key[len(_HOROVOD) :])
            self._answer_waiting(key, response)
        else:
            scope, name = key.split(b"/")
            for gone in (key, scope + b"/rank_" + name):
                self._held -= len(self._values.pop(gone, b""))
        return self._answer(connection, _DONE)

    def _serve_lobby(self, connection: _Connection, method: bytes, key: bytes) -> bool:
        if method == b"GET" and key == _EVERYONE:
            if not self._lobby.complete:
                return self._wait(connection)
            self.notified += 1
            return self._answer(connection, _DONE)
        if method == b"GET" and key == _PRESENT:
            return self._answer(connection, _json(self._present()))
        if method == b"GET" and key == _MISSING:
            missing = {"count": self._lobby.size - self._lobby.count, "first": self._lobby.missing()}
            return self._answer(connection, _json(missing))
        if method != b"PUT" or not self._lobby.enter(key[len(_LOBBY) :]):
            return self._refuse(connection, 400, shown=True)
        if self._lobby.complete:
            self.notified += self._answer_waiting(_EVERYONE, _DONE)
        return self._answer(connection, _DONE)

    def _present(self) -> dict[str, Any]:
        return dict(
            self._welcome,
            time_s=time.time(),
            size=self._lobby.size,
            present=self._lobby.count,
            requests=self.requests,
            refused=self.refused,
            faults=self.faults,
            notified=self.notified,
            values=self.values,
            horovod_ranks=sum(key.isdigit() for key in self._came),
        )

    def _wait(self, connection: _Connection) -> bool:
        """Keep the connection until its key comes; epoll has nothing to say of it meanwhile."""
        self._unwatch(connection)
        self._waiting.setdefault(connection.key, {})[connection] = None
        self._ticket += 1
        heapq.heappush(self._deadlines, (self._now + self._wait_s, self._ticket, connection.key, connection))
        return True

    def _answer_waiting(self, key: bytes, response: bytes) -> int:
        """Answer all that wait for a key; how many these were."""
        waiting = self._waiting.pop(key, {})
        for connection in waiting:
            self._answer(connection, response)
        return len(waiting)

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._now:
            _at, _ticket, key, connection = heapq.heappop(self._deadlines)
            queue = self._waiting.get(key, {})
            if connection in queue:
                del queue[connection]
                if not queue:
                    del self._waiting[key]
                self._answer(connection, _STATUS[404])

    def _answer(self, connection: _Connection, response: bytes) -> bool:
        """Send the answer, as far as it can be sent now; True: nothing more is to be read."""
        try:
            sent = connection.sock.send(response, _AT_ONCE)
        except BlockingIOError:
            sent = 0
        except OSError:  # this client has left; others that waited for the same key have not
            sent = len(response)
        if sent == len(response):
            self._close(connection)
        else:
            connection.to_send = memoryview(response)[sent:]
            connection.deadline = self._now + ANSWER_S
            self._watch(connection, select.EPOLLOUT)
        return True

    def _write(self, connection: _Connection) -> None:
        """Send what is left of the answer, as far as it can be sent now."""
        with suppress(BlockingIOError):
            connection.to_send = connection.to_send[connection.sock.send(connection.to_send, _AT_ONCE) :]
        if not connection.to_send:
            self._close(connection)

    def _refuse(self, connection: _Connection, status: int, *, shown: bool = False) -> bool:
        """Answer with an error, and read on for a while: to close with bytes unread could take the answer back. Of
        those who have not ``shown`` the token, only MAX_REFUSALS a second get one: what a flood costs, ranks wait for.
        """
        self._refusals += not shown
        if self._refusals > MAX_REFUSALS and not shown:
            self._close(connection)
            return True
        connection.discarded = 0
        connection.received = None
        connection.deadline = self._now + HEAD_S
        connection.sock.send(_STATUS[status], _AT_ONCE)
        connection.sock.shutdown(socket.SHUT_WR)
        self._strangers[connection] = None
        self._watch(connection, select.EPOLLIN)
        return True

    def _discard(self, connection: _Connection) -> None:
        with suppress(BlockingIOError):
            chunk = connection.sock.recv(1 << 16, _AT_ONCE)
            connection.discarded += len(chunk)
            if not chunk or connection.discarded > _DISCARDED_BYTES:
                self._close(connection)

    def _watch(self, connection: _Connection, events: int) -> None:
        fd = connection.sock.fileno()
        if fd in self._watched:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
            self._watched[fd] = connection
            if len(self._strangers) > MAX_STRANGERS:
                self._close(next(iter(self._strangers)))

    def _unwatch(self, connection: _Connection) -> None:
        fd = connection.sock.fileno()
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def _close(self, connection: _Connection) -> None:
        if self._watched:
            self._watched.pop(connection.sock.fileno(), None)
        if self._strangers:
            self._strangers.pop(connection, None)
        self._held, connection.length = self._held - connection.length, 0
        connection.sock.close()


def _json(value: dict[str, Any], before: str = "") -> bytes:
    body = (before + json.dumps(value)).encode()
    return _OK % len(body) + body


def greeting(token: str, nonce: str, address: str, port: int) -> tuple[str, str]:
    """What a rank asks first on each connection to its job's service at an address and port, and what only that service
    answers there, before what it says.

    A stranger may have taken the port, and is not shown the token; what it hears is worth nothing elsewhere, so that it
    cannot hand on to the service and answer as that does, nor later, for ``nonce`` is another one each time: 32 hex
    digits.
    """
    ask, answer = (
        hmac.digest(token.encode(), f"{word} {nonce} {address}:{port}".encode("latin-1"), "sha256").hex()[:32]
        for word in ("ask", "answer")
    )
    return ask, answer


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
