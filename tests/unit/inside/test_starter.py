"""What a starter of ranks is given where it runs: arguments, in a shell script by functions; its ranks get nothing."""

import os
import subprocess
from pathlib import Path

import pytest
from gpu_runner_inside.launcher import starter

TORCHRUN = (("torchrun",), ("--node_rank=1", "--x=a $b"))
MODULE = (("python3", "-m", "torch.distributed.run"), ("--master_port=13000",))


def test_only_what_is_known_here_is_filled_in() -> None:
    values = {"index": "1", "address": "10.0.0.5", "port": "13000"}
    words = ["--a={index}", "{address}:{port}", "{x} {hostfile}", "{}"]
    assert starter.fill(words, values, lambda: "/h") == ["--a=1", "10.0.0.5:13000", "{x} /h", "{}"]


def test_a_host_file_has_a_line_for_each_start(tmp_path: Path) -> None:
    assert Path(starter.write_hosts(str(tmp_path), 2, 4)).read_text() == "node0 slots=4\nnode1 slots=4\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("torchrun t.py 'a  b'", ["torchrun --node_rank=1 --x=a $b t.py a  b"]),
        ("bash -c 'set -eu; torchrun' & wait $!", ["torchrun --node_rank=1 --x=a $b"]),
        ("python3 -m torch.distributed.run t; python3 -m other; python3; P=python3; $P -m torch.distributed.run",
         ["python3 -m torch.distributed.run --master_port=13000 t", "python3 -m other", "python3 ",
          "python3 -m torch.distributed.run --master_port=13000"]),
        ("PATH=$PWD/other:$PATH; torchrun || echo $?", ["other --node_rank=1 --x=a $b", "3"]),
    ],
)  # fmt: skip
def test_a_script_s_starters_get_arguments_that_nothing_below_them_inherits(
    tmp_path: Path, text: str, lines: list[str]
) -> None:
    (tmp_path / "other").mkdir()
    for place, says in (("torchrun", "torchrun"), ("python3", "python3"), ("other/torchrun", "other")):
        end = "exit 3" if says == "other" else "env | grep FUNC"
        (tmp_path / place).write_text(f'#!/bin/bash\necho "{says} $*"\n{end}\ntrue\n')
        (tmp_path / place).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **starter.functions([TORCHRUN, MODULE])}
    run = subprocess.run(["bash", "-c", text], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (run.stdout.splitlines(), run.stderr) == (lines, "")
