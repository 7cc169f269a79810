"""A directory as two machines see it over a slow network: sshfs (Debian's) to its own sftp-server, each answer late.

A client of sshfs keeps attributes for 20 s and what it has read as long as it thinks it may; flock(2) holds on one
client alone. So it is a harder place for a store than most file systems of clusters.
"""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tests.support.packages import unpacked

_LATE_S = 0.002


@contextmanager
def seen_from_two_machines(directory: Path, mounts: Path) -> Iterator[tuple[Path, Path]]:
    """Two places below ``mounts`` that show ``directory``, each through a client and a server of its own."""
    tools = unpacked("sshfs", "libfuse3-3", "libglib2.0-0", "openssh-sftp-server")
    with ExitStack() as stack:
        first, second = (stack.enter_context(_mounted(tools, directory, mounts / name)) for name in "ab")
        yield first, second


@contextmanager
def _mounted(tools: Path, directory: Path, place: Path) -> Iterator[Path]:
    place.mkdir()
    libraries = tools / "usr/lib/x86_64-linux-gnu"
    env = {**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{tools / 'lib/x86_64-linux-gnu'}"}
    pipe = subprocess.PIPE
    server = subprocess.Popen([tools / "usr/lib/openssh/sftp-server"], stdin=pipe, stdout=pipe)
    words = [str(tools / "usr/bin/sshfs"), f":{directory}", str(place), "-f", "-o", "passive"]
    client = subprocess.Popen(words, stdin=pipe, stdout=pipe, env=env)
    assert server.stdin and server.stdout and client.stdin and client.stdout
    for source, sink, late_s in ((client.stdout, server.stdin, 0.0), (server.stdout, client.stdin, _LATE_S)):
        threading.Thread(target=_pass_on, args=(source, sink, late_s), daemon=True).start()
    try:
        until = time.monotonic() + 30
        while not os.path.ismount(place):
            assert client.poll() is None, "sshfs has ended"
            assert time.monotonic() < until, "sshfs does not mount"
            time.sleep(0.05)
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=False)
        for process in (client, server):
            process.kill()
            process.wait()


def _pass_on(source: IO[bytes], sink: IO[bytes], late_s: float) -> None:
    while data := os.read(source.fileno(), 1 << 16):
        time.sleep(late_s)
        try:
            sink.write(data)
            sink.flush()
        except (BrokenPipeError, ValueError):
            return
