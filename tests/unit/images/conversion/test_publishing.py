"""Which source an image is taken from; one path into the store for every source and form."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from runner.cli import run
from runner.core.errors import Exit, InfrastructureError, RefusedError, UsageError
from runner.core.progress import Silent
from runner.images import engine
from runner.images.conversion.publishing import Conversion, about_of, publish
from runner.images.conversion.sif import sif_maker
from runner.images.conversion.squashfs import Options, SourceKind, convert, convert_source, created_at
from runner.images.packing.mksquashfs import Source
from runner.images.packing.rootfs import Config
from runner.images.store import store
from runner.images.writable_root import tree_image
from tests.support.heard import Heard
from tests.support.squashfs import crashing_mksquashfs, sif_of

pytestmark = pytest.mark.skipif(not shutil.which("mksquashfs"), reason="squashfs-tools are not installed")


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A small image of ours in a directory."""
    (tmp_path / "tree/opt/runner").mkdir(parents=True)
    (tmp_path / "tree/opt/runner/image.json").write_text('{"framework": "pytorch"}')
    config = Config(environment={"A": "1", "B": "1\n2"}, command=("bash",))
    return tree_image(tmp_path / "tree", "x/y:1", "sha256:" + "a" * 64, "2026-01-01T00:00:00Z", config)


def squashfs(source: Source, target: Path) -> Conversion:
    return convert_source(source, Silent(), store_dir=target)


def test_an_image_is_made_once_and_described_by_its_source(source: Source, tmp_path: Path) -> None:
    first = squashfs(source, tmp_path / "store")
    assert first.made
    assert (first.image.reference, first.image.digest, first.image.command) == (source.name, source.digest, ("bash",))
    assert first.image.about == {"framework": "pytorch"}
    assert first.image.omitted == ("B",)
    second = squashfs(source, tmp_path / "store")
    assert not second.made
    assert second.image == first.image == store.lookup("x/y:1", tmp_path / "store")
    moved = replace(source, digest="sha256:" + "b" * 64)
    assert squashfs(moved, tmp_path / "store").moved_from == source.digest


def test_a_sif_takes_the_same_path_and_is_another_file(source: Source, tmp_path: Path) -> None:
    packed = squashfs(source, tmp_path / "store").image
    maker = sif_maker(source, lambda out: sif_of(packed.path, out))
    first = publish(maker, Silent(), store_dir=tmp_path / "store")
    assert first.made
    assert first.image.path.suffix == ".sif"
    assert first.image.about == packed.about
    assert not publish(maker, Silent(), store_dir=tmp_path / "store").made
    assert store.lookup("x/y:1", tmp_path / "store") == packed


def test_a_file_that_is_not_what_it_has_to_be_is_not_published(source: Source, tmp_path: Path) -> None:
    maker = sif_maker(source, Path.touch)
    with pytest.raises(InfrastructureError, match="no whole SIF"):
        publish(maker, Silent(), store_dir=tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def test_a_crash_of_mksquashfs_is_followed_by_one_more_try_on_one_processor(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = squashfs(source, tmp_path / "sound").image
    tools = crashing_mksquashfs(tmp_path / "tools", times=1)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    progress = Heard()
    made = convert_source(source, progress, store_dir=tmp_path / "store").image
    assert made.sha256 == whole.sha256
    assert "mksquashfs has crashed (SIGSEGV): trying once more, on one processor" in progress.steps
    first, second = (tools / "calls").read_text().splitlines()
    assert "-processors" not in first
    assert second.endswith("-processors 1")


def test_empty_files_between_large_ones_do_not_crash_mksquashfs(source: Source, tmp_path: Path) -> None:
    """With -no-sparse, mksquashfs 4.5.1 and 4.6.1 failed in most of such streams."""
    for number in range(20):
        (tmp_path / f"tree/{number:02d}a").write_bytes(os.urandom(1_200_000 + 997 * number))
        for empty in range(20):
            (tmp_path / f"tree/{number:02d}b{empty:02d}").touch()
    progress = Heard()
    sums = {convert_source(source, progress, store_dir=tmp_path / f"store{n}").image.sha256 for n in range(3)}
    assert len(sums) == 1
    assert not [text for text in progress.steps if "crashed" in text]


@pytest.mark.parametrize(
    ("signal", "tries", "says", "fix"),
    [
        ("SEGV", 2, r"mksquashfs has crashed \(SIGSEGV\)", "another release of squashfs-tools"),
        ("ABRT", 2, r"mksquashfs has crashed \(SIGABRT\)", "another release of squashfs-tools"),
        ("KILL", 1, "mksquashfs was ended by SIGKILL", "--processors 1"),
        ("TERM", 1, "mksquashfs was ended by SIGTERM", ""),
    ],
)
def test_a_second_crash_and_other_signals_are_reported_and_leave_nothing(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal: str, tries: int, says: str, fix: str
) -> None:
    tools = crashing_mksquashfs(tmp_path / "tools", times=9, signal=signal)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with pytest.raises(InfrastructureError, match=says) as caught:
        squashfs(source, tmp_path / "store")
    assert fix in caught.value.fix
    assert len((tools / "calls").read_text().splitlines()) == tries
    assert list((tmp_path / "store").iterdir()) == []


def test_what_an_image_says_of_itself_is_ours_or_nothing() -> None:
    assert about_of(b'{"framework": "pytorch"}') == {"framework": "pytorch"}
    for raw in (None, b"", "", b"not json{", b"[1]", b'{"a": "\xff"}', b'{"a":' * 100_000):
        assert about_of(raw) == {}


def test_a_time_that_no_squashfs_holds_is_none() -> None:
    assert created_at("2026-01-01T00:00:00Z") == 1767225600
    for created in ("9999-12-31T23:59:59Z", "2107-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "never"):
        assert created_at(created) == 0


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine, and no way to any registry."""
    monkeypatch.setattr(engine, "default_urls", lambda _: ())
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")


def test_a_digest_that_was_converted_for_another_platform_is_converted_for_this_one(
    source: Source, tmp_path: Path
) -> None:
    """That of an index stands for both."""
    name, here = f"host.invalid/x@{source.digest}", Options(store=tmp_path / "store")
    squashfs(source, tmp_path / "store")
    assert not convert(name, here, Silent()).made
    other = replace(source, digest="sha256:" + "b" * 64, architecture="sparc")
    store.refer(source.digest, squashfs(other, tmp_path / "store").image)
    with pytest.raises(InfrastructureError, match=r"host\.invalid"):
        convert(name, here, Silent())


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("gpu-runner/horovod-pytorch:25.02-py3", "build it on a machine with an engine"),
        ("localhost/gpu-runner/x:1", "build it on a machine with an engine"),
        ("debian:12", "docker.io/library/debian:12 if you mean Docker's hub"),
        ("docker://x/y", "docker.io/x/y:latest if you mean Docker's hub"),
        ("x/y:1", "docker.io/x/y:1 if you mean Docker's hub"),
    ],
)
def test_a_name_without_a_registry_is_looked_up_nowhere(text: str, fix: str) -> None:
    with pytest.raises(RefusedError, match="names no registry to take it from") as caught:
        convert(text, Options("registry"), Silent())
    assert fix in caught.value.fix
    assert ("docker.io" in caught.value.fix) == ("docker.io" in fix)
    if "gpu-runner" in text:
        with pytest.raises(RefusedError, match="names no registry to take it from"):
            convert(text, Options("auto"), Silent())


@pytest.mark.parametrize("source", ["auto", "registry", "engine"])
def test_a_path_without_a_format_is_looked_up_nowhere(tmp_path: Path, source: SourceKind) -> None:
    with pytest.raises(UsageError, match=r"/saved\.tar does not exist") as caught:
        convert(f"{tmp_path}/saved.tar", Options(source), Silent())
    assert "for a saved image use docker-archive:FILE" in caught.value.fix
    (tmp_path / "saved.tar").touch()
    with pytest.raises(UsageError, match=r"/saved\.tar is a path without a format"):
        convert(f"{tmp_path}/saved.tar", Options(source), Silent())


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("docker-archive:/nosuch.tar", "there is no file /nosuch.tar", "docker-archive:FILE"),
        ("docker-archive:/nosuch.tar:x:1", "there is no file /nosuch.tar:x:1", "docker-archive:FILE[:NAME]"),
        ("oci-archive:/nosuch", "there is no file /nosuch", "oci-archive:FILE"),
        ("oci:/nosuch", "there is no directory /nosuch", "oci:DIR"),
        ("docker-archive:", "docker-archive: names no file", "docker save"),
        ("docker-archive:/usr", "/usr is no file", "oci:DIR"),
        ("oci:/etc/hostname", "/etc/hostname is no directory", "docker-archive:FILE"),
    ],
)
def test_a_saved_image_that_is_not_there_is_named_with_what_the_scheme_takes(
    name: str, what: str, fix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", name]) == Exit.USAGE
    said = capfd.readouterr().err
    assert f"error: {what}\n  where: {name}\n" in said
    assert fix in said.partition("fix:")[2]
