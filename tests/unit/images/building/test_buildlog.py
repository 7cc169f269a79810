"""What two engines say of a build becomes the same events."""

from __future__ import annotations

from typing import Any

from runner.images.building.buildlog import BuildLog, Event, Failed, Line, Started, Step


def events(*chunks: dict[str, Any]) -> list[Event]:
    log = BuildLog()
    return [event for chunk in chunks for event in log.feed(chunk)] + list(log.end())


def test_docker_sends_a_step_and_its_newline_apart() -> None:
    assert events(
        {"stream": "Step 2/9 : RUN python3 x.py \\"},
        {"stream": "\n"},
        {"stream": " ---> Running in 0123456789ab\n"},
        {"stream": "one\ntw"},
        {"stream": "o\n"},
        {"stream": "\x1b[91mred\x1b[0m\n"},
        {"stream": "Removing intermediate container 0123456789ab\n"},
        {"stream": " ---> ba9876543210\n"},
        {"aux": {"ID": "sha256:" + "ab" * 32}},
        {"stream": "Successfully built ba9876543210\n"},
    ) == [
        Step(2, 9, "RUN python3 x.py \\"),
        Started("0123456789ab"),
        Line("one"),
        Line("two"),
        Line("red"),
        Line("Successfully built ba9876543210"),
    ]


def test_podman_writes_steps_its_own_way() -> None:
    assert events(
        {"stream": "[2/2] STEP 3/8: COPY a b\n"},
        {"stream": "STEP 1/8: FROM x\n"},
        {"stream": "--> 0123456789ab\n"},
        {"stream": "--> Using cache 0123456789ab\n"},
    ) == [Step(3, 8, "COPY a b"), Step(1, 8, "FROM x"), Line("--> Using cache 0123456789ab")]


def test_failures_carry_the_code_where_the_engine_says_it() -> None:
    docker = {"errorDetail": {"code": 7, "message": "returned a non-zero code: 7"}, "error": "x"}
    assert events({"stream": "last words"}, docker) == [Line("last words"), Failed("returned a non-zero code: 7", 7)]
    assert events({"error": "building at STEP: exit status 7\n"}) == [Failed("building at STEP: exit status 7", None)]


def test_progress_bars_show_their_last_state() -> None:
    assert events({"stream": "10%\r50%\r100%\n"}, {"status": "Pulling", "id": "ab12"}) == [
        Line("100%"),
        Line("ab12 Pulling"),
    ]
