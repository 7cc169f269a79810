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
_MOST_READ = 20_000  # words of functions and texts
_NO, _MAYBE, _SURE = 0, 1, 2  # whether a command is reached

_CLOSING = {'"': '"', "`": "`", "(": ")", "{": "}"}
_OPERATOR = re.compile(r"\n|;;|&&|\|\||\|&|&>>?|\d*(?:<<<|<<-?|>>|[<>]&|[<>])|[;&|()]")
_VARIABLE = re.compile(r"\$(\w+|[@*#?!$-])")
_BRACED = re.compile(r"(\w+)(?:\[(@|\*|\d+)\])?(?::?([-=])(.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_NO_NAME = re.compile(r"-|(?:export|declare|local|readonly|typeset)$")
_SUM, _NO_SUM = re.compile(r"[\d\s+*/()-]{1,100}"), re.compile(r"\*\s*\*|/\s*/|\)\s*[\d(]|\d\s*\(")
_OPENS, _CLOSES = ("if", "while", "until", "for", "case", "select", "{"), ("fi", "done", "esac", "}")
_PROGRAMS_ONLY = ("exec", "command")
_STATES = {"true": True, ":": True, "false": False}
_NAME, _PIPES = re.compile(r"[\w.:+-]+"), ("|", "|&")
_LOOPS = ("for", "while", "until", "select", "case")
_QUOTES = "'\"\\"
_TESTS = ("[", "[[", "test", "grep", "which", "type", "hash", "-v")  # -v of command
_ARGUMENTS = ("@", "*", *"123456789")
_BETWEEN = ("then", "do", "else", "elif", "!", "time", *_PROGRAMS_ONLY)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_CHANGES = ("read", "mapfile", "readarray", "getopts", "printf", "unset")  # variables that are their arguments
_CHANGED = re.compile(r"(?:\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)(?:\[[^]]*\])?\s*(?:\+\+|--|[-+*/%&|^]?=(?!=))")
_ELEMENT = re.compile(r"([A-Za-z_]\w*)\[[^]]*\]\+?=.*", re.DOTALL)
_ESCAPED = re.compile(r"\$'(?:\\.|[^'\\])*'?", re.DOTALL)
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
        running: functions that it is in. left: words of functions and texts that are still read.
    """

    values: Values
    sourced: Read
    left: Iterator[int]
    doubtful: set[str] = field(default_factory=set)
    functions: dict[str, list[Token]] = field(default_factory=dict)
    reach: int = _SURE
    returned: int = _SURE
    running: tuple[str, ...] = ()
    has_aliases: bool = False

    def copy(self) -> _Shell:
        return replace(self, values=dict(self.values), doubtful=set(self.doubtful), functions=dict(self.functions))


@dataclass
class _Block:
    """A condition, loop or group that is open: whether what stands there is reached, and its next branch."""

    word: str
    reach: int
    others: int


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
    shell = _Shell({**(variables or {})}, sourced, iter(range(_MOST_READ)))
    shell.values |= {"@": [*arguments], "*": " ".join(arguments)}
    shell.values |= {str(place): word for place, word in enumerate(arguments, 1)}
    yield from (each for each in _commands(_tokens(text), shell, 0) if inner or not each.is_inner)


def _commands(tokens: Iterable[Token], shell: _Shell, nested: int, whole: int = _SURE) -> Iterator[Command]:
    """Args:
    nested: how many texts of eval, source and ``$(...)`` this one stands in. whole: whether it is reached.
    """
    tokens = [*tokens, ("\n", True, 0)]
    reader = _Reader(iter(tokens), shell, nested, [_Block("", whole, whole)])
    reader.shifts = any(token == "shift" for token, _, _ in tokens)
    for token, is_operator, at in reader.rest:
        if is_operator and ("<" in token or ">" in token):
            yield from reader.redirected(token)
        elif is_operator:
            yield from reader.ended(token, at)
        elif reader.raw:
            reader.add(token, at)
        else:
            reader.begin(token, at)


@dataclass
class _Reader:
    """What is known where a word or an operator stands.

    Attributes:
        rest: what follows. blocks: that are open. outside: shells of ``(``. raw, line: words of a command.
        by_name: ``exec`` or ``command`` before it. joint: the operator before it. is_not: ``!`` stands before it.
        state: whether the last command succeeds. link: how surely that lets one behind ``&&`` run.
        printed: words of a pipeline. taken: what redirections give the command, as ``Command`` has it.
    """

    rest: Iterator[Token]
    shell: _Shell
    nested: int
    blocks: list[_Block]
    shifts: bool = False
    outside: list[_Shell] = field(default_factory=list)
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

    def add(self, token: str, at: int) -> None:
        if self.raw[0] == "function" and token in _OPENS:
            self.define((token, False, at))
        else:
            self.raw.append(token)

    def define(self, opening: Token) -> None:
        self.shell.functions[self.raw[-1]] = _body(opening, self.rest)
        self.raw = []

    def begin(self, token: str, at: int) -> None:
        """A word that begins a command, or a part of the shell's grammar."""
        if token in _CLOSES:
            self.close()
        elif token in _OPENS:
            reach = min(self.own, _MAYBE) if token == "case" else self.own
            self.blocks.append(_Block(token, reach, reach))
            self.raw, self.joint, self.line = [token] if token in ("for", "case", "select") else [], "", at
            if token in ("while", "until") and self.shifts:
                _set_arguments(self.shell.values, None)
        elif token in ("then", "do", "else", "elif"):
            _branch(self.blocks[-1], token, self.state)
            self.joint = ""
        elif token in _BETWEEN:
            self.by_name = token if token in _PROGRAMS_ONLY else self.by_name
            self.is_not ^= token == "!"
        else:
            self.raw, self.line = [token], at

    def close(self) -> None:
        self.blocks[1:] = self.blocks[1:-1]
        self.joint, self.state, self.link = "", None, _SURE

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
        if self.raw and self.raw[0] not in ("case", "select") and self.reach:
            yield from self.command(token)
        if token == "(":
            self.outside.append(self.shell)
            self.blocks.append(_Block("(", self.own, self.own))
            self.shell = self.shell.copy()
        elif token == ")" and self.outside:
            self.shell = self.outside.pop()
            self.close()
        elif token == ";;":
            self.blocks[-1].reach = self.blocks[-1].others
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
            for each in _commands(within.functions.get(name, []), within.copy(), self.nested + 1):
                yield replace(each, is_inner=True)
        if raw[0] == "for" and "in" in raw and not [*_all_of(raw[raw.index("in") + 1 :], within)]:
            self.blocks[-1].reach = _NO
        is_sure = own == _SURE and (self.joint != "&&" or self.state is True)
        is_sure &= not any(each.word in _LOOPS for each in self.blocks)
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
            yield from _followed(known, within, self.nested, own)
            name = "exec" if self.by_name == "exec" else command.words[0] if not self.by_name else ""
            if in_shell and (name in ("exit", "exec") or (name == "return" and (self.nested or within.running))):
                is_error = name != "exec" and command.words[1:] not in ((), ("0",))
                whole = here == _SURE
                _leave(within, self.blocks, own, is_whole=whole, is_error=is_error, returns=name == "return")
        state = _STATES.get(raw[0]) if in_shell else None
        self.state = state if state is None or not self.is_not else not state
        is_test = raw[0] in _TESTS or raw[0].startswith("((") or raw[-1] == "]]" or self.is_not
        self.link = min(here, _MAYBE if is_test and state is None else _SURE)


def _branch(block: _Block, token: str, state: bool | None) -> None:
    """What a condition that ended so, or is not known, makes of its block."""
    if token in ("else", "elif"):
        block.reach = block.others
    elif block.word in ("if", "while", "until"):
        holds = state if block.word != "until" or state is None else not state
        least = min(block.others, _MAYBE)
        block.reach = {True: block.others, False: _NO, None: least}[holds]
        block.others = {True: _NO, False: block.others, None: least}[holds]


def _leave(shell: _Shell, blocks: Sequence[_Block], own: int, *, is_whole: bool, is_error: bool, returns: bool) -> None:
    """The shell ends, or the function: what follows is not reached, or, in a branch that is no error, perhaps not."""
    first = max(place for place, each in enumerate(blocks) if each.word in ("", "("))
    for block in blocks[first:] if own == _SURE else ():
        block.reach = block.others = _NO
    if is_whole:
        blocks[-1].reach = _NO
    after = _NO if own == _SURE else _SURE if is_error else _MAYBE
    if returns:
        shell.returned = min(shell.returned, after)
    else:
        shell.reach = min(shell.reach, after)


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
        for each in _commands(_tokens(text), shell.copy(), nested + 1) if text else ():
            yield replace(each, line=line, is_inner=True)
        found = _INNER.search(word, end)


def _set_arguments(values: Values, listed: list[str] | None) -> None:
    """None: those that a loop shifts."""
    if listed is None:
        for name in _ARGUMENTS:
            _doubt(values, name)
    else:
        words = [*listed, *[""] * 9]
        values |= {"@": listed, "*": " ".join(listed), **{str(at): word for at, word in enumerate(words, 1)}}


def _doubt(values: Values, name: str) -> None:
    values[name] = f"{UNREAD}${name}{UNREAD}"


def _changed(raw: Sequence[str]) -> list[str]:
    """The variables that a sum changes."""
    return [one or other for one, other in _CHANGED.findall(" ".join(raw).removeprefix("let "))]


def _followed(command: Command, shell: _Shell, nested: int, own: int) -> Iterator[Command]:
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
        or not _affords(shell, body or text.split())
    ):
        yield replace(command, words=(UNTOLD,))
    else:
        within = shell.copy() if name == "trap" else shell
        before = {each: shell.values.get(each, "") for each in _ARGUMENTS}
        returned, running = shell.returned, shell.running
        within.returned = _SURE
        if body is not None:
            within.running = (*running, name)
            within.values |= dict(command.env)
            _set_arguments(within.values, words)
        for each in _commands(body or _tokens(text), within, nested + (body is None), own):
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
        shell.returned, shell.running = returned, running
        if body is not None:
            shell.values |= before


def _affords(shell: _Shell, body: Sequence[Any]) -> bool:
    return sum(1 for _ in islice(shell.left, len(body))) == len(body)


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
    for name in _changed(raw) if raw[0] in ("let", "for") or raw[0].startswith("((") else ():
        _doubt(values, name)
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
    is_number = declares and any(re.match("-[A-Za-z]*i", word) for word in raw[1:])
    assigned: dict[str, str | list[str]] = {}
    place = 0
    while place < len(raw) and (
        parts := _ASSIGNMENT.fullmatch(raw[place]) or (declares and _NO_NAME.match(raw[place]))
    ):
        place += 1
        if parts.re is _ASSIGNMENT:
            is_array = parts[3].startswith("(")
            value: str | list[str] = list(_all(parts[3][1:-1], shell)) if is_array else _joined(parts[3], shell)
            if is_array and "]=" in parts[3]:
                value = [f"{UNREAD}{parts[3]}{UNREAD}"]
            before = values.get(parts[1], [] if is_array else "") if parts[2] else type(value)()
            assigned[parts[1]] = before + value if isinstance(before, type(value)) else value  # type: ignore[operator]
    if declares or place == len(raw):
        for name, value in assigned.items():
            if is_sure:
                shell.doubtful.discard(name)
            elif name not in values:
                shell.doubtful.add(name)
            certain = (is_sure or values.get(name, value) == value) and not is_number
            values[name] = value if certain else f"{UNREAD}${name}{UNREAD}"
    if raw[0] == "export":
        named = (*assigned, *(word for word in raw[place:] if word in values))
        texts = (value if isinstance(value := values[name], str) else "" for name in named)
        pairs = map("=".join, zip(named, texts, strict=True))
        yield Command(("export", *pairs), line)
    elif not declares and (words := tuple(_all_of(raw[place:], shell))):
        env = tuple((name, value) for name, value in assigned.items() if isinstance(value, str))
        yield Command(words, line, env)


def _tokens(text: str) -> Iterator[tuple[str, bool, int]]:
    """Words as they are written and operators, whether it is one, and its line."""
    at, line, behind = 0, 1, 0  # here-documents
    here = ""
    while at < len(text):
        operator = _OPERATOR.match(text, at)
        start = at
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
        if piece[0] in "$`" and split:
            parts = _value(piece, shell)
            fields = parts if isinstance(parts, list) else parts.split() if UNREAD not in parts else _fields(parts)
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


def _fields(text: str) -> list[str]:
    """Split at spaces, not within what is unknown."""
    return re.findall(rf"(?:{UNREAD}[^{UNREAD}]*{UNREAD}|\S)+", text)


def _pieces(raw: str, *, quoted: bool = False) -> Iterator[str]:
    """``quoted``: between double quotes, where single ones are plain characters."""
    at = 0
    while at < len(raw):
        variable = _VARIABLE.match(raw, at)
        end = (
            variable.end()
            if variable
            else at + 1
            if quoted and raw.startswith(("'", "(", "$'"), at)
            else _after(raw, at)
        )
        yield raw[at:end]
        at = end


def _text(piece: str, shell: _Shell) -> str:
    if piece[0] == "\\":
        return piece[1:].removeprefix("\n")
    if piece[0] == "'":  # what an outer shell has left unread has two marks on each side, here as anywhere
        return piece[1:-1].replace(UNREAD, UNREAD * 2)
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
    if braced and braced[3] and name in shell.doubtful:
        return unknown
    if braced and braced[3] and not value:
        value = _joined(braced[4], shell)
        if braced[3] == "=":
            shell.values[name] = value
    if value is None:
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
