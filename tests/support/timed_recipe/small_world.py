"""A small world over TCP: every rank is connected with rank 0, which meets the others at MASTER_ADDR:MASTER_PORT.

TIMED_VIA, where it is set, is the port of a proxy on this host through which the others go (delaying_proxy.py).
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_PATIENCE_S = 120.0  # to meet, and for any answer: a world that lost a rank must end


class World:
    """This rank's place, and its collectives (gpu_runner_inside.benchmark.benchmark.World)."""

    def __init__(self) -> None:
        env = os.environ
        self.rank, self.size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
        self.local_rank, self.local_size = int(env.get("LOCAL_RANK", "0")), int(env.get("LOCAL_WORLD_SIZE", "1"))
        self._peers: list[socket.socket] = []  # of rank 0: ranks 1, 2, ...; of another rank: rank 0
        if self.size > 1:
            address = env["MASTER_ADDR"], int(env["MASTER_PORT"])
            self._peers = _accepted(address, self.size) if self.rank == 0 else [_connected(address, self.rank)]

    def close(self) -> None:
        for peer in self._peers:
            peer.close()

    def exchange(self, own: bytes) -> list[bytes]:
        """What every rank gave, by rank, on every rank."""
        if self.size == 1:
            return [own]
        if self.rank == 0:
            parts = [own, *(_received(peer) for peer in self._peers)]
            answer = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
            for peer in self._peers:
                _send(peer, answer)
            return parts
        _send(self._peers[0], own)
        answer, parts, at = _received(self._peers[0]), [], 0
        while at < len(answer):
            (length,) = _LENGTH.unpack_from(answer, at)
            at += _LENGTH.size
            parts.append(answer[at : at + length])
            at += length
        return parts

    def mean(self, values: Sequence[float], padding: bytes = b"") -> list[float]:
        """The mean over ranks of each value, the same bits on every rank; ``padding`` travels along both ways."""
        if self.size == 1:
            return list(values)
        pack = struct.Struct(f"!{len(values)}d")
        if self.rank != 0:
            _send(self._peers[0], pack.pack(*values) + padding)
            return list(pack.unpack(_received(self._peers[0])[: pack.size]))
        rows = [tuple(values), *(pack.unpack(_received(peer)[: pack.size]) for peer in self._peers)]
        means = [sum(row[at] for row in rows) / self.size for at in range(len(values))]
        for peer in self._peers:
            _send(peer, pack.pack(*means) + padding)
        return means

    def agreed(self, value: float, name: str) -> float:
        return float(json.loads(self.exchange(json.dumps(value).encode())[0]))

    def barrier(self) -> None:
        self.exchange(b"")

    def onehot_holds(self) -> bool:
        vector = [float(place == self.rank) for place in range(self.size)]
        return self.mean(vector) == [1.0 / self.size] * self.size

    def gather(self, value: Any, name: str) -> list[Any]:
        return [json.loads(part) for part in self.exchange(json.dumps(value).encode())]


def _accepted(address: tuple[str, int], size: int) -> list[socket.socket]:
    peers: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen(size)
        server.settimeout(_PATIENCE_S)
        while len(peers) < size - 1:
            peer, _ = server.accept()
            _tune(peer)
            token, _, rank = _received(peer).decode().rpartition(" ")
            if token == os.environ.get("RUNNER_TOKEN", ""):
                peers[int(rank)] = peer
    return [peers[rank] for rank in range(1, size)]


def _connected(address: tuple[str, int], rank: int) -> socket.socket:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            via = os.environ.get("TIMED_VIA")
            peer = socket.create_connection(("127.0.0.1", int(via)) if via else address, _PATIENCE_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        _tune(peer)
        if via:
            peer.sendall(f"{address[0]} {address[1]}\n".encode())
        _send(peer, f"{os.environ.get('RUNNER_TOKEN', '')} {rank}".encode())
        return peer


def _tune(peer: socket.socket) -> None:
    peer.settimeout(_PATIENCE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _send(peer: socket.socket, content: bytes) -> None:
    peer.sendall(_LENGTH.pack(len(content)) + content)


def _received(peer: socket.socket) -> bytes:
    return _exactly(peer, _LENGTH.unpack(_exactly(peer, _LENGTH.size))[0])


def _exactly(peer: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = peer.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionError("a rank of the world is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
