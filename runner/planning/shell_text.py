"""The commands of a shell script, as far as its text tells them without being run. Pure.

The text is read once, as bash's grammar has it, and each command with what is known where it stands. Where only a run
tells which way a script takes, all ways are read: their commands are choices, and a variable in which the ways differ
is unread behind them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.planning.shell_words import (
    ARGUMENTS,
    UNREAD,
    UNTOLD,
    Token,
    Value,
    Variables,
    array_of,
    expanded,
    text_of,
    tokens,
    unread,
    variables_of,
)

Read = Callable[[str], str]  # the text of a script by its name in the job; empty where it cannot be read

_DEEPEST = 30  # blocks, functions and texts within each other
_MOST_FED = 1_000  # words of a pipe
_CALL = 50  # of the steps that are read of a script, what a function, a loop or a text takes beside its words
_OPENS = ("if", "while", "until", "for", "select", "case", "{", "(", "function")
_WITHIN = ("then", "elif", "else", "do", "fi", "done", "esac", "}", ")")
_LINKS, _PIPES, _CASE_ENDS = ("&&", "||"), ("|", "|&"), (";;", ";&", ";;&")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=(.*)", re.DOTALL)
_TESTS = {"[": "]", "[[": "]]", "test": ""}  # and what ends them
_ASKS = (*_TESTS, "grep", "which", "type", "hash", "-v")  # they fail without an error; -v of command
_DECLARES, _LOCAL = ("export", "declare", "local", "readonly", "typeset"), ("declare", "local", "typeset")
_CHANGES = ("read", "mapfile", "readarray", "getopts", "printf", "unset")  # variables that are their arguments
_CHANGED = re.compile(
    r"(?:\+\+|--) {0,9}([^\W\d]\w*)|\b([^\W\d]\w*)(?:\[[^]]{0,99}])? {0,9}(?:\+\+|--|[-+*/%&|^]?=(?!=))"
)
_EXPORTS_ALL = re.compile(r" ([-+])(?:o allexport|[b-zB-Z]*a[a-zA-Z]*)(?= |$)")
_ROLES = {"<": "file", "0<": "file", **dict.fromkeys(("<<", "<<-", "<<<"), "text")}


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        words: as the program gets them; none where variables are assigned alone.
        line: of its first word, from 1.
        env: what it assigns: for itself, or for the shell where it has no words.
        environment: variables that it inherits, with those; of assignments alone those that are exported.
        is_plain: it stands in no condition or loop. in_background: ``&`` ends it.
        is_program: it is no function, as ``exec`` and ``command`` find none.
        is_choice: only a run tells whether it is reached.
        text: what it reads, of a here-document or ``<<<``. file: that it reads. into: the file that it writes.
        fed: the words that print what it reads, before ``|``.
    """

    words: tuple[str, ...]
    line: int
    env: tuple[tuple[str, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_plain: bool = True
    in_background: bool = False
    is_program: bool = False
    is_choice: bool = False
    text: str = ""
    file: str = ""
    into: str = ""
    fed: tuple[str, ...] = ()


def nothing(name: str) -> str:  # noqa: ARG001
    """Reads no script."""
    return ""


def commands(
    text: str,
    variables: Mapping[str, str | Sequence[str]] | None = None,
    arguments: Sequence[str] = (),
    sourced: Read = nothing,
) -> Iterator[Command]:
    """The commands in the order in which they run, those that can't be reached left out. Of what is nested too deep, or
    too long, to be read, one command stands there: UNTOLD.

    Args:
        variables: of its environment. arguments: the script's own, ``$1`` and so on.
        sourced: the text of a file that the script reads with ``source``; empty where it can't be read.
    """
    return _Text.of(tokens(text)).block(_Shell(variables_of(variables or {}, arguments), sourced))


_GOES_ON, _MAY_END, _FAILED, _ENDED = range(4)  # a shell, or a function


@dataclass
class _Shell:
    """A shell where a command stands.

    Attributes:
        status: whether the last command succeeded; None where only a run tells. asks: it may fail without an error.
        is_skipped: it is on a way that is not taken.
        ended: whether the shell goes on. returned: and the function, or the file, that it runs.
        is_plain, is_choice, fed: as ``Command`` has them.
        depth: blocks, functions and texts around it. running: functions that it is in.
        local: what the last of them will give back, None for no value. left: variables where it returned.
    """

    variables: Variables
    sourced: Read
    functions: dict[str, _Text] = field(default_factory=dict)
    status: bool | None = None
    asks: bool = False
    is_skipped: bool = False
    ended: int = _GOES_ON
    returned: int = _GOES_ON
    is_plain: bool = True
    is_choice: bool = False
    fed: tuple[str, ...] = ()
    depth: int = 0
    running: tuple[str, ...] = ()
    local: dict[str, Value | None] = field(default_factory=dict)
    left: list[Variables] = field(default_factory=list)

    @property
    def is_gone(self) -> bool:
        return self.is_skipped or max(self.ended, self.returned) > _MAY_END

    def copy(self) -> _Shell:
        other = copy.copy(self)
        other.variables, other.functions, other.local = self.variables.copy(), {**self.functions}, {**self.local}
        return other

    def restore(self, other: _Shell) -> None:
        vars(self).update(vars(other))

    def way(self, holds: bool | None, *, is_choice: bool = True) -> _Shell:
        """This shell on a way that it takes if a condition holds; None where only a run tells."""
        taken = self.copy()
        taken.is_skipped |= holds is False
        taken.is_choice |= holds is None and is_choice
        return taken

    def join(self, *ways: _Shell) -> None:
        """Behind several ways is known what those agree in that did not end."""
        taken = [each for each in ways if not each.is_skipped]
        alive = [each for each in taken if not each.is_gone]
        if alive:
            self.variables.agree([each.variables for each in alive])
        self.ended, self.returned = _joined(each.ended for each in taken), _joined(each.returned for each in taken)
        self.functions = {name: body for each in ways for name, body in each.functions.items()}
        self.local = {name: value for each in ways for name, value in each.local.items()}
        self.status, self.asks = None, any(each.asks for each in taken)

    def call(
        self, body: Iterator[Command], env: Mapping[str, str], arguments: Sequence[str] | None, name: str
    ) -> Iterator[Command]:
        """The commands of a function, or of a text, which has no name and no arguments of its own."""
        local, running, returned, left = self.local, self.running, self.returned, self.left
        exported = {*self.variables.exported}
        self.local, self.running, self.returned, self.left = {}, (*running, name), _GOES_ON, []
        self.keep(*env, *(ARGUMENTS if arguments is not None else ()))
        for each, value in env.items():
            self.variables.set(each, value)
            self.variables.export(each)
        if arguments is not None:
            self.variables.set_arguments(arguments)
        yield from body
        ways = [*self.left, *[self.variables.copy()] * (self.returned <= _MAY_END)]
        self.variables.agree(ways or [self.variables.copy()])
        for each, kept in self.local.items():
            self.variables.unset(each)
            self.variables.export(each, is_exported=each in exported)
            if kept is not None:
                self.variables.set(each, kept)
        self.local, self.running, self.returned, self.left = local, running, returned, left

    def keep(self, *names: str) -> None:
        """Variables that a function has for itself."""
        self.local = {**{name: self.variables.values.get(name) for name in names}, **self.local}

    def command(self, line: int, words: tuple[str, ...] = (), environment: Mapping[str, str] | None = None) -> Command:
        """One that stands here. Args: environment: another one than the shell's."""
        is_choice = self.is_choice or _MAY_END in (self.ended, self.returned)
        is_plain = self.is_plain and not is_choice
        environment = self.variables.environment if environment is None else environment
        return Command(words, line, (), environment, is_plain, is_choice=is_choice, fed=self.fed)


def _joined(ends: Iterator[int]) -> int:
    """Of several ways: one that ends by an error says nothing about the others."""
    others = {*ends} - {_FAILED}
    return others.pop() if len(others) == 1 else _MAY_END if others else _FAILED


@dataclass
class _Text:
    """A text from a place on. Each method reads one form of bash's grammar there, and gives its commands in a shell.
    What does not fit the grammar is left out: bash itself would refuse it.
    """

    tokens: Sequence[Token]  # an empty one at its end
    at: int = 0

    @classmethod
    def of(cls, read: Iterable[Token]) -> _Text:
        return cls([*read, Token("", True, 0)])

    @property
    def next(self) -> str:
        return self.tokens[self.at].text

    def is_at_word(self) -> bool:
        return not self.tokens[self.at].is_operator

    def take(self) -> str:
        word, self.at = self.next, min(self.at + 1, len(self.tokens) - 1)
        return word

    def skip(self, *words: str) -> None:
        while self.next in words:
            self.take()

    def until(self, *ends: str) -> list[str]:
        """The words up to one of these."""
        start = self.at
        while self.next not in (*ends, ""):
            self.take()
        return [each.text for each in self.tokens[start : self.at]]

    def block(self, shell: _Shell, *ends: str) -> Iterator[Command]:
        """All up to one of these words."""
        shell.depth += 1
        if shell.depth > _DEEPEST:
            yield shell.command(self.tokens[self.at].line, (UNTOLD,))
            self.at = len(self.tokens) - 1
        while self.next not in (*ends, ""):
            is_joint = not self.is_at_word() and self.next != "(" and not re.search("[<>]", self.next)
            if is_joint or self.next in _WITHIN:
                self.take()
            else:
                yield from self.chain(shell)
        shell.depth -= 1

    def chain(self, shell: _Shell) -> Iterator[Command]:
        """``A && B || C``, and ``&``."""
        before, joint, found = shell.copy(), "", list[Command]()
        while True:
            holds = _not(shell.status) if joint == "||" else shell.status
            way = shell.way(holds, is_choice=shell.asks or joint == "||") if joint else shell
            link = [*self.pipe(way)]
            if joint:
                shell.join(way, shell.way(_not(holds)))
            joint, this = self.next, joint
            found += [replace(each, is_choice=True) for each in link] if (this, joint) == ("&&", "||") else link
            if joint not in _LINKS:
                break
            self.skip(joint, "\n")
        if joint == "&":
            shell.restore(before)
            found = [replace(each, in_background=True) for each in found]
        yield from found

    def pipe(self, shell: _Shell) -> Iterator[Command]:
        """``! A | B``, each part in a shell of its own."""
        is_not, before, count = False, shell.copy(), 0
        while self.next in ("!", "time"):
            is_not ^= self.take() == "!"
        while not count or self.next in _PIPES:
            self.skip(*_PIPES, "\n")
            count += 1
            found = [*self.command(shell)]
            yield from found
            if self.next in _PIPES or count > 1:
                fed = (*shell.fed, *(word for each in found for word in (*each.words, each.text) if word))[-_MOST_FED:]
                shell.restore(replace(before.copy(), fed=fed, status=None, asks=shell.asks))
        shell.fed, shell.asks = before.fed, shell.asks or is_not
        shell.status = _not(shell.status) if is_not else shell.status

    def command(self, shell: _Shell) -> Iterator[Command]:
        """A simple command, or a compound one with its redirections."""
        if self.next not in _OPENS:
            yield from self.simple(shell)
            return
        word, was_plain = self.take(), shell.is_plain
        if word == "(":
            yield from self.block(shell.copy(), ")")
            self.take()
        elif word == "{":
            yield from self.block(shell, "}")
            self.take()
        elif word == "function":
            yield from self.function(self.take(), shell)
        else:
            shell.is_plain = False
            yield from {"if": self.branches, "case": self.case}.get(word, self.loop)(shell, word)
            shell.is_plain = was_plain
        shell.status, shell.asks = shell.status if word == "{" else None, shell.asks and word == "{"
        self.redirections()

    def branches(self, shell: _Shell, word: str) -> Iterator[Command]:
        rest, ways = shell.copy(), list[_Shell]()
        while word in ("if", "elif", "else"):
            if word != "else":
                yield from self.block(rest, "then")
                self.take()
            holds = True if word == "else" else rest.status
            ways.append(way := rest.way(holds))
            yield from self.block(way, "elif", "else", "fi")
            rest, word = rest.way(_not(holds)), self.take()
        shell.join(*ways, rest)

    def case(self, shell: _Shell, _word: str) -> Iterator[Command]:
        rest, ways, subject = shell.copy(), list[_Shell](), self.take()
        self.until("in")
        self.take()
        self.skip("\n")
        while self.next not in ("esac", ""):
            patterns = [each for each in self.until(")") if each not in ("(", "|")]
            self.take()
            each_holds = {each == "*" or _holds(["[[", subject, "==", each, "]]"], rest) for each in patterns}
            holds = True if True in each_holds else None if None in each_holds else False
            ways.append(way := rest.way(holds))
            yield from self.block(way, *_CASE_ENDS, "esac")
            if self.next in (";&", ";;&"):
                subject, holds = UNREAD, None  # another branch may run behind it
            rest = rest.way(_not(holds))
            self.skip(*_CASE_ENDS, "\n")
        self.take()
        shell.join(*ways, rest)

    def loop(self, shell: _Shell, word: str) -> Iterator[Command]:
        variables, is_empty = shell.variables, False
        for name, *head in [self.until(";", "\n", "do", "{")] if word in ("for", "select") else []:
            values = [each for raw in head[1:] for each in expanded(raw, variables)]
            is_one, is_empty = word == "for" and len(values) == 1, head[:1] == ["in"] and not values
            _calculate(name, variables)
            variables.set(name, values[0] if is_one and not re.search(r"[*?[]", values[0]) else unread(name))
        start, is_gone = self.at, shell.is_gone or not variables.affords(_CALL)
        for is_read in (True,) if is_gone else (False, True):  # first for what a turn changes, which the next one finds
            self.at, way = start, shell.way(not is_empty)
            for command in self.turn(way, word):
                if is_read:
                    yield command
            if not way.is_gone:
                variables.agree([variables.copy(), way.variables])
        shell.join(way, shell.copy())  # there may be a break

    def turn(self, shell: _Shell, word: str) -> Iterator[Command]:
        yield from self.block(shell, "do", "{")
        self.take()
        way = shell.way({"while": shell.status, "until": _not(shell.status)}.get(word, True))
        yield from self.block(way, "done", "}")
        self.take()
        shell.join(way, shell.copy())

    def function(self, name: str, shell: _Shell) -> Iterator[Command]:
        self.skip("(", ")", "\n")
        body = _Text(self.tokens, self.at)
        yield from self.command(shell.way(holds=False))  # no more than what is nested too deep
        shell.functions[name] = body

    def redirections(self) -> list[tuple[str, str]]:
        """Each an operator and a word."""
        found = list[tuple[str, str]]()
        while not self.is_at_word() and re.search("[<>]", self.next):
            sign = self.take()
            if self.is_at_word():
                found.append((sign, self.take()))
        return found

    def simple(self, shell: _Shell) -> Iterator[Command]:
        redirections, line, raw = self.redirections(), self.tokens[self.at].line, list[str]()
        while self.is_at_word():
            raw.append(self.take())
            redirections += self.redirections()
        count = next((at for at, each in enumerate(raw) if not _ASSIGNMENT.fullmatch(each)), len(raw))
        if len(raw) == 1 and [each.text for each in self.tokens[self.at : self.at + 2]] == ["(", ")"]:
            yield from self.function(raw[0], shell)
        elif shell.is_gone or not raw:
            pass
        elif not shell.variables.affords(len(raw)):
            yield shell.command(line, (UNTOLD,))
            shell.ended = _ENDED
        elif count == len(raw) or raw[0] in _DECLARES:
            yield from _assigned(raw, line, shell)
        else:
            yield from _started(raw[:count], raw[count:], redirections, line, shell)


def _not(holds: bool | None) -> bool | None:
    return None if holds is None else not holds


def _assigned(raw: Sequence[str], line: int, shell: _Shell) -> Iterator[Command]:
    """A command that only gives variables their values: assignments alone, or ``export`` and its like."""
    variables, declares, named = shell.variables, raw[0] if raw[0] in _DECLARES else "", list[str]()
    options = "".join(word[1:] for word in raw[1:] if declares and re.fullmatch("-[A-Za-z]+", word))
    is_local = declares in _LOCAL and any(shell.running) and "g" not in options
    is_exported = "n" not in options if declares == "export" else "x" in options
    if is_exported and "f" in options:
        for body in (shell.functions[name] for name in raw if name in shell.functions):
            yield from replace(body).command(shell.way(None))  # it may run at another time
        return
    for word in raw[1:] if declares else raw:
        parts = _ASSIGNMENT.fullmatch(word)
        name, index, adds, value = parts.groups() if parts else (word, None, "", "")
        if not name.isidentifier():
            continue
        named.append(name)
        if is_local:
            shell.keep(name)
        if index or "i" in options:
            variables.doubt(name)
        elif parts or is_local:
            variables.set(name, _added(variables.values.get(name) if adds else None, value, variables))
        if is_exported or declares == "export":
            variables.export(name, is_exported=is_exported)
    shell.status, shell.asks = None, False
    values = {name: value for name in named if isinstance(value := variables.values.get(name), str)}
    passed = {name: value for name, value in values.items() if name in variables.exported}
    yield replace(shell.command(line, environment=passed), env=tuple(values.items()))


def _added(before: Value | None, raw: str, variables: Variables) -> Value:
    """The value that is written so, behind the one from before."""
    if raw.startswith("("):
        return (*([before] if before and isinstance(before, str) else before or ()), *array_of(raw, variables))
    return f"{before or ''}{text_of(raw, variables)}" if not isinstance(before, tuple) else f"{UNREAD}{raw}{UNREAD}"


def _started(
    env: Sequence[str], raw: Sequence[str], redirections: Sequence[tuple[str, str]], line: int, shell: _Shell
) -> Iterator[Command]:
    """A command of words; of a function, ``eval`` and ``source`` the commands that it runs."""
    variables, by_name = shell.variables, list[str]()
    while raw and raw[0] in ("exec", "command"):
        by_name.append(raw[0])
        raw = raw[1:]
    words = tuple(each for word in raw for each in expanded(word, variables))
    shell.status, shell.asks = None, False
    if not words:
        return
    shell.status = _holds(raw, shell)
    shell.asks = raw[0] in _ASKS or raw[0].startswith("((") or raw[-1] == "]]"
    values = {name: text_of(value, variables) for name, _, value in (each.partition("=") for each in env)}
    given = {_ROLES.get(sign, "into"): text_of(target, variables) for sign, target in redirections if "&" not in sign}
    command = replace(
        shell.command(line, words), env=tuple(values.items()), environment={**variables.environment, **values},
        is_program=bool(by_name), text=given.get("text", ""), file=given.get("file", ""), into=given.get("into", ""),
    )  # fmt: skip
    name, arguments = words[0], words[1:]
    body = None if by_name or name in shell.running else shell.functions.get(name)
    text = " ".join(arguments) if name == "eval" else ""
    text = shell.sourced(arguments[0]) if name in ("source", ".") and arguments else text
    if body is not None:
        body = replace(body) if variables.affords(_CALL) else _untold(line)
        yield from shell.call(body.command(shell), values, arguments, name)
    elif name == "trap" and arguments:
        yield from _text(arguments[0], line, shell).block(shell.way(None))
    elif text:
        yield from shell.call(_text(text, line, shell).block(shell), {}, None, "")
    else:
        yield command
        _change(words, shell)
    if "exec" in by_name:
        shell.ended = _ENDED


def _text(text: str, line: int, shell: _Shell) -> _Text:
    """A text that stands in a line of another one."""
    if not shell.variables.affords(_CALL + len(text) // 10):
        return _untold(line)
    return _Text.of(each._replace(line=line) for each in tokens(text))


def _untold(line: int) -> _Text:
    return _Text.of([Token(UNTOLD, False, line)])


def _change(words: Sequence[str], shell: _Shell) -> None:
    """What a command of the shell itself changes."""
    (name, *arguments), variables = words, shell.variables
    end = _ENDED if arguments in ([], ["0"]) else _FAILED
    if name == "exit":
        shell.ended = end
    elif name == "return" and shell.running:
        shell.returned = end
        shell.left.append(variables.copy())
    elif name == "shift":
        listed, count = variables.values["@"], "".join(arguments[:1]) or "1"
        is_known = isinstance(listed, tuple) and "#" in variables.values and count.isdecimal()
        variables.set_arguments(listed[int(count) :] if is_known else None)
    elif name == "set":
        if option := _EXPORTS_ALL.search(" ".join(words).partition(" --")[0]):
            variables.exports_all = option[1] == "-"
        if "--" in arguments:
            variables.set_arguments(arguments[arguments.index("--") + 1 :])
    elif name == "let" or name.startswith("(("):
        _calculate(" ".join(words), variables)
    for each in arguments if name in _CHANGES else ():
        if name == "unset":
            variables.unset(each)
        elif each in variables.values or (each.isidentifier() and name != "printf"):
            variables.doubt(each)


def _calculate(text: str, variables: Variables) -> None:
    """Doubt what a sum changes."""
    for one, other in _CHANGED.findall(text.removeprefix("let ")):
        variables.doubt(one or other)


def _holds(raw: Sequence[str], shell: _Shell) -> bool | None:
    """Whether a command succeeds, where it is a test of what is known; None where only a run tells."""
    if raw[0] not in _TESTS or (raw[0] != "test" and raw[-1] != _TESTS[raw[0]]):
        return {"true": True, ":": True, "false": False}.get(raw[0])
    variables, inside = shell.variables, raw[1:] if raw[0] == "test" else raw[1:-1]
    names = re.findall(r"\$\{?([@*#]|\w+)", " ".join(inside))
    if any(name not in variables.values or name in variables.doubtful for name in names):
        return None
    is_split = raw[0] != "[["
    words = [each for raw in inside for each in (expanded(raw, variables) if is_split else [text_of(raw, variables)])]
    words = [words[1], {"-z": "=", "-n": "!="}.get(words[0], ""), ""] if len(words) == 2 else words
    if re.fullmatch(r"-?\d{1,18} -(eq|ne|lt|le|gt|ge) -?\d{1,18}", " ".join(words), re.ASCII):
        return bool(getattr(int(words[0]), f"__{words[1][1:]}__")(int(words[2])))
    is_text = len(words) == 3 and words[1] in ("=", "==", "!=") and UNREAD not in "".join(words)
    is_pattern = not is_split and re.search(r"[*?[(\\]", "".join(words[2:]))
    return (words[0] == words[2]) is (words[1] != "!=") if is_text and not is_pattern else None
