"""Clients that speak to a rendezvous as Horovod's Gloo does, as many as wanted, on this host.

``main.py --clients 256 [--server ours|stock]`` forms one mesh of that many clients and prints what it took.
The calls follow horovod 0.28.1 (common/gloo/http_store.cc, third_party/gloo/gloo/rendezvous/context.cc): each request
on a new connection, three tries 0.5 s apart, ``rank_I`` of all lower ranks read without polling, a value of N - 1
addresses of 136 bytes put, every other one polled each 10 ms until it is there and then read once more, a barrier,
a DELETE. About 2.5 N^2 requests in all. What is not imitated is Gloo's own connections between the ranks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

ADDRESS_BYTES = 136  # gloo/transport/tcp/address.h: a sockaddr_storage and a sequence number
TRIES, RETRY_S, POLL_S = 3, 0.5, 0.01


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


def form(server: str, port: int, size: int, timeout_s: float) -> dict[str, float]:
    """One mesh of ``size`` clients, each a process: seconds from the start of the first to the last one's DELETE.

    Raises:
        RuntimeError: a client failed; its traceback stands on standard error.
    """
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    meshed_read, meshed_write = os.pipe()
    leave_read, leave_write = os.pipe()
    done_read, done_write = os.pipe()
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for fd in (go_write, leave_write):
                    os.close(fd)
                os.write(ready_write, b"x")
                os.close(ready_write)
                os.read(go_read, 1)
                client = Client(server, port, "global")
                connect_full_mesh(client, rank, size, "host", timeout_s)
                os.write(meshed_write, b"x")
                os.close(meshed_write)
                os.read(leave_read, 1)
                client.finalize(rank)
                os.write(done_write, json.dumps([client.requests, client.retries]).encode() + b"\n")
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    for fd in (ready_write, meshed_write, done_write, go_read, leave_read):
        os.close(fd)
    _count(ready_read, size)
    started = time.monotonic()
    os.close(go_write)
    _count(meshed_read, size)
    meshed_s = time.monotonic() - started
    os.close(leave_write)
    told = b""
    while True:
        chunk = os.read(done_read, 65536)
        if not chunk:
            break
        told += chunk
    seconds = time.monotonic() - started
    for fd in (ready_read, meshed_read, done_read):
        os.close(fd)
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    if failed:
        raise RuntimeError(f"{failed} of {size} clients failed")
    counts = [json.loads(line) for line in told.splitlines()]
    requests = sum(each[0] for each in counts)
    return {
        "clients": size,
        "mesh_s": round(meshed_s, 3),
        "all_s": round(seconds, 3),
        "requests": requests,
        "retries": sum(each[1] for each in counts),
        "requests_per_s": round(requests / seconds),
    }


def _count(fd: int, wanted: int) -> None:
    """Read one byte a client; fewer come when one has died, and the caller learns of it at the end."""
    have = 0
    while have < wanted:
        chunk = os.read(fd, wanted - have)
        if not chunk:
            return
        have += len(chunk)


def serve_ours(size: int) -> tuple[str, int, int]:
    """(ADDR, port, process id) of a server of ours in a process of its own; it ends with this process."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "recipes" / "lib"))
    import rendezvous

    sock = rendezvous.listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    child = rendezvous.start(sock, "0123456789abcdef", size, {"token": "0123456789abcdef"})
    return f"127.0.0.1:{port}/0123456789abcdef", port, child


def serve_stock(horovod: Path) -> tuple[str, int, int]:
    """The same for the server of horovod itself, from an unpacked source tree.

    Raises:
        EOFError: it did not start; why stands on standard error.
    """
    sys.path.insert(0, str(horovod))
    ports = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            import logging

            from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

            logging.disable(logging.CRITICAL)
            server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0)
            ports[1].send(server.server_address[1])
            parent = os.getppid()
            threading.Thread(target=server.serve_forever, daemon=True).start()
            while os.getppid() == parent:
                time.sleep(0.2)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    ports[1].close()
    port = ports[0].recv()
    return "127.0.0.1", port, child


def peak_rss_bytes(pid: int) -> int:
    """The server's peak memory (VmHWM of proc(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_s(pid: int) -> float:
    """Processor time that the server has used (utime and stime of proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)


def main() -> int:
    parser = argparse.ArgumentParser(description="Form a mesh through a rendezvous, as Horovod's clients do.")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--server", choices=("ours", "stock"), default="ours")
    parser.add_argument("--horovod", type=Path, help="unpacked source of horovod, for --server stock")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="Gloo's time-out")
    options = parser.parse_args()
    address, port, pid = (
        serve_ours(options.clients) if options.server == "ours" else serve_stock(options.horovod.resolve())
    )
    told = form(address, port, options.clients, options.timeout)
    print(json.dumps(dict(told, server=options.server, server_peak_bytes=peak_rss_bytes(pid), server_cpu_s=cpu_s(pid))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
