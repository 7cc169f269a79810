"""A job of a user who is not root, on a cluster whose daemons are root's, as clusters are."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.support.commands import extended, ran
from tests.support.daemons import Daemons
from tests.support.users import ALICE, become, open_directory

CHECKOUT = Path(__file__).parents[2]
# To slurmd, too, which asks su for a user's environment.
_KNOWN = (
    """sed -i /^alice:/d /etc/passwd /etc/shadow && echo "$1" >>/etc/passwd && echo 'alice:*:::::::' >>/etc/shadow"""
)


def probe(daemons: Daemons, image: Path, runtime: str, *options: str) -> dict[str, Any]:
    """The verdict on a probe of two ranks on two nodes that the user submits in the box."""
    with open_directory() as directory:
        for name in ("home", "runs", "state"):
            (directory / name).mkdir()
            shutil.chown(directory / name, ALICE, ALICE)
        shutil.copyfile(image, directory / "image.sqsh")
        site = extended(daemons.box.site, directory, runtimes=[runtime], box="")
        site.chmod(0o644)
        line = f"alice:x:{ALICE}:{ALICE}::{directory}/home:/bin/bash"
        daemons.inside("sh", "-c", _KNOWN, "sh", line)
        variables = {
            "HOME": f"{directory}/home", "USER": "alice", "PATH": "/usr/local/bin:/usr/bin:/bin",
            "RUNNER_STATE": f"{directory}/state", "RUNNER_STORE": f"{directory}/state", "PYTHONPATH": str(CHECKOUT),
        }  # fmt: skip
        words = (
            *(daemons.box.bin_dir / "in-box", *become(ALICE, reads=True), "env", "-i"),
            *(f"{name}={value}" for name, value in variables.items()),
            *(sys.executable, "-m", "runner", "submit", "--site", site, "--runs", directory / "runs", "--wait"),
            *("--recipe", "probe", "--gpus", "2", "--nodes", "2", "--image", directory / "image.sqsh", *options),
        )
        ran(words, timeout_s=300, cwd="/")
        (run,) = (directory / "runs").glob("[!.]*")
        assert {path.stat().st_uid for path in (run / "ranks").iterdir()} == {ALICE}
        verdict: dict[str, Any] = json.loads((run / "verdict.json").read_text())
        return verdict
