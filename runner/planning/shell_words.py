"""Words of a shell script, split and expanded as bash does it: quotes, comments, line continuations, here-documents,
variables, arrays, defaults (``${N:-2}``) and sums (``$((N * 8))``). Pure.

What only a run tells (``$(hostname)``, a variable that nothing sets) stays as it is written, between two UNREAD
characters.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

UNREAD = "\0"  # no argument of a program can hold one
UNTOLD = f"{UNREAD}what is nested too deep{UNREAD}"  # a word that could not be read
Value = str | tuple[str, ...]  # a text, or an array

ARGUMENTS = ("@", "*", "#", *"123456789")
_DEEPEST = 30  # expansions within each other
_LONGEST, _MOST_WORDS, _MOST_NAMES = 65_536, 10_000, 1_000  # of a value, of an array, of a script's variables
_MOST_STEPS = 100_000  # words, and hundreds of characters, that are read of a script

_CLOSING = {'"': '"', "`": "`", "(": ")", "{": "}"}
_OPERATOR = re.compile(r"\n|;;&?|;&|&&|\|\||\|&|&>>?|\d*(?:<<<|<<-?|>>|[<>]&|[<>])|[;&|()]")
_ESCAPED = re.compile(r"\$'(?:\\.|[^'\\])*'?", re.DOTALL)
_VARIABLE = re.compile(r"\$(\w+|[@*#?!$-])")
_BRACED = re.compile(r"\$\{(\w+|[@*#])(?:\[(@|\*|\d+)\])?(?::?([-=+?])(.*))?\}", re.DOTALL)
_PLAIN, _PLAIN_IN_QUOTES = re.compile(r"[^\\'\"$`(<>]+"), re.compile(r"[^\\\"$`]+")
_FIELD = re.compile(rf"(?:{UNREAD}[^{UNREAD}]*{UNREAD}|\S)+")  # split at spaces, not within what is unknown
_SUM, _NO_SUM = re.compile(r"[\d\s+*/()-]{1,100}"), re.compile(r"\*\s*\*|/\s*/|\)\s*[\d(]|\d\s*\(")
_QUOTES = "'\"\\"


def unread(name: str) -> str:
    """The value of a variable that only a run tells."""
    return f"{UNREAD}${name}{UNREAD}"


def as_written(word: str) -> str:
    """A word for a reader: what is unknown as it is written."""
    return word.replace(UNREAD, "")


class Token(NamedTuple):
    """A word as it is written, or an operator."""

    text: str
    is_operator: bool
    line: int


@dataclass
class Variables:
    """What is known of a shell's variables.

    Attributes:
        values: by name; ``@``, ``*``, ``#`` and numbers for the arguments.
        exported: names. exports_all: also those that get a value from here on (``set -a``).
        doubtful: names that may have no value.
        steps: how much more is read, shared by all copies. inherited: the environment, where it is known.
    """

    values: dict[str, Value]
    exported: set[str]
    exports_all: bool = False
    doubtful: set[str] = field(default_factory=set)
    steps: list[int] = field(default_factory=lambda: [_MOST_STEPS])
    inherited: Mapping[str, str] | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a program that is started here."""
        if self.inherited is None:
            self.affords(len(self.exported) // 50)
            known = ((name, self.values.get(name)) for name in self.exported)
            self.inherited = {name: value for name, value in known if isinstance(value, str)}
        return self.inherited

    def affords(self, steps: int) -> bool:
        is_affordable = self.steps[0] >= steps
        self.steps[0] -= steps * is_affordable
        return is_affordable

    def copy(self) -> Variables:
        other = copy.copy(self)
        other.values, other.exported, other.doubtful = {**self.values}, {*self.exported}, {*self.doubtful}
        return other

    def agree(self, ways: Sequence[Variables]) -> None:
        """Keep in what all these agree; what they do not is unread."""
        first, *others = ways
        self.values, self.exported = {**first.values}, set.union(*(each.exported for each in ways))
        self.doubtful, self.exports_all = set.union(*(each.doubtful for each in ways)), first.exports_all
        self.inherited = None
        for other in others:
            for name, value in first.values.items() ^ other.values.items():
                if name in first.values and name in other.values:
                    self.values[name] = unread(name)
                else:
                    self.values[name] = value if self.values.get(name, value) == value else unread(name)
                    self.doubtful.add(name)

    def set(self, name: str, value: Value) -> None:
        self.doubtful.discard(name)
        if name in self.values or len(self.values) < _MOST_NAMES:
            self.values[name] = value
        if self.exports_all:
            self.export(name)
        self.inherited = None if name in self.exported else self.inherited

    def unset(self, name: str) -> None:
        self.values.pop(name, None)
        self.inherited = None

    def export(self, name: str, *, is_exported: bool = True) -> None:
        if is_exported and len(self.exported) < _MOST_NAMES:
            self.exported.add(name)
        elif not is_exported:
            self.exported.discard(name)
        self.inherited = None

    def doubt(self, name: str) -> None:
        self.set(name, unread(name))

    def set_arguments(self, words: Sequence[str] | None) -> None:
        """None: unknown ones."""
        if words is None:
            self.values |= {name: unread(name) for name in ARGUMENTS}
            return
        self.values |= {"@": tuple(words), "*": " ".join(words), "#": str(len(words))}
        self.values |= {str(at): word for at, word in enumerate((*words, *[""] * 9), 1) if at < 10}


def tokens(text: str) -> Iterator[Token]:
    """Words as they are written, and operators; behind ``<<`` the text of the here-document, quoted."""
    at, line, behind, here = 0, 1, 0, ""  # here-documents
    while at < len(text):
        operator, start = _OPERATOR.match(text, at), at
        if text[at] in " \t" or text.startswith("\\\n", at):
            at += 2 if text[at] == "\\" else 1
        elif text[at] == "#":
            at = _end_of_line(text, at)
        elif text.startswith("((", at) and text[(end := _after(text, at)) - 2 : end] == "))" and end > 0:
            yield Token(text[at:end], False, line)
            at = end
        elif operator is not None and not text.startswith(("<(", ">("), at):
            at = operator.end()
            if not (operator[0] == "\n" and text.endswith("\\\n", 0, start)):
                yield Token(operator[0], True, line)
            here = operator[0] if operator[0] in ("<<", "<<-") else ""
            if operator[0] == "\n":
                at = max(at, behind)
        else:
            while at < len(text) and (text[at] not in " \t\n;&|<>()" or text.startswith(("<(", ">("), at)):
                at = _after(text, at + 1 if text.startswith("=(", at) else at)
                if at < 0:
                    yield Token(UNTOLD, False, line)
                    return
            word = text[start:at]
            if here:
                begin = max(behind, _end_of_line(text, at) + 1)
                mark = re.compile(rf"^\t*{re.escape(word.strip(_QUOTES))}$", re.MULTILINE).search(text, begin)
                body, behind = text[begin : mark.start() if mark else len(text)], mark.end() if mark else len(text)
                body = re.sub(r"(?m)^\t+", "", body) if here == "<<-" else body
                quoted = body.replace("'", "'\"'\"'") if word[0] in _QUOTES else body.replace('"', '\\"')
                word, here = f"'{quoted}'" if word[0] in _QUOTES else f'"{quoted}"', ""
            yield Token(word, False, line)
        line += text.count("\n", start, at)


def unclosed(text: str) -> int:
    """The line of the word in which a quote or a bracket begins that nothing closes; 0 for none, or where that is not
    certain: quotes in ``$'...'`` and in ``"${...}"`` have rules of their own.
    """
    *_, last = tokens(f"{text}\n;")  # the text's end is an operator, where nothing swallows it
    is_certain = not last.is_operator and last.text != UNTOLD and not re.search(r"\$(\{[^}\n]*)?'", last.text)
    return last.line if is_certain else 0


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
    if text.startswith(("$(", "${", "<(", ">("), at):
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


def expanded(raw: str, variables: Variables) -> list[str]:
    """The words that a word becomes: none for an empty variable, several for one with spaces, or an array."""
    words: list[str] = []
    is_open = False
    for piece in _pieces(raw):
        value = _value(piece.text, variables) if piece.is_expansion else piece.text
        fields: Sequence[str] = [value] if isinstance(value, str) else value
        if isinstance(value, str) and piece.is_expansion and not piece.is_quoted:
            fields = _FIELD.findall(value)
        for place, each in enumerate(fields):
            if is_open and not place:
                words[-1] += each
            else:
                words.append(each)
            is_open = True
    return words


def text_of(raw: str, variables: Variables, *, is_quoted: bool = False) -> str:
    """What a word becomes where it is not split, as in an assignment.

    Args:
        is_quoted: it stands between double quotes.
    """
    parts = (
        _value(each.text, variables) if each.is_expansion else each.text for each in _pieces(raw, is_quoted=is_quoted)
    )
    return "".join(each if isinstance(each, str) else " ".join(each) for each in parts)


def array_of(raw: str, variables: Variables) -> tuple[str, ...]:
    """The elements of ``(a b c)``."""
    if "]=" in raw:
        return (f"{UNREAD}{raw}{UNREAD}",)
    words = (each.text for each in tokens(raw[1:-1]) if not each.is_operator)
    return tuple(element for word in words for element in expanded(word, variables))


class _Piece(NamedTuple):
    """A part of a word: characters without their quotes, or an expansion."""

    text: str
    is_expansion: bool = False
    is_quoted: bool = True


def _pieces(raw: str, *, is_quoted: bool = False) -> Iterator[_Piece]:
    at = 0
    while at < len(raw):
        known = (_PLAIN_IN_QUOTES if is_quoted else _PLAIN).match(raw, at) or _VARIABLE.match(raw, at)
        is_plain = is_quoted and raw.startswith("$'", at)
        end = known.end() if known else at + 1 if is_plain else _after(raw, at)
        if end < 0:
            yield _Piece(UNTOLD)
            return
        text, at = raw[at:end], end
        if text[0] == "\\":
            is_kept = is_quoted and text[1:2] not in ("$", "`", '"', "\\", "\n")
            yield _Piece(text if is_kept else text[1:].removeprefix("\n"))
        elif not is_quoted and (text[0] == "'" or (text[:2] == "$'" and "\\" not in text)):
            # What an outer shell left unread has two marks.
            yield _Piece(text.lstrip("$")[1:-1].replace(UNREAD, UNREAD * 2))
        elif not is_quoted and text[0] == '"':
            yield from _pieces(text[1:-1], is_quoted=True) if len(text) > 2 else [_Piece("")]
        else:
            yield _Piece(text, text[0] in "$`<>" and len(text) > 1 and not is_plain, is_quoted)


def _value(piece: str, variables: Variables) -> Value:
    """What an expansion gives: an array of ``[@]``."""
    unknown, braced = f"{UNREAD}{as_written(piece)}{UNREAD}", _BRACED.fullmatch(piece)
    if piece.startswith("$((") and piece.endswith("))"):
        return _sum(piece[3:-2], variables) or unknown
    if braced is None and not _VARIABLE.fullmatch(piece):
        return unknown
    name, index, how, other = braced.groups() if braced else (piece[1:], None, None, None)
    value = variables.values.get(name)
    if how and (name in variables.doubtful or (how == "+" and (value is None or UNREAD in value))):
        return unknown
    if how == "+":
        value = text_of(other or "", variables) if value else ""
    elif how in ("-", "=") and not value:
        value = text_of(other or "", variables)
        if how == "=":
            variables.set(name, value)
    most = _LONGEST if isinstance(value, str) else _MOST_WORDS
    if value is None or len(value) > most or not variables.affords((len(value) + sum(map(len, value))) // 100):
        return unknown
    if isinstance(value, str) or name == "@" or index in ("@", "*"):
        return value
    return "".join(value[int(index or 0) :][:1])


def _sum(text: str, variables: Variables) -> str:
    """The value of a sum of whole numbers; empty where that is unknown."""
    text = text_of(re.sub(r"(?<![\w${])[A-Za-z_]\w*", r"$\g<0>", text), variables, is_quoted=True)
    if not _SUM.fullmatch(text) or _NO_SUM.search(text):
        return ""
    try:
        return str(int(eval(text.replace("/", "//"), {"__builtins__": {}})))
    except (SyntaxError, ArithmeticError, TypeError, ValueError):
        return ""


def variables_of(known: Mapping[str, str | Sequence[str]], arguments: Sequence[str]) -> Variables:
    """Those of a script that is started with this environment and these arguments."""
    values = {name: value if isinstance(value, str) else tuple(value) for name, value in known.items()}
    exported = {name for name, value in values.items() if isinstance(value, str) and name.isidentifier()}
    of_script = Variables({**values, "@": (), "*": ""}, exported)
    if arguments:
        of_script.set_arguments(arguments)
    return of_script
