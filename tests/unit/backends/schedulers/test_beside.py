"""A program beside a job's own, with real processes in the place of a job's."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from runner.backends.schedulers import beside_by_ssh
from runner.backends.schedulers.script_parts import SHELL
from tests.support.users import ALICE, AS_ROOT, UNPRIVILEGED, become
from tests.support.waiting import until

MARK = "RUNNER_TOKEN=of-this-test"
ORDINARY = become(UNPRIVILEGED) if os.geteuid() == 0 else ()
SAYS = 'echo "$UID: $enter, $options, $words, $name, $TERM, $1"'
# All are names that the script has, too; in POSIX mode a shell ends where a variable like UID is set.
NAMES = ("POSIXLY_CORRECT=1", "UID=0", "enter=e", "options=o", "words=w", "name=n", "process=1", "TERM=theirs")


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(stack: ExitStack, *words: str, start: str | Path = "/") -> None:
    # Elsewhere than in a checkout, which may be closed to other users.
    child = subprocess.Popen([*words, "sleep", "60"], cwd=start, stderr=subprocess.DEVNULL)
    stack.callback(child.wait)
    stack.callback(child.kill)
    until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n", every_s=0.02)


def beside(*program: str) -> tuple[str, ...]:
    return ("/bin/bash", "-p", "-c", (SHELL / "beside.sh").read_text(), "beside", MARK, MARK, *program)


def test_an_ordinary_user_gets_variables_of_whatever_name(processes: ExitStack) -> None:
    started(processes, *ORDINARY, "env", MARK, *NAMES)
    argv = beside_by_ssh(None, "", "node", beside("bash", "-c", SAYS, "x", "a '$b\n!"), plan=None, terminal=False)[0]
    assert not {"\n", "!"} & set(argv[-1])  # csh, which may be the login shell there, has a meaning for both
    env = {"PATH": os.environ["PATH"], "TERM": "ours"}
    done = subprocess.run([*ORDINARY, "sh", "-c", argv[-1]], capture_output=True, text=True, env=env, check=False)
    uid = UNPRIVILEGED if ORDINARY else os.geteuid()
    assert (done.returncode, done.stdout) == (0, f"{uid}: e, o, w, n, ours, a '$b\n!\n"), done.stderr


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_it_starts_where_the_jobs_program_is_unless_all_may_write_there(
    mode: int, processes: ExitStack, tmp_path: Path
) -> None:
    tmp_path.chmod(mode)
    started(processes, "env", MARK, start=tmp_path)
    done = subprocess.run(beside("pwd"), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("/" if mode == 0o1777 else str(tmp_path))
    assert (f"is in {tmp_path}, where all may write; this one starts in /" in done.stderr) == (mode == 0o1777)


@AS_ROOT
def test_root_is_not_lured_into_the_container_of_a_user_who_has_the_jobs_variables(processes: ExitStack) -> None:
    started(processes, *become(ALICE), "env", MARK, "unshare", "--map-root-user", "--mount")
    started(processes, "env", MARK)
    done = subprocess.run(beside("readlink", "/proc/self/ns/user"), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(Path("/proc/self/ns/user").readlink())
