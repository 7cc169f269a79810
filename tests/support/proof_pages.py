"""The tables of pages, as ``make proofs`` writes them: of docs/proofs.md and README.md from runner/sites/proofs.yaml,
of docs/launchers.md from the rows of its suite, of docs/failures.md from the catalogue and the exit codes.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, takewhile
from pathlib import Path

from runner.diagnosis.catalogue import FAILURES, Failure
from runner.model.exit_codes import TABLE
from runner.sites.proofs import ProvenWay, RecordedRun, recorded
from tests.support.launcher_table import page_lines

CHECKOUT = Path(__file__).parents[2]
PAGES = ("docs/proofs.md", "docs/launchers.md", "docs/failures.md", "README.md")
EXITS = {entry.name: entry for entry in TABLE if entry.source != "environment script"}


def rendered(page: str) -> str:
    """The page's text with each table as the record has it."""
    proofs = recorded()
    tables = {
        "ways": "".join(way_lines(proofs.ways)),
        "failures": "".join(failure_lines()),
        "exits": "".join(exit_lines()),
        "launchers": "".join(page_lines()),
        "unproven": "".join(f"- {what}\n" for what in proofs.unproven),
    }
    for about in {run.about for run in proofs.runs}:
        tables[about] = "".join(run_line(run) for run in proofs.runs if run.about == about)
    return re.sub(
        r"<!-- (\w+) -->\n.*?<!-- end -->",
        lambda match: f"<!-- {match[1]} -->\n{tables[match[1]]}<!-- end -->",
        (CHECKOUT / page).read_text(),
        flags=re.DOTALL,
    )


def run_line(run: RecordedRun) -> str:
    suite = f"`{run.suite}`" if run.suite and run.suite not in run.command else ""
    versions = f" ({run.versions})" if run.versions else ""
    return f"- {', '.join(filter(None, (run.date, suite, run.command)))}: {run.path}{versions} → {run.result}\n"


def way_lines(ways: Iterable[ProvenWay]) -> Iterator[str]:
    """Ways that differ only in how the ranks meet, and then runtimes with the same ways, are one line."""
    of_runtimes = [
        (site, runtime, ", ".join(way.wireup for way in alike), "; ".join(filter(None, states)))
        for (site, runtime, *states), alike in groupby(
            ways, lambda way: (way.site, way.runtime, way.state, way.besides)
        )
    ]
    for (site, wireups, state), same in groupby(of_runtimes, lambda row: (row[0], *row[2:])):
        yield f"- {site}: {', '.join(row[1] for row in same)} by {wireups}: {state}\n"


def exit_lines() -> Iterator[str]:
    """The codes of scripts that are no failure of the catalogue, those of one script together."""
    others = [each for each in TABLE if each.name not in {failure.code for failure in FAILURES}]
    for source in dict.fromkeys(each.source for each in others):
        meanings = (f"{each.code} {each.meaning}" for each in others if each.source == source)
        yield f"- {source}: {'; '.join(meanings)}\n"


def failure_lines() -> Iterator[str]:
    """The catalogue by source, each with the beginning of the sentences that its rows share; rows alike are one.
    Without the rows whose cause is unknown, which only say where to look.
    """
    for source in dict.fromkeys(failure.source for failure in FAILURES):
        failures = [each for each in FAILURES if each.source == source and not each.fix.startswith("see the r")]
        letters = zip(*(failure.cause for failure in failures), strict=False)
        shared = "".join(each[0] for each in takewhile(lambda each: len(set(each)) == 1, letters))
        start = re.sub(r"[^}):]*$", "", shared) if failures[1:] else ""
        yield f"\n**{source}**{start and ': '}{capitals(start).rstrip(':')}{start and ' ...'}\n\n"
        for (what, fix), alike in groupby(failures, key=lambda failure: failure_cells(failure, start)):
            yield f"- {', '.join(map(label, alike))}: {what and f'{what}. '}*{fix}*\n"


def failure_cells(failure: Failure, start: str) -> tuple[str, str]:
    """What the verdict says after the shared beginning, or what else is known of the failure; and the fix."""
    if re.fullmatch(r"the scheduler reports (\{\w+\})+", failure.cause):  # says no more than the row's name
        return "", capitals(failure.fix) + _who(failure)
    rest = re.sub(r"^[ :,]*(?:\((.*)\)$)?", r"\1", failure.cause.removeprefix(start))
    meaning = EXITS[failure.code].meaning if failure.code in EXITS else ""
    return capitals(rest or failure.detail or meaning), capitals(failure.fix) + _who(failure)


def _who(failure: Failure) -> str:
    return "" if failure.who == "user" or re.search(rf"\b{failure.who}\b", failure.fix) else f" ({failure.who})"


def label(failure: Failure) -> str:
    """Its code, and the number with which a script or launcher ends."""
    return f"`{failure.code}`" + (f" {EXITS[failure.code].code}" if failure.code in EXITS else "")


def capitals(sentence: str) -> str:
    """What is filled in, in capitals."""
    apart = re.sub(r"(?<=[\w}])\{", " {", sentence)
    return re.sub(r"\{(\w+)[^}]*\}", lambda match: match[1].upper(), apart)


if __name__ == "__main__":
    for name in PAGES:
        (CHECKOUT / name).write_text(rendered(name))
