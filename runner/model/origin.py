"""Where a run comes from: the command line that submitted it, and the user's code at that moment."""

from __future__ import annotations

import msgspec

from runner.model.plan import Finding


class CommandLine(msgspec.Struct, frozen=True):
    """The command that submitted a run (``command.json``).

    Attributes:
        arguments: the command's name and its arguments, exactly as they were typed, for a reader; empty for a run from
            Python. Runs without ``request.json`` have no other record of what was asked for.
        directory: the working directory that relative paths among them mean.
        site: the site that was used where the arguments name none; empty where they do.
        rerun_of: id of the run that this one repeats; empty for none.
    """

    arguments: tuple[str, ...]
    directory: str
    site: str = ""
    rerun_of: str = ""


class CodeRecord(msgspec.Struct, frozen=True):
    """The user's code when a run was submitted (``code.json``), as git describes it.

    Attributes:
        repository: top directory of the git repository; empty where the program is in none.
        commit: of HEAD; empty for a repository without commits. branch: empty where HEAD is detached.
        dirty: tracked files differ from the commit; None where that is unknown.
        changed: these files, below the repository; at most 1000 of them.
        binary: of these, those that are not text. too_long: those whose diff did not fit. Neither is in the kept diff.
        redacted: number of places in the kept diff that looked like secrets and were replaced.
        diff_kept: ``code.diff`` has the difference.
        untracked: the program's own file, where git does not track it: the commit says nothing about it.
        problem: what could not be recorded, and why; empty if nothing.
    """

    repository: str = ""
    commit: str = ""
    branch: str = ""
    dirty: bool | None = None
    changed: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()
    too_long: tuple[str, ...] = ()
    redacted: int = 0
    diff_kept: bool = False
    untracked: str = ""
    problem: str = ""


class Source(msgspec.Struct, frozen=True):
    """A checkout of gpu-runner: its commit, and whether it had changes."""

    commit: str = ""
    dirty: bool = False


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a run comes from besides its command line and its code (``provenance.json``). No environment: it may hold
    secrets, and the plan has its result.

    Attributes:
        runner: version of gpu-runner. source: its checkout; null where it was installed. python: that it ran on.
        directory, host: where it was submitted.
        findings: of the checks. unconfirmed: keys of the site's facts that the job uses and are unconfirmed.
        versions: of the runtime and the scheduler, once the run was judged.
    """

    runner: str = ""
    source: Source | None = None
    python: str = ""
    directory: str = ""
    host: str = ""
    scheduler: str = ""
    runtime: str = ""
    findings: tuple[Finding, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    versions: dict[str, str] = {}

    @property
    def gpu_runner(self) -> str:
        """Version and commit of gpu-runner."""
        return f"{self.runner} {self.source.commit[:12] if self.source else ''}".strip()


class NodeShare(msgspec.Struct, frozen=True):
    """A node that ranks of a run began on.

    Attributes:
        ranks: those on it. gpus: numbers of the node's GPUs that they had; empty where nothing said.
    """

    name: str
    ranks: tuple[int, ...]
    gpus: tuple[int, ...] = ()
