"""The tables of docs/proofs.md and README.md, as ``make proofs`` writes them from runner/sites/proofs.yaml, and that of
docs/launchers.md, from the rows of its suite.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from runner.sites.proofs import ProvenPath, RecordedRun, recorded
from tests.support.launcher_table import page_rows

CHECKOUT = Path(__file__).parents[2]
PAGES = ("docs/proofs.md", "docs/launchers.md", "README.md")
ALWAYS = "make test"


def rendered(page: str) -> str:
    """The page's text with each table as the record has it."""
    proofs = recorded()
    tables = {
        "runs": table("date path versions command result", (run_row(run) for run in proofs.runs)),
        "ways": table(
            "site runtime wireup state besides",
            ((way.site, way.runtime, way.wireup, way.state, way.besides) for way in proofs.ways),
        ),
        "launchers": table("start node nodes", page_rows()),
        "unproven": "".join(f"- {row.path}\n" for row in proofs.paths if not row.proofs),
        "paths": table("path state", ((row.path, state(row, proofs.runs_by_id())) for row in proofs.paths)),
    }
    return re.sub(
        r"<!-- (\w+) -->\n.*?<!-- end -->",
        lambda match: f"<!-- {match[1]} -->\n{tables[match[1]]}<!-- end -->",
        (CHECKOUT / page).read_text(),
        flags=re.DOTALL,
    )


def table(heads: str, rows: Iterable[tuple[str, ...]]) -> str:
    names = heads.split()
    cells = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def run_row(run: RecordedRun) -> tuple[str, ...]:
    result = f"{run.result}; repeated in every `{ALWAYS}`" if run.suite == ALWAYS else run.result
    return run.date, run.path, run.versions, run.command, result


def state(row: ProvenPath, runs: dict[str, RecordedRun]) -> str:
    """Proven, by the run that is repeated most, or UNPROVEN."""
    unproven = ": ".join(part for part in ("UNPROVEN", row.unproven) if part)
    if not row.proofs:
        return "; ".join(part for part in (unproven, row.note) if part)
    run = max((runs[name] for name in row.proofs), key=lambda run: (run.suite == ALWAYS, run.date))
    said = f"proven on {run.date}" + (f" (`{run.suite}`)" if run.suite else "")
    proven = f"proven, in every `{ALWAYS}`" if run.suite == ALWAYS else said
    return "; ".join(part for part in (proven, unproven if row.unproven else "", row.note) if part)


if __name__ == "__main__":
    for name in PAGES:
        (CHECKOUT / name).write_text(rendered(name))
