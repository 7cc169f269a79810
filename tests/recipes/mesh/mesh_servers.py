"""The servers that clients form their mesh through, each in a process of its own: ours, and Horovod's."""

from __future__ import annotations

import importlib
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

with suppress(IndexError):  # in a job the launcher names the library; beside a checkout it is the checkout's
    sys.path.insert(0, os.environ.get("RUNNER_LIB") or str(Path(__file__).resolve().parents[3] / "recipes/lib/modules"))

from gpu_runner_inside.launcher import rendezvous, rendezvous_server

TOKEN = "0123456789abcdef"


@dataclass(frozen=True)
class Serving:
    """A server that runs: ADDR and PORT as Horovod gets them, its process, and where it listens."""

    server: str
    port: int
    pid: int
    address: str
    ours: bool

    def requests(self) -> int | None:
        """How many requests it has answered, this question left out; None where it does not count them."""
        if not self.ours:
            return None
        _status, body = rendezvous.request(self.address, self.port, "GET", f"/{TOKEN}/lobby/present")
        return int(json.loads(body)["requests"]) - 1

    def peak_rss_bytes(self) -> int:
        """Its peak memory (VmHWM of proc(5))."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0

    def cpu_s(self) -> float:
        """Processor time that it has used (utime and stime of proc(5))."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)

    def end(self) -> None:
        """End its process."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def ours(address: str, size: int, seen_as: str | None = None) -> Serving:
    """The launcher's server on this address; ``seen_as``: the address by which clients reach it, where another."""
    sock = rendezvous_server.listen(address, 0)
    port = sock.getsockname()[1]
    pid = rendezvous_server.start(sock, TOKEN, size, {"token": TOKEN})
    return Serving(f"{seen_as or address}:{port}/{TOKEN}", port, pid, address, ours=True)


def stock(address: str) -> Serving:
    """Horovod's own server, as ``horovodrun`` starts it; it listens on every address.

    Raises:
        EOFError: it did not start; why stands on standard error.
    """
    hears, tells = multiprocessing.Pipe(duplex=False)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            http = importlib.import_module("horovod.runner.http.http_server")  # only the image has it
            logging.disable(logging.CRITICAL)
            tells.send(http.RendezvousServer().start())
            while os.getppid() == parent:
                time.sleep(0.2)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    tells.close()
    return Serving(address, hears.recv(), pid, address, ours=False)
