"""Each rule, by a change of a script that is right: what `mistakes.yaml` does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.linting.check import Report, check

CORRECT = Path(__file__).resolve().parents[2] / "support" / "training_scripts" / "correct"
FILES = {"horovod": "c30", "ddp": "c31", "keras": "c32", "fsdp": "c33"}
SCRIPTS = {name: (CORRECT / f"{file}.py").read_text() for name, file in FILES.items()}
HOROVOD, DDP = SCRIPTS["horovod"], SCRIPTS["ddp"]
LOADERS = (
    "samplers = {name: DistributedSampler(dataset[name], shuffle=name == 'train') for name in ('train', 'val')}\n"
    "loaders = {name: DataLoader(dataset[name], sampler=samplers[name]) for name in ('train', 'val')}"
)
# FSDP divides the model, and the optimizer is made before that.
FSDP_LATE = SCRIPTS["fsdp"].replace("FSDP(Net())", "Net()").replace("for epoch", "model = FSDP(model)\nfor epoch")


def checked(directory: Path, text: str) -> Report:
    path = directory / "train.py"
    path.write_text(text)
    return check(path)


def states(report: Report) -> dict[int, str]:
    """The state of each step that is not ok."""
    return {row.step: row.finding.state for row in report.rows if row.finding.state != "ok"}


def changed(script: str, *edits: str) -> str:
    """A script with pairs of what is replaced, and by what."""
    text = SCRIPTS[script]
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert old in text
        text = text.replace(old, new, 1)
    return text


# the script, the step, its state, what is replaced, by what
MISTAKES: list[tuple[str, int, str, str, str]] = [
    ("ddp", 1, "wrong", "dist.init", "if os.environ['RANK'] == 0: dist.init"),
    ("ddp", 1, "wrong", "dist.init", "early = DDP(Net())\ndist.init"),
    ("ddp", 2, "wrong", "set_device(local_rank)", "set_device('cuda:0')"),
    ("horovod", 2, "missing", "torch.cuda.set_device(hvd.local_rank())", "pass"),
    ("horovod", 2, "cannot tell", "hvd.local_rank()", "cfg.gpu"),
    ("keras", 2, "wrong", "gpus[hvd.local_rank()]", "[gpus[0]]"),
    ("horovod", 3, "wrong", "num_replicas=hvd.size()", "num_replicas=hvd.local_size()"),
    ("horovod", 3, "wrong", ", num_replicas=hvd.size(), rank=hvd.rank()", ""),
    ("keras", 3, "wrong", "hvd.rank())", "0)"),
    ("keras", 3, "wrong", "shard(hvd.size(), hvd.rank())", "shard(hvd.rank(), hvd.size())"),
    ("keras", 3, "wrong", ".shard(hvd.size(), hvd.rank())", ""),
    ("keras", 3, "cannot tell", ".shard(hvd.size(), hvd.rank())", ".take(1000 // hvd.size())"),
    ("ddp", 3, "wrong", "sampler=sampler)", "sampler=sampler, shuffle=True)"),
    ("ddp", 3, "cannot tell", "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
     "options = dict(batch_size=32)\noptions.update(config)\nloader = DataLoader(dataset, **options)"),
    ("ddp", 3, "wrong", "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
     "options = {'num_workers': 1} if cuda else {}\nloader = DataLoader(dataset, shuffle=True, **options)"),
    ("horovod", 4, "wrong", "0.1 * hvd.size()", "0.1 / hvd.size()"),
    ("keras", 4, "wrong", "0.001 * hvd.size()", "0.001 * hvd.local_size()"),
    ("ddp", 4, "cannot tell", "0.1 * dist.get_world_size()", "0.1"),
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
    ("fsdp", 7, "wrong", "torch.save(state", "torch.save(model.state_dict()"),
    ("fsdp", 7, "wrong", "        torch.save(",
     "        from torch.distributed.checkpoint.state_dict import get_model_state_dict\n"
     "        full = get_model_state_dict(model)\n        torch.save("),
    ("horovod", 7, "cannot tell", "import torch\n",
     "import torch, horovod.ray\nfrom torch.utils.tensorboard import SummaryWriter\nSummaryWriter()\n"),
    ("horovod", 8, "wrong", "mean = hvd.allreduce", "mean = torch.tensor(total); hvd.allreduce"),
    ("horovod", 8, "wrong", "torch.tensor(total))", "torch.tensor(total), True)"),
    ("horovod", 8, "wrong", "hvd.allreduce(torch.tensor(total))",
     "torch.tensor(total); hvd.allreduce(torch.tensor([0]).cuda(), name='wait')"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "step", "state", "old", "new"), MISTAKES)
def test_a_mistake_is_found(tmp_path: Path, script: str, step: int, state: str, old: str, new: str) -> None:
    assert states(checked(tmp_path, changed(script, old, new))).get(step) == state


@pytest.mark.parametrize("divided", ["model = FSDP(model)", "fully_shard(model)"])
def test_an_optimizer_of_the_model_before_it_is_divided(tmp_path: Path, divided: str) -> None:
    late = FSDP_LATE.replace("as FSDP", "as FSDP, fully_shard").replace("model = FSDP(model)", divided)
    assert states(checked(tmp_path, late)) == {5: "wrong"}


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
    assert {row.finding.reason for row in report.rows} == {f"{by} does this itself"}
    assert report.exit_code == 0


def test_what_trains_nothing_and_a_module_whose_training_nothing_calls_lack_nothing(tmp_path: Path) -> None:
    report = checked(tmp_path, "import torch\nclass Net(torch.nn.Module):\n    pass\n")
    assert set(states(report).values()) == {"cannot tell"}
    train = "def train(model, loader):\n    for x in loader:\n        model(x).backward()\n"
    assert checked(tmp_path, f"import torch.distributed as dist\n{train}").exit_code == 0


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


def test_a_class_that_a_table_names_is_read(tmp_path: Path) -> None:
    plain = "import horovod.torch as hvd\nclass Plain:\n    def __init__(self):\n        hvd.init()\n"
    (tmp_path / "ways.py").write_text(plain)
    text = HOROVOD.replace("hvd.init()", "{'plain': ways.Plain}[name]()")
    text = text.replace("import torch\n", "import torch\nimport ways\n", 1)
    assert 1 not in states(checked(tmp_path, text))


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


def test_a_script_of_one_process_lacks_every_step_and_is_told_of_both_ways(tmp_path: Path) -> None:
    made = "import torch\nm = Net().cuda()\no = torch.optim.SGD(m.parameters(), 0.1)\n"
    loop = "for x in torch.utils.data.DataLoader(d):\n    m(x).backward()\n    o.step()\ntorch.save(m, 'x')\n"
    report = checked(tmp_path, made + loop)
    assert {state for step, state in states(report).items() if step < 8} <= {"missing", "wrong"}
    fixes = [row.finding.fix.splitlines() for row in report.rows if row.step < 8]
    assert [[line.partition(":")[0] for line in fix] for fix in fixes] == [["DDP", "Horovod"]] * 7
