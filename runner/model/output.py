"""What every command prints with ``--json``: one document, of one shape, whatever happened."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from runner.model.figure import Figure
from runner.model.job import JobState, Phase
from runner.model.origin import CodeRecord, NodeShare
from runner.model.plan import Finding, Plan
from runner.model.schedulers import SCHEDULERS
from runner.model.verdict import Verdict

# A key that is taken away or changes its meaning makes another version; a new key does not.
SCHEMA: Final = "gpu-runner/1"

Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Problem(msgspec.Struct, frozen=True):
    """What went wrong.

    Attributes:
        code: stable name: of the check that refuses, of the verdict's outcome, else of the exit code (``usage``).
        what: one sentence, as on standard error. where: file, key, line, command or path; empty if there is none.
        fix: what to do; empty where there is no advice.
        who: can do it: ``user``, ``administrator`` or ``site``, ``infrastructure``; empty where that is unknown.
    """

    code: str
    what: str
    where: str = ""
    fix: str = ""
    who: str = ""


class Document(msgspec.Struct, frozen=True):
    """What a command prints on standard output with ``--json``.

    Attributes:
        schema: the version of this shape.
        command: the command without its arguments: ``submit``, ``images list``.
        exit_code: the exit code of the command.
        error: null exactly where ``exit_code`` is 0.
        result: what the command is for; null where an error left none. Its shape depends on the command alone.
    """

    schema: Literal["gpu-runner/1"]
    command: str
    exit_code: int
    error: Problem | None
    result: Any


class RunFacts(msgspec.Struct, frozen=True):
    """A run: the same keys while it is queued, while it runs and when it has ended. Times are UTC, whole seconds.

    Attributes:
        run: its id. directory: absolute. name: of the job.
        job: the scheduler's id; empty where it is unknown.
        state: ``pending``, ``running``, ``ended``, or ``unknown`` where the scheduler knows nothing of the job.
        scheduler: what the scheduler last reported; null where it was not queried.
        site, recipe, runtime: by name; recipe is the program's name where no recipe was used.
        image: pinned by its digest; the environment's name for a job without a container.
        gpus, nodes: as requested; on a site without GPUs, one rank stands for a GPU.
        ranks, ranks_started, ranks_ended: how many there are, and of how many that is recorded.
        submitted, started, ended: null where that is unknown or has not happened.
        findings: of the checks, at submission. unconfirmed: keys of the site's facts that the job uses unconfirmed.
        verdict: null until the run was judged. exit_code: of ``wait``, by the verdict; null without one.
        figure: of the verdict, with its doubts; null unless it is ``measured``.
    """

    run: str
    directory: str
    name: str
    job: str
    state: Phase
    scheduler: JobState | None
    site: str
    recipe: str
    runtime: str
    image: str
    gpus: int
    nodes: int
    ranks: int
    ranks_started: int
    ranks_ended: int
    submitted: Time | None
    started: Time | None
    ended: Time | None
    findings: tuple[Finding, ...]
    unconfirmed: tuple[str, ...]
    verdict: Verdict | None
    exit_code: int | None
    figure: Figure | None = None


class ShownRun(RunFacts, frozen=True, kw_only=True):
    """A run, and what ``show`` adds.

    Attributes:
        command_line: that submitted it, without the values of secret names; empty where none was recorded.
        typed_in: the working directory of that command.
        rerun_of: id of the run that it repeats; empty for none.
        code: the user's code; null where none was recorded (a shipped recipe, or a run that is older).
        code_diff: path of what differs from the commit; empty where that was not kept.
        code_copy: path of the copy that the program ran from (``--snapshot``); empty where it ran where it was.
        image_digest, image_file, image_sha256: of the image that ran; empty where unknown, or where there is none.
        node_list: where ranks began. allocated: in the scheduler's notation, what the job got; empty where unknown.
        forced: codes of the checks that refused it and were overridden.
    """

    command_line: tuple[str, ...]
    typed_in: str
    rerun_of: str
    code: CodeRecord | None
    code_diff: str
    code_copy: str
    image_digest: str
    image_file: str
    image_sha256: str
    node_list: tuple[NodeShare, ...]
    allocated: str
    forced: tuple[str, ...]


class ShownPlan(Plan, frozen=True):
    """A plan; ``slurm`` and ``pbs`` are ``scheduler_settings`` of these schedulers, empty for any other."""

    slurm: dict[str, Any] = {}
    pbs: dict[str, Any] = {}


def shown_plan(plan: Plan) -> ShownPlan:
    """A plan as ``--json`` prints it."""
    values: dict[str, Any] = {name: getattr(plan, name) for name in Plan.__struct_fields__}
    section = SCHEDULERS[plan.scheduler].section
    if section in ShownPlan.__struct_fields__:
        values[section] = plan.scheduler_settings
    return ShownPlan(**values)


class Preparation(msgspec.Struct, frozen=True):
    """A job that was prepared and not submitted: a dry run, or one that a check refuses.

    Attributes:
        script: exactly what would be submitted. plan: every decision about it. Both hold the values of the variables
            that the job is given, so both are null except for a dry run.
        findings: of the checks. unconfirmed: keys of the site's facts that the job uses unconfirmed.
        files: name below ``lib/`` -> text, of what the script reads; with ``--full``.
    """

    script: str | None
    plan: ShownPlan | None
    findings: tuple[Finding, ...]
    unconfirmed: tuple[str, ...]
    files: dict[str, str] = {}


class LogText(msgspec.Struct, frozen=True):
    """One log of a run.

    Attributes:
        path: of the file. rank: whose it is; null for the batch script's, and for what is run once a node.
        text: all of it, or the last lines that were requested.
        left_out_bytes: of a very long log, how much is left out at its beginning; null where lines were requested.
    """

    path: str
    rank: int | None
    text: str
    left_out_bytes: int | None


class Cancellation(msgspec.Struct, frozen=True):
    """The answer of ``cancel``.

    Attributes:
        had_ended: the job had ended before; nothing was cancelled.
    """

    run: str
    directory: str
    job: str
    had_ended: bool
