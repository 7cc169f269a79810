"""What is kept of the scripts of all golden cases: FIRST whole, with its comments; one more for each kind of script;
of all others the difference from one of those.

So a comment stands in one golden, and what all scripts have in a few. Checksums of what a script reads are left out.
"""

import difflib
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from runner.model.step import JobScript
from runner.sites.loader import read_site
from tests.support import golden_jobs, golden_launches, golden_local_jobs

SCRIPTS = Path(__file__).parents[1] / "golden" / "scripts"
FIRST = "technion-16"
MAKERS: dict[str, Callable[[], JobScript]] = {
    **{name: partial(golden_jobs.script, name) for name in golden_jobs.CASES},
    **{name: partial(golden_local_jobs.script, name) for name in golden_local_jobs.CASES},
    **golden_launches.CASES,
}
_PLAIN_FIRST = sorted(
    MAKERS, key=lambda name: name in golden_jobs.CASES and golden_jobs.CASES[name][2] is not golden_jobs.PLAIN
)
_SUM = re.compile(r"^[0-9a-f]{64}  lib/", re.MULTILINE)
_COMMENT = re.compile(r"^ *#(?![A-Z!]).*\n|   # .*$", re.MULTILINE)


@cache
def script_of(name: str) -> JobScript:
    return MAKERS[name]()


@cache
def scheduler_of(site: str) -> str:
    return read_site(site).scheduler


@cache
def _kind(name: str) -> tuple[str, str]:
    """What starts the script, and its runtime."""
    if name in golden_jobs.CASES:
        site, via, _ = golden_jobs.CASES[name]
        return scheduler_of(site), via
    if name in golden_local_jobs.CASES:
        site_of_job, via, _, held = golden_local_jobs.CASES[name]
        return "held" if held else site_of_job.scheduler, via
    kind, where, *_ = name.split("-")
    return f"{kind} {'here' if where in ('local', 'hosts') else 'slurm'}", ""


@cache
def base(name: str) -> str:
    """The case that this one is shown as the difference from; empty where it is kept whole."""
    kind, via = _kind(name)
    of_kind = next(each for each in _PLAIN_FIRST if _kind(each)[0] == kind)
    of_way = next(each for each in _PLAIN_FIRST if _kind(each) == (kind, via))
    return "" if name == of_kind else of_kind if name == of_way else of_way


def golden(name: str) -> Path:
    """Where ``kept`` is kept."""
    return SCRIPTS / f"{name}.{'diff' if base(name) else 'sh'}"


def kept(name: str) -> str:
    """What the golden file of a case must hold."""
    return "".join(_difference(base(name), name)) if base(name) else _shown(name)


@cache
def _shown(name: str) -> str:
    text = _SUM.sub("SHA-256  lib/", script_of(name).text)
    return text if name == FIRST else _COMMENT.sub("", text)


def _difference(before: str, after: str) -> Iterator[str]:
    """A hunk begins with the line that both have before it."""
    old, new = (_COMMENT.sub("", _shown(name)).splitlines() for name in (before, after))
    yield f"difference from {before}\n"
    for what, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what != "equal":
            yield f"@@ {next(filter(None, reversed(old[:a])), '')[:100]}\n"
            yield from (f"-{line}\n" for line in old[a:b])
            yield from (f"+{line}\n" for line in new[c:d])
