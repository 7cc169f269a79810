"""Random scripts: what is read of them fits what bash runs, whichever way they take."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterator

import pytest

from runner.planning.shell_text import Command, commands

ARGUMENTS, KNOWN, END = ("p", "q"), {"A": "0"}, "\037"
TESTS = (
    '[ "$A" = 1 ]', '[ "$B" -gt 2 ]', "[[ $A == 2 ]]", '[ -n "$U" ]', '[ -z "$C" ]', "true", "false", '! [ "$A" = 2 ]',
    "[ $# -gt 1 ]", '[ -n "$U" ] && [ "$A" = 1 ]', 'test "$U" = x', '[ "$1" = p ]', '[ "$U" ] || [ $B != 3 ]',
)  # fmt: skip
CHANGES = (
    "A=1", "A=2", "B=$A", "B=$((A + 1))", "C=$B", "C=", "C=x", "A=$C", "A=${C:-2}", "B=${A:+7}", ": ${C:=5}", "A+=1",
    "read B <<<7", "L=(a b)", "L+=(c)", "L=()", "L[0]=z", "shift", "set -- p q", "set --", "set -- $A x", "export B=3",
    'eval "B=$A"', "A=9 true", "x=$(echo A=4)",
)  # fmt: skip


class Script(random.Random):
    """A script whose commands ``say`` their number and what they know."""

    count = 0
    in_function = in_loop = False

    def say(self) -> str:
        self.count += 1
        return f'say {self.count} "$A" "$B" ${{C:-d}} "${{L[@]}}" "$#" "$1"'

    def body(self, depth: int) -> str:
        return "\n".join(self.part(depth) for _ in range(self.randint(1, 3)))

    def part(self, depth: int) -> str:
        kinds = (self.change, self.branches, self.loop, self.case, self.links, self.function, self.end, self.inner)
        return self.say() if depth > 2 or self.random() < 0.3 else self.choice(kinds)(depth + 1)

    def change(self, _depth: int) -> str:
        return self.choice(CHANGES)

    def branches(self, depth: int) -> str:
        other = f"elif {self.choice(TESTS)}; then\n{self.body(depth)}\nelse\n{self.body(depth)}\n" * self.randint(0, 1)
        return f"if {self.choice(TESTS)}; then\n{self.body(depth)}\n{other}fi"

    def loop(self, depth: int) -> str:
        before, self.in_loop, name = self.in_loop, True, f"n{depth}"
        heads = (*(f"for i in {words}" for words in ("a", "a b", "", "$A", "$L")), *[f"while [ ${name} = 0 ]"] * 3)
        text = f"{name}=0; {self.choice(heads)}; do {name}=1\n{self.body(depth)}\ndone"
        self.in_loop = before
        return text

    def case(self, depth: int) -> str:
        branches = "\n".join(f"{pattern}) {self.body(depth)}\n;;" for pattern in ("1", "2|x", "*"))
        return f"case {self.choice(('$A', '$U', '$B', 'x'))} in\n{branches}\nesac"

    def links(self, _depth: int) -> str:
        second = self.choice((self.say(), "A=2", "B=3", f"{{ {self.say()}; A=1; }}"))
        return f"{self.choice(TESTS)} {self.choice(('&&', '||'))} {second}"

    def function(self, depth: int) -> str:
        if self.in_function:
            return self.say()
        self.in_function, name = True, f"f{self.count}"
        local = self.choice(("local A=5", "local C", "declare B=9", ":", "A=2"))
        call = f"{self.choice(('', 'A=7 '))}{name} {self.choice(('', 'u v'))}"
        text = f"{name}() {{ {local}\n{self.body(depth)}\n}}\n{call}\n{self.say()}"
        self.in_function = False
        return text

    def end(self, depth: int) -> str:
        ends = ("return",) if self.in_function else ("exit", "exit 9" if depth == 1 else "exit")
        return f"if {self.choice(TESTS)}; then {self.choice(ends)}; fi" if not self.in_loop else self.say()

    def inner(self, depth: int) -> str:
        return self.choice((f"( {self.body(depth)}\n)", f"{{ {self.body(depth)}\n}} | cat", "{ A=2; } & wait"))


def fits(read: Command, said: str) -> bool:
    """An unread part may be anything, also no word or several."""
    parts = re.split(rf"({END}?\0+[^\0]*\0+)", END.join(read.words[1:]))
    pattern = "".join(f"(?:{END}?.*)?" if place % 2 else re.escape(part) for place, part in enumerate(parts))
    return re.fullmatch(pattern, said, re.DOTALL) is not None


def lines_of_bash(text: str) -> Iterator[tuple[list[str], int]]:
    """What it says, and how it ends, whichever value the unknown variable has."""
    for unknown in ("", "x", "1"):
        env = {"PATH": "/usr/bin:/bin", "U": unknown, **KNOWN}
        say = "say() { local IFS=$'\\037'; echo \"$*\"; }\n"
        command = ["bash", "-c", f"{say}{text}", "s", *ARGUMENTS]
        run = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        yield run.stdout.splitlines(), run.returncode


@pytest.mark.parametrize("seed", range(40))
def test_what_bash_runs_is_read_and_what_is_read_as_certain_runs(seed: int) -> None:
    script = Script(seed)
    text = "B=0 C=x L=(a)\n" + "\n".join(script.part(0) for _ in range(6))
    read = [each for each in commands(text, KNOWN, ARGUMENTS) if each.words[:1] == ("say",)]
    for lines, code in lines_of_bash(text):
        assert [line for line in lines if not any(fits(each, line) for each in read)] == [], text
        ran = {line.partition(END)[0] for line in lines}
        assert code == 9 or {each.words[1] for each in read if each.is_plain} <= ran, text  # 9: an error in a branch
