"""What commands print, write and return: ``python -m benchmarks.record_commands OUT.json [--against OLD.json]``.

For large changes of the code that shall change nothing else: record the version before them, then what it has become,
and read the differences. ``--checkout DIR`` runs the code of another checkout. The commands are those of README.md and
docs/ in a harmless form, each verb's help, each site with each of its runtimes, and what is written by hand below, in
the home of a user with the documents of ``tests/fixtures``; with ``--against`` those of OLD.json, too. No engine,
scheduler or network is used. Two records compare only if one machine and one Python made them.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from difflib import unified_diff
from pathlib import Path
from typing import Any

from tests.support.old_documents import CHECKOUT, lay_out

WORKERS, LIMIT_S = 2, 120  # at once; seconds of one command
CLUSTERS = ("alpha", "neuron", "perlmutter", "polaris", "technion")
RECIPE = Path("tests/support/timed_recipe")  # of the documents' runs
SUPERBLOCK = b"hsqs" + bytes(24) + b"\4" + bytes(67)  # all that a dry run reads of a squashfs image
# What the words of the pages stand for.
PLACES = {
    "RUN": "good", "[RUN]": "good", "$run": "good", "RUN...": "good again", "[RUN|STUDY]": "whole", "STUDY": "whole",
    "STUDY|RUN...": "whole", "STUDY1": "whole", "STUDY2": "together", "A": "plain", "B": "again", "IMAGE": "ada/tiny:1",
    "A1,A2,A3": "plain", "B1,B2,B3": "again", "DIR": "made", "F": "f.tar", "NAME": "probe", "figures.tar": "f.tar",
}  # fmt: skip
DRY = ("submit", "scale", "rerun", "run", "env create")
READING = (
    "status", "show", "diff", "compare", "export", "report", "verify", "logs", "wait", "cancel", "expect", "schema",
    "completion", "recipe", "site", "images list", "images show", "images verify", "images prune",
)  # fmt: skip
READ = """
cancel good / cancel whole / compare good plain / compare plain again / compare plain again --fail-below 1.5
compare plain failed / compare whole together / diff own probe / diff plain good / diff plain nosuch
expect --site polaris --recipe ddp-pytorch --gpus 64 / expect --site technion --gpus 1,16 / export failed --format csv
export good --bundle made.tar / export good --format mllog / export good --format openmetrics
export good --format reframe / export good again --format csv / export good again --format json
export probe --bundle made.tar / export whole --bundle made.tar / images list / images prune --unused --dry-run
images show ada/tiny:1 / images show nosuch / images verify / recipe check nosuch.py / recipe check train.py
recipe list / recipe show nosuch / report failed -o made / report good again -o made / report part -o made
report together -o made / report whole -o made / rerun good --gpus 4 --dry-run / rerun nosuch / rerun own --dry-run
rerun plain --dry-run / scale --resume part --dry-run / scale --resume whole --dry-run / site check box-here
site detect / site list / site reference / site show box-here / site show nosuch / status / status --all
status --last 3 / status --name whole --all / status --site local --state failed / status --state fine
status --state not-submitted / status nosuch / verify bundles/signed.tar
verify bundles/signed.tar --allowed-signers bundles/allowed_signers / verify bundles/whole.tar
verify bundles/whole.tar --allowed-signers bundles/allowed_signers / verify nosuch.tar
"""
PLANS = """
--bind none / --cpus-per-gpu 2 / --env "A B=1" / --env A / --env NOTE=x --env -LANG / --force nosuch / --gpu-type a100
--gpus 0 / --gpus 100000 / --image Torch:1 / --image x.sif / --mount /a / --mount /tmp:/data:ro / --mount /tmp:/results
--name "a b" / --nodes 1 / --nodes 4 / --nsys 0 / --nsys 99 / --queue nosuch / --recipe ./timed_recipe / --recipe nosuch
--recipe probe -- --sleep "a b" "it's" / --runtime native / --runtime nosuch / --set model
--set model=resnet101 --set batch-size=64 / --set modle=x / --snapshot -- python train.py / --stage / --time 1:00:00
--time soon / --wireup mpich / --wireup own -- python train.py / --wireup pmix
--wireup torchrun --meter -- python train.py / -S array=0-3 / -S dependency=afterok:7
"""
OTHER = """
--version / box up --name ../x / build nosuch / build pytorch --definition / build pytorch --engine unix:///no
build tensorflow --definition --base x:1 / completion bash / completion nosuch / convert docker-archive:nosuch.tar
convert x --engine unix:///no / env create hvd --site local --kind conda --dry-run / logs failed --all
logs good --rank 7 / logs whole / ls / nosuch / prove --pretend-cpu --again devcies / prove --site box
recipe new made -- python train.py / rerun probe --dry-run -- --sleep 1 / run --gpus 1 --site local
scale --gpus 0 --site technion / scale --gpus 1,2 --budget 0 --site technion --image image.sqsh
scale --gpus 1,2 --site polaris --same-nodes --dry-run
scale --gpus 1,2 --site technion --same-nodes --arms full,solo --image image.sqsh --dry-run
scale --gpus 1,2 --site technion --set batch-size=64,128 --strong --image image.sqsh --dry-run / schema
show own --diff / submit / submit --gpus 1 --site nosuch / submit --gpus 16 --site technion --image image.sqsh
submit --gpus 2 / submit --gpus 2 --hosts a:1,b:1 --dry-run
submit --gpus 2 --site local --runtime native --dry-run -- python train.py
"""


def hand_made(text: str, before: str = "") -> Iterator[str]:
    yield from (f"{before} {words}".strip() for words in re.split(r" / |\n", text.strip()))


def of_pages(checkout: Path) -> Iterator[str]:
    """Every command line of the pages, as it stands there, without what a shell would do with its output."""
    called = re.compile(r"^ {4,}(?:python -m runner|gpu-runner) (.*)|`(?:python -m runner|gpu-runner) ([^`]*)`", re.M)
    for page in (checkout / "README.md", *sorted((checkout / "docs").rglob("*.md"))):
        for block, inline in called.findall(page.read_text().replace("\\\n", " ")):
            yield re.split(r" +#| +\| | +>", " ".join((block or inline).split()))[0]


def harmless(line: str) -> Iterator[str]:
    """What is run of a command line of the pages; nothing if it has no harmless form."""
    words = [part for word in shlex.split(line) for part in (PLACES[word].split() if word in PLACES else [word])]
    verb = " ".join(words[:2]) if words[0] in ("env", "images") else words[0]
    if verb in DRY:
        end = words.index("--") if "--" in words else len(words)
        own, anew = words[:end], verb != "rerun" and "--resume" not in words
        words[end:end] = [] if {"--dry-run", "--help"} & set(own) else ["--dry-run"]
        words[end:end] = ["--scratch", "scratch"] if anew and "--scratch" not in own else []
    if "..." in words or (verb not in (*DRY, *READING) and "--help" not in words):
        return
    yield from (shlex.join(words).replace("SITE", site) for site in (CLUSTERS if "SITE" in words else ("",)))


class Home:
    """A user's home, where a command is run, and what it says and writes there is made comparable."""

    def __init__(self, path: Path, checkout: Path) -> None:
        self.path, self.checkout, self.began_s = path, checkout, time.time()
        own = path / "gpu-runner"
        shutil.copytree(CHECKOUT / RECIPE, own / RECIPE, ignore=shutil.ignore_patterns("__pycache__"))
        self.variables = lay_out("5ada5d4", path, own)
        shutil.copytree(own / RECIPE, path / "timed_recipe")
        shutil.copy(CHECKOUT / "tests/support/training_scripts/correct/c01.py", path / "train.py")
        shutil.copy(path / "state/sites/box-here.yaml", path / "ours.yaml")
        (path / "image.sqsh").write_bytes(SUPERBLOCK)
        (path / "Miniforge3-Linux-x86_64.sh").touch()
        (path / "cache").mkdir()
        self.before = {each.name for each in path.iterdir()}
        self.run(["status", "--all"])  # judges what is not yet judged

    def run(self, words: Iterable[str]) -> dict[str, Any]:
        env = {
            **self.variables, "HOME": str(self.path), "USER": "ada", "LOGNAME": "ada", "TZ": "UTC", "LANG": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "COLUMNS": "100", "DOCKER_HOST": "unix:///no",
            "PYTHONPATH": str(self.checkout), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        try:
            done = subprocess.run(
                ["python", "-m", "runner", *words], env=env, cwd=self.path, capture_output=True, timeout=LIMIT_S,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"exit": f"none after {LIMIT_S} s", "out": "", "err": "", "wrote": self.taken()}
        out, err = (self.plain(each.decode(errors="replace")) for each in (done.stdout, done.stderr))
        return {"exit": done.returncode, "out": out, "err": err, "wrote": self.taken()}

    def taken(self) -> dict[str, str]:
        """The files that were written into the home, but for the launcher's; they are removed."""
        wrote = {}
        for top in sorted(each for each in self.path.iterdir() if each.name not in self.before):
            for path in (each for each in (top, *sorted(top.rglob("*"))) if each.is_file() and "lib" not in each.parts):
                text = "" if path.suffix in (".png", ".tar") else path.read_text(errors="replace")
                wrote[self.plain(path.relative_to(self.path).as_posix())] = self.plain(text)
            shutil.rmtree(top) if top.is_dir() else top.unlink()
        return wrote

    def plain(self, text: str) -> str:
        """Without places, and without what depends on when it is said."""
        for place, name in ((self.path, "HOME"), (sys.prefix, "PYTHON"), (self.checkout, "CHECKOUT")):
            text = text.replace(str(place), name)
        moments = r"\d{4}-\d\d-\d\d[T ][\d:]{5,8}(Z| ?[+-][\d:]{4,5}| UTC)?|\b\d{8}-\d{6}\b"
        hashes = r'(?<![:\w])[0-9a-f]{64}\b|(?<=SOURCE=)[0-9a-f]{40}|(?<="commit": ")[0-9a-f]{40}'
        text = re.sub(hashes, "HASH", re.sub(moments, self._moment, text))  # of scripts, bundles, the checkout
        text = re.sub(r"^(\d{8}-\d{6}-.*?) +\d+ (s|min|h|d)(?=  |$)", r"\1 AGE", text, flags=re.M)
        text = re.sub(r" +AGE\b", " AGE", re.sub(r"\d+ (s|min|h|d) old", "AGE old", text))
        return re.sub(r'"(age|submitted)_s": ?[\d.]+', r'"\1_s": 0', re.sub(r"\[ *\d+\.\d s\]", "[TIME]", text))

    def _moment(self, found: re.Match[str]) -> str:
        digits = re.sub(r"\D", "", found[0])[:14].ljust(14, "0")
        at = datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc)
        return "NOW" if at.timestamp() > self.began_s - 60 else found[0]


def helps(home: Home, *verb: str) -> Iterator[str]:
    yield shlex.join([*verb, "--help"])
    listed = home.run([*verb, "--help"])["out"].partition("\nCommands:\n")[2]
    for name in re.findall(r"^  ([a-z-]+)\b", listed, re.M):
        yield from helps(home, *verb, name)


def combinations(home: Home) -> Iterator[str]:
    """Every site with each of its runtimes, as the version that is recorded has them, for programs of each kind."""
    for site in (*CLUSTERS, "box", "slurm", "local", "hosts"):
        where = " --gpus 16" + (" --hosts nodea:8,nodeb:8" if site == "hosts" else f" --site {site}")
        for runtime in json.loads(home.run(["site", "show", site, "--json"])["out"])["result"]["runtimes"]:
            for program in ("", " --recipe probe", " --recipe ddp-pytorch --wireup torchrun", " -- python a.py 'b c'"):
                yield f"submit{where} --runtime {runtime} --scratch scratch --dry-run{program}"


def commands(home: Home, lines: Iterable[str]) -> Iterator[str]:
    yield from helps(home)
    yield from hand_made(OTHER)
    for line in hand_made(READ):
        yield from (line, f"{line} --json")
    for path in sorted((home.path / "jobs").glob("2*")):
        for verb in ("status", "show", "wait", "logs", "cancel"):
            yield from (f"{verb} {path.name}", f"{verb} {path.name} --json")
    yield from hand_made(PLANS, "submit --gpus 16 --site technion --dry-run --image image.sqsh")
    yield from hand_made(PLANS, "submit --gpus 8 --site polaris --scratch scratch --dry-run")
    yield from combinations(home)
    for line in lines:
        yield from harmless(line)


def record(checkout: Path, more: Iterable[str]) -> dict[str, Any]:
    """Run all commands, and those of ``more``; says which lines of the pages have no harmless form."""
    lines = list(dict.fromkeys(of_pages(checkout)))
    with tempfile.TemporaryDirectory(prefix="record-") as scratch, ThreadPoolExecutor(WORKERS) as pool:
        homes = [Home(Path(scratch) / f"home{each}", checkout) for each in range(WORKERS)]
        found: dict[str, Any] = dict.fromkeys((*commands(homes[0], lines), *more))

        def part(place: int) -> None:
            for key in list(found)[place::WORKERS]:
                found[key] = homes[place].run(shlex.split(key))

        list(pool.map(part, range(WORKERS)))
    return {"left_out": [line for line in lines if not list(harmless(line))], "commands": found}


def lines_of(said: dict[str, Any]) -> list[str]:
    """Lines to compare: a JSON document by its keys."""
    parts = {"standard output": said["out"], "standard error": said["err"], **said["wrote"]}
    for name, text in parts.items():
        document = text.startswith('{"schema"') and text.count("\n") < 2
        parts[name] = f"[{name}]\n" + (json.dumps(json.loads(text), indent=1) if document else text)
    return [f"exit {said['exit']}", *"\n".join(parts.values()).splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--against", type=Path, metavar="OLD.json")
    parser.add_argument("--checkout", type=Path, default=CHECKOUT)
    given = parser.parse_args()
    began_s = time.monotonic()
    old = json.loads(given.against.read_text())["commands"] if given.against else {}
    new = record(given.checkout.resolve(), old)
    given.out.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n")
    changed = [key for key in old if old[key] != new["commands"][key]]
    for key in changed:
        before, now = lines_of(old[key]), lines_of(new["commands"][key])
        print(*unified_diff(before, now, f"before: {key}", f"now: {key}", lineterm=""), sep="\n", end="\n\n")
    counts = f"{len(new['commands'])} commands, {len(new['left_out'])} lines of pages left out"
    print(f"{counts}; {len(changed)} of {len(old)} earlier ones differ; {time.monotonic() - began_s:.0f} s")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
