"""Bad input through the real command line: a clear error, the exit code of the table, and never a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from runner.cli import VERBS, cli, main, run
from runner.core import ownership, process
from runner.core.errors import Exit
from runner.jobs.directory import index
from tests.support.commands import Call
from tests.support.documents import result
from tests.support.measured_runs import measured_run
from tests.support.squashfs import SUPERBLOCK
from tests.support.submissions import IMAGE, sound, submit


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    Path(IMAGE).write_bytes(SUPERBLOCK)


HELPS = ("--help", "--help-all")
CHECKOUT = Path(__file__).resolve().parents[3]
SITE = """{}
description: x
scheduler: slurm
runtimes: [pyxis]
node:
  cores: 8
  memory_mb: 1000
  gpus: 8
"""


BOX = ("--site", "box", "--gpus")
ONE_HOST = ("--gpus", "1", "--hosts", "a:1")
NO_ENGINE = ("--engine", "unix:///no")


BAD: dict[str, tuple[list[str], Exit, str]] = {
    "no such verb": (["sumbit"], Exit.USAGE, "did you mean 'submit'?"),
    "no GPUs named": (["submit"], Exit.USAGE, "--gpus"),
    "no such batch script": (["submit", "no.sbatch"], Exit.USAGE, "No such file"),
    "no such batch script, with GPUs": (["submit", "--gpus", "2", "no.sbatch"], Exit.USAGE, "No such file"),
    "no batch script to check": (["submit", "--check", "/tmp/.slurm/no.slurm"], Exit.USAGE, "No such file"),
    "no GPUs": (["submit", *BOX, "0"], Exit.USAGE, "0 GPUs"),
    "GPUs beyond all numbers": (["submit", *BOX, "1" + "0" * 20], Exit.REFUSED, "more than 10000 nodes"),
    "home of an unknown user": (submit("--mount", "~no-such-user/x:/x"), Exit.USAGE, "no-such-user"),
    "mount over the root": (submit("--mount", "/tmp:/"), Exit.USAGE, "hide the whole image"),
    "mount into the run directory": (submit("--mount", "/tmp:/results/lib"), Exit.USAGE, "/results/lib"),
    "mount source of any length": (submit("--mount", f"/{'x' * 5000}:/x"), Exit.REFUSED, "mount-source-missing"),
    "run directory that cannot be mounted": (submit("--runs", "/tmp/a,b"), Exit.REFUSED, "run-directory-unmountable"),
    "no nodes": (submit("--nodes", "0"), Exit.USAGE, "0 nodes"),
    "more nodes than ranks": (submit("--nodes", "17"), Exit.USAGE, "17 nodes"),
    "too few nodes": (submit("--nodes", "1"), Exit.REFUSED, "do not fit on 1 node of 8"),
    "unknown site": (["submit", "--gpus", "1", "--site", "tecnion"], Exit.USAGE, "did you mean 'technion'?"),
    "missing site file": (["submit", "--gpus", "1", "--site", "./no.yaml"], Exit.USAGE, "no such file"),
    "unknown recipe": (submit("--recipe", "horovod-pytroch"), Exit.USAGE, "did you mean 'horovod-pytorch'?"),
    "unknown runtime": (submit("--runtime", "pyxsi"), Exit.USAGE, "did you mean 'pyxis'?"),
    "runtime that the site lacks": (submit("--runtime", "charliecloud"), Exit.REFUSED, "runtime-not-at-site"),
    "setting without value": (submit("--set", "model"), Exit.USAGE, "KEY=VALUE"),
    "environment that is not set here": (submit("--env", "NOT_SET_HERE"), Exit.USAGE, "NAME=VALUE"),
    "reserved name": (submit("--env", "PATH=/x"), Exit.USAGE, "belongs to the container"),
    "taking away a reserved name": (submit("--env", "-PATH"), Exit.USAGE, "belongs to the container"),
    "taking away a variable of the launcher": (submit("--env=-RANK"), Exit.USAGE, "set by the launcher"),
    "taking away a value": (submit("--env", "-A=1"), Exit.USAGE, "is not -NAME"),
    "taking away nothing": (submit("--env", "-"), Exit.USAGE, "is not -NAME"),
    "empty variable": (submit("--env", ""), Exit.USAGE, "without a name"),
    "mount of one part": (submit("--mount", "/a"), Exit.USAGE, "SRC:DST"),
    "mount of four parts": (submit("--mount", "/a:/b:/c:ro"), Exit.USAGE, "SRC:DST"),
    "mount over the run directory": (submit("--mount", "/tmp:/results"), Exit.USAGE, "/results"),
    "mount that the runtime cannot": (submit("--mount", "/a,b:/x"), Exit.USAGE, "','"),
    "no image converted": (submit(), Exit.REFUSED, "gpu-runner convert"),
    "no image named": (["submit", "--gpus", "1", "--site", "alpha"], Exit.REFUSED, "in none: --runtime native"),
    "time that is no time": (submit("--time", "soon"), Exit.USAGE, "soon"),
    "time in an unclear unit": (submit("--time", "30"), Exit.USAGE, "10:00 is ten minutes"),
    "no time": (submit("--time", "00:00"), Exit.USAGE, "zero"),
    "job name with a blank": (submit("--name", "a b"), Exit.USAGE, "--name"),
    "newline in a directive": (submit("--account", "a\nb"), Exit.USAGE, "newline"),
    "no Slurm client": (sound(), Exit.NOT_ACCEPTED, "no Slurm client"),
    "no permission for the run directory": (sound("--runs", "/sys/runs"), Exit.USAGE, "--runs"),
    "run directory below a file": (sound("--runs", f"{IMAGE}/runs"), Exit.USAGE, "--runs"),
    "image that is a directory": (submit("--image", "/"), Exit.USAGE, "a directory"),
    "recipe folder that cannot be made": (["recipe", "new", "/sys/x", "--", "true"], Exit.USAGE, "name another folder"),
    "recipe folder without a recipe": (submit("--recipe", "/"), Exit.USAGE, "/recipe.yaml"),
    "engine that is not there": (["build", "pytorch", *NO_ENGINE], Exit.INFRASTRUCTURE, "does not answer"),
    "store that is a file": (["convert", "x", "--store", IMAGE], Exit.USAGE, "--store"),
    "layers of a registry": (["convert", "x/y:1", "--from", "registry", "--way", "layers"], Exit.USAGE, "--way layers"),
    "SIF packed by us": (["convert", "x", "--format", "sif", "--zstd-level", "3"], Exit.USAGE, "--zstd-level"),
    "SIF of another platform": (["convert", "x", "--format", "sif", "--platform", "a/b"], Exit.USAGE, "--platform"),
    "box of too many nodes": (["box", "up", "--nodes", "100"], Exit.USAGE, "--nodes"),
    "box with nothing to bind": (["box", "up", "--bind", "/no/such"], Exit.REFUSED, "/no/such"),
    "box of a name that is none": (["box", "down", "--name", "A"], Exit.USAGE, "--name"),
    "proofs where no GPU is": (["prove"], Exit.REFUSED, "no NVIDIA GPU that can be seen"),
    "proofs of a cluster without GPUs": (["prove", "--site", "box"], Exit.REFUSED, "box has no NVIDIA GPU"),
    "pretence on a cluster with GPUs": (["prove", "--site", "neuron", "--pretend-cpu"], Exit.USAGE, "neuron has GPUs"),
    "proofs on no GPUs": (["prove", "--pretend-cpu", "--gpus", "0"], Exit.USAGE, "0 GPUs"),
    "packages for an image": (["prove", "--pretend-cpu", "--image", "x", "--wheels", "."], Exit.USAGE, "or --image"),
    "a rung that there is not": (["prove", "--pretend-cpu", "--again", "devcies"], Exit.USAGE, "mean 'devices'?"),
    "a cluster where there is none": (["site", "detect"], Exit.REFUSED, "no client of Slurm or PBS is here"),
    "an account where nothing is charged": (submit("--site", "local", "-A", "lab"), Exit.USAGE, "leave it out"),
    "an account of hosts": (["submit", "--gpus", "1", "--hosts", "a:1", "--account", "x"], Exit.USAGE, "leave it out"),
    "a module of no name": (submit("--module", ""), Exit.USAGE, "is not the name of one module"),
    "a profiler as an option": (submit("--nsys", "0"), Exit.USAGE, "-- nsys profile -o "),
    "a runtime that is gone": (submit("--runtime", "sarus"), Exit.USAGE, "podman-hpc, enroot or pyxis"),
    "an array of jobs": (submit("-S", "array=0-3"), Exit.USAGE, "one run directory"),
    "a SIF for a runtime of squashfs": (submit("--image", "/x.sif"), Exit.REFUSED, "squashfs, and /x.sif is not one"),
    "rank below none": (["logs", "--rank", "-1"], Exit.USAGE, "--rank"),
    "patience below none": (["wait", "--timeout", "-1"], Exit.USAGE, "--timeout"),
    "run of no UTF-8": (["status", "\udcff"], Exit.USAGE, "no run"),
    "run of no name": (["status", ""], Exit.USAGE, "no run"),
    "no run yet": (["wait"], Exit.USAGE, "there are no runs yet"),
    "what other tools call the list": (["ls"], Exit.USAGE, 'no command "ls"; to list runs: gpu-runner status'),
    "a list of one": (["status", "x", "--site", "y"], Exit.USAGE, "options of the list together with RUN"),
    "a list of no state": (["status", "--state", "fine"], Exit.USAGE, "'fine' is not one of 'pending', 'running'"),
    "a list of no time": (["status", "--since", "soon"], Exit.USAGE, "not an age such as 30d"),
    "a list of all and some": (["status", "--all", "--last", "3"], Exit.USAGE, "leave one out"),
    "unknown run": (["wait", "no-such-run"], Exit.USAGE, 'no run matches "no-such-run"'),
    "a step with no allocation": (["run", "--site", "technion", "--gpus", "16"], Exit.REFUSED, "salloc --job-name="),
    "a step where there is no Slurm": (["run", "--site", "local", "--gpus", "1"], Exit.REFUSED, "use `submit`"),
    "two nodes of one machine": (submit("--site", "local", "--nodes", "2"), Exit.REFUSED, "this site has 1"),
    "hosts that are not named": (["submit", "--site", "hosts", "--gpus", "1"], Exit.USAGE, "--hostfile"),
    "hosts named twice": (["submit", "--gpus", "1", "--hosts", "a:1", "--hostfile", "f"], Exit.USAGE, "one of them"),
    "a host file that is not there": (["submit", "--gpus", "1", "--hostfile", "/no/f"], Exit.USAGE, "/no/f"),
    "a host that is an option": (["submit", "--gpus", "1", "--hosts", "-oProxyCommand=x"], Exit.USAGE, "ssh NAME"),
    "hosts where there is a scheduler": (submit(*ONE_HOST), Exit.USAGE, "slurm allocates the nodes"),
    "hosts where jobs run here": (submit("--site", "local", *ONE_HOST), Exit.USAGE, "run on this machine only"),
    "more than the hosts hold": (["submit", "--gpus", "3", "--hosts", "a:1,b:1"], Exit.REFUSED, "a:1,b:1"),
    "a step on hosts": (["run", "--gpus", "1", "--hosts", "a:1"], Exit.REFUSED, "use `submit`"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_the_reason(name: str, call: Call) -> None:
    words, code, says = BAD[name]
    assert says in (said := call(*words, code=code).err) and "Traceback" not in said


@pytest.mark.parametrize("place", ["/sys/ours", IMAGE, f"{IMAGE}/below"], ids=["read-only", "a file", "below a file"])
def test_a_directory_that_cannot_be_made_is_reported_with_its_variable(
    place: str, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    for variable, words, code in (
        ("RUNNER_STATE", sound(), Exit.USAGE),
        ("RUNNER_CACHE", ["box", "up"], Exit.INFRASTRUCTURE),
    ):
        monkeypatch.setenv(variable, place)
        said = call(*words, code=code).err
        assert variable in said and place in said


def test_a_working_directory_that_is_gone_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for verb, code, fix in (
        ("recipe new x", Exit.INFRASTRUCTURE, "cd to one"),
        ("site check x.yaml", Exit.USAGE, "with /"),
    ):
        err = call(*verb.split(), code=code).err
        assert fix in err and "RUNNER_TRUST" not in err


def test_a_batch_script_takes_no_gpus_and_is_a_program_behind_dashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N 1\nhostname\n")
    (tmp_path / "job.sbatch").chmod(0o755)
    words = ("submit", "--site", "local", "--runtime", "native", "--dry-run", "--gpus", "2")
    assert "no place for --gpus" in call("submit", "--gpus", "2", "job.sbatch", code=Exit.USAGE).err
    assert "  ./job.sbatch\n" in call(*words, "--", "./job.sbatch").out
    tmp_path.chmod(0o1777)
    done = call("submit", "--site", "technion", "job.sbatch", code=Exit.USAGE)
    assert "modules of others would run as you" in done.err


def test_a_login_node_that_would_compute_itself_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    (tmp_path / "sbatch").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "slurm.conf").touch()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    here = ["submit", "--site", "local", "--runtime", "native", "--recipe", "probe", "--gpus", "2", "--dry-run"]
    assert "computes-on-a-login-node" in call(*here).err
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert "login-node" not in call(*here).err


def test_a_dry_run_prints_the_script_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(submit("--dry-run")) == Exit.REFUSED, "there is no image: a submission would be refused"
    said = capfd.readouterr()
    assert said.out.startswith("#!/bin/bash\n#SBATCH ")
    assert "passed" not in said.out + said.err
    assert "image-unusable" in said.err
    assert "  override: --force image-unusable\n" in said.err
    assert "submit --write DIR" in said.err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
    run(submit("--dry-run", "--force", "image-unusable"))
    said = capfd.readouterr()
    assert "forced [image-unusable]" in said.err and "override:" not in said.err


def test_a_site_that_the_configuration_has_misspelt_is_refused_with_the_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
    (tmp_path / "config.yaml").write_text("sites:\n  tehcnion: {account: mine}\n  ours: {account: mine}\n")
    said = call(*sound("--dry-run"), code=Exit.USAGE).err
    assert "no site is named 'tehcnion': did you mean 'technion'?" in said
    assert f"{tmp_path}/config.yaml: sites.tehcnion" in said
    with (tmp_path / "config.yaml").open("a") as file:
        file.write("  technion: {}\n")
    assert run(sound("--dry-run")) == Exit.GOOD, "the misspelt entry may then be another site"


def test_an_unfinished_site_file_is_named_in_the_command_that_checks_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "my site.yaml"
    mine.write_text("name: mine\nextends: technion\n# UNKNOWN transport: ask\n# DEFAULT walltime_s: ask\n")
    run(["submit", "--site", str(mine), "--gpus", "16", "--image", IMAGE, "--dry-run"])
    assert capfd.readouterr().err.count(f"`gpu-runner site check '{mine}'`") == 1


def site(key: str = "name", value: str = "a") -> str:
    """A sound site file in which the value of this key is another one; a key that it has not is put at its end."""
    text = SITE.replace("{}", "name: a")
    changed, count = re.subn(f"(?m)^( *{key}:).*$", rf"\1 {value}", text)
    return changed if count else f"{text}{key}: {value}\n"


RECIPE = "name: r\nimage: x\nprogram: [a]\ndescription: x\n"
# what is wrong -> (the file, what is said of it, where in it); how YAML itself can be wrong: core/test_strict_yaml.py
MALFORMED_SITES: dict[str, tuple[str, str, str]] = {
    "nothing": ("", "empty", ""),
    "an unknown scheduler": ("name: x\nscheduler: slrum\n", "slrum", ":2: scheduler"),
    "an unknown key below": (site().replace("gpus:", "gpu:"), "did you mean 'gpus'?", ":8: node.gpu"),
    "a missing key": ("name: x\n", "description", ""),
    "a fraction for a number": (site("cores", "1.5"), "int", ":6: node.cores"),
    "sexagesimal time": (site("walltime_s", "1:30:00"), "int", ":9: walltime_s"),
    "yes for a truth": (site() + "slurm:\n  exclusive: yes\n", "bool", ":10: slurm.exclusive"),
    "a name that is none": (site("name", "a b"), "cannot be a site's name", ": name"),
    "no GPUs": (site("gpus", "0"), "not a possible value", ": node.gpus"),
    "fewer nodes than none": (site() + "max_walltime_s: -1\n", "not a possible value", ": max_walltime_s"),
    "no runtimes": (site("runtimes", "[]"), "no runtime", ": runtimes"),
    "no node": (SITE.replace("{}", "name: a").partition("node:")[0], "describe one node", ""),
    "too much": ("#" * 1_000_001, "larger than 1000000 bytes", ""),
}
MALFORMED_RECIPES: dict[str, tuple[str, str, str]] = {
    "a text for a list": (RECIPE.replace("[a]", "python3 main.py"), "array", ":3: program"),
    "no program": (RECIPE.replace("[a]", "[]"), "no program", ": program"),
    "an unknown key": (RECIPE.replace("program", "progam"), "did you mean 'program'?", ":3: progam"),
    "a name that is none": (RECIPE.replace(": r", ": ../r"), "cannot be a recipe's name", ": name"),
    "a list for a text": (f"{RECIPE}env: {{A: [b]}}\n", "str", ":5: env"),
    "too much": ("#" * 1_000_001, "larger than 1000000 bytes", ""),
}


@pytest.mark.parametrize("fault", MALFORMED_SITES)
def test_a_malformed_site_file_is_reported_with_its_line(tmp_path: Path, fault: str, call: Call) -> None:
    content, says, where = MALFORMED_SITES[fault]
    path = tmp_path / "s.yaml"
    path.write_text(content)
    for words in (["submit", "--gpus", "1", "--site"], ["site", "show"], ["site", "check"]):
        said = call(*words, str(path), code=Exit.USAGE).err
        assert says in said and f"where: {path}{where}" in said


@pytest.mark.parametrize("fault", MALFORMED_RECIPES)
def test_a_malformed_recipe_is_reported_with_its_line(tmp_path: Path, fault: str, call: Call) -> None:
    content, says, where = MALFORMED_RECIPES[fault]
    (tmp_path / "recipe.yaml").write_text(content)
    said = call(*submit("--recipe", str(tmp_path)), code=Exit.USAGE).err
    assert says in said and f"where: {tmp_path}/recipe.yaml{where}" in said


def test_what_only_the_scheduler_would_refuse_of_a_site_is_reported(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "s.yaml"
    for option, value, says in (("output", "x", "below logs/"), ("comment", '"a\\nb"', "newline"), ("C", "x", "'C'")):
        path.write_text(site() + f"slurm:\n  directives: {{{option}: {value}}}\n")
        said = call("submit", "--gpus", "1", "--site", str(path), code=Exit.USAGE).err
        assert says in said and f"slurm.directives.{option}" in said


def test_sites_are_listed_and_shown_with_what_is_unproven(call: Call) -> None:
    assert "technion" in call("site", "list").out
    assert "UNPROVEN" in call("site", "show", "technion").out
    assert result(call("site", "show", "technion", "--json").out)["node"]["gpus"] == 8


@pytest.mark.parametrize("words", ["submit --gpsu 2", "submit --gpus x", "images lst", "nothing", "logs nothing"])
def test_every_error_begins_alike(words: str, call: Call) -> None:
    lines = call(*words.split(), code=Exit.USAGE).err.splitlines()
    assert len([line for line in lines if line.startswith("error: ")]) == 1
    assert not [line for line in lines if line.startswith("Error")]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, call: Call) -> None:
    shown = call(verb, "--help").out
    assert "Usage:" in shown
    assert [line for line in shown.partition("\nCommands:\n")[2].splitlines() if line.endswith("...")] == []


@pytest.mark.parametrize("verb", ["submit", "run", "scale", "rerun"])
def test_help_of_a_job_shows_its_usual_options_and_help_all_each_of_them_once(verb: str, call: Call) -> None:
    pages = [re.split(r"\n(?:Options|What):\n", call(verb, word).out, maxsplit=1)[1] for word in HELPS]
    usual, every = (re.findall(r"^  (?:-\S+, )*(-\S+)", page, re.MULTILINE) for page in pages)
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert sorted(every) == sorted(["--help", *(max(each.opts, key=len) for each in options)])
    assert {"--gpus", "--site", "--dry-run"} <= set(usual) < set(every)


def imported(*words: str) -> set[str]:
    """Every module that this command line has imported at its end, and the packages that they lie in."""
    code = f"import sys; from runner.cli import run; run({list(words)!r}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


# Packages that no planning needs.
NEVER_PLANNED = {"astroid", "docker", "PIL", "rich", "requests", "spython", "zstandard"}


@pytest.mark.parametrize("verb", ["cancel", "logs", "show", "status", "status RUN", "logs RUN", "cancel RUN"])
def test_of_a_run_that_was_judged_little_is_loaded(verb: str, tmp_path: Path) -> None:
    judged = measured_run(tmp_path / "runs", 0)
    index().mkdir(parents=True)
    (index() / judged.run_id).symlink_to(judged.path)
    ours = {name for name in imported(*verb.replace("RUN", judged.run_id).split()) if name.startswith("runner")}
    ours = {name for name in ours if not name.startswith("runner.backends.runtimes.")}  # one for each that there is
    assert len(ours) <= 56, sorted(ours)


def test_the_help_imports_nothing_heavy() -> None:
    heavy = {*NEVER_PLANNED, "msgspec", "yaml", "pathlib", "difflib", "json"}
    heavy |= {"runner.model", "runner.preparation", "runner.core.hide"}
    assert heavy & imported("--help") == set()


def test_a_dry_run_imports_nothing_that_starts_or_judges_jobs_or_makes_images_or_boxes() -> None:
    heavy = {*NEVER_PLANNED, "ctypes", "difflib", "secrets", "socket"}
    heavy |= {"runner.box", "runner.diagnosis", "runner.jobs", "runner.proving", "runner.statistics"}
    heavy |= {"runner.images.building", "runner.images.conversion", "runner.images.engine", "runner.images.sources"}
    there = imported(*sound("--dry-run"))
    assert "runner.preparation.job" in there
    assert heavy & there == set()


# What is killed under ``cli.main``, with the signal set as the shell or nohup has set it.
KILLED = """
import os, signal, sys, time
number = int(sys.argv[1])
signal.signal(number, int(sys.argv[2]))
from runner import cli
def slow(_words):
    try:
        os.kill(os.getpid(), number)
        time.sleep(1)
        return 0
    finally:
        print("put away")
cli.run = slow
cli.main([])
"""


@pytest.mark.parametrize(
    ("number", "handler", "code"),
    [
        (signal.SIGTERM, signal.SIG_DFL, 128 + signal.SIGTERM),
        (signal.SIGHUP, signal.SIG_DFL, 128 + signal.SIGHUP),
        pytest.param(signal.SIGHUP, signal.SIG_IGN, 0, id="under nohup a lost terminal ends nothing"),
    ],
)
def test_what_ends_it_from_outside_lets_it_put_things_away(
    number: signal.Signals, handler: signal.Handlers, code: int
) -> None:
    words = [sys.executable, "-c", KILLED, str(int(number)), str(int(handler))]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "put away\n")


def test_a_script_that_is_not_there_waits_in_no_queue(call: Call) -> None:
    rest = ["--site", "local", "--gpus", "1", "--runtime", "native", "--", "python3", "trian.py"]
    for verb in (["submit"], ["scale", "--same-nodes"], ["scale"]):
        assert "there is no file trian.py in this directory" in call(*verb, *rest, code=Exit.USAGE).err
        assert not Path("runs").exists() or verb[0] == "scale"


@pytest.mark.parametrize(
    ("path", "left"),
    [(":/usr/bin:.:bin:/bin:", "/usr/bin:/bin"), ("", "/usr/bin:/bin"), ("bin", "/usr/bin:/bin"), ("/opt/x", "/opt/x")],
)
@pytest.mark.parametrize("whose", ["user 7's", ""])
def test_no_program_is_looked_for_by_the_working_directory(
    path: str, left: str, whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ``PATH=$PATH:``; but in one's own it is as the shell has it."""
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(ownership, "exchangeable_by", lambda _place, **_: whose)
    if not whose and path.startswith((":", "bin")):
        here = Path.cwd()
        left = f"{here}:/usr/bin:{here}:{here}/bin:/bin:{here}" if path.startswith(":") else f"{here}/bin"
    with pytest.raises(SystemExit):
        main(["--version"])
    assert os.environ["PATH"] == left
    if not whose:
        return
    (tmp_path / "of-a-stranger").touch(0o755)
    monkeypatch.chdir(tmp_path)
    assert process.find("of-a-stranger") is None
