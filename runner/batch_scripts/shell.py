"""The commands of a shell script, as far as its text tells them without being run. Pure.

What only a run tells (``$(hostname)``, a variable that nothing sets) stays in a word as it is written, between two
UNKNOWN characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass

UNKNOWN = "\0"
Values = MutableMapping[str, "str | list[str]"]

_CLOSING = {'"': '"', "`": "`", "(": ")", "{": "}"}
_OPERATOR = re.compile(r"\n|;;|&&|\|\||\|&|&>>?|\d*(?:<<<|<<-?|>>|[<>]&|[<>])|[;&|()]")
_VARIABLE = re.compile(r"\$(\w+|[@*#?!$-])")
_BRACED = re.compile(r"(\w+)(?:\[(@|\*|\d+)\])?(?::?([-=])(.*))?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SUM, _NO_SUM = re.compile(r"[\d\s+*/()-]{1,100}"), re.compile(r"\*\s*\*|/\s*/|\)\s*[\d(]|\d\s*\(")
_OPENS, _CLOSES = ("if", "while", "until", "for", "case", "select", "{"), ("fi", "done", "esac", "}")
_BETWEEN = ("then", "do", "else", "elif", "!", "time", "exec", "command")
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


def commands(text: str, values: Values) -> Iterator[Command]:
    """The commands in their order; assignments go into ``values``, those of a condition only where nothing else has
    set the variable. ``export NAME=VALUE`` is a command, too.
    """
    depth, brackets, raw, line = 0, 0, list[str](), 0
    conditional: set[str] = set()
    tokens = _tokens(text)
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
            continue
        if token == "(":
            brackets += 1
        elif token == ")" and brackets:
            brackets -= 1
        elif token == ")":  # the end of a case's pattern
            raw = []
        if raw and raw[0] not in ("for", "case", "select", "function"):
            yield from _command(raw, line, values, conditional, depth, background=token == "&")
        raw = []
    if raw:
        yield from _command(raw, line, values, conditional, depth, background=False)


def shown(word: str) -> str:
    """A word for a reader: what is unknown as it is written."""
    return word.replace(UNKNOWN, "")


def _command(
    raw: list[str], line: int, values: Values, conditional: set[str], depth: int, *, background: bool
) -> Iterator[Command]:
    declares = raw[0] in _DECLARES
    env: list[tuple[str, str]] = []
    for place, word in enumerate(raw):
        parts = _ASSIGNMENT.fullmatch(word)
        if parts is None and not (declares and (place == 0 or word.startswith("-"))):
            break
        if parts is not None:
            is_array = parts[2].startswith("(")
            value = (
                list(_all(parts[2][1:-1], values)) if is_array else "".join(_expanded(parts[2], values, split=False))
            )
            env.append((parts[1], value if isinstance(value, str) else ""))
            is_last = declares or all(map(_ASSIGNMENT.fullmatch, raw))
            if is_last and not depth:
                values[parts[1]] = value
            elif is_last and parts[1] not in values:
                values[parts[1]] = value
                conditional.add(parts[1])
            elif is_last and parts[1] in conditional and values[parts[1]] != value:
                values[parts[1]] = f"{UNKNOWN}${parts[1]}{UNKNOWN}"
    else:
        place = len(raw)
    if raw[0] == "export":
        env += [(name, "".join(values.get(name, ""))) for name in raw[place:]]
        words: tuple[str, ...] = ("export", *(f"{name}={value}" for name, value in env))
        yield Command(words, line, is_plain=not depth)
        return
    words = tuple(_all_of(raw[place:], values))
    if words[:1] == ("eval",):
        yield from commands(" ".join(words[1:]), values)
    elif words:
        yield Command(words, line, tuple(env), not depth, background)


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
                at = _after(text, at + 1 if text.startswith("=(", at) else at)
            word = text[start:at]
            if is_end:
                ends.append(word.strip("'\"\\"))
                is_end = False
            yield word, False, line
        line += text.count("\n", start, at)


def _after(text: str, at: int) -> int:
    """Behind what begins here: an escaped character, a quoted text, an expansion, a bracket; else one character."""
    opening = text[at]
    if opening == "\\":
        return min(at + 2, len(text))
    if opening == "'":
        return text.find("'", at + 1) + 1 or len(text)
    if opening == "$" and text[at + 1 : at + 2] in ("(", "{"):
        return _after(text, at + 1) if text[at + 1] == "(" else _closed(text, at + 1)
    return _closed(text, at) if opening in '"`(' else at + 1


def _closed(text: str, at: int) -> int:
    opening, closing = text[at], _CLOSING[text[at]]
    at += 1
    while at < len(text) and text[at] != closing:
        if opening == "(" and text[at] == "#" and text[at - 1].isspace():
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        elif text[at] in ("\\$`" if opening == '"' else "\\'\"$`("):
            at = _after(text, at)
        else:
            at += 1
    return min(at + 1, len(text))


def _all(text: str, values: Values) -> Iterator[str]:
    return _all_of((token for token, is_operator, _ in _tokens(text) if not is_operator), values)


def _all_of(raw: Iterable[str], values: Values) -> Iterator[str]:
    for word in raw:
        yield from _expanded(word, values, split=True)


def _expanded(raw: str, values: Values, *, split: bool) -> list[str]:
    """The words that a word becomes: none for an empty variable, several for one with spaces, or an array."""
    words: list[str] = []
    open_word: str | None = None
    for piece in _pieces(raw):
        if piece[0] in "$`" and split:
            parts = _value(piece, values)
            fields = parts if isinstance(parts, list) else parts.split() if UNKNOWN not in parts else _fields(parts)
        elif piece[0] == '"' and isinstance(listed := _value(piece[1:-1], values), list) and split:
            fields = listed
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
    return re.findall(rf"(?:{UNKNOWN}[^{UNKNOWN}]*{UNKNOWN}|\S)+", text)


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
    if piece[0] == "'":
        return piece[1:-1]
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
    unknown = f"{UNKNOWN}{piece.replace(UNKNOWN, '')}{UNKNOWN}"
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
        value = "".join(_expanded(braced[4], values, split=False))
        if braced[3] == "=":
            values[name] = value
    if value is None:
        return unknown
    if isinstance(value, str):
        return value
    index = braced[2] if braced else None
    return value if index in ("@", "*") else "".join(value[int(index or 0) :][:1])


def _summed(text: str, unknown: str) -> str:
    """The value of a sum of whole numbers."""
    if not _SUM.fullmatch(text) or _NO_SUM.search(text):
        return unknown
    try:
        return str(int(eval(text.replace("/", "//"), {"__builtins__": {}})))
    except (SyntaxError, ArithmeticError, TypeError, ValueError):
        return unknown
