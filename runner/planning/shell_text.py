"""The commands of a shell script, as far as its text tells them without being run. Pure.

Words are split and expanded as bash does it: quotes, comments, line continuations, here-documents, variables, arrays,
defaults (``${N:-2}``) and sums (``$((N * 8))``). What only a run tells (``$(hostname)``, a variable that nothing sets)
stays as it is written, between two UNREAD characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

UNREAD = "\0"  # no argument of a program can hold one
UNTOLD = f"{UNREAD}what is nested too deep{UNREAD}"  # a word that could not be read
Values = dict[str, "str | list[str]"]
Read = Callable[[str], str]  # the text of a script by its name in the job; empty where it cannot be read

_DEEPEST, _MOST_TEXTS = 30, 5  # expansions within each other; texts of eval and source

_CLOSING = {'"': '"', "`": "`", "(": ")", "{": "}"}
_OPERATOR = re.compile(r"\n|;;|&&|\|\||\|&|&>>?|\d*(?:<<<|<<-?|>>|[<>]&|[<>])|[;&|()]")
_VARIABLE = re.compile(r"\$(\w+|[@*#?!$-])")
_BRACED = re.compile(r"(\w+)(?:\[(@|\*|\d+)\])?(?::?([-=])(.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_NO_NAME = re.compile(r"-|(?:export|declare|local|readonly|typeset)$")
_SUM, _NO_SUM = re.compile(r"[\d\s+*/()-]{1,100}"), re.compile(r"\*\s*\*|/\s*/|\)\s*[\d(]|\d\s*\(")
_OPENS, _CLOSES = ("if", "while", "until", "for", "case", "select", "{"), ("fi", "done", "esac", "}")
_PROGRAMS_ONLY = ("exec", "command")
_BETWEEN = ("then", "do", "else", "elif", "!", "time", *_PROGRAMS_ONLY)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        words: as the program gets them. line: of its first word, from 1.
        env: what is assigned in front of it.
        is_plain: it stands in no condition, loop or function. in_background: ``&`` ends it.
    """

    words: tuple[str, ...]
    line: int
    env: tuple[tuple[str, str], ...] = ()
    is_plain: bool = True
    in_background: bool = False
    is_program: bool = False


def nothing(name: str) -> str:  # noqa: ARG001
    """Reads no script."""
    return ""


def commands(
    text: str,
    variables: Mapping[str, str | list[str]] | None = None,
    arguments: Sequence[str] = (),
    sourced: Read = nothing,
) -> Iterator[Command]:
    """The commands in the order of the text; ``export NAME=VALUE`` is one, too. A variable that a condition or a loop
    changes is unread from there on. Of what is nested too deep to be read, one command stands there: UNTOLD.

    Args:
        variables: of its environment. arguments: the script's own, ``$1`` and so on.
        sourced: the text of a file that the script reads with ``source``; empty where it can't be read.
    """
    listed = list(arguments)
    values: Values = {**(variables or {}), "@": listed, "*": " ".join(listed)}
    values |= {str(place): word for place, word in enumerate(listed, 1)}
    yield from _commands(text, values, sourced, 0)


def _commands(text: str, values: Values, sourced: Read, nested: int) -> Iterator[Command]:
    """``nested``: how many texts of eval and source this one stands in."""
    depth, brackets, raw, line = 0, 0, list[str](), 0
    by_name = depends = False  # depends: on the command before it, by && or ||
    tokens = chain(_tokens(text), [("\n", True, 0)])
    for token, is_operator, at in tokens:
        if is_operator and ("<" in token or ">" in token):
            next(tokens, None)
            continue
        if not is_operator:
            if not raw and token in _OPENS + _CLOSES:
                depth += 1 if token in _OPENS else -1
                if token not in ("for", "case", "select"):
                    continue
            if raw or token not in _BETWEEN:
                line = line if raw else at
                raw.append(token)
            else:
                by_name |= token in _PROGRAMS_ONLY
            continue
        brackets += {"(": 1, ")": -1}.get(token, 0)
        if brackets < 0:  # the end of a case's pattern
            brackets, raw = 0, []
        if raw[:1] == ["for"]:
            values.pop("".join(raw[1:2]), None)
        elif raw and raw[0] not in ("case", "select", "function"):
            for each in _command(raw, line, values, is_plain=not depth, is_certain=not depth and not depends):
                command = replace(each, is_program=by_name, in_background=token == "&")
                yield from _followed(command, values, sourced, nested)
        depends = token in ("&&", "||") or (depends and not raw)
        raw, by_name = [], False


def _followed(command: Command, values: Values, sourced: Read, nested: int) -> Iterator[Command]:
    """A command; of eval and source those of their text, which see and change the same variables."""
    name, *words = command.words
    text = " ".join(words) if name == "eval" else sourced(words[0]) if name in ("source", ".") and words else ""
    if not text:
        yield command
    elif nested == _MOST_TEXTS:
        yield replace(command, words=(UNTOLD,))
    else:
        for each in _commands(text, values, sourced, nested + 1):
            yield replace(each, line=command.line, is_plain=each.is_plain and command.is_plain)


def unclosed(text: str) -> int:
    """The line of the word in which a quote or a bracket begins that nothing closes; 0 for none, or where that is not
    certain: quotes in ``$'...'`` and in ``"${...}"`` have rules of their own.
    """
    *_, (word, is_operator, line) = _tokens(f"{text}\n;")  # the text's end is an operator, where nothing swallows it
    return 0 if is_operator or word == UNTOLD or re.search(r"\$(\{[^}\n]*)?'", word) else line


def as_written(word: str) -> str:
    """A word for a reader: what is unknown as it is written."""
    return word.replace(UNREAD, "")


def _command(raw: list[str], line: int, values: Values, *, is_plain: bool, is_certain: bool) -> Iterator[Command]:
    declares = raw[0] in _DECLARES
    assigned: dict[str, str | list[str]] = {}
    place = 0
    while place < len(raw) and (
        parts := _ASSIGNMENT.fullmatch(raw[place]) or (declares and _NO_NAME.match(raw[place]))
    ):
        place += 1
        if parts.re is _ASSIGNMENT:
            is_array = parts[3].startswith("(")
            value: str | list[str] = list(_all(parts[3][1:-1], values)) if is_array else _joined(parts[3], values)
            before = values.get(parts[1], [] if is_array else "") if parts[2] else type(value)()
            assigned[parts[1]] = before + value if isinstance(before, type(value)) else value  # type: ignore[operator]
    if declares or place == len(raw):
        for name, value in assigned.items():
            values[name] = value if is_certain or values.get(name, value) == value else f"{UNREAD}${name}{UNREAD}"
    if raw[0] == "export":
        named = (*assigned, *(word for word in raw[place:] if word in values))
        texts = (value if isinstance(value := values[name], str) else "" for name in named)
        pairs = map("=".join, zip(named, texts, strict=True))
        yield Command(("export", *pairs), line, is_plain=is_plain)
    elif not declares and (words := tuple(_all_of(raw[place:], values))):
        env = tuple((name, value) for name, value in assigned.items() if isinstance(value, str))
        yield Command(words, line, env, is_plain)


def _tokens(text: str) -> Iterator[tuple[str, bool, int]]:
    """Words as they are written and operators, whether it is one, and its line."""
    at, line = 0, 1
    ends: list[str] = []  # of here-documents that begin on this line
    is_end = False
    while at < len(text):
        operator = _OPERATOR.match(text, at)
        start = at
        if text[at] in " \t" or text.startswith("\\\n", at):
            at += 2 if text[at] == "\\" else 1
        elif text[at] == "#":
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif operator is not None:
            at = operator.end()
            if not (operator[0] == "\n" and text[:start].endswith("\\\n")):
                yield operator[0], True, line
            is_end = operator[0] in ("<<", "<<-")
            while operator[0] == "\n" and ends:
                end = re.compile(rf"^\t*{re.escape(ends.pop(0))}$", re.MULTILINE).search(text, at)
                at = end.end() if end else len(text)
        else:
            while at < len(text) and (text[at] not in " \t\n;&|<>()"):
                at = _after(text, at + 1 if text.startswith("=(", at) else at, 0)
                if at < 0:
                    yield UNTOLD, False, line
                    return
            word = text[start:at]
            if is_end:
                ends.append(word.strip("'\"\\"))
                is_end = False
            yield word, False, line
        line += text.count("\n", start, at)


def _after(text: str, at: int, depth: int = 0) -> int:
    """Behind what begins here: an escaped character, a quoted text, an expansion, a bracket; else one character.
    Negative where that is nested too deep.
    """
    opening = text[at]
    if opening == "\\":
        return min(at + 2, len(text))
    if opening == "'":
        return text.find("'", at + 1) + 1 or len(text)
    if opening == "$" and text[at + 1 : at + 2] in ("(", "{"):
        return _closed(text, at + 1, depth + 1)
    return _closed(text, at, depth + 1) if opening in '"`(' else at + 1


def _closed(text: str, at: int, depth: int) -> int:
    opening, closing = text[at], _CLOSING[text[at]]
    at = at + 1 if depth <= _DEEPEST else -1
    while 0 <= at < len(text) and text[at] != closing:
        if opening == "(" and text[at] == "#" and text[at - 1].isspace():
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif text[at] in ("\\$`" if opening == '"' else "\\'\"$`("):
            at = _after(text, at, depth)
        else:
            at += 1
    return min(at + 1, len(text)) if at >= 0 else at


def _all(text: str, values: Values) -> Iterator[str]:
    return _all_of((token for token, is_operator, _ in _tokens(text) if not is_operator), values)


def _all_of(raw: Iterable[str], values: Values) -> Iterator[str]:
    for word in raw:
        yield from _expanded(word, values, split=True)


def _joined(raw: str, values: Values) -> str:
    return "".join(_expanded(raw, values, split=False))


def _expanded(raw: str, values: Values, *, split: bool) -> list[str]:
    """The words that a word becomes: none for an empty variable, several for one with spaces, or an array."""
    words: list[str] = []
    open_word: str | None = None
    for piece in _pieces(raw):
        if piece[0] in "$`" and split:
            parts = _value(piece, values)
            fields = parts if isinstance(parts, list) else parts.split() if UNREAD not in parts else _fields(parts)
        elif piece[0] == '"' and split and re.search(r"\$@|\[@\]", piece):
            fields = [""]
            for part in _pieces(piece[1:-1], quoted=True):
                listed = _value(part, values) if part[0] == "$" else [_quoted(part, values)]
                listed = [listed] if isinstance(listed, str) else listed
                fields = [*fields[:-1], fields[-1] + "".join(listed[:1]), *listed[1:]]
            fields = fields if fields != [""] else []
        else:
            fields = [_text(piece, values)]
        for place, field in enumerate(fields):
            if place and open_word is not None:
                words.append(open_word)
                open_word = None
            open_word = (open_word or "") + field
    return words if open_word is None else [*words, open_word]


def _fields(text: str) -> list[str]:
    """Split at spaces, not within what is unknown."""
    return re.findall(rf"(?:{UNREAD}[^{UNREAD}]*{UNREAD}|\S)+", text)


def _pieces(raw: str, *, quoted: bool = False) -> Iterator[str]:
    """``quoted``: between double quotes, where single ones are plain characters."""
    at = 0
    while at < len(raw):
        variable = _VARIABLE.match(raw, at)
        end = variable.end() if variable else at + 1 if quoted and raw[at] in "'(" else _after(raw, at)
        yield raw[at:end]
        at = end


def _text(piece: str, values: Values) -> str:
    if piece[0] == "\\":
        return piece[1:].removeprefix("\n")
    if piece[0] == "'":  # what an outer shell has left unread has two marks on each side, here as anywhere
        return piece[1:-1].replace(UNREAD, UNREAD * 2)
    if piece[0] == '"':
        return "".join(_quoted(part, values) for part in _pieces(piece[1:-1], quoted=True))
    value = _value(piece, values) if piece[0] in "$`" else piece
    return value if isinstance(value, str) else " ".join(value)


def _quoted(part: str, values: Values) -> str:
    if part[0] == "\\":
        return part if part[1:2] not in ("$", "`", '"', "\\", "\n") else part[1:].removeprefix("\n")
    return part if part == "'" else _text(part, values)


def _value(piece: str, values: Values) -> str | list[str]:
    """What an expansion gives: a list of an array's ``[@]``."""
    unknown = f"{UNREAD}{piece.replace(UNREAD, '')}{UNREAD}"
    if piece.startswith("$((") and piece.endswith("))"):
        inside = re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda name: f"${name[0]}", piece[3:-2])
        inside = "".join(_text(part, values) for part in _pieces(re.sub(r"\$\{(\w+)\}", r"$\1", inside)))
        return _summed(inside, unknown)
    if piece.startswith("$(expr "):
        return _summed("".join(_all(piece[7:-1], values)), unknown)
    braced = _BRACED.fullmatch(piece[2:-1]) if piece.startswith("${") else None
    plain = _VARIABLE.fullmatch(piece)
    name = braced[1] if braced else plain[1] if plain else ""
    value = values.get(name)
    if braced and braced[3] and not value:
        value = _joined(braced[4], values)
        if braced[3] == "=":
            values[name] = value
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
