"""A link with a delay, as a program: what goes through arrives so much later, both ways. Standard library only.

``delaying_proxy.py PORT SECONDS``: on 127.0.0.1; a client's first line says with whom it wants to be connected.
"""

import queue
import socket
import sys
import threading
import time
from contextlib import suppress


def main() -> None:
    port, delay_s = int(sys.argv[1]), float(sys.argv[2])
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            client = server.accept()[0]
            threading.Thread(target=connect, args=(client, delay_s), daemon=True).start()


def connect(client: socket.socket, delay_s: float) -> None:
    line = b""
    while not line.endswith(b"\n"):
        line += client.recv(1)
    host, port = line.decode().split()
    other = reached((host, int(port)))
    for each in (client, other):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for source, target in ((client, other), (other, client)):
        pending: queue.Queue[tuple[float, bytes]] = queue.Queue()
        threading.Thread(target=read, args=(source, pending, delay_s), daemon=True).start()
        threading.Thread(target=write, args=(target, pending), daemon=True).start()


def reached(address: tuple[str, int]) -> socket.socket:
    """A connection with a program that may still be starting."""
    while True:
        with suppress(OSError):
            return socket.create_connection(address, 10.0)
        time.sleep(0.02)


def read(source: socket.socket, pending: queue.Queue[tuple[float, bytes]], delay_s: float) -> None:
    source.settimeout(None)
    data = b"-"
    while data:
        data = b""
        with suppress(OSError):
            data = source.recv(1 << 16)
        pending.put((time.monotonic() + delay_s, data))


def write(target: socket.socket, pending: queue.Queue[tuple[float, bytes]]) -> None:
    while True:
        at, data = pending.get()
        time.sleep(max(at - time.monotonic(), 0.0))
        with suppress(OSError):
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)


if __name__ == "__main__":
    main()
