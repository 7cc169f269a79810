"""No silent default: the site that is meant where none is named, its source, and the refusal where nothing answers.

The clients are scripts that print what Slurm's and PBS's printed (tests/unit/sites/recorded).
"""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.cli import run
from runner.core.errors import Exit, RefusedError, UsageError
from runner.model.request import Request
from runner.preparation import site as site_choice
from runner.preparation.site import UserSite, plain_name, read_user_site
from runner.sites import loader
from tests.support.commands import Call
from tests.support.own_state import own_state
from tests.support.shell_files import stand_in

RECORDED = Path(__file__).parents[1] / "sites/recorded"
JOB = ["submit", "--gpus", "12", "--recipe", "probe", "--runtime", "native", "--dry-run"]


class Shell:
    """A login node: a directory of clients on PATH, a state directory, and what is said of the site."""

    def __init__(self, root: Path) -> None:
        self.clients, self.state, self.lines = root / "my clients", root / "my state $é", list[str]()
        self.clients.mkdir()

    def client(self, name: str, body: str) -> None:
        stand_in(self.clients, name, body)

    def slurm(self, cluster: str = "our cluster", version: str = "22.05") -> None:
        directory = RECORDED / f"slurm-{version}"
        config = re.sub(r"(?m)^(ClusterName\s*= ).*", rf"\g<1>{cluster}", (directory / "config.txt").read_text())
        (self.clients / "config.txt").write_text(config)
        self.client("scontrol", f'case $* in *config) exec cat "{self.clients}/config.txt" ;; esac\n'
                    f'exec cat "{directory}/partitions.txt"')  # fmt: skip
        self.client("sinfo", f'exec cat "{directory}/nodes.txt"')
        which = '$([ "$1" = --help ] && echo srun || echo mpi)'
        self.client("srun", f'exec cat "{directory}/{which}.txt"')

    def pbs(self) -> None:
        which = '$([ "$1" = -B ] && echo server || echo queues)'
        self.client("qstat", f'exec cat "{RECORDED}/pbs/{which}.txt"')
        self.client("pbsnodes", f'exec cat "{RECORDED}/pbs/nodes.txt"')

    def read(self, name: str | None = None, *, for_job: bool = True, keep: bool = True) -> UserSite:
        return read_user_site(name, Request(gpus=1), for_job=for_job, say=self.lines.append, keep=keep)

    def kept(self) -> list[str]:
        return sorted(path.name for path in self.state.rglob("*.yaml"))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell(tmp_path)
    own_state(tmp_path, monkeypatch)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("RUNNER_STATE", str(made.state))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setenv("PATH", f"{made.clients}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return made


@pytest.mark.parametrize("client", ["sinfo", "scontrol"])
def test_of_an_answer_in_part_nothing_is_kept(shell: Shell, client: str) -> None:
    """Else one busy moment of the controller would spoil all later jobs."""
    shell.slurm()
    whole = (shell.clients / client).read_text()
    part = "" if client == "sinfo" else whole.splitlines()[1]
    shell.client(client, f"{part}\necho 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(RefusedError, match=f"answered only in part.*`{client} .*Unable to contact") as error:
        shell.read()
    assert "try again" in error.value.fix
    assert shell.kept() == []
    (shell.clients / client).write_text(whole)
    assert shell.read().site.node.gpus == 8


def test_the_slurm_that_answers_is_detected_once_and_kept(shell: Shell) -> None:
    shell.slurm()
    site = shell.read().site
    assert (site.name, site.node.gpus, site.node.count) == ("our", 8, 2)
    file = shell.state / "sites/our.yaml"
    *_, detected, defaults = shell.lines
    assert detected.startswith("site: our, detected from Slurm 22.05.8 on ")
    assert f"kept in {file}: correct it there" in detected
    assert "left to their defaults: " in defaults and "site check our` says" in defaults
    file.write_text(file.read_text().replace("gpus: 8", "gpus: 6"))
    shell.client("sinfo", "exit 1")
    assert shell.read().site.node.gpus == 6, "as the user corrected it, and not detected again"
    assert re.search(rf"detected from Slurm 22.05.8 on [-\d]+, kept in {re.escape(str(file))}", shell.lines[-1])
    assert shell.read("our").site.node.gpus == 6, "by its name, from any machine with this state directory"


def test_two_first_jobs_at_once_keep_one_whole_file(shell: Shell) -> None:
    shell.slurm()
    with ThreadPoolExecutor(4) as pool:
        assert [each.site.node.gpus for each in pool.map(lambda _: shell.read(), range(4))] == [8, 8, 8, 8]
    assert shell.kept() == ["our.yaml"]
    assert [path.name for path in (shell.state / "sites").iterdir()] == ["our.yaml"]


def test_a_dry_run_detects_and_keeps_nothing(shell: Shell, capfd: pytest.CaptureFixture[str]) -> None:
    shell.slurm()
    assert run([*JOB, "--force", "own-disk"]) == Exit.GOOD
    said = capfd.readouterr()
    assert "#SBATCH --nodes=2" in said.out
    assert "site: our, detected from Slurm 22.05.8" in said.err
    assert not shell.state.exists()


def test_each_cluster_has_its_own_file_and_one_with_the_name_of_a_shipped_site_is_not_taken_for_it(
    shell: Shell,
) -> None:
    for cluster, version, name in (("two", "24.11", "two"), ("box", "22.05", "box-here"),
                                   ("neuron", "22.05", "neuron-here")):  # fmt: skip
        shell.slurm(cluster, version)
        assert shell.read().site.name == name
    assert "if this cluster is that one, use --site neuron" in shell.lines[-1]
    assert shell.kept() == ["box-here.yaml", "neuron-here.yaml", "two.yaml"]
    assert "box" not in shell.lines[-1].split(",")[1]


def test_the_pbs_that_answers_is_detected_too(shell: Shell) -> None:
    shell.pbs()
    assert (shell.read().site.scheduler, shell.read().site.node.gpus) == ("pbs", 4)
    assert "detected from PBS 2022.1.1" in shell.lines[-1]


@pytest.mark.parametrize("verb", ["submit", "run"])
def test_without_a_scheduler_a_job_is_refused_with_the_ways_to_say_it(shell: Shell, call: Call, verb: str) -> None:
    said = call(verb, *JOB[1:], code=Exit.USAGE).err
    for part in ("no site chosen, and no Slurm or PBS answers here", "--site NAME", "RUNNER_SITE=NAME",
                 "`site: NAME` in ", "site detect -o my.yaml", "--site local"):  # fmt: skip
        assert part in said
    assert not shell.state.exists()


def test_a_scheduler_that_hangs_costs_its_time_and_is_no_cluster(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_choice, "IDENTITY_S", 1.0)
    shell.client("scontrol", "exec sleep 600")
    began = time.monotonic()
    with pytest.raises(RefusedError, match=r"the name of this cluster is not available: .* within 1 s") as caught:
        shell.read()
    assert time.monotonic() - began < 5
    assert "try again when the scheduler answers, or name the site: --site NAME" in caught.value.fix
    shell.client("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(RefusedError, match="Unable to contact slurm controller"):
        shell.read()
    shell.pbs()
    assert shell.read().site.scheduler == "pbs", "what answers is taken"


def test_the_generic_site_is_the_slurm_that_answers_and_never_its_example(shell: Shell) -> None:
    with pytest.raises(RefusedError, match="no job is planned on nodes of an unknown shape") as caught:
        shell.read("slurm")
    assert "site detect -o my.yaml" in caught.value.fix
    shell.pbs()
    with pytest.raises(RefusedError, match="the Slurm that answers here, and there is none"):
        shell.read("slurm")
    shell.slurm()
    assert shell.read("slurm").site.node.gpus == 8


@pytest.mark.parametrize(
    ("node", "missing"),
    [
        ("", "node.gpus, node.cores, node.memory_mb: not given"),
        ("node: {gpus: 8}\n", "node.cores, node.memory_mb: not given"),
    ],
)
def test_a_file_that_extends_it_gives_the_whole_shape(shell: Shell, tmp_path: Path, node: str, missing: str) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(f"name: ours\nextends: slurm\n{node}")
    with pytest.raises(UsageError, match=missing) as caught:
        shell.read(str(path))
    assert (caught.value.where, run(["site", "check", str(path), "--offline"])) == (str(path), Exit.USAGE)
    assert shell.read(str(path), for_job=False).site.name == "ours", "an environment needs no shape"
    path.write_text("name: ours\nextends: slurm\nnode: {gpus: 8, cores: 2, memory_mb: 3}\n")
    further = tmp_path / "further.yaml"
    further.write_text("name: further\nextends: ours.yaml\nnode: {gpus: 3}\n")
    assert (shell.read(str(further)).site.node.gpus, shell.read(str(further)).site.node.cores) == (3, 2)


def test_environments_have_the_same_default_and_else_this_machine_and_need_no_gpu_nodes(shell: Shell) -> None:
    assert shell.read(for_job=False).site.name == "local"
    assert shell.lines[-1].startswith("site: local, this machine: no Slurm or PBS is here")
    shell.slurm()
    shell.client("sinfo", "exit 0")
    with pytest.raises(UsageError, match=r"node\.gpus, node\.cores, node\.memory_mb: not given"):
        shell.read()
    assert shell.read(for_job=False).site.name == "our"


def test_what_is_named_is_taken_without_a_question(shell: Shell, tmp_path: Path) -> None:
    shell.client("scontrol", "exec sleep 600")
    assert shell.read("technion").site.name == "technion"
    (tmp_path / "config.yaml").write_text("site: perlmutter\n")
    assert shell.read().site.name == "perlmutter"
    assert shell.lines == []


def test_sites_that_are_kept_are_listed_and_shown(shell: Shell, call: Call) -> None:
    shell.slurm()
    shell.read()
    assert "our          our: Slurm 22.05.8" in call("site", "list").out
    call("site", "show", "our")
    assert "did you mean 'our'?" in call("site", "show", "ours", code=Exit.USAGE).err
    loader.kept_path("bad").write_text("name: [")
    listed = call("site", "list")
    assert "our          our: Slurm 22.05.8" in listed.out and "warning: bad is left out: " in listed.err


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("our cluster", "our-cluster"),
        ("../../etc", "etc"),
        ("...", "detected"),
        ("é", "detected"),
        ("a" * 99, "a" * 64),
    ],
)
def test_a_name_that_is_a_path_or_no_name_is_made_plain(name: str, plain: str) -> None:
    assert plain_name(name) == plain
