"""Names of a rank, a size and their like, and one spelling for what frameworks spell in several ways."""

from __future__ import annotations

import re

RANK, LOCAL_RANK, SIZE, LOCAL_SIZE = "rank", "local_rank", "size", "local_size"
EXACT = "exact"  # with `rank` or `local_rank`: it is that number, and not only made with it

# Calls, by their spelling of `canonical`.
CALLS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("hvd.rank", "dist.get_rank"), frozenset((RANK, EXACT))),
    **dict.fromkeys(("hvd.local_rank", "dist.get_node_local_rank"), frozenset((LOCAL_RANK, EXACT))),
    **dict.fromkeys(("hvd.size", "dist.get_world_size"), frozenset((SIZE,))),
    **dict.fromkeys(("hvd.local_size", "torch.cuda.device_count"), frozenset((LOCAL_SIZE,))),
    "hvd.cross_rank": frozenset(),
}
# Environment variables of torchrun, Slurm, Open MPI, MPICH, Horovod.
_VARIABLES = {
    RANK: "RANK SLURM_PROCID OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK HOROVOD_RANK MV2_COMM_WORLD_RANK GLOBAL_RANK "
    "RUNNER_RANK",
    LOCAL_RANK: "LOCAL_RANK SLURM_LOCALID OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID HOROVOD_LOCAL_RANK "
    "MV2_COMM_WORLD_LOCAL_RANK RUNNER_LOCAL_RANK",
    SIZE: "WORLD_SIZE SLURM_NTASKS SLURM_NPROCS OMPI_COMM_WORLD_SIZE PMI_SIZE HOROVOD_SIZE MV2_COMM_WORLD_SIZE "
    "RUNNER_WORLD",
    LOCAL_SIZE: "LOCAL_WORLD_SIZE SLURM_NTASKS_PER_NODE OMPI_COMM_WORLD_LOCAL_SIZE HOROVOD_LOCAL_SIZE "
    "SLURM_GPUS_ON_NODE",
}
VARIABLES = {name: tag for tag, text in _VARIABLES.items() for name in text.split()}
# Names of variables, parameters and attributes that are given no value which could be followed.
_NAMES = {
    LOCAL_RANK: r"local_?rank|local_?id|rank_?local",
    RANK: r"((global|world|ddp|my|node_global)_?)?rank",
    SIZE: r"world_?size|world|num_?ranks|n_?ranks|num_?replicas|ddp_world_size",
    LOCAL_SIZE: r"local_?size|local_?world_?size",
    "is_root": r"(is_?)?(main|master|root|chief|primary|rank_?(0|zero))(_?(process|rank|worker|proc|node))?"
    r"|is_?(first|head)(_?rank)?",
}
_PATTERNS = {tag: re.compile(rf"_?({text})\Z", re.IGNORECASE) for tag, text in _NAMES.items()}
# What wraps a model for torch.distributed.
WRAPPED_MODELS = ("DistributedDataParallel", "FullyShardedDataParallel")
_OPTIMIZER = re.compile(
    r"(SGD|N?Adam\w*|RAdam|Nadam|Fused(Adam|SGD|LAMB)|RMSprop|Ada(grad|delta|factor)|LAMB|Lamb|LARS|Lars|Lion|Ftrl"
    r"|\w*Optimizer)\Z"
)
_HOROVOD = re.compile(r"horovod\.(torch|tensorflow\.keras|tensorflow|keras|mxnet)\.(?=.)")
_KERAS = re.compile(r"(tensorflow\.(compat\.v[12]\.)?(python\.)?keras|tf_keras|keras\.api|keras)\.(?=.)")


def words(text: str, head: str = "") -> frozenset[str]:
    """The words of a text, each with this before it."""
    return frozenset(f"{head}{word}" for word in text.split())


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
    tags = {tag for tag, pattern in _PATTERNS.items() if pattern.match(name)}
    return frozenset(tags | {EXACT} if tags else ())


def is_optimizer(path: str) -> bool:
    """Whether a call of this name, as `canonical` spells it, makes an optimizer."""
    last = path.rpartition(".")[2]
    other = path.startswith(("hvd.", ".", "?", "local ", "new ", "set ")) or "schedule" in path or "swa_utils" in path
    known = path.startswith(("torch.optim.", "keras.optimizers.", "tensorflow.optimizers."))
    return not other and last[:1].isupper() and (known or _OPTIMIZER.match(last) is not None)
