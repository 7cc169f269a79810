"""What nccl-tests printed: read as it is, and refused in words where it is something else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.errors import UsageError
from runner.expectation.network import parse

HEAD = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 33554432 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
"""
COLUMNS = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def ranks(count: int, per_node: int = 2) -> str:
    return "".join(
        f"#  Rank {rank:2d} Group  0 Pid {rank} on node-{rank // per_node} device {rank % per_node} [0x0f] A100\n"
        for rank in range(count)
    )


def row(size: int, time_us: float, count: int, root: str = "-1", wrong: str = "0") -> str:
    algorithm = size / time_us / 1e3
    rest = f"{time_us:8.2f} {algorithm:7.2f} {algorithm * 2 * (count - 1) / count:7.2f}"
    return f"{size:12d} {size // 4:13d}     float     sum {root:>7} {rest} {wrong:>6} {rest} {wrong:>6}\n"


ROWS = row(1 << 20, 100.0, 4) + row(32 << 20, 1600.0, 4)
WHOLE = HEAD + ranks(4) + COLUMNS + ROWS + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 20.9\n#\n"


def test_the_whole_output_gives_times_ranks_and_nodes() -> None:
    curve = parse(WHOLE, "out.txt")
    assert (curve.ranks, curve.nodes) == (4, 2)
    assert [size for size, _ in curve.times] == [1 << 20, 32 << 20]
    assert [seconds for _, seconds in curve.times] == pytest.approx([100e-6, 1600e-6])


@pytest.mark.parametrize("line", ["[1,0]<stdout>:{}\n", "0: {}\n", "[1,12]<stdout>: {}\n", "    {}\n", "{}\r\n"])
def test_what_mpirun_srun_and_windows_add_to_each_line_is_passed_over(line: str) -> None:
    text = "".join(line.format(each) for each in WHOLE.splitlines())
    assert parse(text, "out.txt").times == parse(WHOLE, "out.txt").times


def test_old_output_has_no_root() -> None:
    old = "".join(
        row(size, time, 4, root="").replace("        ", "  ") for size, time in ((1 << 20, 90.0), (1 << 22, 900.0))
    )
    assert [seconds for _, seconds in parse(old, "o", 4).times] == pytest.approx([90e-6, 900e-6])


def test_a_size_that_was_measured_twice_counts_once_and_size_0_not_at_all() -> None:
    more = f"{0:12d} {0:13d} float sum -1 5.0 0.00 0.00 0 5.0 0.00 0.00 0\n" + row(1 << 20, 300.0, 4)
    assert [seconds for _, seconds in parse(WHOLE + more, "o").times] == pytest.approx([100e-6, 1600e-6])


@pytest.mark.parametrize(
    ("header", "lines"),
    [
        ("size,time", "1048576,100\n33554432,1600\n"),
        ("Size (B),Count,Type,Time (us),algbw (GB/s)", "1048576,9,float,100.0,10.49\n33554432,9,float,1600,20.97\n"),
        ("op,ngpu,size_bytes,t_us_out,busbw_out_gbs", "sum,4,1048576,100,15.7\nsum,4,33554432,1600,31.5\n"),
        ("\ufeffsize,count,time(us)", '1048576,"262,144",100\n33554432,"8,388,608",1600\n'),
        ("# a comment\nbytes,time_oop_us", "1048576,100\n\n33554432,1600\n"),
    ],
)
def test_a_csv_is_read_by_the_names_of_its_columns(header: str, lines: str) -> None:
    text = f"{header}\n{lines}".encode().decode("utf-8-sig")
    times = dict(parse(text, "t.csv", 4).times)
    assert times == pytest.approx({1 << 20: 100e-6, 32 << 20: 1600e-6})


REFUSED: dict[str, tuple[str, int | None, str]] = {
    "empty": ("", 4, "no line with the time"),
    "prose": ("nccl-tests failed: Test NCCL failure common.cu:958\n", 4, "no line with the time"),
    "no ranks": (ROWS, None, "does not list its ranks"),
    "one rank": (HEAD + ranks(1) + row(1 << 20, 5.0, 1), None, "one rank tells nothing"),
    "other ranks than given": (WHOLE, 8, "is of 4 ranks, not 8"),
    "another collective": (HEAD + ranks(4) + ROWS.replace("15.73", " 7.86"), None, "1.500 times in an allreduce"),
    "numbers that do not fit": (HEAD + ranks(4) + ROWS.replace(" 10.49", " 99.49"), None, "do not fit each other"),
    "a time of 0": (HEAD + ranks(4) + ROWS.replace("  100.00", "    0.00"), None, "do not fit each other"),
    "no number": (HEAD + ranks(4) + ROWS.replace("  100.00", "     nan"), None, "do not fit each other"),
    "wrong sums": (HEAD + ranks(4) + row(1 << 20, 100.0, 4, wrong="17"), None, "17 sums were wrong"),
    "wrong sums in place": (WHOLE.replace("values : 0 OK", "values : 12 FAILED"), None, "12 sums were wrong"),
    "small messages alone": (HEAD + ranks(4) + row(1 << 16, 30.0, 4), None, "of 65536 bytes, and tells nothing of 1 M"),
    "CSV of small messages": ("size,time\n1024,5\n", 4, "of 1024 bytes, and tells nothing of 1 MiB or more"),
    "CSV of other columns": ("host,value\na,1\n", 4, "no column size and no column time among: host, value"),
    "CSV without times": ("size,busbw\n8,1\n", 4, "no column time"),
    "CSV of words": ("size,time\nlarge,slow\n", 4, "no size and time: large,slow"),
    "CSV that ends early": ("size,time\n1048576\n", 4, "no size and time"),
    "CSV with an open quote": ('size,time\n"1048576,100\n', 4, "no CSV"),
    "CSV of several worlds": ("size,time,ranks\n1024,10,4\n2048,20,8\n", 4, "several numbers of ranks"),
    "a CSV of milliseconds": ("size,time,algbw\n33554432,1.6,20.97\n", 4, "20.97 GB/s is not 33554432 bytes in 1.6 us"),
    "a CSV of wrong sums": ("size,time,#wrong\n33554432,1600,3\n", 4, "3 sums were wrong at 33554432 bytes"),
    "a broadcast on two ranks": (
        HEAD + ranks(2) + row(1 << 20, 100.0, 2, root="0").replace("  sum", " none"),
        None,
        "is of no allreduce",
    ),
    "a reduce on two ranks": (HEAD + ranks(2) + row(1 << 20, 100.0, 2, root="0"), None, "is of no allreduce"),
    "another test on two ranks": (
        "# Collective test starting: sendrecv_perf\n" + HEAD + ranks(2) + row(1 << 20, 100.0, 2),
        None,
        "the output of sendrecv_perf",
    ),
    "CSV with only its header": ("size,time\n", 4, "no line with the time"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused_in_words(case: str) -> None:
    text, count, says = REFUSED[case]
    with pytest.raises(UsageError, match=says) as caught:
        parse(text, "given.txt", count)
    assert caught.value.where.startswith("given.txt") and caught.value.fix


@settings(deadline=None, max_examples=200)
@given(
    st.text(max_size=400) | st.lists(st.sampled_from(WHOLE.splitlines()), max_size=12).map("\n".join), st.integers(1, 9)
)
def test_no_text_is_a_fault_of_the_reader(text: str, count: int) -> None:
    for given_ranks in (None, count):
        try:
            curve = parse(text, "t", given_ranks)
        except UsageError:
            continue
        assert all(size > 0 and seconds > 0 for size, seconds in curve.times)
        assert curve.allreduce_s(1e6) >= 0
