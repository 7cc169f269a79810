"""Jobs of this machine and their processes."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.jobs.directory import Run
from runner.model.job import Submitted
from tests.support.commands import Runner
from tests.support.rank_records import arrived, outcome, records

PROBE = ("submit", "--recipe", "probe", "--gpus", "2")
SLEEPS = (*PROBE, "--", "--sleep", "300")
VALUE = 'it\'s "$HOME" `id` \\ # é\ntwo *'
ARGUMENTS = ("--env", "NOTE", "--env", "HERE", "a b", "", "$(id)'\"*")


def leader(run: Path) -> int:
    return int(Run(run).read("job.json", Submitted).job_id.split(".")[0])  # type: ignore[union-attr]


def assert_runs_as_printed(command: Runner, *words: str, **env: str) -> dict[int, dict[str, Any]]:
    """What a dry run prints is what ran; hostile values arrive, nothing goes on. Returns the ranks' probes."""
    words, env = (*words, "--env", f"NOTE={VALUE}"), {"HERE": VALUE, **env}
    printed = command(*words, "--dry-run", "--", *ARGUMENTS, code=0, env=env).out
    command(*words, "--wait", "--", *ARGUMENTS, code=0, env=env)
    run = command.newest()
    assert (run / "job.sh").read_text() == printed
    assert outcome(run) == "ran"
    probes = records(run, "probe")
    for probe in probes.values():
        assert arrived(probe) == (list(ARGUMENTS), {"NOTE": VALUE, "HERE": VALUE})
    assert session(leader(run)) == []
    assert modes(run) == {0}
    return probes


def session(pid: int) -> list[str]:
    """What is alive of the session that this process led."""
    alive = []
    for entry in Path("/proc").glob("[1-9]*"):
        with suppress(OSError):
            fields = (entry / "stat").read_text(errors="replace").rpartition(") ")[2].split()
            if fields[3] == str(pid) and fields[0] not in "ZX":  # proc(5): session and state
                alive.append((entry / "cmdline").read_text(errors="replace").replace("\0", " "))
    return alive


def modes(run: Path) -> set[int]:
    """The permissions that others than the owner have on what the job itself wrote."""
    return {path.stat().st_mode & 0o077 for folder in ("logs", "ranks") for path in (run / folder).iterdir()}
