"""The commands of a shell script, as far as its text tells them without being run. Pure.

Words are split and expanded as bash does it: quotes, comments, line continuations, here-documents, variables, arrays,
defaults (``${N:-2}``) and sums (``$((N * 8))``). What only a run tells (``$(hostname)``, a variable that nothing sets)
stays as it is written, between two UNREAD characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

UNREAD = "\0"  # no argument of a program can hold one
UNTOLD = f"{UNREAD}what is nested too deep{UNREAD}"  # a word that could not be read
Values = dict[str, "str | list[str]"]
Token = tuple[str, bool, int]  # a word as it is written, or an operator; whether it is one; its line
Read = Callable[[str], str]  # the text of a script by its name in the job; empty where it cannot be read

_DEEPEST, _MOST_TEXTS, _MOST_CALLS = 30, 5, 10  # expansions, texts, functions within each other
_MOST_READ = 20_000  # words of functions and texts, and hundreds of characters of values
_LONGEST, _MOST_WORDS = 65_536, 10_000  # of a value, of a list
_NO, _MAYBE, _SURE = 0, 1, 2  # whether a command is reached

_CLOSING = {'"': '"', "`": "`", "(": ")", "{": "}"}
_OPERATOR = re.compile(r"\n|;;&?|;&|&&|\|\||\|&|&>>?|\d*(?:<<<|<<-?|>>|[<>]&|[<>])|[;&|()]")
_VARIABLE = re.compile(r"\$(\w+|[@*#?!$-])")
_BRACED = re.compile(r"(\w+)(?:\[(@|\*|\d+)\])?(?::?([-=+?])(.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_SUM, _NO_SUM = re.compile(r"[\d\s+*/()-]{1,100}"), re.compile(r"\*\s*\*|/\s*/|\)\s*[\d(]|\d\s*\(")
_OPENS, _CLOSES = ("if", "while", "until", "for", "case", "select", "{"), ("fi", "done", "esac", "}")
_PROGRAMS_ONLY = ("exec", "command")
_STATES = {"true": True, ":": True, "false": False}
_NAME, _PIPES = re.compile(r"[\w.:+-]+"), ("|", "|&")
_LOOPS = ("for", "while", "until", "select")
_QUOTES = "'\"\\"
_TESTS = ("[", "[[", "test", "grep", "which", "type", "hash", "-v")  # -v of command
_ARGUMENTS = ("@", "*", "#", *"123456789")
_BETWEEN = ("then", "do", "else", "elif", "!", "time", *_PROGRAMS_ONLY)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_CHANGES = ("read", "mapfile", "readarray", "getopts", "printf", "unset")  # variables that are their arguments
_CHANGED = re.compile(r"(?:\+\+|--) {0,9}([^\W\d]\w*)|\b([^\W\d]\w*)(\[[^]]{0,99}])? {0,9}(\+\+|--|[-+*/%&|^]?=(?!=))")
_LOCAL, _OPTION_A = ("local", "declare", "typeset"), re.compile(r" ([-+])(?:o allexport|[b-zB-Z]*a[a-zA-Z]*)(?= |$)")
_ELEMENT = re.compile(r"([A-Za-z_]\w*)\[[^]]*\]\+?=.*", re.DOTALL)
_ESCAPED = re.compile(r"\$'(?:\\.|[^'\\])*'?", re.DOTALL)
_FIELD = re.compile(rf"(?:{UNREAD}[^{UNREAD}]*{UNREAD}|\S)+")  # split at spaces, not within what is unknown
_INNER = re.compile(r"\$\((?!\()|`")


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        words: as the program gets them. line: of its first word, from 1.
        env: what is assigned in front of it.
        is_plain: it stands in no condition or loop. in_background: ``&`` ends it.
        is_program: it is no function, as ``exec`` and ``command`` find none.
        is_choice: only a run tells whether it is reached.
        is_inner: another command takes what it prints, in ``$(...)``.
        text: what it reads, of a here-document or ``<<<``. file: that it reads. into: the file that it writes.
        fed: the words that print what it reads, before ``|`` or in ``<(...)``.
    """

    words: tuple[str, ...]
    line: int
    env: tuple[tuple[str, str], ...] = ()
    is_plain: bool = True
    in_background: bool = False
    is_program: bool = False
    is_choice: bool = False
    is_inner: bool = False
    text: str = ""
    file: str = ""
    into: str = ""
    fed: tuple[str, ...] = ()


@dataclass
class _Shell:
    """What is known of a shell where a command stands.

    Attributes:
        doubtful: variables that may have no value. functions: their bodies, and those of aliases.
        reach: whether it is still there. returned: and in the function, or the file, that it runs.
        running: functions that it is in. local: what variables were before the last of them.
        left, room: words of functions and texts, and hundreds of characters of values, that are still read.
        exported: variables, all that get a value where ``exports_all``. published: as callers know them.
    """

    values: Values
    sourced: Read
    left: Iterator[int]
    room: Iterator[int]
    exported: set[str]
    published: dict[str, str]
    exports_all: bool = False
    local: dict[str, str | list[str] | None] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    functions: dict[str, list[Token]] = field(default_factory=dict)
    reach: int = _SURE
    returned: int = _SURE
    running: tuple[str, ...] = ()
    has_aliases: bool = False

    def copy(self, *, is_inner: bool = False) -> _Shell:
        own = {name: value.copy() for name, value in vars(self).items() if isinstance(value, (dict, set))}
        return replace(self, **(own if is_inner else {**own, "published": self.published}))

    def news(self) -> dict[str, str]:
        """The exported variables that are not as callers know them; without a value, those that are no more."""
        now = {name: value for name in self.exported if isinstance(value := self.values.get(name), str)}
        changed = {
            name: now.get(name, "")
            for name in {**self.published, **now}
            if self.published.get(name) != now.get(name, "")
        }
        self.published |= changed
        return changed


@dataclass
class _Block:
    """A condition, loop or group that is open: whether what stands there is reached, and its next branch."""

    word: str
    reach: int
    others: int
    before: _Shell
    is_own: bool = False  # a shell of its own
    subject: str = ""  # of case


def unread(name: str) -> str:
    """The value of a variable that only a run tells."""
    return f"{UNREAD}${name}{UNREAD}"


def nothing(name: str) -> str:  # noqa: ARG001
    """Reads no script."""
    return ""


def commands(
    text: str,
    variables: Mapping[str, str | list[str]] | None = None,
    arguments: Sequence[str] = (),
    sourced: Read = nothing,
    *,
    inner: bool = False,
) -> Iterator[Command]:
    """The commands in the order in which they run, those that can't be reached left out; ``export NAME=VALUE`` is one,
    too. A variable that a condition or a loop changes is unread from there on. Of what is nested too deep to be read,
    one command stands there: UNTOLD.

    Args:
        variables: of its environment. arguments: the script's own, ``$1`` and so on.
        sourced: the text of a file that the script reads with ``source``; empty where it can't be read.
        inner: with those in ``$(...)``.
    """
    values = {**(variables or {})}
    published = {name: value for name, value in values.items() if isinstance(value, str) and name.isidentifier()}
    shell = _Shell(values, sourced, iter(range(_MOST_READ)), iter(range(_MOST_READ)), {*published}, published)
    values |= {"@": [], "*": ""}
    if arguments:
        _set_arguments(values, [*arguments])
    tokens = [*_tokens(text)]
    around = "again" if {'"$0"', "$0", '"${0}"', "$BASH_SOURCE"} & {each[0] for each in tokens} else ""
    yield from (each for each in _commands(tokens, shell, 0, around=around) if inner or not each.is_inner)


def _commands(
    tokens: Iterable[Token], shell: _Shell, nested: int, whole: int = _SURE, around: str = ""
) -> Iterator[Command]:
    """Args:
    nested: how many texts of eval, source and ``$(...)`` this one stands in. whole: whether it is reached. around:
    ``for`` where it runs more than once, ``again`` where it may call itself.
    """
    tokens = [*tokens, ("\n", True, 0)]
    reader = _Reader(iter(tokens), shell, nested, [_Block(around, whole, whole, shell)])
    reader.shifts = any(token == "shift" for token, _, _ in tokens)
    for token, is_operator, at in reader.rest:
        if is_operator and ("<" in token or ">" in token):
            yield from reader.redirected(token)
        elif is_operator:
            yield from reader.ended(token, at)
        elif reader.raw[:1] == ["function"] and token in _OPENS:
            reader.define((token, False, at))
        elif reader.raw:
            reader.raw.append(token)
        else:
            reader.begin(token, at)


@dataclass
class _Reader:
    """What is known where a word or an operator stands.

    Attributes:
        rest: what follows. blocks: that are open. closed: the shell before the last one. raw, line: words of a command.
        by_name: ``exec`` or ``command`` before it. joint: the operator before it. is_not: ``!`` stands before it.
        state: whether the last command succeeds. link: how surely that lets one behind ``&&`` run.
        printed: words of a pipeline. taken: what redirections give the command, as ``Command`` has it.
    """

    rest: Iterator[Token]
    shell: _Shell
    nested: int
    blocks: list[_Block]
    shifts: bool = False
    closed: _Shell | None = None
    raw: list[str] = field(default_factory=list)
    line: int = 0
    by_name: str = ""
    joint: str = ""
    is_not: bool = False
    taken: dict[str, Any] = field(default_factory=dict)
    state: bool | None = None
    link: int = _SURE
    printed: tuple[str, ...] = ()

    @property
    def here(self) -> int:
        """Whether what stands here is reached behind ``&&`` and ``||``."""
        if self.joint == "&&":
            return _NO if self.state is False else self.link
        return {True: _NO, False: _SURE, None: _MAYBE}[self.state] if self.joint == "||" else _SURE

    @property
    def own(self) -> int:
        """The same in its block; while the shell is there."""
        return min(self.blocks[-1].reach, self.here)

    @property
    def reach(self) -> int:
        return min(self.own, self.shell.reach, self.shell.returned)

    def redirected(self, token: str) -> Iterator[Command]:
        target = next(self.rest, ("", False, 0))
        if target[0] == "(":
            body = _body(target, self.rest)
            body = body if self.nested < _MOST_TEXTS else [(UNTOLD, False, target[2])]
            inside = list(_commands(body, self.shell.copy(), self.nested + 1)) if self.reach else []
            yield from inside
            self.taken["fed"] = tuple(word for each in inside for word in each.words)
            self.raw += [f"{UNREAD}<(){UNREAD}"] * bool(self.raw)
        elif target[0] and self.reach:
            yield from _inner(target[0], target[2], self.shell, self.nested)
            name = "text" if token in ("<<", "<<-", "<<<") else "file" if token in ("<", "0<") else "into"
            if "&" not in token:
                self.taken[name] = _joined(target[0], self.shell)

    def define(self, opening: Token) -> None:
        self.shell.functions[self.raw[-1]] = _body(opening, self.rest)
        self.raw = []

    def begin(self, token: str, at: int) -> None:
        """A word that begins a command, or a part of the shell's grammar."""
        if token in _CLOSES:
            self.close()
        elif token in _OPENS:
            self.open(token)
            self.raw, self.joint, self.line = [token] if token in ("for", "select") else [], "", at
            if token == "case":
                self.blocks[-1].subject = next(self.rest, ("", False, 0))[0]
                next((each for each in self.rest if each[0] == "in"), None)
                self.pattern()
            if token in ("while", "until") and self.shifts:
                _set_arguments(self.shell.values, None)
        elif token in ("then", "do", "else", "elif"):
            block, state = self.blocks[-1], self.state
            if token in ("else", "elif"):
                block.reach = block.others
            elif block.word in ("if", "while", "until"):
                _choose(block, state if block.word != "until" or state is None else not state)
            self.joint = ""
        elif token in _BETWEEN:
            self.by_name = token if token in _PROGRAMS_ONLY else self.by_name
            self.is_not ^= token == "!"
        else:
            self.raw, self.line = [token], at

    def open(self, word: str) -> None:
        is_own = word == "(" or self.joint in _PIPES
        self.blocks.append(_Block(word, self.own, self.own, self.shell.copy(), is_own))

    def close(self) -> None:
        if len(self.blocks) > 1:
            block = self.blocks.pop()
            self.closed = block.before
            vars(self.shell).update(vars(block.before) if block.is_own else {})
        self.joint, self.state, self.link = "", None, _SURE

    def pattern(self) -> None:
        """All up to the ``)`` behind a pattern of ``case``, or to ``esac``."""
        token, words = "", list[str]()
        for token, is_operator, _ in self.rest:
            if token in (")", "esac"):
                break
            words += [token] * (not is_operator)
        found = [word == "*" or self.known("[[", self.blocks[-1].subject, "==", word, "]]") for word in words]
        _choose(self.blocks[-1], True if True in found else None if None in found else False)
        if token == "esac":
            self.close()

    def known(self, *raw: str) -> bool | None:
        """Whether a command succeeds; None where only a run tells, or where it may run more than once."""
        if raw[0] not in ("[", "[[", "test"):
            return _STATES.get(raw[0])
        shell, inside = self.shell, raw[1:] if raw[0] == "test" else raw[1:-1]
        names = re.findall(r"\$\{?([@*#]|\w+)", " ".join(inside))
        is_known = all(name in shell.values and name not in shell.doubtful for name in names)
        if not is_known or any(each.word in (*_LOOPS, "again") for each in self.blocks):
            return None
        words = [_joined(each, shell) for each in inside] if raw[0] == "[[" else [*_all_of(inside, shell)]
        words = [words[1], {"-z": "=", "-n": "!="}.get(words[0], ""), ""] if len(words) == 2 else words
        if re.fullmatch(r"-?\d{1,18} -(eq|ne|lt|le|gt|ge) -?\d{1,18}", " ".join(words), re.ASCII):
            return bool(getattr(int(words[0]), f"__{words[1][1:]}__")(int(words[2])))
        is_text = len(words) == 3 and words[1] in ("=", "==", "!=") and UNREAD not in "".join(words)
        is_pattern = raw[0] == "[[" and re.search(r"[*?[(\\]", "".join(words[2:]))
        return (words[0] == words[2]) is (words[1] != "!=") if is_text and not is_pattern else None

    def ended(self, token: str, at: int) -> Iterator[Command]:
        """At an operator, which ends a command."""
        names = self.raw[1:] if self.raw[:1] == ["function"] else self.raw
        if token == "(" and len(names) == 1 and _NAME.fullmatch(names[0]):
            next(self.rest, None)
            self.define(next((each for each in self.rest if each[0] != "\n"), ("{", False, at)))
            return
        if self.raw[:1] == ["function"]:
            return
        if token == ")" and self.blocks[-1].word == "case":  # the end of a pattern
            self.raw = []
            return
        if self.raw and self.raw[0] != "select" and self.reach:
            yield from self.command(token)
        elif not self.raw and self.closed and token in (*_PIPES, "&"):
            vars(self.shell).update(vars(self.closed))
        self.closed = None
        if token == "(":
            self.open(token)
        elif token == ")" and any(each.word == "(" for each in self.blocks):
            self.close()
        elif token in (";;", ";&", ";;&") and (block := self.blocks[-1]).word == "case":
            falls = _NO if token == ";;" else min(max(block.reach, block.others), _MAYBE)
            self.pattern()
            block.reach, block.others = max(block.reach, falls), max(block.others, falls)
        self.joint = token if self.raw or token != "\n" else self.joint
        self.raw, self.by_name, self.is_not, self.taken = [], "", False, {}

    def command(self, token: str) -> Iterator[Command]:
        """The command before an operator."""
        raw, here, own, is_fed = self.raw, self.here, self.own, self.joint in _PIPES
        for word in raw:
            yield from _inner(word, self.line, self.shell, self.nested)
        in_shell = token not in (*_PIPES, "&") and not is_fed
        within = self.shell if in_shell else self.shell.copy()
        for name in raw[2:] if raw[:2] == ["export", "-f"] and self.nested < _MOST_TEXTS else ():
            for each in _commands(within.functions.get(name, []), within.copy(is_inner=True), self.nested + 1):
                yield replace(each, is_inner=True)
        if raw[0] == "for" and "in" in raw and not [*_all_of(raw[raw.index("in") + 1 :], within)]:
            self.blocks[-1].reach = _NO
        repeats = any(each.word in _LOOPS for each in self.blocks)
        is_sure = own == _SURE and not repeats and (self.joint != "&&" or self.state is True)
        state = self.known(*raw) if in_shell else None
        is_choice = self.reach < _SURE or (token == "||" and self.joint == "&&")
        before = self.printed if is_fed else ()
        for command in _command(raw, self.line, within, is_sure=is_sure):
            self.printed = (*before, *command.words, *filter(None, [self.taken.get("text")]))
            known = replace(
                command,
                is_plain=len(self.blocks) == 1,
                is_choice=is_choice,
                is_program=bool(self.by_name),
                in_background=token == "&",
                **{**self.taken, **({"fed": before} if is_fed else {})},
            )
            yield from _followed(known, within, self.nested, own, "for" if repeats else self.blocks[0].word)
            name = "exec" if self.by_name == "exec" else command.words[0] if not self.by_name else ""
            if in_shell and (name in ("exit", "exec") or (name == "return" and (self.nested or within.running))):
                is_error = name != "exec" and command.words[1:] not in ((), ("0",))
                after = _NO if own == _SURE else _SURE if is_error else _MAYBE  # what follows a branch that is no error
                until = "returned" if name == "return" else "reach"
                setattr(within, until, min(getattr(within, until), after))
                self.blocks[-1].reach = _NO if here == _SURE else self.blocks[-1].reach
        state = state if state is None or not self.is_not else not state
        is_open = self.state is None and {True: "&&", False: "||"}.get(state is True) == self.joint
        self.state = None if is_open else state
        is_test = raw[0] in _TESTS or raw[0].startswith("((") or raw[-1] == "]]" or self.is_not
        self.link = min(here, _MAYBE if is_test and state is None else _SURE)


def _choose(block: _Block, holds: bool | None) -> None:
    """What a condition that holds or not, or is not known, makes of its block."""
    least = min(block.others, _MAYBE)
    block.reach = {True: block.others, False: _NO, None: least}[holds]
    block.others = {True: _NO, False: block.others, None: least}[holds]


def _body(opening: Token, tokens: Iterator[Token]) -> list[Token]:
    """All from an opening word to the one that closes it."""
    body, opened, begins = [opening], [opening[0]], True
    while opened and (each := next(tokens, None)):
        token, is_operator, _ = each
        body.append(each)
        if token == "(" if is_operator else begins and token in _OPENS:
            opened.append(token)
        elif opened[-1] == "(" and token == ")" if is_operator else begins and token in _CLOSES:
            opened.pop()
        begins = (is_operator and "<" not in token and ">" not in token) or (
            begins and token in (*_BETWEEN, *_OPENS) and token not in ("for", "case", "select")
        )
    return body


def _inner(word: str, line: int, shell: _Shell, nested: int) -> Iterator[Command]:
    """The commands of ``$(...)`` in a word."""
    found = None if word.startswith("'") else _INNER.search(word)
    while found and (end := _after(word, found.start())) > 0:
        text = word[found.end() : end - 1] if nested < _MOST_TEXTS else UNTOLD
        for each in _commands(_tokens(text), shell.copy(is_inner=True), nested + 1) if text else ():
            yield replace(each, line=line, is_inner=True)
        found = _INNER.search(word, end)


def _set_arguments(values: Values, listed: list[str] | None) -> None:
    """None: those that a loop shifts."""
    if listed is None:
        for name in _ARGUMENTS:
            _doubt(values, name)
    else:
        words = [*listed, *[""] * 9]
        values |= {"@": listed, "*": " ".join(listed), "#": str(len(listed))}
        values |= {str(at): word for at, word in enumerate(words, 1)}


def _doubt(values: Values, name: str) -> None:
    values[name] = unread(name)


def _followed(command: Command, shell: _Shell, nested: int, own: int, around: str) -> Iterator[Command]:
    """A command; of a function, eval and source those of their text, which see and change the same variables."""
    (name, *words), text = command.words, ""
    body = None if command.is_program or name in shell.running else shell.functions.get(name)
    if name == "shopt" and "expand_aliases" in words:
        shell.has_aliases = True
    if name == "alias" and shell.has_aliases:
        for alias, _, value in (word.partition("=") for word in words):
            shell.functions[alias] = [(each[0], each[1], 0) for each in _tokens(f'{value} "$@"')]
    if name in ("source", ".") and words:
        is_input = words[0] == "/dev/stdin"
        text = (command.text or shell.sourced(command.file)) if is_input else shell.sourced(words[0])
    elif name in ("eval", "trap"):
        text = " ".join(words) if name == "eval" else "".join(words[:1])
    if body is None and not text:
        yield command
    elif (
        (body is None and nested == _MOST_TEXTS)
        or len(shell.running) == _MOST_CALLS
        or not _affords(shell.left, len(body or text.split()))
    ):
        yield replace(command, words=(UNTOLD,))
    else:
        within = shell.copy(is_inner=True) if name == "trap" else shell
        returned, running, local, exported = shell.returned, shell.running, shell.local, set(shell.exported)
        within.returned = _SURE
        if body is not None:
            within.running, around = (*running, name), around or "again" * any(word == name for word, _, _ in body)
            within.local = {each: shell.values.get(each) for each in (*_ARGUMENTS, *dict(command.env))}
            within.values |= dict(command.env)
            within.exported |= {*dict(command.env)}
            _set_arguments(within.values, words)
        for each in _commands(body or _tokens(text), within, nested + (body is None), own, around):
            yield replace(
                each,
                line=(body and each.line) or command.line,
                is_plain=each.is_plain and command.is_plain,
                is_choice=each.is_choice or command.is_choice,
                is_inner=each.is_inner or name == "trap",
                in_background=each.in_background or command.in_background,
                fed=each.fed or command.fed,
                text=each.text or command.text,
            )
        if body is not None:
            shell.exported -= {*shell.local} - exported
            before = {**shell.values, **shell.local}.items()
            shell.values, shell.local = {name: value for name, value in before if value is not None}, local
        shell.returned, shell.running = returned, running


def _affords(left: Iterator[int], count: int) -> bool:
    return sum(1 for _ in islice(left, count)) == count


def unclosed(text: str) -> int:
    """The line of the word in which a quote or a bracket begins that nothing closes; 0 for none, or where that is not
    certain: quotes in ``$'...'`` and in ``"${...}"`` have rules of their own.
    """
    *_, (word, is_operator, line) = _tokens(f"{text}\n;")  # the text's end is an operator, where nothing swallows it
    return 0 if is_operator or word == UNTOLD or re.search(r"\$(\{[^}\n]*)?'", word) else line


def as_written(word: str) -> str:
    """A word for a reader: what is unknown as it is written."""
    return word.replace(UNREAD, "")


def _change(raw: list[str], shell: _Shell, *, is_sure: bool) -> None:
    """The variables that a command of the shell itself changes."""
    values = shell.values
    sums = " ".join(raw).removeprefix("let ") if raw[0] in ("let", "for") or raw[0].startswith("((") else ""
    for one, other, *_ in _CHANGED.findall(sums):
        _doubt(values, one or other)
    if raw[0] == "for":
        each = " ".join(_all_of(raw[3:], shell))
        _doubt(values, "".join(raw[1:2]))
        if re.fullmatch(r"[^\s*?[]+", each):
            values[raw[1]] = each
    for name in raw[1:] if raw[0] in _CHANGES else ():
        if raw[0] == "unset" and is_sure:
            values.pop(name, None)
        elif name in values:
            _doubt(values, name)
    if raw[0] == "set" and (option := _OPTION_A.search(" ".join(raw).partition(" --")[0])):
        shell.exports_all = option[1] == "-"
    if raw[0] == "set" and "--" in raw:
        _set_arguments(values, list(_all_of(raw[raw.index("--") + 1 :], shell)) if is_sure else None)
    if raw[0] == "shift":
        listed, count = values["@"], "".join(raw[1:2]) or "1"
        is_known = is_sure and isinstance(listed, list) and count.isdigit()
        _set_arguments(values, list(listed[int(count) :]) if is_known else None)


def _command(raw: list[str], line: int, shell: _Shell, *, is_sure: bool) -> Iterator[Command]:
    declares, values = raw[0] in _DECLARES, shell.values
    _change(raw, shell, is_sure=is_sure)
    if raw[0] == "for":
        return
    if element := _ELEMENT.fullmatch(raw[0]):
        _doubt(values, element[1])
        raw = raw[1:] or ["declare"]
    assigned: dict[str, str | list[str]] = {}
    place = 0
    while place < len(raw) and ((parts := _ASSIGNMENT.fullmatch(raw[place])) or declares):
        place += 1
        if parts:
            is_array = parts[3].startswith("(")
            value: str | list[str] = list(_all(parts[3][1:-1], shell)) if is_array else _joined(parts[3], shell)
            if is_array and "]=" in parts[3]:
                value = [f"{UNREAD}{parts[3]}{UNREAD}"]
            before = values.get(parts[1], [] if is_array else "") if parts[2] else type(value)()
            assigned[parts[1]] = before + value if isinstance(before, type(value)) else value  # type: ignore[operator]
    if declares or place == len(raw):
        _assign(raw, assigned, shell, is_sure=is_sure)
    if news := shell.news():
        yield Command(("export", *map("=".join, news.items())), line)
    if not declares and (words := tuple(_all_of(raw[place:], shell))):
        env = tuple((name, value) for name, value in assigned.items() if isinstance(value, str))
        yield Command(words, line, env)


def _assign(raw: list[str], assigned: Mapping[str, str | list[str]], shell: _Shell, *, is_sure: bool) -> None:
    values, declares = shell.values, raw[0] in _DECLARES
    options = "".join(word[1:] for word in raw[1:] if declares and re.fullmatch("-[A-Za-z]+", word))
    names = {*assigned, *(word for word in raw[1:] if declares and word.isidentifier())}
    is_local = raw[0] in _LOCAL and bool(shell.running) and "g" not in options
    for name in names - {*shell.local} if is_local else ():
        shell.local[name] = values.pop(name, None)
        values |= {} if name in assigned else {name: ""}
    for name, value in assigned.items():
        if is_sure:
            shell.doubtful.discard(name)
        elif name not in values:
            shell.doubtful.add(name)
        certain = (is_sure or values.get(name, value) == value) and "i" not in options
        values[name] = value if certain else unread(name)
    if raw[0] == "export" and "n" in options:
        shell.exported -= names
    elif raw[0] == "export" or "x" in options or shell.exports_all:
        shell.exported |= names
        for name in names:
            shell.published.pop(name, None)


def _tokens(text: str) -> Iterator[tuple[str, bool, int]]:
    """Words as they are written and operators, whether it is one, and its line."""
    at, line, behind, here = 0, 1, 0, ""  # here-documents
    while at < len(text):
        operator, start = _OPERATOR.match(text, at), at
        if text[at] in " \t" or text.startswith("\\\n", at):
            at += 2 if text[at] == "\\" else 1
        elif text[at] == "#":
            at = _end_of_line(text, at)
        elif text.startswith("((", at) and text[(end := _after(text, at)) - 2 : end] == "))" and end > 0:
            yield text[at:end], False, line
            at = end
        elif operator is not None:
            at = operator.end()
            if not (operator[0] == "\n" and text.endswith("\\\n", 0, start)):
                yield operator[0], True, line
            here = operator[0] if operator[0] in ("<<", "<<-") else ""
            if operator[0] == "\n":
                at = max(at, behind)
        else:
            while at < len(text) and (text[at] not in " \t\n;&|<>()"):
                at = _after(text, at + 1 if text.startswith("=(", at) else at, 0)
                if at < 0:
                    yield UNTOLD, False, line
                    return
            word = text[start:at]
            if here:  # its text in its place
                begin = max(behind, _end_of_line(text, at) + 1)
                mark = re.compile(rf"^\t*{re.escape(word.strip(_QUOTES))}$", re.MULTILINE).search(text, begin)
                body, behind = text[begin : mark.start() if mark else len(text)], mark.end() if mark else len(text)
                body = re.sub(r"(?m)^\t+", "", body) if here == "<<-" else body
                quoted = body.replace("'", "'\"'\"'") if word[0] in _QUOTES else body.replace('"', '\\"')
                word, here = f"'{quoted}'" if word[0] in _QUOTES else f'"{quoted}"', ""
            yield word, False, line
        line += text.count("\n", start, at)


def _end_of_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return end if end >= 0 else len(text)


def _after(text: str, at: int, depth: int = 0) -> int:
    """Behind what begins here: an escaped character, a quoted text, an expansion, a bracket; else one character.
    Negative where that is nested too deep.
    """
    opening = text[at]
    if opening == "\\":
        return min(at + 2, len(text))
    if opening == "'":
        return text.find("'", at + 1) + 1 or len(text)
    if escaped := _ESCAPED.match(text, at):
        return escaped.end()
    if opening == "$" and text[at + 1 : at + 2] in ("(", "{"):
        return _closed(text, at + 1, depth + 1)
    return _closed(text, at, depth + 1) if opening in '"`(' else at + 1


def _closed(text: str, at: int, depth: int) -> int:
    opening, closing = text[at], _CLOSING[text[at]]
    at = at + 1 if depth <= _DEEPEST else -1
    while 0 <= at < len(text) and text[at] != closing:
        if opening == "(" and text[at] == "#" and text[at - 1].isspace():
            at = _end_of_line(text, at)
        elif opening == '"' and text.startswith("$'", at):
            at += 1
        elif text[at] in {'"': "\\$`", "{": "\\'\"$`"}.get(opening, "\\'\"$`("):
            at = _after(text, at, depth)
        else:
            at += 1
    return min(at + 1, len(text)) if at >= 0 else at


def _all(text: str, shell: _Shell) -> Iterator[str]:
    return _all_of((token for token, is_operator, _ in _tokens(text) if not is_operator), shell)


def _all_of(raw: Iterable[str], shell: _Shell) -> Iterator[str]:
    for word in raw:
        yield from _expanded(word, shell, split=True)


def _joined(raw: str, shell: _Shell) -> str:
    return "".join(_expanded(raw, shell, split=False))


def _expanded(raw: str, shell: _Shell, *, split: bool) -> list[str]:
    """The words that a word becomes: none for an empty variable, several for one with spaces, or an array."""
    words: list[str] = []
    open_word: str | None = None
    for piece in _pieces(raw):
        if piece[0] in "$`" and piece[1:2] != "'" and split:
            parts = _value(piece, shell)
            fields = parts if isinstance(parts, list) else _FIELD.findall(parts)
        elif piece[0] == '"' and split and re.search(r"\$@|\[@\]", piece):
            fields = [""]
            for part in _pieces(piece[1:-1], quoted=True):
                listed = _value(part, shell) if part[0] == "$" else [_quoted(part, shell)]
                listed = [listed] if isinstance(listed, str) else listed
                fields = [*fields[:-1], fields[-1] + "".join(listed[:1]), *listed[1:]]
            fields = fields if fields != [""] else []
        else:
            fields = [_text(piece, shell)]
        for place, each in enumerate(fields):
            if place and open_word is not None:
                words.append(open_word)
                open_word = None
            open_word = (open_word or "") + each
    return words if open_word is None else [*words, open_word]


def _pieces(raw: str, *, quoted: bool = False) -> Iterator[str]:
    """``quoted``: between double quotes, where single ones are plain characters."""
    at = 0
    while at < len(raw):
        variable = _VARIABLE.match(raw, at)
        is_plain = quoted and raw.startswith(("'", "(", "$'"), at)
        end = variable.end() if variable else at + 1 if is_plain else _after(raw, at)
        yield raw[at:end]
        at = end


def _text(piece: str, shell: _Shell) -> str:
    if piece[0] == "\\":
        return piece[1:].removeprefix("\n")
    if piece[0] == "'" or (piece[:2] == "$'" and "\\" not in piece):  # what an outer shell left unread has two marks
        return piece.lstrip("$")[1:-1].replace(UNREAD, UNREAD * 2)
    if piece[0] == '"':
        return "".join(_quoted(part, shell) for part in _pieces(piece[1:-1], quoted=True))
    value = _value(piece, shell) if piece[0] in "$`" else piece
    return value if isinstance(value, str) else " ".join(value)


def _quoted(part: str, shell: _Shell) -> str:
    if part[0] == "\\":
        return part if part[1:2] not in ("$", "`", '"', "\\", "\n") else part[1:].removeprefix("\n")
    return part if part == "'" else _text(part, shell)


def _value(piece: str, shell: _Shell) -> str | list[str]:
    """What an expansion gives: a list of an array's ``[@]``."""
    unknown = f"{UNREAD}{piece.replace(UNREAD, '')}{UNREAD}"
    if piece.startswith("$((") and piece.endswith("))"):
        inside = re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda name: f"${name[0]}", piece[3:-2])
        inside = "".join(_text(part, shell) for part in _pieces(re.sub(r"\$\{(\w+)\}", r"$\1", inside)))
        return _summed(inside, unknown)
    if piece.startswith("$(expr "):
        return _summed("".join(_all(piece[7:-1], shell)), unknown)
    braced = _BRACED.fullmatch(piece[2:-1]) if piece.startswith("${") else None
    plain = _VARIABLE.fullmatch(piece)
    name = braced[1] if braced else plain[1] if plain else ""
    value = shell.values.get(name)
    is_unset = name in shell.doubtful or (braced and braced[3] == "+" and (value is None or UNREAD in value))
    if braced and braced[3] and is_unset:
        return unknown
    if braced and braced[3] == "+":
        value = _joined(braced[4], shell) if value else ""
    elif braced and braced[3] in ("-", "=") and not value:
        value = _joined(braced[4], shell)
        if braced[3] == "=":
            shell.values[name] = value
    most = _LONGEST if isinstance(value, str) else _MOST_WORDS
    if value is None or len(value) > most or not _affords(shell.room, (len(value) + sum(map(len, value))) // 100):
        return unknown
    if isinstance(value, str):
        return value
    index = braced[2] if braced else None
    return value if index in ("@", "*") or name == "@" else "".join(value[int(index or 0) :][:1])


def _summed(text: str, unknown: str) -> str:
    """The value of a sum of whole numbers."""
    if not _SUM.fullmatch(text) or _NO_SUM.search(text):
        return unknown
    try:
        return str(int(eval(text.replace("/", "//"), {"__builtins__": {}})))
    except (SyntaxError, ArithmeticError, TypeError, ValueError):
        return unknown
