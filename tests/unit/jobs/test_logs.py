"""Which logs of a run are shown, how they are read from their ends, and the last output."""

import os
import time
from pathlib import Path

import pytest

from runner.core.errors import UsageError
from runner.jobs.directory import Run
from runner.jobs.logs import (
    WHOLE_BYTES,
    LogFile,
    Selection,
    _Reader,
    check_ranks,
    ends_with_lost_image,
    first_failed,
    last_output,
    left_out,
    log_files,
    one_rank,
    parse_ranks,
    read,
)
from runner.model.verdict import Verdict
from tests.support.evidence import ended, start

RANKS = {"3": [3], "0,3-5": [0, 3, 4, 5], " 2 , 1 ": [2, 1], "7-7": [7], "0-0,0": [0, 0]}


def test_ranks_are_named_by_numbers_and_ranges_and_a_range_of_millions_takes_no_memory() -> None:
    for text, ranks in RANKS.items():
        assert [rank for part in parse_ranks(text) for rank in part] == ranks
    for text in ("", ",", "-1", "3-1", "a", "1,,2", "0x1", "1-", "٣", "9" * 12):
        with pytest.raises(UsageError, match="names no ranks"):
            parse_ranks(text)
    with pytest.raises(UsageError, match="there is no rank 999999999: the run has ranks 0 to 3"):
        check_ranks(parse_ranks("0-999999999"), 4)
    check_ranks(parse_ranks("0-3"), 4)


def test_logs_stand_in_order_and_empty_ones_are_left_out(run: Run) -> None:
    for name in ("rank-10.out", "rank-2.err", "rank-2.out", "batch.err", "rank-0.out", "node-n0.log"):
        wrote(run, name)
    wrote(run, "rank-1.out", b"")
    (run.logs / "rank-3.out").mkdir()
    (run.logs / "rank-3.err").symlink_to("/dev/zero")
    names = [log.path.name for log in log_files(run, Selection())]
    assert names == ["batch.err", "node-n0.log", "rank-0.out", "rank-2.out", "rank-2.err", "rank-10.out"]
    assert [log.path.name for log in log_files(run, one_rank(2))] == ["rank-2.out", "rank-2.err"]
    chosen = Selection(parse_ranks("0,3-10"), script=frozenset({"batch.err"}))
    assert [log.path.name for log in log_files(run, chosen)] == ["batch.err", "rank-0.out", "rank-10.out"]


@pytest.mark.parametrize("text", ["a\nb\nc\n", "a\nb\nc", "\n\n\n", "é\n" * 3, "one\n", "", "long " * 50_000 + "\nx\n"])
@pytest.mark.parametrize("lines", [0, 1, 2, 3, 9])
def test_the_last_lines_are_those_of_the_whole_text(tmp_path: Path, text: str, lines: int) -> None:
    path = tmp_path / "rank-0.out"
    path.write_text(text)
    expected = text.splitlines(keepends=True)[-lines:] if lines else []
    assert b"".join(read(LogFile(path, 0), lines)).decode() == "".join(expected)


def test_a_log_of_gigabytes_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.out"
    with path.open("wb") as file:
        file.truncate(3 << 30)  # a hole: it takes no room
        file.seek(0, 2)
        file.write(b"\n" + b"".join(b"line %d\n" % number for number in range(300_000)))
    log = LogFile(path, 0)
    assert b"".join(read(log, 2)) == b"line 299998\nline 299999\n"
    assert b"".join(read(log, 200_000)).startswith(b"line 100000\n")
    assert sum(map(len, read(log, None))) <= WHOLE_BYTES
    assert left_out(log) == path.stat().st_size - sum(map(len, read(log, None)))


def test_the_beginning_of_a_line_is_read_but_for_half_a_character_or_colour(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.err"
    whole, parts = _Reader(LogFile(tmp_path / "rank-0.err", 0)), _Reader(LogFile(path, 0))
    read = []
    for piece in (b"\r 10%|\xe2\x96\x88", b"|\r 20%|\xe2\x96", b"\x88|\x1b[3", b"1m!", b"\n", b"rest\xc3"):
        with path.open("ab") as file:
            file.write(piece)
        read.append((whole.read(rest=False), parts.read(rest=False, parts=True)))
    assert [each for each, _ in read if each] == [path.read_bytes().removesuffix(b"rest\xc3")]
    pieces = [b"\r 10%|\xe2\x96\x88", b"|\r 20%|", b"\xe2\x96\x88|", b"\x1b[31m!", b"\n", b"rest"]
    assert [each for _, each in read] == pieces
    assert parts.read(rest=True, parts=True) == b"\xc3"


def test_the_rank_that_failed_first_is_shown_by_the_verdict_or_by_the_records_so_far(run: Run) -> None:
    assert first_failed(run) == (one_rank(0, script=frozenset()), None)
    (run.ranks / "1.exit.json").write_text("{")
    assert first_failed(run)[1] is None, "a record that is damaged"
    (run.ranks / "1.exit.json").unlink()
    run.write("ranks/0.start.json", start(0))
    run.write("ranks/3.start.json", start(3))
    run.write("ranks/3.exit.json", ended(3, status=1, exit_code=1))
    assert first_failed(run)[1] == 3, "the job runs yet, and has no verdict"
    run.write("verdict.json", Verdict(outcome="failed", rank=2, log="logs/batch.err: srun: error: x"))
    assert first_failed(run) == (one_rank(2, script=frozenset({"batch.err"})), 2)
    run.write("verdict.json", Verdict(outcome="failed", log="logs/rank-1.err: x"))
    assert first_failed(run) == (one_rank(1, script=frozenset()), 1), "a verdict of an older version"
    run.write("verdict.json", Verdict(outcome="ran"))
    assert first_failed(run) == (one_rank(0, script=frozenset()), None)


def test_the_loss_of_the_image_at_the_end_is_no_cause(run: Run) -> None:
    wrote(run, "rank-0.err", b"Traceback\nOSError: [Errno 107] Transport endpoint is not connected\n")
    log = LogFile(run.logs / "rank-0.err", 0)
    assert not ends_with_lost_image(run, log), "the job runs yet"
    run.write("verdict.json", Verdict(outcome="failed", rank=1, log="logs/rank-1.err: ValueError: x"))
    assert ends_with_lost_image(run, log)
    quoted = "logs/rank-0.err: OSError: [Errno 107] Transport endpoint is not connected"
    run.write("verdict.json", Verdict(outcome="failed", rank=0, log=quoted))
    assert not ends_with_lost_image(run, log), "nothing else tells the cause"


def wrote(run: Run, name: str, content: bytes = b"x\n", *, ago_s: float = 0.0) -> None:
    path = run.logs / name
    path.write_bytes(content)
    os.utime(path, (0, time.time() - ago_s))


@pytest.mark.parametrize(
    ("name", "content", "ago_s", "line"),
    [
        ("rank-0.out", b"step 1\nstep 2\n\n", 100, "step 2"),
        # A bar that is drawn anew is as far as it was drawn last.
        ("rank-0.err", b"\r10 %" * 2000 + b"\r 99 % " + "\u00e9".encode()[:1], 1, "99 % \ufffd"),
        ("rank-0.out", b"x" * 10_000, -60, "x" * 200),  # by the clock of another machine, in the future
    ],
)
def test_the_log_that_was_written_last_counts(run: Run, name: str, content: bytes, ago_s: float, line: str) -> None:
    wrote(run, "batch.out", b"started\n", ago_s=300)
    wrote(run, name, content, ago_s=ago_s)
    wrote(run, "rank-1.err", b"")  # opened, and nothing written
    last = last_output(run)
    assert last is not None
    assert (last.file, last.line) == (f"logs/{name}", line)
    assert max(ago_s, 0) <= last.age_s < max(ago_s, 0) + 60


def test_without_output_there_is_none(run: Run) -> None:
    (run.logs / "rank-0.out").touch()
    assert last_output(run) is None
    run.logs.joinpath("rank-0.out").unlink()
    os.mkfifo(run.logs / "rank-0.out")
    assert last_output(run) is None
