"""How many ranks go on which node."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.backends.schedulers.hosts.client import MARK, SshHosts, _used, answer, faults, no_answer, question
from runner.core.errors import Exit, RefusedError, RunnerError, UsageError
from runner.core.files import is_on_own_disk
from runner.model.plan import Plan, PlannedImage
from runner.model.request import Mount, Request
from runner.model.site import NodeShape
from runner.planning.placement import parse_host_file, parse_hosts, place, place_on_hosts, with_hosts
from runner.planning.plan import plan
from runner.sites.loader import read_site
from tests.support.plans import PROGRAM
from tests.support.shell_files import bash, library, stand_in

DGX = NodeShape(cores=128, memory_mb=1_000_000, gpus=8, threads_per_core=2)
FOUR = msgspec.structs.replace(DGX, count=4)


@pytest.mark.parametrize(
    ("gpus", "nodes", "placed"),
    [(1, None, (1,)), (8, None, (8,)), (16, None, (8, 8)), (12, None, (6, 6)), (9, None, (8, 1)), (13, None, (8, 5)),
     (3, 2, (2, 1)), (16, 4, (4, 4, 4, 4)), (17, 4, (8, 7, 1, 1)), (2, 2, (1, 1)), (64, None, (8,) * 8)],
)  # fmt: skip
def test_fewest_nodes_equal_split_else_full_nodes_first(gpus: int, nodes: int | None, placed: tuple[int, ...]) -> None:
    assert place(gpus, nodes, DGX) == placed


@pytest.mark.parametrize(
    ("gpus", "nodes", "node", "kind", "says"),
    [
        (0, None, DGX, UsageError, "0 GPUs"),
        (-1, None, DGX, UsageError, "-1 GPUs"),
        (8, 0, DGX, UsageError, "0 nodes"),
        (8, -2, DGX, UsageError, "-2 nodes"),
        (2, 3, DGX, UsageError, "2 GPUs .* 3 nodes"),
        (12, 1, DGX, RefusedError, "2 nodes or more"),
        (10**9, None, FOUR, RefusedError, "32 GPUs or fewer"),
    ],
)
def test_what_nodes_cannot_hold_is_refused(gpus: int, nodes: Any, node: NodeShape, kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        place(gpus, nodes, node)


HOST_FILE = """\
# horovodrun and mpirun
nodea slots=8
nodeb slots = 4 max_slots=4   # the small one
nodec max-slots=2
noded:3

nodee
nodee
"""


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("nodea:8,nodeb:8", (("nodea", 8), ("nodeb", 8))),
        ("nodea", (("nodea", 1),)),
        ("nodea,nodea,nodeb", (("nodea", 2), ("nodeb", 1))),
        (" me@10.0.0.1:2 , n-1.x_y:3,", (("me@10.0.0.1", 2), ("n-1.x_y", 3))),
        (HOST_FILE, (("nodea", 8), ("nodeb", 4), ("nodec", 2), ("noded", 3), ("nodee", 2))),
    ],
)
def test_hosts_on_a_command_line_and_in_a_file(text: str, hosts: Any) -> None:
    assert (parse_host_file(text, "hosts") if "\n" in text else parse_hosts(text)) == hosts


@pytest.mark.parametrize(
    ("text", "where"),
    [
        *((text, "") for text in ("a:", "a:0", "a:x", "a:8:8", "-oProxyCommand=x:8", "a b:1", "a@-b:1", "a;id:1",
                                  "::1:8")),
        *((f"nodeb slots=1\n{line}\n", "my hosts:2") for line in (
            "nodea slots=x", "nodea slots", "nodea cpu=4", "nodea slots=0", "$(id) slots=1")),
    ],
)  # fmt: skip
def test_what_is_no_list_of_hosts_is_refused(text: str, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_host_file(text, "my hosts") if where else parse_hosts(text)
    assert caught.value.fix
    assert where in caught.value.where


@pytest.mark.parametrize(
    ("gpus", "nodes", "room", "placed"),
    [(16, None, (8, 8), (8, 8)), (8, None, (8, 8), (8,)), (10, None, (8, 8), (5, 5)), (10, None, (8, 4), (8, 2)),
     (12, None, (8, 4), (8, 4)), (3, 2, (8, 8, 8), (2, 1)), (6, 3, (1, 8, 8), (1, 4, 1)),
     (4, 4, (8, 8, 8, 8), (1, 1, 1, 1))],
)  # fmt: skip
def test_ranks_fill_the_hosts_in_their_order(gpus: int, nodes: int | None, room: Any, placed: Any) -> None:
    assert place_on_hosts(gpus, nodes, {f"n{number}": ranks for number, ranks in enumerate(room)}) == placed


@pytest.mark.parametrize(
    ("gpus", "nodes", "room", "kind", "says"),
    [
        (17, None, (8, 8), RefusedError, "n0:8,n1:8"),
        (10, 1, (8, 8), RefusedError, "10 GPUs do not fit on 1 of"),
        (3, 3, (8, 8), RefusedError, "3 GPUs do not fit on 3 of"),
        (1, 2, (8, 8), UsageError, "over 2 nodes"),
        (0, None, (8,), UsageError, "0 is not possible"),
        (1, 0, (8,), UsageError, "0 is not possible"),
        (1, None, (), UsageError, "no hosts"),
    ],
)
def test_what_hosts_cannot_hold_is_refused(
    gpus: int, nodes: Any, room: Any, kind: type[RunnerError], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        place_on_hosts(gpus, nodes, {f"n{number}": ranks for number, ranks in enumerate(room)})
    assert caught.value.fix


def test_the_list_on_the_command_line_wins_and_a_scheduler_gives_out_its_own_nodes() -> None:
    site = read_site("hosts")
    ours = msgspec.structs.replace(site, ssh=msgspec.structs.replace(site.ssh, hosts={"mine": 2}))
    assert with_hosts(ours).node.gpus == 2
    listed = with_hosts(ours, parse_hosts("a:8,b:4"))
    assert (dict(listed.ssh.hosts), listed.node.count) == ({"a": 8, "b": 4}, 2)
    with pytest.raises(UsageError, match="slurm"):
        with_hosts(read_site("technion"), parse_hosts("a:8"))


@pytest.mark.parametrize(
    ("ssh", "key"), [("hosts: {'a b': 1}", "ssh.hosts"), ("hosts: {a: 0}", "ssh.hosts"), ("config: mine", "ssh.config")]
)
def test_a_site_file_with_a_host_that_ssh_would_not_take_is_refused(tmp_path: Path, ssh: str, key: str) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(f"name: ours\nextends: hosts\nssh: {{{ssh}}}\n")
    with pytest.raises(UsageError) as caught:
        read_site(str(path))
    assert key in caught.value.where


def planned(**changes: Any) -> Plan:
    site = msgspec.structs.replace(with_hosts(read_site("hosts"), parse_hosts("a:2,b:2")), **changes)
    request = Request(gpus=4, mounts=(Mount("/da ta", "/data"),))
    return plan(PROGRAM, site, request, PlannedImage("i", "", "/shared/i.sif", size_bytes=100))


GOOD = {"token": "t", "gpus": "2", "head": "10.0.0.1 STREAM a", "image": "100", "python": "3 11", "no-modules": ""}


def differing(plan_changes: dict[str, str], **answer_changes: str) -> list[Any]:
    """The faults of two machines, of which the second answers otherwise."""
    answers = [{**GOOD, "machine": "a 1"}, {**GOOD, "machine": "b 2", **answer_changes}]
    said = [{name: [value] for name, value in each.items()} for each in answers]
    return list(faults(planned(**plan_changes), "/run", "a", "t", said))


def test_hosts_that_are_ready_have_no_faults_and_without_gpus_none_are_counted() -> None:
    assert not differing({})
    assert not differing({"device": "cpu"}, gpus="0")


@pytest.mark.parametrize(
    ("changes", "says", "fix"),
    [
        ({"token": ""}, "does not see the run directory /run", "--runs"),
        ({"token": "differs"}, "does not see the run directory", "--runs"),
        ({"exchangeable": ""}, "another user could exchange the run directory /run", "--runs"),
        ({"image": ""}, "does not see the image /shared/i.sif", "RUNNER_STORE"),
        ({"image": "99"}, "has 99 bytes, and the image 100", "same image"),
        ({"no-mount": "0"}, "no '/da ta' to mount", "path"),
        ({"no-program": "ch-run"}, "no ch-run", "install"),
        ({"python": "3 6"}, "python3 is 3.6", "3.8"),
        ({"no-modules": "torch horovod"}, "cannot import torch, horovod", "container"),
        ({"gpus": "1"}, "has 1 NVIDIA GPUs, and 2 ranks", "b:1"),
        ({"gpus": "0"}, "has 0 NVIDIA GPUs, and 2 ranks", "leave it out"),
        ({"head": ""}, "cannot resolve 'a'", "first"),
        ({"head": "127.0.1.1 STREAM a"}, "is a loopback address there", "first"),
        ({"machine": "a 1"}, "same machine as a", "once"),
    ],
)
def test_a_host_that_is_not_ready_is_named_with_its_fix(changes: Any, says: str, fix: str) -> None:
    (fault,) = differing({}, **changes)
    assert (fault.host, fault.code) == ("b", Exit.REFUSED)
    assert says in fault.what
    assert fix in fault.fix


def test_what_lies_on_the_disk_of_the_machine_that_submits_is_refused_where_a_host_is_another_one() -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    said = [{name: [value] for name, value in {**GOOD, "machine": f"{host} {id_}"}.items()}
            for host, id_ in (("a", boot), ("b", "2"))]  # fmt: skip
    (fault,) = faults(planned(), "/run", "a", "t", said, own="/tmp/mine/venv/bin")
    assert (fault.host, "/tmp/mine/venv/bin" in fault.what) == ("b", True)


def test_a_first_host_that_knows_itself_by_a_loopback_address_needs_another() -> None:
    first, second = {**GOOD, "machine": "a 1", "head": "127.0.0.1 STREAM a"}, {**GOOD, "machine": "b 2"}

    def of_first(**more: str) -> list[Any]:
        said = [{name: [value] for name, value in each.items()} for each in ({**first, **more}, second)]
        return list(faults(planned(), "/run", "a", "t", said))

    assert not of_first()
    (fault,) = of_first(**{"no-way-out": ""})
    assert (fault.host, fault.code, "is a loopback address there" in fault.what) == ("a", Exit.REFUSED, True)


def test_an_answer_is_read_among_whatever_a_login_shell_says() -> None:
    said = f"Welcome!\n{MARK} token \n{MARK} no-mount 1\n{MARK} no-mount 2\nfortune: no\n{MARK} end \n"
    assert answer(said) == {"token": [""], "no-mount": ["1", "2"], "end": [""]}
    assert answer(f"{MARK} token t\n") is None


def test_nothing_of_a_users_reaches_the_shell_unquoted() -> None:
    asked = question(planned(), "/run $(id)'s", "a", "/x:$HOME")
    for quoted in ("'/run $(id)'\\''s/hosts.token'", "export PATH='/x:$HOME'", "'/da ta'"):
        assert quoted in asked


def test_on_another_machine_path_has_nothing_of_this_ones_own_disk(tmp_path: Path) -> None:
    head, *_ = question(planned(), "/run", "a", f"/usr/bin:{tmp_path}:/bin").partition("token=")
    assert head.splitlines()[0] == "export PATH='/usr/bin:/bin'"
    for boot, has_own in ((Path("/proc/sys/kernel/random/boot_id").read_text().strip(), True), ("other", False)):
        asked = head.replace("/proc/sys/kernel/random/boot_id", str(tmp_path / "boot_id"))
        (tmp_path / "boot_id").write_text(f"{boot}\n")
        done = subprocess.run(["bash", "-c", f"{asked}\necho $PATH"], capture_output=True, text=True, check=True)
        assert (str(tmp_path) in done.stdout) == has_own


def test_no_variable_takes_code_of_this_ones_own_disk_to_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is not there, which anybody may make."""
    values = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}/gone:/x",
              "PYTHONPYCACHEPREFIX": f"{tmp_path}", "LD_PRELOAD": f"/a {tmp_path}/b", "D": f"{tmp_path}"}  # fmt: skip
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    code = SshHosts().environment(tmp_path)["RUNNER_CODE"]
    monkeypatch.undo()
    shared = {**values, "PATH": "/usr/bin:/bin", "PYTHONPATH": "/x", "PYTHONPYCACHEPREFIX": "", "LD_PRELOAD": "/a"}
    boot_id = "/proc/sys/kernel/random/boot_id"
    for boot, expected in ((Path(boot_id).read_text(), values), ("other\n", shared)):
        (tmp_path / "boot_id").write_text(boot)
        env = {"RUNNER_CODE": code.replace(boot_id, str(tmp_path / "boot_id")), **values, "LD_PRELOAD": ""}
        done = bash(library(tmp_path), ". lib/hosts.sh; runner_environment", env)
        print_all = "".join(f'\nprintf "%s\\n" "${name}"' for name in values)
        words = ["env", "-i", "/bin/bash", "-c", done.stdout + print_all]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        assert dict(zip(values, said, strict=True)) == expected


def test_all_that_a_program_without_a_container_names_counts_as_used_on_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run", "python3"):
        stand_in(tmp_path, name, "")
    with tempfile.TemporaryDirectory(dir=Path.home()) as shared:
        (Path(shared) / "python3").symlink_to(tmp_path / "python3")
        for words, path, own in (
            (("bash", f"{tmp_path}/run"), "", f"{tmp_path}/run"),
            (("bash", "-c", f"exec {tmp_path}/run;"), "", f"{tmp_path}/run"),
            (("python3", "-c", "1"), f"{shared}:", f"{shared}/python3"),
            (("python3", "-c", "1"), f"{tmp_path}:", f"{tmp_path}/python3"),
            (("bash", "-c", "1"), f"{tmp_path}/tools:", ""),  # PATH is sent without it
            (("bash", f"{tmp_path}/absent"), "", ""),
            (("python3", "train.py", "-o", f"{tmp_path}"), "", ""),
        ):
            monkeypatch.setenv("PATH", f"{path}/usr/bin:/bin")
            job = msgspec.structs.replace(planned(), runtime="native", mounts=(), program=words)
            assert next((each for each in _used(job) if is_on_own_disk(Path(each))), "") == own


UNKNOWN_KEY = "No ED25519 host key is known for x.\nHost key verification failed."
CHANGED_KEY = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed."


@pytest.mark.parametrize(
    ("ended", "said", "what", "fix", "code"),
    [
        (255, UNKNOWN_KEY, "does not know its host key", "by hand", 3),
        (255, CHANGED_KEY, "differs", "-R a", 3),
        (255, "me@x: Permission denied (publickey,password).", "without a password", "ssh-copy-id a", 3),
        (255, "ssh: Could not resolve hostname a: Name or service not known", "not known here", "HostName", 3),
        (255, "ssh: connect to host x port 22: Connection refused", "no ssh answers", "check that it is up", 8),
        (255, "ssh: connect to host x port 22: Connection timed out", "no ssh answers", "check that it is up", 8),
        (255, "", "exit code 255", "without a question", 8),
        (None, "", "within 60 s", "", 8),
        (127, "bash: not found", "", "", 3),
    ],
)
def test_what_ssh_prints_is_shown_with_its_fix(ended: int | None, said: str, what: str, fix: str, code: int) -> None:
    fault = no_answer("a", ended, said, 60)
    assert what in fault.what
    assert fix in fault.fix
    assert fault.code == code
    assert "StrictHostKeyChecking" not in fault.fix
