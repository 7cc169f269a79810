"""Options of qsub: what the plan decides or a run cannot have, what they are here, and what of sbatch's qsub has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from runner.core.errors import UsageError

# Options and resources that the plan itself decides, and what decides them.
PLANNED = {
    **dict.fromkeys(("select", "place", "ncpus", "ngpus", "nodes", "mem", "mpiprocs"), "--gpus and --nodes"),
    **dict.fromkeys(("S", "r", "j", "o", "e", "k", "v", "V", "l", "C"), ""),
    "N": "--name",
    "q": "--queue",
    "A": "--account",
    "walltime": "--time",
}
# Options that would break a run, and why (qsub(1B)).
REFUSED = {
    "J": "all jobs of an array would write into one run directory: submit once for each",
    "I": "qsub would wait for a person at a terminal: use `qsub -I` itself",
    "f": "qsub would not answer until the job's end: `submit --wait`, or `wait`",
    "z": "qsub would not say the job's number",
    "X": "a batch job has no display",
}

# Name, as it is typed, of qsub -> what it is here.
_LOGS = "qsub's -o, -e and -j: a run keeps its output below logs/"
OTHER_NAMES = {
    "-l": "qsub's -l select, ncpus, ngpus: --gpus and --nodes; walltime: --time; another resource: -S NAME=VALUE",
    **dict.fromkeys(("-o", "-e", "-j"), _LOGS),
    "-q": "qsub's -q: --queue",
    "-P": "qsub's -P: -S P=NAME",
    "-W": "qsub's -W depend: --dependency; another: -S W=VALUE",
    "-a": "qsub's -a: --begin",
    "-m": "qsub's -m: --mail-type",
    "-M": "qsub's -M: --mail-user",
    **dict.fromkeys(("-v", "-V"), "qsub's -v and -V: --env NAME=VALUE, --env NAME"),
    "-I": "`run` in an allocation of Slurm; qsub -I itself with PBS",
    **dict.fromkeys(("-cwd", "-wd"), "a program starts in the working directory"),
    "-pe": "--gpus and --nodes",
}


def _depend(value: str) -> str:
    if not re.fullmatch(r"(after|afterany|afterok|afternotok)(:[\w.-]+)+(,\w+(:[\w.-]+)+)*", value, re.ASCII):
        raise ValueError("write after, afterany, afterok or afternotok: afterok:RUN,afterany:RUN")
    return f"depend={value}"


def _time(value: str) -> str:
    """``YYYY-MM-DDTHH:MM[:SS]`` or ``HH:MM`` as ``[CCYYMMDD]hhmm[.SS]``: a script knows no today."""
    match = re.fullmatch(r"(?:(\d{4})-(\d\d)-(\d\d)T)?(\d\d):(\d\d)(?::(\d\d))?", value, re.ASCII)
    if match is None:
        raise ValueError("write YYYY-MM-DDTHH:MM or HH:MM")
    *date, second = (each or "" for each in match.groups())
    return "".join(date) + (f".{second}" if second else "")


def _mail(value: str) -> str:
    letters = {"BEGIN": "b", "END": "e", "FAIL": "a", "ALL": "abe", "NONE": "n"}
    if unknown := [each for each in value.upper().split(",") if each not in letters]:
        raise ValueError(f"{unknown[0]} is none of {', '.join(letters)}")
    return "".join(letters[each] for each in value.upper().split(","))


# A job's option, by its name here -> qsub's letter, and its value there; ValueError says what to do instead.
_WORDS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "dependency": ("W", _depend),
    "begin": ("a", _time),
    "mail-type": ("m", _mail),
    "mail-user": ("M", str),
}
_NOT_THERE = {
    "reservation": "a reservation of PBS is a queue: use --queue",
    "constraint": "put resources of the chunks into a site file: `pbs: {chunk: {...}}`",
    **dict.fromkeys(("nodelist", "exclude"), "leave it out: PBS chooses the nodes"),
}


def in_words_of_qsub(options: Mapping[str, str]) -> dict[str, str]:
    """Options of a job as qsub has them. Raises UsageError: PBS has no such thing, or not with that value."""
    translated = {}
    for option, value in options.items():
        letter, write = _WORDS.get(option, (option, str))
        try:
            if option in _NOT_THERE:
                raise ValueError(_NOT_THERE[option])
            translated[letter] = write(value)
        except ValueError as error:
            raise UsageError(f"PBS has no {option} {value!r}", where=f"--{option}", fix=str(error)) from None
    return translated
