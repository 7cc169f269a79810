"""A request is one thing, however it was made: from options, from Python, from a file, or from one that is repeated."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from runner.cli.job_options import given, upgraded
from runner.cli.submit import command as submit
from runner.core import paths
from runner.core.errors import RefusedError, UsageError
from runner.model.job import CommandLine
from runner.model.plan import WORKSPACE, PlannedImage
from runner.model.request import Mount, Request, RequestRecord
from runner.preparation import request as stage
from runner.preparation.options import FIELDS, words_of
from runner.preparation.request import complete, image_of, make_request, recipe_of, repeated
from tests.support.plans import PLAN

EVERY: dict[str, Any] = {
    "gpus": 2, "nodes": 1, "site": "/a b/site.yaml", "recipe": "probe", "runtime": "pyxis", "image": "/x.sqsh",
    "mounts": (Mount("/data", "/data", True), Mount("/x", "/y")), "env": (("A", "b c=-d"), ("B", None), ("PATH", True)),
    "options": (("batch-size", "8"), ("precision", "-x")), "walltime_s": 3725, "queue": "q", "account": "a",
    "project": "p", "scratch": "/s", "field": "f", "gpu_type": "a100", "cpus_per_gpu": 3, "wireup": "pmix",
    "bind": "none", "scheduler_options": (("nice", "5"),), "force": ("a", "b"), "job_name": "n", "runs": "/r",
    "stage": True, "meter": True, "meter_batch": 4, "env_name": "/e/v", "modules": ("gcc/13", "cuda"), "snapshot": True,
    "no_diff": True, "world": "any", "hosts": "a:2,b:1", "arguments": ("--x", "$y"),
}  # fmt: skip
FIRST = make_request(
    {
        "gpus": 2, "env": (("A", "1"), ("B", "2"), ("C", None), ("PATH", True)), "stage": True,
        "mounts": (Mount("/x", "/data"), Mount("/y", "/out", True)), "options": (("model", "resnet50"),),
        "scheduler_options": (("mem", "0"),), "force": ("image-unusable",), "runtime": "pyxis",
        "arguments": ("python", "train.py", "--lr", "1"),
    },
    Path("/home/me"),
)  # fmt: skip


def again(changes: dict[str, Any], site: str = "", **more: Any) -> Request:
    return repeated(RequestRecord(FIRST, site), changes, **more)


def parsed(*words: str) -> Request:
    with submit.make_context("submit", list(words)) as context:
        assert isinstance(context, click.Context)
        return make_request(given(context))


def test_what_is_written_for_a_reader_and_what_is_kept_say_all_of_it() -> None:
    """Every option has a value here that is not its default."""
    request = make_request(EVERY)
    assert {*EVERY, "hostfile"} - {"gpus", "arguments"} == FIELDS.keys()
    assert parsed(*words_of(request)) == request
    kept = json.loads(json.dumps(msgspec.to_builtins(RequestRecord(request))))
    assert msgspec.convert(kept, RequestRecord).request == request
    old = upgraded(CommandLine(("submit", "--wait", *words_of(request)), str(Path.cwd()), "s"))
    assert old == RequestRecord(request, "s")
    for arguments in (("--yes",), ("status",), ()):
        with pytest.raises(UsageError, match="which runs no job"):
            upgraded(CommandLine(arguments, str(Path.cwd())))


def test_a_value_of_the_shell_is_in_no_record_and_is_read_when_the_job_is_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN", "planted")
    request = parsed("--gpus", "1", "--env", "TOKEN", "--env", "A=1")
    assert "planted" not in json.dumps(msgspec.to_builtins(request))
    assert complete(request).env == (("TOKEN", "planted"), ("A", "1"))
    monkeypatch.delenv("TOKEN")
    with pytest.raises(UsageError, match="'TOKEN' is not set in this shell"):
        complete(request)


def test_a_request_means_the_same_in_every_directory(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/recipe.yaml").touch()
    values: dict[str, Any] = {
        "gpus": 1, "site": "my.yaml", "recipe": "mine", "image": "./x.sqsh", "env_name": "e/v", "hostfile": "h",
        "mounts": (Mount("data", "/data"), Mount("~/x", "/x")),
    }  # fmt: skip
    request = make_request(values, tmp_path)
    below = [request.site, request.recipe, request.image, request.env_name, request.hostfile, request.runs]
    assert below == [str(tmp_path / name) for name in ("my.yaml", "mine", "x.sqsh", "e/v", "h", "runs")]
    assert [each.source for each in request.mounts] == [str(tmp_path / "data"), str(Path("~/x").expanduser())]
    names = {"gpus": 1, "site": "technion", "recipe": "probe", "image": "hvd:1", "env_name": "mine"}
    named = make_request(names, tmp_path)
    assert {name: getattr(named, name) for name in names} == names


@pytest.mark.parametrize(
    ("recipe", "arguments", "chosen", "is_program"),
    [
        (None, ("python", "t.py"), "t", True),
        (None, ("--model", "x"), "horovod-pytorch", False),
        (None, (), "horovod-pytorch", False),
        ("probe", ("python", "t.py"), "probe", False),
    ],
)
def test_arguments_are_a_program_unless_a_recipe_is_named_or_they_are_options(
    recipe: str | None, arguments: tuple[str, ...], chosen: str, is_program: bool
) -> None:
    request = make_request({"gpus": 1, "recipe": recipe, "arguments": arguments})
    assert recipe_of(request).recipe.name == chosen
    assert request.starts_in == (str(Path.cwd()) if is_program else None)
    assert (request.program, request.arguments) == ((arguments, ()) if is_program else ((), arguments))


def test_a_list_of_hosts_is_the_site_unless_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_SITE", raising=False)
    file = tmp_path / "hosts"
    file.write_text("a slots=2\n")
    for given_so in ({"hosts": "a:2"}, {"hostfile": str(file)}):
        request = complete(make_request({"gpus": 1, **given_so}))
        assert (request.site, request.hosts) == ("hosts", (("a", 2),))
    assert complete(make_request({"gpus": 1, "hosts": "a:2", "site": "technion"})).site == "technion"
    assert complete(make_request({"gpus": 1})).site is None
    with pytest.raises(UsageError, match="hosts are given twice"):
        make_request({"gpus": 1, "hosts": "a:2", "hostfile": str(file)})
    with pytest.raises(UsageError, match="No such file"):
        complete(make_request({"gpus": 1, "hostfile": str(tmp_path / "none")}))


def test_what_is_given_again_replaces_and_what_is_new_is_added() -> None:
    assert again({}) == FIRST
    changed = again(
        {
            "gpus": 8, "env": (("C", "3"), ("A", "9")), "mounts": (Mount("z", "/data", True),), "nodes": 1,
            "options": (("model", "resnet18"), ("batch", "1")), "scheduler_options": (("qos", "x"),),
            "force": ("image-unusable", "mig-slices"), "arguments": ("python", "other.py"),
        }
    )  # fmt: skip
    assert (changed.gpus, changed.nodes, changed.stage) == (8, 1, True)
    assert (changed.env, changed.env_of_shell) == ((("B", "2"), ("PATH", ""), ("C", "3"), ("A", "9")), ("PATH",))
    of_the_first = Mount("/home/me/z", "/data", True)
    assert changed.mounts == (Mount("/y", "/out", True), of_the_first)
    assert changed.options == (("model", "resnet18"), ("batch", "1"))
    assert changed.scheduler_options == (("mem", "0"), ("qos", "x"))
    assert changed.force == ("image-unusable", "mig-slices")
    assert (changed.program, changed.directory) == (("python", "other.py"), "/home/me")
    with pytest.raises(UsageError, match="--lr is no program") as caught:
        again({"arguments": ("--lr", "2")})
    assert "-- python ..." in caught.value.fix


@pytest.mark.parametrize(
    ("changes", "more", "name", "value"),
    [
        ({}, {"without": ("stage",)}, "stage", False),
        ({"env": (("D", "1"),)}, {"without": ("env",)}, "env", (("D", "1"),)),
        ({"recipe": "probe", "arguments": ("--sleep", "2")}, {}, "arguments", ("--sleep", "2")),
        # The image is the one that ran unless another is requested.
        ({}, {"image": "x@sha256:00"}, "image", "x@sha256:00"),
        ({"image": "y"}, {"image": "x@sha256:00"}, "image", "y"),
        ({"env_name": "e"}, {"image": "x@sha256:00"}, "image", None),
        ({"runtime": "native"}, {"image": "x@sha256:00"}, "image", None),
        ({"runtime": "enroot"}, {"image": "x@sha256:00"}, "image", "x@sha256:00"),
        ({}, {"site": "technion"}, "site", "technion"),
        ({"site": "local"}, {"site": "technion"}, "site", "local"),
        ({"hosts": "a:2"}, {"site": "hosts"}, "site", None),
    ],
)
def test_a_repeated_request_is_the_first_one_but_for(changes: Any, more: Any, name: str, value: object) -> None:
    assert getattr(again(changes, **more), name) == value


DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "runtime", "name"),
    [
        (PLAN.image, "pyxis", "/i.sqsh"),
        (PlannedImage("a/b:1", DIGEST, "/s/x.sqsh"), "pyxis", f"a/b:1@{DIGEST}"),
        (PlannedImage("./x.sqsh", DIGEST, "/s/x.sqsh"), "pyxis", "/s/x.sqsh"),
        (PlannedImage("env", "", "/e"), "native", ""),
    ],
)
def test_the_image_of_a_plan_is_named_by_its_digest_or_its_file(image: PlannedImage, runtime: str, name: str) -> None:
    assert image_of(msgspec.structs.replace(PLAN, image=image, runtime=runtime)) == name


def test_a_file_system_that_does_not_answer_is_reported_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, stat = threading.Event(), Path.stat

    def slow(self: Path, **options: Any) -> os.stat_result:
        if self.name == "dead":
            hangs.wait(30)
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", slow)
    began = time.monotonic()
    with pytest.raises(RefusedError, match="has not answered for") as caught:
        paths.refuse_silent([tmp_path, tmp_path / "none", tmp_path / "dead"], 0.2)
    hangs.set()
    assert caught.value.where == str(tmp_path / "dead")
    assert time.monotonic() - began < 5
    paths.refuse_silent([tmp_path, tmp_path / "none", "\0", "x" * 5000])


def test_the_files_of_a_program_must_answer_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(paths, "refuse_silent", lambda places: looked_at.extend(map(str, places)))
    program = ("python3", "-u", "/dead/train.py", "--log", "/dead/log.txt")
    stage.check_answers(Request(gpus=1, runs=str(tmp_path), program=program))
    assert "/dead/train.py" in looked_at
    assert "/dead/log.txt" not in looked_at


def refuse(directory: Path, line: str, *mounts: Mount, runs: Path | None = None, runs_here: bool = False) -> None:
    mounted = (Mount(str(directory), WORKSPACE), *mounts)
    stage.refuse_missing_script(line.split(), directory, mounted, runs or directory / "runs", runs_here=runs_here)


@pytest.mark.parametrize(
    "line", ["python trian.py", "/usr/bin/python3.11 -u -W ignore ./a/trian.py --lr 1", "python3 -Xdev t.py"]
)
def test_a_script_that_is_not_there_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError, match=r"there is no file (\./a/)?tr?i?a?n?\.py in this directory") as caught:
        refuse(tmp_path, line)
    assert caught.value.where == str(tmp_path)


@pytest.mark.parametrize(
    "line",
    ["python train.py", "python ./train.py", "python -m trian.py", "python -c trian.py", "python - trian.py", "python",
     "python tool --config new.py", "python ../trian.py", "python /opt/trian.py", "bash run.py", "torchrun trian.py",
     "python link.py", ""],
)  # fmt: skip
def test_what_may_be_there_is_not_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "link.py").symlink_to("/only/on/the/nodes.py")
    refuse(tmp_path, line)


def test_a_script_is_not_refused_where_the_job_may_see_other_files(tmp_path: Path) -> None:
    line = "python trian.py"
    refuse(tmp_path, line, Mount("/data", f"{WORKSPACE}/sub"))
    refuse(tmp_path, line, runs=Path("/proc"))  # another file system
    refuse(tmp_path / "gone" / "\0", line)
    with pytest.raises(UsageError, match=r"no file trian\.py"):
        refuse(tmp_path, line, Mount("/data", "/data"), runs=Path("/proc"), runs_here=True)


def test_a_recipe_beside_the_settings_is_not_that_of_the_directory_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config/config.yaml"))
    for place in ("config/recipes/theirs", "work/theirs", "work/here"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "recipe.yaml").touch()
    named = [make_request({"gpus": 1, "recipe": name}, tmp_path / "work").recipe for name in ("theirs", "here")]
    assert named == ["theirs", str(tmp_path / "work/here")]
