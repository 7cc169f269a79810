"""What a shell script's text says without being run, as bash itself splits and expands it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner.planning.shell_text import UNREAD, commands

SAY = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))'"


@pytest.mark.parametrize(
    "line",
    [
        "say --nnodes 2 # comment",
        "say a\\\n  b 'c d' \"e $HOME'x\" f\\ g h",
        "N=8 M=2; say --n=$N \"${M}x\" ${N} $((N * M)) ${K:-$N} ${N:-3} '$N'",
        'A=(--lr 1 # comment\n --name x)\nA+=(--more); say "${A[@]}" ${A[@]}',
        'D="--nnodes 2  --x"; say $D "$D"; export E=5 F=6; say $E$F "" "$@ x"',
        "cat <<E >/dev/null\nsay nothing\nE\nsay x 2>/dev/null; say y 2>&1 | cat",
        'if true; then say "$1" "$@" $2; fi; for i in 1; do say in; done; (say sub) && { say block; }',
        "N=1 true; say z#z --a=b;say w & wait",
        "x=${X//(/} y=${X#*(}; z=$'a\\'b'; say x",
        'shift; say "$@" $1; set -- 4 "5 6"; say "$@" $2; function f { say in; }; f',
        "N=4; (N=2; say $N); say $N; N=3 | true; say $N; unset N; say ${N:-5}; cat <(say x)",
        "P=; say $P \"$P\" --e=$P; say 'two\nlines' a",
    ],
)
def test_words_are_those_that_bash_gives_to_a_program(tmp_path: Path, line: str) -> None:
    script = tmp_path / "s.sh"
    script.write_text(f'say() {{ {SAY} "$@"; }}\n{line}\n')
    run = subprocess.run(["bash", script, "one two", "3"], capture_output=True, text=True, check=True)
    said = [json.loads(each) for each in run.stdout.splitlines()]
    read = commands(line, {"HOME": str(Path.home())}, ("one two", "3"))
    assert [list(each.words[1:]) for each in read if each.words[0] == "say"] == said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t --n=$(nvidia-smi -L | wc -l) `hostname` $UNSET", ["--n=\0", UNREAD, UNREAD]),
        ("if x; then N=4; else N=8; fi; t $N", [UNREAD]),
        ("if x; then N=4; fi; t $N", ["4"]),
        ("for N in 1 2; do t $N; done", [UNREAD]),
        ('t "$(dirname "$0")/x" ${N%%.*} $((N+1))', ["\0/x", UNREAD, UNREAD]),
        *(
            (f"{text}; t $N", [UNREAD])
            for text in (
                "N=4; x && N=2",
                "N=4; x || N=2",
                "N=4; ((N++))",
                "N=4; let N+=1",
                "N=4; unset N",
                "N=4; read N",
                "N=(4); N[0]=7",
                "N=([2]=5)",
                "N=4; f() { N=2; }; [ x ] && f",
                "for ((N=1; N<3; N++)); do x; done",
            )
        ),
        ("x && N=2; t ${N:-5}", [UNREAD]),
        ("declare -i N=4; N+=1; t $N", [f"{UNREAD}1"]),
        ("f() { t $1; }; f 4; exit; t", ["4"]),
        ("while x; do case $1 in --n) N=$2; shift 2;; esac; done; t $N", [UNREAD]),
        ("if x; then shift; fi; t $1", [UNREAD]),
    ],
)
def test_what_only_the_shell_would_know_is_unread(text: str, words: list[str]) -> None:
    read = [each.words[1:] for each in commands(text, arguments=("--n", "3")) if each.words[0] == "t"]
    assert [[re.sub("\0[^\0]*\0", UNREAD, word) for word in each] for each in read] == [words]


def test_a_command_has_the_line_that_it_begins_in() -> None:
    text = "#!/bin/bash\n\nN=1\ncat <<A\nx\nA\nt a \\\n  b\n  u"
    assert [(each.words[0], each.line) for each in commands(text)] == [("cat", 4), ("t", 7), ("u", 9)]
