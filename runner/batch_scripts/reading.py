"""A batch script as facts: what it asks for, and what it starts with it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner.batch_scripts.directives import BY_TASK, Header, Shape, header, joined, shape, srun_options, variables
from runner.model.plan import Starter
from runner.planning.launchers import SHELLS, shell_call, starter
from runner.planning.shell_text import Command, commands
from runner.planning.shell_words import UNREAD, unread
from runner.planning.starters import KINDS, base, is_python, names, options

_CONTAINERS = names("singularity apptainer singularity_wrapper apptainer_wrapper shifter")
# Of singularity and apptainer exec: options whose value is a word of its own.
_WITH_VALUE = names("-B --bind --env --env-file -H --home --pwd -W --workdir --overlay --mount -S")
_TOOLS = SHELLS | names(
    "hostname mkdir rm cp mv ls cat echo date env printenv tar rsync sleep nvidia-smi rocm-smi dcgmi true test uname "
    "lscpu free pip chmod touch"
)


@dataclass(frozen=True)
class Launch:
    """A line that starts the program.

    Attributes:
        command: as the script has it. by_srun: and not by the script's own shell, on its first node.
        options: of srun. shape: of the step, or of the job.
        words: what a task runs, without the container. What is unknown in them has two marks on each side where the
            script's own shell fills it in, one where each task's does.
        container: its image, or its program's name; empty for none. in_container: all words that run inside.
        starter: in front of the program; None for none. stated: what its options say, as ``_stated`` names it.
        own: the program without its starter. env: variables that the script sets for it.
    """

    command: Command
    by_srun: bool
    options: Mapping[str, str]
    shape: Shape
    words: tuple[str, ...]
    container: str
    in_container: tuple[str, ...]
    starter: Starter | None
    stated: Mapping[str, str]
    own: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def name(self) -> str:
        """Of what starts the ranks: a starter's, else the program's."""
        return self.starter.name if self.starter else base(self.words[0])


@dataclass(frozen=True)
class BatchScript:
    """A script, and all that is read in it; ``shape``: of the job."""

    text: str
    header: Header
    shape: Shape
    commands: tuple[Command, ...]
    launches: tuple[Launch, ...]


def read(text: str, environ: Mapping[str, str], arguments: Sequence[str] = ()) -> BatchScript:
    """Read a script as it is called with arguments. ``environ``: of the shell that submits it."""
    head = header(text)
    of_job = shape(head.options)
    values = {**environ, **variables(head.options, of_job), **dict.fromkeys("123456789", "")}
    found, launches = list[Command](), list[Launch]()
    for command in commands(text.replace("\r\n", "\n"), values, arguments):
        launch = _launch(command, head, values) if command.words else None
        launches += [launch] if launch else []
        found.append(replace(command, environment={}) if command.words else command)  # there may be many
    # A script's own Python beside ranks that srun or a starter starts prepares something, or sums it up.
    ranks = [each for each in launches if each.by_srun or each.starter is not None]
    return BatchScript(text, head, of_job, tuple(found), tuple(ranks or launches))


def _launch(command: Command, head: Header, values: Mapping[str, str]) -> Launch | None:
    words, of_srun, by_task = command.words, dict[str, str](), False
    env = {name: value for name, value in command.environment.items() if values.get(name) != value}
    by_srun = base(words[0]) == "srun"
    if by_srun:
        of_srun, words = srun_options(words[1:], env)
    image, inside = of_srun.get("container-image", ""), words if "container-image" in of_srun else ()
    while words and not (is_program := _is_program(words, by_srun=by_srun)):
        text = shell_call(words)[1]
        if base(words[0]) in _CONTAINERS:
            image, words = _contained(words)
            inside = words
        elif text:
            # Each task has its own SLURM_PROCID; what the script's shell left unread has two marks.
            of_task = {name: value.replace(UNREAD, UNREAD * 2) for name, value in env.items()}
            known = {**values, **of_task, **{name: unread(name) for name in BY_TASK}}
            inner = [each for each in commands(text, known) if _is_program(each.words, by_srun=by_srun)]
            words, by_task = (inner[-1].words, True) if inner else ((), True)
            env |= dict(inner[-1].env) if inner else {}
        else:
            break
    if not words or not is_program:
        return None
    if not by_task:
        words = tuple(word.replace(UNREAD, UNREAD * 2) for word in words)
    by = starter(words)
    of_step = shape(joined(head.options, of_srun)) if by_srun else shape(head.options)
    return Launch(command, by_srun, of_srun, of_step, words, image, inside, by, *_stated(by, words), env)


def _contained(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The image, and what runs in it."""
    name, image = base(words[0]), ""
    at = next((place + 1 for place, word in enumerate(words) if word in ("exec", "run")), 1)
    while at < len(words) and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        if option == "--image":
            image = value or words[at + 1 : at + 2][0]
        at += 1 if equals or not (option in _WITH_VALUE or name == "shifter") else 2
    if name in ("singularity", "apptainer") and at < len(words):
        return words[at], words[at + 1 :]
    return image or name, words[at:]


def _is_program(words: tuple[str, ...], *, by_srun: bool) -> bool:
    """Whether it is what the job is for, and no command around it."""
    if not words or base(words[0]) in _CONTAINERS or shell_call(words)[1]:
        return False
    by, name = starter(words), base(words[0])
    if by is not None and by.name != "srun":
        return True
    if is_python(name):
        return len(words) > 1 and not re.match(r"-c|-V|--version|-mpip|-mvenv", "".join(words[1:3]))
    is_script = name in SHELLS and any(word.endswith(".sh") for word in words[1:])
    return by_srun and (is_script or name not in _TOOLS) and by is None


# Of options that only say how ranks meet, how their names begin.
_MEETING = ("--rdzv", "--master", "--main-process", "--multi-gpu", "--same-network", "--gpu-ids", "--standalone")


def _stated(by: Starter | None, words: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What a starter's options say: ``nodes``, ``each``, ``total``, ``index`` and ``place`` as its table has them, and
    those about meeting by their own names; and the program with the starter and its other options.
    """
    if by is None:
        return {}, words
    kind, said, place = KINDS[by.name], dict[str, str](), 0
    own = list(words[: len(words) - len(by.arguments)])
    for name, value, end in options(by):
        key = next((key for key in ("nodes", "each", "total", "index", "place") if name in getattr(kind, key)), "")
        if key or name.startswith(_MEETING) or name in kind.refused:
            said[key or name] = value
        else:
            own += by.arguments[place:end]
        place = end
    return said, (*own, *by.arguments[place:])
