"""Programs that start ranks themselves, as torchrun does: what their arguments state, and what they are given. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import msgspec

from runner.core.text import counted
from runner.model.plan import Plan, Starter
from runner.planning.shell_words import UNREAD, as_written


@dataclass(frozen=True)
class Need:
    """An argument that a starter gets, where the user gives none of its option.

    Attributes:
        text: with ``{starts}``, ``{each}`` and ``{total}`` for numbers of processes, and what the launcher fills in:
            ``{index}`` of the start, ``{address}`` and ``{port}`` to meet at, ``{hostfile}`` that names the starts.
        on: for one start (``alone``), for several (``together``), for several processes (``many``), on CPUs (``cpu``),
            where it sees too few GPUs on its node to know that there are several processes (``uncounted``).
        unless: options, or their beginnings, with which it is left out.
    """

    text: str
    on: str = "alone together"
    unless: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """What there is to know of a starter. Options are written with ``-`` for ``_``.

    Attributes:
        calls: how it is called; ``-m`` as a module of Python.
        nodes, each, total: options that state the number of starts, the processes of each, those of all.
        index, place: options that state which start this is, and where all meet.
        flags, pairs: options that take no value, and two. refused: options that hold on one node only. single: with
            which it starts one process.
        needs: what it is given. several: starts on several nodes form one world.
        counts_gpus: without a number it starts a process for each GPU that it sees.
        without: variables that it must not see.
    """

    calls: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    total: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()
    refused: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    several: bool = True
    counts_gpus: bool = False
    without: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """All options, whose beginnings argparse reads as the whole."""
        return (*self.flags, *self.nodes, *self.each, *self.total, *self.index, *self.place, *self.refused)


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Sources: torch.distributed.run 2.13, accelerate 1.15 (commands/launch.py), DeepSpeed 0.19 (launcher/runner.py),
# Composer 0.32 (cli/launcher.py), Lightning 2.6 (fabric/cli.py), Horovod 0.28 (runner/launch.py), mpirun(1), srun(1).
_NO_SLURM = ("SLURM_JOBID", "SLURM_JOB_ID", "SLURM_NODELIST", "SLURM_JOB_NODELIST")  # by which mpirun starts with srun
KINDS: dict[str, Kind] = {
    "torchrun": Kind(
        ("torchrun", "-m torch.distributed.run", "-m torch.distributed.launch"),
        nodes=("--nnodes",),
        each=("--nproc-per-node",),
        index=("--node-rank",),
        place=("--rdzv-endpoint", "--master-addr"),
        flags=names(
            "--standalone -m --module --no-python --run-path --use-env --virtual-local-rank -h --help "
            "--duplicate-stdout-filters --duplicate-stderr-filters"
        ),
        refused=("--standalone",),
        needs=(
            # Without a port torch 2.13 meets as with --standalone: it unpickles what another user puts there.
            Need("--master_port={port}", "alone", unless=("--rdzv", "--master", "--standalone")),
            Need("--nnodes={starts}", "together"),
            Need("--node_rank={index}", "together"),
            Need("--rdzv_endpoint={address}:{port}", "together"),
            Need("--nproc_per_node={each}"),
        ),
    ),
    "accelerate": Kind(
        (
            *("accelerate launch", "accelerate-launch", "-m accelerate.commands.launch"),
            "-m accelerate.commands.accelerate_cli launch",
        ),
        nodes=("--num-machines",),
        total=("--num-processes",),
        index=("--machine-rank",),
        place=("--main-process-ip",),
        flags=names(
            "--quiet -q --cpu --multi-gpu --tpu --use-deepspeed --use-fsdp --use-megatron-lm --same-network -m "
            "--module --no-python --debug --enable-cpu-affinity --use-parallelism-config"
        ),
        single=("--cpu",),
        needs=(
            Need("--multi_gpu", "uncounted", unless=("--cpu", "--tpu", "--use-", "--config-file")),
            Need("--num_processes={total}"),
            Need("--num_machines={starts}"),
            Need("--machine_rank={index}"),
            Need("--main_process_ip={address}", "together"),
            Need("--main_process_port={port}"),
        ),
        counts_gpus=True,
    ),
    "deepspeed": Kind(
        ("deepspeed", "-m deepspeed.launcher.runner"),
        nodes=("--num-nodes",),
        each=("--num-gpus", "--num-accelerators"),
        index=("--node-rank",),
        place=("--master-addr",),
        flags=names(
            "--module --no-python --no-local-rank --no-ssh --no-ssh-check --force-multi --save-pid "
            "--bind-cores-to-rank -q --quiet"
        ),
        refused=("--hostfile", "-H", "--include", "-i", "--exclude", "-e", "--launcher"),
        needs=(
            Need("--hostfile={hostfile}", "together cpu"),
            Need("--no_ssh", "together cpu"),
            Need("--node_rank={index}", "together cpu"),
            Need("--master_addr={address}", "together cpu"),
            Need("--master_port={port}"),
        ),
        counts_gpus=True,
    ),
    "composer": Kind(
        ("composer", "-m composer.cli.launcher"),
        each=("--nproc", "-n"),
        total=("--world-size",),
        index=("--node-rank", "--base-rank"),
        place=("--master-addr",),
        flags=names("-v --verbose -m --module-mode -c --command-mode"),
        needs=(
            Need("--nproc={each}"),
            Need("--world_size={total}"),
            Need("--node_rank={index}"),
            Need("--master_addr={address}"),
            Need("--master_port={port}"),
        ),
        counts_gpus=True,
    ),
    "fabric": Kind(
        ("fabric run", "lightning run model"),  # so until Lightning 2.2
        nodes=("--num-nodes",),
        each=("--devices",),
        index=("--node-rank",),
        place=("--main-address",),
        needs=(
            Need("--devices={each}"),
            Need("--num-nodes={starts}"),
            Need("--node-rank={index}"),
            Need("--main-address={address}"),
            Need("--main-port={port}"),
        ),
    ),
    "horovodrun": Kind(
        ("horovodrun", "-m horovod.runner", "-m horovod.runner.launch"),
        total=("-np", "--num-proc"),
        flags=names("--verbose --gloo --mpi --js --tcp --disable-cache"),
        needs=(Need("-np {each}"), Need("--disable-cache")),  # of checks by ssh, in a home that may be read-only
        several=False,
    ),
    "mpirun": Kind(
        (
            *("mpirun", "mpiexec", "mpiexec.hydra", "orterun"),
            *("mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich", "mpiexec.mpich"),
        ),
        each=("-npernode", "--npernode", "-N", "-ppn", "--ppn", "-perhost", "--perhost", "--map-by", "-map-by"),
        total=("-np", "-n", "--np", "-c", "--n"),
        flags=frozenset(
            f"{dash}{name}"
            for dash in ("-", "--")
            for name in names(
                "v q d l V allow-run-as-root oversubscribe nooversubscribe use-hwthread-cpus tag-output prot quiet "
                "verbose timestamp-output report-bindings display-map display-allocation nolocal bynode byslot "
                "bycore bysocket pernode genvall genvnone envall envnone"
            )
        ),
        pairs=names("-mca --mca -gmca --gmca -genv -env"),
        single=("-pernode", "--pernode"),
        needs=(Need("-np {each}"),),
        several=False,
        without=_NO_SLURM,
    ),
    "srun": Kind(("srun",), nodes=("--nodes", "-N"), each=("--ntasks-per-node",), total=("--ntasks", "-n")),
}
# torchtune 0.6 (_cli/run.py): torchrun's options, any of which a recipe for one device refuses.
KINDS["tune"] = replace(
    KINDS["torchrun"],
    calls=("tune run",),
    needs=tuple(replace(need, on="many") for need in KINDS["torchrun"].needs[1:]),
)
_COUNTS_GPUS = re.compile(r"(?i)nvidia-smi|rocm-smi|device_count|CUDA_VISIBLE_DEVICES|GPUS_(ON|PER)_NODE")
# What the launcher fills in, as a script can write it.
_IN_SCRIPTS = (("{index}", "$NODE_RANK"), ("{address}", "$MASTER_ADDR"), ("{port}", "$MASTER_PORT"))
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Counts:
    """What a starter's arguments state; None where they state nothing, or only a shell could read it.

    Attributes:
        nodes: the fewest and most starts; each: processes of a start, or ``gpu``, ``auto``; total: those of all.
        unread: options whose value only a shell could read.
    """

    nodes: tuple[int, int] | None = None
    each: int | str | None = None
    total: int | None = None
    unread: tuple[str, ...] = ()


def starts_of(plan: Plan, starter: Starter) -> tuple[int, int]:
    """How many starts of it form a world in a job, and the processes of each."""
    alone = plan.world in ("none", plan.gpus_per_task)
    alone |= plan.world == "any" and not {*KINDS[starter.name].refused}.isdisjoint(_options(starter))
    return 1 if alone else plan.tasks, plan.gpus_per_task


def conflicts(starter: Starter, starts: int, each: int, *, by_gpu: bool, unit: str = "node") -> Iterator[str]:
    """Why it would form another world than one of ``each`` processes in each of so many starts.

    Args:
        by_gpu: it sees GPUs there, so that it can count them.
        unit: what it is started on: a ``node``, or each ``rank`` of a job that has several on a node.
    """
    kind, given = KINDS[starter.name], _options(starter)
    if not kind.needs:
        yield f"{starter.name} starts ranks in the job, and the job's own ranks are started already"
    if starts > 1 and not kind.several:
        yield f"{starter.name}, started on each of {starts} {unit}s, forms a world on each"
    yield from miscounts(starter, starts, each, by_gpu=by_gpu, unit=unit)
    if starts * each > 1 and (names := given.keys() & kind.single):
        yield f"with {min(names)} it starts one process, and the job has {counted(starts * each, 'GPU')}"
    yield from _apart(kind, given, starts, unit) if starts > 1 else ()
    empty = [name for name in (*kind.nodes, *kind.each, *kind.total, *kind.index, *kind.place) if given.get(name) == ""]
    if empty:
        yield f"{empty[0]} has no value in the job"
    lacks = [word for word in additions(starter, starts, each, by_gpu=by_gpu) if not word.endswith("={port}")]
    if starter.line and not starter.call and lacks and not (starts == 1 and by_gpu and kind.counts_gpus):
        words = reduce(lambda text, each: text.replace(*each), _IN_SCRIPTS, " ".join(lacks))
        yield f"it needs {words}, which gpu-runner gives it only where bash finds it by its name alone"


def miscounts(starter: Starter, starts: int, each: int, *, by_gpu: bool, unit: str = "node") -> Iterator[str]:
    """The numbers that it states and that are not the job's. Args: as ``conflicts``."""
    kind, given, stated = KINDS[starter.name], _options(starter), counts(starter)
    fewest, most = stated.nodes or (starts, starts)
    if stated.each is not None and stated.each != each and not (by_gpu and stated.each in ("gpu", "auto")):
        yield f"{_name(given, kind.each)} is {stated.each}, and the job has {counted(each, 'GPU')} on each {unit}"
    if by_gpu and (fewer := _fewer_gpus(starter, each)):
        yield f"{fewer}, and the job has {counted(each, 'GPU')} on each {unit}"
    if not fewest <= starts == most:
        text = _given(given, kind.nodes)
        yield f"{_name(given, kind.nodes)} is {text}, and the job has {counted(starts, unit)}"
    if stated.total not in (None, starts * each):
        yield f"{_name(given, kind.total)} is {stated.total}, and the job has {counted(starts * each, 'GPU')}"


def _apart(kind: Kind, given: Mapping[str, str], starts: int, unit: str) -> Iterator[str]:
    """Why starts on several nodes would not meet."""
    for name, value in given.items():
        if name in kind.refused:
            yield f"{name} is for one {unit}, and the job has {starts} {unit}s"
        if name in kind.index and value.isdigit():
            yield f"{name} is {value} on each of {starts} {unit}s"
        if name in kind.place and re.match(r"localhost\b|127\.|0\.0\.0\.0|\[?::1", value):
            yield f"{name} is {value}, where the {unit}s do not meet"


def _fewer_gpus(starter: Starter, each: int) -> str:
    """What leaves it less than so many GPUs of a node; empty for nothing that is seen."""
    if starter.visible is not None and starter.visible < each:
        return f"{VISIBLE} shows it {counted(starter.visible, 'GPU')}"
    refused = KINDS[starter.name].refused
    named = (value for name, value in _options(starter).items() if name in ("--include", "-i") and name in refused)
    fewer = (value for value in named if re.fullmatch(r"[^:@]*:[\d,]+", value) and value.count(",") + 1 != each)
    return next((f"--include is {value}" for value in fewer), "")


def unread_count(starter: Starter) -> str:
    """The option and the text of a number of processes or nodes that only a run tells; empty where there is none, or
    where it is the number of GPUs there.
    """
    kind, given = KINDS[starter.name], _options(starter)
    unread = (name for name in counts(starter).unread if name in (*kind.nodes, *kind.each, *kind.total))
    texts = (f"{name} {as_written(given[name])}" for name in unread)
    return next((text for text in texts if not _COUNTS_GPUS.search(text)), "")


def additions(starter: Starter, starts: int, each: int, *, by_gpu: bool) -> tuple[str, ...]:
    """The arguments that it gets before its own; ``Need`` says what is to be filled in. Args: as ``conflicts``."""
    kind, given = KINDS[starter.name], _options(starter)
    modes = {"together" if starts > 1 else "alone", "" if by_gpu else "cpu"}
    modes |= {"many"} if starts * each > 1 else set()
    modes |= {"uncounted"} if starts * each > 1 and (each == 1 or not by_gpu) else set()
    numbers = {"starts": starts, "each": each, "total": starts * each}
    words: list[str] = []
    for need in kind.needs:
        name = re.split("[= ]", need.text)[0].replace("_", "-")
        alike = next((group for group in (kind.nodes, kind.each, kind.total, kind.place) if name in group), (name,))
        stated = any(other in alike or other.startswith(need.unless) for other in given)
        if modes & {*need.on.split()} and not stated:
            words += re.sub(r"\{(starts|each|total)\}", lambda found: str(numbers[found[1]]), need.text).split()
    return tuple(words)


def _name(given: Mapping[str, str], names: Sequence[str]) -> str:
    return next(name for name in given if name in names)


def plain(starter: Starter) -> tuple[str, ...]:
    """The Python program that it would start, without it; empty where none is seen."""
    for place, word in enumerate(starter.arguments):
        if is_python(word):
            return starter.arguments[place:]
        if word.endswith(".py"):
            return ("python", *starter.arguments[place:])
        if word in ("-m", "--module"):
            return ("python", "-m", *starter.arguments[place + 1 :])
    return ()


def counts(starter: Starter) -> Counts:
    """What its own arguments state."""
    kind, given = KINDS[starter.name], _options(starter)
    nodes = _given(given, kind.nodes)
    fewest, colon, most = (nodes or "").partition(":")
    limits = (number(fewest), number(most if colon else fewest))
    each, total = _given(given, kind.each), number(_given(given, kind.total))
    placed = re.fullmatch(r"ppr:(\d+):node(:.*)?", each or "")
    each = placed[1] if placed else each
    if ":" in starter.arguments and not kind.several:  # programs, each with its own number
        other = starter.arguments[starter.arguments.index(":") + 1 :]
        rest = counts(msgspec.structs.replace(starter, arguments=other)).total
        total = total + rest if total is not None and rest is not None else None
    return Counts(
        (limits[0], limits[1]) if limits[0] is not None and limits[1] is not None else None,
        each if each in ("gpu", "auto", "cpu") else number(each) if kind.several or total is None else None,
        total,
        tuple(name for name, value in given.items() if UNREAD in value or (value.startswith("ppr:") and not placed)),
    )


def options(starter: Starter) -> Iterator[tuple[str, str, int]]:
    """Its options before the program: ``-`` for ``_``, a beginning as the whole name; the value, empty of a flag; and
    where the next argument is.
    """
    kind, words, place = KINDS[starter.name], starter.arguments, 0
    while place < len(words) and words[place].startswith(("-", UNREAD)):
        name, equals, value = words[place].partition("=")
        name = name.replace("_", "-")
        if name[:2] == "--" != name:
            name = name if name in kind.known else next((each for each in kind.known if each.startswith(name)), name)
        elif (
            name not in kind.known
            and name[:2] in kind.known
            and name[:2] not in kind.flags
            and not re.match("-[nN][a-z]", name)
        ):
            name, value, equals = name[:2], name[2:], "="  # -n4
        place += 1
        takes_value = not equals and name not in kind.flags and UNREAD not in name
        if takes_value and place < len(words) and not words[place].startswith("-") and not is_program(words[place]):
            value, place = words[place], place + 1 + (name in kind.pairs)
        yield name, value, place


def _options(starter: Starter) -> dict[str, str]:
    return {name: value for name, value, _ in options(starter)}


def _given(given: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The value of the last of these options that is given; None for none."""
    return next((given[name] for name in reversed(tuple(given)) if name in names), None)


def number(text: str | None) -> int | None:
    """A whole number as options have it; None for any other text."""
    return int(text) if text is not None and re.fullmatch(r"\s*\d{1,7}\s*", text, re.ASCII) else None


def base(path: str) -> str:
    """The name of a program."""
    return path.rpartition("/")[2]


def is_python(word: str) -> bool:
    return re.fullmatch(r"python[\d.]*t?", base(word)) is not None


def is_program(word: str) -> bool:
    return is_python(word) or word.endswith(".py")
