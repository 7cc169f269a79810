"""Engines whose URL is wrong: what was wrong is said, and no password is shown."""

from __future__ import annotations

import pytest

from runner.core.errors import InfrastructureError, RunnerError, UsageError
from runner.images import engine

SECRET = "secret" + "pw"


@pytest.mark.parametrize("url", ["tcp://1.2.3.4:99999999", "tcp://1.2.3.4:x", "http://[::1", "tcp://127.0.0.1:65536"])
def test_what_is_no_url_is_refused_as_such(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((UsageError, InfrastructureError)) as caught:
        engine.connect(url)
    assert caught.value.fix
    monkeypatch.setenv("DOCKER_HOST", url)
    with pytest.raises((UsageError, InfrastructureError)) as caught:
        engine.connect()
    assert caught.value.where == "DOCKER_HOST"


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{SECRET}@127.0.0.1:1",
        f"http://user:{SECRET}@127.0.0.1:99999999",
        f"user:{SECRET}@127.0.0.1:1",
        f"tcp://user:{SECRET}/with@signs@127.0.0.1:1",
    ],
)
def test_a_password_in_a_url_is_not_shown(url: str) -> None:
    with pytest.raises(RunnerError) as caught:
        engine.connect(url)
    assert SECRET not in str(caught.value)
    assert "***@127.0.0.1" in str(caught.value)
