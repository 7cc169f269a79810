"""Programs of Debian's packages, unpacked into the cache: nothing is installed, nothing is started."""

import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from runner.core import paths


def unpacked(name: str, *others: str) -> Path:
    """The root into which the package ``name``, and ``others`` that it needs, are unpacked."""
    tools = paths.ensure_directory(paths.cache("test-tools"))
    root = tools / name
    if not root.exists():
        with tempfile.TemporaryDirectory(dir=tools) as scratch:
            # apt's own lists may be empty, and only root may fill them: these are ours.
            own = (f"Dir::State={scratch}/state", f"Dir::Cache={scratch}/cache")
            options = [word for option in (*own, "Dir::State::status=/var/lib/dpkg/status") for word in ("-o", option)]
            Path(scratch, "state/lists/partial").mkdir(parents=True)
            for words in (["update"], ["download", name, *others]):
                subprocess.run(["apt-get", *options, *words], cwd=scratch, check=True, capture_output=True, timeout=300)
            for package in Path(scratch).glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, f"{scratch}/root"], check=True)
            with suppress(OSError):  # another test run was first
                Path(scratch, "root").rename(root)
    return root
