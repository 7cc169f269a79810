"""The commands of a shell script's text, as far as they can be read without running it. Pure.

Words are split and expanded as bash does it: quotes, comments, line continuations, here-documents, simple variables,
arrays, defaults (``${N:-2}``) and products (``$((N * 8))``). What only the shell itself would know is ``UNREAD``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

UNREAD = "\0"  # no argument of a program can hold one
_BETWEEN = "\x1f"  # elements of an array; white space to str.split
_SUBSTITUTION = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`"
_TOKEN = re.compile(
    rf"""(?P<skip>(?<![^\s;&|()])\#[^\n]*|\\\n|[ \t\r]+)
    |(?P<document><<-?[ \t]*(?P<quote>['"]?)(?P<end>\w+)(?P=quote))
    |(?P<redirect>\d*(?:<<<|&>>?|>>|>\||[<>]&?))
    |(?P<operator>\n|;;|;|&&|\|\||\||&|\(|\))
    |(?P<substitution>{_SUBSTITUTION})
    |'(?P<single>[^']*)'
    |"(?P<double>(?:\\.|{_SUBSTITUTION}|[^"\\])*)"
    |\\(?P<escaped>.)
    |(?P<variable>\$(?:\{{[^}}]*\}}|\w+|[@*\#?!$-]))
    |(?P<bare>[^\s;&|()<>'"\\`$]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_IN_DOUBLE = re.compile(rf"{_SUBSTITUTION}|\$(?:\{{[^}}]*\}}|\w+|[@*#?!$-])|\\([$`\"\\])|\\\n", re.DOTALL)
_PARAMETER = re.compile(r"\$\{?(\w+|[@*])(?:\[[@*]\])?(?::?[-=](.*?))?\}?", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_BEFORE_A_COMMAND = frozenset(("if", "then", "elif", "else", "while", "until", "do", "time", "!", "{", "}"))
_OPENS, _CLOSES = frozenset(("if", "for", "while", "until", "case", "select")), frozenset(("fi", "done", "esac"))
_DECLARES = frozenset(("export", "declare", "local", "readonly", "typeset"))


@dataclass(frozen=True)
class Command:
    """A simple command: its words without assignments before it, and the line that it begins in, from 1."""

    words: tuple[str, ...]
    line: int


def commands(text: str, variables: Mapping[str, str] | None = None, arguments: Sequence[str] = ()) -> Iterator[Command]:
    """The commands of a script, in the order of its text.

    Args:
        variables: of its environment; one that is not there is unread.
        arguments: the script's own, ``$1`` and so on.
    """
    known = {**(variables or {}), "@": _BETWEEN.join(arguments), "*": " ".join(arguments)}
    known |= {str(place): word for place, word in enumerate(arguments, 1)}
    depth = 0
    for words, line in _Reader(text, known).commands():
        left = list(words)
        while left and left[0] in _BEFORE_A_COMMAND | _OPENS | _CLOSES:
            depth += (left[0] in _OPENS) - (left[0] in _CLOSES)
            if left[0] in ("for", "select") and len(left) > 1:
                known[left[1]] = UNREAD
                left.clear()
            else:
                left.pop(0)
        assigned = [_ASSIGNMENT.fullmatch(word) for word in left]
        count = next((place for place, each in enumerate(assigned) if each is None), len(left))
        if left and (count == len(left) or left[0] in _DECLARES):
            for each in filter(None, assigned):
                value = known.get(each[1], "") + each[3] if each[2] else each[3]
                certain = depth <= 0 or known.get(each[1], value) == value
                known[each[1]] = value if certain else UNREAD
        elif left:
            yield Command(tuple(left[count:]), line)


class _Reader:
    """Reads words, expanded with what is known when their turn comes, up to the operator that ends their command."""

    def __init__(self, text: str, known: Mapping[str, str]) -> None:
        self.text, self.known = text, known
        self.place, self.line, self.first = 0, 1, 1
        self.words: list[str] = []
        self.word: list[str] | None = None  # fields of the word that is being read
        self.array = ""  # the name of the array that is being read, and ``=``
        self.ends: list[str] = []  # of here-documents that begin after this line
        self.dropped = False  # the next word is where a redirection leads

    def commands(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """The words of each command, and its line."""
        while (match := _TOKEN.match(self.text, self.place)) is not None:
            self.place = match.end()
            if match["operator"]:
                yield from self._operator(match["operator"])
            else:
                self._read(match)
            self.line += match[0].count("\n")
        yield from self._end_command()

    def _read(self, match: re.Match[str]) -> None:
        if match["skip"] or match["document"]:
            self._end_word()
            self.ends += [match["end"]] if match["document"] else []
        elif match["redirect"]:
            self._end_word()
            self.dropped = True
        elif match["variable"] or match["substitution"]:
            self._add(_expanded(match[0], self.known), split=True)
        elif match["double"] is not None:
            value = _IN_DOUBLE.sub(lambda each: each[1] or _expanded(each[0], self.known), match["double"])
            for count, part in enumerate(value.lstrip(_BETWEEN).split(_BETWEEN)):
                self.word = [*self.word, ""] if self.word and count else self.word
                self._add(part, split=False)
        else:
            self._add(match[str(match.lastgroup)], split=False)

    def _add(self, value: str, *, split: bool) -> None:
        """Append to the word; unquoted values may be several words, or none."""
        if self.word is None and not self.words:
            self.first = self.line
        parts = value.split() if split else [value]
        if parts:
            self.word = self.word or [""]
            self.word[-1] += parts[0]
            self.word += parts[1:]

    def _end_word(self) -> None:
        if self.word is not None:
            self.words += [] if self.dropped else self.word
            self.word, self.dropped = None, False

    def _operator(self, operator: str) -> Iterator[tuple[tuple[str, ...], int]]:
        if operator == "(" and self.word is not None and re.fullmatch(r"\w+\+?=", self.word[-1]):
            self.array, self.word = self.word[-1], None
            self.words.append("(")
        elif self.array and operator in ")\n":
            self._end_word()
            if operator == ")":
                begin = self.words.index("(")
                self.words[begin:] = ["".join((self.array, *(_BETWEEN + word for word in self.words[begin + 1 :])))]
                self.array = ""
        else:
            yield from self._end_command()
        if operator == "\n":
            self._skip_documents()

    def _end_command(self) -> Iterator[tuple[tuple[str, ...], int]]:
        self._end_word()
        self.dropped = False
        if self.words:
            yield tuple(self.words), self.first
        self.words = []

    def _skip_documents(self) -> None:
        for end in self.ends:
            closing = re.compile(rf"^\t*{end}$", re.MULTILINE).search(self.text, self.place)
            stop = len(self.text) if closing is None else closing.end()
            self.line += self.text.count("\n", self.place, stop)
            self.place = stop
        self.ends = []


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """The value of a parameter or a substitution; ``UNREAD`` where it is not known."""
    if text.startswith("\\"):
        return ""
    product = re.fullmatch(r"\$\(\(([\w\s*${}]+)\)\)", text)
    if product is not None:
        factors = [known.get(each.strip(" ${}\t"), each.strip()) for each in product[1].split("*")]
        return str(math.prod(map(int, factors))) if all(each.isdigit() for each in factors) else UNREAD
    parameter = _PARAMETER.fullmatch(text)
    if parameter is None:
        return UNREAD
    name, default = parameter[1], parameter[2]
    if default is not None and not known.get(name):
        return re.sub(r"\$\{?(\w+)\}?", lambda each: known.get(each[1], UNREAD), default.strip("\"'"))
    return known.get(name, UNREAD)
