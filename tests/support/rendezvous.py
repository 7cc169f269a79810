"""The launcher's rendezvous server, in a thread of the test."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_runner_inside.launcher import rendezvous, rendezvous_server

from tests.recipes.mesh import mesh_servers

TOKEN = mesh_servers.TOKEN


@contextmanager
def served(
    kind: type[rendezvous_server.Server] = rendezvous_server.Server,
) -> Iterator[tuple[rendezvous_server.Server, rendezvous.Store]]:
    """A server of two ranks whose GETs wait a fifth of a second, and what asks it."""
    with rendezvous_server.listen("127.0.0.1", 0) as listening:
        server = kind(listening, TOKEN, 2, {"token": TOKEN}, wait_s=0.2)
        mine, its = socket.socketpair()
        thread = threading.Thread(target=server.serve, args=(its.fileno(),))
        thread.start()
        try:
            yield server, rendezvous.Store("127.0.0.1", listening.getsockname()[1], TOKEN)
        finally:
            mine.close()
            thread.join(10)
            its.close()
