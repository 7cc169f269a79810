"""Runs as ``export`` gives them to other programs. Figures are there only where a run is measured."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from runner.model.figure import FigureKeys
from runner.model.study import Loss, PointFacts
from runner.model.verdict import Outcome, RunArm

Time = Annotated[datetime, msgspec.Meta(tz=True)]
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
        batch_per_gpu: samples of a rank in a step.
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
        redacted: file -> SHA-256 of what it was before secrets were taken out of it.
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
    """

    study: str
    runs: dict[str, str]
    points: tuple[PointFacts, ...]
    losses: tuple[Loss, ...]
    gaps: tuple[str, ...] = ()


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
