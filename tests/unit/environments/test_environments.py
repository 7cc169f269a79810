"""Environments without a container: what is decided of them, and their scripts run by a real bash with recorders."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.backends.runtimes import runtime
from runner.backends.runtimes.common import load_lines
from runner.checks.image_fit import missing_packages
from runner.core.errors import Exit, RefusedError, UsageError
from runner.core.progress import Silent
from runner.environments import directory, make
from runner.environments.script import EnvironmentSpec, Places, creation, environment_spec, setup_of_jobs
from runner.model.exit_codes import NO_CONDA, NO_HOROVOD, NOT_LOADED, NOT_MADE, NOT_PROVEN
from runner.model.image import Activate, Environment, Horovod, ImageFacts, Setup
from runner.model.request import Request
from runner.planning.environment import setup_lines
from runner.planning.plan import plan
from runner.preparation.choices import as_image
from runner.preparation.environment import choose_proof
from runner.render import statement
from runner.sites.loader import read_site
from tests.support.commands import Call
from tests.support.conda_installer import channel, installer
from tests.support.documents import result
from tests.support.plans import PROGRAM
from tests.support.shell_files import stand_in

SETUP = Setup(modules=("gcc", "cuda/11.7"), activate=Activate(conda="base"))
VIRTUALENV = EnvironmentSpec("x", "virtualenv", "pytorch", SETUP, ("torch==2.13.0",))
# As real ones: functions of a login shell, and scripts that read names which are not set.
_RECORDER = """\
#!/bin/bash
printf '%s\\n' "$(basename "$0") $*" >>"$RECORD"
case "$(basename "$0") $*" in *"$FAIL"*) [ -z "$FAIL" ] || exit 9 ;; esac
case "$*" in
*"-m venv"*) mkdir -p "${!#}/bin"; echo 'PS1="(x) $PS1"; echo activated >>"$RECORD"' >"${!#}/bin/activate" ;;
*"describe.py"*) [[ "$*" =~ --write\\ ([^ ]+) ]] && echo '{"framework": "pytorch"}' >"${BASH_REMATCH[1]}" ;;
esac
"""
_CONDA = """\
#!/bin/bash
if [ "$1" = shell.bash ]; then
  echo 'conda() { local old=$_CE_M; printf "%s\\n" "conda function $*" >>"$RECORD"; }'
else
  printf '%s\\n' "conda program $*" >>"$RECORD"; exit 1
fi
"""


def environment(root: Path, **changes: Any) -> Environment:
    """A finished one, as ``env create`` records it."""
    made = root / "virtualenv-1"
    (made / "bin").mkdir(parents=True)
    stand_in(made / "bin", "python3", "")
    record = Environment(root.name, "virtualenv", "pytorch", str(made), "1", Setup(), ImageFacts(framework="pytorch"))
    record = msgspec.structs.replace(record, **changes)
    (root / directory.RECORD).write_bytes(msgspec.json.encode(record))
    (root / directory.SCRIPT).write_text("")
    return record


def recorded(spec: EnvironmentSpec, at: Places, tmp_path: Path, *, fail: str = "") -> tuple[int, list[str]]:
    """Run a creation with recorders for python3, conda and module; its exit code and the calls."""
    stubs, record = tmp_path / "stubs", tmp_path / "record"
    stubs.mkdir(exist_ok=True)
    record.write_text("")
    for name, content in (("python3", _RECORDER), ("conda", _CONDA)):
        (stubs / name).write_text(content)
        (stubs / name).chmod(0o755)
    module = 'module() { printf "%s\\n" "module $*" >>"$RECORD"; [ "$2" != "$FAIL" ]; }; export -f module\n'
    env = {"PATH": f"{stubs}:/usr/bin:/bin", "RECORD": str(record), "FAIL": fail, "PYTHONPATH": "/leak"}
    words = ["bash", "-c", module + creation(spec, at)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert "unbound variable" not in done.stderr
    return done.returncode, record.read_text().splitlines()


def places(root: Path) -> Places:
    (root / "work").mkdir(parents=True, exist_ok=True)
    return Places(root / "made", root / "work", root / "caches", root / "wheels", Path("/p"), root / "building")


def test_a_setup_is_loaded_in_its_order() -> None:
    setup = Setup(True, ("/soft",), ("a", "b/1"), "/conda/", Activate("/env", "/venv/"))
    lines = ("module purge", "module use /soft", "module load a b/1", "source /conda/etc/profile.d/conda.sh",
             "conda activate /env", "source /venv/bin/activate")  # fmt: skip
    assert setup_lines(setup) == tuple(tuple(line.split()) for line in lines)
    assert setup_lines(Setup()) == ()


def test_no_other_user_reads_a_script_with_the_sites_proxy_and_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    spec = EnvironmentSpec("x", "virtualenv", "pytorch", Setup(modules=("none-such",)), ())
    with pytest.raises(RefusedError, match="could not be loaded"):
        make.make(spec, tmp_path / "x", Silent())
    modes = {name: (tmp_path / "x" / name).stat().st_mode & 0o777 for name in (directory.SCRIPT, directory.LOG)}
    assert modes == {directory.SCRIPT: 0o600, directory.LOG: 0o600}


def test_a_virtual_environment_is_made_upon_the_sites_modules(tmp_path: Path) -> None:
    code, calls = recorded(VIRTUALENV, places(tmp_path), tmp_path)
    assert code == 0
    assert calls[:4] == ["module load gcc cuda/11.7", "conda function activate base",
                         f"python3 -m venv {tmp_path}/made", "activated"]  # fmt: skip
    assert "pip install" in calls[4]
    assert calls[4].endswith(" torch==2.13.0")
    assert [call.split()[1] for call in calls[5:]] == [f"/p/{n}.py" for n in ("build", "install", "prove", "describe")]
    assert all("--place environment" in call for call in (calls[5], calls[7]))
    for call in calls[5:]:
        name, *words = call.split()[1:]
        help_words = [sys.executable, str(make.programs() / Path(name).name), "--help"]
        known = subprocess.run(help_words, capture_output=True, text=True, check=True).stdout
        assert [word for word in words if word.startswith("--") and f"{word} " not in known.replace("\n", " ")] == []


def test_a_conda_environment_is_made_where_it_stays_and_with_a_conda_that_is_but_a_program(tmp_path: Path) -> None:
    code, calls = recorded(replace(VIRTUALENV, kind="conda", setup=Setup()), places(tmp_path), tmp_path)
    assert (code, calls[:2]) == (0, [f"conda function create --yes --quiet --prefix {tmp_path}/made python=3.11",
                                     f"conda function activate {tmp_path}/made"])  # fmt: skip


@pytest.mark.parametrize(
    ("fail", "code"),
    [("gcc", NOT_LOADED), ("build.py", NO_HOROVOD), ("install.py", NO_HOROVOD), ("prove.py", NOT_PROVEN)],
)
def test_the_step_that_fails_is_recognised_by_its_exit_code(tmp_path: Path, fail: str, code: int) -> None:
    spec = replace(VIRTUALENV, setup=Setup(modules=("gcc",)), requirements=())
    ended, calls = recorded(spec, places(tmp_path), tmp_path, fail=fail)
    assert ended == code
    assert fail in calls[-1]


class OwnConda:
    """An environment upon a conda that a file of the user's installs."""

    def __init__(self, root: Path, offered: str = "python") -> None:
        setup = Setup(conda=f"{root}/my conda")
        self.root = root
        self.spec = replace(VIRTUALENV, kind="conda", setup=setup, channels=(channel(root, offered),))
        self.file = installer(root, root / "stubs/python3")
        self.places = replace(places(root), installer=self.file)

    def make(self) -> int:
        return recorded(self.spec, self.places, self.root)[0]

    def log(self) -> str:
        return Path(f"{self.file}.log").read_text()


def test_a_conda_is_installed_where_there_is_none_and_then_used_again(tmp_path: Path) -> None:
    """Also after an installation that was interrupted."""
    conda = OwnConda(tmp_path)
    interrupt = Path(f"{conda.file}.interrupt")
    interrupt.touch()
    assert conda.make() == NO_CONDA
    interrupt.unlink()
    Path(f"{conda.file}.log").unlink()
    assert conda.make() == 0
    assert "-m pip install" in (tmp_path / "record").read_text().splitlines()[0]
    (tmp_path / "made/bin/python3").unlink()
    (tmp_path / "made/bin").rmdir()
    assert conda.make() == 0
    assert conda.log() == f"installing into {tmp_path}/my conda\n", "once"
    assert not list(tmp_path.glob("*.installing"))


def test_what_is_somebodys_own_is_not_replaced_by_a_conda_and_a_channel_without_python_is_no_environment(
    tmp_path: Path,
) -> None:
    conda = OwnConda(tmp_path, "ruby")
    (tmp_path / "my conda").mkdir()
    (tmp_path / "my conda/thesis.tex").touch()
    assert conda.make() == NO_CONDA
    (tmp_path / "my conda/thesis.tex").unlink()
    (tmp_path / "my conda").rmdir()
    assert conda.make() == NOT_MADE


def test_a_mark_that_another_user_could_leave_removes_no_conda(tmp_path: Path) -> None:
    """Nor is what it leads to emptied."""
    conda, thesis = OwnConda(tmp_path), tmp_path / "thesis.tex"
    assert conda.make() == 0
    thesis.write_text("mine")
    (tmp_path / "my conda/precious").touch()
    (tmp_path / "my conda.installing").symlink_to(thesis)
    (tmp_path / "made/bin/python3").unlink()
    (tmp_path / "made/bin").rmdir()
    assert conda.make() == 0
    assert (tmp_path / "my conda/precious").exists()
    assert thesis.read_text() == "mine"


def test_conda_is_not_installed_or_removed_where_others_may_write(tmp_path: Path) -> None:
    conda, given = OwnConda(tmp_path), make.Given(installer=installer(tmp_path))
    assert make.places_of(conda.spec, tmp_path / "x", "k", given).installer == given.installer
    tmp_path.chmod(0o1777)
    with pytest.raises(RefusedError, match="which is everybody's to write to") as caught:
        make.places_of(conda.spec, tmp_path / "x", "k", given)
    assert "directory of your own" in caught.value.fix
    (tmp_path / "my conda/bin").mkdir(parents=True)
    stand_in(tmp_path / "my conda/bin", "conda", "")
    (tmp_path / "my conda.installing").touch()
    assert make.places_of(conda.spec, tmp_path / "x", "k", given).installer is None, "the one that is there is used"


def test_a_mark_that_cannot_be_removed_does_not_say_that_conda_could_not_be_installed(tmp_path: Path) -> None:
    conda = OwnConda(tmp_path)
    conda.file.write_text(conda.file.read_text() + 'rm "$3.installing"; mkdir "$3.installing"\n')
    assert conda.make() == 0


def test_two_at_once_install_one_conda(tmp_path: Path) -> None:
    conda = OwnConda(tmp_path)
    script = creation(conda.spec, conda.places).partition("set +u")[0]  # up to the installation
    both = [subprocess.Popen(["bash", "-c", script]) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    assert conda.log().count("installing") == 1
    assert not (tmp_path / "my conda.lock").stat().st_mode & 0o077, "who can read it can hold it"


def test_the_command_installs_into_scratch_where_the_site_names_no_conda(tmp_path: Path, call: Call) -> None:
    file = installer(tmp_path)
    site = tmp_path / "ours.yaml"
    site.write_text("name: ours\ndescription: ''\nextends: slurm\nruntimes: [apptainer, native]\n")
    at = tmp_path / "envs"

    def printed(*more: str) -> str:
        words = ["env", "create", "x", "--site", str(site), "--at", str(at), "--kind", "conda", "--dry-run"]
        return call(*words, *more).out.replace(" \\\n  ", " ")

    assert ".conda" not in printed()
    said = printed("--conda-installer", str(file), "--channel", "conda-forge")
    assert f"bash {file} {at}/.conda || exit 80" in said
    assert f"source {at}/.conda/etc/profile.d/conda.sh" in said
    assert "--override-channels --channel=conda-forge" in said
    (at / ".conda").mkdir(parents=True)
    assert f"source {at}/.conda/etc/profile.d/conda.sh" in printed(), "what was installed is used"


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ("GCC/12.3.0 Horovod/0.28.1-PyTorch horovod/0.22", "Horovod/0.28.1-PyTorch, horovod/0.22"),
        ("PyTorch/2.1.2 GCC/12", "PyTorch/2.1.2"),
        ("Anaconda/1", "no module with such a name"),
        (" ".join(f"horovod/{number:02d}" for number in range(30)), "and 10 more"),
    ],
)
def test_a_module_that_is_not_there_is_named_with_those_that_are(
    there: str, says: str, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """By the site's own `module`, of which Lmod alone has `spider`."""
    body = f'case "$*" in "-t avail") printf "%s\\n" {there} >&2 ;; purge | list) ;; *) return 1 ;; esac'
    monkeypatch.setenv("BASH_FUNC_module%%", f"() {{ {body}\n}}")
    said = call("env", "check", "--site", "alpha", "--module", "PyTorch/9", "--module", "hvd", code=Exit.REFUSED).err
    assert says in said


@pytest.mark.parametrize(
    ("kind", "activate"),
    [("virtualenv", Activate("base", "/e")), ("conda", Activate("/e")), ("modules", Activate("base"))],
)
def test_a_job_activates_what_was_made(kind: Any, activate: Activate) -> None:
    assert setup_of_jobs(replace(VIRTUALENV, kind=kind), "/e") == msgspec.structs.replace(SETUP, activate=activate)


def test_an_environment_stands_for_the_setup_of_the_sites_way(tmp_path: Path) -> None:
    """And brings the variables that its programs need, below all others; its logs go to the run directory."""
    site = read_site("neuron")
    env = {"TF_USE_LEGACY_KERAS": "1", "OMP_NUM_THREADS": "3"}
    made = environment(tmp_path, setup=Setup(activate=Activate(virtualenv="/e")), env=env)
    request = Request(gpus=2, runtime="native")
    planned = plan(PROGRAM, site, request, as_image(made), made)
    assert planned.load == (("source", "/e/bin/activate"),)
    assert dict(planned.env)["TF_USE_LEGACY_KERAS"] == "1"
    assert dict(planned.env)["OMP_NUM_THREADS"] == site.env["OMP_NUM_THREADS"]
    without = plan(PROGRAM, site, request, as_image(made))
    assert without.load[:2] == (("module", "purge"), ("module", "load", *site.ways["native"].setup.modules))
    step = runtime("native").step(planned)
    assert not step.inherits
    assert 'export NCCL_DEBUG_FILE="$runner_run"/nccl/%h.%p.log' in "\n".join(map(statement, step.prelude))
    assert "unset" not in "\n".join(map(statement, load_lines(planned)))


def test_only_what_has_come_to_its_end_is_there(tmp_path: Path) -> None:
    root = tmp_path / "gpu-runner/environments"
    made = environment(root / "a")
    assert directory.find("a", str(tmp_path), "local") == directory.find(str(root / "a"), "", "local") == made
    (Path(made.directory) / "bin/python3").unlink()
    assert [each for _, each in directory.all_environments(root)] == [None]
    for name, scratch, error, says in (
        ("a", str(tmp_path), RefusedError, "not finished"),
        ("b", str(tmp_path), RefusedError, "not there.*gpu-runner env create b --site alpha"),
        ("a", "", RefusedError, "your scratch directory is unknown"),
        ("..", str(tmp_path), UsageError, r"'\.\.'"),
    ):
        with pytest.raises(error, match=f"(?s){says}"):
            directory.find(name, scratch, "alpha")


def test_a_directory_with_other_files_stays_as_it_is(tmp_path: Path) -> None:
    assert directory.is_free(tmp_path / "new")
    assert directory.is_free(tmp_path)
    (tmp_path / "data").write_text("x")
    assert not directory.is_free(tmp_path)
    (tmp_path / directory.SCRIPT).write_text("")
    assert directory.is_free(tmp_path)


def test_a_home_is_known_by_its_name_and_as_links_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, scratch = tmp_path / "home/elvis", tmp_path / "scratch"
    home.mkdir(parents=True)
    scratch.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (scratch / "link").symlink_to(home)
    (home / "scratch").symlink_to(scratch)
    assert directory.home_above(scratch / "x") is None
    for path in (home / "envs/x", scratch / "link/x", home / "scratch/x"):
        assert directory.home_above(path) == home


@pytest.mark.parametrize(
    ("framework", "needs", "lacks"),
    [("pytorch", ("torch", "horovod"), ""), ("tensorflow", ("torch",), "wants torch"), ("pytorch", (), "")],
)
def test_an_environment_of_another_framework_is_reported(
    tmp_path: Path, framework: Any, needs: tuple[str, ...], lacks: str
) -> None:
    made = environment(tmp_path / "e", framework=framework)
    said, fix = missing_packages(msgspec.structs.replace(PROGRAM, needs=needs), made)
    assert lacks in said
    assert bool(said) == bool(lacks) == ("--framework pytorch" in fix)


NEURON = read_site("neuron").ways["native"].setup


@pytest.mark.parametrize(
    ("site", "given", "decided"),
    [
        ("neuron", {}, {"kind": "conda", "setup": NEURON, "cuda_archs": "80", "proxies": ()}),
        ("alpha", {}, {"requirements": (), "origin": "modules", "proxies": ()}),
        ("neuron", {"kind": "modules", "modules": ("horovod",), "cuda_archs": "70"},
         {"setup": msgspec.structs.replace(NEURON, modules=(*NEURON.modules, "horovod")), "requirements": (),
          "cuda_archs": "70"}),
        ("neuron", {"modules": ("gcc/10.2.0", "cuda/11.7")},
         {"setup": msgspec.structs.replace(NEURON, modules=("gcc/10.2.0", "cuda/11.7"))}),
        ("technion", {"framework": "tensorflow"},
         {"kind": "virtualenv", "cuda_archs": "80", "requirements": ("tensorflow[and-cuda]==2.21.0",)}),
        # torch of the package index has CUDA wherever it is installed: on CPUs no NCCL is demanded.
        ("box", {}, {"nccl": "none"}),
        ("box", {"nccl": "/opt/nccl"}, {"nccl": "/opt/nccl"}),
        ("technion", {}, {"nccl": "auto"}),
        ("technion", {"nccl": "none"}, {"nccl": "none"}),
    ],
)  # fmt: skip
def test_the_site_decides_what_the_user_leaves_open(site: str, given: Any, decided: dict[str, Any]) -> None:
    spec = environment_spec(read_site(site), "x", **given)
    assert {name: getattr(spec, name) for name in decided} == decided


def test_a_proof_demands_nccl_where_there_are_gpus_and_a_sites_proxy_is_there_while_an_environment_is_made() -> None:
    given: Any = {"scratch": "/s", "framework": None, "modules": ("m",), "mpi": "auto", "nccl": "auto"}
    assert [choose_proof(None, site=site, **given).nccl for site in ("box", "technion")] == ["none", "auto"]
    assert ("https_proxy", "http://proxy.alcf.anl.gov:3128") in environment_spec(read_site("polaris"), "x").proxies


def test_what_is_checked_of_a_site_with_a_hierarchy_of_modules_is_loaded_after_it() -> None:
    given: Any = {"site": "alpha", "scratch": "/s", "framework": None, "mpi": "auto", "nccl": "auto"}
    of_site = read_site("alpha").ways["native"].setup.modules
    assert choose_proof(None, modules=("Horovod/0.28.1",), **given).setup.modules == (*of_site, "Horovod/0.28.1")
    own = ("release/23.04", "GCC/11.3.0", "Horovod/0.28.1")
    assert choose_proof(None, modules=own, **given).setup.modules == own


def test_env_check_names_the_operations_that_the_proof_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    stand_in(tmp_path, "python3", "echo noise\necho 'OPERATIONS: NCCL 2.29.7, MPI, Gloo'\necho 'PROVEN in 3 s'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = call("env", "check", "--site", "local").out
    assert "local's own: its Horovod is proven; operations: NCCL 2.29.7, MPI, Gloo" in said
    assert result(call("env", "check", "--site", "local", "--json").out)["operations"] == ["NCCL 2.29.7", "MPI", "Gloo"]


def test_json_of_environments_needs_no_line_for_people(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(tmp_path / "a", about=ImageFacts(framework="pytorch", horovod=Horovod()))
    monkeypatch.delattr("runner.cli.env._description")
    assert len(result(call("env", "list", "--at", str(tmp_path), "--json").out)) == 1


def test_the_list_of_environments_names_the_operations_and_kernels_of_each(tmp_path: Path, call: Call) -> None:
    whole = Horovod("0.28.1", operations=("NCCL", "Gloo"), nccl="2.29.7", cuda_architectures=(80,), ptx=90)
    for name, horovod in (("a", whole), ("b", Horovod("0.28.1", operations=("Gloo",))), ("c", Horovod())):
        environment(tmp_path / name, about=ImageFacts(framework="pytorch", horovod=horovod))
    lines = call("env", "list", "--at", str(tmp_path)).out.splitlines()
    assert [line.strip() for line in lines if "operations" in line] == [
        "Horovod 0.28.1; operations: NCCL 2.29.7, Gloo; kernels: sm_80, compute_90",
        "Horovod 0.28.1; operations: Gloo",
        "Horovod of unknown version; operations: unknown",
    ]


def test_its_key_follows_what_goes_into_it() -> None:
    changes: tuple[dict[str, Any], ...] = (
        {}, {"kind": "conda"}, {"mpi": "none"}, {"setup": msgspec.structs.replace(SETUP, modules=())},
        {"setup": msgspec.structs.replace(SETUP, activate=Activate())}, {"packages": "a"}, {"packages": "b"},
    )  # fmt: skip
    assert len({make.inputs_of(replace(VIRTUALENV, **change)) for change in changes}) == len(changes)
    assert make.inputs_of(VIRTUALENV) == make.inputs_of(replace(VIRTUALENV))


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("env create x", Exit.REFUSED, "your scratch directory is unknown"),
        ("env create x --at {home}/envs", Exit.REFUSED, "[environment-in-home]"),
        ("env create x --scratch {scratch} --force y", Exit.USAGE, "no check has the code"),
        ("env create a$b --scratch {scratch}", Exit.USAGE, "cannot be an environment's name"),
        ("env create ../x --at {scratch}", Exit.USAGE, "cannot be an environment's name"),
        ("env create x --at {scratch}/my$envs", Exit.USAGE, "do not quote it"),
        ("env create x --at {scratch} --kind virtualenv --conda-installer /etc/hostname", Exit.USAGE,
         "this environment is of the kind virtualenv"),
        ("env create x --at {scratch} --kind conda --conda-installer /no/such.sh", Exit.USAGE, "there is no such file"),
        ("env check x --scratch {scratch}", Exit.REFUSED, "env create x --site local"),
        ("env check x --scratch {scratch} --module m", Exit.USAGE, "modules of its own"),
        ("submit --gpus 2 --env-name x --scratch {scratch}", Exit.REFUSED, "is not there"),
        ("submit --gpus 2 --env-name x --runtime pyxis", Exit.USAGE, "leave out --runtime"),
        ("submit --gpus 2 --env-name x --image i", Exit.USAGE, "leave out one of them"),
        ("submit --gpus 2 --runtime native --image i", Exit.USAGE, "--runtime charliecloud; or"),
        ("submit --site alpha --gpus 2 --runtime native", Exit.REFUSED, "--scratch DIR"),
    ],
)  # fmt: skip
def test_the_verbs_refuse_with_a_fix(
    line: str, code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("RUNNER_SITE", "local")
    words = line.format(home=home, scratch=scratch).split()
    assert says in call(*words, code=code).err
    assert not scratch.exists()
    if says == "[environment-in-home]":
        assert "-m venv" in call(*words, "--force", "environment-in-home", "--dry-run").out


@pytest.mark.parametrize(("driver", "fix"), [("570.86.10", "torch==2.6.0"), ("470.57.02", "of a CUDA that it carries")])
def test_a_framework_that_the_sites_driver_cannot_run_is_refused_before_it_is_fetched(
    tmp_path: Path, call: Call, driver: str, fix: str
) -> None:
    site = tmp_path / "old.yaml"
    site.write_text(f'name: old\nextends: neuron\nhardware: {{driver: "{driver}"}}\n')
    words = ("env", "create", "x", "--site", str(site), "--at", str(tmp_path), "--dry-run")
    said = call(*words, code=Exit.REFUSED).err
    assert f"needs driver 580 or newer, and {driver} is there" in said
    assert fix in said
    assert "torch==2.6.0" in call(*words, "--requirement", "torch==2.6.0").out


def test_a_dry_run_names_what_would_be_made_and_lists_nothing(tmp_path: Path, call: Call) -> None:
    said = call("env", "create", "x", "--scratch", str(tmp_path), "--site", "neuron", "--dry-run").out
    made = f"conda create --yes --quiet --prefix {tmp_path}/gpu-runner/environments/x/conda-"
    assert made in said.replace(" \\\n ", "")
    assert list(tmp_path.iterdir()) == []
    assert result(call("env", "list", "--scratch", str(tmp_path), "--json").out) == []


def test_env_check_uses_nothing_that_others_put_where_the_user_is_or_into_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    stand_in(tmp_path, "python3", f"{{ pwd; stat -c %a $TMPDIR; }} >'{tmp_path}/where'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    call("env", "check", "--site", "local")
    assert (tmp_path / "where").read_text() == "/\n700\n"
