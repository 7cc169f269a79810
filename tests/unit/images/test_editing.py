"""An edited image: its name, what of it stays, and a copy that is unpacked and packed again by the real tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.core.errors import InfrastructureError, RefusedError, UsageError
from runner.core.progress import Silent
from runner.images import editing, writable_root
from runner.images.conversion.publishing import ABOUT
from runner.images.conversion.squashfs import ASSEMBLED, CONVERTER, convert_source
from runner.images.packing.rootfs import Config
from runner.images.store import image_files, store
from runner.images.store.stored_image import StoredImage
from runner.images.writable_root import Tool, tree_image
from runner.model.image import INPUTS_LABEL
from tests.support.heard import Heard
from tests.support.odd_image import content_lines
from tests.support.shell_files import stand_in

TOOL = Tool("ch-run", "ch-run", "0.38")
pytestmark = pytest.mark.skipif(not shutil.which("mksquashfs"), reason="squashfs-tools are not installed")


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredImage:
    """A stored image with a variable of two lines, and a label of a build."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path / "store"))
    (tmp_path / "tree/opt").mkdir(parents=True)
    (tmp_path / "tree/opt/file").write_text("before")
    config = Config({"A": "1", "TWO": "a\nb"}, "/opt", ("/entry",), ("bash",), {"x": "y", INPUTS_LABEL: "abc"}, ("/v",))
    source = tree_image(tmp_path / "tree", "my/image:1", "sha256:" + "a" * 64, "2026-01-01T00:00:00Z", config)
    return convert_source(source, Silent(), store_dir=tmp_path / "store").image


@pytest.mark.parametrize(
    ("reference", "wanted", "name"),
    [
        ("my/image:1", None, "my/image:1-edited"),
        ("my/image:1-edited", None, "my/image:1-edited"),
        ("nvcr.io/nvidia/pytorch:25.02-py3", None, "nvcr.io/nvidia/pytorch:25.02-py3-edited"),
        ("host:5000/a@sha256:" + "b" * 64, None, "host:5000/a:latest-edited"),
        ("a:" + "t" * 128, None, "a:" + "t" * 121 + "-edited"),
        ("my/image:1", "docker://reg.io#me/other:2", "reg.io/me/other:2"),
        ("/some/file.sqsh", "me/other", "me/other:latest"),
    ],
)
def test_the_result_has_a_name_of_its_own(reference: str, wanted: str | None, name: str) -> None:
    assert editing.new_name(StoredImage(path=Path("/x.sqsh"), reference=reference), wanted) == name


def test_an_image_without_a_name_wants_one_for_the_result() -> None:
    for reference, of_stranger in (("/some/file.sqsh", False), ("sha256:" + "a" * 64, False), ("my/image:1", True)):
        with pytest.raises(UsageError, match="the image has no name") as caught:
            editing.new_name(StoredImage(path=Path("/x.sqsh"), reference=reference), None, of_stranger=of_stranger)
        assert "--name NAME:TAG" in caught.value.fix


def edited(image: StoredImage, script: str) -> StoredImage:
    """The image after a script was run in its copy, as no container."""
    target = image.path.parent
    with editing.writable_copy(image, Silent()) as copy:
        subprocess.run(["sh", "-ec", script], cwd=copy.root, check=True)
        return editing.stored(image, copy, TOOL, ["sh", "-c", script], "my/new:1", target, Silent()).image


def content(image: StoredImage, name: str) -> str:
    return image_files.content(image.path, name, "squashfs")


def test_what_was_changed_is_stored_and_the_rest_stays(image: StoredImage, tmp_path: Path) -> None:
    before = image.path.read_bytes()
    made = edited(image, "echo after >opt/file; echo B=2 >>etc/environment; echo '# mine' >>etc/rc.local")
    assert content(made, "opt/file") == "after\n"
    assert made.environment == {"A": "1", "B": "2", "TWO": "a\nb"}
    assert content(made, "ch/environment") == content(made, "etc/environment") == "A=1\nB=2\n"
    assert content(made, "etc/rc.local").endswith("# mine\n")
    assert content(made, "etc/fstab") == content(image, "etc/fstab") != ""
    assert content(made, "etc/rc") == content(image, "etc/rc")
    assert (made.workdir, made.entrypoint, made.command, made.labels) == ("/opt", ("/entry",), ("bash",), {"x": "y"})
    assert image.path.read_bytes() == before
    assert store.lookup("my/image:1") == image
    assert store.lookup("my/new:1") == store.lookup(made.digest) == made
    assert list((tmp_path / "cache/builds").iterdir()) == []


_CHANGES = """
echo new >opt/new; mkdir -p opt/made/below; echo x >opt/made/below/x; rm -r many/1; rm many/2/05
mv many/2/06 many/2/six; echo 9 >many/2/07; touch -d @1500000000 many/2/07; ln many/2/08 opt/hard; chmod 4755 many/2/09
ln -sf /x opt/link; rm many/2/10; mkdir many/2/10; rm -r many/3; echo file >many/3; mv many/4 opt/moved; mkfifo opt/pipe
ln -s //x// opt/odd
"""


def test_assembled_it_is_as_packed_anew(image: StoredImage, monkeypatch: pytest.MonkeyPatch) -> None:
    linked = f"mkdir many/linked; echo {{}} >{ABOUT}; ln {ABOUT} many/linked"  # packed in any case
    old = f"mkdir opt/runner; {linked}; ln many/2/20 many/2/twenty; find many -exec touch -hd @1500000000 {{}} +"
    filled = edited(image, f"for d in 1 2 3 4; do mkdir -p many/$d; seq 60 | split -l 1 -d - many/$d/; done; {old}")
    now, heard, words = datetime.now(timezone.utc), Heard(), ["sh", "-c", _CHANGES]
    monkeypatch.setattr(editing, "datetime", SimpleNamespace(now=lambda _zone: now))
    with editing.writable_copy(filled, Silent(), assemble=True) as copy:
        subprocess.run(["sh", "-ec", _CHANGES], cwd=copy.root, check=True)
        assembled, anew = (
            editing.stored(filled, each, TOOL, words, "my/new:1", image.path.parent, heard).image
            for each in (copy, replace(copy, before={}))
        )
    (said,) = heard.lines
    assert said.startswith("assembled in ")
    assert said.endswith(f" from my/new:1@{filled.digest}")
    assert content_lines(assembled.path) == content_lines(anew.path)
    assert (assembled.entries, assembled.environment) == (anew.entries, anew.environment)
    assert (assembled.converter, anew.converter) == (ASSEMBLED, CONVERTER)


def test_a_change_that_was_missed_is_noticed(image: StoredImage, monkeypatch: pytest.MonkeyPatch) -> None:
    old, heard, states = edited(image, "touch -d @1500000000 opt/file"), Heard(), writable_root.states
    with editing.writable_copy(old, Silent(), assemble=True) as copy:
        (copy.root / "opt/file").write_text("another")
        known = {"opt/file": copy.before["opt/file"]}
        monkeypatch.setattr(writable_root, "states", lambda root: states(root) | known)
        made = editing.stored(old, copy, TOOL, ["sh"], "my/new:1", image.path.parent, heard).image
    (said,) = heard.lines
    assert said.startswith("not assembled: the result would not be what the image holds, such as '-rw-r--r-- 0/0 ")
    assert content(made, "opt/file") == "another"


def test_each_edit_is_an_image_of_its_own_and_the_history_grows(image: StoredImage) -> None:
    first, again = edited(image, "true"), edited(image, "true")
    assert first.digest != again.digest
    second = edited(first, "HF_TOKEN=planted true")  # the history holds no value of a secret name
    assert [(one.of, one.command[2], one.tool) for one in second.history] == [
        (image.digest, "true", "ch-run 0.38"),
        (first.digest, "HF_TOKEN=*** true", "ch-run 0.38"),
    ]


def test_what_only_root_could_read_is_made_readable_and_a_pipe_in_place_of_the_variables_blocks_nothing(
    image: StoredImage,
) -> None:
    closed = "echo secret >opt/secret; mkdir opt/closed; echo x >opt/closed/x; chmod 0 opt/secret opt/closed"
    made = edited(image, f"{closed}; rm etc/environment; mkfifo etc/environment")
    listing = subprocess.run(["unsquashfs", "-ll", made.path], stdout=subprocess.PIPE, text=True, check=True).stdout
    modes = {line.split()[-1].removeprefix("squashfs-root/"): line[:10] for line in listing.splitlines() if "/" in line}
    assert (modes["opt/secret"], modes["opt/closed"]) == ("-r--------", "dr-x------")
    assert content(made, "opt/closed/x") == "x\n"
    assert (made.environment, content(made, "etc/environment")) == (image.environment, "A=1\n")


def test_links_of_the_image_lead_to_no_file_of_this_machine(image: StoredImage, tmp_path: Path) -> None:
    """Its variables are read, and its lists of users made readable, out here: where an absolute link means a host's."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "environment").write_text("PLANTED=secret\n")
    for name in ("passwd", "group"):
        (private / name).touch(0o600)
    made = edited(image, f"ln -sf {private}/environment etc/environment; ln -s {private}/passwd etc/passwd")
    assert made.environment == image.environment
    assert content(made, "etc/environment") == "A=1\n"
    with pytest.raises(RefusedError, match="/etc is in the way"):
        edited(image, f"rm -r etc; ln -s {private} etc")
    assert {(private / name).stat().st_mode & 0o777 for name in ("passwd", "group")} == {0o600}


def test_what_a_command_has_left_running_is_ended_before_anything_is_read(image: StoredImage, tmp_path: Path) -> None:
    """It could put a link to a file of this user in the place of one of the image's, while that is packed."""
    note = tmp_path / "left"
    leaves = f"(setsid sh -c 'echo $$ >{note}; exec sleep 300' &); until [ -s {note} ]; do sleep 0.01; done"
    stand_in(tmp_path, "ch-run", leaves)
    with editing.writable_copy(image, Silent()) as copy:
        assert editing.run(Tool("ch-run", str(tmp_path / "ch-run"), "0.38"), copy, ["true"]) == 0
    assert not Path(f"/proc/{int(note.read_text())}").exists()


def test_what_cannot_succeed_is_refused_before_any_work(image: StoredImage, tmp_path: Path) -> None:
    editing.check(image, TOOL, tmp_path / "another")
    sif = image.path.with_suffix(".sif")
    sif.touch()
    with pytest.raises(RefusedError, match="a SIF is written by Apptainer alone"):
        editing.check(StoredImage(path=sif, reference="x:1"), TOOL, tmp_path)
    os.truncate(image.path, 5000)
    with pytest.raises(InfrastructureError, match="the image is damaged: ") as caught:
        editing.check(image, TOOL, tmp_path)
    assert "convert it again" in caught.value.fix


def test_an_image_that_cannot_be_unpacked_is_reported_and_leaves_nothing(image: StoredImage, tmp_path: Path) -> None:
    raw = bytearray(image.path.read_bytes())
    raw[96:] = bytes(len(raw) - 96)
    image.path.write_bytes(raw)
    with pytest.raises(InfrastructureError, match="cannot be unpacked"), editing.writable_copy(image, Silent()):
        pass
    assert list((tmp_path / "cache/builds").iterdir()) == []


def test_a_failure_names_the_command_and_its_exit_code() -> None:
    error = editing.failed(["sh", "-c", "exit 7"], 7)
    assert (error.what, error.where) == ("the command failed with exit code 7; nothing is stored", "sh -c 'exit 7'")
    assert "was ended by signal 9" in editing.failed(["x"], -9).what
