"""What would keep a program from starting is said before the job waits in a queue, and only where it is certain."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.core.errors import UsageError
from runner.images.store.stored_image import write_sidecar
from runner.jobs.service import Kind, program_of
from runner.model.exit_codes import ANOTHERS_DIRECTORY
from runner.model.request import Mount, Request
from runner.preparation.job import PreparedJob, prepare
from runner.preparation.observation import named_paths
from runner.preparation.program_source import needed_modules
from runner.preparation.request import make_request
from runner.sites.loader import read_site
from tests.support.shell_files import stand_in
from tests.support.squashfs import SUPERBLOCK, published

REQUEST = Request(gpus=1, job_name="serve")


def prepared(tmp_path: Path, *words: str, **values: Any) -> PreparedJob:
    asked = {"gpus": 1, "site": "local", "runtime": "native", "runs": str(tmp_path / "runs"), "arguments": words}
    return prepare(make_request(asked | values))


def codes(job: PreparedJob, code: str = "program-not-startable") -> list[tuple[str, str]]:
    return [(each.what, each.fix) for each in job.findings if each.code == code and each.severity == "refuse"]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train $é.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.py").write_text("import os\n")
    (tmp_path / "begin").touch(mode=0o755)
    return tmp_path


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that other machines see, too."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as name:
        (Path(name) / "run.py").touch()
        yield Path(name)


def test_no_program_starts_where_all_may_write(directory: Path) -> None:
    directory.chmod(0o1777)
    ((what, fix),) = codes(prepared(directory, "python3", "run.py"), "open-directory")
    assert f"starts in {directory}" in what
    assert f"chmod go-w {directory}; then look at what others have left in it: find {directory} ! -user $USER" in fix
    directory.chmod(0o755)
    assert not codes(prepared(directory, "python3", "run.py"), "open-directory")


def test_what_runs_is_known_by_its_place_in_any_word_and_data_of_all_are_not_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "open").mkdir()
    (directory / "open").chmod(0o1777)
    (work := directory / "work").mkdir()
    for name, content in (("t.py", "import random"), ("tool", "#!/usr/bin/python3"), ("data", "1"), ("a.pt", "\x7fEL")):
        (directory / "open" / name).write_text(content)
        (directory / "open" / name).chmod(0o777)
    (work / "link.py").symlink_to("../open/t.py")
    monkeypatch.chdir(work)
    at = f"{directory}/open"
    for words in (("python3", "link.py"), ("bash", "-c", f"true; python3 {at}/t.py"), (f"{at}/tool",),
                  ("bash", "../open/tool"), ("python3", "-u", f"{at}/data")):  # fmt: skip
        ((what, _),) = codes(prepared(directory, *words), "open-directory")
        assert "open, or lies there, where all may write" in what
    data = ("python3", "-c", "1", f"{at}/data", f"--data={at}/a.pt", at, f"{at}/*", f"--out={at}/absent.py")
    assert not codes(prepared(directory, *data), "open-directory")


def test_modules_are_looked_for_neither_where_all_may_write_nor_in_a_directory_that_could_be_exchanged(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in (("open", 0o1777), ("loose", 0o777), ("closed", 0o755)):
        (directory / name / "own").mkdir(parents=True)
        (directory / name).chmod(mode)
    (directory / "open/modules.zip").touch()
    for part, is_refused in (("open", True), ("open/modules.zip", True), ("loose/own", True), ("closed/own", False),
                             ("open/own", False), ("open/not/there", False)):  # fmt: skip
        value = f"/not/here:{directory}/{part}:"
        of_env = {"env": (("PYTHONPATH", value),)}
        for words in (("python3", "run.py"), ()):
            refused = codes(prepared(directory, *words, **of_env), "open-directory")
            names = f"PYTHONPATH names {directory}/{part.removesuffix('/modules.zip')}, or a file there, w"
            assert [what.startswith(names) for what, _ in refused] == [True] * is_refused, (part, words)
        relative = codes(prepared(directory, "python3", "run.py", env=(("PYTHONPATH", part),)), "open-directory")
        monkeypatch.setenv("PYTHONPATH", value)
        of_shell = codes(prepared(directory, "python3", "run.py"), "open-directory")
        word = codes(prepared(directory, "env", f"PYTHONPATH={value}", "python3", "run.py"), "open-directory")
        assert bool(relative) == bool(of_shell) == bool(word) == is_refused
        for values in ({"env": (("PYTHONPATH", None),)}, {"modules": ("gcc",)}, {"site": "box", "runtime": None}):
            assert not codes(prepared(directory, "python3", "run.py", **values), "open-directory"), "it has another"
        monkeypatch.delenv("PYTHONPATH")


@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_the_job_compares_whose_a_directory_is_that_others_could_make_anew(
    mode: int, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is gone; whose it is was judged before the job waited."""
    (own := shared / "scratch/own").mkdir(0o700, parents=True)
    (below := own / "below").mkdir()
    for place in (own, below):
        shutil.copy(shared / "run.py", place)
    own.parent.chmod(mode)
    for start, script in ((own, "run.py"), (below, "run.py"), (shared, f"{own}/run.py")):
        monkeypatch.chdir(start)
        job = prepared(shared, "python3", script, runs=str(shared / "runs"))
        assert {*job.plan.owners} == ({(str(each), os.geteuid()) for each in (own, start)} if mode == 0o1777 else set())
        assert (f"(runner_enter {own} {os.geteuid()}) || exit {ANOTHERS_DIRECTORY}\n" in job.script.text) == (
            mode == 0o1777
        )
    monkeypatch.chdir(shared)
    for place in (own, own.parent / "later"):  # which is this user's, or stays away
        job = prepared(shared, "python3", "run.py", env=(("PYTHONPATH", str(place)),), runs=str(shared / "runs"))
        assert {*job.plan.owners} == (
            {(str(each), os.geteuid() if each.is_dir() else -1) for each in (place, shared)}
            if mode == 0o1777
            else set()
        )


def test_no_program_starts_where_another_user_could_exchange_its_directory(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the job waits; not where only its own owner can, as below a directory of all with the sticky bit."""
    (own := directory / "scratch/own").mkdir(0o700, parents=True)
    shutil.copy("run.py", own)
    runs = {"runs": str(directory / "runs")}
    for mode, is_refused in ((0o777, True), (0o1777, False), (0o755, False)):
        own.parent.chmod(mode)
        for start, script in ((own, "run.py"), (directory, f"{own}/run.py")):
            monkeypatch.chdir(start)
            refused = codes(prepared(directory, "python3", script, **runs), "open-directory")
            assert bool(refused) == is_refused, (mode, start)
            for what, fix in refused:
                assert f"{own}, or lies there, which is below {own.parent}, which is everybody's" in what
                assert fix.endswith(f"chmod +t {own.parent}")


def test_what_other_machines_find_by_its_path_is_not_on_this_ones_own_disk(
    directory: Path, tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As below /tmp, where on a node whoever makes the path first chooses what runs."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'clients'}:{os.environ['PATH']}")
    (tmp_path / "clients").mkdir()
    here = os.uname().nodename

    def own_disk(nodes: str, **values: Any) -> list[str]:
        stand_in(tmp_path / "clients", "sinfo", f"printf '%s\\n' {nodes}")
        words = values.pop("arguments", ("python3", "run.py"))
        job = prepared(directory, *words, **{"site": "capella", "account": "p", "queue": None} | values)
        return [what for what, _ in codes(job, "own-disk")]

    assert own_disk(here) == []
    (what,) = own_disk(f"{here} other")
    assert what.startswith(f"{directory / 'runs'} lies on this machine's own disk")
    elsewhere = {"runs": str(Path.home() / "runs")}
    (what,) = own_disk("other", **elsewhere)
    assert what.startswith(f"{directory} lies")
    assert own_disk("localhost") == []
    monkeypatch.chdir(shared)
    (directory / "tool").touch()
    (directory / "python3").symlink_to(sys.executable)
    (shared / "link.py").symlink_to(directory / "run.py")
    (shared / "env/bin").mkdir(parents=True)
    (shared / "env/pyvenv.cfg").touch()
    (shared / "env/bin/activate").touch()
    (shared / "env/bin/python3").symlink_to(directory / "python3")
    assert own_disk("other", **elsewhere) == []
    for words in ((f"{directory}/tool",), ("bash", f"{directory}/tool"), ("bash", "-c", f"python3 {directory}/run.py")):
        (what,) = own_disk("other", **elsewhere, arguments=words)
        assert what.startswith(f"{directory}/{'run.py' if '-c' in words else 'tool'} lies"), words
    for place in (directory, shared):
        subprocess.run(["git", "init", "-q", place], check=True)
        subprocess.run(["git", "add", "run.py"], cwd=place, check=True)
    assert own_disk("other", **elsewhere, arguments=("python3", f"{directory}/not/here", "--to=/tmp")) == []
    (directory / "text").write_text("data")
    for words in (("--data", str(directory)), (f"data.dir={directory}",), ("-o", f"{directory}"), (f"-D{directory}",),
                  (f"--log={directory}/text",), (f"file://{directory}/text",)):  # fmt: skip
        assert own_disk("other", **elsewhere, arguments=("python3", "run.py", *words)) == [], "of data"
    for more in ({"arguments": ("python3", "link.py")}, {"env_name": f"{shared}/env"},
                 {"arguments": ("python3", f"{directory}/run.py"), "snapshot": True},
                 {"arguments": ("env", f"PYTHONPATH={directory}", "python3", "run.py")},
                 {"env": (("PYTHONPYCACHEPREFIX", f"{directory}/gone"),)}):  # fmt: skip
        assert len(own_disk("other", **elsewhere, **more)) == 1, more
    monkeypatch.chdir(directory)
    assert own_disk("other", **elsewhere, snapshot=True) == [], "it starts in the copy"
    (tmp_path / "clients/in-box").touch()
    assert own_disk("other") == [], "of a box, whose nodes are this machine"


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("pyhton", "run.py"), "did you mean 'python"),
        (("run.py",), "-- python3 ./run.py"),
        (("begin",), "-- ./begin"),
        (("./train $é.sh",), "chmod +x"),
        (("./run.py", "--x"), "-- python3 ./run.py"),
        (("./absent.sh",), "correct its name"),
        (("{here}/absent.sh", "--x"), "correct its name"),
        (("{here}/train $é.sh",), "chmod +x"),
        (("python3 run.py", "--x"), "leave out the quotes: -- python3 run.py --x"),
        (("./train $é.sh --x",), "leave out the quotes: -- ./train $é.sh --x"),
        (("FOO=1", "python3", "run.py"), "write -- env FOO=1 python3 run.py"),
    ],
)
def test_what_cannot_be_started_is_refused_with_the_line_to_write(
    tmp_path: Path, words: tuple[str, ...], fix: str
) -> None:
    ((_, said),) = codes(prepared(tmp_path, *(word.format(here=tmp_path) for word in words)))
    assert fix in said


def test_what_can_be_started_or_is_not_known_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "train $é.sh").chmod(0o755)
    for words in (("python3", "run.py"), ("./train $é.sh",), ("/not/here",), ("../up.sh",)):
        assert not codes(prepared(tmp_path, *words))
    over = (Mount("/other", "/workspace"),)
    request = Request(gpus=1, mounts=over, program=("./absent.sh",), directory=str(tmp_path))
    assert not codes(prepare(msgspec.structs.replace(request, site="box", runtime="charliecloud", runs=str(tmp_path))))


def test_a_script_named_as_a_program_is_refused_in_a_container_too(tmp_path: Path) -> None:
    ((what, fix),) = codes(prepared(tmp_path, "run.py", site="box", runtime="charliecloud"))
    assert "run.py" in what and "-- python3 ./run.py" in fix
    assert not codes(prepared(tmp_path, "absent.py", site="box", runtime="charliecloud"))  # the image may have it


def test_what_the_arguments_name_and_a_shell_s_unused_environment_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "env").mkdir()
    place = Path(os.path.realpath(Path.cwd()))
    monkeypatch.setattr("runner.preparation.observation._OF_IMAGES", re.compile("/etc/"))
    words = (
        "python3",
        "run.py",
        f"--data={place}/run.py",
        f"{place}/not there",
        "/etc/passwd",
        "run.py",
        f"{place}//env/",
    )
    assert named_paths(words) == (f"{place}/run.py", f"{place}/env")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "env"))
    for values, unused in (({}, True), ({"image": "x:1"}, False), ({"runtime": "native"}, False)):
        job = prepared(tmp_path, "python3", "run.py", **({"site": "box", "runtime": None} | values))
        assert ("environment-not-used" in {each.code for each in job.findings}) == unused


@pytest.mark.skipif(not shutil.which("mksquashfs"), reason="squashfs-tools are not installed")
@pytest.mark.parametrize(("word", "refused"), [("python", True), ("pyhton", True), ("python3", False), ("mine", False)])
def test_a_program_that_an_image_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, *, refused: bool
) -> None:
    (tmp_path / "tree/usr/bin").mkdir(parents=True)
    (tmp_path / "tree/usr/bin/python3").symlink_to("python3.11")
    subprocess.run(["mksquashfs", tmp_path / "tree", tmp_path / "x", "-quiet", "-no-progress"], check=True)
    image = published(tmp_path / "x", tmp_path / "store")
    write_sidecar(msgspec.structs.replace(image, environment={"PATH": "/usr/local/bin:/usr/bin"}))
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path / "store"))
    found = codes(prepared(tmp_path, word, "run.py", site="box", runtime="charliecloud", image="x:1"))
    assert bool(found) == refused
    assert not refused or "python3" in found[0][1]


@pytest.mark.parametrize(("named", "whole"), [("a" * 12, True), ("sha256:" + "a" * 12, True), ("b" * 12, False)])
def test_the_beginning_of_a_digest_that_the_store_has_is_answered_by_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, *, whole: bool
) -> None:
    write_sidecar(published(SUPERBLOCK, tmp_path / "store"))
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path / "store"))
    job = prepared(tmp_path, "python3", "run.py", site="box", runtime="charliecloud", image=named)
    ((_, fix),) = codes(job, "image-unusable")
    assert (f"--image sha256:{'a' * 64}" in fix) == whole


def test_in_the_environment_of_gpu_runner_a_program_that_needs_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment that this test runs in is that of gpu-runner."""
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:{os.environ['PATH']}")
    (tmp_path / "run.py").write_text("import os, click\nimport not_there.at_all\n")
    ((what, fix),) = codes(prepared(tmp_path, "python", "run.py"), "environment-lacks")
    assert "not_there" in what and "gpu-runner's own environment" in what and "--env-name" in fix
    (tmp_path / "run.py").write_text("import os, click\n")
    assert not codes(prepared(tmp_path, "python", "run.py"), "environment-lacks")


def test_an_environment_that_lacks_what_a_program_imports_is_refused(tmp_path: Path) -> None:
    venv.create(tmp_path / "env")
    (tmp_path / "run.py").write_text("import click\n")
    ((what, _),) = codes(prepared(tmp_path, "python", "run.py", env_name=str(tmp_path / "env")), "environment-lacks")
    assert "click" in what and "own environment" not in what


def test_only_what_is_imported_whatever_happens_is_needed(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "helper.py").write_text("import needed_by_helper\nimport json\n")
    (tmp_path / "lazy.py").write_text("import not_needed\n")
    (tmp_path / "run.py").write_text(
        "import torch.nn as nn\nfrom . import x\nfrom helper import y\nimport own.z\nimport runner_meter\n"
        "try:\n    import apex\nexcept ImportError:\n    pass\nif 0:\n    import never\n\ndef f():\n    import lazy\n"
    )
    assert needed_modules(("python", "-u", "run.py", "--config", "lazy.py"), tmp_path) == ("needed_by_helper", "torch")
    assert needed_modules(("python", "-m", "helper"), tmp_path) == ("needed_by_helper",)
    assert needed_modules(("python", "-m", "gpu_runner_inside.hold"), tmp_path) == ()  # each run directory has it
    cases: tuple[tuple[Kind, tuple[str, ...]], ...]
    cases = (("notebook", ("jupyter_server",)), ("tensorboard", ("tensorboard",)), ("command", ()))
    for kind, needs in cases:
        words = program_of(kind, ["python", "{port}"], REQUEST, read_site("local"), idle_s=0)
        assert needed_modules(words, tmp_path) == needs
    for words in (("python", "-c", "import a"), ("python", "a\0.py"), ("python",), ("python", "-")):
        assert needed_modules(words, tmp_path) == ()


def test_modules_are_loaded_in_a_native_job_and_not_in_a_container(tmp_path: Path) -> None:
    modules = ("gcc/13", "cuda/12 4")
    assert prepared(tmp_path, "python3", "run.py", modules=modules).plan.load[0] == ("module", "load", *modules)
    said, fix = codes(prepared(tmp_path, "A=$x", "python3", site="box", runtime="charliecloud"))[0]
    assert "sets a variable" in said and fix == "write -- env A=$x python3"
    with pytest.raises(UsageError, match="sees no modules"):
        prepared(tmp_path, "python3", site="box", runtime="charliecloud", modules=modules)


def test_modules_that_a_job_will_not_have_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADEDMODULES", "gcc/13:cuda/12.4")
    said = [
        [each.fix for each in job.findings if each.code == "modules-dropped"]
        for job in (
            prepared(tmp_path, "python3", "run.py", site="box"),
            prepared(tmp_path, "python3", "run.py", site="box", modules=("cuda",)),
            prepared(tmp_path, "python3", "run.py"),
        )
    ]
    assert ["--module gcc/13 --module cuda/12.4" in fix for fix in said[0]] == [True]
    assert ["--module gcc/13" in fix and "cuda" not in fix for fix in said[1]] == [True]
    assert said[2] == []
