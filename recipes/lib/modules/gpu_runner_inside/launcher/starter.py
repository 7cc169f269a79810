"""What a program that starts ranks is given, as torchrun is: arguments, which its ranks do not inherit."""

from __future__ import annotations

import os
import re
import shlex
from typing import Callable, Mapping, Sequence

_PLACE = re.compile(r"\{(index|address|port|hostfile)\}")
_EXPORTED = "BASH_FUNC_{}%%"  # bash(1) takes a function from a variable of such a name


def fill(words: Sequence[str], values: Mapping[str, str], hostfile: Callable[[], str]) -> list[str]:
    """``words`` with what is only known here: ``{index}`` of this start, ``{address}`` and ``{port}`` where all meet,
    and ``{hostfile}``.
    """

    def value(match: re.Match[str]) -> str:
        return hostfile() if match[1] == "hostfile" else values[match[1]]

    return [_PLACE.sub(value, word) for word in words]


def write_hosts(directory: str, starts: int, processes: int) -> str:
    """A host file in the form of DeepSpeed's, with a name for each start; where it is."""
    path = os.path.join(directory, "starts")
    with open(path, "w", encoding="ascii") as file:
        file.writelines(f"node{index} slots={processes}\n" for index in range(starts))
    return path


def functions(calls: Sequence[tuple[Sequence[str], Sequence[str]]]) -> dict[str, str]:
    """Variables by which each bash below has a function in the place of a starter. It gives it arguments, and takes
    these variables away from all that it runs.

    Args:
        calls: the words that call a starter, ``python3 -m torch.distributed.run``, and the arguments that follow them.
    """
    names = list(dict.fromkeys(call[0] for call, _ in calls))
    run = " ".join(["command env", *(f"-u {shlex.quote(_EXPORTED.format(name))}" for name in names)])
    bodies = {name: "" for name in names}
    for call, given in calls:
        same = " && ".join(f'[ "${{{place}-}}" = {shlex.quote(word)} ]' for place, word in enumerate(call[1:], 1))
        start = f'{run} {shlex.join([*call, *given])} "${{@:{len(call)}}}"; return'
        bodies[call[0]] += f"if {same or ':'}; then {start}; fi; "
    return {_EXPORTED.format(name): f'() {{ {body}{run} {name} "$@"\n}}' for name, body in bodies.items()}
