"""gpu-runner from Python: ``from runner import submit, runs``; all of it: ``from runner.api import ...``.

docs/python.md is the page on it.
"""

from runner.api.jobs import CheckRefusedError, Run, runs, submit
from runner.api.studies import Study, bundle, compare, expect, report, scale, verify
from runner.preparation.options import Options

__all__ = [
    "CheckRefusedError",
    "Options",
    "Run",
    "Study",
    "bundle",
    "compare",
    "expect",
    "report",
    "runs",
    "scale",
    "submit",
    "verify",
]
