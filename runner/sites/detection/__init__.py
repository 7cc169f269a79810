"""What a live cluster says of itself: asked for within a bound of time, read by pure functions, written down."""

from __future__ import annotations

from runner.sites.detection import host, pbs, slurm
from runner.sites.detection.cluster import Detected, detect
from runner.sites.detection.compare import differences
from runner.sites.detection.draft import draft

__all__ = ["Detected", "detect", "differences", "draft", "host", "pbs", "slurm"]
