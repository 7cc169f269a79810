"""Bad input through the real command line: a clear error, the exit code of the table, and never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runner.cli import VERBS, run
from runner.errors import Exit


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("RUNNER_SITE", raising=False)
    monkeypatch.delenv("RUNNER_STORE", raising=False)


SITE = """{}
description: x
scheduler: slurm
runtimes: [pyxis]
node:
  cores: 8
  memory_mb: 1000
  gpus: 8
"""


def submit(*words: str) -> list[str]:
    return ["submit", "--site", "technion", "--gpus", "16", *words]


BAD: dict[str, tuple[list[str], Exit, str]] = {
    "no such verb": (["sumbit"], Exit.USAGE, "did you mean 'submit'?"),
    "no GPUs named": (["submit"], Exit.USAGE, "--gpus"),
    "GPUs that are no number": (["submit", "--gpus", "many"], Exit.USAGE, "many"),
    "no GPUs": (["submit", "--gpus", "0"], Exit.USAGE, "0 GPUs"),
    "fewer than no GPUs": (["submit", "--gpus", "-1"], Exit.USAGE, "-1 GPUs"),
    "more GPUs than anybody has": (["submit", "--gpus", "1000000000"], Exit.REFUSED, "more than 10000 nodes"),
    "GPUs beyond all numbers": (["submit", "--gpus", "1" + "0" * 20], Exit.REFUSED, "more than 10000 nodes"),
    "home of nobody": (submit("--mount", "~no-such-user/x:/x"), Exit.USAGE, "no-such-user"),
    "mount over the root": (submit("--mount", "/tmp:/"), Exit.USAGE, "hide all of it"),
    "mount into the run directory": (submit("--mount", "/tmp:/results/lib"), Exit.USAGE, "/results/lib"),
    "mount source of any length": (submit("--mount", f"/{'x' * 5000}:/x"), Exit.REFUSED, "mount-source-missing"),
    "run directory that cannot be mounted": (submit("--runs", "/tmp/a,b"), Exit.REFUSED, "run-directory-unmountable"),
    "no nodes": (submit("--nodes", "0"), Exit.USAGE, "0 nodes"),
    "more nodes than ranks": (submit("--nodes", "17"), Exit.USAGE, "17 nodes"),
    "too few nodes": (submit("--nodes", "1"), Exit.REFUSED, "do not fit on 1 nodes of 8"),
    "unknown site": (["submit", "--gpus", "1", "--site", "tecnion"], Exit.USAGE, "did you mean 'technion'?"),
    "missing site file": (["submit", "--gpus", "1", "--site", "./no.yaml"], Exit.USAGE, "no such file"),
    "unknown recipe": (submit("--recipe", "horovod-pytroch"), Exit.USAGE, "did you mean 'horovod-pytorch'?"),
    "missing recipe folder": (submit("--recipe", "./no/such"), Exit.USAGE, "recipe.yaml"),
    "unknown runtime": (submit("--runtime", "pyxsi"), Exit.USAGE, "did you mean 'pyxis'?"),
    "runtime that the site lacks": (submit("--runtime", "charliecloud"), Exit.REFUSED, "runtime-not-at-site"),
    "unknown option": (submit("--set", "modle=x"), Exit.USAGE, "did you mean 'model'?"),
    "setting without value": (submit("--set", "model"), Exit.USAGE, "KEY=VALUE"),
    "environment that is not set here": (submit("--env", "NOT_SET_HERE"), Exit.USAGE, "NAME=VALUE"),
    "reserved name": (submit("--env", "PATH=/x"), Exit.USAGE, "belongs to the container"),
    "bad name": (submit("--env", "A B=1"), Exit.USAGE, "no name of a variable"),
    "mount of one part": (submit("--mount", "/a"), Exit.USAGE, "SRC:DST"),
    "mount of four parts": (submit("--mount", "/a:/b:/c:ro"), Exit.USAGE, "SRC:DST"),
    "mount to a relative path": (submit("--mount", "/tmp:b"), Exit.USAGE, "not absolute"),
    "mount over the run directory": (submit("--mount", "/tmp:/results"), Exit.USAGE, "/results"),
    "mount that the runtime cannot": (submit("--mount", "/a,b:/x"), Exit.USAGE, "','"),
    "missing mount source": (submit("--mount", "/no/such/dir:/x"), Exit.REFUSED, "mount-source-missing"),
    "no image converted": (submit(), Exit.REFUSED, "python -m runner convert"),
    "time that is no time": (submit("--time", "soon"), Exit.USAGE, "soon"),
    "time in an unclear unit": (submit("--time", "30"), Exit.USAGE, "10:00 is ten minutes"),
    "no time": (submit("--time", "00:00"), Exit.USAGE, "zero"),
    "job name with a blank": (submit("--name", "a b"), Exit.USAGE, "--name"),
    "newline in a directive": (submit("--account", "a\nb"), Exit.USAGE, "newline"),
    "no run yet": (["status"], Exit.USAGE, "no run is known yet"),
    "unknown run": (["wait", "no-such-run"], Exit.USAGE, "no run 'no-such-run'"),
    "logs of no run": (["logs"], Exit.USAGE, "no run is known yet"),
    "cancel of no run": (["cancel", "/"], Exit.USAGE, "no run '/'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    words, code, says = BAD[name]
    assert run(words) == code
    said = capfd.readouterr()
    assert says in said.err
    assert "Traceback" not in said.err


def test_a_dry_run_prints_the_script_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(submit("--dry-run")) == Exit.REFUSED, "there is no image: a submission would be refused"
    said = capfd.readouterr()
    assert said.out.startswith("#!/bin/bash\n#SBATCH ")
    assert "passed" not in said.out + said.err
    assert "image-unusable" in said.err
    assert list(tmp_path.iterdir()) == []


def test_an_image_given_as_a_file_is_taken_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    image = tmp_path / "it's mine.sqsh"
    image.write_bytes(b"hsqs" + bytes(92))
    assert run(submit("--image", str(image), "--dry-run")) == Exit.GOOD
    assert "it'\\''s mine.sqsh" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name: x\nname: y\n", "stands twice"),
        ("name: x\nscheduler: slrum\n", "scheduler"),
        ("name: !!python/name:os.system x\n", "tag"),
        ("a: &a [x]\nb: *a\n", "anchors"),
        ("", "empty"),
        (SITE.replace("{}", "name: a b"), "cannot be a site's name"),
        (SITE.replace("{}", "name: a").replace("gpus: 8", "gpus: 0"), "not a possible value"),
        (SITE.replace("{}", "name: a").replace("gpus: 8", "gpus: 8\n  count: -1"), "not a possible value"),
        (SITE.replace("{}", "name: a\nslurm:\n  directives: {output: x}"), "decided by the plan"),
    ],
)
def test_a_malformed_site_file_is_told_with_its_line(
    tmp_path: Path, content: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(content)
    assert run(["submit", "--gpus", "1", "--site", str(path)]) == Exit.USAGE
    said = capfd.readouterr().err
    assert says in said
    assert "slurm.directives.output" in said or str(path) in said


def test_sites_are_listed_and_shown_with_what_is_unproven(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["site", "list"]) == Exit.GOOD
    assert "technion" in capfd.readouterr().out
    assert run(["site", "show", "technion"]) == Exit.GOOD
    assert "UNPROVEN" in capfd.readouterr().out
    assert run(["site", "show", "technion", "--json"]) == Exit.GOOD
    assert json.loads(capfd.readouterr().out)["node"]["gpus"] == 8


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == Exit.GOOD
    assert "Usage:" in capfd.readouterr().out


def test_the_help_imports_nothing_heavy() -> None:
    code = "import sys; from runner.cli import run; run(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("docker", "rich", "yaml", "msgspec", "requests"):
        assert f"'{heavy}'" not in done.stderr
