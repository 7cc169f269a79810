"""The variables by which a program learns its place in the world. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping

from gpu_runner_inside.launcher.world import World

# Horovod falls back to a world of its own when one of these is left over from elsewhere.
_HOROVOD_PLACE = (
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "HOROVOD_HOSTNAME",
)
# The variables that a task starter sets for each task; ids of job and step are not among them.
_OF_A_TASK = re.compile(
    r"(SLURM_(STEP_)?(NTASKS|NPROCS|NUM_TASKS|TASKS_PER_NODE)|SLURM_(NTASKS_PER_\w+|PROCID|LOCALID|TASK_PID|GTIDS)"
    r"|SLURM_SRUN_\w+|PMIX?_\w+|PALS_(RANKID|NODEID|LOCAL_\w+)|OMPI_COMM_\w+"
    r"|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|HOROVOD_\w+)\Z"
)


@dataclass(frozen=True)
class Meeting:
    """Where the ranks meet.

    Attributes:
        address, port: of the rendezvous, as seen from this node.
        token: the job step's secret (world.secret).
        interface: ours on the route to rank 0, or None where it is not known.
        master_port: a free port on rank 0's node for the program's own use; 0 when there is none.
        clock_offset_s: rank 0's wall clock less ours, seconds; None where its service did not say.
        clock_error_s: how wrong that may be: half the round trip.
    """

    address: str
    port: int
    token: str
    interface: str | None
    master_port: int
    clock_offset_s: float | None = None
    clock_error_s: float | None = None


def timeout_s(size: int) -> int:
    """Horovod's Gloo time-out for a world of this size, in seconds.

    It bounds both how far apart the ranks may reach ``hvd.init`` (imports of 16 ranks on two cores took 22 s) and
    how long the mesh may take to form.
    """
    return 120 + size


def of_world(world: World) -> dict[str, str]:
    """The variables that hold whatever the wireup: torch's own names, and ours."""
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "RUNNER_RANK": str(world.rank),
        "RUNNER_WORLD": str(world.size),
        "RUNNER_LOCAL_RANK": str(world.local_rank),
    }


def from_gpu(env: Mapping[str, str], first: int, seen: int) -> str | None:
    """CUDA_VISIBLE_DEVICES with which GPU number ``first`` of this node comes first, and the others after it in their
    order: all stay visible. None where there is nothing to change.

    Args:
        seen: how many GPUs the node shows where CUDA_VISIBLE_DEVICES does not say.

    Raises:
        IndexError: there are GPUs, and not so many.
    """
    variable = env.get("CUDA_VISIBLE_DEVICES")
    visible = list(map(str, range(seen))) if variable is None else variable.split(",")
    if not first or not seen:
        return None
    if first >= len(visible):
        raise IndexError(first)
    return ",".join((*visible[first:], *visible[:first]))


def of_its_own(env: Mapping[str, str], gpus: int | None = None, seen: int = 0) -> dict[str, str]:
    """``env`` without the task starter's variables, for a program that starts its own processes.

    With them it would take itself for a single task (Lightning does where LOCAL_RANK or SLURM_NTASKS is set).

    Args:
        gpus: how many of the node's GPUs are the program's, which would otherwise use all that it sees; None for all.
        seen: how many GPUs the node shows where CUDA_VISIBLE_DEVICES does not say.
    """
    made = {name: value for name, value in env.items() if not _OF_A_TASK.match(name)}
    variable = env.get("CUDA_VISIBLE_DEVICES")
    visible = list(map(str, range(seen))) if variable is None else variable.split(",")
    if gpus is not None and len(visible) > gpus:
        made["CUDA_VISIBLE_DEVICES"] = ",".join(visible[:gpus])
    return made


def of_a_node(
    env: Mapping[str, str],
    world: World,
    meeting: Meeting | None,
    gpus: int | None,
    port: int,
    *,
    is_starter: bool = False,
) -> dict[str, str]:
    """``env`` with what a program that starts the processes of its node needs, to start one for each GPU and to meet
    those of the other nodes.

    Lightning reads NODE_RANK, MASTER_ADDR and MASTER_PORT; scripts pass them on, with NNODES and NPROC_PER_NODE. A
    torchrun that is not seen in the program reads its options from PET_* (torch.distributed.argparse_util), which
    its ranks inherit.

    Args:
        world: of the launchers, one a node.
        gpus: of each node; None where they are not counted. port: one that is free, for one node.
        is_starter: it gets arguments (``starter``) and no PET_*; on one node, too, there is a place to meet.
    """
    made = dict(env)
    made["NNODES"] = str(world.nodes)
    if gpus is not None:
        made["NPROC_PER_NODE"] = str(gpus)
    if meeting is not None or is_starter:
        made["NODE_RANK"] = str(world.node_rank)
        _master(made, meeting)
    if is_starter:
        return made if meeting is not None else {**made, "MASTER_PORT": str(port)}
    for name in ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT"):
        if name in made:
            made[f"PET_{name}"] = made[name]
    if meeting is None:
        made["PET_MASTER_PORT"] = str(port)
    return made


def by_rendezvous(env: Mapping[str, str], world: World, host: str, meeting: Meeting | None) -> dict[str, str]:
    """``env`` with what Horovod and torch.distributed need to form this world with no PMI and no MPI.

    ``meeting`` is None for a world of one, which needs none. A time-out and an interface that are set already stay
    as they are: the site or the user has chosen them.
    """
    made = {name: value for name, value in env.items() if name not in _HOROVOD_PLACE}
    made.update(of_world(world))
    made.update(
        {
            "NODE_RANK": str(world.node_rank),  # Lightning's, where a job's name turns its Slurm plugin off
            "HOROVOD_RANK": str(world.rank),
            "HOROVOD_SIZE": str(world.size),
            "HOROVOD_LOCAL_RANK": str(world.local_rank),
            "HOROVOD_LOCAL_SIZE": str(world.local_size),
            "HOROVOD_CROSS_RANK": str(world.cross_rank),
            "HOROVOD_CROSS_SIZE": str(world.cross_size),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }
    )
    made.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(timeout_s(world.size)))
    _master(made, meeting)
    if meeting is None:
        return made
    made.update(
        {
            "HOROVOD_HOSTNAME": host,
            # The token rides in the address: see rendezvous_server.py.
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{meeting.address}:{meeting.port}/{meeting.token}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(meeting.port),
        }
    )
    if meeting.interface is not None:
        made.setdefault("HOROVOD_GLOO_IFACE", meeting.interface)
    return made


def like_torchrun(env: Mapping[str, str], world: World, meeting: Meeting | None) -> dict[str, str]:
    """``env`` as torchrun makes it (torch.distributed.elastic, "Environment Variables"): by TORCHELASTIC_RUN_ID torch
    and Lightning know that their processes are started for them, even within a job of Slurm. NODE_RANK is Lightning's
    name for GROUP_RANK.
    """
    made = {name: value for name, value in env.items() if not name.startswith("HOROVOD_")}
    made.update(of_world(world))
    made.update(
        {
            "GROUP_RANK": str(world.node_rank),
            "GROUP_WORLD_SIZE": str(world.nodes),
            "NODE_RANK": str(world.node_rank),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(world.rank),
            "ROLE_WORLD_SIZE": str(world.size),
            "TORCHELASTIC_RUN_ID": "single" if meeting is None else made["RUNNER_TOKEN"],
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }
    )
    _master(made, meeting)
    return made


def _master(made: dict[str, str], meeting: Meeting | None) -> None:
    """Where torch's own rendezvous is to be served, and where the launcher's is."""
    if meeting is None:
        made.update(MASTER_ADDR="127.0.0.1")
        made.setdefault("MASTER_PORT", "29500")
        return
    made["RUNNER_RENDEZVOUS"] = f"{meeting.address}:{meeting.port}/{meeting.token}"
    made["MASTER_ADDR"] = meeting.address
    if meeting.master_port:
        made["MASTER_PORT"] = str(meeting.master_port)
