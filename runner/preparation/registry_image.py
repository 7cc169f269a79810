"""Images of runtimes that keep their own: is one on the site's shelf, and does it have the mount points of a job?

Asked of the site's own commands on the machine that submits; where one is not there, or does not answer, nothing is
known and nothing is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.core import process
from runner.core.errors import RunnerError
from runner.core.process import Completed
from runner.images import reference as references

LIMIT_S = 60.0
_MISSING = 'for d in "$@"; do [ -d "$d" ] || printf "%s\\n" "$d"; done'


def problem(runtime: str, reference: str, targets: Sequence[str]) -> tuple[str, str]:
    """Why a job could not start in the image, and the fix; empty if nothing is known against it.

    Args:
        targets: mount points that must be in the image, where the runtime makes none.
    """
    if runtime == "shifter":
        return _of_shifter(reference, targets)
    return _of_podman_hpc(reference) if runtime == "podman-hpc" else ("", "")


def _of_shifter(reference: str, targets: Sequence[str]) -> tuple[str, str]:
    found = _answer("shifterimg", "lookup", reference)
    if found is not None and (found.code or not found.out.strip()):
        return f"Shifter has no image {reference}", f"shifterimg pull {reference}"
    seen = (
        _answer("shifter", f"--image=docker:{reference}", "/bin/sh", "-c", _MISSING, "sh", *targets)
        if targets
        else None
    )
    lacking = seen.out.split() if seen is not None and not seen.code else []
    if not lacking:
        return "", ""
    return (
        f"{reference} lacks the mount points {', '.join(lacking)}, and Shifter makes none",
        f"add `RUN mkdir -p {' '.join(lacking)}` to its Dockerfile, or mount at directories that it has",
    )


def _of_podman_hpc(reference: str) -> tuple[str, str]:
    """Nodes see only what was made a squashfs on scratch: such images are read-only there."""
    found = _answer("podman-hpc", "images", "--filter", f"reference={reference}", "--format", "{{.ReadOnly}}")
    if found is None or found.code:
        return "", ""
    read_only = found.out.split()
    if not read_only:
        build = f"podman-hpc build -t {reference} ..., then podman-hpc migrate {reference}"
        fix = build if references.is_local(reference) else f"podman-hpc pull {reference}"
        return f"podman-hpc has no image {reference}", fix
    if "true" not in read_only:
        return f"the nodes do not see {reference}: it is on this machine alone", f"podman-hpc migrate {reference}"
    return "", ""


def _answer(program: str, *words: str) -> Completed | None:
    """What a command says; None where it is not here, or does not answer in time."""
    if process.find(program) is None:
        return None
    try:
        return process.run((program, *words), timeout_s=LIMIT_S, check=False)
    except RunnerError:
        return None
