"""What a shell script's text says without being run, as bash itself splits and expands it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.planning.shell_text import commands
from runner.planning.shell_words import UNREAD, UNTOLD

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
        "N=4; (N=2; say $N); say $N; N=3 | true; say $N; unset N; say ${N:-5}",
        "P=; say $P \"$P\" --e=$P; say 'two\nlines' a",
        'N=1; f() { local N=2 M; say $N "$M"; }; f; say $N; g() { declare -g N=3; declare N=4; }; g; say $N',
        "N=1; f() { say $N; }; N=2 f; say $N",
        "N=1; { N=2; exit; } & wait; say $N; { N=2; } | cat; say $N; if true; then N=3; fi >/dev/null & wait; say $N",
        "N=1; echo x | { read y; N=2; say $N; }; say $N; echo x | while read y; do N=2; done; say $N",
        "say ${2:?usage} $'2' x$'a b' ${2:+--x 3} ${P=} ${P:+y} $#; set -- ${1}; say $#",
        '[ -z "$2" ] && say 1; [ -n "$3" ] || say 2; if [[ $2 == 3 ]]; then say 3; fi; test $2 -gt 3 || say 4',
        'if ! [ "$1" = "one two" ]; then say 1; elif [ $# -ge 2 ] && [ $2 != 4 ]; then N=5; fi; say $N',
        'case $2 in 2|x) say 1;; (3) say 2;; *) say 3; esac; case "$1" in\na) say 4;; *) N=4;;\nesac; say $N',
        "case $2 in 3) say 1;& 4) say 2; esac",
    ],
)
def test_words_are_those_that_bash_gives_to_a_program(tmp_path: Path, line: str) -> None:
    script = tmp_path / "s.sh"
    script.write_text(f'say() {{ {SAY} "$@"; }}\n{line}\n')
    run = subprocess.run(["bash", script, "one two", "3"], capture_output=True, text=True, check=True)
    said = [json.loads(each) for each in run.stdout.splitlines()]
    read = commands(line, {"HOME": str(Path.home())}, ("one two", "3"))
    assert [list(each.words[1:]) for each in read if each.words[:1] == ("say",)] == said


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
        ("shift $(x); t $1", [UNREAD]),
        ("f() { if x; then N=2; return; fi; N=3; }; f; t $N", [UNREAD]),
        ("f() { N=2; if true; then N=3; return; fi; N=4; }; f; t $N", ["3"]),
        ("f() { N=2; echo | x; N=3; }; N=4 f; t ${N:-5}", ["5"]),
        ("N=(a); N[1]=c; N+=(b); t ${N[@]}", [UNREAD, "b"]),
        ("N=2; while x; do t $N; N=$M; done", [UNREAD]),
        ("cd x && N=2 & N=4; x | { N=3; } & t $N", ["4"]),
        ("if x; then N=2; exit; fi; N=${N:-4}; t $N", ["4"]),
        ("t ${M:+x} ${M?x} ${@:1:1}", [UNREAD] * 3),
        ("f() { N=2; }; N=4; for i in 1 2; do f; done; t $N", [UNREAD]),
        ("a=xxxxxxxxxx\n" + "a=$a$a\n" * 13 + "a=$a; t $a", [UNREAD]),
        ("set -- a b\n" + 'set -- "$@" "$@"\n' * 14 + 't "$@"', [UNREAD] * 2),
        ("a=xxxxxxxxxx\n" + "a=$a$a\n" * 12 + f"b={'$a' * 1000}; t $a", [UNREAD]),
    ],
)
def test_what_only_the_shell_would_know_is_unread(text: str, words: list[str]) -> None:
    read = [each.words[1:] for each in commands(text, arguments=("--n", "3")) if each.words[:1] == ("t",)]
    assert [[re.sub("\0[^\0]*\0", UNREAD, word) for word in each] for each in read] == [words]


def test_a_command_has_the_line_that_it_begins_in() -> None:
    text = "#!/bin/bash\n\nN=1\ncat <<A\nx\nA\nt a \\\n  b\n  u"
    assert [(each.words[0], each.line) for each in commands(text) if each.words] == [("cat", 4), ("t", 7), ("u", 9)]


@pytest.mark.parametrize(
    "text",
    [
        '[ "$U" = 1 ]',
        '[ -z "${U:-}" ]',
        "[[ $1 == --* ]]",
        'x && [ "$1" = --n ]',
        "x && N=2; [ $N = 2 ]",
        "for N in 1 2; do [ $2 = 3 ]",
        "[ 1 -nt 2 ]",
    ],
)
def test_a_condition_that_only_a_run_tells_leaves_both_branches(text: str) -> None:
    found = commands(f"if {text}; then t 1; else t 2; fi", arguments=("--n", "3"))
    assert [each.words[1] for each in found if each.words[:1] == ("t",)] == ["1", "2"]


@pytest.mark.parametrize(
    "text",
    [
        "export N=1; t; N=2; t; unset N; t",
        "N=1; export N M=1; t; export -n N; t",
        "export N; N=2; t",
        "declare -x N=1; t; typeset -x N=2; t",
        "N=1; t; set -a; N=2; set +a; t; N=3; t",
        "set -o allexport; N=1; set +o allexport; t; set -euo pipefail; A=1; t",
        "H=2; t; export N=2; (N=3; t); t; f() { local N=4; t; }; f; t",
        "f() { t; }; N=3 f; t; { export N=3; } | cat; t; N=5 t; x=$(export N=1); t",
    ],
)
def test_a_command_gets_what_the_shell_exports(text: str) -> None:
    of_bash = subprocess.run(
        ["bash", "-c", f't() {{ bash -c "echo \\$N,\\$H"; }}; {text}'],
        capture_output=True, text=True, check=True, env={"H": "1", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    found = [each.environment for each in commands(text, {"H": "1"}) if each.words[:1] == ("t",)]
    assert [f"{each.get('N', '')},{each['H']}" for each in found] == of_bash.stdout.split()


def taken_s(text: str) -> float:
    began = time.process_time()
    assert {each.words for each in commands(text)} & {("t",), (UNTOLD,)}
    return time.process_time() - began


@pytest.mark.parametrize("text", ["let " + "a" * 50_000, f"(( {'a' * 50_000} ))", f"(( {'a[ ' * 10_000} ))"])
def test_a_long_sum_is_read_in_time(text: str) -> None:
    assert taken_s(f"{text}\nt") < 5


FUNCTIONS = "".join(f"f{at}() {{ f{at + 1}; f{at + 1}; }}\n" for at in range(40))


@pytest.mark.parametrize(
    "text",
    [
        "while x; do " * 28,
        "t; exit; " + "while x; do " * 28,
        "for i in 1 2; do " * 40,
        f"{FUNCTIONS}f0",
        "f() { " * 3000 + "t; " + "}; " * 3000 + "t",
        "if x; then " * 3000,
        "case x in a) " * 3000,
        "X='eval $X; eval $X'; eval $X",
        "set -- a b\n" + 'set -- "$@" "$@"\n' * 30 + "t",
        "".join(f"export N{at}=1\n" for at in range(5000)) + "t",
        "x | " * 2000 + "t",
    ],
)
def test_a_script_that_wants_to_be_read_for_ever_is_given_up(text: str) -> None:
    assert taken_s(text) < 10
