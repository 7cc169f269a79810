"""What a run is worth, and the record that ``prove`` leaves."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.core.errors import Exit
from runner.model.request import RunArm

Unit = Literal["images", "samples", "tokens", "steps"]
Outcome = Literal["measured", "ran", "failed", "cancelled", "not-proven", "infrastructure", "unknown"]

EXIT_OF: dict[Outcome, Exit] = {
    "measured": Exit.GOOD,
    "ran": Exit.GOOD,
    "failed": Exit.PROGRAM_FAILED,
    "cancelled": Exit.PROGRAM_FAILED,
    "not-proven": Exit.NOT_PROVEN,
    "infrastructure": Exit.INFRASTRUCTURE,
    "unknown": Exit.UNKNOWN,
}


class ArmFigure(msgspec.Struct, frozen=True):
    """What one arm of a run gave, over all its windows: made from the ranks' raw records.

    Attributes:
        samples_per_s: of all ranks. Of ``uncoupled`` it is the sum of the ranks' own rates, for each is a world of its
            own; of the others, samples over the time from the common start to the latest end.
        slowest_samples_per_s: own rate of the slowest rank.
        step_s: mean time of a step, seconds; slowest_step_s: of the slowest rank.
        window_s: of all its windows together, seconds.
        compute_s: mean own computing of a step on the rank where that is longest, seconds; None where the way of
            training does not tell it apart from waiting.
        jitter_s: by how much more than ``compute_s`` the longest own computing of each step is, in the mean: what all
            ranks wait because now one and now another is slow. None where ``compute_s`` is.
        sm_clock_mhz: mean over the ranks' GPUs; None where it was not read.
    """

    arm: RunArm
    samples_per_s: float
    slowest_samples_per_s: float
    step_s: float
    slowest_step_s: float
    window_s: float
    compute_s: float | None = None
    jitter_s: float | None = None
    sm_clock_mhz: float | None = None


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on a run that has ended.

    Attributes:
        outcome: ``measured`` (ran, and its figure is proven), ``ran`` (every rank ended well; it measures nothing),
            ``failed``, ``cancelled``, ``not-proven`` (it ran, but what it claims is not proven), ``infrastructure``,
            ``unknown``.
        reasons: why it is not good, the telling one first; empty where it is.
        proven: what was proven, one sentence each.
        remarks: what a reader of the figure should know, one sentence each: what was cut, shifts, slow ranks.
        images_per_s: throughput of the whole world, only where ``measured``; in ``unit`` per second.
        unit: what it counts: images, or samples, tokens or steps of a user's program.
        varying_batch: ranks or steps took different numbers of samples, as the model was given them.
        mixed: of what kinds the ranks' devices and drivers are, where of several; else empty.
        synchronisation: ``not-examined`` where nothing showed whether the ranks train together; else empty.
        batch: ``not-checked`` where the samples are those that a user's script states, and its model's forward passes
            do not show them; ``others-trained`` where an optimizer of other parameters stepped, too, or by turns;
            ``not-stated`` where they are as the model was given them alone; else empty.
        anew: verdict, plan or records are not as this user's gpu-runner left them, and this is what they give now.
        replaced: in a bundle, why the run may be a chosen one among others of its launch; else empty.
        shared_batch: why ranks may have shared a batch, and what the figure is then; empty where nothing says so.
        disturbed: what slowed its GPUs down for a while in the window; empty where nothing is known to have.
        uncut_images_per_s: the same of the whole window.
        window_s: length of the figure's window, seconds. cut_steps: timed steps at its start that were left out.
        steady: neither trend nor shift of more than 1 % in the window; None where that is unknown.
        precision: interval of the figure within this run (95 %), where the window was long enough for one.
        transport: whether it is proven that data between nodes went the planned way; empty where there was but one
            node, or a CPU run on a site that plans no transport.
        gpu_energy_j_per_sample: energy of the ranks' GPUs (GPU only) in the window over its samples, joules; None where
            a GPU does not count it.
        demonstration: why the figure is no performance claim; empty where it is one.
        fix: what to do about the first reason; who: who can (``user``, ``site``, ``infrastructure``). Both empty where
            no single failure decided.
        log: file and line that tells most, where one does.
        rank: that failed first, where one did and its number is known.
        runtime: what started the ranks. versions: of it, and of the scheduler, by name, as the job itself recorded them
            on its nodes; ``unknown`` where it could not.
        forced: codes of the checks that refused the job, and were overridden.
        arm: that ``images_per_s`` is of. arms: all that the run alternated between, this one too; empty where it had
            but one.
        sm_clock_mhz: mean over the ranks' GPUs in the window; None where it was not read.
    """

    outcome: Outcome
    reasons: tuple[str, ...] = ()
    proven: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    images_per_s: float | None = None
    unit: Unit = "images"
    varying_batch: bool = False
    mixed: str = ""
    synchronisation: Literal["not-examined", ""] = ""
    batch: Literal["not-checked", "others-trained", "not-stated", ""] = ""
    anew: bool = False
    replaced: str = ""
    shared_batch: str = ""
    disturbed: str = ""
    uncut_images_per_s: float | None = None
    window_s: float | None = None
    cut_steps: int = 0
    steady: bool | None = None
    precision: tuple[float, float] | None = None
    gpu_energy_j_per_sample: float | None = None
    transport: Literal["proven", "unproven", ""] = ""
    demonstration: str = ""
    fix: str = ""
    who: str = ""
    log: str = ""
    rank: int | None = None
    runtime: str = ""
    versions: dict[str, str] = {}
    forced: tuple[str, ...] = ()
    arm: RunArm = "full"
    arms: tuple[ArmFigure, ...] = ()
    sm_clock_mhz: float | None = None

    @property
    def exit_code(self) -> Exit:
        """The exit code of ``wait`` and ``submit --wait``."""
        return EXIT_OF[self.outcome]

    @property
    def why_unmeasured(self) -> str:
        """Why it has no figure, one sentence: the first reason with the line of a log that tells most, or what the
        meter says; empty where it is measured.
        """
        if self.outcome == "measured":
            return ""
        if self.outcome == "ran":
            return next((each for each in self.remarks if each.startswith("the meter")), "it measures nothing")
        reason = next(iter(self.reasons), f"the run is {self.outcome}")
        return f"{reason}; {self.log}" if self.log and self.log not in reason else reason


ProvenValue = float | int | str | bool | None
RungState = Literal["passed", "failed", "not applicable"]

REQUIRED = ("devices", "allreduce-1", "result")  # rungs without which a record proves nothing
BETWEEN_GPUS = "allreduce-n"  # the rung that proves NCCL between GPUs


class ProvenGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU as its driver names it."""

    uuid: str
    name: str


class RungRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rung of the ladder.

    Attributes:
        reason: why it failed or does not apply; empty where it passed.
        label: what its figures are worth less than a claim for: ``demonstration ...``, ``pretend: CPU``; else empty.
        figures: by name, with the unit in the name; only of what passed.
        proven: what the verdicts of its jobs prove, one sentence each.
        gpus, versions: what the rung on devices saw; else empty.
        inputs: key of all that went into it: jobs, programs, image or environment, GPUs.
        runs: directories of its jobs.
        attempt: how often it was begun anew, from 1 on.
        finished: Unix time, seconds.
    """

    rung: str
    state: RungState
    reason: str = ""
    label: str = ""
    figures: dict[str, ProvenValue] = {}
    proven: tuple[str, ...] = ()
    gpus: tuple[ProvenGpu, ...] = ()
    versions: dict[str, str] = {}
    inputs: str = ""
    runs: tuple[str, ...] = ()
    attempt: int = 1
    finished: float = 0.0


class ProofRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one climb of the ladder has proven.

    Attributes:
        date: of the last rung, ISO 8601, UTC.
        pretend: on processors; such a record proves nothing of GPUs.
        quick: with short measurements: its figures are demonstrations.
        site, runtime: of its jobs.
        image: the pinned image or environment.
        program: hash of the launcher, the recipes and the ladder.
        driver: NVIDIA's version. gpus: those of the node that the ladder used.
        versions: of torch, CUDA, NCCL, Horovod and what started the ranks, by name.
        digest: SHA-256 of the rest, hex: a record that was edited by hand does not fit it.
    """

    date: str
    pretend: bool
    quick: bool
    site: str
    runtime: str
    image: str
    program: str
    driver: str
    gpus: tuple[ProvenGpu, ...]
    versions: dict[str, str]
    rungs: tuple[RungRecord, ...]
    schema: Literal["1"] = "1"
    digest: str = ""

    def state_of(self, rung: str) -> RungState | None:
        """How the rung of that name ended; None where it was not tried."""
        return next((each.state for each in self.rungs if each.rung == rung), None)
