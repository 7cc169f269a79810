"""Each rule, by a change of a script that is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.linting.check import Report, check

HOROVOD = """
import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

hvd.init()
torch.cuda.set_device(hvd.local_rank())
dataset = make_dataset()
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=32, sampler=sampler)
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for epoch in range(9):
    sampler.set_epoch(epoch)
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        total += loss.item()
    mean = hvd.allreduce(torch.tensor(total))
    if hvd.rank() == 0:
        print("loss", mean.item())
        torch.save(model.state_dict(), "last.pt")
"""
DDP = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)
model = DDP(Net().to(local_rank), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * dist.get_world_size())
for epoch in range(9):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "last.pt")
"""
KERAS = """
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
data = tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank()).shuffle(1000).batch(32)
model = tf.keras.Sequential([tf.keras.layers.Dense(10)])
opt = tf.keras.optimizers.Adam(0.001 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
model.compile(optimizer=opt, loss="mse")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("last.h5"))
model.fit(data, epochs=3, callbacks=callbacks)
"""
LOADERS = (
    "samplers = {name: DistributedSampler(dataset[name], shuffle=name == 'train') for name in ('train', 'val')}\n"
    "loaders = {name: DataLoader(dataset[name], sampler=samplers[name]) for name in ('train', 'val')}"
)
# FSDP divides the model, and the optimizer is made before that.
FSDP_LATE = DDP.replace("import DistributedDataParallel as DDP", "import DistributedDataParallel").replace(
    "model = DDP(Net().to(local_rank), device_ids=[local_rank])\n",
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "class Net(torch.nn.Module): pass\nmodel = Net()\n",
)
FSDP_LATE = FSDP_LATE.replace("for epoch", "model = FSDP(model)\nfor epoch").replace("    if dist.get_rank() == 0:", (
    "    state = model.state_dict()\n    if dist.get_rank() == 0:"
)).replace("model.module.state_dict()", "state")  # fmt: skip
FSDP = FSDP_LATE.replace("model = Net()\n", "model = FSDP(Net())\n").replace("model = FSDP(model)\n", "")
SCRIPTS = {"horovod": HOROVOD, "ddp": DDP, "keras": KERAS, "fsdp": FSDP}


def checked(directory: Path, text: str) -> Report:
    path = directory / "train.py"
    path.write_text(text)
    return check(path)


def states(report: Report) -> dict[int, str]:
    """The state of each step that is not ok."""
    return {row.step: row.finding.state for row in report.rows if row.finding.state != "ok"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_to_change_are_right(tmp_path: Path, name: str) -> None:
    assert states(checked(tmp_path, SCRIPTS[name])) == {}


# the script, what is replaced, by what, the step, its state
MISTAKES: dict[str, tuple[str, str, str, int, str]] = {
    "a barrier of rank 0": ("ddp", "        torch.save", "        dist.barrier()\n        torch.save", 7, "wrong"),
    "a checkpoint of parts on rank 0": (
        "ddp",
        "        torch.save(",
        "        import torch.distributed.checkpoint as dcp; dcp.save(s)\n        torch.save(",
        7,
        "wrong",
    ),
    "the state of FSDP on rank 0": ("fsdp", "torch.save(state", "torch.save(model.state_dict()", 7, "wrong"),
    "an optimizer of the model before FSDP": ("fsdp", FSDP, FSDP_LATE, 5, "wrong"),
    "a second model that is not wrapped": (
        "ddp",
        DDP,
        DDP.replace("Net()", "torch.nn.Linear(4, 4)")
        .replace("for epoch", "head = torch.nn.Linear(4, 1)\nsecond = torch.optim.SGD(head.parameters())\nfor epoch")
        .replace("        optimizer.step()", "        optimizer.step()\n        second.step()"),
        5,
        "wrong",
    ),
    "a compiled model is wrapped, and another trained": (
        "ddp",
        DDP,
        DDP.replace("model = DDP(Net().to(local_rank)", "net = Net()\nmodel = DDP(torch.compile(net)").replace(
            "criterion(model(x)", "criterion(net(x)"
        ),
        5,
        "wrong",
    ),
    "no init": ("horovod", "hvd.init()", "pass", 1, "missing"),
    "init after the rank is asked for": ("horovod", "hvd.init()\n", "r = hvd.rank()\nhvd.init()\n", 1, "wrong"),
    "init on rank 0 only": ("ddp", "dist.init", "if os.environ['RANK'] == 0: dist.init", 1, "wrong"),
    "no process group": ("ddp", 'dist.init_process_group("nccl")', "pass", 1, "missing"),
    "the model before the process group": (
        "ddp",
        'dist.init_process_group("nccl")\n',
        'early = DDP(Net())\ndist.init_process_group("nccl")\n',
        1,
        "wrong",
    ),
    "GPU 0": ("horovod", "set_device(hvd.local_rank())", "set_device(0)", 2, "wrong"),
    "GPU 0 by name": ("ddp", "set_device(local_rank)", "set_device('cuda:0')", 2, "wrong"),
    "GPU by the rank": ("ddp", 'os.environ["LOCAL_RANK"]', 'os.environ["RANK"]', 2, "wrong"),
    "no GPU": ("horovod", "torch.cuda.set_device(hvd.local_rank())", "pass", 2, "missing"),
    "a GPU of a configuration": ("horovod", "hvd.local_rank()", "cfg.gpu", 2, "cannot tell"),
    "every GPU": ("keras", 'tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")', "pass", 2, "missing"),
    "the first GPU": ("keras", "gpus[hvd.local_rank()]", "gpus[0]", 2, "wrong"),
    "no sampler": ("ddp", ", sampler=sampler", ", shuffle=True", 3, "wrong"),
    "parts of the node": ("horovod", "num_replicas=hvd.size()", "num_replicas=hvd.local_size()", 3, "wrong"),
    "the part of the local rank": ("horovod", "rank=hvd.rank())", "rank=hvd.local_rank())", 3, "wrong"),
    "a sampler that asks torch.distributed": ("horovod", ", num_replicas=hvd.size(), rank=hvd.rank()", "", 3, "wrong"),
    "part 0 for all": ("keras", "hvd.rank())", "0)", 3, "wrong"),
    "number and part exchanged": (
        "keras",
        "shard(hvd.size(), hvd.rank())",
        "shard(hvd.rank(), hvd.size())",
        3,
        "wrong",
    ),
    "no shard": ("keras", ".shard(hvd.size(), hvd.rank())", "", 3, "wrong"),
    "no shard, and a part of the steps": (
        "keras",
        ".shard(hvd.size(), hvd.rank())",
        ".take(1000 // hvd.size())",
        3,
        "cannot tell",
    ),
    "no set_epoch": ("ddp", "    sampler.set_epoch(epoch)\n", "", 3, "wrong"),
    "sampler and shuffle": ("ddp", "sampler=sampler)", "sampler=sampler, shuffle=True)", 3, "wrong"),
    "the rate as it was": ("horovod", "0.1 * hvd.size()", "0.1", 4, "wrong"),
    "the rate divided": ("horovod", "0.1 * hvd.size()", "0.1 / hvd.size()", 4, "wrong"),
    "the rate by the node": ("keras", "0.001 * hvd.size()", "0.001 * hvd.local_size()", 4, "wrong"),
    "the rate under DDP": ("ddp", "0.1 * dist.get_world_size()", "0.1", 4, "cannot tell"),
    "no wrapper": ("keras", "opt = hvd.DistributedOptimizer(opt)", "pass", 5, "missing"),
    "a wrapper that is not kept": ("horovod", "optimizer = hvd.Dist", "hvd.Dist", 5, "wrong"),
    "a wrapper that is not used": ("horovod", "optimizer = hvd.Dist", "wrapped = hvd.Dist", 5, "wrong"),
    "no DDP": ("ddp", "DDP(Net().to(local_rank), device_ids=[local_rank])", "Net().to(local_rank)", 5, "missing"),
    "Keras 3": ("keras", 'os.environ["TF_USE_LEGACY_KERAS"] = "1"\n', "import keras\n", 5, "wrong"),
    "no parameters": ("horovod", "hvd.broadcast_parameters(model.state_dict(), root_rank=0)", "pass", 6, "missing"),
    "no optimizer state": ("horovod", "hvd.broadcast_optimizer_state(optimizer, root_rank=0)", "pass", 6, "missing"),
    "optimizer state in a method that only a library may call": (
        "horovod",
        "hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
        "class Way:\n    def use(self): hvd.broadcast_optimizer_state(optimizer, root_rank=0)\nlibrary.run(Way())",
        6,
        "cannot tell",
    ),
    "each its own root": ("horovod", "model.state_dict(), root_rank=0", "model.state_dict(), hvd.rank()", 6, "wrong"),
    "a broadcast by rank 0 alone": (
        "horovod",
        "hvd.broadcast_parameters(",
        "if hvd.rank() == 0: hvd.broadcast_parameters(",
        6,
        "wrong",
    ),
    "a callback that fit does not get": ("keras", ", callbacks=callbacks", "", 6, "wrong"),
    "a checkpoint of every rank": ("horovod", "    if hvd.rank() == 0:", "    if True:", 7, "wrong"),
    "a checkpoint of all but rank 0": ("ddp", "dist.get_rank() == 0", "dist.get_rank() != 0", 7, "wrong"),
    "a checkpoint of each node": ("ddp", "dist.get_rank() == 0", "local_rank == 0", 7, "cannot tell"),
    "an average of rank 0 alone": (
        "horovod",
        "    mean = hvd.allreduce",
        "    if hvd.rank() == 0: mean = hvd.allreduce",
        8,
        "wrong",
    ),
    "an average that is not used": (
        "horovod",
        "mean = hvd.allreduce",
        "mean = torch.tensor(total); hvd.allreduce",
        8,
        "wrong",
    ),
    "an average by its place": ("horovod", "torch.tensor(total))", "torch.tensor(total), True)", 8, "wrong"),
    "average=": ("horovod", "torch.tensor(total))", "torch.tensor(total), average=True)", 8, "wrong"),
    "no average": ("horovod", "hvd.allreduce(torch.tensor(total))", "torch.tensor(total)", 8, "wrong"),
    "an average that is a barrier": (
        "horovod",
        "hvd.allreduce(torch.tensor(total))",
        "torch.tensor(total); hvd.allreduce(torch.tensor([0]).cuda(), name='wait')",
        8,
        "wrong",
    ),
    "options of the loader without a sampler": (
        "ddp",
        "batch_size=32, sampler=sampler)",
        "**dict(batch_size=32, **{'shuffle': True}))",
        3,
        "wrong",
    ),
    "options that a function hands on": (
        "ddp",
        "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
        "def make(data, **options): return DataLoader(data, **options)\nloader = make(dataset, batch_size=32)",
        3,
        "wrong",
    ),
    "the model inside is trained": ("ddp", "model(x)", "model.module(x)", 5, "wrong"),
    "the model inside, under another name, is trained": (
        "ddp",
        DDP,
        DDP.replace("for epoch", "inside = model.module\nfor epoch").replace("model(x)", "inside(x)"),
        5,
        "wrong",
    ),
    "an optimizer before fully_shard": (
        "fsdp",
        FSDP,
        FSDP_LATE.replace("import FullyShardedDataParallel as FSDP", "import fully_shard").replace(
            "model = FSDP(model)", "fully_shard(model)"
        ),
        5,
        "wrong",
    ),
    "the state of all parts on rank 0": (
        "fsdp",
        "        torch.save(",
        "        from torch.distributed.checkpoint.state_dict import get_model_state_dict\n"
        "        full = get_model_state_dict(model)\n        torch.save(",
        7,
        "wrong",
    ),
    "samplers by name, without set_epoch": (
        "ddp",
        DDP,
        DDP.replace("sampler = DistributedSampler(dataset)", LOADERS)
        .replace("loader = DataLoader(dataset, batch_size=32, sampler=sampler)\n", "")
        .replace("    sampler.set_epoch(epoch)\n", "")
        .replace("in loader:", "in loaders['train']:"),
        3,
        "wrong",
    ),
    "a list of the first GPU": ("keras", "gpus[hvd.local_rank()]", "[gpus[0]]", 2, "wrong"),
    "the GPU by a rank out of one comprehension": (
        "ddp",
        'local_rank = int(os.environ["LOCAL_RANK"])',
        'local_rank, me = [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK")]',
        2,
        "wrong",
    ),
    "the GPU by the first of several variables": (
        "ddp",
        'local_rank = int(os.environ["LOCAL_RANK"])',
        "def first(*names):\n    for name in names:\n        if name in os.environ: return int(os.environ[name])\n"
        'local_rank = first("RANK", "SLURM_PROCID")',
        2,
        "wrong",
    ),
    "a schedule whose steps alone depend on the ranks": (
        "keras",
        "0.001 * hvd.size()",
        "tf.keras.optimizers.schedules.CosineDecay(0.1, 9000 // hvd.size())",
        4,
        "wrong",
    ),
    "no callback for metrics": ("keras", ", hvd.callbacks.MetricAverageCallback()", "", 8, "missing"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(tmp_path: Path, mistake: str) -> None:
    script, old, new, step, state = MISTAKES[mistake]
    assert old in SCRIPTS[script]
    report = checked(tmp_path, SCRIPTS[script].replace(old, new, 1))
    rows = [row for row in report.rows if row.step == step]
    assert [row.finding.state for row in rows] == [state]
    assert all(row.finding.reason for row in rows)


# the script, what is replaced, by what: all of these are right
SOUND: dict[str, tuple[str, str, str]] = {
    "another name": ("horovod", "import horovod.torch as hvd", "from horovod import torch as hvd"),
    "a name for the rank": ("horovod", "if hvd.rank() == 0", "me = hvd.rank()\n    if not me"),
    "a function for the root": (
        "ddp",
        "if dist.get_rank() == 0",
        "def is_it(): return dist.get_rank() == 0\n    if is_it()",
    ),
    "the rank by the number of GPUs": (
        "ddp",
        'int(os.environ["LOCAL_RANK"])',
        "dist.get_rank() % torch.cuda.device_count()",
    ),
    "visible devices": (
        "horovod",
        "torch.cuda.set_device(hvd.local_rank())",
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = str(hvd.local_rank()); torch.cuda.set_device(0)",
    ),
    "a batch that is divided": (
        "horovod",
        HOROVOD,
        HOROVOD.replace("batch_size=32", "batch_size=32 // hvd.size()").replace("lr=0.1 * hvd.size()", "lr=0.1"),
    ),
    "a file of each rank": (
        "horovod",
        'print("loss", mean.item())\n        torch.save(model.state_dict(), "last.pt")',
        'print("loss", mean.item())\n    torch.save(model.state_dict(), f"last-{hvd.rank()}.pt")',
    ),
    "the rank by node and GPU": (
        "ddp",
        "if dist.get_rank() == 0",
        "mine = node * torch.cuda.device_count() + local_rank\n    if mine == 0",
    ),
    "indices by rank": (
        "horovod",
        "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
        "part = Subset(dataset, range(hvd.rank(), len(dataset), hvd.size()))\nloader = DataLoader(part)",
    ),
    "rank 0 gathers in a branch of its own": (
        "ddp",
        "    if dist.get_rank() == 0",
        "    if dist.get_rank() == 0: dist.gather(loss, parts)\n    else: dist.gather(loss)\n"
        "    if dist.get_rank() == 0",
    ),
    "rank 0 sends its model in a branch of its own": (
        "horovod",
        "hvd.broadcast_parameters(model.state_dict(), root_rank=0)",
        "if hvd.rank() == 0: hvd.broadcast_object(model.state_dict(), root_rank=0)\n"
        "else: model.load_state_dict(hvd.broadcast_object(None, root_rank=0))",
    ),
    "rank 0 downloads first": (
        "ddp",
        "sampler =",
        "if dist.get_rank() != 0: dist.barrier()\ndataset = load()\n"
        "if dist.get_rank() == 0: dist.barrier()\nsampler =",
    ),
    "a picture and what is thrown away": (
        "ddp",
        "    if dist.get_rank() == 0",
        "    image.save(out, format='PNG'); open(os.devnull, 'w'); open(f, 'wb')\n    if dist.get_rank() == 0",
    ),
    "a checkpoint in memory": (
        "ddp",
        "    if dist.get_rank() == 0",
        "    import io; buffer = io.BytesIO(); torch.save(model.state_dict(), buffer)\n    if dist.get_rank() == 0",
    ),
    "a barrier of a group": ("ddp", "        torch.save", "        dist.barrier(group=writers)\n        torch.save"),
    "a checkpoint that one rank writes whole": (
        "ddp",
        "        torch.save(",
        "        import torch.distributed.checkpoint as dcp; dcp.save(s, no_dist=True)\n        torch.save(",
    ),
    "arguments in a dictionary": (
        "ddp",
        "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
        "options = {'shuffle': True}\nif distributed:\n    options['sampler'] = sampler\n"
        "    options.update({'shuffle': False})\nloader = DataLoader(dataset, **options)",
    ),
    "parts by webdataset": (
        "ddp",
        DDP,
        DDP.replace("import os\n", "import os\nimport webdataset as wds\n")
        .replace("sampler = DistributedSampler(dataset)\n", "")
        .replace("    sampler.set_epoch(epoch)\n", "")
        .replace(
            "DataLoader(dataset, batch_size=32, sampler=sampler)",
            "wds.WebLoader(wds.WebDataset(urls, nodesplitter=wds.split_by_node), batch_size=32)",
        ),
    ),
    "an optimizer of a part of the wrapped model": (
        "ddp",
        "model = DDP(Net()",
        "head = torch.nn.Linear(4, 4)\nmodel = DDP(torch.nn.Sequential(torch.nn.Linear(4, 4), head)",
    ),
    "FSDP that keeps the parameters": (
        "ddp",
        DDP,
        FSDP_LATE.replace("FSDP(model)", "FSDP(model, use_orig_params=True)"),
    ),
    "an average that is a barrier, and one that is used": (
        "horovod",
        "loader =",
        "hvd.allreduce(torch.tensor(0), name='barrier')\nloader =",
    ),
    "a name for a package that may be missing": (
        "horovod",
        "import horovod.torch as hvd",
        "try:\n    import horovod.torch as hvd\nexcept ImportError:\n    hvd = None",
    ),
    "a class for a package that may be missing": (
        "horovod",
        "import horovod.torch as hvd",
        "try:\n    import horovod.torch as hvd\nexcept ImportError:\n    class hvd:\n"
        "        rank = size = lambda: 1",
    ),
    "options of the loader that get a sampler": (
        "ddp",
        "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
        "options = {'batch_size': 32}\noptions['sampler'] = sampler\nloader = DataLoader(dataset, **options)",
    ),
    "options of the loader, in one of two cases": (
        "ddp",
        "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
        "options = {'sampler': sampler} if config else {'shuffle': True}\nloader = DataLoader(dataset, **options)",
    ),
    "options that a function hands on": (
        "ddp",
        "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
        "def make(data, **options): return DataLoader(data, **options)\nloader = make(dataset, sampler=sampler)",
    ),
    "one of several variables": (
        "ddp",
        'int(os.environ["LOCAL_RANK"])',
        'next(int(os.environ[name]) for name in ("SLURM_LOCALID", "LOCAL_RANK") if name in os.environ)',
    ),
    "ranks out of one comprehension": (
        "ddp",
        'local_rank = int(os.environ["LOCAL_RANK"])',
        'me, local_rank = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK"))',
    ),
    "the model inside, beside the training": (
        "ddp",
        "        loss = criterion",
        "        with torch.no_grad(): model.module(x)\n        loss = criterion",
    ),
    "samplers and loaders by name": (
        "ddp",
        DDP,
        DDP.replace("sampler = DistributedSampler(dataset)", LOADERS)
        .replace("loader = DataLoader(dataset, batch_size=32, sampler=sampler)\n", "")
        .replace("sampler.set_epoch", "samplers['train'].set_epoch")
        .replace("in loader:", "in loaders['train']:"),
    ),
    "ranks in a dictionary": (
        "ddp",
        'int(os.environ["LOCAL_RANK"])',
        '{name: int(os.environ[name]) for name in ("RANK", "LOCAL_RANK")}["LOCAL_RANK"]',
    ),
    "a package that a function imports for all": (
        "horovod",
        "import horovod.torch as hvd\nimport torch",
        "import torch\nhvd = None\ndef start():\n    global hvd\n    import horovod.torch as hvd\nstart()",
    ),
    "a schedule whose steps are divided": (
        "keras",
        "0.001 * hvd.size()",
        "tf.keras.optimizers.schedules.PiecewiseConstantDecay([900 // hvd.size()], [0.1 * hvd.size(), 0.01])",
    ),
    "a schedule of the unwrapped optimizer": (
        "horovod",
        "hvd.broadcast_parameters(",
        "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3); schedule.step()\nhvd.broadcast_parameters(",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_what_is_right_in_another_way_is_no_mistake(tmp_path: Path, name: str) -> None:
    script, old, new = SOUND[name]
    assert old in SCRIPTS[script]
    assert states(checked(tmp_path, SCRIPTS[script].replace(old, new, 1))) == {}


@pytest.mark.parametrize(
    "line",
    [
        "from lightning.pytorch import Trainer; Trainer().fit(m)",
        "import pytorch_lightning as pl; pl.Trainer().fit(m)",
        "from accelerate import Accelerator; a = Accelerator()", "from transformers import Trainer; Trainer(m).train()",
        "import deepspeed; e = deepspeed.initialize(model=m)",
        "import pytorch_lightning as pl\nclass M(pl.LightningModule):\n    def training_step(self, b): return 1",
    ],
)  # fmt: skip
def test_a_framework_that_does_it_itself_is_not_judged(tmp_path: Path, line: str) -> None:
    report = checked(tmp_path, f"import torch\n{line}\nloss.backward()\ntorch.save(m, 'x')\n")
    assert report.does_it_itself
    assert set(states(report).values()) == {"cannot tell"}
    assert report.exit_code == 0


def test_a_module_beside_the_script_is_read_and_a_broken_one_leaves_it_open(tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text("import horovod.torch as hvd\ndef go():\n    hvd.init()\n")
    text = HOROVOD.replace("hvd.init()", "start.go()").replace("import torch\n", "import torch\nimport start\n", 1)
    assert states(checked(tmp_path, text)) == {}
    (tmp_path / "start.py").write_text("def go(:\n")
    assert states(checked(tmp_path, text))[1] == "cannot tell"


def test_a_mistake_in_a_module_is_shown_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "saving.py").write_text("import torch\ndef save(model):\n    torch.save(model, 'last.pt')\n")
    text = HOROVOD.replace('        torch.save(model.state_dict(), "last.pt")', "    saving.save(model)")
    report = checked(tmp_path, text.replace("import torch\n", "import torch\nimport saving\n", 1))
    assert [row.finding.place for row in report.rows if row.finding.state == "wrong"] == ["saving.py:3"]


def test_what_trains_nothing_is_not_judged(tmp_path: Path) -> None:
    report = checked(tmp_path, "import torch\nclass Net(torch.nn.Module):\n    pass\n")
    assert set(states(report).values()) == {"cannot tell"}


def test_a_script_of_one_process_lacks_every_step(tmp_path: Path) -> None:
    made = "import torch\nm = Net().cuda()\no = torch.optim.SGD(m.parameters(), 0.1)\n"
    loop = "for x in torch.utils.data.DataLoader(d):\n    m(x).backward()\n    o.step()\ntorch.save(m, 'x')\n"
    found = states(checked(tmp_path, made + loop))
    assert {found[step] for step in (1, 2, 3, 4, 5, 6, 7)} <= {"missing", "wrong"}


def test_who_trains_is_named_where_a_framework_does_the_steps(tmp_path: Path) -> None:
    report = checked(tmp_path, "from transformers import Trainer\nTrainer(model, arguments).train()\n")
    assert {row.finding.reason for row in report.rows} == {"Hugging Face's Trainer does this itself"}


def test_a_class_that_a_table_names_is_read(tmp_path: Path) -> None:
    plain = "import horovod.torch as hvd\nclass Plain:\n    def __init__(self):\n        hvd.init()\n"
    (tmp_path / "ways.py").write_text(plain)
    text = HOROVOD.replace("hvd.init()", "{'plain': ways.Plain}[name]()")
    text = text.replace("import torch\n", "import torch\nimport ways\n", 1)
    assert 1 not in states(checked(tmp_path, text))


@pytest.mark.parametrize("change", ["options.update(config)", "options[key] = value", "options.setdefault(*pair)"])
def test_options_that_are_not_all_known_leave_the_loader_open(tmp_path: Path, change: str) -> None:
    made = f"options = dict(batch_size=32)\n{change}\nloader = DataLoader(dataset, **options)"
    script = DDP.replace("loader = DataLoader(dataset, batch_size=32, sampler=sampler)", made)
    assert states(checked(tmp_path, script)) == {3: "cannot tell"}


# A benchmark: one batch, again and again.
SYNTHETIC = (
    HOROVOD.replace("loader = DataLoader(dataset, batch_size=32, sampler=sampler)", "x = torch.randn(32, 8)")
    .replace("for x, y in loader", "for step in range(100)")
    .replace("lr=0.1 * hvd.size()", "lr=0.1")
    .replace("criterion(model(x.cuda()), y.cuda())", "model(x.cuda()).sum()")
)


def test_the_rate_of_a_benchmark_without_data_is_left_open(tmp_path: Path) -> None:
    assert states(checked(tmp_path, SYNTHETIC)).get(4) == "cannot tell"
    for reads in ("data = np.memmap('x.bin')", "data = pd.read_csv('x.csv')"):
        script = SYNTHETIC.replace(
            "x = torch.randn(32, 8)", f"import numpy as np, pandas as pd\n{reads}\nx = data[:32]"
        )
        assert states(checked(tmp_path, script)).get(4) == "wrong"


def test_a_method_of_something_unknown_is_read_by_its_telling_name(tmp_path: Path) -> None:
    meter = "class Meter:\n    def average_over_ranks(self):\n        return hvd.allreduce(self.total)\n"
    text = HOROVOD.replace("hvd.init()", f"{meter}hvd.init()").replace(
        "mean = hvd.allreduce(torch.tensor(total))", "mean = meters['loss'].average_over_ranks()"
    )
    assert 8 not in states(checked(tmp_path, text))


def test_a_name_speaks_for_a_value_that_cannot_be_followed(tmp_path: Path) -> None:
    text = DDP.replace('local_rank = int(os.environ["LOCAL_RANK"])', "rank, local_rank = ask_the_scheduler()")
    assert states(checked(tmp_path, text)) == {}


def test_a_module_whose_training_nothing_calls_lacks_nothing(tmp_path: Path) -> None:
    train = "def train(model, loader):\n    for x in loader:\n        model(x).backward()\n"
    assert checked(tmp_path, f"import torch.distributed as dist\n{train}").exit_code == 0


def test_a_property_is_followed(tmp_path: Path) -> None:
    kind = "class Place:\n    @property\n    def is_main(self):\n        return dist.get_rank() {} 0\nplace = Place()\n"
    text = DDP.replace("if dist.get_rank() == 0", "if place.is_main")
    for operator, expected in (("==", {}), ("!=", {7: "wrong"})):
        changed = text.replace("optimizer = torch", f"{kind.format(operator)}optimizer = torch", 1)
        assert states(checked(tmp_path, changed)) == expected


def test_a_function_that_nothing_names_does_nothing(tmp_path: Path) -> None:
    text = HOROVOD.replace("mean = hvd.allreduce(torch.tensor(total))", "mean = torch.tensor(total)")
    report = checked(
        tmp_path, text.replace("hvd.init()", "def mean_of(x):\n    return hvd.allreduce(x)\nhvd.init()", 1)
    )
    assert states(report) == {8: "wrong"}


def test_a_model_on_the_ranks_device_is_no_file_of_the_rank(tmp_path: Path) -> None:
    text = DDP.replace("if dist.get_rank() == 0", "if True").replace(".to(local_rank)", ".to(device)")
    report = checked(tmp_path, text.replace("sampler =", 'device = torch.device("cuda", local_rank)\nsampler =', 1))
    assert states(report) == {7: "wrong"}


def test_a_log_of_a_callback_that_nothing_is_seen_to_make_is_left_open(tmp_path: Path) -> None:
    writer = "from torch.utils.tensorboard import SummaryWriter"
    callback = f"class Callback(Base):\n    def __init__(self):\n        {writer}\n        SummaryWriter()\n"
    assert states(checked(tmp_path, f"from tool import Base\n{DDP}{callback}")) == {7: "cannot tell"}
    assert states(checked(tmp_path, f"from tool import Base\n{DDP}{callback}Callback()\n")) == {7: "wrong"}


def test_a_log_that_rays_driver_may_write_is_left_open(tmp_path: Path) -> None:
    text = f"import horovod.ray\n{HOROVOD}from torch.utils.tensorboard import SummaryWriter\nSummaryWriter()\n"
    assert states(checked(tmp_path, text)) == {7: "cannot tell"}
