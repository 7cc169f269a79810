"""A cluster as its new user finds it: accounts that slurmdbd enforces, a default partition without GPUs, partitions
that are not for everybody, and an ordinary user of two accounts.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner import box
from tests.support.commands import Output, ran
from tests.support.daemons import CONTROLLER, Daemons
from tests.support.sites import accounting
from tests.support.sites.clusters import PACKAGES
from tests.support.users import ALICE, become, open_directory

CHECKOUT = Path(__file__).parents[3]
_GPU = "dgx01,dgx02"
_PARTITIONS = f"""\
PartitionName=cpu Nodes=dgx03 Default=YES MaxTime=1-00:00:00 DefaultTime=10 State=UP
PartitionName=gpu-short Nodes={_GPU} MaxTime=01:00:00 DefaultTime=10 State=UP
PartitionName=gpu-long Nodes={_GPU} MaxTime=3-00:00:00 DefaultTime=60 AllowAccounts=lab42 State=UP
PartitionName=gpu-lab7 Nodes={_GPU} MaxTime=3-00:00:00 AllowAccounts=course7 State=UP
PartitionName=gpu-group Nodes={_GPU} MaxTime=3-00:00:00 AllowGroups=wheel State=UP
PartitionName=gpu-qos Nodes={_GPU} MaxTime=3-00:00:00 AllowQos=premium State=UP
PartitionName=staff Nodes={_GPU} MaxTime=3-00:00:00 AllowAccounts=root State=UP
"""
_KNOWN = """
echo "$1" >>/etc/passwd; echo 'alice:*:::::::' >>/etc/shadow
echo "alice:x:$2:" >>/etc/group; echo 'wheel:x:990:' >>/etc/group
"""


@dataclass(frozen=True)
class Kestrel:
    """The cluster, and the user's own directories on it."""

    daemons: Daemons
    home: Path

    def __call__(
        self, *words: str, code: int = 0, env: dict[str, str] | None = None, before: Sequence[str] = ()
    ) -> Output:
        """A command line of the user's, on the cluster's login node; ``before``: what starts it there."""
        variables = {
            "HOME": str(self.home), "USER": "alice", "LOGNAME": "alice", "PATH": "/usr/local/bin:/usr/bin:/bin",
            "RUNNER_STATE": f"{self.home}/state", "PYTHONPATH": str(CHECKOUT), "RUNNER_DRIVER_TIMEOUT_S": "0",
        } | (env or {})  # fmt: skip
        inside = (self.daemons.box.bin_dir / "in-box", *become(ALICE, reads=True), "env", "-i")
        given = (f"{name}={value}" for name, value in variables.items())
        start = ("sh", "-c", 'cd "$HOME" && exec "$@"', "sh", *before, sys.executable, "-m", "runner")
        return ran((*inside, *given, *start, *words), timeout_s=300, cwd="/", code=code)


@contextmanager
def kestrel() -> Iterator[Kestrel]:
    shape = box.NodeShape(
        cores_per_socket=16, threads_per_core=1, memory_mb=384_000, gpus=4, gpu_type="h100", features=("fake-gpus",)
    )
    name = f"kestrel-{os.getpid()}"
    try:
        with open_directory() as home:
            spec = box.BoxSpec(name=name, nodes=3, shape=shape, partition="gpu-short", packages=PACKAGES)
            daemons = Daemons(box.up(spec))
            make_known(daemons, home)
            accounting.begin(daemons)
            _configure(daemons)
            yield Kestrel(daemons, home)
    finally:
        box.down(name)


def make_known(daemons: Daemons, home: Path) -> None:
    """Make the user known in the box, and the owner of the directory."""
    shutil.chown(home, ALICE, ALICE)
    daemons.inside("sh", "-c", _KNOWN, "sh", f"alice:x:{ALICE}:{ALICE}::{home}:/bin/bash", str(ALICE))


def _configure(daemons: Daemons) -> None:
    """One node without GPUs, the partitions, and the user's accounts, of which the first is the default."""
    conf = re.sub(r"(?m)^PartitionName=.*\n", "", daemons.inside("cat", "/etc/slurm/slurm.conf"))
    conf = re.sub(r"(?m)^(NodeName=dgx03 .*?) Gres=\S+(.*)$", r"\1\2", conf) + _PARTITIONS
    gres = daemons.inside("cat", "/etc/slurm/gres.conf").replace("dgx01,dgx02,dgx03", _GPU)
    for path, text in (("/etc/slurm/slurm.conf", conf), ("/etc/slurm/gres.conf", gres)):
        daemons.inside("sh", "-c", 'printf "%s" "$1" >"$2"', "sh", text, path)
    for words in (
        ("add", "qos", "premium"),
        *(("add", "account", name) for name in ("lab42", "course7")),
        *(("add", "user", "alice", f"account={name}") for name in ("lab42", "course7")),
    ):
        accounting.manage(daemons, *words)
    for name in (CONTROLLER, *daemons.box.spec.node_names):
        daemons.restart(name)
    for name in daemons.box.spec.node_names:
        daemons.await_up(name)
