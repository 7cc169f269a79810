"""Hides what is secret in texts that others may read: commands, URLs, source code, diffs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

REDACTED = "***"
# Patterns are compiled where they are used: every call of this program comes here, and few have something to hide.
# Each has a group ``name``, which stays.
# What identifies a secret by its own form: GitHub, GitLab, Hugging Face, NVIDIA, AWS, Google, Slack and its
# webhooks, npm, PyPI, OpenAI and Anthropic (sk-), JSON web tokens.
_TOKEN = (
    r"(?P<name>)(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|nvapi-[\w-]{20,}|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}|AIza[\w-]{30,}|xox[abeoprs]-[\w-]{10,}|npm_[A-Za-z0-9]{30,}"
    r"|hooks\.slack\.com/services/[\w/]{20,}|pypi-[\w-]{30,}|sk-[\w-]{20,}"
    r"|(?<=wandb login )[0-9a-f]{40}(?![0-9a-f])|(?<!-)eyJ[\w-]{8,400}\.eyJ[\w-]{8,4000}\.[\w-]+)"
)
_KEYS = "api|access|private|auth|account|wandb|comet"  # what is before `key` in a name that says that it is secret
# From the telling part of a name on. All repetitions are bounded: a hostile text must not take quadratic time.
_STRONG_NAME = (
    r"(?:passw|passphrase|sshpass\b|[a-z]_pwd\b|_jwt\b|secret|credential"
    rf"|(?:{_KEYS})[-_]?key)"
    r"[\w.-]{0,60}"
)
_GETS = r"['\"]?\]?[ \t]*(?::[ \t]*\w[\w.|\[\] \t]{0,60}=(?!=)|:=|=>|[=:])[ \t]*"
# Of source code: a value that is looked up or computed is no secret itself.
_CODE = (
    r"(?:None|True|False|null|nil|str|bytes)\b|(?:os|self|cls|args|config|cfg|settings|getpass|opts)[.(\[]|getenv"
    r"|\$(?!['\"])|\.\.\.|[A-Za-z_][\w.]{0,80}\("
)
# One in three quotes ends with them; where a diff shows a part of it, with that part.
_LITERAL = (
    r"(?:(?<!:)(?<!:[ ])(?i:[bfru]{0,2})(?P<three>'{3}|\"{3})(?s:.)*?(?:(?P=three)|(?=\n@@ |\ndiff --git )|\Z)"
    r"|(?i:\$|[bfru]{0,2})(?:'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\")"
    r"|[^\s'\"]*[^\s'\",;)}\]])"
)
_OF_CODE = (
    # A private key: its whole block; where a diff shows a part of one, up to the next hunk. Lines of base64 alone, from
    # 60 characters of all three kinds, are the inside of one (or a certificate, or an embedded picture).
    r"(?s)(?P<name>)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?!\n(?:@@ |diff --git )).)*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|(?=\n@@ |\ndiff --git )|\Z)",
    r"(?m)^(?P<name>[+\- ]?[ \t]*['\"]?)(?=\S*[a-z])(?=\S*[A-Z])(?=\S*\d)[A-Za-z0-9+/]{60,}={0,2}(?=['\"]?[ \t\r]*$)",
    _TOKEN,
    r"(?P<name>\w://)[^/\s'\"]{0,999}(?=@(?!sha256:))",
    r"(?i)(?P<name>\bauthorization['\"]?(?:\]?\s*(?:[:=]|,(?=[^\n]{0,80}\d))\s*f?['\"](?:\w+ +)?"
    r"|\s*:\s*(?:\w+ +|(?=\S*\d)))|\bbearer +)"
    r"[\w.+/=~-]{8,}",
    rf"(?i)(?P<name>{_STRONG_NAME}{_GETS})(?!{_CODE}|[=(\[{{]|\s|\*\*\*){_LITERAL}",
    rf"(?i)(?P<name>(?<![\w-])--?[\w-]{{0,40}}{_STRONG_NAME}[ \t]+(?:\\\n[ \t]*)?)(?![-$]){_LITERAL}",
    # "token" is an everyday word of language models (max_tokens=128): its value must look like a key, too.
    rf"(?i)(?P<name>token(?!iz)[\w-]{{0,60}}{_GETS}['\"]?)"
    r"(?=[\w.+/=-]{0,60}\d)(?=[\w.+/=-]{0,60}[A-Za-z])[\w.+/=-]{16,}",
    # W&B's keys have 40 hexadecimal digits, as Git's hashes have: one is a key where something called key gets it.
    r"(?i)(?P<name>key['\"]?\]?[ \t]*[=:][ \t]*['\"]?|\bwandb login (?:--relogin )?['\"]?)[0-9a-f]{40}(?![0-9a-f])",
)
# NAME:PASSWORD@ anywhere, NAME@ behind a scheme (of which a path keeps one slash); not the "@" of a digest
# (pytorch:25.02-py3@sha256:...).
# A password may hold a raw "@": all up to the last one before the path is hidden.
# What may begin anywhere begins at the first of its characters: else a long word takes quadratic time.
_USER_INFO = (
    r"(?P<scheme>\w:/{1,2})[^/\s'\"]{0,999}@(?!sha256:)"
    r"|(?<![^/\s'\"@:=])[^/\s'\"@:=]+:[^/\s'\"]{1,999}@(?!sha256:)"
)
# A name that says that its value is secret: of a variable, an option, a header. Not "tokenizer", "author" or "passes",
# nor what stands for something in a text ("pad_token").
_SECRET_NAME = (
    r"[\w.-]*(?:passw|passphrase|pass(?![a-z])|[_.-]pwd|secret|(?<!\b(?:pad|eos|bos|unk|cls|sep)[-_])(?<!\bmask[-_])"
    r"token(?!iz)|cred(?:ential|s)|jwt|cookie|bearer"
    rf"|auth(?![a-z])|(?:{_KEYS}|encryption)[-_]?key)[\w.-]{{0,100}}"
)
# A number of something, as of tokens: of such names a secret is more than a short number. And what is done with tokens,
# or in a pass, which a word says; of an option, as variables have capitals.
_OTHERS = r"(?is:(?!.*(?:passw|passphrase|sshpass|pwd|secret|cred|jwt|cookie|bearer|key|auth|access|api|\bhf)))(?:--?)?"
_NUMBER = (
    rf"{_OTHERS}(?i:(?:[\w.-]{{0,60}}token(?P<tokens>s)?[\w.-]{{0,60}}"
    r"|(?:[\w.-]{0,60}[.])?(?:n|num|max|min)[-_.][\w.-]{0,60})['\"]?\]?(?:\s*[=:]\s*|\s+)"
    r"(?P<quote>['\"]?)(?:[+-]?\d(?(tokens)[\d._]{0,18}|[\d._]{0,8})(?:e[+-]?\d{1,2})?[kmbt]?|true|false|none)(?P=quote)"
    r"[,}\]]*)"
)
_WORD = (
    rf"{_OTHERS}[a-z\d_.-]{{0,60}}"
    r"(?:token[-_.]?(?!s(?![a-z]))[a-z][\w.-]{0,60}|(?:class|dist|image|next|per|special|video)[-_]token|tokens"
    r"|(?<![a-z])(?:band|by|backward|com|first|forward|high|low|multi|one|second|single|two)[-_.]?pass)['\"]?\]?"
    r"(?:\s*[=:]\s*|\s+)(?P<quote>['\"]?)(?:[a-z]{1,24}(?:[-_][a-z]{1,24}){0,4}|[+-]?[a-z\d][a-z\d_./-]{0,11})(?P=quote)[,}\]]*"
)
# What a shell takes as parts of one word: quoted, and of what is not, one character.
_QUOTED = r"(?s:\$'[^'\\]*(?:\\.[^'\\]*)*'|'[^']*'|\$?\"[^\"\\]*(?:\\.[^\"\\]*)*\")"
_BARE = r"(?s:\\.|[^\s'\";&|\\])"
_OPTION = r"(?:--?|(?<=\bsetenv[ ]))"  # the second is csh's: setenv NAME VALUE
_SECRET = (
    rf"(?i:(?P<name>(?<![\w.-])(?:{_SECRET_NAME}['\"]?\]?\s*[=:]\s*|{_OPTION}{_SECRET_NAME}\s+)"
    rf"|authorization:\s*\w+\s+|\bbearer\s+)(?!\*\*\*)(?P<value>{_QUOTED}|{_BARE}+))"
)
# In a script, the value is the whole rest of the word that the name begins, or of the quoted word that is no script.
# Other quoted words are passed over whole, so that an end of one is not taken for the beginning of the next.
_SECRET_OF_SHELL = (
    r"(?i:(?P<name>(?<![\w.-])(?:(?<!c[ =])(?<!eval[ =])(?<!wrap[ =])(?<!command[ =])(?P<open>['\"]))?"
    rf"(?:{_SECRET_NAME}=|{_OPTION}{_SECRET_NAME}\s+))"
    rf"(?P<value>(?(open)(?s:(?!(?P=open))(?:\\.|[^\\]))+|(?:{_QUOTED}|{_BARE})+)))|{_QUOTED}|(?s:\\.)"
)
_SECRET_OPTION = rf"(?i:--?{_SECRET_NAME})"
# A word that is a name and its value, to its end (`--api-key=VALUE`); and what precedes a word that is a script.
_WHOLE = rf"(?is:(?P<name>(?:--?[\w-]+=)?{_SECRET_NAME}=).+)"
_SCRIPT_OPTION = r"-\w*c|--(?:command|wrap|eval)"


def redacted(text: str) -> tuple[str, int]:
    """Source code or a diff with ``***`` for what looks like a secret, and the number of such places.

    Recognised are tokens and keys of a known form, private key blocks, users in URLs, and literal values assigned to
    names that say that they are secret. What only its meaning makes secret is not recognised.
    """
    count = 0
    for pattern in _OF_CODE:
        text, places = re.subn(pattern, rf"\g<name>{REDACTED}", text)
        count += places
    return text, count


def names_user(text: str) -> bool:
    """Whether a URL in it names a user, with a password or not."""
    return re.search(r"://[^/\s\"]*@", text) is not None


def hidden(text: str) -> str:
    """``text`` with ``***@`` for every user name and password."""
    return re.sub(_USER_INFO, r"\g<scheme>***@", text)


def is_secret(name: str, value: str) -> bool:
    """Whether the name of a variable says that this value is secret."""
    return re.fullmatch(_SECRET_NAME, name, re.IGNORECASE) is not None and not _is_ordinary(f"{name}={value}")


def first_secret(settings: Iterable[tuple[str, str | None]]) -> str:
    """The first of these names whose value would be hidden; empty if none is."""
    return next((name for name, value in settings if value is not None and hidden_variable(name, value) != value), "")


def hidden_variable(name: str, value: str) -> str:
    """The value of a variable: ``***`` of a secret one, else as ``hidden_value``."""
    return REDACTED if is_secret(name, value) else hidden_value(value)


def _is_ordinary(assignment: str) -> bool:
    return re.fullmatch(_NUMBER, assignment) is not None or re.fullmatch(_WORD, assignment) is not None


def hidden_command(words: Sequence[str]) -> tuple[str, ...]:
    """A command's words, as ``hidden_value``, and with ``***`` for the values of secret names: ``HF_TOKEN=***``.

    What only its meaning makes secret is not recognised.
    """
    return tuple(_hidden_word(before, word) for before, word in zip(("", *words), words, strict=False))


def _hidden_word(before: str, word: str) -> str:
    if re.fullmatch(_SECRET_OPTION, before) and not _is_ordinary(f"{before} {word}"):
        return REDACTED
    if not re.fullmatch(_SCRIPT_OPTION, before) and (whole := re.fullmatch(_WHOLE, word)):
        return word if _is_ordinary(word) else f"{whole['name']}{REDACTED}"
    return re.sub(_SECRET, _hidden_match, re.sub(_SECRET_OF_SHELL, _hidden_match, hidden_value(word)))


def _hidden_match(at: re.Match[str]) -> str:
    # Code goes on behind a quoted value; of a word of a shell, that is hardly secret.
    end = re.search(r"(?:(?<=['\"])[,)}\]]*)?\Z", at["value"] or "")
    if at["name"] is None or end is None or _is_ordinary(at[0].lstrip("'\"").removesuffix(end[0])):
        return at[0]
    return f"{at['name']}{REDACTED}{end[0]}"


def hidden_value(text: str) -> str:
    """``hidden``, and with ``***`` for tokens and keys of a known form."""
    return re.sub(_TOKEN, "***", hidden(text))
