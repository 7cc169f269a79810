"""A site that is reached by ssh, from a machine of its own: a real sshd as login node, before the box's real Slurm.

Program, configuration and runs of the other side lie in a home directory of its own.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.box import Box
from tests.support.commands import Output, ran
from tests.support.documents import result
from tests.support.hostile import HARD
from tests.support.repositories import git, repository
from tests.support.sshd import Nodes, free_port, running_nodes
from tests.support.terminals import Terminal
from tests.support.users import AS_ROOT
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, AS_ROOT]
SHOWS = b"import json, sys\nprint(json.dumps(sys.argv[1:]))\n"
WORDS = (HARD, "", "new\nline\n", "\tü", "\udcff", "--", "-x", "--site")


@dataclass(frozen=True)
class Laptop:
    """The user's machine: their configuration, working directory and connection."""

    directory: Path
    login: Nodes

    @property
    def work(self) -> Path:
        return self.directory / "work $it"

    @property
    def env(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}
        state = {f"RUNNER_{name}": str(self.directory / name) for name in ("STATE", "CACHE")}
        config = {"RUNNER_CONFIG": str(self.directory / "config.yaml"), "XDG_RUNTIME_DIR": str(self.directory)}
        return {**own, **state, **config, "PYTHONPATH": str(Path(__file__).parents[2])}

    @property
    def copies(self) -> list[Path]:
        """The directories on the login node that working directories are copied into."""
        return sorted((self.login.directory / "home/gpu-runner").glob("work-it-*"))

    def site(self, name: str, **facts: object) -> None:
        """A site beside the configuration."""
        known = {"name": name, "extends": "box", "box": "", "runtimes": ["native"], "login": "nodea"}
        ssh = {"config": str(self.login.config)}
        (self.directory / "sites").mkdir(exist_ok=True)
        (self.directory / f"sites/{name}.yaml").write_text(json.dumps({**known, "ssh": ssh, **facts}))

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "runner", *words]

    def __call__(self, *words: str, code: int = 0, site: str = "far") -> Output:
        return ran(
            self.argv(f"--site={site}", *words), code=code, env=self.env, cwd=self.work, stdin=subprocess.DEVNULL
        )

    def submitted(self, *words: str) -> str:
        """The id of a job's run."""
        options = ("--gpus", "2", "--json", "--site", "far")
        said = ran(self.argv("submit", *options, "--", *words), env=self.env, cwd=self.work, stdin=subprocess.DEVNULL)
        return str(result(said.out)["run"])

    def runs(self) -> set[str]:
        """The ids of all that were submitted."""
        return {each["run"] for each in result(self("status", "--json").out)["runs"]}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv("--site=far", *words), env=self.env, cwd=self.work, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def master(self, *command: str) -> str:
        (socket,) = (self.directory / "gpu-runner-ssh").iterdir()
        words = ("ssh", "-F", str(self.login.config), "-o", f"ControlPath={socket}", *command, "nodea")
        return subprocess.run(words, capture_output=True, text=True, check=True).stderr

    def cut(self) -> None:
        """The connection is lost."""
        (number,) = re.findall(r"pid=(\d+)", self.master("-O", "check"))
        os.kill(int(number), signal.SIGKILL)


@pytest.fixture(scope="module")
def laptop(cluster: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    path = f"{cluster.bin_dir}:/usr/local/bin:/usr/bin:/bin"
    with running_nodes(tmp_path_factory.mktemp("login"), path, apart=False) as login:
        made = Laptop(tmp_path_factory.mktemp("laptop"), login)
        (made.directory / "config.yaml").write_text("{}\n")
        made.site("far")
        repository(made.work, {"show.py": SHOWS, ".gitignore": b"*.log\n"})
        first, second = (made.start("status") for _ in range(2))  # both install the program
        for each in (first, second):
            out, err = each.communicate(timeout=500)
            assert each.returncode == 0, out + err
        yield made
        made.master("-O", "exit")


def test_two_at_once_install_one_whole_program(laptop: Laptop) -> None:
    there = laptop.login.directory / "home/.cache/gpu-runner/remote"
    (program,) = (path for path in there.glob("code-*") if path.is_symlink())
    assert ran([program / "bin/gpu-runner", "--version"], env={"PATH": "/usr/bin:/bin"}).out.startswith("gpu-runner")


def test_words_files_and_exit_code_arrive_as_they_are(laptop: Laptop) -> None:
    (laptop.work / "new ü.txt").write_text("here")
    (laptop.work / "big.log").write_text("ignored")
    run = laptop.submitted("python3", "show.py", *WORDS)
    assert laptop("wait", run, code=0).out
    (log,) = result(laptop("logs", run, "--rank=0", "--json").out)
    assert json.loads(log["text"]) == list(WORDS)
    (copy,) = laptop.copies
    assert {path.name for path in copy.iterdir()} == {"show.py", ".gitignore", "new ü.txt", "runs"}
    assert not list(laptop.work.glob("runs")), "runs are at the site"
    laptop("submit", "--gpus=2", "--wait", "--", "sh", "-c", "exit 3", code=5)
    assert "-m runner --site far status" in laptop("logs", "nosuch", code=2).err, "what it names can be typed here"


def test_a_variable_that_is_named_has_the_value_of_this_shell(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be secret: it goes through no argument list, and no file keeps it outside the run directory."""
    monkeypatch.setenv("MY_KEY", "it's $HOME ü")
    run = str(result(laptop("submit", "--gpus=1", "--env=MY_KEY", "--json", "--", "printenv", "MY_KEY").out)["run"])
    laptop("wait", run)
    (log,) = result(laptop("logs", run, "--rank=0", "--json").out)
    assert log["text"] == "it's $HOME ü\n"
    calls = laptop.login.directory / "home/.cache/gpu-runner/remote/calls"
    assert all(each.read_text().strip().isdecimal() for each in calls.iterdir())


def test_only_what_changed_is_sent_and_what_went_is_removed(laptop: Laptop) -> None:
    words = ("submit", "--gpus=2", "--dry-run", "--", "python3", "show.py")
    laptop(*words)
    (copy,) = laptop.copies
    (copy / "runs").mkdir(exist_ok=True)
    assert "copied" not in laptop(*words).err
    (laptop.work / "show.py").write_bytes(SHOWS + b"# more\n")
    (laptop.work / "below").mkdir()
    (laptop.work / "below/one.py").write_text("1")
    assert " 2 of " in laptop(*words).err
    (laptop.work / "below/one.py").unlink()
    git(laptop.work, "add", "-A")
    assert "copied" not in laptop(*words).err
    assert (copy / "show.py").read_bytes().endswith(b"more\n") and not (copy / "below/one.py").exists()
    assert (copy / "runs").is_dir()


def test_waiting_and_following_go_on_after_a_lost_connection(laptop: Laptop) -> None:
    run = laptop.submitted("sh", "-c", "echo begun; while :; do sleep 1; done")
    log = laptop.copies[0] / "runs" / run / "logs/rank-0.out"
    until(lambda: log.exists() and log.read_text(), "the job runs")
    children = [laptop.start("wait", run), laptop.start("logs", "-f", run)]
    logs = children[1].stdout
    assert logs is not None
    until(lambda: "begun" in logs.readline(), "the log is followed")
    laptop.cut()
    for child in children:
        assert child.stderr is not None
        until(lambda child=child: "trying again" in child.stderr.readline(), "it notices")  # type: ignore[misc]
    assert run in laptop("status").out
    laptop("cancel", run)
    for child in children:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 5 and "cancelled" in out, out + err


def test_a_connection_lost_while_files_are_copied_starts_nothing_and_leaves_nothing_half(laptop: Laptop) -> None:
    before = laptop.runs()
    content = os.urandom(300_000_000)
    (laptop.work / "large.bin").write_bytes(content)
    child = laptop.start("submit", "--gpus=2", "--", "python3", "show.py")
    (copy,) = laptop.copies
    try:
        until(lambda: any(path.stat().st_size > 1e6 for path in copy.glob(".*~*")), "it is half-way", timeout_s=60)
        laptop.cut()
        _, err = child.communicate(timeout=60)
        assert child.returncode == 8 and "nothing was started" in err
        assert not (copy / "large.bin").exists()
        assert laptop.runs() == before
        laptop("submit", "--gpus=2", "--dry-run", "--", "python3", "show.py")
        assert (copy / "large.bin").read_bytes() == content
    finally:
        (laptop.work / "large.bin").unlink()
    until(lambda: not list(copy.glob(".*~*")), "what was half-made is removed")


def test_a_submission_whose_connection_is_lost_is_not_repeated(laptop: Laptop) -> None:
    before = laptop.runs()
    child = laptop.start("submit", "--gpus=2", "--wait", "--", "sh", "-c", "while :; do sleep 1; done")
    (run,) = until(lambda: laptop.runs() - before, "it is there")
    laptop.cut()
    _, err = child.communicate(timeout=60)
    assert child.returncode == 9 and "status says what runs there" in err
    assert laptop.runs() == before | {run}
    laptop("cancel", run)


@pytest.mark.parametrize("broken", ["wrong key", "unknown host key", "closed port", "no such host"])
def test_without_a_connection_nothing_starts_and_a_fix_is_named(broken: str, laptop: Laptop) -> None:
    config = laptop.login.configure(
        f"{broken}_config",
        **{"wrong key": {"key": "stranger"}, "unknown host key": {"known": "other_hosts"}}.get(broken, {}),
    )
    if broken == "closed port":
        config.write_text(config.read_text().replace(f"Port {laptop.login.nodes[0].port}", f"Port {free_port()}"))
    laptop.site("near", ssh={"config": str(config)}, login="nowhere.invalid" if broken == "no such host" else "nodea")
    said = laptop("submit", "--gpus=2", "--", "true", code=8, site="near")
    assert "nothing was started" in said.err and "fix:   see that" in said.err


def test_what_a_report_writes_comes_back(laptop: Laptop) -> None:
    laptop("report", "-o", "a report", code=0)
    assert (laptop.work / "a report/report.html").stat().st_size > 1000
    assert "relative" in laptop("report", "-o", "/tmp/elsewhere", code=3).err


def test_in_a_terminal_ctrl_c_reaches_the_command(laptop: Laptop) -> None:
    run = laptop.submitted("sh", "-c", "while :; do sleep 1; done")
    terminal = Terminal(laptop.argv("wait", run, "--site=far"), {**laptop.env, "TERM": "xterm"}, laptop.work)
    terminal.until("running")
    terminal.type("\x03")
    assert terminal.end() == 130
    laptop("cancel", run)


def test_without_a_terminal_an_interrupt_reaches_it_too(laptop: Laptop) -> None:
    before, words = laptop.runs(), ("submit", "--gpus=2", "--wait", "--cancel-on-interrupt")
    child = laptop.start(*words, "--", "sh", "-c", "while :; do sleep 1; done")
    assert child.stderr is not None
    until(lambda: "running" in child.stderr.readline(), "it waits")  # type: ignore[union-attr]
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    (run,) = laptop.runs() - before
    assert "cancelled" in laptop("wait", run, code=5).out


def test_the_tunnel_to_a_server_goes_from_here_and_an_interrupt_ends_its_job(laptop: Laptop) -> None:
    before, words = laptop.runs(), ("python3", "-m", "http.server", "--bind", "{address}", "{port}")
    child = laptop.start("serve", "--gpus=1", "--", *words)
    out, err = child.stdout, child.stderr
    assert out is not None and err is not None
    line = until(
        lambda: re.match(r"ssh -N -o ExitOnForwardFailure=yes -L 127.0.0.1:8888:\S+ nodea\n", out.readline()),
        "the tunnel",
        timeout_s=120,
    )
    assert line and "?token=$(ssh nodea 'cat " in out.readline()
    until(lambda: "Ctrl-C" in err.readline(), "it serves")
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    (run,) = laptop.runs() - before
    assert "cancelled" in laptop("wait", run, code=5).out
