"""Site detection: ask a live cluster within a time limit, read its answers (pure), and write a site file."""

from __future__ import annotations

from runner.sites.detection import host
from runner.sites.detection.cluster import Detected, detect
from runner.sites.detection.compare import differences
from runner.sites.detection.draft import draft

__all__ = ["Detected", "detect", "differences", "draft", "host"]
