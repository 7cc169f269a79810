"""Names of a rank, a size and their like, and one spelling for what frameworks spell in several ways."""

from __future__ import annotations

import re

RANK, LOCAL_RANK, SIZE, LOCAL_SIZE = "rank", "local_rank", "size", "local_size"
EXACT = "exact"  # with `rank` or `local_rank`: it is that number, and not only made with it

# Calls, by their spelling of `canonical`.
CALLS: dict[str, frozenset[str]] = {
    "hvd.rank": frozenset((RANK, EXACT)),
    "hvd.local_rank": frozenset((LOCAL_RANK, EXACT)),
    "hvd.size": frozenset((SIZE,)),
    "hvd.local_size": frozenset((LOCAL_SIZE,)),
    "hvd.cross_rank": frozenset(("cross_rank",)),
    "dist.get_rank": frozenset((RANK, EXACT)),
    "dist.get_node_local_rank": frozenset((LOCAL_RANK, EXACT)),
    "dist.get_world_size": frozenset((SIZE,)),
    "torch.cuda.device_count": frozenset((LOCAL_SIZE,)),
}
# Environment variables of torchrun, Slurm, Open MPI, MPICH, Horovod.
VARIABLES: dict[str, str] = {
    **dict.fromkeys(
        ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "HOROVOD_RANK", "MV2_COMM_WORLD_RANK",
         "GLOBAL_RANK", "RUNNER_RANK"),
        RANK,
    ),
    **dict.fromkeys(
        ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "HOROVOD_LOCAL_RANK",
         "MV2_COMM_WORLD_LOCAL_RANK", "RUNNER_LOCAL_RANK"),
        LOCAL_RANK,
    ),
    **dict.fromkeys(
        ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE",
         "MV2_COMM_WORLD_SIZE", "RUNNER_WORLD"),
        SIZE,
    ),
    **dict.fromkeys(
        ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE",
         "SLURM_GPUS_ON_NODE"),
        LOCAL_SIZE,
    ),
}  # fmt: skip
# Names of variables, parameters and attributes that are given no value which could be followed.
_NAMES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"_?(local_?rank|local_?id|rank_?local)\Z", re.IGNORECASE), LOCAL_RANK),
    (re.compile(r"_?((global|world|ddp|my|node_global)_?)?rank\Z", re.IGNORECASE), RANK),
    (re.compile(r"_?(world_?size|world|num_?ranks|n_?ranks|num_?replicas|ddp_world_size)\Z", re.IGNORECASE), SIZE),
    (re.compile(r"_?(local_?size|local_?world_?size)\Z", re.IGNORECASE), LOCAL_SIZE),
    (
        re.compile(
            r"_?(is_?)?(main|master|root|chief|primary|rank_?(0|zero))(_?(process|rank|worker|proc|node))?\Z"
            r"|_?is_?(first|head)(_?rank)?\Z", re.IGNORECASE
        ),
        "is_root",
    ),
)  # fmt: skip
# What wraps a model for torch.distributed.
WRAPPED_MODELS = ("DistributedDataParallel", "FullyShardedDataParallel")
_OPTIMIZER = re.compile(
    r"(SGD|Adam\w*|FusedAdam|FusedSGD|RMSprop|Adagrad|Adadelta|LAMB|Lamb|FusedLAMB|LARS|Lars|Lion|NAdam|Nadam|RAdam|Ftrl|"
    r"Adafactor|\w*Optimizer)\Z"
)
_HOROVOD = re.compile(r"horovod\.(torch|tensorflow\.keras|tensorflow|keras|mxnet)\.(?=.)")
_KERAS = re.compile(r"(tensorflow\.(compat\.v[12]\.)?(python\.)?keras|tf_keras|keras\.api|keras)\.(?=.)")


def canonical(path: str) -> str:
    """One spelling for the names of Horovod, torch.distributed and Keras."""
    found = _HOROVOD.match(path)
    if found:
        return f"hvd.{path[found.end() :]}"
    if path.startswith("torch.distributed.") and path.count(".") == 2:
        return f"dist.{path.rpartition('.')[2]}"
    found = _KERAS.match(path)
    return f"keras.{path[found.end() :]}" if found else path


def meaning(name: str) -> frozenset[str]:
    """The tags of a name that nothing else is known of."""
    tags = {tag for pattern, tag in _NAMES if pattern.match(name)}
    return frozenset(tags | {EXACT} if tags else ())


def is_optimizer(path: str) -> bool:
    """Whether a call of this name, as `canonical` spells it, makes an optimizer."""
    last = path.rpartition(".")[2]
    if path.startswith(("hvd.", ".", "?", "local ", "new ", "class ", "set ")) or not last[:1].isupper():
        return False
    if "schedule" in path or "swa_utils" in path:
        return False
    if path.startswith(("torch.optim.", "keras.optimizers.", "tensorflow.optimizers.")):
        return True
    return _OPTIMIZER.match(last) is not None
