"""Whether this machine belongs to a real cluster: then no box is started on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.core import process

# Where the configuration of each scheduler's clients lies: slurm.conf(5), pbs.conf(8), lsf.conf(5).
_SLURM = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
_PBS = ("/etc/pbs.conf", "/var/spool/torque/server_name", "/var/spool/pbs/server_name")


def real_cluster() -> str | None:
    """Why this machine looks like a login node or node of a real cluster; None if it does not."""
    return reason(os.environ, lambda path: Path(path).exists(), lambda name: process.find(name) is not None)


def reason(env: Mapping[str, str], exists: Callable[[str], bool], program: Callable[[str], bool]) -> str | None:
    """The same, as a function of the environment and files.

    A client alone is no cluster: Debian's slurm-client can be installed anywhere; it is one with a configuration.
    """
    for variable in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        if env.get(variable):
            return f"{variable} is set: this is a job"
    slurm = [env["SLURM_CONF"]] if env.get("SLURM_CONF") else _SLURM
    pbs = [env["PBS_CONF_FILE"]] if env.get("PBS_CONF_FILE") else _PBS
    for clients, places in ((("sbatch", "sinfo"), slurm), (("qstat", "qsub"), pbs)):
        client = next((name for name in clients if program(name)), None)
        place = next((name for name in places if exists(name)), None)
        if client and place:
            return f"{client} is here and {place} too"
    return None
