"""What a bundle says of itself (``data/bundle.json``), and what its verification gives."""

from __future__ import annotations

from typing import Literal

import msgspec

from runner.model.figure import FigureKeys
from runner.model.study import Loss, PointFacts
from runner.model.verdict import RunArm


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
