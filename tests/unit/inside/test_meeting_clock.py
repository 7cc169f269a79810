"""When a rank joins, it compares its node's wall clock with rank 0's."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from gpu_runner_inside.launcher import meeting
from gpu_runner_inside.launcher.rendezvous_server import greeting
from gpu_runner_inside.launcher.world import World

TOKEN = "0123456789abcdef"
AHEAD_S = 100.0
SLOW_S = 0.2


class Rank0(BaseHTTPRequestHandler):
    """The service of a rank 0 whose clock is AHEAD_S ahead, and that takes SLOW_S to answer."""

    def do_GET(self) -> None:
        time.sleep(SLOW_S)
        _ask, answer = greeting(TOKEN, self.connection.getsockname()[1])
        welcome = {"answer": answer, "size": 1, "notified": 0, "master_port": 0, "time_s": time.time() + AHEAD_S}
        self._answer(json.dumps(welcome).encode() if self.path.endswith("present") else b"")

    def do_PUT(self) -> None:
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Rank0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_offset_of_the_clocks_is_measured_with_its_error(port: int) -> None:
    joined = meeting.join(World(0, 1, 0, 1, 0, 1, (1,), "single"), "127.0.0.1", port, TOKEN, 10.0)
    assert joined.clock_offset_s is not None
    assert joined.clock_error_s is not None
    assert SLOW_S / 2 <= joined.clock_error_s < 2.0
    assert abs(joined.clock_offset_s - AHEAD_S) <= joined.clock_error_s
