"""Options of sbatch and srun: the ``#SBATCH`` lines of a script, and the words of a command line. Pure.

Sources: sbatch(1), srun(1), and get_argument() of src/sbatch/opt.c (Slurm 22.05 to 25.11).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.planning.shell_words import UNREAD, as_written
from runner.planning.starters import number

# What one letter stands for, with sbatch and srun; and the long names that take no value, or only one after "=".
_LETTERS = {
    **{"A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir"},
    **{"d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input", "J": "job-name"},
    **{"k": "no-kill", "K": "kill-on-bad-exit", "L": "licenses", "l": "label", "M": "clusters", "m": "distribution"},
    **{"N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos"},
    **{"S": "core-spec", "s": "oversubscribe", "t": "time", "u": "unbuffered", "v": "verbose", "W": "wait"},
    **{"w": "nodelist", "x": "exclude", "X": "disable-status", "E": "preserve-env", "T": "threads", "r": "relative"},
}
_FLAGS = frozenset(
    ("hold", "no-kill", "kill-on-bad-exit", "label", "overcommit", "quiet", "oversubscribe", "unbuffered", "verbose",
     "disable-status", "preserve-env", "exclusive", "requeue", "no-requeue", "parsable", "test-only", "spread-job",
     "contiguous", "get-user-env", "propagate", "use-min-nodes", "reboot", "ignore-pbs", "exact", "whole", "overlap",
     "interactive", "no-allocate", "multi-prog", "pty", "immediate", "help", "version", "no-container-mount-home",
     "container-mount-home", "container-remap-root", "no-container-remap-root", "container-writable",
     "container-readonly", "container-entrypoint", "no-container-entrypoint")
)  # fmt: skip
_ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "share": "oversubscribe"}
_NAME = re.compile(r"--[A-Za-z][A-Za-z0-9-]*")
_COUNTS, _GPUS = ("nodes", "ntasks", "ntasks-per-node"), ("gpus", "gpus-per-node", "gres", "gpus-per-task")
_HETEROGENEOUS = frozenset(("hetjob", "packjob", "het-group", "pack-group", ":"))  # of several components


@dataclass(frozen=True)
class Directive:
    """An option of a ``#SBATCH`` line; ``name`` in its long form, ``line`` from 1."""

    name: str
    value: str
    line: int


@dataclass(frozen=True)
class Header:
    """The ``#SBATCH`` lines of a script.

    Attributes:
        directives: that sbatch reads. late: those below the first command, which it does not.
        unread: line and text of what looks like a directive and is none.
    """

    directives: tuple[Directive, ...]
    late: tuple[Directive, ...]
    unread: tuple[tuple[int, str], ...]

    @property
    def options(self) -> Mapping[str, str]:
        """By long name; the last one of a name counts."""
        return {each.name: each.value for each in self.directives}


def header(text: str) -> Header:
    """The directives of a script: sbatch reads them up to the first line that is neither empty nor a comment."""
    read: list[Directive] = []
    late: list[Directive] = []
    unread: list[tuple[int, str]] = []
    is_late = False
    for at, line in enumerate(text.splitlines(), 1):
        if not re.match(r"#sbatch\b", line, re.IGNORECASE):
            is_late = is_late or bool(line.strip() and not line.lstrip().startswith("#"))
            continue
        words = _words(line[len("#SBATCH") :]) if line.startswith("#SBATCH") and line[7:8].isspace() else None
        words = [f"--{words[0]}"] if words in (["hetjob"], ["packjob"]) else words
        options, rest = parse(words) if words else ((), 0)
        if (
            words is None
            or (not options and line[7:].strip() and not line[7:].strip().startswith("#"))
            or rest < len(words)
        ):
            unread.append((at, line.strip()))
        (late if is_late else read).extend(Directive(name, value, at) for name, value in options)
    return Header(tuple(read), tuple(late), tuple(unread))


def parse(words: Sequence[str]) -> tuple[tuple[tuple[str, str], ...], int]:
    """The options at the beginning of words, by long name, and where what follows them begins."""
    options: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at][:1] in ("-", UNREAD) and len(words[at]) > 1:
        word = words[at]
        at += 1
        if word[0] == UNREAD or (
            word[1] == "-" and UNREAD in word.partition("=")[0]
        ):  # the options that a variable has, or none
            options.append((word, ""))
            continue
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if word[1] != "-":
            name, value = _LETTERS.get(word[1], word[1]), word[2:]
            equals = value
            if name in _FLAGS:  # several letters in one word
                value = ""
        elif _NAME.fullmatch(name):
            name = _ALIASES.get(name[2:], name[2:])
        else:
            return tuple(options), at - 1
        if not equals and name not in _FLAGS and not (name == "wait" and word[1] == "-") and at < len(words):
            value = words[at]
            at += 1
        options.append((name, value))
    return tuple(options), at


def _words(text: str) -> list[str] | None:
    """As sbatch splits a line: an unquoted ``#`` begins a comment. None where a quote is not closed."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return list(lexer)
    except ValueError:
        return None


@dataclass(frozen=True)
class Shape:
    """How a job or a step is laid out; None for what its options leave open.

    Attributes:
        tasks_per_node, gpus_per_node: of each node. cpus_per_task, gpus_per_task: as requested.
        is_even: each node has that many tasks for certain. unknown: why nodes and tasks are; empty where they are not.
    """

    nodes: int | None
    tasks_per_node: int | None
    gpus_per_node: int | None
    cpus_per_task: int | None = None
    gpus_per_task: int | None = None
    is_even: bool = True
    unknown: str = ""


def shape(options: Mapping[str, str]) -> Shape:
    """What options of sbatch, or of sbatch and srun together, ask for."""
    nodes, tasks, each = (number(options.get(name, "")) for name in _COUNTS)
    per_task, gpus = gpus_of(options.get("gpus-per-task", "")), gpus_of(options.get("gpus", ""))
    per_node = gpus_of(options.get("gpus-per-node", "")) or gpus_of(options.get("gres", ""), in_list=True)
    if unknown := next(filter(None, (_unknown(name, value) for name, value in options.items())), ""):
        per_node = per_node if _HETEROGENEOUS.isdisjoint(options) else None
        return Shape(None, None, per_node, number(options.get("cpus-per-task", "")), per_task, unknown=unknown)
    if nodes is None and tasks is not None:
        nodes = 1 if tasks == 1 else -(-tasks // each) if each else None
    if nodes is None and tasks is None:
        nodes = 1 if gpus in (None, 1) else None
    is_even = each is not None or tasks is None or nodes in (1, tasks)
    if each is None and nodes is not None:
        each = 1 if tasks is None else -(-tasks // nodes)
    elif each is not None and nodes is not None and tasks is not None and tasks != each * nodes:
        each, is_even = -(-tasks // nodes), False
    if per_node is None and per_task is not None and each is not None:
        per_node = per_task * each
    if per_node is None and gpus is not None and nodes is not None:
        per_node = -(-gpus // nodes)
    return Shape(nodes, each, per_node, number(options.get("cpus-per-task", "")), per_task, is_even)


def gpus_of(text: str, *, in_list: bool = False) -> int | None:
    """The number in ``4``, ``a100:4`` and, of generic resources, ``gpu:a100:4``; None for none."""
    if in_list:
        parts = [
            part.partition(":")[2] or "1"
            for part in text.split(",")
            if re.match(r"(gres/|gres:)?(gpu|dcu|mlu|npu)\b", part)
        ]
        counts = [gpus_of(part) or 1 for part in parts]
        return sum(counts) if counts else None
    number = re.search(r"(?:^|[:=])(\d+)(?:\(.*)?$", text.strip())
    return int(number[1]) if number else None


def _unknown(name: str, value: str) -> str:
    """Why an option leaves the number of nodes, tasks or GPUs to what only a run tells; empty where it does not."""
    if name in _HETEROGENEOUS:
        return "it is a heterogeneous job, and all nodes of a run are alike"
    is_read = name not in _GPUS or not re.search(rf"[{UNREAD}$]", value)
    is_read &= name not in _COUNTS or number(value) is not None
    is_read &= name != "ntasks-per-gpu" and UNREAD not in name
    return "" if is_read else "only a run tells " + as_written(name if UNREAD in name else f"--{name}={value}")


def variables(options: Mapping[str, str], of: Shape) -> dict[str, str]:
    """What Slurm sets for a job's script (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"), as far as its options say."""
    tasks = options.get("ntasks") or (of.tasks_per_node and of.nodes and str(of.tasks_per_node * of.nodes))
    known = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), of.nodes),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), tasks),
        "SLURM_GPUS_ON_NODE": of.gpus_per_node,
        **{name: options.get(option) for name, option in ONLY_WITH.items()},
        **dict.fromkeys(BY_TASK, "0"),
    }
    return {name: str(value) for name, value in known.items() if value}


BY_TASK = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
# Variables that Slurm sets only where the option is given.
ONLY_WITH = {
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_PER_TASK": "gpus-per-task",
    "SLURM_GPUS": "gpus",
}


def srun_options(words: tuple[str, ...], variables: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The options of srun, by its words and what a script exports (srun(1), "INPUT ENVIRONMENT VARIABLES"); and what
    it starts.
    """
    names = {**ONLY_WITH, "SLURM_NNODES": "nodes", "SLURM_NTASKS": "ntasks", "SLURM_NPROCS": "ntasks"}
    names.pop("SLURM_CPUS_PER_TASK")  # not since 22.05
    listed, at = parse(words)
    options = {option: variables[name] for name, option in names.items() if variables.get(name)} | dict(listed)
    return {**options, **({":": ""} if ":" in words[at:] else {})}, words[at:]


def joined(job: Mapping[str, str], step: Mapping[str, str]) -> dict[str, str]:
    """Options of sbatch with those of srun over them: a count of srun replaces the job's other ways to say it."""
    merged = dict(job)
    for names in (_COUNTS[1:], _GPUS):
        if any(name in step for name in names):
            merged = {name: value for name, value in merged.items() if name not in names}
    of_job, of_step = shape(job), shape({**merged, **step})
    if "ntasks-per-node" in job and "ntasks" in step and of_job.tasks_per_node == of_step.tasks_per_node:
        merged["ntasks-per-node"] = job["ntasks-per-node"]
    if of_step.nodes is None and of_job.nodes is not None:
        merged["nodes"] = str(of_job.nodes)
    return {**merged, **step}
