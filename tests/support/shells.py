"""What ``shell`` does in every runtime."""

import json
import re
import sys
from pathlib import Path

from tests.support.commands import Runner
from tests.support.rank_records import has_started
from tests.support.terminals import COLUMNS, ROWS, Terminal
from tests.support.waiting import until

PROMPT = "\x1b[?2004h"  # of readline, before each: what stands there is each runtime's own
WAITS = "import os, time\nprint(os.environ['RANK'], flush=True)\ntime.sleep(600)\n"
SEES = 'echo "rank $RANK of $WORLD_SIZE, $CUDA_VISIBLE_DEVICES, $1"; cat program.py >/dev/null'


def typed_into(runner: Runner, cwd: Path, *words: str) -> Terminal:
    argv = [sys.executable, "-m", "runner", "shell", "--site", str(runner.site), "--runs", str(runner.runs), *words]
    return Terminal(argv, {**runner.environment(), "TERM": "xterm"}, cwd)


def transcript(runner: Runner, image: str, cwd: Path) -> str:
    """What a person sees of a shell on a node, with the numbers and names of one day."""
    shell = typed_into(runner, cwd, "--gpus", "2", "--image", image, "--time", "10:00")
    for answer, typed in ((PROMPT, "echo $CUDA_VISIBLE_DEVICES\n"), (PROMPT, "\x04")):
        shell.until(answer)
        shell.type(typed)
    assert shell.end() == 0
    text = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]|\x1b\].*?\x07|[^\n]*\r(?!\n)|\r", "", shell.seen)
    text = re.sub(r"(?m)^(image .*|.* waiting for a node .*)?\n", "", text)
    run, job = runner.newest(), json.loads((runner.newest() / "job.json").read_text())["job_id"]
    for shown, as_of_a_day in (
        (str(run), f"runs/{run.name}"),
        (run.name[:15], "20261127-160000"),
        (f"job {job}", "job 4711"),
    ):
        text = text.replace(shown, as_of_a_day)
    return text


def assert_shells(runner: Runner, image: str, cwd: Path) -> None:
    """A terminal in a job of its own, which ends with it, and a command beside each of two ranks of a job."""
    cwd.joinpath("program.py").write_text(WAITS)
    shell = typed_into(runner, cwd, "--gpus", "2", "--image", image)
    shell.until(PROMPT)
    shell.type("stty size; echo $CUDA_VISIBLE_DEVICES; [ -t 0 ] && python3 -m pdb program.py\n")
    shell.until("(Pdb) ")
    shell.type("p 6 * 7\n")
    shell.until("\r\n42\r\n")
    shell.until("(Pdb) ")
    shell.type("q\n")
    shell.until(PROMPT)
    assert f"\n{ROWS} {COLUMNS}\r\n0,1\r\n" in shell.seen.replace("\x1b[?2004l\r", "")
    shell.type("(exit 7)\n\x04")
    assert shell.end() == 7, shell.seen
    assert "verdict: cancelled" in runner("wait", runner.newest().name, code=5).out

    runner("submit", "--gpus", "2", "--nodes", "2", "--image", image, "--", "python3", "program.py", code=0, cwd=cwd)
    run = runner.newest()
    until(lambda: has_started(2)(run), "two ranks", timeout_s=120)
    for rank in ("0", "1"):
        done = runner("shell", run.name, "--rank", rank, "--", "bash", "-c", SEES, "x", "a '$b\" c", code=0)
        assert done.out == f"rank {rank} of 2, 0, a '$b\" c\n"
    runner("cancel", run.name, code=0)
