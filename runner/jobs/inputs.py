"""What launches ran with, as their ranks recorded it, and in what they differ: variables, processors, files, packages.

All counts but what is known to differ between jobs of one program. What a run has not recorded tells nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from runner.jobs.directory import Run
from runner.model.backends import job_variables
from runner.model.records import ExitRecord, Inputs

# What a script names a launch by, as a variable or an argument.
_OF_A_LAUNCH = (
    r"WANDB_(NAME|RUN\w*|GROUP|DIR|NOTES|TAGS)|(RUN|EXP|EXPERIMENT|JOB)_(NAME|ID|DIR)|(\w+_)?(PORT|SEED)"
    r"|(OUT(PUT)?|LOG(GING)?|SAVE)_?DIR"
)
_PASSING = Path(__file__).with_name("passing_variables.txt")
# What starters set by the number of ranks, or have in their arguments.
_OF_A_STARTER = re.compile(
    r"sys\.argv|OMP_NUM_THREADS|(TORCH_)?NCCL_ASYNC\w*|TORCH_(NCCL|FR|DIST)\w*|(ACCELERATE|FSDP|DEEPSPEED)_\w*"
)
_SETTINGS = (".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".env")
_EDITED = (*_SETTINGS, ".py", ".gin")  # by a user, where no Python wrote it; others may be made in C
_EVERY_PACKAGE = "*"  # among packages: digests of the names of all (gpu_runner_inside.inputs)
_OF_RANKS = (".py", ".txt", ".xml")  # shards, and modules that only several ranks need
_DATA = (".csv", ".jsonl", ".tsv")  # in an order that may be random
_FEW = 8  # files that not all launches read; more are data
_SKEW_S = 0.1  # of a file server's clock; what a user changed before a launch is older
_TEXT, _STATE = "text ", " state "  # in what stands for a content; of large packages a size stands before the latter


@dataclass(frozen=True)
class RanWith:
    """A launch: what its ranks recorded.

    Attributes:
        given, variables: name -> digests, of all ranks: what their programs were started with, and what the processes
            with the figure had. cpus: processors of a rank.
        first: of rank 0. began_s, ended_s: of that, Unix time; 0 where unknown.
        beside: launches that are not compared with it, and may have made what it read.
    """

    given: Mapping[str, frozenset[str]]
    variables: Mapping[str, frozenset[str]]
    cpus: frozenset[int]
    first: Inputs
    began_s: float
    ended_s: float
    beside: Sequence[RanWith] = ()

    @property
    def python(self) -> Collection[str]:
        """Files that may be of Python that it imported, read or began with."""
        return {*self.first.modules, *self.first.read, *self.first.sources}

    def wrote(self, name: str) -> bool:
        """Whether its program wrote this file, or what it started did."""
        changed_s = self.first.read.get(name, ("", 0.0))[1]
        return name in self.first.written or 0 < self.began_s - _SKEW_S <= changed_s <= self.ended_s + _SKEW_S


Named = Callable[[Sequence[RanWith]], list[str]]


def is_passing(variable: str) -> bool:
    """Whether a variable is one of a single job, rank, node or login."""
    return _passing().fullmatch(variable) is not None or variable.startswith(job_variables())


@cache
def _passing() -> re.Pattern[str]:
    lines = _PASSING.read_text("utf-8").splitlines()
    return re.compile("|".join((*" ".join(line for line in lines if line[:1] != "#").split(), _OF_A_LAUNCH)))


def without_names(words: Iterable[str]) -> list[str]:
    """A command line without seeds, ports, and what names the launch: ``--seed 1``, ``run_name=a``."""
    kept, before = [], ""
    for word in words:
        name, given, _ = word.partition("=")
        is_value = not given and before[:1] == "-" and word[:1] != "-" and names_a_launch(before)
        kept.append("#" if is_value else f"{name}=#" if given and names_a_launch(name) else word)
        before = word
    return kept


def names_a_launch(option: str) -> bool:
    """Whether an option or variable has a seed, a port, or a name of the launch or of where it writes."""
    return re.fullmatch(_OF_A_LAUNCH, re.sub("[-.]", "_", option.lstrip("-+")).upper()) is not None


def ran_with(run: Run) -> RanWith | None:
    """What a launch ran with; None where it has not recorded it."""
    exits = run.records.records("exit", ExitRecord)
    every = {rank: each.program for rank, each in exits.items() if each.program is not None}
    if 0 not in every:
        return None
    given: defaultdict[str, set[str]] = defaultdict(set)
    variables: defaultdict[str, set[str]] = defaultdict(set)
    for each in every.values():
        for name, digest in each.given.items():
            given[name].add(digest)
        for name, value in (each.given | each.variables).items():
            if value is not None:
                variables[name].add(value)
    return RanWith(
        {name: frozenset(each) for name, each in given.items() if not is_passing(name)},
        {name: frozenset(each) for name, each in variables.items() if not is_passing(name)},
        frozenset(each.cpus for each in every.values()),
        every[0],
        exits[0].started_s or 0.0,
        exits[0].ended_s,
    )


def other_variables(runs: Sequence[RanWith]) -> list[str]:
    """Variables that launches of one size have with several values, or only some of them."""
    return _unlike([each.variables for each in runs], whole=True)


def other_given(runs: Sequence[RanWith]) -> list[str]:
    """The same of launches of several sizes: without what a starter sets by the number of ranks, and what ranks have
    values of their own of.
    """
    names = {*_unlike([each.given for each in runs], whole=True)}
    names |= {name for name in other_variables(runs) if not _OF_A_STARTER.fullmatch(name)}
    own = {name for each in runs for every in (each.given, each.variables) for name in every if len(every[name]) > 1}
    return sorted(names - own)


def other_processors(runs: Sequence[RanWith]) -> list[str]:
    """How many a rank of each launch has, where that is not the same."""
    numbers = {each.cpus for each in runs}
    return sorted(map(str, frozenset().union(*numbers)), key=int) if len(numbers) > 1 else []


def other_modules(runs: Sequence[RanWith]) -> list[str]:
    """Modules of the program's own that several launches imported, with several contents, unless each program wrote
    its own. What lies elsewhere may be another copy of it, as of a package that is installed as a link to its sources.
    """
    names = _unlike([each.first.modules for each in runs])
    own = [each for each in names if not all(each in ran.first.written for ran in runs if each in ran.first.modules)]
    copies: defaultdict[str, set[frozenset[str]]] = defaultdict(set)
    for each in runs:
        elsewhere: defaultdict[str, set[str]] = defaultdict(set)
        for name, content in each.first.modules.items():
            if name.startswith("/") and any(name not in other.first.modules for other in runs):
                elsewhere[name.rpartition("/")[2]].add(content)
        for name, contents in elsewhere.items():
            copies[name].add(frozenset(contents))
    return own + sorted(name for name, each in copies.items() if len(each) > 1)


def other_sources(runs: Sequence[RanWith]) -> list[str]:
    """Files that programs began with, with several contents, or that some did not have; unless each program that had
    one wrote it, or it was not there before the first did, as of a script that writes another.
    """
    recorded = [each.first.sources for each in runs if each.first.sources]
    others: list[str] = []
    for name in sorted({name for each in recorded for name in each}):
        having = [each[name] for each in recorded if name in each]
        digests = {digest for digest, _ in having if digest}
        if digests and (len(digests) > 1 or len(having) < len(recorded)) and not all(written for _, written in having):
            others.append(name)
    return others


def other_packages(runs: Sequence[RanWith]) -> list[str]:
    """Installed packages of which several launches imported a module, and not the same, or that only some imported,
    where others were installed. That all modules have another time of change is no other package: it was installed
    anew, as jobs do on a node's own disk.
    """
    others: list[str] = []
    installed = [each.first.installed for each in runs if each.first.installed]
    is_as_before = len({tuple(sorted(each.get(_EVERY_PACKAGE, {}).items())) for each in installed}) < 2
    for package in sorted({name for each in installed for name in each} - {_EVERY_PACKAGE}):
        if not is_as_before and any(package not in each for each in installed):
            others.append(package)
            continue
        marks: defaultdict[str, list[str]] = defaultdict(list)
        for each in runs:
            for module, mark in each.first.installed.get(package, {}).items():
                marks[module].append(mark)
        # Whether it was large depends on what else of it was imported.
        shared = [e for e in marks.values() if len(e) > 1 and len({_STATE in f" {mark}" for mark in e}) == 1]
        changed = [each for each in shared if len({*each}) > 1]
        is_another = any(len({mark.partition(_STATE)[0] for mark in each}) > 1 for each in changed)
        others += [package] if is_another or 0 < len(changed) < len(shared) else []
    return others


def other_files(runs: Sequence[RanWith], *, sizes: bool = False) -> list[str]:
    """Files that launches read with several contents, unless each of their programs wrote its own; and texts that some
    did not read, where these are few, and none of the launches made them. ``sizes``: launches of several may have made
    other ones, such as a batch for all ranks, also before their programs began, and have shards and modules of theirs.
    What the launch alone read that made a file for all, such as a cache, is data.
    """
    others: list[str] = []
    unshared: list[str] = []
    makers = [*runs, *(each for ran in runs for each in ran.beside)]
    for name in sorted({name for each in runs for name in each.first.read}):
        having = [each for each in runs if name in each.first.read]
        digests = {each.first.read[name][0] for each in having}
        changed_s = having[0].first.read[name][1]
        if "" in digests:  # of a large one, which is data
            continue
        if len(digests) > 1 and not any(name in each.first.modules for each in having):
            # Within a size a text that a wrapper made is a setting; others, such as checkpoints, are written in C.
            is_text = any(digest.startswith(_TEXT) for digest in digests)
            own = (name in each.first.written if is_text and not sizes else each.wrote(name) for each in having)
            others += [] if all(own) else [name]
        elif any(name not in each.first.read and name not in each.first.modules for each in runs):
            if not digests.pop().startswith(_TEXT) or name.endswith(_DATA) or (sizes and name.endswith(_OF_RANKS)):
                continue
            # Of what a launch has made without Python's open the time tells, as of what a user has edited meanwhile.
            is_made = any(each.began_s <= changed_s <= each.ended_s for each in makers) and not name.endswith(_EDITED)
            unshared += [] if is_made or any(each.wrote(name) for each in makers) else [name]
    settings = [name for name in unshared if name.endswith(_SETTINGS)]
    is_few = 0 < len(unshared) <= _FEW and not _prepared(runs, unshared)
    return sorted(others + (unshared if is_few else settings))


def _prepared(runs: Sequence[RanWith], names: Collection[str]) -> bool:
    """Whether one launch alone read these, which are no settings, and made a file that all read as it left it."""
    readers = [each for each in runs if any(name in each.first.read for name in names)]
    if len(readers) > 1 or any(name.endswith(_SETTINGS) for name in names):
        return False
    (first,) = readers
    made = [(name, state) for name, state in first.first.read.items() if first.began_s <= state[1] <= first.ended_s]
    return any(all(each.first.read.get(name) == state for each in runs) for name, state in made)


def _unlike(runs: Collection[Mapping[str, object]], *, whole: bool = False) -> list[str]:
    """Names with several values; ``whole``: also those that not all have."""
    names = sorted({name for each in runs for name in each})
    return [name for name in names if len({each.get(name) for each in runs if whole or name in each}) > 1]
