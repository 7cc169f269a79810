"""A job is prepared: each file is read once, and the plan is final."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runner.core.errors import RefusedError, UsageError
from runner.model.plan import Finding, record_of
from runner.preparation.job import prepare
from runner.preparation.request import make_request

FILES_READ = """
import sys
from collections import Counter
from pathlib import Path
opened = Counter()
def count(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".yaml"):
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
        (2, "polaris", RefusedError, "use `submit`"),
        (0, "technion", UsageError, "request one or more"),
    ):
        with pytest.raises(error) as caught:
            prepare(make_request({"gpus": gpus, "site": site, "recipe": "probe"}, step=True))
        assert says in caught.value.fix
