"""``dead_mount.py DIRECTORY COMMAND...``: a command beside a file system that never answers, in our mount namespace.

It is FUSE with no process behind it: the kernel waits for the answer to its first message.
"""

import ctypes
import os
import subprocess
import sys


def main() -> int:
    """The command's exit status."""
    place, *words = sys.argv[1:]
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"dead", place.encode(), b"fuse", 0, options):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    return subprocess.run(words, check=False).returncode


if __name__ == "__main__":
    os._exit(main())
