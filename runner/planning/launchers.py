"""Finds the programs that start ranks: in the words of a command, and in the shell scripts that it runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from runner.model.plan import Starter
from runner.planning.shell_text import Command, Read, commands, nothing
from runner.planning.shell_words import UNREAD, as_written
from runner.planning.starters import KINDS, VISIBLE, base, is_program, is_python, names

_CALLS = {tuple(call.split()): name for name, kind in KINDS.items() for call in kind.calls}
# Programs that start others, with counts and meetings of their own that are not known here.
_OTHERS = (
    "colossalai run", "lightning run", "docker run", "podman run", "ray start", "ray job", "dask-mpirun",
    "bagua-launch", "jsrun", "aprun", "flux run", "pdsh", "prterun", "prun", "ibrun", "llamafactory-cli train",
    "swift sft", "axolotl train", "xtuner train", "torchx run", "-m accelerate launch", "-m deepspeed",
    "-m deepspeed.launcher.launch", "-m paddle.distributed.launch", "-m mpi4py.run",
)  # fmt: skip
_CALLS |= {tuple(call.split()): call for call in _OTHERS}
_NAMES = frozenset(call[0] for call in _CALLS)
SHELLS, _SCRIPTS = names("bash sh dash zsh ksh"), (".sh", ".bash")
# Programs that start the command after their own options, and which of those, beside --no-..., take no value.
_WRAPPERS = names(
    "env nice ionice nohup setsid stdbuf time timeout numactl taskset uv uvx poetry pipenv pdm hatch rye nsys ncu "
    "catchsegv chrt flock conda mamba micromamba pixi strace exec command sudo xvfb-run py-spy apptainer "
    "singularity"
)
_WRAPPER_FLAG = re.compile(
    r"--|--.+=.*|--no-(?!extra|group|binary|build).+|"
    r"--(active|isolated|frozen|locked|offline|exact|dev|all-(extras|groups)|quiet|verbose|wait|live-stream|localalloc|"
    r"foreground|nv|rocm|cleanenv)"
)
# An environment, a package, a user, a file: its value may have a starter's name.
_NAMES_ONE = re.compile("-[neuop]|--(with|from|name|env(ironment)?|(only-)?group|extra|package|output|user|pwd|prefix)")
# What installs, finds or prints what it names.
_INSTALL = names("install uninstall pip add remove download load upgrade")
_MENTION = names(
    "echo printf which type hash whereis man pkill killall pgrep grep sed awk test [ [[ export alias unset set cd ls "
    "cp rm mv ln mkdir chmod touch git -v -V"
)
_ANY_NAME = "|".join(map(re.escape, (*sorted(_NAMES - {"-m"}), "torch.distributed.run", "torch.distributed.launch")))
_MAY_START = re.compile("|".join((_ANY_NAME, *map(re.escape, _SCRIPTS))))
# A call of Python's that runs a program: os.system("torchrun ..."), subprocess.run([sys.executable, "-m", ...]).
_RUN_BY_CODE = re.compile(
    rf"\b(?:system|p?[pP]open|run|call|check_\w+|getoutput|(?:posix_)?spawn\w*|exec\w*)\(\W*(?:[\w.]+\W+-m\W+)?({_ANY_NAME})\b"
)
_WHICH = re.compile(r"(?:[$]\(|`)(?:which|command -v|type -[pP]) ([\w.-]+)")
_INNER = re.compile(rf"{UNREAD}(?:[$<>]\(|`)([^{UNREAD}]*)[)`]{UNREAD}")
# What a shell's own set-up prints, for it to run.
_SETS_UP = re.compile(r"[$]\((\S*/)?(conda|mamba|micromamba|pyenv|brew|direnv|modulecmd|ssh-agent|dircolors)\b")
_DEEPEST = 4  # scripts that call each other
# Of Python's options the one that ends them (-c, -m), or takes a value (-W, -X), and what is attached to it.
_PYTHON_OPTION = re.compile(r"-[^-cmWX]*([cmWX])(.*)", re.DOTALL)


def starter(program: Sequence[str]) -> Starter | None:
    """The one that an argument list begins with, by any path, behind ``python``, ``python -m``, ``env`` or a profiler,
    too; else None.
    """
    found = _called(program)
    return found if found is not None and found.name in KINDS else None


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
    given: str = "",
) -> tuple[Starter, ...]:
    """``starters``, and beside them those with a name that the table has not: of programs that start others in a way
    that is not known, and of commands that only their shell could read.

    Args:
        outer: the scripts that this program stands in. given: what it reads.
    """
    first = _called(program)
    if first is not None or not program:
        return (first,) if first else ()
    place = unwrapped(program)
    shell, (name, text, arguments) = base(program[place]), shell_call(program)
    text = text or given * reads_script(program)
    script, path = ("", name) if text or len(outer) == _DEEPEST else _script(name, read, outer)
    named = name if shell in SHELLS else program[0]  # which only a shell could read
    if _is_unread(named) and not script and not text:
        words = program[: place + 1] if shell in SHELLS else ()
        return (Starter(" ".join((*words, as_written(named))), tuple(program[1:])),)
    if not (text or script) or (path and outer.count(path) > 1):  # one that calls itself may take another branch
        return tuple(_mentioned((*program, *[given] * is_python(program[place])), outer))
    interpreter = script.partition("\n")[0]
    if not (shell in SHELLS or shell.endswith(_SCRIPTS) or re.match(r"#!.*\b(ba|da|z|k)?sh\b", interpreter)):
        return ()
    own = {"0": arguments[0]} if text and arguments else {}
    found = in_script(text or script, {**(variables or {}), **own}, arguments[1:], read, (*outer, path))
    before = {*map(base, program[:place])}
    is_swept = "sudo" in before or program[place + 1 : place + 2] == ("-p",) or ("env" in before and "-i" in before)
    if not is_swept and (shell == "bash" or (shell not in SHELLS and "bash" in interpreter)):
        return found
    return tuple(replace(each, call=()) for each in found)  # no other shell takes functions so


@dataclass
class _Files:
    """What a script can read: files that it has written, those where it is, and others."""

    read: Read
    outer: tuple[str, ...]
    written: dict[str, str] = field(default_factory=dict)
    folder: str = ""

    def __call__(self, name: str) -> str:
        return (
            self.written.get(name.removeprefix("./"))
            or self.read(name)
            or (self.read(f"{self.folder}/{name}") if self.folder else "")
        )

    def script(self, name: str) -> str:
        return _script(name, self, self.outer)[0]


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
    files, hidden, of_job = _Files(read, outer), set[str](), (variables or {}).get(VISIBLE)
    for command in commands(text, variables, arguments, files.script):
        words, name = command.words, base("".join(command.words[:1]))
        if words[:2] == ("unset", "-f"):
            hidden |= {*words[2:]}
        if name in ("cd", "pushd") and UNREAD not in "".join(words):
            files.folder = f"{files.folder}/{words[-1]}".strip("/") if not words[-1].startswith("/") else words[-1]
        if command.into or name == "tee":
            printed = command.text or ("\n" if name == "printf" else " ").join(words[1:])
            files.written |= dict.fromkeys((command.into, *words[1:] * (name == "tee")), printed)
        seen = command.environment.get(VISIBLE)
        for each in _of_command(command, files):
            is_hidden = (command.is_program and not each.line) or not hidden.isdisjoint(each.call[:1])
            own = each.visible is not None or seen == of_job
            changed = replace(
                each, line=command.line, call=() if is_hidden else each.call,  # exec finds no function
                is_choice=command.is_choice or each.is_choice, visible=each.visible if own else _listed(seen),
            )  # fmt: skip
            found[changed] = None
    return tuple(found)


def _of_command(command: Command, files: _Files) -> Iterator[Starter]:
    words, outer = command.words, files.outer
    inner = [each for word in (*words, *dict(command.env).values()) for each in _INNER.findall(word)]
    for text in inner:
        if _starts(text, outer, files):
            yield Starter(f"`{as_written(' '.join(text.split()))[:40]}`", ())
    given = command.text or (files.script(command.file) if command.file else "")
    takes = bool(words) and (base(words[0]) in ("source", ".", "xargs") or (reads_script(words) and not given))
    printed = [word for text in (given, " ".join(command.fed), *command.fed, *inner) for word in (text, *text.split())]
    if takes and any(_starts(each, outer, files) for text in printed for each in (text, files.script(text))):
        yield Starter(f"{words[0]}, by what it reads,", ())
    elif words:
        yield from launchers(words, files, command.environment, outer, given)


def reads_script(program: Sequence[str]) -> bool:
    """Whether it is a shell that runs what it reads."""
    place, (file, text, _) = unwrapped(program), shell_call(program)
    is_open = file in ("", "/dev/stdin") or _INNER.fullmatch(file) or "-s" in program[place + 1 : place + 2]
    return base(program[place]) in SHELLS and not text and bool(is_open)


def _starts(text: str, outer: tuple[str, ...], read: Read = nothing) -> bool:
    """Whether a text that may be a script starts ranks. With srun it mostly asks for the hosts' names."""
    if len(outer) >= _DEEPEST or not _MAY_START.search(text):
        return False
    found = in_script(text, read=read, outer=(*outer, "$("))
    return any(each.name in KINDS and each.name != "srun" for each in found)


def _mentioned(program: Sequence[str], outer: tuple[str, ...]) -> Iterator[Starter]:
    """A starter's call among the words of a program that may run it."""
    words = [found[1] if (found := _WHICH.search(word)) else word for word in program]
    if base(words[0]) in _MENTION or not _INSTALL.isdisjoint(words[:4]):
        return
    by_python = is_python(words[unwrapped(words)])
    for place, word in enumerate(words[1:], 1):
        before = words[place - 1]
        call = next((each for each in _CALLS if (base(word), *words[place + 1 : place + len(each)]) == each), ())
        unsure = by_python or before.startswith("--")
        rest = words[place + 1 :] if call else ()  # of 10,000 words not each
        starts = any(map(is_program, rest)) if unsure else rest or base(words[0]) == "xargs"
        is_value = "=" in word or (place > 1 and _NAMES_ONE.fullmatch(before))
        is_text = " " in word and (_RUN_BY_CODE.search(word) if by_python else _starts(word, outer))
        if (call and not is_value and (len(call) > 1 or starts)) or is_text:
            yield Starter(f"{as_written(words[0])} ... {' '.join(call) or as_written(word)}", ())
            return


def _called(program: Sequence[str]) -> Starter | None:
    """``starter``, or a program of which is only known that it starts others."""
    place = unwrapped(program)
    words = tuple(program[place:])
    if not words or not _INSTALL.isdisjoint(program[1:place]):
        return None
    called, read = run_by_python(words) if is_python(words[0]) else ((base(words[0]),), 1)
    for call, kind in _CALLS.items():
        end = read + max(0, len(call) - len(called))
        if (*called, *words[read:end]) == call:
            direct = not place and "/" not in words[0]
            shown = dict(word.split("=", 1) for word in program[:place] if "=" in word).get(VISIBLE)
            return Starter(kind, words[end:], place + end, words[:end] if direct else (), visible=_listed(shown))
    return None


def _listed(devices: str | None) -> int | None:
    """How many a value of CUDA_VISIBLE_DEVICES lists; None where it has none, or only a run tells."""
    return None if devices is None or UNREAD in devices else len(devices.split(","))


def _script(name: str, read: Read, outer: tuple[str, ...]) -> tuple[str, str]:
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
    return base(word).startswith(UNREAD) and base(word).endswith(UNREAD) and "python" not in word.lower()


def unwrapped(program: Sequence[str]) -> int:
    """Where the command begins that a wrapper starts: at Python, a shell or a starter, unless it is an option's
    value; else at the first program with a path.
    """
    if not program or base(program[0]) not in _WRAPPERS:
        return 0
    for place in range(1, len(program)):
        name = base(program[place]) if "=" not in program[place] else ""
        starts = is_python(name) or name in _NAMES or name in SHELLS or name.endswith(_SCRIPTS)
        before = program[place - 1]
        if starts and not _NAMES_ONE.fullmatch(before) and (before[:2] != "--" or _WRAPPER_FLAG.fullmatch(before)):
            return place
    paths = (place for place in range(1, len(program)) if program[place].startswith(("./", "/")))
    return next((place for place in paths if program[place - 1][:1] != "-"), 0)


def run_by_python(words: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """What Python runs: ``-m`` and the module, or a script's name; and how many words that and its options are."""
    place = 1
    while place < len(words):
        word, place = words[place], place + 1
        option = _PYTHON_OPTION.fullmatch(word)
        if option is not None:
            value = option[2] or "".join(words[place : place + 1])
            place += not option[2]
            if option[1] in "cm":
                return (("-m", value) if option[1] == "m" else ()), place
        elif not word.startswith("-") or word == "-":
            return (base(word),), place
    return (), place


def shell_call(program: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """The script's file, or the text behind ``-c``, and its arguments from ``$0`` on, of a shell that a program begins
    with.
    """
    words = tuple(program[unwrapped(program) :])
    if not words or base(words[0]) not in SHELLS:
        # Whatever its name, its first line says whether a shell runs it.
        is_script = words and (words[0].endswith(_SCRIPTS) or ("/" in words[0] and not is_python(words[0])))
        return (words[0], "", words) if is_script else ("", "", ())
    place = 1
    while place < len(words) and words[place].startswith(("-", "+")):
        if re.fullmatch(r"-[A-Za-z]*c[a-z]*", words[place]):
            return "", "".join(words[place + 1 : place + 2]), words[place + 2 :]
        place += 2 if re.fullmatch(r"[-+][A-Za-z]*[oO]|--rcfile|--init-file", words[place]) else 1
    return "".join(words[place : place + 1]), "", words[place:]


def script_of(program: Sequence[str]) -> str:
    """The file of the shell script that a program runs; empty where it runs none."""
    return shell_call(program)[0] if starter(program) is None else ""
