"""Which source an image is taken from: never one that its name does not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cli import run
from runner.core.errors import Exit, RefusedError, UsageError
from runner.core.progress import Silent
from runner.images import engine
from runner.images.conversion.squashfs import Options, convert


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine, and no way to any registry."""
    monkeypatch.setattr(engine, "default_urls", lambda _: ())
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")


@pytest.mark.parametrize("source", ["auto", "registry"])
@pytest.mark.parametrize("text", ["gpu-runner/horovod-pytorch:25.02-py3", "localhost/gpu-runner/x:1"])
def test_without_a_registry_an_image_of_ours_is_looked_up_nowhere(text: str, source: str) -> None:
    with pytest.raises(RefusedError, match="names no registry to take it from") as caught:
        convert(text, Options(source), Silent())  # type: ignore[arg-type]
    assert "build it on a machine with an engine" in caught.value.fix
    assert "docker.io" not in caught.value.fix


@pytest.mark.parametrize(
    ("text", "hub"), [("debian:12", "library/debian:12"), ("docker://x/y", "x/y:latest"), ("x/y:1", "x/y:1")]
)
def test_dockers_hub_is_used_only_where_it_is_named(text: str, hub: str) -> None:
    with pytest.raises(RefusedError, match="names no registry to take it from") as caught:
        convert(text, Options("registry"), Silent())
    assert f"docker.io/{hub} if you mean Docker's hub" in caught.value.fix


@pytest.mark.parametrize("source", ["auto", "registry", "engine"])
def test_a_path_without_a_format_is_looked_up_nowhere(tmp_path: Path, source: str) -> None:
    with pytest.raises(UsageError, match=r"/saved\.tar does not exist") as caught:
        convert(f"{tmp_path}/saved.tar", Options(source), Silent())  # type: ignore[arg-type]
    assert "for a saved image use docker-archive:FILE" in caught.value.fix
    (tmp_path / "saved.tar").touch()
    with pytest.raises(UsageError, match=r"/saved\.tar is a path without a format"):
        convert(f"{tmp_path}/saved.tar", Options(source), Silent())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("docker-archive:/nosuch.tar", "there is no file /nosuch.tar", "docker-archive:FILE"),
        ("docker-archive:/nosuch.tar:x:1", "there is no file /nosuch.tar:x:1", "docker-archive:FILE[:NAME]"),
        ("oci-archive:/nosuch", "there is no file /nosuch", "oci-archive:FILE"),
        ("oci:/nosuch", "there is no directory /nosuch", "oci:DIR"),
        ("docker-archive:", "docker-archive: names no file", "docker save"),
        ("docker-archive:/usr", "/usr is a directory, not a file", "oci:DIR"),
        ("oci:/etc/hostname", "/etc/hostname is a file, not a directory", "docker-archive:FILE"),
    ],
)
def test_a_saved_image_that_is_not_there_is_named_with_what_the_scheme_takes(
    name: str, what: str, fix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", name]) == Exit.USAGE
    said = capfd.readouterr().err
    assert f"error: {what}\n  where: {name}\n" in said
    assert fix in said.partition("fix:")[2]
