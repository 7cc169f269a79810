"""The program of a shell's job: it ends once no terminal is attached."""

import time
from pathlib import Path
from threading import Timer

from gpu_runner_inside.hold import hold


def test_it_holds_for_as_long_as_the_file_is_touched(tmp_path: Path) -> None:
    attached = tmp_path / "attached"
    timers = [Timer(after_s, attached.touch) for after_s in (0.2, 0.5, 0.8)]
    began = time.monotonic()
    for timer in timers:
        timer.start()
    hold(attached, patience_s=0.4, poll_s=0.01)
    assert 1.15 < time.monotonic() - began < 10
