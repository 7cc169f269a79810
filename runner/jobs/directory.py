"""Run directories of this user: listed, found again by their ids, and read: ``Run`` is the only reader of one."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from runner.core import files, ownership, paths
from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.jobs import seals
from runner.model.figure import Figure, OfStudy, figure_of
from runner.model.job import (
    Cancelled,
    CodeRecord,
    CommandLine,
    ExitMarker,
    JobState,
    Provenance,
    SchedulerRecord,
    Submitted,
    Sweep,
)
from runner.model.plan import Plan, PlanRecord, upgraded
from runner.model.records import Report, StartRecord
from runner.model.verdict import Verdict

if TYPE_CHECKING:
    from runner.jobs.collect import Evidence


OF_OWNER = f"whose it is can give you a bundle of it: `{PROGRAM} export --bundle FILE`"  # a fix
T = TypeVar("T")
Studies = dict[Path, OfStudy]  # that were read, by their directories

SCRIPT, PLAN, PROVENANCE, JOB = "job.sh", "plan.json", "provenance.json", "job.json"
REQUEST, COMMAND, CODE, CODE_DIFF = "request.json", "command.json", "code.json", "code.diff"
CODE_FILES = "code-files.json"  # which files the copy of the user's code had when it was made
VERSIONS = "versions"  # what programs say of themselves: on the first node; NODE behind it, or `-NODE`: on each
NODES = "nodes"  # the job's nodes, in the order in which ranks fill them
RESULT, EXIT, ENDED, CANCELLED, VERDICT = "result.json", "exit.json", "ended.json", "cancelled.json", "verdict.json"
_ORDERS = (PLAN, REQUEST, COMMAND, JOB, CODE, CODE_FILES)  # by which something is run or ended later
# Of a study or a sweep: its run directories are DIRECTORY/launches/LAUNCH/RUN.
STUDY, SWEEP, LAUNCHES, LOG = "study.json", "sweep.json", "launches", "launches.log"
CHAIN_END = "ended"  # of a chain, too: why no attempt follows; its attempts (chain.sh) write and read it
_MAY_HAVE_BEEN_SLOW = ("failed", "cancelled", "not-proven", "ran")  # also of a time limit, or its program's own
_BY_ITSELF = ("FAILED", "COMPLETED")  # an end that no scheduler has made, whatever the program's last words say
_ID = re.compile(r"\d{8}-\d{6}-(?P<name>.+)-\d+(\.\d+)?\Z")  # STAMP-NAME-RANKS, and a number where that was taken
_OF_STUDY = re.compile(rf"[^\0]*/[^/\0]+/{LAUNCHES}/g\d{{4,}}-[^/\0]+/[^/\0]+\Z")  # whatever its directory is called
_JOB_ID = re.compile(r"[A-Za-z0-9][\w.+\[\]-]{0,200}\Z", re.ASCII)  # one alone, and no option of a client
_RECORD = re.compile(r"(0|[1-9][0-9]{0,8})\.([a-z]+)\.json\Z")  # one name for each rank


def plain_job_id(text: str) -> str:
    """What a job left as its id, which a scheduler's client is given; empty where it cannot be one."""
    return text if _JOB_ID.match(text) else ""


def is_whole_id(text: str) -> bool:
    """Whether it has the form of a run's whole id."""
    return _ID.match(text) is not None


class _ClosedFileError(PermissionError):
    """A file of another user's run that this user may not read."""

    fix = OF_OWNER


class Records:
    """What the ranks of a run have left: a JSON document each, by rank and kind."""

    def __init__(self, run: files.Folder) -> None:
        self._run = run

    @property
    def starts(self) -> dict[int, StartRecord]:
        """The records of ranks that have started."""
        return self.records("start", StartRecord)

    def start(self, rank: int) -> StartRecord | None:
        """The start record of one rank."""
        return self.record(rank, "start", StartRecord)

    def report(self, rank: int) -> Report | None:
        """The report of one rank."""
        return self.record(rank, "report", Report)

    def listing(self) -> dict[str, tuple[int, ...]]:
        """The ranks that have left a record, damaged ones too, by its kind (``start``), by one look. Raises OSError:
        the directory cannot be listed.
        """
        by_kind: dict[str, list[int]] = {}
        for match in filter(None, map(_RECORD.match, self._run.names_in("ranks"))):
            by_kind.setdefault(match[2], []).append(int(match[1]))
        return {kind: tuple(sorted(ranks)) for kind, ranks in by_kind.items()}

    def record(self, rank: int, kind: str, struct: type[T], damaged: list[str] | None = None) -> T | None:
        """One record; None where there is none. What is wrong with one goes to ``damaged``, also that it is another
        rank's.
        """
        path = self._run.path / "ranks" / f"{rank}.{kind}.json"
        try:
            record = decoded(self._run.content_of(f"ranks/{path.name}"), struct)
        except OSError as error:
            if not os.path.lexists(path):
                return None
            problem = error.strerror or str(error)
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            problem = str(error)
        else:
            own = getattr(record, "rank", rank)
            if own == rank:
                return record
            problem = f"it is the record of rank {own}"
        if damaged is not None:
            damaged.append(f"{path.name}: {problem}")
        return None

    def records(
        self, kind: str, struct: type[T], ranks: Iterable[int] | None = None, damaged: list[str] | None = None
    ) -> dict[int, T]:
        """The records of a kind by rank, without those that cannot be read; ``ranks`` None: of all that have one."""
        ranks = self.listing().get(kind, ()) if ranks is None else ranks
        return {rank: record for rank in ranks if (record := self.record(rank, kind, struct, damaged)) is not None}


class _File(Generic[T]):
    """A JSON file of a run directory, as an attribute of the run: None where it is not there or not whole."""

    def __init__(self, name: str, kind: type[T]) -> None:
        self._name, self._kind = name, kind

    def __get__(self, run: Run, _owner: type[Run]) -> T | None:
        return run.read(self._name, self._kind)


class _Submission(_File[Submitted]):
    """An attempt of a chain has its job's id from the one before; as long as it has none, it counts as refused. So does
    a task of an array that has no script yet: that is what would be submitted.
    """

    def __get__(self, run: Run, owner: type[Run]) -> Submitted | None:
        record = super().__get__(run, owner)
        if record:  # a stranger's could be another server's (of PBS, ID@SERVER), or an option
            record = msgspec.structs.replace(record, job_id=plain_job_id(record.job_id))
            for name in ("place", "allocation"):
                if (named := getattr(record, name)) and not run.may_name(Path(named)):
                    record = msgspec.structs.replace(record, **{name: ""})
        if record and record.place and not (record.job_id or (Path(record.place).parent / SCRIPT).is_file()):
            return msgspec.structs.replace(record, refused=record.refused or "its array was not submitted")
        if record is None or not record.by_attempt:
            return record
        job_id = plain_job_id(run.content("job.id").decode("ascii", "replace").strip())
        return msgspec.structs.replace(record, job_id=job_id, refused="" if job_id else "this attempt was not needed")


class Run(files.Folder):
    """One run by its directory, absolute. What is read of it is shown in reports.

    Attributes:
        run_id: the directory's name. logs: where the batch script's and the ranks' output lies.
        ranks: where the rank records lie. records: what is in them.
        plan: that it was submitted with, and the codes of the checks that were overridden. code: the user's, then.
        orders: files that must be as this user's gpu-runner left them. submitted: its submission; None where that was
            cut off before the scheduler was called.
        marker: what its script left at its end. ended: what the scheduler said of that. cancelled: by whom.
    """

    orders: tuple[str, ...] = _ORDERS
    code = _File(CODE, CodeRecord)
    submitted = _Submission(JOB, Submitted)
    marker = _File(EXIT, ExitMarker)
    ended = _File(ENDED, JobState)
    cancelled = _File(CANCELLED, Cancelled)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.run_id = path.name
        self.logs, self.ranks = path / "logs", path / "ranks"
        self.records = Records(self)

    @property
    def verdict(self) -> Verdict | None:
        """What it is worth, once it was judged. One that this user's gpu-runner did not write here, or not of this plan
        and these records, counts for nothing: the run is judged anew.
        """
        return self._judged(lambda made_of: made_of == self._made_of())

    @property
    def listed_verdict(self) -> Verdict | None:
        """The same for a list of many runs, without a look at what the ranks have left."""
        return self._judged(lambda _made_of: True)

    def _judged(self, holds: Callable[[object], bool]) -> Verdict | None:
        document = self.read(VERDICT, dict) or {}
        own = str(document.pop("seal", ""))
        try:
            stored = msgspec.convert(document, Verdict)
        except ValueError:  # also of a lone surrogate where a number belongs
            return None
        if own and own == self._seal(document) and holds(document.get("made_of")):
            return stored
        from runner.jobs.life import judged_anew  # few are

        return judged_anew(self, stored)

    @property
    def is_needless(self) -> bool:
        """Whether it is an attempt of a chain that was not queued, or has left the queue."""
        record = self.submitted
        return record is not None and record.by_attempt and bool(record.refused)

    @property
    def chain_end(self) -> str:
        """Of an attempt of a chain, why none follows those that were queued; empty while one may."""
        return Run(self.chain).content(CHAIN_END).decode("utf-8", "replace").strip() if self.chain else ""

    @property
    def chain(self) -> Path | None:
        """The directory of the chain in which it is an attempt; None where it is of none, or was copied elsewhere."""
        attempt = self.path.parent
        is_there = attempt.parent.name == LAUNCHES and attempt.name.isdecimal()
        return attempt.parents[1] if is_there and (plan := self.plan) is not None and plan.attempt else None

    @property
    def name(self) -> str:
        """The name in the run's id (``--name``, or the recipe's); the id where it has none."""
        parts = _ID.match(self.run_id)
        return parts["name"] if parts else self.run_id

    @property
    def group(self) -> Path | None:
        """The directory of the study that it is a launch of; None where it is of none."""
        above = self.path.parents[2] if len(self.path.parents) > 3 else None
        if above is None or self.path.parents[1].name != LAUNCHES or (above / SWEEP).is_file():
            return None
        return above if (above / STUDY).is_file() or (above / LOG).is_file() else None

    @property
    def swept(self) -> dict[str, str]:
        """Name and value of what its sweep gave it; empty where it is of none."""
        if (plan := self.plan) is not None and plan.swept:
            return dict(plan.swept)
        above = Run(self.path.parents[2]) if self.path.parent.parent.name == LAUNCHES else None
        sweep = above.read(SWEEP, Sweep) if above is not None else None
        return sweep.runs.get(self.path.parent.name, {}) if sweep is not None else {}

    @property
    def plan(self) -> PlanRecord | None:
        """The plan that it was submitted with, and the codes of the checks that were overridden."""
        document = self.read(PLAN, dict)
        with suppress(ValueError):  # as of the verdict
            return msgspec.convert(upgraded(document), PlanRecord)
        return None

    @property
    def of_script(self) -> SchedulerRecord | None:
        """Of a batch script of the user, submitted as it is: the scheduler's record. None for a run of ours."""
        return self.submitted.record if self.submitted is not None else None

    @property
    def tasks(self) -> int:
        """The number of its ranks; 0 where its plan cannot be read."""
        plan = self.plan
        return plan.tasks if plan else 0

    @property
    def provenance(self) -> Provenance:
        """Of which version, on which machine, it was submitted; empty where that cannot be read."""
        return self.read(PROVENANCE, Provenance) or Provenance()

    @property
    def command(self) -> CommandLine:
        """The command line that submitted it; empty where none was recorded."""
        return self.read(COMMAND, CommandLine) or CommandLine((), "")

    @property
    def has_marker(self) -> bool:
        """Whether its script has left something at its end, readable or not."""
        return (self.path / EXIT).exists()

    def is_over(self, state: JobState) -> bool:
        """Whether its job has ended by the scheduler's answer; of one that it does not know by the script's marker."""
        return state.phase == "ended" or (state.phase == "unknown" and self.has_marker)

    @property
    def figure(self) -> Figure | None:
        """Its figure with all doubts; None unless it is ``measured``."""
        return self.figure_by(self.verdict, self.plan)

    def figure_by(self, verdict: Verdict | None, plan: Plan | None, seen: Studies | None = None) -> Figure | None:
        """The same by a verdict and a plan of it that were read already; ``seen`` as of ``of_study``."""
        figure = figure_of(verdict, plan.arms[-1] if plan and plan.arms else None)
        if figure is None or (own := self.launched_as or self._in_sweep) is None:
            return figure
        return figure.beside(self.of_study(seen), own.parent.name).after_others(self.outcomes_before)

    @property
    def outcomes_before(self) -> tuple[str, ...]:
        """How the runs that its launch of a study had before have ended, of those that may have been slow: only the
        fast ones are left where slow ones were cancelled, or ran into a limit.
        """
        if (own := self.launched_as) is None:
            return ()
        others = (Run(own.parent / name) for name in Run(own.parent).names_in("") if is_whole_id(name))
        outcomes = ((run._outcome_of_ranks, run.ended) for run in others if run.path != own)
        return tuple(
            outcome
            for outcome, ended in outcomes
            if outcome in _MAY_HAVE_BEEN_SLOW or (outcome == "infrastructure" and ended and ended.name in _BY_ITSELF)
        )

    @property
    def _outcome_of_ranks(self) -> str:
        """As it was first judged, whatever became of its records; empty where no rank has begun."""
        _, outcome, *ranks = self._first_judged
        if not ranks and self.names_in("ranks") and (verdict := self.verdict) is not None:
            return outcome or verdict.outcome
        return outcome if ranks else ""

    @property
    def launched_as(self) -> Path | None:
        """Its directory in the study that it is a launch of, also of a copy elsewhere; None where it is of none. Where
        another study lies by now, or it ``may_name`` none there: one that cannot be read.
        """
        if self.group is not None or (_OF_STUDY.match(str(self.path)) and is_linked(self)):
            return self.path
        if not _OF_STUDY.match(str(ran_in := self.ran_in)):
            return None
        above = ran_in.parents[2]
        # Path.is_file raises where a directory on the way is closed to this user.
        is_there = self.may_name(above) and (not os.path.isfile(above / STUDY) or self._is_noted(ran_in))  # noqa: PTH113
        return ran_in if is_there else self._unknown(ran_in)

    @property
    def _in_sweep(self) -> Path | None:
        """Its directory in the sweep that it is of, also of a copy elsewhere, or where that was moved; of one that is
        gone, where it was. None where it is of none.
        """
        ran_in = self.path if is_linked(self) else self.ran_in
        places = [each for each in (ran_in, self.path) if each.parent.parent.name == LAUNCHES]
        places = [each for each in places if self.may_name(each.parents[2])]
        is_there = ran_in == self.path
        swept = [each for each in places if os.path.isfile(each.parents[2] / SWEEP)]  # noqa: PTH113  # is_file raises
        there = (each for each in swept if is_there or self._is_noted(each))
        return next(there, self._unknown(ran_in) if self.swept else None)

    def _unknown(self, place: Path) -> Path:
        return self.path / LAUNCHES / (place.parent.name or "unknown") / self.run_id

    def _is_noted(self, place: Path) -> bool:
        """Whether the log of the study, or sweep, at this place has it, as far as it is one: it, or the study, may have
        been put there. That of a chain has the first attempt alone.
        """
        from runner.jobs.campaign import Campaign  # few were moved

        if self.plan is not None and self.plan.attempt:
            return True
        log = Campaign(place.parents[2]).log()
        return bool(log.trouble) or place.name in log.launched.get(place.parent.name, ())

    def of_study(self, seen: Studies | None = None) -> OfStudy:
        """What its study says of its figure; nothing where it is of none. ``seen``: what was read for other runs, and
        takes what is read, each study once: its gaps. What else a study says takes a look at all of its runs, which
        ``runner.study.readers`` has.
        """
        seen, own = {} if seen is None else seen, self.launched_as or self._in_sweep
        study = own and own.parents[2]
        if study is not None and study not in seen:
            from runner.jobs.campaign import gaps_of  # most runs are of no study

            seen[study] = OfStudy(gaps_of(study))
        return seen[study] if study is not None else OfStudy()

    @property
    def evidence(self) -> Evidence:
        """All that it has left, for judging it without a scheduler. Raises UsageError: its plan cannot be read."""
        from runner.jobs.collect import collect  # judging takes what most readers have no use for

        return collect(self, self.ended or JobState("unknown"))

    def needed_plan(self) -> PlanRecord:
        """Its plan. Raises UsageError: it cannot be read."""
        if (plan := self.plan) is None and self.of_script is not None:
            what = "this job runs a batch script of yours: it has no plan, no ranks' records and no figure"
            raise UsageError(what, where=self.run_id, fix="`status`, `show`, `logs`, `wait` and `cancel` take it")
        if plan is None or not _has_settings(plan):
            raise UsageError("the run's plan cannot be read", where=str(self.path / PLAN), fix="submit again")
        return plan

    def needed_command(self) -> CommandLine:
        """The command line that submitted it. Raises UsageError: none was recorded."""
        command = self.command
        if command.arguments[:1] not in (("submit",), ("run",)):
            what = "this run has no recorded command line: it is older, or was submitted from Python"
            where, fix = str(self.path / COMMAND), "submit it anew; its plan.json has every decision"
            if self.of_script is not None:
                what, where = "this job was submitted by something else than gpu-runner", self.run_id
                fix = "submit it again as it was; `submit SCRIPT` submits a batch script, and records that"
            raise UsageError(what, where=where, fix=fix)
        return command

    def content(self, name: str) -> bytes:
        """A file's bytes; empty where it cannot be read."""
        try:
            return self.content_of(name)
        except OSError:
            return b""

    def read(self, name: str, kind: type[T]) -> T | None:
        """The JSON file ``name`` as ``kind``; None where it is not there or not whole. Raises OSError: it is there and
        cannot be read, or is an order that something else than this user's gpu-runner changed, such as the job's
        container, to which the run directory is mounted.
        """
        try:
            value = decoded(content := self.content_of(name), kind)
        except (FileNotFoundError, NotADirectoryError, files.UnusableFileError):
            return None
        except (ValueError, RecursionError, msgspec.ValidationError):
            return None
        except PermissionError as error:
            if isinstance(error, ownership.StrangersLinkError) or self.owner == os.geteuid():
                raise
            what = "this run is another user's, and this file of it closed to you"
            raise _ClosedFileError(errno.EACCES, what, str(self.path / name)) from None
        if name in self.orders and self._is_changed(name, content):
            raise self._changed(name)
        return value

    def _is_changed(self, name: str, content: bytes) -> bool:
        return seals.is_changed(name, files.sha256(content), seals.known_orders(self.run_id))

    @property
    def changed_order(self) -> str:
        """The file of one of its orders that was changed since it was submitted; empty for none."""
        contents = ((name, self.content(name)) for name in self.orders)
        return next((name for name, content in contents if content and self._is_changed(name, content)), "")

    def check_orders(self) -> None:
        """Of a run that was moved, too. Raises OSError: one of its orders was changed."""
        if name := self.changed_order:
            raise self._changed(name)

    def _changed(self, name: str) -> OSError:
        what = "changed since the run was submitted, as its own job can do"
        if self.path.stat().st_uid != os.geteuid():
            what = "another user's run, with the id of one of yours"
        return OSError(errno.EKEYREJECTED, what, str(self.path / name))

    def write(self, name: str, value: msgspec.Struct | Mapping[str, Any], at: Path | None = None) -> None:
        """Write ``value`` as JSON, whole or not at all. Undecodable bytes in strings survive as escapes.

        Args:
            at: the run directory, where it is open.
        """
        document = msgspec.to_builtins(value)
        if name == VERDICT:
            with suppress(OSError):
                seals.make_key()
            document["made_of"] = self._made_of()
            document["seal"] = self._seal(document)
            ranks = " ranks" if self.names_in("ranks") or self._ended_well else ""
            self._keep_first(f"{document['made_of']} {document['outcome']}{ranks}\n")
        text = json.dumps(document, indent=2) + "\n"
        if name in _ORDERS and is_linked(self):
            seals.note_order(self.run_id, name, text.encode())
        files.write_private((at or self.path) / name, text)

    def keep(self, name: str, value: msgspec.Struct | Mapping[str, Any]) -> None:
        """``write``, where the run is this user's, and lies where no other could exchange it: what another one leaves,
        such as root, its owner could not read.
        """
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            about = os.fstat(handle)
            # As it was before anything was read: where others write, a link to an own run could take a run's place.
            if about.st_uid == os.geteuid() and self.is_first(about) and not self.exchangeable_by:
                self.write(name, value, Path(f"/proc/self/fd/{handle}"))
        finally:
            os.close(handle)

    @property
    def first_judged(self) -> tuple[str, str]:
        """What it was made of when this user's gpu-runner first judged it, and the outcome; empty where it has not."""
        made_of, outcome, *_ = self._first_judged
        return made_of, outcome

    def status_in(self, allocation: str) -> int | None:
        """That its script ended with, by the list of its study's one allocation; None where that does not have it."""
        names = Path(allocation).parts[-2:]
        if not {"/", ".."}.isdisjoint(names):
            return None
        own = Run(self.path.parent.parent.parent.joinpath(*names))  # it may have been moved
        listed = re.search(rb"\t(\d+)\t[^\n]*/%s$" % re.escape(self.run_id.encode()), own.content(LAUNCHES), re.M)
        return int(listed[1]) if listed else None

    @property
    def _ended_well(self) -> bool:
        """Whether its script has: then it had ranks, whatever became of their records."""
        with suppress(OSError):
            record, marker = self.submitted, self.marker
            return 0 in (marker and marker.exit, record and record.allocation and self.status_in(record.allocation))
        return False

    @property
    def had_begun(self) -> bool:
        """Whether it was one that had when it was first judged, whatever became of its records."""
        _, outcome, *ranks = self._first_judged
        return bool(ranks) or outcome in ("measured", "ran", "failed")

    @property
    def _first_judged(self) -> list[str]:
        """The same; a third word where it had records of ranks."""
        with suppress(OSError, ValueError):
            words = files.read_bytes(seals.judgements() / self.run_id).decode("ascii").split()
            return words if len(words) in (2, 3) else ["", ""]
        return ["", ""]

    @property
    def is_changed(self) -> bool:
        """Whether its plan or records are not those that it was first judged by, or it is a copy or was renamed."""
        made_of, _ = self.first_judged
        name = self.ran_in.name
        return made_of != self._made_of() if made_of else is_whole_id(name) and name != self.run_id

    @property
    def owner(self) -> int:
        """The user id of whose run it is. Raises OSError; also where it is another directory than it was."""
        about = ownership.status_of(self.path)
        if not self.is_first(about):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self.path))
        return ownership.owner_of(about)

    def may_name(self, directory: Path) -> bool:
        """Whether a directory that its records name may be the run's: of a stranger's run none that is there and of
        another owner, as one that this user alone may read, nor one behind a stranger's link.
        """
        try:
            if ownership.is_trusted(owner := self.owner):
                return True
            real = ownership.real_path(directory)
        except OSError:
            return False
        with suppress(OSError, ValueError):
            return ownership.owner_of(ownership.status_of(real, follow=False)) == owner
        return True

    @property
    def exchangeable_by(self) -> str:
        """Whose its place is, in words, where another user could exchange it, as ``ownership.exchangeable_by``."""
        return ownership.exchangeable_by(self.path)

    @property
    def owner_of_outputs(self) -> int | None:
        """Of another user's run, whose the files must be that its record names: it could name one that this user alone
        may read. Raises OSError as ``owner``.
        """
        return None if self.owner == os.geteuid() else self.owner

    @property
    def ran_in(self) -> Path:
        """The run directory as its first rank saw it; in a container, where it has another name, as it was made here;
        empty where unknown.
        """
        start = self.records.start(0)
        seen = Path(start.environment.get("RUNNER_RUN_DIR", "") if start else "")
        if not is_whole_id(seen.name):
            with suppress(OSError, ValueError):
                return (index() / self.run_id).readlink()
        return seen

    def _made_of(self) -> str:
        """SHA-256 of what it is judged by, but for its logs, and of the program that ran."""
        records = sorted(filter(_RECORD.match, self.names_in("ranks")))
        names = (PLAN, JOB, RESULT, EXIT, ENDED, CODE, CODE_DIFF, CODE_FILES, *(f"ranks/{name}" for name in records))
        lines = [f"{files.sha256(self._there(name))}  {name}" for name in names]
        lines.append(files.tree_hash(recipe_programs(self.path / "recipe")))
        return files.sha256("\n".join(lines).encode())

    def _there(self, name: str) -> bytes:
        """A file's bytes; empty where it is not there. Raises OSError: that is not known now."""
        try:
            return self.content_of(name)
        except (FileNotFoundError, NotADirectoryError, files.UnusableFileError):
            return b""

    def _keep_first(self, judged: str) -> None:
        if not self.first_judged[0] and is_whole_id(self.run_id):  # another name may be taken again
            seals.keep_judgement(self.run_id, judged)

    def _seal(self, document: Mapping[str, Any]) -> str:
        """Of its plan and its verdict."""
        parts = (self.run_id, files.sha256(self.content(PLAN)), json.dumps(document, sort_keys=True))
        return seals.seal("\n".join(parts))


def recipe_programs(recipe: Path) -> list[tuple[str, Path]]:
    """Name and path of a recipe's sources, without what editors leave, other users' links, and what is too long."""
    is_there = recipe.is_dir() and not ownership.is_strangers_link(recipe)
    return [
        (name, path)
        for name, path in (files.files_below(recipe) if is_there else ())
        if (path.suffix in (".py", ".sh") or name == "recipe.yaml") and not name.startswith(".") and "/." not in name
        and not ownership.is_strangers_link(path) and path.stat().st_size <= files.MOST
    ]  # fmt: skip


def _has_settings(plan: Plan) -> bool:
    """Whether its scheduler's settings can be read, as far as that is here still."""
    with suppress(UsageError):
        try:
            _ = plan.settings
        except msgspec.ValidationError:
            return False
    return True


def decoded(content: bytes, kind: type[T]) -> T:
    """A document from its JSON. Bytes that are no UTF-8 (``\\udcXX``) need the standard library's slow reader.

    Raises:
        ValueError, RecursionError, msgspec.ValidationError: it is none.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        document = json.loads(content)
        # Half a character that stands for no byte could be no part of a path or an argument.
        json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogateescape")
        return msgspec.convert(document, kind)


def utc(seconds: float | None) -> datetime | None:
    """A Unix time in whole seconds; None where it is unknown, or of a damaged record."""
    try:
        return None if seconds is None else datetime.fromtimestamp(int(seconds), timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None


def linked() -> Iterator[Run]:
    """Every run of this user whose directory is there, the newest first; refused submissions, too. Lazy."""
    with suppress(FileNotFoundError), os.scandir(index()) as entries:
        links = sorted(entries, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns, reverse=True)
        for link in links:
            if (run := own_run(Path(link.path))) is not None:
                yield run


def is_linked(run: Run) -> bool:
    """Whether this user has submitted it, and it still lies where it was, where no stranger could put theirs."""
    with suppress(OSError, RuntimeError, ValueError):
        own = own_run(index() / run.run_id)
        is_here = own is not None and own.path == ownership.real_path(run.path)
        return is_here and not ownership.may_be_strangers(run.path)
    return False


def own_run(link: Path) -> Run | None:
    """The directory of this user to which a link of his leads, read as it was when its owner was looked at. None where
    there is none; where it is another user's, or behind a stranger's link: in a place of others, another one may stand
    there by now, which could lead to any of this user's.
    """
    with suppress(OSError, ValueError):
        real = Path(os.path.realpath(link, strict=True))
        if real.name != link.name:  # as where a stranger's link leads to another one
            real = ownership.real_path(link)
        run, whose = Run(real), ownership.owner_of(ownership.status_of(link, follow=False))
        return run if {whose, run.owner} == {os.geteuid()} else None
    return None


def is_own(path: Path) -> bool:
    """Whether a directory, or link to one, and what it leads to are this user's: in a place of others, another one may
    stand there by now.
    """
    with suppress(OSError):
        status = ownership.status_of(path)
        owners = {ownership.owner_of(each) for each in (ownership.status_of(path, follow=False), status)}
        return stat.S_ISDIR(status.st_mode) and owners == {os.geteuid()}
    return False


def index() -> Path:
    """Links from run ids to run directories: an id is enough from any working directory."""
    return paths.state("runs")
