"""From a script's file to a report on its eight steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.core.errors import Exit, UsageError
from runner.linting.findings import Finding, Script
from runner.linting.loading import FITS, is_backward
from runner.linting.names import is_optimizer
from runner.linting.reading.script import read
from runner.linting.rules import RULES
from runner.linting.source import Folder, read_script
from runner.linting.trace import Trace

# What does the steps by itself, by the name of a call or of a base class.
_THEMSELVES = {
    "Lightning": ("lightning.", "pytorch_lightning."),
    "Accelerate": ("accelerate.Accelerator",),
    "Hugging Face's Trainer": ("transformers.Trainer", "transformers.Seq2SeqTrainer", "transformers.trainer.", "trl."),
    "DeepSpeed": ("deepspeed.initialize",),
    "tf.distribute": ("tensorflow.distribute.",),
    "Ray Train": ("ray.train.",),
    "Composer": ("composer.Trainer",),
    "fastai": ("fastai.",),
    "Horovod's estimator": ("horovod.spark.",),
}  # fmt: skip
_MOST_CALLS = 5000
# Ranks that do not all do the same.
_DIVIDED = ("torch.distributed.rpc", "torch.distributed.tensor.parallel", "torch.distributed.pipelining",
            "torch.distributed.pipeline", "megatron")  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One step of the report."""

    step: int
    name: str
    finding: Finding


@dataclass(frozen=True)
class Report:
    """What a script has, lacks and does wrongly.

    Attributes:
        way: as in ``Script``.
        does_it_itself: a framework that does the steps, so that nothing of them was looked for; empty for none.
    """

    file: str
    way: str
    does_it_itself: str
    rows: tuple[Row, ...]

    @property
    def exit_code(self) -> Exit:
        """Refused where something is missing or wrong."""
        return Exit.REFUSED if any(row.finding.state in ("missing", "wrong") for row in self.rows) else Exit.GOOD


def check(path: Path) -> Report:
    """Read a training script, and the modules beside it that it imports.

    Raises:
        UsageError: it is no Python that can be read; says the line.
    """
    source = read_script(path)
    try:
        with _room_to_nest():
            trace = read(source, Folder(path.absolute().parent))
        training = [event for event in trace.events if is_backward(event) or event.name in FITS]
        if training and not any(event.certain for event in training) and not trace.uncertain:
            trace.uncertain = "nothing here is seen to call what trains"
        script = script_of(trace)
        rows = tuple(
            Row(rule.step, rule.name, finding) for rule in RULES for finding in _judged(script, rule.judge(script))
        )
    except RecursionError:
        fix = "give the training script itself"
        raise UsageError("nested too deeply to be read", where=str(path), fix=fix) from None
    return Report(str(path), script.way, script.does_it_itself, rows)


@contextmanager
def _room_to_nest() -> Iterator[None]:
    """Python's limit counts a reader's own calls, of which a line of a script may need twenty."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _MOST_CALLS))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def _judged(script: Script, findings: list[Finding]) -> list[Finding]:
    reason = _not_for_us(script)
    if reason:
        return [Finding("cannot tell", reason)]
    if script.does_it_itself:
        return [Finding("cannot tell", f"{script.does_it_itself} does this itself")]
    return findings


def _not_for_us(script: Script) -> str:
    """Why nothing of a script is judged; empty where it is."""
    trace = script.trace
    if trace.imported("mxnet"):
        return "MXNet is not known here"
    if trace.imported(*_DIVIDED):
        return "it divides the model among the ranks, and not the data alone"
    trains = any(is_backward(event) or event.name in FITS for event in trace.events)
    if (
        not trains
        and not script.does_it_itself
        and (script.way == "none" or not any(is_optimizer(event.name) for event in trace.events))
    ):
        names = ("train", "hvd.DistributedOptimizer", "hvd.elastic.run", "tensorflow.compat.v1.train")
        if not trace.uncertain and not any(
            name.startswith(names) for name in (*trace.names, *(event.name for event in trace.events))
        ):
            return "no training that can be seen in this file"
    return ""


def script_of(trace: Trace) -> Script:
    """How a script trains."""
    itself = next(
        (
            name
            for name, heads in _THEMSELVES.items()
            for event in trace.events
            if event.name.removeprefix("class ").startswith(heads)
        ),
        "",
    )
    torch, tensorflow = trace.imported("torch", "horovod.torch"), trace.imported("tensorflow", "keras", "tf_keras")
    horovod = trace.imported("horovod")
    distributed = trace.imported("torch.distributed", "torch.nn.parallel.DistributedDataParallel") or bool(
        trace.by_name("*.DistributedDataParallel", "dist.init_process_group", "*.FullyShardedDataParallel")
    )
    framework = (
        "tensorflow" if trace.imported("horovod.tensorflow", "horovod.keras") or (tensorflow and not torch) else "torch"
    )
    if trace.imported("horovod.torch"):
        framework = "torch"
    return Script(
        trace,
        "horovod" if horovod else "ddp" if distributed else "none",
        "tensorflow" if framework == "tensorflow" else "torch",
        itself,
    )
