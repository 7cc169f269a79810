"""The logs of a run: its last output, those of the rank that failed first, and what comes into them."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from runner.core import files
from runner.core.errors import RunnerError, UnknownStateError, UsageError
from runner.jobs.directory import Run
from runner.jobs.states import scheduler_of
from runner.jobs.watch import REAL_CLOCK, SILENCE_S, Clock, JobProgress, Pace, presence

_TAIL_BYTES = 4096
_LONGEST_LINE = 200


@dataclass(frozen=True)
class LastOutput:
    """The newest output of a run.

    Attributes:
        file: below the run directory. line: its last line that is not empty, cut off after 200 characters.
        age_s: seconds since it was written, by the clock of this machine.
    """

    file: str
    line: str
    age_s: float


def last_output(run: Run) -> LastOutput | None:
    """From the log that was written last; None if there is no output yet."""
    newest: tuple[float, Path] | None = None
    for path in _paths(run):
        with suppress(OSError):  # it was replaced while it was looked at
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size > 0:
                newest = max(newest or (0.0, path), (status.st_mtime, path), key=lambda each: each[0])
    if newest is None:
        return None
    written_s, path = newest
    lines: list[str] = []
    with suppress(OSError), _log_file(run, path).open() as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()  # a bar that is drawn anew counts as a line
    last = next((line.strip()[:_LONGEST_LINE] for line in reversed(lines) if line.strip()), "")
    name = f"logs/{path.name}" if path.parent == run.logs else str(path)
    return LastOutput(name, last, max(0.0, time.time() - written_s))


_QUOTED = re.compile(r"logs/([^/:]+):")
_RANK = re.compile(r"rank-(\d+)\.(out|err)\Z")


def first_failed(run: Run) -> tuple[Selection, int | None]:
    """The logs of the rank that failed first, or of rank 0 where none has or that is unknown; that rank, or None.

    With them the log of the batch script or of a node that the verdict quotes.
    """
    verdict = run.verdict
    if verdict is None and any(name.endswith(".exit.json") for name in run.names_in("ranks")):
        from runner.jobs.verdict import judge

        with suppress(RunnerError, OSError):  # by what is there now
            verdict = judge(run.evidence)
    quoted = _QUOTED.match(verdict.log) if verdict is not None else None
    name = quoted[1] if quoted else ""
    of_rank = _RANK.match(name)
    rank = verdict.rank if verdict is not None else None
    if rank is None and of_rank:
        rank = int(of_rank[1])
    return one_rank(rank or 0, script=frozenset({name} if name and not of_rank else ())), rank


def host_of(run: Run, rank: int) -> str:
    """Where a rank runs, by its own record; empty where it has left none (yet)."""
    start = run.records.start(rank)
    return start.host if start is not None else ""


def ends_with_lost_image(run: Run, log: LogFile) -> bool:
    """Whether a rank's log ends as one does whose container lost its image when the job ended, and the verdict quotes
    another line: then that end tells nothing of the cause.
    """
    verdict = run.verdict
    if verdict is None or log.rank is None or log.path.suffix != ".err":
        return False
    from runner.diagnosis.logs import IMAGE_LOST  # of no use for most logs

    last = b"".join(read(log, 1)).decode("utf-8", "replace").strip()
    return IMAGE_LOST.search(last) is not None and last not in verdict.log


WHOLE_BYTES = 10_000_000  # of a log without a number of lines: what is longer is shown from here before its end
_LINES_BYTES = 1 << 28  # of a log with one: lines without end must not fill the memory
_CHUNK_BYTES, _BLOCK_BYTES = 1 << 20, 1 << 16
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z", re.ASCII)
_NOT_WHOLE = re.compile(rb"(\x1b(\[[0-9;:]{0,40})?|[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z")
_POLL_S, _SOON_S = 0.5, 0.1  # until files are looked at again; that have just grown


@dataclass(frozen=True)
class LogFile:
    """One log; ``rank`` is None for the batch script's, and for what is run once a node; ``run`` where it is none of a
    run directory; then ``owner`` is whose it must be, None for anybody's.
    """

    path: Path
    rank: int | None
    run: Run | None = None
    owner: int | None = None

    def open(self) -> BinaryIO:
        """To be read; of a run directory through no link: in another user's it could lead to files of this one. Raises
        OSError.
        """
        if self.run is None:
            return files.open_regular(self.path, self.owner)
        return self.run.open(f"logs/{self.path.name}")


@dataclass(frozen=True)
class Selection:
    """Logs of some ranks, and those of no rank.

    Attributes:
        ranks: None for every rank.
        script: those of the batch script and of nodes, all or by their names.
    """

    ranks: tuple[range, ...] | None = None
    script: bool | frozenset[str] = True

    def holds(self, log: LogFile) -> bool:
        """Whether the log is one of them."""
        if log.rank is None:
            return self.script if isinstance(self.script, bool) else log.path.name in self.script
        return self.ranks is None or any(log.rank in part for part in self.ranks)


def one_rank(rank: int, *, script: bool | frozenset[str] = False) -> Selection:
    """The logs of one rank."""
    return Selection((range(rank, rank + 1),), script)


def parse_ranks(text: str) -> tuple[range, ...]:
    """The ranks of ``0,3-5``. Raises UsageError: it names none."""
    parts = [_PART.match(part.strip()) for part in text.split(",")]
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part is not None]
    if len(ranges) < len(parts) or not all(ranges):
        raise UsageError(f"{text!r} names no ranks", where="--rank", fix="write --rank 3, or --rank 0,3-5")
    return tuple(ranges)


def check_ranks(ranks: tuple[range, ...], tasks: int) -> None:
    """That the run has every one of these ranks. Raises UsageError: it has not; says which it has."""
    last = max(part[-1] for part in ranks)
    if last >= tasks > 0:
        has = "only rank 0" if tasks == 1 else f"ranks 0 to {tasks - 1}"
        raise UsageError(f"there is no rank {last}: the run has {has}", where="--rank")


def log_files(run: Run, selection: Selection) -> tuple[LogFile, ...]:
    """Those of a selection that are not empty, the batch script's first, then by rank."""
    logs = []
    for path in _paths(run):
        with suppress(OSError):
            log = _log_file(run, path)
            status = path.stat() if log.run is None else path.lstat()
            is_whose = log.owner in (None, status.st_uid)
            if selection.holds(log) and is_whose and stat.S_ISREG(status.st_mode) and status.st_size > 0:
                logs.append(log)
    return tuple(
        sorted(logs, key=lambda log: (-1 if log.rank is None else log.rank, log.path.suffix != ".out", log.path))
    )


def _log_file(run: Run, path: Path) -> LogFile:
    match = _RANK.match(path.name)
    rank, is_ours = int(match[1]) if match else None, path.parent == run.logs
    return LogFile(path, rank, run if is_ours else None, None if is_ours else run.owner_of_outputs)


def _paths(run: Run) -> Iterable[Path]:
    """The logs of a run; of a batch script of the user the files that it writes."""
    if (record := run.submitted) is None or record.record is None:
        return [run.logs / name for name in run.names_in("logs")]
    from runner.jobs.scripts import outputs

    return outputs(record.record, record.job_id)


def read(log: LogFile, lines: int | None) -> Iterator[bytes]:
    """The last lines of a log, whole lines at a time; without a number, up to WHOLE_BYTES of its end. Raises OSError:
    it cannot be read.
    """
    reader = _Reader(log, lines)
    end = reader.size
    while reader.at < end and (content := reader.read(rest=True)):
        yield content


def left_out(log: LogFile) -> int:
    """How many bytes of a log's start ``read`` leaves out where no number of lines is given."""
    with suppress(OSError):
        return _Reader(log, None).at
    return 0


def follow(
    run: Run,
    selection: Selection,
    on_content: Callable[[LogFile, bytes, bool], None],
    on_progress: Callable[[JobProgress], None] = lambda _progress: None,
    *,
    lines: int | None = None,
    parts: bool = False,
    clock: Clock = REAL_CLOCK,
) -> None:
    """Pass on what is and comes into the logs, whole lines at a time, until the job has ended and they stop growing.

    Args:
        on_content: gets the log, the new bytes, and whether it is another log than the last time.
        on_progress: gets each answer of the scheduler.
        lines: of logs that are there already, so many of their last lines; None as ``read``.
        parts: pass on the beginning of a line, too, such as a bar that is drawn anew.

    Raises:
        NotAcceptedError, UnknownStateError: as ``scheduler_of``, or the scheduler did not answer for SILENCE_S.
    """
    scheduler, job_id = scheduler_of(run)
    readers = {log.path: _Reader(log, lines) for log in log_files(run, selection)}
    last: Path | None = None
    ended = False
    began = answered = clock.monotonic()
    pace = Pace(run, clock)
    while True:
        gained = False
        for log in log_files(run, selection):
            reader = readers.setdefault(log.path, _Reader(log))
            if content := reader.read(rest=ended, parts=parts):
                on_content(log, content, log.path != last)
                last = log.path
                gained = True
        if ended and not gained:
            return
        if not gained and pace.is_due(there := presence(run)):
            try:
                state = scheduler.state(job_id, run.path)
                answered = clock.monotonic()
                on_progress(JobProgress(state, len(there.starts), len(there.exits), answered - began))
                ended = state.phase in ("ended", "unknown")
            except UnknownStateError:
                if clock.monotonic() - answered > SILENCE_S:
                    raise
        if not ended:
            clock.sleep(_SOON_S if gained else _POLL_S)


class _Reader:
    """A log that is read on from where it was left; its start is passed over without being read."""

    def __init__(self, log: LogFile, lines: int | None = -1) -> None:
        """``lines``: to begin at so many of its last lines; None: WHOLE_BYTES before its end; -1: at its start."""
        self._log = log
        self.at = self.size = 0
        if lines == -1:
            return
        with log.open() as file:
            self.size = os.fstat(file.fileno()).st_size
            if lines is not None:
                self.at = _tail_start(file, self.size, lines)
            elif self.size > WHOLE_BYTES:  # the first line within them
                self.at = file.seek(self.size - WHOLE_BYTES)
                self.at += file.read(_BLOCK_BYTES).find(b"\n") + 1

    def read(self, *, rest: bool, parts: bool = False) -> bytes:
        """Whole lines that are new, and with ``rest`` also a last one without its end; empty where there is nothing.
        ``parts``: also its beginning, without a character or colour that is not whole.
        """
        try:
            with self._log.open() as file:
                file.seek(self.at)
                content = file.read(_CHUNK_BYTES)
        except OSError:
            return b""
        if parts and not rest:
            content = _NOT_WHOLE.sub(b"", content)
        elif not rest or len(content) == _CHUNK_BYTES:
            whole = content.rfind(b"\n") + 1
            content = content[: whole or (len(content) if len(content) == _CHUNK_BYTES else 0)]
        self.at += len(content)
        return content


def _tail_start(file: BinaryIO, size: int, lines: int) -> int:
    """Where the last lines begin, from the end on; O(bytes of these lines)."""
    at, missing, floor = size, lines, max(0, size - _LINES_BYTES)
    while lines and at > floor:
        block_end, at = at, max(floor, at - _BLOCK_BYTES)
        file.seek(at)
        block = file.read(block_end - at)
        ends = [
            match.end() for match in re.finditer(b"\n", block) if at + match.end() < size
        ]  # but its last line's own
        if len(ends) >= missing:
            return at + ends[-missing]
        missing -= len(ends)
    return at
