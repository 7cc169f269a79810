"""What single runtimes refuse with its reason, how a site's own lines are loaded, and images that runtimes keep."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.backends import LEFTOVERS
from runner.backends.runtimes import image_problem, runtime
from runner.backends.runtimes.common import launched_program, loads
from runner.cli import run
from runner.core.errors import Exit, UsageError
from runner.model.backends import RUNTIMES
from runner.model.plan import Plan, PlannedImage
from runner.model.request import Mount, Recipe, Request
from runner.model.site import RuntimeAtSite
from runner.model.step import Load, Text, Unset, texts
from runner.planning.plan import plan
from runner.render import folded, statement
from runner.sites.loader import read_site
from tests.support.shell_files import library, stand_in
from tests.support.users import ALICE, AS_ROOT

RECIPE = Recipe(name="r", description="", image="i", program=("python3", "main.py"))


def planned(via: str, image: str = "/store/x", reference: str = "registry.example/i:1", **asked: Any) -> Plan:
    request = Request(gpus=4, runtime=via, **asked)
    return plan(RECIPE, read_site("slurm"), request, PlannedImage(reference, "", image))


def test_the_launcher_reads_no_compiled_modules_that_it_has_not_judged() -> None:
    words = [word[0].value for word in launched_program(planned("native", image="")) if isinstance(word[0], Text)]
    python = [sys.executable, *words[1 : words.index("--run") - 1]]
    show = "import os, sys; print(sys.pycache_prefix, os.environ['PYTHONPYCACHEPREFIX'])"
    env = {**os.environ, "PYTHONPYCACHEPREFIX": "/hers"}
    assert subprocess.check_output([*python, "-c", show], env=env) == b"None /hers\n"


@pytest.mark.parametrize(
    ("via", "asked", "says"),
    [
        ("shifter", {"mounts": (Mount("/a", "/opt"),)}, "nothing at /opt"),
        ("shifter", {"mounts": (Mount("/a", "/var/x/../lib"),)}, "nothing at /var/lib"),
        ("shifter", {"mounts": (Mount("/a b", "/a"),)}, "cannot mount '/a b'"),
        ("shifter", {"reference": "/x.sqsh"}, "images of a registry"),
        ("podman-hpc", {"reference": "x.sif"}, "images of a registry"),
        ("podman-hpc", {"mounts": (Mount("a", "/a"),)}, "absolute"),
        ("apptainer", {"image": "x.sif"}, "'x.sif'"),
        ("apptainer", {"env": (("A", "\udcff"),)}, "no UTF-8"),
        ("apptainer", {"arguments": ("\udcff",)}, "no UTF-8"),
        ("apptainer", {"mounts": (Mount("/a,b", "/a"),)}, "','"),
        ("enroot", {"env": (("A", "1\n2"),)}, "cannot carry A"),
        ("enroot", {"mounts": (Mount("/a b", "/a"),)}, "' '"),
        ("enroot", {"image": "x.sqsh"}, "'x.sqsh'"),
        ("charliecloud", {"mounts": (Mount("/a", "/a", read_only=True),)}, "read-only"),
    ],
)
def test_what_a_runtime_cannot_express_is_refused(via: str, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        runtime(via).step(planned(via, **asked))
    assert says in caught.value.what
    assert caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize("via", [name for name, facts in RUNTIMES.items() if facts.is_container])
def test_a_container_has_the_run_directory_at_results_and_each_mount_at_its_place(via: str) -> None:
    made = runtime(via).step(planned(via, mounts=(Mount("/data", "/in"),)))
    words = folded((*made.launcher, *made.command), width=10**6)
    for source, target in (('"$runner_run"', "/results"), ("/data", "/in")):
        assert re.search(rf"{re.escape(source)}[: ]{target}\b", words)
    assert set(re.findall(r"/lib/([\w-]+\.\w+)", words)) <= {path.name for path in made.files}


@pytest.mark.parametrize(
    ("via", "image"),
    [("podman-hpc", "localhost/horovod-pytorch:25.02"), ("podman-hpc", "docker.io/pytorch/pytorch:2.5.1"),
     ("shifter", "docker.io/pytorch/pytorch:2.5.1")],
)  # fmt: skip
def test_what_was_built_there_and_dockers_hub_are_images_of_a_registry(
    via: str, image: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--site", "perlmutter", "--account", "m1", "--runs", "/pscratch/r", "--runtime", via]
    assert run(["submit", *words, "--gpus", "2", "--image", image, "--dry-run"]) == Exit.GOOD
    assert image in capfd.readouterr().out


@pytest.mark.parametrize(
    ("site", "image", "says"),
    [
        ("perlmutter", "gpu-runner/horovod-pytorch:25.02-py3", "names no registry"),
        ("perlmutter", "localhost/i:1", "names no registry"),  # Shifter has no images that were built there
        ("alpha", "gpu-runner/horovod-pytorch:25.02-py3", "no SIF of gpu-runner/horovod-pytorch:25.02-py3"),
        ("alpha", "/nowhere/x.sif", "/nowhere/x.sif does not exist"),
    ],
)
def test_an_image_in_another_form_is_refused_with_a_fix(
    site: str, image: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    request = ["submit", "--site", site, "--account", "m1", "--gpus", "2", "--image", image, "--dry-run"]
    assert run(request) == Exit.REFUSED
    said = capfd.readouterr()
    assert says in said.err
    assert "image-unusable" in said.err
    assert said.out.startswith("#!/bin/bash\n")


def bash(code: str) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", f"set -uo pipefail\n{code}\necho reached"]
    return subprocess.run(words, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)


def test_what_a_site_loads_changes_the_scripts_own_environment(tmp_path: Path) -> None:
    """And may read names that are not set, as conda's and modules' scripts do."""
    activate = tmp_path / "my env's $activate"
    activate.write_text('PS1="(env) $PS1"; export PYTHONPATH=/leak TOOL=/opt/tool\n')
    site = msgspec.structs.replace(
        read_site("slurm"), ways={"apptainer": RuntimeAtSite(load=(("source", str(activate)), ("export", "B=a b")))}
    )
    made = plan(RECIPE, site, Request(gpus=1), PlannedImage("i", "", "/i"))
    code = "\n".join(statement(entry) for entry in loads(made))
    code = f"cd '{library(tmp_path)}'; . lib/common.sh; LD_LIBRARY_PATH=:/a:b\n{code}"
    done = bash(f'{code}\necho "$TOOL $B ${{PYTHONPATH-none}} $LD_LIBRARY_PATH $-"')
    assert done.returncode == 0, done.stderr
    tool, a, b, leak, libraries, flags = done.stdout.splitlines()[0].split()
    assert (tool, a, b, leak, libraries) == ("/opt/tool", "a", "b", "none", "/a")
    assert "u" in flags


@pytest.mark.parametrize(
    ("code", "out"),
    [
        (statement(Load((texts("source", "/nowhere/activate"),), 74)), ""),
        (f'module() {{ echo "module $*"; }}; {statement(Load((texts("module", "load", "x"), texts("echo", "l")), 74))}',
         "module load x\nl\nreached\n"),
        (f'A=1 B=2 C=3; {statement(Unset(("A", "B")))}; echo "${{A-}}${{B-}}$C"', "3\nreached\n"),
    ],
)  # fmt: skip
def test_what_is_not_there_to_be_loaded_ends_the_script(code: str, out: str) -> None:
    done = bash(code)
    assert (done.returncode, done.stdout) == (0 if out else 74, out)


def test_the_function_module_is_looked_for_where_it_is_used() -> None:
    for first, needs_profile in (("module", True), ("source", False)):
        assert (". /etc/profile" in statement(Load((texts(first, "x"),), 74))) is needs_profile


@pytest.mark.parametrize("via", ["enroot", "podman-hpc"])
def test_ranks_that_a_script_of_ours_starts_keep_their_place_in_the_world(via: str, tmp_path: Path) -> None:
    """These runtimes carry only named variables: without its rank and its node's name, each rank is alone."""
    stand_in(tmp_path, via, "printf '%s\\n' \"$@\"")
    place = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RUNNER_JOB_ID": "1.2.a"}
    env = place | {"RUNNER_NODE": "nodeb", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    code = f"runner_run={library(tmp_path)} runner_job=1\nexec {folded(runtime(via).step(planned(via)).command)}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, env=env, timeout=30)
    words = done.stdout.splitlines()
    options = {
        *(word.removeprefix("--env=") for word in words if word.startswith("--env=")),
        *(name for option, name in itertools.pairwise(words) if option == "--env"),
    }
    assert {*place, "RUNNER_NODE"} <= options


@AS_ROOT
@pytest.mark.parametrize(
    ("planted", "is_taken"),
    [
        ("true", False),
        (f'mkdir -m 777 "$1" && chown {ALICE} "$1"', False),
        ('mkdir -m 777 "$1"', True),
        ('ln -s /var/tmp "$1"', True),
        (f'mkdir -m 777 -p "$1/mnt" && chown {ALICE} "$1"', True),
    ],
)
def test_charliecloud_mounts_below_a_directory_that_is_the_users_own(planted: str, is_taken: bool) -> None:
    name = f"test-charliecloud-{os.getpid()}"
    top = Path(f"/var/tmp/{name}.ch")
    step = runtime("charliecloud").step(planned("charliecloud"))
    hidden = Path(f"/var/tmp/gpu-runner-ch-{ALICE}-{hashlib.sha256(f'mount {name}'.encode()).hexdigest()[:16]}")

    def called(words: str) -> str:
        """As text: that user sees neither this checkout nor a directory of pytest's."""
        texts = "\n".join(file.read_text() for file in (LEFTOVERS, step.files[0]))
        code, env = f"set -- {words}\n{texts}", {"USER": name, "RUNNER_RDV_KEY": name}
        return subprocess.run(
            ["bash", "-c", code], env=env, user=ALICE, capture_output=True, text=True, check=True
        ).stdout

    subprocess.run(["bash", "-c", planted, "bash", top], check=True)
    try:
        called(folded(step.once_a_node[2:]))
        made = {hidden} if is_taken else {top, top / "mnt"}
        assert {(path.stat().st_uid, path.stat().st_mode & 0o777) for path in made} == {(ALICE, 0o700)}
        assert called("run echo a") == (f"--mount={hidden} a\n" if is_taken else "a\n")
    finally:
        subprocess.run(["rm", "-rf", top, hidden], check=True)


@AS_ROOT
@pytest.mark.parametrize("script", ["charliecloud.sh run", "apptainer.sh"])
def test_a_runtime_has_no_tmpdir_where_others_may_exchange_what_lies_there(tmp_path: Path, script: str) -> None:
    """Charliecloud binds it as /tmp, where no owner is known; Apptainer may unpack the image there."""
    (hers := tmp_path / "hers").mkdir()
    (hers / "mine").mkdir()
    os.chown(hers, ALICE, ALICE)
    (anybodys := tmp_path / "anybodys").mkdir()
    anybodys.chmod(0o777)
    name, *rest = script.split()
    words = ["bash", str(library(tmp_path) / "lib" / name), *rest, "printenv", "TMPDIR"]
    for place, out in ((hers / "mine", ""), (anybodys, ""), (tmp_path, f"{tmp_path}\n"), (Path("/tmp"), "/tmp\n")):
        env = {**os.environ, "TMPDIR": str(place), "USER": "root"}
        assert subprocess.run(words, env=env, capture_output=True, text=True, check=False).stdout == out


@pytest.mark.parametrize(("mode", "code"), [(0o1777, 0), (0o755, 0), (0o777, 1), (0o775, 1)])
def test_charliecloud_mounts_nothing_where_others_can_rename_the_directory(
    tmp_path: Path, mode: int, code: int
) -> None:
    tmp_path.chmod(mode)
    (file,) = (file for file in runtime("charliecloud").step(planned("charliecloud")).files if "charlie" in file.name)
    done = subprocess.run(["bash", file, "directories", tmp_path / "u.ch"], capture_output=True, text=True, check=False)
    assert (done.returncode, f"fix: chmod +t {tmp_path}" in done.stderr) == (code, bool(code))


NAME, BUILT = "registry.example.org/m1234/horovod:25.02", "localhost/i:1"
SHIFTER = {
    "shifterimg": f'[ "$1 $2" = "lookup {NAME}" ] && echo 0badc0ffee',
    "shifter": f'[ "$1" = --image=docker:{NAME} ] || exit 2\nshift\nexec "$@"',
}


def podman(read_only: str, image: str = NAME) -> dict[str, str]:
    """Its answer of whether each copy of the image is read-only, as nodes see it."""
    return {"podman-hpc": f'[ "$1 $2 $3" = "images --filter reference={image}" ] || exit 2\nprintf "{read_only}"'}


@pytest.mark.parametrize(
    ("via", "image", "mount_points", "programs", "what", "fix"),
    [
        # A gateway that finds none says nothing, or fails.
        ("shifter", NAME, (), {"shifterimg": "exit 1"}, f"Shifter has no image {NAME}", f"shifterimg pull {NAME}"),
        ("shifter", NAME, (), {"shifterimg": "exit 0"}, f"Shifter has no image {NAME}", f"shifterimg pull {NAME}"),
        ("shifter", NAME, ("/tmp",), SHIFTER, "", ""),
        ("shifter", NAME, ("/tmp", "/x"), SHIFTER, "mount points /x, and Shifter makes none", "RUN mkdir -p /x"),
        ("podman-hpc", NAME, (), podman(""), "", f"podman-hpc pull {NAME}"),
        ("podman-hpc", NAME, (), podman("false\\n"), "", f"podman-hpc migrate {NAME}"),
        ("podman-hpc", NAME, (), podman("true\\n"), "", ""),
        ("podman-hpc", NAME, (), podman("false\\ntrue\\n"), "", ""),
        ("podman-hpc", BUILT, (), podman("", BUILT), "", f"podman-hpc build -t {BUILT} ..."),
        ("podman", NAME, (), {"podman": f'[ "$*" = "image exists {NAME}" ] && exit 1'}, "", f"podman pull {NAME}"),
        ("podman", BUILT, (), {"podman": "exit 1"}, "Podman has no image", f"podman build -t {BUILT} ..."),
        ("podman", NAME, (), {"podman": "exit 0"}, "", ""),
        # Where a command is not here or fails, nothing is known.
        ("shifter", NAME, ("/x",), {}, "", ""),
        ("shifter", NAME, ("/x",), SHIFTER | {"shifter": "exit 1"}, "", ""),
        ("podman-hpc", NAME, (), {}, "", ""),
        ("podman-hpc", NAME, (), {"podman-hpc": "exit 125"}, "", ""),
        ("podman", NAME, (), {"podman": "exit 125"}, "", ""),
    ],
)
def test_what_a_site_lacks_of_an_image_is_named_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, via: str, image: str, mount_points: tuple[str, ...],
    programs: dict[str, str], what: str, fix: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for program, body in programs.items():
        stand_in(tmp_path, program, body)
    problem, advice = image_problem(via, image, mount_points, local=image == BUILT)
    assert what in problem
    assert fix in advice
    assert bool(problem) == bool(advice) == bool(fix)
