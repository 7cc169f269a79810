"""What to do about Slurm's refusals, and what its reasons for waiting mean.

Sources: slurm_errno.c and ``job_reason_string`` of Slurm 22.05 to 26.05; squeue(1), "JOB REASON CODES".
"""

from __future__ import annotations

import re
from typing import Final

from runner.core.text import gpus_text

_MINE = "`sacctmgr show associations user=$USER format=cluster,account%30,partition,qos%40` lists yours"
_REFUSALS: Final = (
    (r"invalid account", f"name an account of yours with --account; {_MINE}"),
    (r"invalid qos", f"name a QOS that your account may use, with --queue or -S qos=NAME; {_MINE}"),
    (
        r"violates accounting/qos policy",
        "ask for fewer GPUs or less time, or use another account or QOS; "
        "`sacctmgr show qos format=name,maxwall,maxtres%40,maxtrespu%40,maxjobspu` lists the limits",
    ),
    (r"invalid partition", "name one with --queue; `sinfo --summarize` lists them"),
    (r"requested time limit", "ask for less with --time; `sinfo --format='%P %l'` lists the limits"),
    (r"node count specification", "ask for as many nodes as the partition takes; `scontrol show partition` says"),
    (r"invalid feature", "the site file names a constraint that no node has; `sinfo --format='%P %f'` lists them"),
    (
        r"requested node configuration",
        "no node has so many GPUs or CPUs, so much memory, or such a GPU; `sinfo --format='%P %D %c %m %G %f'` says",
    ),
    (
        r"failed to initialize plugin stack|plug-in initialization failed|dlopen of plugin file failed",
        "the cluster's plugin configuration (plugstack.conf) is broken: show these lines to the administrator; "
        "no job can be submitted until it is corrected",
    ),
    (
        r"unrecognized option|unknown option",
        "the cluster's sbatch has no such option: the runtime is not installed there or its plugin is not loaded "
        "(ask the administrator; --runtime names another), or -S or the site's file has misspelt one",
    ),
)
_OF_SIZE = re.compile(
    r"more processors requested than permitted|node count specification|requested node configuration", re.IGNORECASE
)
_GPUS = re.compile(r"\bgpu:(?:[^:,(]+:)?(\d+)")  # of GRES: gpu:a100:8(S:0-1), gpu:8
_ANY_REFUSAL = "see the script and the site's limits (`sinfo`, `scontrol show partition`)"

_LIMITED: Final = {
    "GRES": "GPUs",
    "GRESMinutes": "GPU time",
    "GRESRunMinutes": "GPU time of running jobs",
    "Cpu": "CPUs",
    "CPUS": "CPUs",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "Nodes": "nodes",
    "Jobs": "jobs at once",
    "Submit": "jobs in the queue",
    "SubmitJobs": "jobs in the queue",
    "Wall": "time",
    "WallDuration": "time",
    "CPUMinutes": "CPU time",
    "CPURunMinutes": "CPU time of running jobs",
    "Billing": "billing units",
}
_LIMIT = re.compile(r"(Assoc|QOS)(Grp|Max)([A-Z][A-Za-z]*?)(?:Limit|PerJob|PerUser|PerAccount|PerNode)*\Z")
_WAITS: Final = {
    "Priority": "jobs of a higher priority come first",
    "Resources": "the nodes that it needs are busy",
    "Dependency": "a job that it depends on has not ended",
    "DependencyNeverSatisfied": "a job that it depends on did not end as required: it will never start; cancel it",
    "BeginTime": "its start time has not come",
    "InvalidAccount": "its account is not (or no longer) one of yours: it will never start; cancel it",
    "InvalidQOS": "its QOS is not (or no longer) one of yours: it will never start; cancel it",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives: it will never start; cancel it",
    "PartitionTimeLimit": "it asks for more time than the partition gives: it will never start; cancel it",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is down",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "JobHeldAdmin": "an administrator holds it back",
    "user_env_retrieval_failed_requeued_held": "the login shell that Slurm starts on the node because of --export=NONE "
    "failed or was too slow. `scontrol release` tries again; or cancel it, and submit with `slurm: {export: nil}` in "
    "the site file, which starts none",
    "JobHeldUser": "its user holds it back (scontrol release)",
    "Licenses": "it waits for a licence",
}


def fix(refusal: str) -> str:
    """What to do about a refusal of sbatch."""
    return next((advice for words, advice in _REFUSALS if re.search(words, refusal, re.IGNORECASE)), _ANY_REFUSAL)


def is_of_size(refusal: str) -> bool:
    """Whether sbatch may have refused a job because the cluster has too few nodes."""
    return _OF_SIZE.search(refusal) is not None


def more_than_there_is(nodes: int, listing: str) -> str:
    """What to do where a job asks for more nodes than there are; empty where it does not.

    Args:
        listing: a line ``NODE|GRES`` for each node, as ``sinfo --Node --format='%N|%G'`` prints it.
    """
    gpus = {
        name: sum(map(int, _GPUS.findall(gres))) for name, _, gres in (row.partition("|") for row in listing.split())
    }
    if not gpus or nodes <= len(gpus):
        return ""
    return (
        f"the job needs {nodes} nodes; this cluster has {len(gpus)} ({gpus_text(sum(gpus.values()))}): request no more"
    )


def explained(reason: str) -> str:
    """A reason for waiting with what it means: ``AssocGrpGRES: ...``; the reason alone where it is not listed.

    A ``Grp`` limit is used up by other jobs and is free again when they end. A ``Max`` limit of a single job is
    refused or waits for ever; one per user is free again, too.
    """
    known = _WAITS.get(reason.partition(",")[0])
    if known is None:
        known = _limited(reason)
    return f"{reason}: {known}" if known else reason


def _limited(reason: str) -> str:
    match = _LIMIT.match(reason)
    if match is None:
        return ""
    owner = "account" if match[1] == "Assoc" else "QOS"
    what = _LIMITED.get(match[3], "")
    limit = f"the {owner}'s limit on {what}" if what else f"a limit of the {owner}"
    if "PerJob" in reason:
        return f"it asks for more than {limit} of one job: it will never start; cancel it"
    return f"{limit} is reached: it starts when jobs under the same {owner} end, or never if it alone is too large"
