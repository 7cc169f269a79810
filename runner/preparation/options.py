"""The options of a job, each declared once: the command line's options and Python's keywords both follow from here.

An option is a key of ``Options`` with what there is to know of it. Its kind says how its value is read, from a text and
from Python, and how it is written for a reader.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, SupportsIndex, TypedDict, TypeVar, get_args

from runner.core.errors import UsageError
from runner.core.text import instead
from runner.model.request import Request, Wireup, parse_duration_s, parse_mount, parse_sbatch_time_s

DEFAULT_RECIPE = "horovod-pytorch"
T = TypeVar("T")


def path_of(value: object) -> str:
    """A path, or a text, as a text. Raises TypeError where it is neither."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise TypeError(f"it is {type(text).__name__}, and must be a text or a path")
    return text


def place_of(value: object) -> str:
    """A path of this machine, as a text. Raises ValueError or TypeError where it is none."""
    text = path_of(value)
    if "\0" in text:
        raise ValueError("it has a NUL character")
    return text


def count_of(value: object) -> int:
    """A number of things, from one on. Raises TypeError or ValueError where it is none."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"it is {type(value).__name__}, and must be a whole number")
    count = value.__index__()
    if count < 1:
        raise ValueError("it must be one or more")
    return count


def texts_of(values: object) -> tuple[str, ...]:
    """A list of texts. Raises TypeError or ValueError where it is none."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError("it is one text, and must be a list" if isinstance(values, str) else "it must be a list")
    return tuple(map(path_of, values))


def pairs_of(values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """As the command line writes them: true and false as in YAML, several values with commas between them."""
    return tuple((_named(name), _text(value)) for name, value in values.items())


def pair(text: str) -> tuple[str, str]:
    """``KEY=VALUE``. Raises ValueError where it is something else."""
    name, equals, rest = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not KEY=VALUE")
    return name, rest


def _named(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name is {type(name).__name__}, and must be a text")
    return name


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_it_is(value: Any) -> Any:
    return value


def _one(value: Any) -> tuple[str, ...]:
    return (str(value),)


@dataclass(frozen=True)
class Kind:
    """How the values of an option are written.

    Attributes:
        read: a text of the command line; ValueError says why it cannot be read.
        take: a value from Python, whole; TypeError and ValueError say why not.
        write: the value as texts of the command line, one for each time that the option is given.
        key: where it may be given several times: what of an element says that a later one replaces it.
        choices: the texts that there are; empty for any. is_flag, is_number: as the command line shows it.
    """

    read: Callable[[str], Any] = str
    take: Callable[[Any], Any] = _as_it_is
    write: Callable[[Any], Iterable[str]] = _one
    key: Callable[[Any], object] | None = None
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    is_number: bool = False


def _variable(text: str) -> tuple[str, str | bool | None]:
    """``NAME=VALUE``; ``NAME`` (True) for its value in the shell that submits, so that no command line holds a secret;
    ``-NAME`` (None) for a variable that shall not be there.
    """
    if not text.startswith("-"):
        name, equals, value = text.partition("=")
        if not name:
            what = (
                f"{text!r} is not NAME=VALUE" if equals else "a variable without a name; use NAME=VALUE, NAME or -NAME"
            )
            raise ValueError(what)
        return name, value if equals else True
    name = text[1:]
    if not name or "=" in name:
        raise ValueError(f"{text!r} is not -NAME, which takes a variable away; NAME=VALUE sets one")
    return name, None


def _write_variable(name: str, value: str | bool | None) -> str:
    return f"-{name}" if value is None else name if value is True else f"{name}={value}"


def _seconds(limit: str | int) -> int:
    if not isinstance(limit, int):
        return parse_duration_s(limit)
    if limit <= 0:
        raise ValueError("a time limit of zero, or less")
    return limit


def _clock(seconds: int) -> tuple[str, ...]:
    hours, minutes = divmod(seconds // 60, 60)
    return (f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}",)


def _world(value: object) -> int | str:
    """``none``, ``any`` or a number of devices. Raises TypeError or ValueError where it is none of them."""
    if value in ("none", "any"):
        return str(value)
    if isinstance(value, str) and not re.fullmatch("[0-9]{1,7}", value):
        raise ValueError(f"{value!r} is neither none, nor any, nor a number")
    return count_of(int(value) if isinstance(value, str) else value)


def _sbatch_nodes(text: str) -> int:
    """A number of nodes as ``sbatch -N`` has it: ``2``, ``2-2``. Raises ValueError: it is none, or leaves a choice."""
    least, dash, most = text.partition("-")
    if not least.isdecimal() or (dash and most != least):
        raise ValueError(f"{text!r} is no single number of nodes (-N as of sbatch; a job's name: --name, -J)")
    return int(least)


def _module(text: str) -> str:
    """A module's name. Raises ValueError: it is empty, or several."""
    if len(text.split()) != 1:
        raise ValueError(f"{text!r} is not the name of one module, as `module avail` shows it")
    return text


def _first(element: Any) -> object:
    return element[0]


TEXT = Kind(take=path_of)
PLAIN = Kind()
PATH = Kind(take=place_of)
NUMBER = Kind(is_number=True)
FLAG = Kind(is_flag=True, write=lambda _value: ())
TEXTS = Kind(take=texts_of, write=tuple, key=_as_it_is)
PAIRS = Kind(read=pair, take=pairs_of, write=lambda pairs: [f"{name}={value}" for name, value in pairs], key=_first)
MODULES = Kind(_module, lambda names: tuple(map(_module, texts_of(names))), write=tuple, key=_as_it_is)
WORLD = Kind(read=_world, take=_world)
DURATION = Kind(read=parse_duration_s, take=_seconds, write=_clock)
VARIABLES = Kind(
    read=_variable,
    take=lambda variables: tuple(variables.items()),
    write=lambda variables: [_write_variable(*each) for each in variables],
    key=_first,
)
MOUNTS = Kind(
    read=parse_mount,
    take=lambda texts: tuple(map(parse_mount, texts_of(texts))),
    write=lambda mounts: [f"{each.source}:{each.target}{':ro' if each.read_only else ''}" for each in mounts],
    key=lambda mount: mount.target,
)


@dataclass(frozen=True)
class Option:
    """What there is to know of an option.

    Attributes:
        field: of ``Request`` that it sets; empty for that of its own name.
        flags: further flags. metavar, complete: as click and ``runner.cli.completion`` name it; empty for none.
        shows_default: its help names the default.
        sbatch: the letter of sbatch, a metavar, and how sbatch reads its value, where that is not how ``kind`` does.
        of_scheduler: it sets the scheduler's option of its name, in ``scheduler_options``, and no field of its own.
    """

    help: str
    kind: Kind = TEXT
    field: str = ""
    flags: tuple[str, ...] = ()
    metavar: str = ""
    complete: str = ""
    shows_default: bool = False
    sbatch: tuple[str, str, Callable[[str], Any]] | None = None
    of_scheduler: bool = False


def _of_scheduler(help: str, metavar: str, *flags: str) -> Option:
    return Option(help, PLAIN, flags=flags, metavar=metavar, of_scheduler=True)


GPUS = Option("Total number of GPUs; one rank on each.", NUMBER)
_Path = str | os.PathLike[str]


# fmt: off
class Options(TypedDict, total=False):
    """What ``submit`` takes besides the GPUs and the program: the options of the command line, by the same names."""

    nodes: Annotated[int, Option(
        "Number of nodes. [default: as few as possible]", NUMBER, sbatch=("-N", "N[-N]", _sbatch_nodes))]
    recipe: Annotated[_Path, Option(
        f"A shipped recipe, or a directory. [default: {DEFAULT_RECIPE}, or the program after --]", complete="recipes")]
    site: Annotated[_Path, Option(
        "A site, or a site file. [default: $RUNNER_SITE, the one in your configuration, the box if it is up, or "
        "the Slurm or PBS that answers]", complete="sites")]
    hosts: Annotated[str, Option(
        "Nodes to reach by ssh, without a scheduler, and ranks on each.", PLAIN, metavar="NAME:N,...")]
    hostfile: Annotated[_Path, Option("As --hosts, from a host file of horovodrun or mpirun.", PATH, metavar="FILE")]
    runtime: Annotated[str, Option("Container runtime. [default: the site's first]", PLAIN, complete="runtimes")]
    image: Annotated[_Path, Option(
        "Image reference, digest, or image file. [default: the recipe's]", complete="images")]
    mount: Annotated[Sequence[str], Option("Mount a host path.", MOUNTS, "mounts", metavar="SRC:DST[:ro]")]
    env: Annotated[Mapping[str, str | bool | None], Option(
        "Environment variable of every rank; without a value, its value in this shell; -NAME unsets it.",
        VARIABLES, metavar="[-]NAME[=VALUE]")]
    set: Annotated[Mapping[str, object], Option(
        "Option of the recipe's program.", PAIRS, "options", metavar="KEY=VALUE", complete="recipe options")]
    time: Annotated[str | int, Option(
        "Time limit. [default: the site's]", DURATION, "walltime_s", metavar="[D-][H:]M:S",
        sbatch=("-t", "MINUTES|[D-]H:M:S", parse_sbatch_time_s))]
    queue: Annotated[str, Option(
        "Queue, partition or QOS, whichever the site uses. [default: one that fits]",
        PLAIN, flags=("-p", "--partition"), complete="queues")]
    account: Annotated[str, Option(
        "Account to charge; none leaves it to the scheduler. [default: the one in your configuration]",
        PLAIN, flags=("-A",))]
    qos: Annotated[str, _of_scheduler("Quality of service.", "NAME")]
    nodelist: Annotated[str, _of_scheduler("Nodes that the job must have.", "NODES", "-w")]
    exclude: Annotated[str, _of_scheduler("Nodes that it must not have.", "NODES", "-x")]
    constraint: Annotated[str, _of_scheduler("Features that its nodes must have.", "LIST", "-C")]
    mem: Annotated[str, _of_scheduler("Memory of each node; 0 for all. [default: by the site's rule]", "SIZE")]
    dependency: Annotated[str, _of_scheduler(
        "Start after others; jobs by their ids, runs by their names.", "afterok:RUN,...")]
    reservation: Annotated[str, _of_scheduler("Use nodes of this reservation.", "NAME")]
    begin: Annotated[str, _of_scheduler("Start no earlier.", "TIME")]
    mail_type: Annotated[str, _of_scheduler("Events that are mailed: BEGIN, END, FAIL, ALL.", "TYPE,...")]
    mail_user: Annotated[str, _of_scheduler("Who gets the mails.", "ADDRESS")]
    project: Annotated[str, Option(
        "Project, if paths of the site contain it. [default: the one in your configuration]", PLAIN)]
    scratch: Annotated[str, Option(
        "Your scratch directory at the site. [default: the one in your configuration]", PLAIN)]
    field: Annotated[str, Option(
        "Your field of research, if the site asks for it. [default: the one in your configuration]", PLAIN)]
    gpu_type: Annotated[str, Option(
        "GPU type to request from the scheduler, or a MIG slice. [default: the site's]", PLAIN)]
    cpus_per_gpu: Annotated[int, Option("CPUs of each rank. [default: an equal share of the node]", NUMBER)]
    wireup: Annotated[Wireup, Option(
        "How ranks find each other. torchrun: by its variables; own: the program, started once a node, starts its "
        "own processes. [default: rendezvous, which needs no MPI; own for torchrun and others]",
        Kind(choices=get_args(Wireup)))]
    world: Annotated[int | str, Option(
        "GPUs that must form one world (process group); none: each process works for itself. [default: as the site or "
        "your configuration says, else all that torchrun and its like start]", WORLD, metavar="none|any|N")]
    bind: Annotated[Literal["auto", "none"], Option(
        "Bind each rank to the CPUs near its GPU, or do not bind.", Kind(choices=("auto", "none")), shows_default=True)]
    scheduler_option: Annotated[Mapping[str, object], Option(
        "Another option of sbatch or qsub: licenses=matlab, comment=X, hold=.",
        PAIRS, "scheduler_options", flags=("-S",), metavar="NAME=VALUE")]
    force: Annotated[Sequence[str], Option(
        "Submit even if the check CODE refuses; this is recorded.", TEXTS, metavar="CODE", complete="codes")]
    name: Annotated[str, Option(
        "Job name. [default: the recipe's]", Kind(take=str), "job_name", flags=("-J", "--job-name"))]
    runs: Annotated[_Path, Option(
        "Directory for run directories; every node must see it.", PATH, metavar="PATH", shows_default=True)]
    stage: Annotated[bool, Option("Copy the image to each node's local disk, verify it, and start from there.", FLAG)]
    meter: Annotated[bool, Option(
        "Measure the speed of your PyTorch training, without changing the program.", FLAG)]
    meter_batch: Annotated[int, Option(
        "As --meter, with N samples of a rank in each optimizer step. [default: as the model's input shows]",
        NUMBER, metavar="N")]
    env_name: Annotated[str, Option(
        "Run without a container, in this environment made by `env create`.", PLAIN, metavar="NAME|DIR")]
    module: Annotated[Sequence[str], Option(
        "Load a module of the cluster for a job without a container; in the order given.",
        MODULES, "modules", metavar="NAME")]
    snapshot: Annotated[bool, Option(
        "Copy your program's tracked files (git) into the run directory and run the copy.", FLAG)]
    no_diff: Annotated[bool, Option("Keep no copy of your program's uncommitted changes (git diff).", FLAG)]
# fmt: on


OPTIONS: Mapping[str, Option] = {
    name: next(each for each in get_args(hint) if isinstance(each, Option))
    for name, hint in Options.__annotations__.items()
}
# Field of ``Request`` -> its option's name and the option.
FIELDS: Mapping[str, tuple[str, Option]] = {
    each.field or name: (name, each) for name, each in OPTIONS.items() if not each.of_scheduler
}


def by_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of options as those of fields of ``Request``: one field has all options of the scheduler."""
    own = {name: value for name, value in values.items() if name not in OPTIONS or not OPTIONS[name].of_scheduler}
    more = tuple((name.replace("_", "-"), value) for name, value in values.items() if name not in own)
    return own | ({"scheduler_options": (*own.get("scheduler_options", ()), *more)} if more else {})


def program_of(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a command. Raises UsageError: it is one text, or has something else than texts."""
    if isinstance(command, str):
        fix = f'a list of words, which no shell reads: command=["python", ...], not {command!r}'
        raise UsageError("the command is one text", where="command", fix=fix)
    try:
        return tuple(map(path_of, command))
    except TypeError as error:
        raise UsageError(f"the command cannot be read: {error}", where="command", fix="a list of texts") from None


def number_of(value: object) -> float:
    """A number. Raises TypeError where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"it is {type(value).__name__}, and must be a number")
    return value


_DEFAULTS = Request(gpus=1)


def default_of(field: str) -> Any:
    """Of a field of ``Request``."""
    return getattr(_DEFAULTS, field)


def values_of(verb: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of Python as fields of ``Request``; None stands for the default. Raises UsageError: one is unknown, or
    wrong.
    """
    values = {}
    for name, value in options.items():
        if value is None:
            continue
        if name not in OPTIONS:
            fix = instead(name, OPTIONS, ", ".join(OPTIONS))
            raise UsageError(f"{verb} has no option {name!r}", where=name, fix=fix)
        option = OPTIONS[name]
        values[option.field or name] = taken(name, option.kind.take, value)
    return by_fields(values)


def taken(name: str, read: Callable[[Any], T], value: object) -> T:
    """A value from Python as ``read`` has it. Raises UsageError: ``read`` cannot read it."""
    try:
        return read(value)
    except (ValueError, TypeError, AttributeError) as error:
        # Not the value: it may hold a secret.
        what = f"the option {name!r} cannot be read: {error}"
        raise UsageError(what, where=name, fix="gpu-runner docs python shows its form") from None


def words_of(request: Request) -> tuple[str, ...]:
    """The options and arguments of a ``submit`` that asks for this, for a reader."""
    words = ["--gpus", str(request.gpus)]
    for field, (name, option) in FIELDS.items():
        value = getattr(request, field)
        if value == default_of(field):
            continue
        if field == "env":
            value = [(key, True if key in request.env_of_shell else each) for key, each in value]
        elif field == "hosts":
            value = ",".join(f"{host}:{ranks}" for host, ranks in value)
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if option.kind.is_flag else [word for text in option.kind.write(value) for word in (flag, text)]
    program = request.program or request.arguments
    return (*words, "--", *program) if program else tuple(words)
