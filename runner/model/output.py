"""What every command prints with ``--json``: one document, of one shape, whatever happened."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from runner.model.backends import SCHEDULERS
from runner.model.figure import Figure, FigureKeys
from runner.model.job import CodeRecord, JobState, NodeShare, Phase, SchedulerRecord
from runner.model.plan import Finding, Plan
from runner.model.records import GpuLoad
from runner.model.request import RunArm
from runner.model.study import ListedStudy, Loss, PointFacts, Span, StudyCancellation, StudyFacts, Time
from runner.model.verdict import Outcome, Verdict

# A key that is taken away or changes its meaning makes another version; a new key does not.
SCHEMA: Final = "gpu-runner/1"


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


class Allotment(msgspec.Struct, frozen=True):
    """Where a job waits or runs, and for how long it may.

    Attributes:
        partition: as the scheduler says. queue: that was requested. account: that is charged. Empty where unknown.
        limit_s: its time limit. limit_is_default: it was not requested, and is the site's.
        estimated_start: when the scheduler estimates its start; null where it does not, or the job has started.
        elapsed_s, left_s: that it has run, and may run; null unless it runs.
    """

    partition: str
    queue: str
    account: str
    limit_s: int
    limit_is_default: bool
    estimated_start: Time | None = None
    elapsed_s: int | None = None
    left_s: int | None = None


class RankGpu(GpuLoad, frozen=True, kw_only=True):
    """The GPU of a rank while the job runs.

    Attributes:
        rank: null where it is unknown which uses it. gpu: its number on the node, in NVML's order.
        age_s: since it was read.
    """

    rank: int | None
    node: str
    gpu: int
    age_s: float


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
        allotment: null where its plan cannot be read. rank_gpus: while it runs; empty where no GPU is visible.
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
    allotment: Allotment | None = None
    rank_gpus: tuple[RankGpu, ...] = ()


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
        record: of a batch script of the user, submitted as it is: what the scheduler knows; null of other runs.
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
    record: SchedulerRecord | None = None


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


class ScriptFault(msgspec.Struct, frozen=True):
    """What is wrong with a batch script; ``line`` from 1."""

    code: str
    line: int
    what: str
    fix: str


class LeftOut(msgspec.Struct, frozen=True):
    """What of a batch script our command leaves out; ``line`` from 1, or 0 for none."""

    line: int
    what: str
    why: str


class ScriptCheck(msgspec.Struct, frozen=True):
    """A batch script that was read (``submit SCRIPT --check``).

    Attributes:
        command: of ours for it; empty where ``no_command`` says why there is none.
        nodes, processes: on each of them, as the script places its program; null where only a run tells.
    """

    script: str
    command: str
    no_command: str
    nodes: int | None
    processes: int | None
    findings: tuple[ScriptFault, ...]
    left_out: tuple[LeftOut, ...]


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


class WaitedFor(msgspec.Struct, frozen=True):
    """The result of ``wait`` for several, each as for one, in the order in which they were named."""

    runs: tuple[RunFacts, ...] = ()
    studies: tuple[StudyFacts, ...] = ()


class Cancellations(msgspec.Struct, frozen=True):
    """The result of ``cancel`` of several, each as of one, in the order in which they were named."""

    runs: tuple[Cancellation, ...] = ()
    studies: tuple[StudyCancellation, ...] = ()


State = Literal["pending", "running", "ended", "unknown", "not-submitted"]


class ListedRun(FigureKeys, frozen=True):
    """One run of a list. Keys that ``status RUN`` has, too, mean the same there. Times are UTC, whole seconds.

    Attributes:
        state: ``unknown`` where the scheduler does not answer, or knows nothing of the job; ``not-submitted`` where it
            refused it.
        reason: why a pending job waits, in the scheduler's words; empty where it does not wait, or says nothing.
        gpus: as requested; on a site without GPUs, one rank stands for a GPU.
        submitted: null where that cannot be read.
        outcome: of the verdict; null until the run was judged.
        values: of a sweep's run, what is its own: name -> value.
    """

    run: str
    directory: str
    name: str
    job: str
    state: State
    reason: str
    gpus: int
    site: str
    submitted: datetime | None
    outcome: Outcome | None
    values: dict[str, str] = {}


class RunList(msgspec.Struct, frozen=True):
    """The result of ``status`` without RUN.

    Attributes:
        runs: the newest first. more: whether there are older ones that were left out.
        refused: how many submissions were left out because the scheduler refused them.
        studies: the newest first; their runs are not among ``runs`` unless those were requested by name, or all.
    """

    runs: tuple[ListedRun, ...]
    more: bool
    refused: int
    studies: tuple[ListedStudy, ...] = ()


Format = Literal["csv", "json", "reframe"]


class ExportedRank(msgspec.Struct, frozen=True):
    """A rank, by its own records; null where they do not say.

    Attributes:
        device_uuid: of its GPU; empty for a processor, or where unknown.
        exit_status: 0 where its program ended well.
        window_s, steps, samples: of its own timed window, nothing cut.
        compute_s: its own computing of a step, median of the medians of the window's quarters, seconds.
        sm_clock_mhz_min, sm_clock_mhz_max: of its GPU in the window.
        max_rss_bytes: of its program's main memory.
    """

    rank: int
    node: str
    device_kind: Literal["cuda", "cpu", ""]
    device_uuid: str
    exit_status: int | None
    window_s: float | None
    steps: int | None
    samples: int | None
    compute_s: float | None
    sm_clock_mhz_min: float | None
    sm_clock_mhz_max: float | None
    max_rss_bytes: int | None


class ExportedRun(FigureKeys, frozen=True):
    """A run that was judged.

    Attributes:
        image: pinned by its digest; empty without a container.
        options: of the program, by name; a flag has an empty value. Values of secret names are ``***``.
        batch_per_gpu: samples of a rank in a step; null where it is not one number.
        started, ended: null where unknown.
        precision_low, precision_high, window_s, steady: null unless it is measured; the interval also where the window
            was too short for one. What the figure counts (``unit``), the batch does, too.
        arm: that the figure is of: ``full`` is training as it is; of another one the figure is none of training.
    """

    run: str
    outcome: Outcome
    reason: str
    site: str
    recipe: str
    runtime: str
    image: str
    gpus: int
    nodes: int
    options: dict[str, str]
    batch_per_gpu: int | None
    started: Time | None
    ended: Time | None
    precision_low: float | None
    precision_high: float | None
    window_s: float | None
    steady: bool | None
    transport: str
    arm: RunArm
    ranks: tuple[ExportedRank, ...]


class ExportedRuns(msgspec.Struct, frozen=True):
    """What ``export --format json`` writes. A key that is taken away or changes its meaning makes another version."""

    schema: Literal["gpu-runner-export/1"]
    runs: tuple[ExportedRun, ...]


class BundledRun(FigureKeys, frozen=True):
    """A run in a bundle: what its records give.

    Attributes:
        figure: null only in a bundle that an earlier version made. precision, steady, transport, forced: as in its
            verdict.
        arm: that the figure is of: ``full`` is training as it is; of another one the figure is none of training.
        version: of gpu-runner, which judged it when the bundle was made.
        redacted: file -> SHA-256 of what is left, in earlier versions of what it was before secrets were taken out.
    """

    run: str
    recipe: str
    site: str
    gpus: int
    nodes: int
    precision: tuple[float, float] | None
    steady: bool | None
    transport: Literal["proven", "unproven", ""]
    forced: tuple[str, ...]
    version: str
    redacted: dict[str, str]
    arm: RunArm = "full"


class BundledStudy(msgspec.Struct, frozen=True):
    """A study in a bundle: what its measured runs give together.

    Attributes:
        study: its id; its question is ``data/study.json``.
        runs: key of each launch -> the run by which it is proven; empty where none is.
        points, losses: the study's table, and where the loss goes.
        gaps: what was launched and was not there any more when the bundle was made, a sentence each.
        log: what its log of launches says beside these runs, a sentence each: other runs of a launch, and launches out
            of their order.
        others: when and where runs of the study ran that gave no figure, as records of these are not there.
    """

    study: str
    runs: dict[str, str]
    points: tuple[PointFacts, ...]
    losses: tuple[Loss, ...]
    gaps: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    others: tuple[Span, ...] = ()


class Bundle(msgspec.Struct, frozen=True):
    """``data/bundle.json``: the runs, by id, and the study that they are of; null where single runs were bundled."""

    schema: Literal["gpu-runner-bundle/1"]
    runs: tuple[BundledRun, ...]
    study: BundledStudy | None = None


class MadeBundle(msgspec.Struct, frozen=True):
    """A bundle that was made.

    Attributes:
        file: where it is. sha256: of its tag manifest, which stands for every byte of it but a signature's.
        signed: it has a signature.
    """

    file: str
    size_bytes: int
    sha256: str
    signed: bool
    runs: tuple[BundledRun, ...]
    study: BundledStudy | None


class VerifiedBundle(msgspec.Struct, frozen=True):
    """A bundle of which every byte, every figure and every verdict was found to be what its records give.

    Attributes:
        sha256: of its tag manifest.
        signature: ``none``: it is consistent, and anybody may have made it. ``valid``: by one of the allowed signers.
            ``unknown signer``: of this bundle, by a key of which nothing says whose it is. ``not checked``: there is no
            ssh-keygen here.
        signer: name in the file of allowed signers, or the key's fingerprint; empty without.
    """

    file: str
    sha256: str
    signature: Literal["none", "valid", "unknown signer", "not checked"]
    signer: str
    runs: tuple[BundledRun, ...]
    study: BundledStudy | None
