"""``images`` at the command line: lists, shows, checks and prunes real squashfs files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli import run
from runner.cli.progress import display
from runner.core import files
from runner.core.errors import Exit, InfrastructureError
from runner.core.files import sha256 as sha256_of
from runner.core.progress import Silent
from runner.images.conversion import squashfs
from runner.images.conversion.squashfs import CONVERTER
from runner.images.packing.mksquashfs import Packing
from runner.images.store import store, stored_image
from runner.images.store.stored_image import StoredImage, file_name
from runner.jobs import creation, directory
from runner.jobs.lookup import find
from runner.model.job import ExitMarker, JobState, Submitted
from runner.model.plan import PlannedImage
from runner.model.request import Request
from runner.planning.plan import plan
from runner.preparation.choices import pin
from runner.recipes.loader import read_recipe
from runner.sites.loader import read_site
from tests.support.commands import Call
from tests.support.documents import result
from tests.support.users import AS_ROOT, CAROL

pytestmark = pytest.mark.skipif(not shutil.which("mksquashfs"), reason="squashfs-tools are not installed")


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StoredImage]:
    """Three images in a store, made today, and no runs."""
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path / "store"))
    (tmp_path / "store").mkdir()
    return [put(tmp_path, name) for name in ("a", "b", "c")]


def put(tmp_path: Path, name: str) -> StoredImage:
    tree, made = tmp_path / name, tmp_path / "store" / ".made"
    tree.mkdir()
    (tree / name).write_bytes(os.urandom(9000))
    subprocess.run(["mksquashfs", tree, made, "-noappend", "-quiet", "-no-progress"], check=True)
    digest, sha256 = "sha256:" + name * 64, sha256_of(made)
    path = made.with_name(file_name(f"{name}:1", digest, sha256))
    created = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    size, about = made.stat().st_size, {"framework": "pytorch"}
    image = StoredImage(
        path=path, reference=f"{name}:1", digest=digest, key=name, size_bytes=size, sha256=sha256, created=created,
        about=about,
    )  # fmt: skip
    return store.publish(made, image)


def used_by(tmp_path: Path, image: StoredImage, *, ended: bool) -> str:
    """A run that used the image; of one that has not ended its scheduler cannot be asked."""
    planned = PlannedImage(reference=image.reference, digest=image.digest, path=str(image.path))
    made = creation.create(tmp_path / "runs", "probe-2", time.time())
    made.write("plan.json", plan(read_recipe("probe").recipe, read_site("box"), Request(gpus=2), planned))
    nowhere = str(tmp_path / "no-clients")
    files.write_private(made.path / directory.SCRIPT, "")
    made.write("job.json", Submitted("slurm", "7", nowhere, "0" * 64, time.time()))
    if ended:
        made.write("exit.json", ExitMarker("7", 0, time.time()))
    return made.run_id


def json_of(call: Call, *words: str, code: int = 0) -> Any:
    return result(call("images", *words, "--json", code=code).out)


def test_the_list_shows_runs_and_damage(images: list[StoredImage], tmp_path: Path, call: Call) -> None:
    run_id = used_by(tmp_path, images[0], ended=True)
    images[1].path.write_bytes(b"")
    Path(f"{images[2].path}.json").write_text("{")
    rows = {Path(row["path"]).name[0]: row for row in json_of(call, "list")}
    assert rows["a"]["runs"] == [run_id]
    assert (rows["a"]["format"], rows["a"]["problem"]) == ("squashfs gzip", "")
    assert -60 < rows["a"]["age_s"] < 600
    assert "0 bytes" in rows["b"]["problem"]
    assert "sidecar" in rows["c"]["problem"]
    printed = call("images", "list").out
    assert f"last {run_id}" in printed
    assert "NOT WHOLE" in printed
    assert "\na:1\n" in f"\n{printed}" and f"  {images[0].path}\n" in printed, "each part in a line of its own"


def test_show_prints_the_provenance_and_the_operations_of_horovod(images: list[StoredImage], call: Call) -> None:
    for name in ("a:1", images[0].digest, str(images[0].path)):
        facts = json_of(call, "show", name)
        assert (facts["sha256"], facts["about"]) == (images[0].sha256, {"framework": "pytorch"})
    assert "runner convert missing:1" in call("images", "show", "missing:1", code=3).err
    described_before = call("images", "show", "a:1").out
    assert "  framework: pytorch\n" in described_before
    assert described_before.endswith("Horovod: of unknown version; operations: unknown\n")
    horovod = {"version": "0.28.1", "operations": ["NCCL", "Gloo"], "nccl": "2.25.1", "cuda_architectures": [80, 90]}
    about = {"framework": "pytorch", "cuda": "12.8", "horovod": horovod}
    stored_image.write_sidecar(msgspec.structs.replace(images[0], about=about))
    assert json_of(call, "show", "a:1")["about"]["horovod"]["operations"] == ["NCCL", "Gloo"]
    wanted = "Horovod: 0.28.1; operations: NCCL 2.25.1, Gloo; kernels: sm_80, sm_90\n"
    assert call("images", "show", "a:1").out.endswith(wanted)


@AS_ROOT
def test_an_image_of_another_user_is_shown_as_such(images: list[StoredImage], call: Call) -> None:
    os.chown(images[0].path, CAROL, CAROL)
    for verb in (["list"], ["verify"], ["show", "a:1"], ["verify", "a:1"]):
        rows = json_of(call, *verb)
        of_user = {each["reference"]: each["owner"] for each in ([rows] if isinstance(rows, dict) else rows)}
        assert of_user.pop("a:1") == f"user {CAROL}" and not any(of_user.values())
        lines = [line for line in call("images", *verb).out.splitlines() if "who alone vouches" in line]
        assert len(lines) == 1 and f"user {CAROL}" in lines[0] and "good" not in lines[0]


def test_what_verify_finds_is_refused_by_submit(images: list[StoredImage], call: Call, tmp_path: Path) -> None:
    submit = ["submit", "--site", "box", "--gpus", "2", "--recipe", "probe", "--dry-run", "--image"]
    assert json_of(call, "verify") == [
        {"reference": image.reference, "path": str(image.path), "broken": "", "owner": ""} for image in images
    ]
    assert run([*submit, "b:1"]) == 0
    times = images[1].path.stat()
    raw = bytearray(images[1].path.read_bytes())
    raw[5000] ^= 1
    images[1].path.write_bytes(raw)
    os.utime(images[1].path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert run([*submit, "b:1"]) == 0
    assert [bool(row["broken"]) for row in json_of(call, "verify", code=8)] == [False, True, False]
    assert "SHA-256" in call(*submit, "b:1", code=3).err
    assert run([*submit, "a:1"]) == 0


def test_what_others_named_a_file_or_an_image_reaches_no_terminal_raw(images: list[StoredImage], call: Call) -> None:
    sidecar = images[0].path.with_name(f"{images[0].path.name}.json")
    named = images[0].path.with_name("x\x1b]0;planted\x07\u202e.sqsh")
    shutil.copy(images[0].path, named)
    text = sidecar.read_text().replace('"a:1"', '"a:1\\u001b]0;planted\\u0007"')
    named.with_name(f"{named.name}.json").write_text(text)
    for words in (["list"], ["show", str(named)], ["verify"], ["prune", "--older-than", "0m", "--dry-run"]):
        said = call("images", *words)
        assert "planted" in said.out
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", said.out + said.err)


def test_pruning_keeps_what_may_be_needed(images: list[StoredImage], tmp_path: Path, call: Call) -> None:
    used_by(tmp_path, images[0], ended=True)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "store")
    beside = images[1].path.name
    waits = used_by(tmp_path, StoredImage(path=link / beside, reference="b:1"), ended=False)
    planned = json_of(call, "prune", "--max-size", "1", "--dry-run")
    assert planned["removed"] == [str(images[2].path), str(images[0].path)]
    assert planned["needed"] == [str(images[1].path)]
    for words in ((), ("--older-than", "30"), ("--max-size", "much")):
        assert run(["images", "prune", *words]) == Exit.USAGE
    assert all(image.path.exists() for image in images)
    assert json_of(call, "prune", "--unused")["removed"] == [str(images[2].path)]
    assert json_of(call, "prune", "--older-than", "1d")["removed"] == []
    assert json_of(call, "prune", "--max-size", "1")["removed"] == [str(images[0].path)]
    left = sorted(path.name for path in (tmp_path / "store").glob("*.sqsh*"))
    assert left == [beside, f"{beside}.json"]
    assert {store.lookup(f"{name}:1") is None for name in "ac"} == {True}
    find(waits).write("ended.json", JobState("ended", "CANCELLED"))
    assert json_of(call, "prune", "--max-size", "1")["removed"] == [str(images[1].path)], "an end of any kind frees it"


def test_a_damaged_image_is_not_up_to_date_by_its_digest(images: list[StoredImage]) -> None:
    image = msgspec.structs.replace(images[0], converter=CONVERTER, options=Packing().options())
    stored_image.write_sidecar(image)
    name, options = f"a@{image.digest}", squashfs.Options(engine="unix:///nowhere/at/all.sock")
    assert squashfs.convert(name, options, Silent()).image == image
    os.truncate(image.path, image.size_bytes // 2)
    with pytest.raises(InfrastructureError, match="does not answer"):  # it asks for the image to make it anew
        squashfs.convert(name, options, Silent())


@pytest.mark.skipif(os.getuid() != 0, reason="files of another user need root")
def test_of_another_users_image_an_edit_and_a_job_say_whose_it_is(
    images: list[StoredImage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """The description's variables are part of the job's; the image's own file may still be its first owner's."""
    monkeypatch.setenv("PATH", str(tmp_path))
    edit = ("images", "edit", "a:1", "--", "true")
    assert ("warning" in call(*edit, code=Exit.REFUSED).err, pin("a:1", "squashfs").owner) == (False, "")
    os.chown(stored_image.sidecar_path(images[0].path), 61003, 61003)
    assert "warning: user 61003 put this image or its name into the store" in call(*edit, code=Exit.REFUSED).err
    assert pin("a:1", "squashfs").owner == "user 61003"


@pytest.mark.parametrize(("limit", "says"), [("300", ["300 s of processor time"]), ("unlimited", [])])
def test_a_limit_on_processor_time_is_shown_before_long_work(limit: str, says: list[str]) -> None:
    code = "from runner.cli.progress import display\nwith display(): pass"
    words = ["bash", "-c", f'ulimit -St {limit} && exec "$@"', "_", sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert [words for words in says if words in done.stderr] == says
    assert bool(done.stderr) is bool(says) is ("shell --runtime native" in done.stderr)


def test_progress_shows_what_a_terminal_would_take_for_orders(capsys: pytest.CaptureFixture[str]) -> None:
    with display() as progress:
        progress.step("unpacking a\x1b]0;title\x07b")
        progress.line("\x1b[2Jx")
    assert capsys.readouterr().err == "[   0.0 s] unpacking a\\x1b]0;title\\x07b\n    \\x1b[2Jx\n"
