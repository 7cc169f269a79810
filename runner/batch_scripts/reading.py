"""A batch script as facts: what it asks for, and what it starts with it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.batch_scripts.directives import BY_TASK, Header, Shape, header, joined, shape, srun_options, variables
from runner.model.plan import Starter
from runner.planning.shell_text import UNREAD, Command, commands, unread
from runner.planning.starters import KINDS, options, starter

_RUNTIMES = ("singularity", "apptainer", "singularity_wrapper", "apptainer_wrapper")
_SHELLS = ("bash", "sh", "zsh")
# Of singularity and apptainer exec: options whose value is a word of its own.
_WITH_VALUE = frozenset(
    ("-B", "--bind", "--env", "--env-file", "-H", "--home", "--pwd", "-W", "--workdir", "--overlay", "--mount", "-S")
)
_TOOLS = frozenset(
    ("hostname", "mkdir", "rm", "cp", "mv", "ls", "cat", "echo", "date", "env", "printenv", "tar", "rsync", "sleep",
     "nvidia-smi", "rocm-smi", "dcgmi", "true", "test", "uname", "lscpu", "free", "pip", "chmod", "touch", *_SHELLS)
)  # fmt: skip
_PYTHON = re.compile(r"python[\d.]*")


@dataclass(frozen=True)
class Launch:
    """A line that starts the program.

    Attributes:
        by_srun: and not by the script's own shell, on its first node. options: of srun.
        shape: of the step, or of the job. words: what a task runs, without the container. What is unknown in them has
            two marks on each side where the script's own shell fills it in, one where each task's does.
        container: its image, or its program's name; empty for none. in_container: all words that run inside.
        starter: in front of the program; None for none. stated: what its options say, as ``_stated`` names it.
        own: the program without its starter. env: variables that are set for it alone.
    """

    line: int
    by_srun: bool
    is_plain: bool
    in_background: bool
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
    def name(self) -> str:
        """Of what starts the ranks: a starter's, else the program's."""
        return self.starter.name if self.starter else self.words[0].rpartition("/")[2]


@dataclass(frozen=True)
class BatchScript:
    """A script, and all that is read in it; ``shape``: of the job. ``exports``: variables, by name."""

    text: str
    header: Header
    shape: Shape
    commands: tuple[Command, ...]
    launches: tuple[Launch, ...]
    exports: Mapping[str, str]


def read(text: str, environ: Mapping[str, str], arguments: Sequence[str] = ()) -> BatchScript:
    """Read a script as it is called with arguments. ``environ``: of the shell that submits it."""
    head = header(text)
    of_job = shape(head.options)
    values = {**environ, **variables(head.options, of_job), **dict.fromkeys("123456789", "")}
    found = tuple(commands(text.replace("\r\n", "\n"), values, arguments))
    exports = {
        name: value
        for command in found
        for name, _, value in (word.partition("=") for word in command.words[1:] if command.words[0] == "export")
    }
    launches = [launch for command in found if (launch := _launch(command, head, values, exports)) is not None]
    # A script's own Python beside ranks that srun or a starter starts prepares something, or sums it up.
    ranks = [each for each in launches if each.by_srun or each.starter is not None]
    return BatchScript(text, head, of_job, found, tuple(ranks or launches), exports)


def _launch(command: Command, head: Header, values: Mapping[str, str], exports: Mapping[str, str]) -> Launch | None:
    words, of_srun = command.words, dict[str, str]()
    by_srun = words[0].rpartition("/")[2] == "srun"
    if by_srun:
        of_srun, words = srun_options(words[1:], {**exports, **dict(command.env)})
    image, inside = of_srun.get("container-image", ""), words if "container-image" in of_srun else ()
    env, by_task = dict(command.env), False
    while words:
        name = words[0].rpartition("/")[2]
        if name in _RUNTIMES or name == "shifter":
            image, words = _contained(words)
            inside = words
        elif name in _SHELLS and (text := _text_of(words)) is not None:
            of_task = {name: value.replace(UNREAD, UNREAD * 2) for name, value in {**exports, **env}.items()}
            inside_it = _commands_of(text, {**values, **of_task})
            inner = [each for each in inside_it if _is_program(each.words, by_srun=by_srun)]
            if not inner:
                return None
            words, env, by_task = inner[-1].words, env | dict(inner[-1].env), True
        else:
            break
    if not words or not _is_program(words, by_srun=by_srun):
        return None
    if not by_task:
        words = tuple(word.replace(UNREAD, UNREAD * 2) for word in words)
    by = starter(words)
    stated, own = _stated(by, words)
    of_step = shape(joined(head.options, of_srun)) if by_srun else shape(head.options)
    return Launch(
        command.line, by_srun, command.is_plain, command.in_background, of_srun, of_step, words, image, inside, by,
        stated, own, env,
    )  # fmt: skip


def _commands_of(text: str, values: Mapping[str, str]) -> Iterator[Command]:
    """Of a shell that a task runs: each task has its own SLURM_PROCID."""
    return commands(text, {**values, **{name: unread(name) for name in BY_TASK}})


def _contained(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The image, and what runs in it."""
    name = words[0].rpartition("/")[2]
    at = 1 + next((place for place, word in enumerate(words[1:]) if word in ("exec", "run")), -1) + 1
    image = ""
    while at < len(words) and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        if option == "--image":
            image = value or words[at + 1 : at + 2][0]
        at += 1 if equals or not (option in _WITH_VALUE or name == "shifter") else 2
    if name in ("singularity", "apptainer") and at < len(words):
        return words[at], words[at + 1 :]
    return image or name, words[at:]


def _text_of(words: tuple[str, ...]) -> str | None:
    """The text of ``bash -c TEXT``; None where the shell runs a file."""
    for place, word in enumerate(words[1:], 1):
        if re.fullmatch(r"-[a-z]*c", word):
            return " ".join(words[place + 1 : place + 2])
        if not word.startswith("-"):
            break
    return None


def _is_program(words: tuple[str, ...], *, by_srun: bool) -> bool:
    """Whether it is what the job is for, and no command around it."""
    by, name = starter(words), words[0].rpartition("/")[2]
    if by is not None and by.name != "srun":
        return True
    if _PYTHON.fullmatch(name):
        return len(words) > 1 and not re.match(r"-c|-V|--version|-mpip|-mvenv", "".join(words[1:3]))
    is_script = name in _SHELLS and any(word.endswith(".sh") for word in words[1:])
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
