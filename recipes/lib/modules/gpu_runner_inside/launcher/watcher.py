"""The watcher of a node, as its first launcher starts and ends it. A process of its own: what it loads (NVML) cannot
harm a rank, and while it sleeps it costs nothing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any, Mapping

from gpu_runner_inside import IMPORT_DIRECTORY
from gpu_runner_inside.window import VARIABLE

_PATIENCE_S = 5.0
_START = "import sys; sys.path.insert(0, sys.argv[1]); from gpu_runner_inside.node.watch import main; main(sys.argv[2])"


class Watcher:
    """A watcher that may not have started: it never keeps a job from running.

    Attributes:
        variables: for the environment of the program that marks its window.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        """``about``: run_dir and what the record says of its writer: node_rank, rank, host, token."""
        self.variables: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        name = "gpu-runner-" + os.urandom(12).hex()
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind("\0" + name)
                listener.listen(8)
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-c",
                        _START,
                        IMPORT_DIRECTORY,
                        json.dumps(dict(about, fd=listener.fileno())),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(listener.fileno(),),
                )
            self.variables = {VARIABLE: name}

    def end(self) -> None:
        """Let it write its record and wait for it; one that hangs is killed. May be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a process that hangs in a driver dies when that lets it
                process.wait(1.0)
