"""Debian's Podman behind its API socket, rootful and rootless, in a mount namespace where it looks installed."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.core.errors import InfrastructureError
from runner.images import engine
from tests.support.packages import unpacked

UNPRIVILEGED = 65534
_OTHERS = (
    *("conmon", "golang-github-containers-common", "golang-github-containers-image", "libgpgme11", "libassuan0"),
    *("libsubid4", "libdevmapper1.02.1", "libyajl2", "libostree-1-1", "catatonit"),
)
# No network of its own, nothing in the host's /etc, no cgroups by systemd.
_CONFIGURATION = """[containers]
default_ulimits = []
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
[network]
network_config_dir = "{state}/networks"
"""
# Arguments: the unpacked root, the words that become the user.
_START = """set -e
root=$1; shift
mount -t overlay overlay -o "lowerdir=$root/lib:/usr/lib" /usr/lib
mount -t overlay overlay -o "lowerdir=$root/usr:/usr" /usr
mount -t overlay overlay -o "lowerdir=$root/etc:/etc" /etc
exec "$@"
"""


@contextmanager
def running(*, rootless: bool) -> Iterator[str]:
    """The URL of a Podman of this test's own."""
    root = unpacked("podman", *_OTHERS)
    with tempfile.TemporaryDirectory(prefix="podman-", ignore_cleanup_errors=True) as place:
        state = Path(place)
        (state / "containers.conf").write_text(_CONFIGURATION.format(state=state))
        for directory in ("home", "run"):
            (state / directory).mkdir(mode=0o700)
        variables = [f"HOME={state}/home", f"XDG_RUNTIME_DIR={state}/run", f"CONTAINERS_CONF={state}/containers.conf"]
        words = ["env", *variables, "podman", "--cgroup-manager", "cgroupfs", "--runtime", "runc"]
        if rootless:
            for path in (state, *state.rglob("*")):
                os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
            words = ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups", *words]
        else:
            words += ["--root", f"{state}/data", "--runroot", f"{state}/run/root"]
        url = f"unix://{state}/podman.sock"
        words += ["system", "service", "--time", "0", url]
        start = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _START, "sh", str(root), *words]
        with (state / "log").open("wb") as log:
            child = subprocess.Popen(start, stdout=log, stderr=log, cwd=state)
        try:
            yield _answering(url, child, state / "log")
        finally:
            child.terminate()
            child.wait(30)


def _answering(url: str, child: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(600):
        assert child.poll() is None, log.read_text()
        with suppress(InfrastructureError):
            engine.connect(url).close()
            return url
        time.sleep(0.1)
    raise AssertionError(log.read_text())
