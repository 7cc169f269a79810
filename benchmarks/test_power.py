"""What the tests notice: ``make bench-tests`` plants the faults of faults.yaml, ``mutants FOLDER`` random changes.

Each is planted alone in a copy of the tracked files, and only the tests that concern it run there. ``killed``: a test
failed. ``survived``: none did. ``broken``: pytest could not run them, which proves nothing.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import yaml

ROOT = Path(__file__).parents[1]
OUTCOMES = {0: "survived", 1: "killed", 124: "timed out", 137: "timed out"}  # by exit code; else broken
_NEGATED = {ast.Eq: ast.NotEq, ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.In: ast.NotIn, ast.Is: ast.IsNot}
_NEAR = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
FLIPS = (_NEGATED, {new: old for old, new in _NEGATED.items()}, _NEAR)
REMOVED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Change:
    """A file's new text, and the tests that shall notice it, the last their folder; none: ``text`` says why not."""

    name: str
    file: Path
    text: str
    tests: tuple[str, ...]


def fault(row: dict[str, str], texts: dict[Path, str]) -> Change:
    """A row of faults.yaml: ``old`` stands once in the product, however its lines are broken, and becomes ``new``."""
    pattern = re.compile(r"(?<!\w)" + r"\s+".join(map(re.escape, row["old"].split())))
    places = [(file, match) for file, text in texts.items() for match in pattern.finditer(text)]
    name = f"{row['area']}: {row['id']}"
    if len(places) != 1 or not (ROOT / row["tests"]).is_dir():
        moved = f"in {len(places)} places" if places[1:] else f"{row['tests']} moved" if places else "moved"
        return Change(name, Path(), f"{moved}: rewrite this row", ())
    file, match = places[0]
    text = texts[file][: match.start()] + row["new"] + texts[file][match.end() :]
    if file.suffix == ".py":
        ast.parse(text)
    return Change(name, file, text, tests_of(row["tests"], file, " ".join(row.values())))


def tests_of(folder: str, file: Path, changed: str) -> tuple[str, ...]:
    """Tests of a folder, first the module's own and those with rare words of the change: they notice it soonest."""
    texts = {path: path.read_text("utf-8") for path in (ROOT / folder).rglob("test_*.py")}
    words = dict.fromkeys(re.findall(r"\w{4,}", f"{file.stem} {changed}"))
    weights = {word: 1 / (1 + sum(word in text for text in texts.values())) for word in words}
    rank = {
        path: (file.stem in path.stem) + sum(weights[word] for word in words if word in texts[path]) for path in texts
    }
    ordered = sorted(texts, key=lambda path: (-rank[path], len(texts[path])))
    return (*(str(path.relative_to(ROOT)) for path in ordered), folder)


def changes(tree: ast.Module) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """All mutants of a module: line, what changes there, and what changes it in the tree. Strings stay."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            for other in filter(None, (table.get(type(node.ops[0])) for table in FLIPS)):
                yield node.lineno, f"comparison by {other.__name__}", partial(node.ops.__setitem__, 0, other())
        elif isinstance(node, ast.BoolOp):
            joint = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            yield node.lineno, f"joined by {type(joint).__name__}", partial(setattr, node, "op", joint)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)
        ):
            for number in (node.value + 1, node.value - 1):
                yield node.lineno, f"{node.value} becomes {number}", partial(setattr, node, "value", number)
        elif isinstance(node, ast.Return) and node.value is not None:
            for value in (each for each in (None, True) if ast.unparse(node.value) != str(each)):
                yield node.lineno, f"returns {value}", partial(setattr, node, "value", ast.Constant(value))
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            negated = ast.UnaryOp(ast.Not(), node.test)
            yield node.lineno, "condition negated", partial(setattr, node, "test", negated)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, [])
            for place, line in enumerate(block if isinstance(block, list) else ()):
                is_text = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
                if isinstance(line, REMOVED) and not is_text:
                    yield line.lineno, "statement removed", partial(block.__setitem__, place, ast.Pass())


def mutants(file: Path, source: str, tests: str, seed: int, count: int) -> Iterator[Change]:
    """So many random mutants of a module, the same for the same seed and text."""
    sites = range(sum(1 for _ in changes(ast.parse(source))))
    for site in random.Random(f"{seed} {file.stem}").sample(sites, min(count, len(sites))):
        tree = ast.parse(source)
        line, what, change = list(changes(tree))[site]
        change()
        text = ast.unparse(ast.fix_missing_locations(tree))
        yield Change(f"{file}:{line}: {what}", file, text, tests_of(tests, file, source.splitlines()[line - 1]))


def run(planned: Sequence[Change], jobs: int, limit_s: float) -> Iterator[str]:
    """The outcome of each change, in order; so many are tried at a time, each in its own copy."""
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with ExitStack() as stack:
        copies: SimpleQueue[Path] = SimpleQueue()
        for _ in range(jobs):
            copies.put(copy := Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="power-"))))
            for name in filter(None, listed.decode().split("\0")):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        stack.callback(pool.shutdown, cancel_futures=True)
        yield from pool.map(partial(_outcome, copies, limit_s), range(1, len(planned) + 1), planned)


def _outcome(copies: SimpleQueue[Path], limit_s: float, number: int, change: Change) -> str:
    if not change.tests:
        return change.text
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    copy = copies.get()
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(copy)}
    environment["CIRRUS_CI"] = "true"  # Hypothesis then draws the same examples each time, without a time limit
    command = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header")
    kept = (copy / change.file).read_text("utf-8")
    try:
        (copy / change.file).write_text(change.text, "utf-8")
        # No two changes share a time, so that none runs as another's bytecode.
        os.utime(copy / change.file, (number, number))
        limited = ("timeout", "--kill-after=5", str(limit_s), *command, *(change.tests[:-1] or change.tests))
        done = subprocess.run(limited, cwd=copy, env=environment, capture_output=True, check=False)
        return OUTCOMES.get(done.returncode, "broken")
    finally:
        (copy / change.file).write_text(kept, "utf-8")
        copies.put(copy)


def main() -> None:
    """Plant the faults, or mutants. Exit code 1: not every fault is killed, or tests fail without any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("faults", "mutants"))
    parser.add_argument("folder", nargs="?", default="runner", help="of the mutants, such as runner/jobs")
    parser.add_argument("--modules", nargs="+", help="names in the folder; all by default")
    parser.add_argument("--tests", help="of the folder; tests/unit/NAME by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="mutants of each module")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for the tests of one change")
    options = parser.parse_args()
    product = (file for top in ("runner", "recipes/lib") for file in sorted((ROOT / top).rglob("*.*")))
    texts = {file.relative_to(ROOT): file.read_text("utf-8") for file in product if file.suffix in (".py", ".sh")}
    if options.what == "faults":
        planned = [fault(row, texts) for row in yaml.safe_load((ROOT / "benchmarks/faults.yaml").read_text("utf-8"))]
    else:
        tests = options.tests or str(Path("tests/unit", *Path(options.folder).parts[1:2]))
        files = [file for file in texts if file.is_relative_to(options.folder) and file.suffix == ".py"]
        files = [file for file in files if file.stem in (options.modules or [file.stem])]
        planned = [each for file in files for each in mutants(file, texts[file], tests, options.seed, options.count)]
    folders = {change.tests[-1:]: change.file for change in planned if change.tests}
    unchanged = [Change("", file, texts[file], tests) for tests, file in folders.items()]
    outcomes = run([*unchanged, *planned], options.jobs, options.limit)
    if failing := [change.tests[0] for change in unchanged if next(outcomes) != "survived"]:
        raise SystemExit(f"without any change there are failures in {', '.join(failing)}")
    results = []
    for change, result in zip(planned, outcomes, strict=True):
        print(f"{result:10} {change.name}", flush=True)
        results.append(result)
    if options.what == "faults":
        print(f"{results.count('killed')} of {len(planned)} killed")
        raise SystemExit(results.count("killed") < len(planned))
    print("\nmodule,mutants,killed,of these timed out,survived,broken,share killed")
    pairs = list(zip((change.file for change in planned), results, strict=True))
    for path in (*files, Path(options.folder)):
        of = Counter(result for file, result in pairs if file.is_relative_to(path))
        killed = of["killed"] + of["timed out"]  # a mutant that hangs is noticed, too
        share = f"{100 * killed / max(killed + of['survived'], 1):.0f} %"
        print(path, of.total(), killed, of["timed out"], of["survived"], of["broken"], share, sep=",")


if __name__ == "__main__":
    main()
