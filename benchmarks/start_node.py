"""One node's part of ``benchmarks/start.py``: starts a container in one way and tells what it cost.

Arguments: the way, the image, a directory for the answer, Python to run before the first line. Runs with the node's
own interpreter, standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2): orphans of ours (the process that serves a mount) become our children


def main() -> None:
    way, image, out, program = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    local = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="bench-start-"))
    try:
        source, read = _made_ready(way, Path(image), local)
        code = f"{program}\nprint('first line', flush=True)\nimport sys; sys.stdin.read()"
        Path(f"/var/tmp/{os.environ['USER']}.ch/mnt").mkdir(parents=True, exist_ok=True)
        child = subprocess.Popen(
            ["ch-run", str(source), "--", "python3", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"first line\n"
        first_line_s = time.time()
        if way == "mounted":
            read = _read_through(Path(image))
        child.stdin.close()
        child.wait()
        with suppress(ChildProcessError):
            while True:
                os.wait()
    finally:
        shutil.rmtree(local)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts = {"first_line_s": first_line_s, "cpu_s": used.ru_utime + used.ru_stime, "image_bytes": read}
    Path(out, f"{socket.gethostname()}.json").write_text(json.dumps(facts))


def _made_ready(way: str, image: Path, local: Path) -> tuple[Path, int]:
    """What ch-run starts from, and the bytes of the shared image that it took to get it."""
    if way == "mounted":
        return image, 0
    if way == "staged":
        copy = local / "image.sqsh"
        code = 'set -o pipefail; tee -- "$2" <"$1" | sha256sum >/dev/null'
        subprocess.run(["bash", "-c", code, "bash", str(image), str(copy)], check=True)
        return copy, image.stat().st_size
    assert way == "unpacked", way
    words = ["unsquashfs", "-quiet", "-no-progress", "-d", str(local / "root"), str(image)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return local / "root", image.stat().st_size


def _read_through(image: Path) -> int:
    """Bytes that the process which serves the mount has read: the one below us that holds the image open."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            holds = any(link.readlink() == image for link in (folder / "fd").iterdir())
            if holds and _is_below_us(int(folder.name)):
                return int((folder / "io").read_text().split()[1])  # rchar, proc(5)
    raise AssertionError(f"no process of this node serves {image}")


def _is_below_us(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return False


if __name__ == "__main__":
    main()
