"""Which programs start ranks themselves, what their arguments state, and what they are given."""

from __future__ import annotations

import shlex

import pytest

from runner.planning.launchers import in_script, launchers, script_of, starters
from runner.planning.starters import KINDS, Counts, additions, conflicts, counts, plain


@pytest.mark.parametrize(
    ("line", "name", "stated", "started"),
    [
        ("torchrun -r 3 --nproc-per-node gpu t.py --e 4", "torchrun", Counts(each="gpu"), "python t.py --e 4"),
        ("env A=1 torchrun --virtual-local-rank --nnode=1 t.py", "torchrun", Counts((1, 1)), "python t.py"),
        ("uv run torchrun --stand --nproc 8 t.py", "torchrun", Counts(each=8), "python t.py"),
        ("conda run -n deepspeed torchrun python_t.py", "torchrun", Counts(), "python python_t.py"),
        ("uv run --no-sync -- torchrun --nproc 8 t.py", "torchrun", Counts(each=8), "python t.py"),
        ("uv run --with deepspeed --python python3.11 torchrun t.py", "torchrun", Counts(), "python t.py"),
        ("numactl --interleave=all torchrun t.py", "torchrun", Counts(), "python t.py"),
        *((f"{line} torchrun t.py", "torchrun", Counts(), "python t.py") for line in (
            "uv run --quiet", "uv run --verbose", "uv run --all-groups", "setsid --wait")),
        *((f"bash -c '{line}'", "torchrun", Counts(), "python t.py") for line in (
            "function f { torchrun t.py; }; f", 'set -- torchrun t.py; "$@"',
            "x=${X//(/}; torchrun t.py", "x=${X#*(}; torchrun t.py", 'bash -c "torchrun t.py"')),
        ("mpirun.openmpi -np 4 ./s", "mpirun", Counts(total=4), ""),
        ("mpiexec.mpich -n 4 ./s", "mpirun", Counts(total=4), ""),
        *((f"mpirun {options} ./s", "mpirun", Counts(each=3), "") for options in (
            "-npernode 3", "-N 3", "-N3", "-ppn 3", "--map-by ppr:3:node", "--bind-to core -map-by ppr:3:node:PE=2")),
        *((f"mpirun {options} ./s", "mpirun", Counts(total=3), "") for options in (
            "--mca pml ob1 -np 3", "-genv A 1 -n 3", "-np 3 --map-by slot", "-np 3 -npernode 2", "-np 1 ./a : -np 2")),
        ("mpirun --map-by ppr:2:socket ./s", "mpirun", Counts(unread=("--map-by",)), ""),
        ("bash -euo pipefail -c 'torchrun t.py'", "torchrun", Counts(), "python t.py"),
        ("bash -ce 'torchrun t.py'", "torchrun", Counts(), "python t.py"),
        ("nsys profile -o x python3 -m torch.distributed.run --nnodes=1:2 -m p", "torchrun", Counts((1, 2)),
         "python -m p"),
        ("bash -lc 'N=3; exec torchrun --nnodes $N --nproc_per_node $G t.py'", "torchrun",
         Counts((3, 3), unread=("--nproc-per-node",)), "python t.py"),
        ("accelerate launch --multi_gpu --num_processes 16 t.py", "accelerate", Counts(total=16), "python t.py"),
        ("python -Xdev -m accelerate.commands.accelerate_cli launch -m pkg", "accelerate", Counts(), "python -m pkg"),
        ("deepspeed --num_nodes=2 --num_gpus 4 t.py", "deepspeed", Counts((2, 2), 4), "python t.py"),
        ("composer -n 8 t.py", "composer", Counts(each=8), "python t.py"),
        ("fabric run --devices=2 --num-nodes 2 t.py", "fabric", Counts((2, 2), 2), "python t.py"),
        ("horovodrun -np 4 --gloo python3 -u t.py", "horovodrun", Counts(total=4), "python3 -u t.py"),
        ("python -W ignore /opt/bin/mpirun --allow-run-as-root -np 4 ./s", "mpirun", Counts(total=4), ""),
        ("tune run --nproc_per_node 4 full --config c", "tune", Counts(each=4), ""),
        ("lightning run model --devices=2 t.py", "fabric", Counts(each=2), "python t.py"),
        ("srun -N2 -n 4 python t.py", "srun", Counts((2, 2), total=4), "python t.py"),
    ],
)  # fmt: skip
def test_a_starter_is_found_with_what_it_states(line: str, name: str, stated: Counts, started: str) -> None:
    (found,) = starters(shlex.split(line))
    assert (found.name, counts(found), shlex.join(plain(found))) == (name, stated, started)


@pytest.mark.parametrize(
    "line",
    ["python t.py torchrun", "accelerate config", "env python - torchrun", "nice ./t --strategy deepspeed", "env", "",
     "python -uc torchrun", "env A=1 ./mpirun.py",
     "conda run -n deepspeed python t.py",
     "env A=/x/deepspeed ./t", "bash -c 'echo torchrun # torchrun\ncat <<E\ntorchrun t.py\nE'"],
)  # fmt: skip
def test_what_only_names_a_starter_is_none(line: str) -> None:
    assert starters(shlex.split(line)) == ()


def test_a_script_s_starters_have_its_variables_and_lines() -> None:
    text = 'G=${GPUS:-4}\nA=(--nnodes "$NNODES")\ntorchrun --nproc_per_node $G "${A[@]}" "$1"\n/x/torchrun e.py\n'
    first, second = starters(("bash", "-x", "s.sh", "t.py"), lambda name: text, {"NNODES": "2"})
    assert (counts(first), first.arguments[-1], first.line, first.call) == (Counts((2, 2), 4), "t.py", 3, ("torchrun",))
    assert (second.line, second.call) == (4, ())
    assert [each.call for each in in_script("torchrun a.py; (exec torchrun b.py)\ntime torchrun c.py")] == [
        ("torchrun",),
        (),
        ("torchrun",),
    ]  # exec finds no function of bash
    named = starters(("./launch", "t.py"), lambda name: "#!/usr/bin/env bash\ntorchrun $1\n")
    assert [(each.arguments, each.call) for each in named] == [(("t.py",), ("torchrun",))]
    assert starters(("./x",), lambda name: "#!/usr/bin/env python3\ntorchrun\n") == ()
    assert starters(("./x",), lambda name: "torchrun") == ()
    files = [script_of(line.split()) for line in ("bash -x s.sh a", "env A=1 ./s.sh", "bash -c x", "torchrun s.sh")]
    assert files == ["s.sh", "./s.sh", "", ""]


@pytest.mark.parametrize(
    ("line", "starts", "by_gpu", "given"),
    [
        ("torchrun t.py", 1, True, "--master_port={port} --nproc_per_node=4"),
        ("torchrun -- t.py", 1, True, "--master_port={port} --nproc_per_node=4"),
        ("torchrun --rdzv-backend c10d --nproc-per-node 4 t.py", 1, True, ""),
        ("torchrun --nnodes 2 t.py", 2, True,
         "--node_rank={index} --rdzv_endpoint={address}:{port} --nproc_per_node=4"),
        ("accelerate launch t.py", 1, True,
         "--num_processes=4 --num_machines=1 --machine_rank={index} --main_process_port={port}"),
        ("accelerate launch --num_processes 8 t.py", 2, False, "--multi_gpu --num_machines=2 --machine_rank={index} "
         "--main_process_ip={address} --main_process_port={port}"),
        ("deepspeed t.py", 1, True, "--master_port={port}"),
        ("composer t.py", 2, True, "--nproc=4 --world_size=8 --node_rank={index} --master_addr={address} "
         "--master_port={port}"),
        ("horovodrun python t.py", 1, True, "-np 4 --disable-cache"),
        ("mpirun -n 4 ./t", 1, True, ""),
        ("tune run full", 1, True,
         "--nnodes=1 --node_rank={index} --rdzv_endpoint={address}:{port} --nproc_per_node=4"),
    ],
)  # fmt: skip
def test_a_starter_gets_what_its_user_does_not_state(line: str, starts: int, by_gpu: bool, given: str) -> None:
    (found,) = starters(line.split())
    assert [*conflicts(found, starts, 4, by_gpu=by_gpu)] == []
    assert " ".join(additions(found, starts, 4, by_gpu=by_gpu)) == given


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("torchrun --nproc-per-node 2 t.py", "--nproc-per-node is 2, and the job has 4 GPUs on each node"),
        ("torchrun --nnodes 1:4 t.py", "--nnodes is 1:4, and the job has 2 nodes"),
        ("accelerate launch --num_processes 4 t.py", "--num-processes is 4, and the job has 8 GPUs"),
        ("accelerate launch --cpu t.py", "with --cpu it starts one process, and the job has 8 GPUs"),
        ("torchrun --standalone t.py", "--standalone is for one node"),
        ("torchrun --node-rank 0 t.py", "--node-rank is 0 on each of 2 nodes"),
        ("torchrun --rdzv_endpoint=localhost:29500 t.py", "where the nodes do not meet"),
        ("deepspeed --hostfile h t.py", "--hostfile is for one node"),
        ("horovodrun -np 8 python t.py", "forms a world on each"),
        ("srun python t.py", "started already"),
        (
            "bash -c 'nohup torchrun --nnodes 2 --nproc_per_node 4 t.py'",
            "it needs --node_rank=$NODE_RANK --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT, which gpu-runner gives",
        ),
        ("sh -c 'torchrun t.py'", "by its name alone"),
    ],
)
def test_what_would_form_another_world_is_named_with_both_numbers(line: str, what: str) -> None:
    (found,) = starters(shlex.split(line))
    assert what in next(conflicts(found, 2, 4, by_gpu=True))


def test_a_script_that_starts_nothing_has_no_starter() -> None:
    assert in_script("#!/bin/bash\npython train.py\n") == ()


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("bash 'a b.sh' 3", {"a b.sh": "torchrun --nproc-per-node $1 t.py"}),
        ("source ./tr.sh", {"tr.sh": "torchrun --nproc-per-node 3 t.py"}),
        ("N=3; . tr.sh; torchrun --nproc-per-node $N t.py", {"tr.sh": "M=2"}),
        (". tr.sh\ntorchrun --nproc-per-node $N t.py", {"tr.sh": "N=3"}),
        ("export N=3; nohup ./tr.sh &", {"d/tr.sh": "#!/bin/bash\ntorchrun --nproc-per-node $N t.py"}),
        ('N=3 sh "$(dirname "$0")/tr.sh"', {"d/tr.sh": "torchrun --nproc-per-node $N t.py"}),
        ("bash d/s.sh; bash tr.sh", {"d/tr.sh": "bash s.sh; bash -c 'torchrun --nproc-per-node 3 t.py'"}),
    ],
)
def test_scripts_that_scripts_call_are_read_once_in_each_other(text: str, files: dict[str, str]) -> None:
    found = starters(("bash", "d/s.sh"), lambda name: {"d/s.sh": text, **files}.get(name, ""))
    assert [(each.name, counts(each).each, each.line) for each in found] == [("torchrun", 3, text.count("\n") + 1)]


def test_a_variable_that_is_not_exported_reaches_no_other_script() -> None:
    files = {"s.sh": "N=3; bash tr.sh", "tr.sh": "torchrun --nproc-per-node ${N:-2} t.py"}
    assert counts(starters(("bash", "s.sh"), lambda name: files.get(name, ""))[0]).each == 2


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("docker run x torchrun t.py", ["docker run"]),
        ("$LAUNCHER t.py; $PYTHON t.py; $HOME/bin/tool", ["$LAUNCHER"]),
        *((text, ["what is nested too deep"]) for text in ("$(" * 3000, "${a:-" * 3000, "X='eval $X'; eval $X")),
        ("source s.sh", ["what is nested too deep"]),
        *(
            (f"{before} torchrun t.py", [f"{before.split()[0]} ... torchrun"])
            for before in (
                "xargs",
                "perf stat",
                "uv run --refresh",
                "ssh host",
                "coproc",
                "builtin command",
            )
        ),
        *(
            (f"{before} torchrun t.py", [f"{before.split()[1]} ... torchrun"])
            for before in ("time -p", "exec -a x", "command -p")
        ),
        ("find . -exec torchrun {} \\;", ["find ... torchrun"]),
        ("python $(which torchrun) t.py", ["python ... torchrun"]),
        ("python -m cProfile -m torch.distributed.run t.py", ["python ... -m torch.distributed.run"]),
        *(
            (f"{before} 'torchrun t.py' x", [f"{before.split()[0]} ... torchrun t.py"])
            for before in ("script -qec", "env -S")
        ),
        ("X=$(torchrun t.py)", ["`torchrun t.py`"]),
        ("echo torchrun t.py | bash", ["bash, by what it reads,"]),
        *(
            (f"{call} x", [call])
            for call in ("prterun", "ibrun", "llamafactory-cli train", "swift sft", "axolotl train")
        ),
    ],
)
def test_what_cannot_be_read_may_start_ranks(text: str, names: list[str]) -> None:
    assert starters(("bash", "s.sh"), lambda name: text) == ()
    assert [each.name for each in launchers(("bash", "s.sh"), lambda name: text)] == names


WRONG = "torchrun --nproc-per-node 3 t.py"


@pytest.mark.parametrize(
    "text",
    [f"exit\n{WRONG}", f"exec x\n{WRONG}", f"false && {WRONG}", f"true || {WRONG}", f"f() {{ exit; }}; f; {WRONG}",
     f"if false; then {WRONG}; elif true; then x; else {WRONG}; fi", f"while false; do {WRONG}; done",
     f"if ! true; then {WRONG}; fi", f"for i in; do {WRONG}; done", f"f() {{ {WRONG}; }}",
     f"f() {{ return; {WRONG}; }}; f",
     f"if true; then exit; fi; {WRONG}", f"cat <<E >x.sh\n{WRONG}\n$(x)\nE", f": <<'E'\n$({WRONG})\nE",
     f"torchrun() {{ echo; }}; {WRONG}", f"log() {{ echo $@; }}; log {WRONG}",
     f"python -c 'print(\"{WRONG}\")'", "bash p.sh <x.sh", "cat x.sh"],
)  # fmt: skip
def test_what_is_not_reached_starts_nothing(text: str) -> None:
    assert in_script(text, read=lambda name: {"x.sh": WRONG, "p.sh": "echo"}.get(name, "")) == ()


@pytest.mark.parametrize(
    ("text", "is_choice"),
    [(f"if x; then {WRONG}; fi", True), (f"[ x ] && y && {WRONG}", True), (f"x || {WRONG}", True),
     (f"case $x in a) exit;; b) {WRONG};; esac", True), (f"if x; then exit; fi; {WRONG}", True),
     (f"f() {{ {WRONG}; }}; [ x ] && f", True), (f"if x; then [ y ] && exit; {WRONG}; fi", True),
     (f"if x; then exit 1; fi; {WRONG}", False), (f"cd x && {WRONG}", False), (f"[ x ] || exit 1; {WRONG}", False),
     (f"false || {WRONG}", False), (f"if false; then x; else {WRONG}; fi", False), (f"(exit); {WRONG}", False),
     (f"exit | x; {WRONG}", False), (f"f() {{ return; }}; f; {WRONG}", False), (f"exec >log; {WRONG}", False),
     (f"u() {{ exit 1; }}; [ x ] || u; {WRONG}", False), (f"f() {{ {WRONG}; }}; g() {{ f; }}; g", False),
     ('f() { torchrun --nproc-per-node $1 "${@:2}"; }; f 3', False), ('f() { "$@"; }; f ' + WRONG, False),
     (f"trap '{WRONG}' EXIT", True), (f"f() {{ {WRONG}; }}; export -f f; bash -c f", True),
     *((line, False) for line in (
         "bash <x.sh", "nohup bash -s <x.sh", f"bash <<E\n{WRONG}\nE", f"sh <<<'{WRONG}'",
         f"N=3; cat >y <<E\n{WRONG.replace('3', '$N')}\nE\nbash y", f"echo {WRONG} >y.sh; bash y.sh", "cd d; bash z.sh",
         "timeout 5 ./run", "bash -c 'exec bash x.sh'", "for s in x.sh; do bash $s; done"))],
)  # fmt: skip
def test_only_what_is_surely_reached_is_no_choice(text: str, is_choice: bool) -> None:
    files = {"x.sh": WRONG, "d/z.sh": WRONG, "run": f"#!/bin/sh\n{WRONG}"}
    (found,) = in_script(text, read=lambda name: files.get(name.removeprefix("./"), ""))
    assert (found.name, counts(found).each, found.is_choice) == ("torchrun", 3, is_choice)


@pytest.mark.parametrize(
    "line",
    ["cat x.sh | bash", "source <(cat x.sh)", f". <(echo {WRONG})", "bash <(sed s/a/b/ x.sh)", "ls x.sh | xargs bash",
     f"cat <<E | sh\n{WRONG}\nE", "source /dev/stdin <x.sh", f"cat <({WRONG})", "for s in *; do bash $s; done",
     f"python -c 'import os; os.system(\"{WRONG}\")'", f"python - <<E\nos.popen('{WRONG}')\nE",
     "python -c 'import subprocess; subprocess.run([\"torchrun\", \"t.py\"])'",
     "python -c 'run([sys.executable, \"-m\", \"torch.distributed.run\", \"t.py\"])'"],
)  # fmt: skip
def test_what_may_start_ranks_is_not_silent(line: str) -> None:
    (found,) = in_script(line, read=lambda name: {"x.sh": WRONG}.get(name, ""))
    assert found.name not in KINDS


@pytest.mark.parametrize(
    "line",
    ["pip install deepspeed torch", "uv pip install deepspeed", "uv pip install deepspeed torch",
     "run() { \"$@\"; }; run mkdir x", "conda install -y deepspeed x",
     "echo torchrun t.py", "which torchrun", "command -v torchrun", "uv run --with deepspeed python t.py",
     "python t.py --strategy deepspeed --lr 3", "A=$(srun hostname)", "x # torchrun t.py", "pkill -f torchrun",
     "curl x | sh", "env PATH=/x/torchrun python t.py"],
)  # fmt: skip
def test_a_mere_mention_starts_nothing(line: str) -> None:
    assert launchers(("bash", "-c", line)) == ()
