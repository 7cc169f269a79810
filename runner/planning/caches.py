"""Where a job's caches are: in the user's home directory where programs see it, else on each node."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

from runner.model.names import Caches
from runner.model.request import Mount
from runner.model.runtimes import NATIVE, RUNTIMES
from runner.model.schedulers import SCHEDULERS
from runner.model.site import Site

# Variables by which users place their caches: of all programs, Hugging Face, torch.hub and Keras.
OF_USERS = ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "KERAS_HOME")


def choose(site: Site, runtime: str, mounts: Iterable[Mount], home: str) -> Caches:
    """Which caches the launcher puts into a directory of the job's own: see ``Plan.caches``."""
    if runtime == NATIVE and SCHEDULERS[site.scheduler].nodes == "this-machine":
        return "shell"
    if RUNTIMES[runtime].shows_home:
        return "home" if site.home.for_jobs else "node"
    return "home" if home and is_visible(f"{home.rstrip('/')}/.cache", runtime, mounts) else "node"


def is_visible(path: str, runtime: str, mounts: Iterable[Mount]) -> bool:
    """Whether a program sees a directory of the host under the same path."""
    if runtime == NATIVE:
        return True
    shown = (posixpath.normpath(mount.target) for mount in mounts if _same(mount))
    return any(f"{posixpath.normpath(path)}/".startswith(f"{target.rstrip('/')}/") for target in shown)


def carried(of_shell: Mapping[str, str], runtime: str, mounts: Iterable[Mount]) -> dict[str, str]:
    """Of the submitting shell's variables that place caches: those whose directories the program sees."""
    mounts = tuple(mounts)
    return {
        name: value
        for name, value in of_shell.items()
        if name in OF_USERS and value.startswith("/") and is_visible(value, runtime, mounts)
    }


def _same(mount: Mount) -> bool:
    return posixpath.normpath(mount.source) == posixpath.normpath(mount.target) and not mount.read_only
