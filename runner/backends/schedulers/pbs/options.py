"""Options of qsub: what the plan decides or a run cannot have, what they are here, and what of sbatch's qsub has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from runner.core.errors import UsageError

# Options and resources that the plan itself decides, and what decides them.
PLANNED = {
    **dict.fromkeys(("select", "place", "ncpus", "ngpus", "nodes", "mem", "mpiprocs"), "--gpus and --nodes"),
    **dict.fromkeys(("S", "j", "o", "e", "k", "v", "V", "l", "C"), ""),
    "N": "--name",
    "q": "--queue",
    "A": "--account",
    "walltime": "--time",
}
# Options that would break a run, and why (qsub(1B)).
REFUSED = {
    "r": "with -S r=y PBS starts it again, which is all that can be asked for; `rerun RUN` submits it again",
    "J": "all jobs of an array would write into one run directory: --sweep makes one for each",
    "I": "qsub would wait for a person at a terminal: use `qsub -I` itself, and `run` in its shell",
    "f": "qsub would not answer until the job's end: `submit --wait`, or `wait`",
    "z": "qsub would not say the job's number",
    "X": "a batch job has no display",
}

# What it is here -> names of qsub's options, as they are typed.
_QSUB = {
    "qsub's -l select, ncpus, ngpus: --gpus and --nodes; walltime: --time; another resource: -S NAME=VALUE": "-l",
    "qsub's -o, -e and -j: a run keeps its output below logs/": "-o -e -j",
    "qsub's -q: --queue": "-q",
    "qsub's -P: -S P=NAME": "-P",
    "qsub's -W depend: --dependency; another: -S W=VALUE": "-W",
    "qsub's -a: --begin": "-a",
    "qsub's -m: --mail-type": "-m",
    "qsub's -M: --mail-user": "-M",
    "qsub's -v and -V: --env NAME=VALUE, --env NAME": "-v -V",
    "`run`, in the shell of `qsub -I`": "-I",
    "a program starts in the working directory": "-cwd -wd",
    "--gpus and --nodes": "-pe",
}
OTHER_NAMES = {name: here for here, names in _QSUB.items() for name in names.split()}

_MAILS = {"BEGIN": "b", "END": "e", "FAIL": "a", "ALL": "abe", "NONE": "n"}
_NOTHING = r"(?!)"
# A job's option, by its name here -> qsub's letter, values that it can have, how qsub writes them; what to do instead.
_WORDS: Mapping[str, tuple[str, str, Callable[[re.Match[str]], str], str]] = {
    "dependency": ("W", r"(after(any|ok|notok)?(:[\w.-]+)+(,(?=a)|\Z))+", lambda value: f"depend={value[0]}",
                   "write after, afterany, afterok or afternotok: afterok:RUN,afterany:RUN"),
    "begin": ("a", r"(?:(\d{4})-(\d\d)-(\d\d)T)?(\d\d):(\d\d)(?::(\d\d))?",
              lambda value: value.expand(r"\1\2\3\4\5") + (f".{value[6]}" if value[6] else ""),
              "write YYYY-MM-DDTHH:MM or HH:MM"),
    "mail-type": ("m", rf"(?i:({'|'.join(_MAILS)})(,({'|'.join(_MAILS)}))*)",
                  lambda value: "".join(_MAILS[each] for each in value[0].upper().split(",")),
                  f"one of {', '.join(_MAILS)}"),
    "mail-user": ("M", r".*", lambda value: value[0], "write an address"),
    "reservation": ("", _NOTHING, str, "a reservation of PBS is a queue: use --queue"),
    "constraint": ("", _NOTHING, str, "put resources of the chunks into a site file: `pbs: {chunk: {...}}`"),
    **dict.fromkeys(("nodelist", "exclude"), ("", _NOTHING, str, "leave it out: PBS chooses the nodes")),
}  # fmt: skip


def in_words_of_qsub(options: Mapping[str, str]) -> dict[str, str]:
    """Options of a job as qsub has them. Raises UsageError: PBS has no such thing, or not with that value."""
    translated = {}
    for option, value in options.items():
        letter, pattern, write, instead = _WORDS.get(option, (option, "", str, ""))
        match = re.fullmatch(pattern, value, re.ASCII) if instead else None
        if instead and match is None:
            raise UsageError(f"PBS has no {option} {value!r}", where=f"--{option}", fix=instead)
        translated[letter] = value if match is None else write(match)
    return translated
