"""The rules: by whole scripts of a reader who had not seen them, and each by a change of a script that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.core.errors import Exit
from runner.linting.check import Report, check

SCRIPTS = Path(__file__).resolve().parents[2] / "support" / "training_scripts"
RIGHT = {
    name: (SCRIPTS / "correct" / f"{file}.py").read_text()
    for name, file in {"horovod": "c30", "ddp": "c31", "keras": "c32", "fsdp": "c33"}.items()
}


class Edit(msgspec.Struct, frozen=True):
    """Whole lines of a correct script, which stand in it once, and what stands there instead."""

    old: str
    new: str


class Mistake(msgspec.Struct, frozen=True):
    """A correct script with something wrong; ``steps``: those that are named."""

    mistake: str
    of: str
    steps: list[int]
    edits: list[Edit]

    def script(self) -> str:
        text = (SCRIPTS / "correct" / f"{self.of}.py").read_text()
        assert all(f"\n{text}".count(f"\n{edit.old}") == 1 for edit in self.edits), "an edit fits one place"
        places = sorted(((f"\n{text}".index(f"\n{edit.old}"), edit) for edit in self.edits), key=lambda each: -each[0])
        for start, edit in places:
            text = text[:start] + edit.new + text[start + len(edit.old) :]
        return text


WHOLE = msgspec.yaml.decode((SCRIPTS / "mistakes.yaml").read_bytes(), type=dict[str, Mistake])
assert len(WHOLE) >= 63


@pytest.mark.parametrize("path", sorted((SCRIPTS / "correct").glob("*.py")), ids=lambda path: path.stem)
def test_a_correct_script_raises_no_alarm(path: Path) -> None:
    report = check(path)
    assert [row for row in report.steps if row.state in ("missing", "wrong")] == []
    assert report.exit_code == Exit.GOOD


@pytest.mark.parametrize("name", WHOLE)
def test_a_mistake_is_named_by_its_step_and_no_other(name: str, tmp_path: Path) -> None:
    case = WHOLE[name]
    path = tmp_path / f"{name}.py"
    path.write_text(case.script())
    report = check(path)
    named = [row for row in report.steps if row.state in ("missing", "wrong")]
    assert [row.step for row in named] == case.steps, case.mistake
    assert all(row.reason and row.fix for row in named)
    assert report.exit_code == Exit.REFUSED


def checked(directory: Path, text: str) -> Report:
    path = directory / "train.py"
    path.write_text(text)
    return check(path)


def states(report: Report) -> dict[int, str]:
    """The state of each step that is not ok."""
    return {row.step: row.state for row in report.steps if row.state != "ok"}


def changed(script: str, *edits: str) -> str:
    """A script with pairs of what is replaced, and by what."""
    text = RIGHT[script]
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert old in text
        text = text.replace(old, new, 1)
    return text


LOADERS = (
    "samplers = {name: DistributedSampler(dataset[name], shuffle=name == 'train') for name in ('train', 'val')}\n"
    "loaders = {name: DataLoader(dataset[name], sampler=samplers[name]) for name in ('train', 'val')}"
)
# FSDP divides the model, and the optimizer is made before that.
DIVIDED_LATE = ("FSDP(Net())", "Net()", "for epoch", "model = FSDP(model)\nfor epoch")
PROPERTY = (
    "class Place:\n    @property\n    def is_main(self):\n        return dist.get_rank() {} 0\nplace = Place()\n"
    "optimizer ="
)
CALLBACK = (
    "from tool import Base\nclass Callback(Base):\n    def __init__(self):\n"
    "        from torch.utils.tensorboard import SummaryWriter\n        SummaryWriter()\n"
)
SAVES = '    if dist.get_rank() == 0:\n        torch.save(model.module.state_dict(), "last.pt")'
LOADER = "loader = DataLoader(dataset, batch_size=32, sampler=sampler)"
SET_DEVICE, DEVICE_IDS = "torch.cuda.set_device(local_rank)\n", "Net().to(local_rank), device_ids=[local_rank]"
# A set that is looked at and not trained on; what is trained on is divided by another package.
VALIDATED = (
    LOADER, "loader = library.batches(dataset{})\nval = DataLoader(others, batch_size=32)",
    "sampler = DistributedSampler(dataset)\n", "", "    sampler.set_epoch(epoch)\n", "",
    SAVES, f"    for x in val: model(x)\n{SAVES}",
)  # fmt: skip
GPUS = 'gpus = tf.config.list_physical_devices("GPU")\ntf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")\n'
LEGACY = 'os.environ["TF_USE_LEGACY_KERAS"] = "1"\nimport tensorflow as tf\n'
SESSION = (LEGACY, "import keras\nimport tensorflow as tf\n", GPUS,
           "config = tf.ConfigProto()\nconfig.gpu_options.visible_device_list = str(hvd.local_rank())\n"
           "tf.Session(config=config)\n")  # fmt: skip
FIT = 'model.compile(optimizer=opt, loss="mse")\n'
TAPE = (
    "for x, y in data:\n    with tf.GradientTape(persistent=True) as tape:\n        loss = model(x)\n{}"
    "    both = hvd.DistributedGradientTape(tape)\n    grads = both.gradient(loss, weights)\n{}"
    f"    opt.apply_gradients(zip(grads, weights))\n{FIT}"
)
# A second model, whose optimizer takes steps.
SECOND = ("sampler =", "class Net(torch.nn.Module): pass\nsampler =", "for epoch",
          "head = torch.nn.Linear(4, 4)\nown = torch.optim.SGD(head.parameters(), lr=0.1)\nfor epoch",
          "        optimizer.step()", "        optimizer.step()\n        {}")  # fmt: skip
STATE = "hvd.broadcast_optimizer_state(optimizer, root_rank=0)"
PARAMETERS = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
WRAP = "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())\n"
# A loop of TensorFlow's own, with what stands before and after its step.
STEPS = (
    "opt = hvd.DistributedOptimizer(opt)\n", "", ", callbacks=callbacks", "",
    FIT, "for x, y in data:\n    tape = hvd.DistributedGradientTape(tf.GradientTape())\n{}"
    "    opt.apply_gradients(zip(tape.gradient(loss, weights), weights))\n{}",
    "callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]\n",
    "callbacks = [hvd.callbacks.MetricAverageCallback()]\n",
)  # fmt: skip
SENT = "    hvd.broadcast_variables(model.variables, root_rank=0)\n"
SENT_STATE = "    hvd.broadcast_variables(opt.variables(), root_rank=0)\n"
# A benchmark: one batch, again and again.
WITHOUT_DATA = ("loader = DataLoader(dataset, batch_size=32, sampler=sampler)", "x = torch.randn(32, 8)",
                "for x, y in loader", "for step in range(100)", "lr=0.1 * hvd.size()", "lr=0.1",
                "criterion(model(x.cuda()), y.cuda())", "model(x.cuda()).sum()")  # fmt: skip
# the script, the step, its state, and pairs of what is replaced, and by what
MISTAKES: list[tuple[Any, ...]] = [
    ("ddp", 1, "wrong", "dist.init", "if os.environ['RANK'] == 0: dist.init"),
    ("ddp", 1, "wrong", "dist.init", "early = DDP(Net())\ndist.init"),
    ("ddp", 2, "wrong", "set_device(local_rank)", "set_device('cuda:0')"),
    ("horovod", 2, "cannot tell", "hvd.local_rank()", "cfg.gpu"),
    ("keras", 2, "wrong", "gpus[hvd.local_rank()]", "[gpus[0]]"),
    ("horovod", 3, "wrong", "num_replicas=hvd.size()", "num_replicas=hvd.local_size()"),
    ("horovod", 3, "wrong", ", num_replicas=hvd.size(), rank=hvd.rank()", ""),
    ("keras", 3, "wrong", "hvd.rank())", "0)"),
    ("keras", 3, "wrong", "shard(hvd.size(), hvd.rank())", "shard(hvd.rank(), hvd.size())"),
    ("keras", 3, "cannot tell", ".shard(hvd.size(), hvd.rank())", ".take(1000 // hvd.size())"),
    ("ddp", 3, "wrong", "sampler=sampler)", "sampler=sampler, shuffle=True)"),
    ("ddp", 3, "cannot tell", "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
     "options = dict(batch_size=32)\noptions.update(config)\nloader = DataLoader(dataset, **options)"),
    ("ddp", 3, "cannot tell", "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
     "options = {'num_workers': 1} if cuda else {}\nloader = DataLoader(dataset, shuffle=True, **options)"),
    ("horovod", 4, "wrong", "0.1 * hvd.size()", "0.1 / hvd.size()"),
    ("keras", 4, "wrong", "0.001 * hvd.size()", "0.001 * hvd.local_size()"),
    ("horovod", 5, "wrong", "optimizer = hvd.Dist", "hvd.Dist"),
    ("horovod", 5, "wrong", "optimizer = hvd.Dist", "wrapped = hvd.Dist"),
    ("ddp", 5, "wrong", "model(x)", "model.module(x)"),
    ("ddp", 5, "wrong", "for epoch in range(9):", "model = model.module\nfor epoch in range(9):"),
    ("horovod", 6, "missing", "hvd.broadcast_optimizer_state(optimizer, root_rank=0)", "pass"),
    ("horovod", 6, "cannot tell", "hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
     "class Way:\n    def use(self): hvd.broadcast_optimizer_state(optimizer, root_rank=0)\nlibrary.run(Way())"),
    ("horovod", 6, "wrong", "model.state_dict(), root_rank=0", "model.state_dict(), hvd.rank()"),
    ("keras", 6, "wrong", ", callbacks=callbacks", ""),
    ("ddp", 7, "wrong", "dist.get_rank() == 0", "dist.get_rank() != 0"),
    ("ddp", 7, "cannot tell", "dist.get_rank() == 0", "local_rank == 0"),
    ("fsdp", 7, "wrong", "        torch.save(",
     "        from torch.distributed.checkpoint.state_dict import get_model_state_dict\n"
     "        full = get_model_state_dict(model)\n        torch.save("),
    ("horovod", 7, "cannot tell", "import torch\n",
     "import torch, horovod.ray\nfrom torch.utils.tensorboard import SummaryWriter\nSummaryWriter()\n"),
    ("horovod", 8, "wrong", "mean = hvd.allreduce", "mean = torch.tensor(total); hvd.allreduce"),
    ("horovod", 8, "wrong", "hvd.allreduce(torch.tensor(total))",
     "torch.tensor(total); hvd.allreduce(torch.tensor([0]).cuda(), name='wait')"),
    ("fsdp", 5, "wrong", *DIVIDED_LATE),
    ("fsdp", 5, "wrong", *DIVIDED_LATE, "as FSDP", "as FSDP, fully_shard", "model = FSDP(model)", "fully_shard(model)"),
    ("ddp", 7, "wrong", "if dist.get_rank() == 0", "if place.is_main", "optimizer =", PROPERTY.format("!=")),
    ("horovod", 8, "wrong", "mean = hvd.allreduce(torch.tensor(total))", "mean = torch.tensor(total)", "hvd.init()",
     "def mean_of(x):\n    return hvd.allreduce(x)\nhvd.init()"),
    ("ddp", 7, "wrong", "if dist.get_rank() == 0", "if True", ".to(local_rank)", ".to(device)", "sampler =",
     'device = torch.device("cuda", local_rank)\nsampler ='),
    ("keras", 3, "cannot tell", ".shard(hvd.size(), hvd.rank())", "", "epochs=3", "epochs=12 // hvd.size()"),
    ("ddp", 3, "cannot tell", *(each.format("") for each in VALIDATED)),
    ("ddp", 3, "wrong", *(each.format("") for each in VALIDATED), "library.batches", "DataLoader"),
    ("ddp", 2, "wrong", "set_device(local_rank)", 'set_device("cuda:" + str(dist.get_rank()))'),
    ("ddp", 2, "wrong", SET_DEVICE, "", DEVICE_IDS, "Net(), device_ids=[0]"),
    ("ddp", 2, "cannot tell", SET_DEVICE, "", DEVICE_IDS, "Net(), device_ids=[config.gpu]"),
    ("keras", 5, "wrong", LEGACY, "import keras\nimport tensorflow as tf\n"),
    ("keras", 5, "wrong", FIT, TAPE.format("", "    tape.gradient(loss, x)\n"),
     "opt = hvd.DistributedOptimizer(opt)\n", ""),
    ("horovod", 6, "missing", "momentum=0.9", "**settings",
     "hvd.broadcast_optimizer_state(optimizer, root_rank=0)", "pass"),
    ("ddp", 7, "wrong", "dist.get_rank() == 0", "dist.get_rank() >= 1"),
    ("ddp", 7, "wrong", "dist.get_rank() == 0", "dist.get_rank() in (1, 2)"),
    ("ddp", 7, "wrong", SAVES, "    dist.get_rank() == 0 or torch.save(model.module.state_dict(), 'last.pt')"),
    ("fsdp", 7, "wrong", "    state = model.state_dict()\n", "", "torch.save(state", "torch.save(model.state_dict()"),
    ("horovod", 2, "missing", "torch.cuda.set_device(hvd.local_rank())", ""),
    ("horovod", 2, "missing", "torch.cuda.set_device(hvd.local_rank())",
     "import os; os.environ.get('CUDA_VISIBLE_DEVICES', '0')"),
    ("ddp", 2, "cannot tell", SET_DEVICE, "", DEVICE_IDS, "Net()"),
    ("ddp", 2, "cannot tell", SET_DEVICE, 'device = torch.device("cpu")\n', DEVICE_IDS, "Net().to(torch.float16)"),
    ("ddp", 2, "missing", SET_DEVICE, 'device = torch.device("cuda")\n', DEVICE_IDS, "Net().to(device)"),
    ("ddp", 2, "missing", SET_DEVICE, "", DEVICE_IDS, 'Net().to("cuda")'),
    ("ddp", 2, "missing", SET_DEVICE, 'device = "cuda" if torch.cuda.is_available() else "cpu"\n', DEVICE_IDS,
     "Net().to(device)"),
    ("ddp", 2, "cannot tell", SET_DEVICE, 'device = "cpu" if config.cpu else config.gpu\n', DEVICE_IDS,
     "Net().to(device)"),
    ("ddp", 2, "wrong", SET_DEVICE, "", DEVICE_IDS, 'Net().to("cuda:0")'),
    ("ddp", 2, "wrong", SET_DEVICE, "", DEVICE_IDS, "Net().to(0)"),
    ("ddp", 2, "wrong", SET_DEVICE, "", DEVICE_IDS, "Net().to(dist.get_rank())"),
    ("ddp", 2, "wrong", SET_DEVICE, 'device = torch.device("cuda", dist.get_rank())\n', DEVICE_IDS, "Net()"),
    ("ddp", 3, "wrong", "sampler=sampler)", "shuffle=True)", "        loss = criterion(model(x), y)\n", "",
     "        loss.backward()\n        optimizer.step()", "        library.step(model, optimizer, x, y)"),
    ("horovod", 3, "wrong", "rank=hvd.rank()", "rank=hvd.local_rank()"),
    ("ddp", 3, "cannot tell", "sampler = DistributedSampler(dataset)",
     "class Mine(torch.utils.data.Sampler): pass\nsampler = Mine(dataset)"),
    ("ddp", 3, "wrong", "sampler =", "other = DistributedSampler(others)\nsampler =", "sampler.set", "other.set"),
    ("keras", 3, "wrong", "shard(hvd.size(), hvd.rank())", "shard(8, 3)", "epochs=3", "epochs=3, steps_per_epoch=100"),
    ("keras", 3, "wrong", ".from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank())", ".load('x')"),
    ("horovod", 4, "cannot tell", "torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size(), momentum=0.9)",
     "make(model)"),
    ("horovod", 4, "cannot tell", "lr=0.1 * hvd.size()", "**settings"),
    ("horovod", 4, "wrong", "lr=0.1 * hvd.size()", "lr=0.1", "for epoch", "print(hvd.size())\nfor epoch"),
    ("ddp", 5, "wrong", "model = DDP", "if dist.get_rank() == 0: model = DDP"),
    ("horovod", 5, "wrong", "optimizer = hvd.Dist", "if hvd.rank() == 0: optimizer = hvd.Dist"),
    ("keras", 5, "wrong", "opt = hvd.Dist", "wrapped = hvd.Dist"),
    ("horovod", 5, "missing", WRAP, "hvd.allreduce(gradient_norm)\n"),
    ("ddp", 5, "wrong", *(each.format("own.step()") for each in SECOND)),
    ("keras", 6, "wrong", "BroadcastGlobalVariablesCallback(0)", "BroadcastGlobalVariablesCallback(hvd.rank())"),
    ("horovod", 6, "wrong", "model.state_dict(), root_rank=0", "model.state_dict(), hvd.local_rank()"),
    ("horovod", 6, "missing", STATE, "hvd.broadcast_object(first_epoch, root_rank=0)", PARAMETERS, "pass"),
    ("horovod", 6, "missing", PARAMETERS, "pass"),
    ("horovod", 6, "missing", STATE, "pass", "SGD(", "Adam(", ", momentum=0.9", ""),
    ("horovod", 6, "missing", STATE, "optimizer.load_state_dict(torch.load('x'))", ", momentum=0.9", ""),
    ("horovod", 6, "wrong", "for epoch", "if hvd.rank() == 0: model.load_state_dict(torch.load('x'))\nfor epoch"),
    ("keras", 6, "wrong", *(each.format(SENT_STATE, SENT) for each in STEPS)),
    ("keras", 6, "missing", *(each.format("", SENT) for each in STEPS)),
    ("ddp", 2, "wrong", SET_DEVICE, 'device = torch.device(f"cuda:{dist.get_rank()}")\n', DEVICE_IDS, "Net()"),
    ("keras", 2, "wrong", GPUS, 'os.environ["CUDA_VISIBLE_DEVICES"] = "0"\n'),
    ("keras", 6, "wrong", "callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), ",
     "hvd.callbacks.BroadcastGlobalVariablesCallback(0)\ncallbacks = ["),
    ("keras", 6, "missing", *(each.format("", SENT) for each in STEPS), "Adam(0.001", "SGD(momentum=0.9, lr=0.001"),
    ("keras", 6, "cannot tell", "callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), ",
     "hvd.broadcast_optimizer_state(opt, root_rank=0)\ncallbacks = ["),
    ("ddp", 7, "cannot tell", "", CALLBACK),
    ("ddp", 7, "wrong", "", f"{CALLBACK}Callback()\n"),
    ("horovod", 4, "cannot tell", *WITHOUT_DATA),
    ("horovod", 4, "wrong", "import torch\n", "import torch, numpy as np\n", *WITHOUT_DATA,
     "torch.randn(32, 8)", "np.memmap('x.bin')"),
    ("horovod", 4, "wrong", "import torch\n", "import torch, pandas as pd\n", *WITHOUT_DATA,
     "torch.randn(32, 8)", "pd.read_csv('x')"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "step", "state", "edits"), [(*each[:3], each[3:]) for each in MISTAKES])
def test_a_mistake_is_found(tmp_path: Path, script: str, step: int, state: str, edits: tuple[str, ...]) -> None:
    assert states(checked(tmp_path, changed(script, *edits))).get(step) == state


# the script, what is replaced, by what: all of these are right
SOUND: list[tuple[str, ...]] = [
    ("horovod", "torch.cuda.set_device(hvd.local_rank())",
     "import os; os.environ['CUDA_VISIBLE_DEVICES'] = str(hvd.local_rank()); torch.cuda.set_device(0)"),
    ("horovod", "lr=0.1 * hvd.size()", "lr=0.1", "batch_size=32", "batch_size=32 // hvd.size()"),
    ("horovod", "print(\"loss\", mean.item())\n        torch.save(model.state_dict(), \"last.pt\")",
     "print(\"loss\", mean.item())\n    torch.save(model.state_dict(), f\"last-{hvd.rank()}.pt\")"),
    ("ddp", "if dist.get_rank() == 0", "mine = node * torch.cuda.device_count() + local_rank\n    if mine == 0"),
    ("ddp", "    if dist.get_rank() == 0",
     "    image.save(out, format='PNG'); open(os.devnull, 'w'); open(f, 'wb')\n    if dist.get_rank() == 0"),
    ("ddp", "    if dist.get_rank() == 0",
     "    import io; buffer = io.BytesIO(); torch.save(model.state_dict(), buffer)\n    if dist.get_rank() == 0"),
    ("ddp", "        torch.save", "        dist.barrier(group=writers)\n        torch.save"),
    ("ddp", "        torch.save(",
     "        import torch.distributed.checkpoint as dcp; dcp.save(s, no_dist=True)\n        torch.save("),
    ("ddp", "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
     "options = {'shuffle': True}\nif distributed:\n    options['sampler'] = sampler\n"
     "    options.update({'shuffle': False})\nloader = DataLoader(dataset, **options)"),
    ("ddp", "import os\n", "import os\nimport webdataset as wds\n", "sampler = DistributedSampler(dataset)\n", "",
     "    sampler.set_epoch(epoch)\n", "", "DataLoader(dataset, batch_size=32, sampler=sampler)",
     "wds.WebLoader(wds.WebDataset(urls, nodesplitter=wds.split_by_node), batch_size=32)"),
    ("ddp", "model = DDP(Net()",
     "head = torch.nn.Linear(4, 4)\nmodel = DDP(torch.nn.Sequential(torch.nn.Linear(4, 4), head)"),
    ("fsdp", "FSDP(Net())", "Net()", "for epoch", "model = FSDP(model, use_orig_params=True)\nfor epoch"),
    ("horovod", "import horovod.torch as hvd",
     "try:\n    import horovod.torch as hvd\nexcept ImportError:\n    hvd = None"),
    ("ddp", "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
     "options = {'sampler': sampler} if config else {'shuffle': True}\nloader = DataLoader(dataset, **options)"),
    ("ddp", "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
     "def make(data, **options): return DataLoader(data, **options)\nloader = make(dataset, sampler=sampler)"),
    ("ddp", "local_rank = int(os.environ[\"LOCAL_RANK\"])",
     "me, local_rank = (int(os.environ[name]) for name in (\"RANK\", \"LOCAL_RANK\"))"),
    ("ddp", "        loss = criterion", "        with torch.no_grad(): model.module(x)\n        loss = criterion"),
    ("ddp", "model = DDP(Net().to(local_rank), device_ids=[local_rank])",
     "nets = {'g': Net().to(local_rank)}\nfor name in nets:\n"
     "    nets[name] = DDP(nets[name], device_ids=[local_rank])\nmodel = nets['g']"),
    ("horovod", PARAMETERS, "if hvd.rank() == 0:\n    hvd.broadcast_object(model.state_dict(), root_rank=0)\n"
     f"else:\n    model.load_state_dict(hvd.broadcast_object(None, root_rank=0))\n{PARAMETERS}"),
    ("ddp", "sampler = DistributedSampler(dataset)", LOADERS, "sampler.set_epoch", "samplers['train'].set_epoch",
     "loader = DataLoader(dataset, batch_size=32, sampler=sampler)\n", "", "in loader:", "in loaders['train']:"),
    ("horovod", "import horovod.torch as hvd\nimport torch",
     "import torch\nhvd = None\ndef start():\n    global hvd\n    import horovod.torch as hvd\nstart()"),
    ("keras", "0.001 * hvd.size()",
     "tf.keras.optimizers.schedules.PiecewiseConstantDecay([900 // hvd.size()], [0.1 * hvd.size(), 0.01])"),
    ("horovod", "hvd.broadcast_parameters(",
     "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3); schedule.step()\nhvd.broadcast_parameters("),
    ("ddp", "local_rank = int(os.environ[\"LOCAL_RANK\"])", "rank, local_rank = ask_the_scheduler()"),
    ("ddp", "    if dist.get_rank() == 0:\n        torch.save(model.module.state_dict(), \"last.pt\")",
     "    saver.save(model)", "for epoch",
     "class Saver:\n    def __init__(self, model):\n        self.last = newest(model)\n"
     "    def save(self, model):\n        if dist.get_rank() == 0: torch.save(model.module.state_dict(), self.last)\n"
     "saver = Saver(model)\nfor epoch"),
    ("ddp", "if dist.get_rank() == 0", "if place.is_main", "optimizer =", PROPERTY.format("==")),
    ("ddp", SAVES, "    dist.get_rank() == 0 and torch.save(model.module.state_dict(), 'last.pt')"),
    ("ddp", SAVES, "    dist.get_rank() or torch.save(model.module.state_dict(), 'last.pt')"),
    ("ddp", "dist.get_rank() == 0", "0 == dist.get_rank()"),
    ("ddp", "dist.get_rank() == 0", "dist.get_rank() < 1"),
    ("ddp", "dist.get_rank() == 0", "dist.get_rank() in (0,)"),
    ("ddp", SAVES, "    if 1 <= dist.get_rank(): continue\n    torch.save(model.module.state_dict(), 'last.pt')"),
    ("ddp", SAVES, "if dist.get_rank(): os._exit(0)\ntorch.save(model.module.state_dict(), 'last.pt')"),
    ("ddp", "dist.get_rank() == 0", "max(dist.get_rank(), 0) == 0"),
    ("ddp", "dist.get_rank() == 0", "getattr(config, 'rank', 0) == 0"),
    ("keras", "shard(hvd.size(), hvd.rank())", "shard(same(hvd.size()), same(hvd.rank()))",
     LEGACY, f"def same(x): return x\n{LEGACY}"),
    ("keras", *SESSION),
    ("keras", *SESSION, "tf.ConfigProto()", "make()", "tf.Session(config=config)",
     "keras.backend.set_session(tf.Session(config=config))"),
    ("fsdp", "    state = model.state_dict()\n", "", "torch.save(state",
     "with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT): torch.save(model.state_dict()",
     "import FullyShardedDataParallel as FSDP", "import FullyShardedDataParallel as FSDP, StateDictType"),
    ("ddp", SET_DEVICE, "", "Net().to(local_rank)", "Net().cuda()"),
    ("ddp", SET_DEVICE, 'device = torch.device("cuda:" + str(local_rank))\n', DEVICE_IDS, "Net().to(device)"),
    ("ddp", SET_DEVICE, 'device = torch.device("cuda:%d" % local_rank)\n', DEVICE_IDS, "Net().to(device)"),
    ("ddp", SET_DEVICE, 'device = torch.device("cuda:{}".format(local_rank))\n', DEVICE_IDS, "Net().to(device)"),
    ("keras", GPUS, 'os.environ["CUDA_VISIBLE_DEVICES"] = "-1"\n'),
    ("keras", GPUS, 'os.environ["CUDA_VISIBLE_DEVICES"] = ""\n'),
    ("keras", GPUS, 'tf.config.set_visible_devices([], "GPU")\n'),
    ("keras", "model = tf", "with tf.device('/gpu:0'):\n  model = tf"),
    ("ddp", *(each.format(", rank=dist.get_rank()") for each in VALIDATED)),
    ("ddp", LOADER, f"val = DataLoader(others, batch_size=32)\n{LOADER}"),
    ("horovod", "num_replicas=hvd.size(), rank=hvd.rank()", "num_replicas=config.parts, rank=config.part"),
    ("horovod", "from torch.utils.data.distributed import DistributedSampler\n", "import horovod.torch.elastic\n",
     "DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())", "hvd.elastic.ElasticSampler(dataset)",
     "    sampler.set_epoch(epoch)\n", ""),
    ("keras", FIT, TAPE.format("", "    tape.gradient(loss, x)\n")),
    ("keras", FIT, TAPE.format("        loss = loss + tape.gradient(loss, x)\n", "").replace("both", "tape"),
     "opt = hvd.DistributedOptimizer(opt)\n", ""),
    ("keras", FIT, f"for x, y in data:\n    grads = inner.unscaled(tape(x))\n    opt.apply_gradients(grads)\n{FIT}",
     "opt = hvd.Dist", "inner = opt\nopt = hvd.Dist"),
    ("horovod", "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())\n", "",
     "        optimizer.step()",
     "        hvd.grouped_allreduce_([each.grad for each in model.parameters()])\n        optimizer.step()"),
    ("ddp", 'dist.init_process_group("nccl")', '@command\ndef start(): dist.init_process_group("nccl")'),
    ("ddp", "dist.init", "def is_main(): return dist.get_rank() == 0\nif is_main(): print(0)\ndist.init"),
    ("ddp", SET_DEVICE, 'device = torch.device("cuda", local_rank)\n', DEVICE_IDS, "Net().to(device)"),
    ("ddp", SET_DEVICE, "", DEVICE_IDS, "Net().to(local_rank)"),
    ("horovod", "num_replicas=hvd.size(), rank=hvd.rank()", "**config"),
    ("horovod", ", num_replicas=hvd.size(), rank=hvd.rank()", "",
     "hvd.init()", "hvd.init(); torch.distributed.init_process_group('gloo')"),
    ("ddp", "(dataset, batch_size=32, sampler=sampler)", "(dataset[dist.get_rank()::8], shuffle=True)",
     "sampler = DistributedSampler(dataset)\n", "", "    sampler.set_epoch(epoch)\n", ""),
    ("ddp", "for epoch in range(9):", "if True:", "    sampler.set_epoch(epoch)\n", ""),
    ("ddp", "DistributedSampler(dataset)", "DistributedSampler(dataset, 8, rank_of())", "optimizer =",
     "def rank_of():\n    if not dist.is_initialized(): return 0\n    return dist.get_rank()\noptimizer ="),
    ("ddp", "DistributedSampler(dataset)", "DistributedSampler(dataset, shuffle=False)",
     "    sampler.set_epoch(epoch)\n", ""),
    ("ddp", "sampler.set", "loader.sampler.set"),
    ("ddp", LOADER, "loader = library.batches(dataset, sampler)"),
    ("horovod", "lr=0.1 * hvd.size()", "0.1 * hvd.size()"),
    ("horovod", "lr=0.1 * hvd.size()", "lr=0.1", "for epoch",
     "for group in optimizer.param_groups: group['lr'] = 0.1 * hvd.size()\nfor epoch"),
    ("horovod", "lr=0.1 * hvd.size()", "lr=0.1", "for epoch",
     "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: hvd.size())\nfor epoch"),
    ("horovod", "optimizer = hvd.Dist", "optimizer.step()\noptimizer = hvd.Dist"),
    ("keras", "import tensorflow as tf\n", "import keras\nimport tensorflow as tf\n"),
    ("keras", LEGACY, "import keras, tf_keras\nimport tensorflow as tf\n"),
    ("keras", LEGACY, "import keras\nimport tensorflow as tf\nimport tensorflow.compat.v1 as v1\n"),
    ("fsdp", *DIVIDED_LATE, "FSDP(model)", "FSDP(model, **config)"),
    ("fsdp", *DIVIDED_LATE, "FSDP(model)",
     "FSDP(model)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1 * dist.get_world_size())"),
    ("ddp", *(each.format("if dist.get_rank() == 0: own.step()") for each in SECOND)),
    ("ddp", *(each.format("pass") for each in SECOND)),
    ("ddp", *(each.format("for each in head.parameters(): dist.all_reduce(each.grad)\n        own.step()")
              for each in SECOND)),
    ("horovod", PARAMETERS, "hvd.broadcast_object(model.state_dict(), root_rank=0)"),
    ("horovod", STATE, "pass", ", momentum=0.9", ""),
    ("horovod", "for epoch", "model.load_state_dict(torch.load('x'))\nfor epoch"),
    ("horovod", PARAMETERS, f"if hvd.rank() == 0: model.load_state_dict(torch.load('x'))\n{PARAMETERS}"),
    ("keras", ", callbacks=callbacks", ", **options"),
    ("keras", *(each.format("", SENT + SENT_STATE) for each in STEPS)),
    ("keras", *(each.format(f"    opt.build(weights)\n{SENT}{SENT_STATE}", "") for each in STEPS)),
    ("keras", *(each.format("", SENT) for each in STEPS), "Adam(0.001", "SGD(0.001"),
    ("ddp", SET_DEVICE, 'device = torch.device(f"cuda:{local_rank}")\n', DEVICE_IDS, "Net().to(device)"),
    ("horovod", "num_replicas=hvd.size()", "num_replicas=hvd.local_size() * (hvd.size() // hvd.local_size())"),
    ("horovod", "lr=0.1 * hvd.size()", "lr=0.1 * step / (900 // hvd.size())"),
    ("horovod", "lr=0.1 * hvd.size()", "lr=0.1", "for epoch", "library.Warmup(optimizer, hvd.size())\nfor epoch"),
    ("horovod", "lr=0.1 * hvd.size()", "lr=0.1", "for epoch", "library.BetterLR(optimizer, hvd.size())\nfor epoch"),
    ("ddp", *(each.format("own.step()") for each in SECOND), "torch.nn.Linear(4, 4)", "library.make()"),
    ("horovod", STATE, "hvd.broadcast_object(optimizer.state_dict(), root_rank=0)"),
    ("keras", *(each.format("", SENT + SENT_STATE) for each in STEPS), *SESSION[:2]),
    *(("keras", *(each.format(f"    opt.{name}(weights)\n{SENT}{SENT_STATE}", "") for each in STEPS))
      for name in ("restore", "load_weights", "set_weights")),
    ("ddp", "sampler =",
     "def worker(gpu, count):\n    torch.cuda.set_device(gpu)\n    if gpu == 0: torch.save(0, 'x')\n"
     "torch.multiprocessing.spawn(worker, args=(2,))\nsampler ="),
]  # fmt: skip


@pytest.mark.parametrize("change", SOUND)
def test_what_is_right_in_another_way_is_no_mistake(tmp_path: Path, change: tuple[str, ...]) -> None:
    assert states(checked(tmp_path, changed(*change))) == {}


@pytest.mark.parametrize(
    ("by", "line"),
    [
        ("Lightning", "from lightning.pytorch import Trainer; Trainer().fit(m)"),
        ("Lightning", "import pytorch_lightning as pl\nclass M(pl.LightningModule): pass"),
        ("Accelerate", "from accelerate import Accelerator; a = Accelerator()"),
        ("Hugging Face's Trainer", "from transformers import Trainer; Trainer(m).train()"),
        ("DeepSpeed", "import deepspeed; e = deepspeed.initialize(model=m)"),
    ],
)  # fmt: skip
def test_a_framework_that_does_it_itself_is_not_judged(tmp_path: Path, by: str, line: str) -> None:
    report = checked(tmp_path, f"import torch\n{line}\nloss.backward()\ntorch.save(m, 'x')\n")
    assert {row.reason for row in report.steps} == {f"{by} does this itself"}
    assert report.exit_code == 0


def test_what_trains_nothing_and_a_module_whose_training_nothing_calls_lack_nothing(tmp_path: Path) -> None:
    report = checked(tmp_path, "import torch\nclass Net(torch.nn.Module):\n    pass\n")
    assert set(states(report).values()) == {"cannot tell"}
    train = "def train(model, loader):\n    for x in loader:\n        model(x).backward()\n"
    assert checked(tmp_path, f"import torch.distributed as dist\n{train}").exit_code == 0


# a module beside the script and its text; what is replaced in the script, and by what; a step, its state and place
GO, SAVE = "import horovod.torch as hvd\ndef go():\n    hvd.init()\n", 'torch.save(model.state_dict(), "last.pt")'
PLAIN = "import horovod.torch as hvd\nclass Plain:\n    def __init__(self):\n        hvd.init()\n"
BESIDE: dict[str, tuple[str, ...]] = {
    "it initialises": ("start", GO, "hvd.init()", "start.go()", "1 ok start.py:3"),
    "it is broken": ("start", "def go(:\n", "hvd.init()", "start.go()", "1 cannot tell "),
    "a table names its class": ("ways", PLAIN, "hvd.init()", "{'plain': ways.Plain}[name]()", "1 ok ways.py:4"),
    "it writes": ("save", "import torch\ndef save(m):\n    torch.save(m, 'x')\n", f"        {SAVE}",
                  "    save.save(model)", "7 wrong save.py:3"),
}  # fmt: skip


@pytest.mark.parametrize("case", BESIDE)
def test_a_module_beside_the_script_is_read(tmp_path: Path, case: str) -> None:
    name, text, old, new, expected = BESIDE[case]
    (tmp_path / f"{name}.py").write_text(text)
    report = checked(tmp_path, changed("horovod", old, new, "import torch\n", f"import torch\nimport {name}\n"))
    assert expected in [f"{row.step} {row.state} {row.place}" for row in report.steps]


def test_a_script_of_one_process_lacks_every_step_and_gets_both_ways(tmp_path: Path) -> None:
    made = "import torch\nm = Net().cuda()\no = torch.optim.SGD(m.parameters(), 0.1)\n"
    loop = "for x in torch.utils.data.DataLoader(d):\n    m(x).backward()\n    o.step()\ntorch.save(m, 'x')\n"
    report = checked(tmp_path, made + loop)
    assert {state for step, state in states(report).items() if step < 8} <= {"missing", "wrong"}
    fixes = [row.fix.splitlines() for row in report.steps if row.step < 8]
    assert [[line.partition(":")[0] for line in fix] for fix in fixes] == [["DDP", "Horovod"]] * 7
