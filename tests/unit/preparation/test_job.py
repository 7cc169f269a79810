"""A job is prepared: each file is read once, each module is passed once, and the plan is final."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

from runner.core.errors import RefusedError, UsageError
from runner.model.plan import Finding, record_of
from runner.preparation.job import prepare
from runner.preparation.request import make_request
from tests.support.shell_files import stand_in

FILES_READ = """
import os, sys
from collections import Counter
from pathlib import Path
opened = Counter()
def count(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".yaml") and not arguments[2] & os.O_PATH:  # a look alone
        opened[Path(arguments[0]).name] += 1
sys.addaudithook(count)
from runner.preparation.job import prepare
from runner.preparation.request import make_request
prepare(make_request({"gpus": 1, "site": sys.argv[1], "recipe": "probe"}))
print(sorted(opened.items()))
"""


@pytest.fixture(autouse=True)
def _empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STORE", str(tmp_path / "store"))


def test_configuration_site_files_and_recipe_are_each_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("account: mine\n")
    (tmp_path / "ours.yaml").write_text("name: ours\nextends: technion\n")
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
    words = [sys.executable, "-c", FILES_READ, str(tmp_path / "ours.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    files = ["config.yaml", "ours.yaml", "recipe.yaml", "technion.yaml"]
    assert done.stdout.strip() == str([(name, 1) for name in files])


def test_a_prepared_job_holds_its_final_plan(tmp_path: Path) -> None:
    values = {"gpus": 3, "site": "hosts", "hosts": "a:2,b:2", "runs": str(tmp_path), "arguments": ("./train.sh",)}
    prepared = prepare(make_request(values))
    assert prepared.recipe_directory is None
    assert prepared.plan.hosts is not None
    assert (prepared.plan.hosts.names, prepared.plan.hosts.programs) == (("a", "b"), ("python3",))
    assert prepared.plan.tasks_per_node == (2, 1)
    assert prepared.plan.program == ("./train.sh",)


def test_what_was_forced_stands_in_the_record_of_the_plan() -> None:
    values = {"gpus": 1, "site": "technion", "recipe": "probe", "force": ("image-unusable",)}
    prepared = prepare(make_request(values))
    assert not prepared.is_refused
    record = record_of(prepared.plan, prepared.findings)
    assert (record.forced, record.program) == (("image-unusable",), prepared.plan.program)
    assert record_of(prepared.plan, [Finding("image-unusable", "warn", "", "")]).forced == ()


def test_a_step_needs_an_allocation_and_a_plan_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for gpus, site, error, says in (
        (2, "technion", RefusedError, "salloc --job-name=probe"),
        (2, "perlmutter", RefusedError, "--qos=shared_interactive"),
        (16, "perlmutter", RefusedError, "--qos=interactive"),
        (32, "perlmutter", RefusedError, "--qos=regular"),  # the others take four nodes at most
        (2, "polaris", RefusedError, "qsub -I -N probe"),
        (0, "technion", UsageError, "request one or more"),
    ):
        with pytest.raises(error) as caught:
            prepare(make_request({"gpus": gpus, "site": site, "recipe": "probe"}, step=True))
        assert says in caught.value.fix


def test_a_step_says_which_settings_of_the_shell_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = "   JobState=RUNNING\n     Nodes=a CPU_IDs=0-255 Mem=1 GRES=gpu:a100:8(IDX:0-7)\n"
    stand_in(tmp_path, "scontrol", f"case $* in *show\\ job*) printf '%s' '{job}' ;; *) echo a ;; esac")
    for name, value in (("SLURM_JOB_ID", "7"), ("SLURM_HINT", "nomultithread"), ("NCCL_IB_HCA", "mlx5_0"),
                        ("PATH", f"{tmp_path}:{os.environ['PATH']}")):  # fmt: skip
        monkeypatch.setenv(name, value)
    said: list[str] = []
    prepare(make_request({"gpus": 2, "site": "technion", "recipe": "probe"}, step=True), say=said.append)
    assert [line.partition(";")[0] for line in said] == ["not taken from this shell: NCCL_IB_HCA, SLURM_HINT"]


class Stays:
    """The modules of ours that a call passes, in the order in which each is entered.

    A module is entered where one of its functions is called from another module of ours; it is left where a third one
    is entered. That a call returns, or a generator goes on, is no entry. Not counted are ``core`` and ``model``, which
    all use, and the methods of values that are handed on: they belong to the data.
    """

    def __init__(self) -> None:
        self.modules: list[str] = []
        self._frames: set[FrameType] = set()  # kept, so that a generator that goes on is known

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or frame in self._frames or not (here := self._module(frame)):
            return
        self._frames.add(frame)
        is_method = code.co_argcount > 0 and code.co_varnames[0] == "self"
        caller = frame.f_back
        while caller is not None and not self._module(caller):
            caller = caller.f_back
        called_from = self._module(caller) if caller is not None else ""
        if not is_method and called_from != here and self.modules[-1:] != [here]:
            self.modules.append(here)

    @staticmethod
    def _module(frame: FrameType) -> str:
        name = str(frame.f_globals.get("__name__"))
        return name if name.startswith("runner.") and name.split(".")[1] not in ("core", "model") else ""


def test_data_pass_each_module_once(tmp_path: Path) -> None:
    """Of the modules that are passed, few are returned to: their results are handed on, and not looked up again."""
    (tmp_path / "image.sqsh").write_bytes(b"hsqs" + bytes(24) + b"\4" + bytes(67))
    values = {"gpus": 16, "site": "technion", "image": str(tmp_path / "image.sqsh"), "runs": str(tmp_path / "runs")}
    request = make_request(values)
    assert prepare(request).plan.runtime == "pyxis"  # imports what the second one passes
    stays = Stays()
    sys.setprofile(stays)
    try:
        prepare(request)
    finally:
        sys.setprofile(None)
    assert {"runner.sites.loader", "runner.planning.plan", "runner.checks.rules"} <= set(stays.modules)
    returns = len(stays.modules) - len(set(stays.modules))
    assert returns <= 27, stays.modules
