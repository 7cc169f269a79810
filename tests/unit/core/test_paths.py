"""Where things lie, and whether what is cached there is read."""

from __future__ import annotations

import pytest

from runner.core import paths


def test_cold_means_no_cache_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("COLD", value)
        assert paths.caches_ignored() is wanted


def test_directories_are_those_of_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNNER_CACHE", "RUNNER_STATE", "RUNNER_CONFIG", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/u/cache")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # "consider the path invalid and ignore it"
    assert str(paths.cache_dir()) == "/scratch/u/cache/gpu-runner"
    assert str(paths.state_dir()) == "/home/u/.local/state/gpu-runner"
    assert str(paths.config_file()) == "/home/u/.config/gpu-runner/config.yaml"
