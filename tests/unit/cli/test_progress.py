"""How progress of many bytes is shown."""

from __future__ import annotations

import pytest

from runner.cli import progress


@pytest.mark.parametrize(
    ("done", "total", "elapsed_s", "shown"),
    [
        (512_000_000, 1_536_000_000, 4.0, "512 of 1536 MB, 128 MB/s, 8 s left"),
        (100_000_000, 20_000_000_000, 1.0, "100 of 20000 MB, 100 MB/s, 3:19 min left"),
        (512_000_000, None, 4.0, "512 MB, 128 MB/s"),
        (600_000_000, 512_000_000, 4.0, "600 MB, 150 MB/s"),
        (0, 512_000_000, 0.0, "0 MB, 0 MB/s"),
    ],
)
def test_bytes_rate_and_time_left_are_shown_as_far_as_they_are_known(
    done: int, total: int | None, elapsed_s: float, shown: str
) -> None:
    assert progress.amount(done, total, elapsed_s) == shown


def test_a_log_gets_a_plain_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("runner.cli.progress.time.monotonic", lambda: now)
    with progress.display() as shown:
        shown.step("squashing")
        for _ in range(48):
            now += 0.5
            shown.moved(round((now - 100) * 50e6), 2_000_000_000)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "[   0.0 s] squashing"
    assert said[1:] == ["    500 of 2000 MB, 50 MB/s, 30 s left", "    1000 of 2000 MB, 50 MB/s, 20 s left"]


def test_a_terminal_gets_the_amount_beside_the_spinner(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real terminal of its own."""
    import os
    import pty
    import sys

    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(progress, "_LIVE_EVERY_S", 0.0)
        with progress.display() as shown:
            shown.step("squashing")
            shown.moved(100, 200)
            shown.moved(300_000_000, 600_000_000)
            said = ""
            while "300 of 600 MB" not in said:  # drawn by a thread, when it is its turn
                said += os.read(leader, 1 << 16).decode("utf-8", "replace")
    os.close(leader)
    assert "squashing" in said
