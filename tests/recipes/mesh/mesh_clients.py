"""Clients that speak to a rendezvous as Horovod's Gloo does, each a process of its own.

The calls follow horovod 0.28.1 (common/gloo/http_store.cc, third_party/gloo/gloo/rendezvous/context.cc): each request
on a new connection, three tries 0.5 s apart, ``rank_I`` of all lower ranks read without polling, a value of N - 1
addresses of 136 bytes put, every other one polled each 10 ms until it is there and then read once more, a barrier,
a DELETE. About 2.5 N^2 requests in all. What is not imitated is Gloo's own connections between the ranks.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import traceback
from dataclasses import dataclass

ADDRESS_BYTES = 136  # gloo/transport/tcp/address.h: a sockaddr_storage and a sequence number
TRIES, RETRY_S, POLL_S = 3, 0.5, 0.01


@dataclass(frozen=True)
class ClientReport:
    """What a herd of clients has to say at its end.

    Attributes:
        requests: that were sent. retries: of these, how often one got no answer and was sent again.
        failed: clients that did not form their mesh; why stands on standard error.
    """

    requests: int
    retries: int
    failed: int


class Client:
    """Horovod's HTTPStore: ``server`` and ``port`` are HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT as they stand."""

    def __init__(self, server: str, port: int, scope: str) -> None:
        url = f"{server}:{port}/{scope}/"
        host, slash, path = url.partition("/")
        name, _, number = host.partition(":")
        self._name, self._port, self._path = name, int(number or 80), slash + path
        self.requests = 0
        self.retries = 0

    def put(self, key: str, value: bytes) -> None:
        self._perform("PUT", key, value)

    def get(self, key: str) -> bytes | None:
        """The value; None where the server says 404."""
        status, body = self._perform("GET", key)
        return body if status == 200 else None

    def wait(self, key: str, timeout_s: float) -> None:
        started = time.monotonic()
        while self.get(key) is None:
            if time.monotonic() - started > timeout_s:
                raise TimeoutError(f"no {key} within {timeout_s:g} s")
            time.sleep(POLL_S)

    def finalize(self, rank: int) -> None:
        self._perform("DELETE", str(rank))

    def _perform(self, method: str, key: str, body: bytes = b"") -> tuple[int, bytes]:
        for _ in range(TRIES):
            try:
                status, answer = self._send(method, key, body)
                if status in (200, 404):
                    return status, answer
            except OSError:
                pass
            self.retries += 1
            time.sleep(RETRY_S)
        raise ConnectionError("HTTP request failed.")

    def _send(self, method: str, key: str, body: bytes) -> tuple[int, bytes]:
        self.requests += 1
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.connect((self._name, self._port))
            head = f"{method} {self._path}{key} HTTP/1.1\r\nHost: {self._name}\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode() + body)
            data = sock.recv(1 << 16)
            while b"\r\n\r\n" not in data:
                more = sock.recv(1 << 16)
                if not more:
                    raise ConnectionError("disconnected")
                data += more
            head_bytes, _, content = data.partition(b"\r\n\r\n")
            status = int(head_bytes.split(b" ", 2)[1])
            length = int(head_bytes.partition(b"Content-Length: ")[2].split(b"\r\n", 1)[0])
            parts, have = [content], len(content)
            while have < length:
                more = sock.recv(1 << 16)
                if not more:
                    raise ConnectionError("cut off")
                parts.append(more)
                have += len(more)
        return status, b"".join(parts)


def connect_full_mesh(client: Client, rank: int, size: int, host: str, timeout_s: float) -> None:
    """gloo::rendezvous::Context::connectFullMesh, but for the connections themselves."""
    client.put(f"rank_{rank}", host.encode())
    for lower in range(rank):
        client.get(f"rank_{lower}")
    client.put(str(rank), rank.to_bytes(4, "big") * (ADDRESS_BYTES // 4 * (size - 1)))
    for peer in range(size):
        if peer == rank:
            continue
        client.wait(str(peer), timeout_s)
        value = client.get(str(peer))
        if value is None or len(value) != ADDRESS_BYTES * (size - 1) or value[:4] != peer.to_bytes(4, "big"):
            raise ValueError(f"rank {rank} got a wrong value for rank {peer}")


class Herd:
    """The clients of ranks ``first`` to ``first + count - 1`` of a world of ``size``, forked and ready to start.

    Args:
        server, port: HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT as they stand.
        timeout_s: Gloo's time-out, and what a client may take in all, seconds.
    """

    def __init__(self, server: str, port: int, *, first: int, count: int, size: int, timeout_s: float) -> None:
        ready, self._go, self._meshed, self._leave, self._done = (os.pipe() for _ in range(5))
        self._children = []
        for rank in range(first, first + count):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.close(self._go[1])
                    os.close(self._leave[1])
                    signal.alarm(int(timeout_s) + 1)
                    os.write(ready[1], b"x")
                    os.read(self._go[0], 1)
                    client = Client(server, port, "global")
                    connect_full_mesh(client, rank, size, "host", timeout_s)
                    os.write(self._meshed[1], b"x")
                    os.close(self._meshed[1])
                    os.read(self._leave[0], 1)
                    client.finalize(rank)
                    os.write(self._done[1], json.dumps([client.requests, client.retries]).encode() + b"\n")
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            self._children.append(child)
        for end in (ready[1], self._meshed[1], self._done[1], self._go[0], self._leave[0]):
            os.close(end)
        _all_of(ready[0], count)

    def go(self) -> None:
        """Let all clients start."""
        os.close(self._go[1])

    def meshed(self) -> None:
        """Wait until every client stands in its mesh, or has failed."""
        _all_of(self._meshed[0], len(self._children))

    def leave(self) -> ClientReport:
        """Let the clients end, as ranks do that have met, and say what it took."""
        os.close(self._leave[1])
        said = b""
        while chunk := os.read(self._done[0], 65536):
            said += chunk
        os.close(self._done[0])
        failed = sum(os.waitpid(child, 0)[1] != 0 for child in self._children)
        counts = [json.loads(line) for line in said.splitlines()]
        return ClientReport(sum(each[0] for each in counts), sum(each[1] for each in counts), failed)


def _all_of(fd: int, wanted: int) -> None:
    """Read one byte a client; fewer come when one has died, and ``leave`` tells of it."""
    have = 0
    while have < wanted and (chunk := os.read(fd, wanted - have)):
        have += len(chunk)
    os.close(fd)
