"""What the calls of frameworks mean, what a rank is called, and what to write: data alone.

A call has its name as ``canonical`` spells it: ``hvd.`` for each module of Horovod, ``dist.`` for torch.distributed,
``keras.`` for each Keras; ``.step`` is a method of a value, ``set.lr`` what gives a rate. In a pattern a dot is a dot
and ``*`` any text; the rest is a regular expression.
"""

from __future__ import annotations

import re
from functools import cache

CALLS = {
    "builtin": "print open range enumerate zip len int float str min max getattr dict",
    "adds": "append extend update add insert setdefault",
    # Numbers of a rank.
    "rank": "hvd.rank dist.get_rank",
    "local_rank": "hvd.local_rank dist.get_node_local_rank",
    "size": "hvd.size dist.get_world_size",
    "local_size": "hvd.local_size torch.cuda.device_count",
    "environment": "os.getenv os.environ.(get|pop|setdefault)",
    # What makes a thing.
    "loader": "*.DataLoader",
    "sampler": "*(Distributed|Elastic)*Sampler*",
    "optimizer": r"(torch.optim|(keras|tensorflow).optimizers).((?!schedules|lr_sched|swa_utils)\w+.)?[A-Z]\w+"
    r" (?!hvd)\w+.(*.)?(SGD|N?Adam*|RAdam|Nadam|Fused(Adam|SGD|LAMB)|RMSprop|Ada(grad|delta|factor)|L(AMB|amb|ARS|ars)"
    r"|Lion|Ftrl|[A-Z]*Optimizer)",
    "model": r"(torch.nn|timm|keras|transformers).(*.)?[A-Z]\w+ (torchvision.models|keras.applications).* "
    "timm.create_model transformers.*(Model|For[A-Z])*.from_(pretrained|config)",
    "tape": "*GradientTape",
    "ddp": "*.(DistributedDataParallel|FullyShardedDataParallel)",
    "schedule": r"*[sS]chedule* *(LR|Scaler)",
    "wrapped": "hvd.Distributed(Optimizer|GradientTape)",
    "in_memory": "io.(Bytes|String)IO",
    "on_device": ".(to|cuda|cpu|eval|train|double|half|float|compile|requires_grad_)",
    "path": "*.(join|Path|joinpath|with_suffix|with_name|replace|abspath|expanduser) *open",
    # What trains.
    "backward": ".(backward|apply_gradients|minimize|train_on_batch|train_step|gradient) torch.autograd.backward",
    "fit": ".fit .fit_generator",
    "training": "train* hvd.DistributedOptimizer* hvd.elastic.run* tensorflow.compat.v1.train*",
    "reads": "*.(load|load_data|load_dataset|memmap|fromfile|loadtxt|read_csv|read_parquet|imread)",
    # 1: what starts, and what must have been started.
    "init horovod": "hvd.init hvd.elastic.run horovod.(spark.)?run",
    "init ddp": "dist.init_process_group (dist|torch.distributed.device_mesh).init_device_mesh",
    "needs horovod": "hvd.(local_)?(rank|size) hvd.broadcast_(parameters|optimizer_state|variables|object) "
    "hvd.(DistributedOptimizer|allreduce)",
    "needs ddp": "dist.(get_rank|get_world_size|all_reduce|barrier|broadcast|reduce) "
    "*.(DistributedDataParallel|FullyShardedDataParallel)",
    # 2: what takes a GPU.
    "set device": "torch.cuda.set_device torch.accelerator.(set_device_index|set_device|device_index) "
    "torch.xpu.set_device",
    "visible": "tensorflow.config.(experimental.)?set_visible_devices",
    # 3: data without a loader.
    "made data": "tensorflow.data.Dataset.from_tensor_slices tensorflow.data.TFRecordDataset",
    "fit data": "*.(from_tensor_slices|load_data|from_generator|load_dataset|load|image_dataset_from_directory"
    "|TFRecordDataset)",
    # 5 and 6: what averages and broadcasts.
    "wraps horovod": "hvd.Distributed(Optimizer|GradientTape|AdasumOptimizer) "
    "hvd.(load_model|create_distributed_optimizer)",
    "wraps ddp": "*.(DistributedDataParallel|FullyShardedDataParallel|fully_shard)",
    "gradients": "*(allreduce|all_reduce|all_gather)*",
    "parameters": "hvd.broadcast_(parameters|variables|global_variables|model_weights)",
    "objects": "hvd.broadcast(_object|_)?",
    "callbacks": "hvd.callbacks.BroadcastGlobalVariablesCallback(Impl)? hvd.BroadcastGlobalVariablesHook",
    "elastic": "hvd.elastic.((Torch|TensorFlowKeras|Keras|TensorFlow)State|run)",
    # 7: what writes a file; what all ranks must come to.
    "checkpoint": "torch.save torch.jit.save .save(_weights|_pretrained|_model)? keras.callbacks.ModelCheckpoint "
    "keras.(models|saving).save_model tensorflow.saved_model.save joblib.dump pickle.dump "
    "safetensors.torch.save_(file|model) numpy.savez?",
    "log": "keras.callbacks.(TensorBoard|CSVLogger) (torch.utils.tensorboard.(writer.)?|tensorboardX.)SummaryWriter "
    "tensorflow.summary.create_file_writer wandb.init",
    "second is a path": "torch.save torch.jit.save pickle.dump joblib.dump *safetensors*",
    "together": "torch.distributed.(checkpoint|fsdp).* orbax.*",
    "barrier": "dist.barrier dist.monitored_barrier hvd.barrier",
    "parts": "torch.distributed.checkpoint.save(_state_dict)?",
    "states": "torch.distributed.checkpoint.state_dict.get_((model|optimizer)_)?state_dict",
    # 8: what averages a metric in its place, or returns it; what reports one.
    "in place": "dist.((all_)?reduce|(all_)?gather(_object)?|all_gather_into_tensor)",
    "returned": "hvd.callbacks.MetricAverageCallback dist.reduce_scatter hvd.allreduce(_|_async|_async_)? "
    "hvd.(grouped_allreduce|allgather|allgather_object|reducescatter)",
    "report": "*(print|info|debug|write|add_scalar|log|set_postfix|log_metrics|scalar|report|writerow|dump|append_row)",
}  # fmt: skip
# What does the steps by itself: calls, or base classes.
THEMSELVES = {
    "Lightning": "lightning.* pytorch_lightning.*",
    "Accelerate": "accelerate.Accelerator*",
    "Hugging Face's Trainer": "transformers.(Seq2Seq)?Trainer* transformers.trainer.* trl.*",
    "DeepSpeed": "deepspeed.initialize*",
    "tf.distribute": "tensorflow.distribute.*",
    "Ray Train": "ray.train.*",
    "Composer": "composer.Trainer*",
    "fastai": "fastai.*",
    "Horovod's estimator": "horovod.spark.*",
}
# Imports of ranks that do not all do the same.
DIVIDED = ("torch.distributed.rpc", "torch.distributed.tensor.parallel", "torch.distributed.pipelining",
           "torch.distributed.pipeline", "megatron")  # fmt: skip
# Environment variables of torchrun, Slurm, Open MPI, MPICH, Horovod.
VARIABLES = {
    "rank": "RANK SLURM_PROCID OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK HOROVOD_RANK MV2_COMM_WORLD_RANK GLOBAL_RANK "
    "RUNNER_RANK",
    "local_rank": "LOCAL_RANK SLURM_LOCALID OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID HOROVOD_LOCAL_RANK "
    "MV2_COMM_WORLD_LOCAL_RANK RUNNER_LOCAL_RANK",
    "size": "WORLD_SIZE SLURM_NTASKS SLURM_NPROCS OMPI_COMM_WORLD_SIZE PMI_SIZE HOROVOD_SIZE MV2_COMM_WORLD_SIZE "
    "RUNNER_WORLD",
    "local_size": "LOCAL_WORLD_SIZE SLURM_NTASKS_PER_NODE OMPI_COMM_WORLD_LOCAL_SIZE HOROVOD_LOCAL_SIZE "
    "SLURM_GPUS_ON_NODE",
}
# Names of variables, parameters and attributes that are given no value which could be followed.
NAMES = {
    "local_rank": "local_?rank|local_?id|rank_?local",
    "rank": "((global|world|ddp|my|node_global)_?)?rank",
    "size": "world_?size|world|num_?ranks|n_?ranks|num_?replicas|ddp_world_size",
    "local_size": "local_?size|local_?world_?size",
    "root": "(is_?)?(main|master|root|chief|primary|rank_?(0|zero))(_?(process|rank|worker|proc|node))?"
    "|is_?(first|head)(_?rank)?",
}
ENTRIES = ("main", "run", "train", "worker", "main_worker")
ROOT_DECORATORS = "*(rank_zero_only|main_process_only|on_main_process|master_only|only_rank_?0|rank0_only)"
# What to write for a step: with torch.distributed, with Horovod for PyTorch, and for TensorFlow.
_WRAP = "model = DistributedDataParallel(model, device_ids=[local_rank])"
FIXES = {
    1: ('import torch.distributed as dist; dist.init_process_group("nccl")  # before DistributedDataParallel',
        "import horovod.torch as hvd; hvd.init()  # before any other call of Horovod",
        "import horovod.tensorflow.keras as hvd; hvd.init()  # before any other call of Horovod"),
    2: ('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        "torch.cuda.set_device(hvd.local_rank())",
        'gpus = tf.config.list_physical_devices("GPU"); '
        'tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")'),
    3: ("DataLoader(dataset, sampler=DistributedSampler(dataset))",
        "sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank()); "
        "DataLoader(dataset, sampler=sampler)",
        "dataset = dataset.shard(hvd.size(), hvd.rank())  # before shuffle and batch"),
    4: ("lr = base_lr * dist.get_world_size()", "lr = base_lr * hvd.size(), with a warm-up of some epochs", ""),
    5: (_WRAP,
        "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())",
        "optimizer = hvd.DistributedOptimizer(optimizer)  # with a tape: tape = hvd.DistributedGradientTape(tape)"),
    6: (f"{_WRAP}  # does it",
        "hvd.broadcast_parameters(model.state_dict(), root_rank=0); "
        "hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
        "callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), ...]"),
    7: ("if dist.get_rank() == 0: {}", "if hvd.rank() == 0: {}", ""),
    8: ("dist.all_reduce(loss, op=dist.ReduceOp.AVG)  # on every rank, before rank 0 prints",
        'loss = hvd.allreduce(loss, name="loss")  # on every rank, before rank 0 prints',
        "callbacks = [..., hvd.callbacks.MetricAverageCallback()]"),
}  # fmt: skip
_HOROVOD = re.compile(r"\Ahorovod\.(torch|tensorflow\.keras|tensorflow|keras|mxnet)\.(?=.)")
_KERAS = re.compile(r"\A(tensorflow\.(compat\.v[12]\.)?(python\.)?keras|tf_keras|keras\.api|keras)\.(?=.)")


def canonical(path: str) -> str:
    """One spelling for the names of Horovod, torch.distributed and Keras."""
    if path.startswith("torch.distributed.") and path.count(".") == 2:
        return f"dist.{path.rpartition('.')[2]}"
    return _KERAS.sub("keras.", _HOROVOD.sub("hvd.", path))


@cache
def matches(patterns: str, name: str) -> bool:
    """Whether a name is one of a row of CALLS, given by its key, or of these patterns."""
    either = CALLS.get(patterns, patterns).replace(".", r"\.").replace("*", ".*").split()
    return any(re.fullmatch(each, name) for each in either)


@cache
def meaning(name: str) -> frozenset[str]:
    """The tags of a name that nothing else is known of: a rank, a size, or what is true on rank 0."""
    tags = {tag for tag, pattern in NAMES.items() if re.fullmatch(f"_?({pattern})", name, re.IGNORECASE)}
    return frozenset(tags | {"exact"} if tags else ())


def variable(name: object) -> str:
    """The tag of an environment variable; empty for one of no launcher."""
    return next((tag for tag, text in VARIABLES.items() if name in text.split()), "")
