"""Programs that start ranks themselves, as torchrun and mpirun do, before a user's program or in a script. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import msgspec

from runner.core.text import counted
from runner.model.plan import Plan, Starter
from runner.planning.shell_text import UNREAD, Read, as_written, commands, nothing


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


def _flags(names: str) -> frozenset[str]:
    return frozenset(names.split())


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
        flags=_flags(
            "--standalone -m --module --no-python --run-path --use-env --virtual-local-rank -h --help "
            "--duplicate-stdout-filters --duplicate-stderr-filters"
        ),
        refused=("--standalone",),
        needs=(
            Need("--standalone", "alone", unless=("--rdzv", "--master")),
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
        flags=_flags(
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
        flags=_flags(
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
        flags=_flags("-v --verbose -m --module-mode -c --command-mode"),
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
        flags=_flags("--verbose --gloo --mpi --js --tcp --disable-cache"),
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
            for name in _flags(
                "v q d l V allow-run-as-root oversubscribe nooversubscribe use-hwthread-cpus tag-output prot quiet "
                "verbose timestamp-output report-bindings display-map display-allocation nolocal bynode byslot "
                "bycore bysocket pernode genvall genvnone envall envnone"
            )
        ),
        pairs=_flags("-mca --mca -gmca --gmca -genv -env"),
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
_CALLS = {tuple(call.split()): name for name, kind in KINDS.items() for call in kind.calls}
# Programs that start others, with counts and meetings of their own that are not known here.
_OTHERS = (
    "colossalai run", "lightning run", "docker run", "podman run", "ray start", "ray job", "dask-mpirun",
    "bagua-launch", "jsrun", "aprun", "flux run", "pdsh", "prterun", "prun", "ibrun", "llamafactory-cli train",
    "swift sft", "axolotl train", "xtuner train", "torchx run", "-m accelerate launch", "-m deepspeed",
    "-m deepspeed.launcher.launch", "-m paddle.distributed.launch", "-m mpi4py.run",
)  # fmt: skip
_CALLS |= {tuple(call.split()): call for call in _OTHERS}
_SCRIPTS = (".sh", ".bash")
_NAMES = frozenset(call[0] for call in _CALLS)
# Programs that start the command after their own options, and which of those, beside --no-..., take no value.
_WRAPPERS = _flags(
    "env nice ionice nohup setsid stdbuf time timeout numactl taskset uv uvx poetry pipenv pdm hatch rye nsys ncu "
    "catchsegv chrt flock conda mamba micromamba pixi strace exec command sudo xvfb-run py-spy apptainer singularity"
)
_WRAPPER_FLAG = re.compile(
    r"--|--.+=.*|--no-(?!extra|group|binary|build).+|"
    r"--(active|isolated|frozen|locked|offline|exact|dev|all-(extras|groups)|quiet|verbose|wait|live-stream|localalloc|"
    r"foreground|nv|rocm|cleanenv)"
)
# An environment, a package, a user, a file: its value may have a starter's name.
_NAMES_ONE = re.compile("-[neuop]|--(with|from|name|env(ironment)?|(only-)?group|extra|package|output|user|pwd|prefix)")
# What a shell's own set-up prints, for it to run.
_SETS_UP = re.compile(r"[$]\((\S*/)?(conda|mamba|micromamba|pyenv|brew|direnv|modulecmd|ssh-agent|dircolors)\b")
# What installs, finds or prints what it names.
_INSTALL = _flags("install uninstall pip add remove download load upgrade")
_MENTION = _flags(
    "echo printf which type hash whereis man pkill killall pgrep grep sed awk test [ [[ export alias unset set"
) | (_flags("cd ls cp rm mv ln mkdir chmod touch git -v -V"))
_MAY_START = re.compile("|".join((*map(re.escape, _NAMES), *map(re.escape, _SCRIPTS))))
_FOUND = re.compile(r"(?:[$]\(|`)(?:which|command -v|type -[pP]) ([\w.-]+)")
_COUNTS_GPUS = re.compile(r"(?i)nvidia-smi|rocm-smi|device_count|CUDA_VISIBLE_DEVICES|GPUS_(ON|PER)_NODE")
# What the launcher fills in, as a script can write it.
_IN_SCRIPTS = (("{index}", "$NODE_RANK"), ("{address}", "$MASTER_ADDR"), ("{port}", "$MASTER_PORT"))
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DEEPEST = 4  # scripts that call each other
_RUNS = ("system", "popen", "Popen", "run", "call", "check_", "getoutput", "exec", "spawn", "posix_spawn")
_SHELLS = _flags("bash sh dash zsh ksh")
# Of Python's options the one that ends them (-c, -m), or takes a value (-W, -X), and what is attached to it.
_PYTHON_OPTION = re.compile(r"-[^-cmWX]*([cmWX])(.*)", re.DOTALL)


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


def starter(program: Sequence[str]) -> Starter | None:
    """The one that an argument list begins with, by any path, behind ``python``, ``python -m``, ``env`` or a profiler,
    too; else None.
    """
    found = _starter(program)
    return found if found is not None and found.name in KINDS else None


def _starter(program: Sequence[str]) -> Starter | None:
    """``starter``, or a program of which is only known that it starts others."""
    place = _wrapped(program)
    words = tuple(program[place:])
    if not words or not _INSTALL.isdisjoint(program[1:place]):
        return None
    called, read = _run_by_python(words)[:2] if _is_python(words[0]) else ((_base(words[0]),), 1)
    for call, kind in _CALLS.items():
        end = read + max(0, len(call) - len(called))
        if (*called, *words[read:end]) == call:
            direct = not place and "/" not in words[0]
            shown = dict(word.split("=", 1) for word in program[:place] if "=" in word).get(_VISIBLE)
            return Starter(kind, words[end:], place + end, words[:end] if direct else (), visible=_listed(shown))
    return None


def starters(
    program: Sequence[str], read: Read = nothing, variables: Mapping[str, str] | None = None
) -> tuple[Starter, ...]:
    """The starters of a program: the one that it begins with, or those of the shell scripts that it runs.

    Args:
        variables: of the job's environment, as far as they are known, for the scripts.
    """
    return tuple(each for each in launchers(program, read, variables) if each.name in KINDS)


def launchers(
    program: Sequence[str],
    read: Read = nothing,
    variables: Mapping[str, str] | None = None,
    outer: tuple[str, ...] = (),
) -> tuple[Starter, ...]:
    """``starters``, and beside them those with a name that the table has not: of programs that start others in a way
    that is not known, and of commands that only their shell could read.

    Args:
        outer: the scripts that this program stands in.
    """
    first = _starter(program)
    if first is not None:
        return (first,)
    name, text, arguments = _shell(program)
    place = _wrapped(program)
    shell = _base(program[place]) if program else ""
    named = name if shell in _SHELLS else program[0] if program else ""  # which only a shell could read
    script, name = ("", "") if text or len(outer) == _DEEPEST else _nested(name, read, outer)
    if named and _is_unread(named) and not script:
        words = program[: place + 1] if shell in _SHELLS else ()
        return (Starter(" ".join((*words, as_written(named))), tuple(program[1:])),)
    if not (text or script) or (name and outer.count(name) > 1):  # one that calls itself may take another branch
        return tuple(_mentioned(program, outer))
    interpreter = script.partition("\n")[0]
    if not (shell in _SHELLS or shell.endswith(_SCRIPTS) or re.match(r"#!.*\b(ba|da|z|k)?sh\b", interpreter)):
        return ()
    if text and arguments:
        variables = {**(variables or {}), "0": arguments[0]}
    found = in_script(text or script, variables, arguments[1:], read, (*outer, name))
    before = {*map(_base, program[:place])}
    is_swept = "sudo" in before or program[place + 1 : place + 2] == ("-p",) or ("env" in before and "-i" in before)
    if not is_swept and (shell == "bash" or (shell not in _SHELLS and "bash" in interpreter)):
        return found
    return tuple(msgspec.structs.replace(each, call=()) for each in found)  # no other shell takes functions so


def in_script(
    text: str,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    read: Read = nothing,
    outer: tuple[str, ...] = (),
) -> tuple[Starter, ...]:
    """The launchers that a shell script calls, in the order of its text; ``line`` says where, also of those in scripts
    that it calls.

    Args:
        variables: of its environment, as far as they are known. arguments: its own. outer: as of ``launchers``.
    """
    found: dict[Starter, None] = {}
    environment, written, folder = dict(variables or {}), dict[str, str](), ""
    of_job, hidden = environment.get(_VISIBLE), set[str]()

    def here(name: str) -> str:
        return written.get(name.removeprefix("./")) or read(name) or (folder and read(f"{folder}/{name}"))

    def script(name: str) -> str:
        return _nested(name, here, outer)[0]

    for command in commands(text, variables, arguments, script, inner=True):
        words, line, is_choice = command.words, command.line, command.is_choice
        base, variables = _base(words[0]), {**environment, **dict(command.env)}
        of_shell = words[2:] if words[1:2] == ("-s",) else ()
        told: list[Starter] = []
        if command.is_inner:
            started = launchers(words, here, variables, (*outer, "$(")) if _MAY_START.search(" ".join(words)) else ()
            told = [_quoted(" ".join(words))] * any(each.name in KINDS and each.name != "srun" for each in started)
        elif words[0] == "export":
            environment |= {name: value for name, _, value in (word.partition("=") for word in words[1:])}
        elif words[:2] == ("unset", "-f"):
            hidden |= {*words[2:]}
        elif base in ("cd", "pushd") and UNREAD not in "".join(words):
            folder = f"{folder}/{words[-1]}".strip("/") if not words[-1].startswith("/") else words[-1]
        elif (given := command.text or script(command.file)) and _reads(words):
            told = [*in_script(given, variables, of_shell, here, outer)]
        elif _is_python(words[_wrapped(words)]) and command.text:
            told = [_quoted(each) for each in _calls(command.text) if _starts(each, outer, here)][:1]
        elif (printed := (*command.fed, command.text)) != ("",) and (_reads(words) or base in ("source", ".", "xargs")):
            fed = [" ".join(printed[1:]), *printed, *map(script, (each.strip() for each in printed))]
            told = [Starter(f"{words[0]}, by what it reads,", ())] * any(_starts(each, outer, here) for each in fed)
        if command.into or base == "tee":
            text = command.text or ("\n" if base == "printf" else " ").join(words[1:])
            written |= dict.fromkeys((command.into, *words[1:] * (base == "tee")), text)
        for each in told or ([] if command.is_inner else launchers(words, here, variables, outer)):
            is_hidden = (command.is_program and not each.line) or not hidden.isdisjoint(each.call[:1])
            seen = variables.get(_VISIBLE)
            changed = msgspec.structs.replace(
                each,
                line=line,
                call=() if is_hidden else each.call,  # exec finds no function
                is_choice=is_choice or each.is_choice,
                visible=each.visible if each.visible is not None or seen == of_job else _listed(seen),
            )
            found[changed] = None
    return tuple(found)


def _reads(words: Sequence[str]) -> bool:
    """Whether it is a shell that runs what it reads."""
    file, text, _ = _shell(words)
    place = _wrapped(words)
    is_shell = _base(words[place]) in _SHELLS and not text
    return is_shell and (file in ("", "/dev/stdin") or file.startswith(UNREAD) or "-s" in words[place + 1 : place + 2])


def _quoted(text: str) -> Starter:
    return Starter(f"`{as_written(' '.join(text.split()))[:40]}`", ())


def _calls(code: str) -> Iterator[str]:
    """The command lines that a program in Python may run: the texts in a call of what runs one."""
    try:
        calls = [each for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Call)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for call in calls:
        if getattr(call.func, "attr", getattr(call.func, "id", "")).startswith(_RUNS):
            within = [each.value for each in ast.walk(call) if isinstance(each, ast.Constant)]
            texts = [each for each in within if isinstance(each, str)]
            yield from (*texts, " ".join(texts), " ".join(("python", *texts)))


def _starts(text: str, outer: tuple[str, ...], read: Read = nothing) -> bool:
    """Whether a text that may be a script starts ranks. With srun it mostly asks for the hosts' names."""
    found = (
        in_script(text, read=read, outer=(*outer, "$(")) if len(outer) < _DEEPEST and _MAY_START.search(text) else ()
    )
    return any(each.name in KINDS and each.name != "srun" for each in found)


def _mentioned(program: Sequence[str], outer: tuple[str, ...]) -> Iterator[Starter]:
    """A starter's call among the words of a program that may run it."""
    words = [found[1] if (found := _FOUND.search(word)) else word for word in program]
    if not words or _base(words[0]) in _MENTION or not _INSTALL.isdisjoint(words[:4]):
        return
    by_python = _is_python(words[_wrapped(words)])
    code = _run_by_python(words[_wrapped(words) :])[2] if by_python else ""
    for each in _calls(code) if code else ():
        if _starts(each, outer):
            yield _quoted(each)
            return
    for place, word in enumerate(words[1:], 1):
        before, rest = words[place - 1], words[place + 1 :]
        call = next((call for call in _CALLS if (_base(word), *rest)[: len(call)] == call), ())
        unsure = by_python or before.startswith("--")
        starts = any(map(_is_program, rest)) if unsure else rest or _base(words[0]) == "xargs"
        is_value = "=" in word or (place > 1 and _NAMES_ONE.fullmatch(before))
        if (call and not is_value and (len(call) > 1 or starts)) or (" " in word and _starts(word, outer)):
            yield Starter(f"{as_written(words[0])} ... {' '.join(call) or as_written(word)}", ())
            return


def _nested(name: str, read: Read, outer: tuple[str, ...]) -> tuple[str, str]:
    """The text of a script that one of others runs, from where they run or else from beside them, and its name. What
    only a shell could read in front of it (``$(dirname "$0")``) is mostly the directory of its own script.
    """
    beside = outer[-1].rpartition("/")[0] if outer else ""
    plain = re.sub(rf"^{UNREAD}+[^{UNREAD}]*{UNREAD}+/|^\./", "", name)
    names = dict.fromkeys((name, plain, f"{beside}/{plain}" if beside else plain))
    return next(((text, each) for each in names if each and UNREAD not in each and (text := read(each))), ("", name))


def _is_unread(word: str) -> bool:
    """Whether only a shell could read which program it is, and it is no Python. A function's arguments stand where it
    is called.
    """
    if re.fullmatch(rf"{UNREAD}+\$[@*1-9]{UNREAD}+", word) or _SETS_UP.search(word):
        return False
    return _base(word).startswith(UNREAD) and _base(word).endswith(UNREAD) and "python" not in word.lower()


def starts_of(plan: Plan, starter: Starter) -> tuple[int, int]:
    """How many starts of it form a world in a job, and the processes of each."""
    alone = plan.world in ("none", plan.gpus_per_task)
    alone |= plan.world == "any" and not {*KINDS[starter.name].refused}.isdisjoint(_options(starter))
    return 1 if alone else plan.tasks, plan.gpus_per_task


def conflict(starter: Starter, starts: int, each: int, *, by_gpu: bool, unit: str = "node") -> str:
    """Why it would form another world than one of ``each`` processes in each of so many starts; empty where it would
    not.

    Args:
        by_gpu: it sees GPUs there, so that it can count them.
        unit: what it is started on: a ``node``, or each ``rank`` of a job that has several on a node.
    """
    return next(_conflicts(starter, starts, each, by_gpu=by_gpu, unit=unit), "")


def _conflicts(starter: Starter, starts: int, each: int, *, by_gpu: bool, unit: str) -> Iterator[str]:
    kind, given, stated = KINDS[starter.name], _options(starter), counts(starter)
    fewest, most = stated.nodes or (starts, starts)
    if not kind.needs:
        yield f"{starter.name} starts ranks in the job, and the job's own ranks are started already"
    if starts > 1 and not kind.several:
        yield f"{starter.name}, started on each of {starts} {unit}s, forms a world on each"
    if stated.each is not None and stated.each != each and not (by_gpu and stated.each in ("gpu", "auto")):
        yield f"{_name(given, kind.each)} is {stated.each}, and the job has {counted(each, 'GPU')} on each {unit}"
    if by_gpu and (fewer := _fewer_gpus(starter, each)):
        yield f"{fewer}, and the job has {counted(each, 'GPU')} on each {unit}"
    if not fewest <= starts == most:
        text = _given(given, kind.nodes)
        yield f"{_name(given, kind.nodes)} is {text}, and the job has {counted(starts, unit)}"
    if stated.total not in (None, starts * each):
        yield f"{_name(given, kind.total)} is {stated.total}, and the job has {counted(starts * each, 'GPU')}"
    if starts * each > 1 and (names := given.keys() & kind.single):
        yield f"with {min(names)} it starts one process, and the job has {counted(starts * each, 'GPU')}"
    yield from _apart(kind, given, starts, unit) if starts > 1 else ()
    empty = [name for name in (*kind.nodes, *kind.each, *kind.total, *kind.index, *kind.place) if given.get(name) == ""]
    if empty:
        yield f"{empty[0]} has no value in the job"
    lacks = [
        word for word in additions(starter, starts, each, by_gpu=by_gpu) if not word.endswith(("alone", "={port}"))
    ]
    if starter.line and not starter.call and lacks and not (starts == 1 and by_gpu and kind.counts_gpus):
        words = reduce(lambda text, each: text.replace(*each), _IN_SCRIPTS, " ".join(lacks))
        yield f"it needs {words}, which gpu-runner gives it only where bash finds it by its name alone"


def _apart(kind: Kind, given: Mapping[str, str], starts: int, unit: str) -> Iterator[str]:
    """Why starts on several nodes would not meet."""
    for name, value in given.items():
        if name in kind.refused:
            yield f"{name} is for one {unit}, and the job has {starts} {unit}s"
        if name in kind.index and value.isdigit():
            yield f"{name} is {value} on each of {starts} {unit}s"
        if name in kind.place and re.match(r"localhost\b|127\.|0\.0\.0\.0|\[?::1", value):
            yield f"{name} is {value}, where the {unit}s do not meet"


def _listed(devices: str | None) -> int | None:
    """How many a value of CUDA_VISIBLE_DEVICES lists; None where it has none, or only a run tells."""
    return None if devices is None or UNREAD in devices else len(devices.split(","))


def _fewer_gpus(starter: Starter, each: int) -> str:
    """What leaves it less than so many GPUs of a node; empty for nothing that is seen."""
    if starter.visible is not None and starter.visible < each:
        return f"{_VISIBLE} shows it {counted(starter.visible, 'GPU')}"
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
    """The arguments that it gets before its own; ``Need`` says what is still to be filled in. Args: as ``conflict``."""
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


def script_of(program: Sequence[str]) -> str:
    """The file of the shell script that a program runs; empty where it runs none."""
    return _shell(program)[0] if starter(program) is None else ""


def plain(starter: Starter) -> tuple[str, ...]:
    """The Python program that it would start, without it; empty where none is seen."""
    for place, word in enumerate(starter.arguments):
        if _is_python(word):
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
    limits = (_number(fewest), _number(most if colon else fewest))
    each, total = _given(given, kind.each), _number(_given(given, kind.total))
    placed = re.fullmatch(r"ppr:(\d+):node(:.*)?", each or "")
    each = placed[1] if placed else each
    if ":" in starter.arguments and not kind.several:  # programs, each with its own number
        other = starter.arguments[starter.arguments.index(":") + 1 :]
        rest = counts(msgspec.structs.replace(starter, arguments=other)).total
        total = total + rest if total is not None and rest is not None else None
    return Counts(
        (limits[0], limits[1]) if limits[0] is not None and limits[1] is not None else None,
        each if each in ("gpu", "auto", "cpu") else _number(each) if kind.several or total is None else None,
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
        if takes_value and place < len(words) and not words[place].startswith("-") and not _is_program(words[place]):
            value, place = words[place], place + 1 + (name in kind.pairs)
        yield name, value, place


def _options(starter: Starter) -> dict[str, str]:
    return {name: value for name, value, _ in options(starter)}


def _given(given: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The value of the last of these options that is given; None for none."""
    return next((given[name] for name in reversed(tuple(given)) if name in names), None)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,7}", text, re.ASCII) else None


def _wrapped(program: Sequence[str]) -> int:
    """Where the command begins that a wrapper starts: at Python, a shell or a starter, unless it is an option's
    value; else at the first program with a path.
    """
    if not program or _base(program[0]) not in _WRAPPERS:
        return 0
    for place in range(1, len(program)):
        base = _base(program[place]) if "=" not in program[place] else ""
        starts = _is_python(base) or base in _NAMES or base in _SHELLS or base.endswith(_SCRIPTS)
        before = program[place - 1]
        if starts and not _NAMES_ONE.fullmatch(before) and (before[:2] != "--" or _WRAPPER_FLAG.fullmatch(before)):
            return place
    paths = (place for place in range(1, len(program)) if program[place].startswith(("./", "/")))
    return next((place for place in paths if program[place - 1][:1] != "-"), 0)


def _run_by_python(words: Sequence[str]) -> tuple[tuple[str, ...], int, str]:
    """What Python runs: ``-m`` and the module, or a script's name; how many words that and its options are; the text
    behind ``-c``.
    """
    place = 1
    while place < len(words):
        word = words[place]
        option = _PYTHON_OPTION.fullmatch(word)
        place += 1
        if option is not None:
            value = option[2]
            if not value and place < len(words):
                value, place = words[place], place + 1
            if option[1] in "cm":
                return (("-m", value) if option[1] == "m" else ()), place, value * (option[1] == "c")
        elif not word.startswith("-") or word == "-":
            return (_base(word),), place, ""
    return (), place, ""


def _shell(program: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """The script's file, or the text behind ``-c``, and its arguments from ``$0`` on, of a shell that a program begins
    with.
    """
    words = tuple(program[_wrapped(program) :])
    is_shell = bool(words) and _base(words[0]) in _SHELLS
    if words and not is_shell and (words[0].endswith(_SCRIPTS) or ("/" in words[0] and not _is_python(words[0]))):
        return words[0], "", words  # whatever its name, its first line says whether a shell runs it
    if not is_shell:
        return "", "", ()
    place = 1
    while place < len(words) and words[place].startswith(("-", "+")):
        takes = re.fullmatch(r"[-+][A-Za-z]*[oO]|--rcfile|--init-file", words[place])
        if re.fullmatch(r"-[A-Za-z]*c[a-z]*", words[place]):
            return "", "".join(words[place + 1 : place + 2]), words[place + 2 :]
        place += 2 if takes else 1
    return "".join(words[place : place + 1]), "", words[place:]


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _is_python(word: str) -> bool:
    return re.fullmatch(r"python[\d.]*t?", _base(word)) is not None


def _is_program(word: str) -> bool:
    return _is_python(word) or word.endswith(".py")
