"""A box's files are functions of what it is to be; its packages come from the host's mirror where that has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.box import Bind, BoxSpec, NodeShape, config, inside, lifecycle, root
from runner.core import process_identity
from runner.core.errors import UsageError

ROOT = config.Account(0, 0, "root", "/root")
USER = config.Account(1000, 1001, "ada", "/home/ada")
PRISTINE = {"etc/passwd": "root:x:0:0:root:/root:/bin/bash\nbin:x:2:2::/:/bin/sh\n", "etc/group": "root:x:0:\n"}
DGX = [
    f"NodeName=dgx0{n} NodeHostname=dgx0{n} NodeAddr=10.0.0.1{n} Port=2700{n} CPUs=256 Boards=1 SocketsPerBoard=2"
    " CoresPerSocket=64 ThreadsPerCore=2 RealMemory=1000000 Gres=gpu:a100:8 Feature=fake-gpus State=UNKNOWN"
    for n in (1, 2)
]
PARTITION = "PartitionName=batch Nodes=dgx01,dgx02 Default=YES MaxTime=INFINITE DefaultTime=30 State=UP"
OTHER = NodeShape(gpus=2, gpu_type="h100", features=("gpu", "hbm40g"))


def files(account: config.Account = ROOT, **spec: Any) -> dict[str, str]:
    return config.files(BoxSpec(**spec), account, PRISTINE)


@pytest.mark.parametrize(
    ("account", "spec", "expected", "absent"),
    [
        # By default two DGX A100. A container has time to be removed: KillWait.
        (ROOT, {}, [*DGX, PARTITION, "EnforcePartLimits=ALL", "KillWait=10\n", "SlurmUser=root\n"], ["TaskProlog="]),
        (ROOT, {"shape": NodeShape(gpus=0)}, [" RealMemory=1000000 State=UNKNOWN\n"], ["Gres=", "Feature="]),
        (ROOT, {"shape": OTHER}, [" Gres=gpu:h100:2 Feature=gpu,hbm40g,fake-gpus State=UNKNOWN"], []),
        (ROOT, {"partition": "a_8", "nodes": 1}, ["PartitionName=a_8 Nodes=dgx01 Default=YES "], ["dgx02"]),
        # As the user, a job with --export=NONE would have no PATH without a prolog.
        (USER, {}, ["SlurmUser=ada\nSlurmdUser=ada\n", "\nTaskProlog="], []),
    ],
)
def test_slurm_conf_has_the_nodes_the_partition_and_the_user(
    account: config.Account, spec: dict[str, Any], expected: list[str], absent: list[str]
) -> None:
    text = files(account, **spec)["etc/slurm/slurm.conf"]
    assert [each for each in expected if each not in text] == []
    assert [each for each in absent if each in text] == []


def test_the_other_files_hold_devices_hosts_accounts_and_the_way_to_run_as_the_user() -> None:
    spank = ("required /opt/spank_x.so a=b", "optional /opt/y.so")
    of_root, of_user = files(nodes=99, spank=spank), files(USER, nodes=1, shape=OTHER)
    assert of_root["etc/slurm/plugstack.conf"] == "required /opt/spank_x.so a=b\noptional /opt/y.so\n"
    assert of_root["etc/box/name"] == "box\n", "by it a program inside knows where it is"
    devices = (f"NodeName=dgx01 Name=gpu Type=h100 File=/var/box/gpu/nvidia{n}\n" for n in (0, 1))
    assert of_user["etc/slurm/gres.conf"] == "".join(devices)
    assert files(shape=NodeShape(gpus=0))["etc/slurm/gres.conf"] == ""
    hosts = of_root["etc/hosts"].splitlines()
    assert hosts[:2] == ["127.0.0.1 localhost", "10.0.0.1 box"]
    assert len({line.split()[0] for line in hosts}) == len(hosts) == 101, "every machine has an address of its own"
    assert of_root["etc/passwd"] == "bin:x:2:2::/:/bin/sh\nroot:x:0:0::/root:/bin/bash\n"
    assert of_user["etc/passwd"].endswith("ada:x:1000:1001::/home/ada:/bin/bash\n")
    assert (of_root["etc/group"], of_user["etc/group"]) == ("root:x:0:\n", "root:x:0:\nada:x:1001:\n")
    assert [("--map-user" in each["etc/box/as.sh"]) for each in (of_root, of_user)] == [False, True]
    namespaces = [config.unshare_argv(account, Path("/s"), Path("/r")) for account in (ROOT, USER)]
    assert ["--user" in each for each in namespaces] == [False, True]


def test_host_directories_are_seen_but_the_systems_own_are_not() -> None:
    spec = BoxSpec(binds=(Bind.parse("/opt/x:/usr/lib/x"),))
    needed = [Path("/home/ada"), Path("/var/cache/ada")]
    seen = config.binds(spec, ["home", "work", "usr", "etc", "proc", "lib64"], needed, Path("/home/ada/logs"))
    assert [f"{bind.source}:{bind.target}" for bind in seen] == [
        "/home:/home", "/work:/work", "/var/cache/ada:/var/cache/ada", "/opt/x:/usr/lib/x",
        "/home/ada/logs:/var/log/slurm",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [("a:b", "absolute"), ("/a:b", "absolute"), ("", "absolute"), ("/a\n:/b", "newline"), ("/a:/b/../etc", r"'\.\.'")],
)
def test_bad_binds_are_usage_errors(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Bind.parse(text)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"nodes": 0}, "not 0"),
        ({"nodes": 100}, "not 100"),
        ({"slurm": "21.08"}, r"21\.08"),
        ({"name": "../x"}, r"name.*'\.\./x'"),
        ({"spank": ("hello x.so",)}, r"plugstack\.conf: 'hello x\.so'"),
        ({"spank": ("required /x.so\nrequired /y.so",)}, r"plugstack\.conf: .*\\nrequired /y\.so"),
        ({"partition": "a b"}, "partition.*'a b'"),
        ({"shape": NodeShape(features=("a,b",))}, "feature.*'a,b'"),
        ({"packages": ("gcc -o x",)}, "package.*'gcc -o x'"),
    ],
)
def test_bad_specs_are_usage_errors(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        BoxSpec(**wrong)


def test_the_key_of_a_root_follows_what_goes_into_it() -> None:
    inputs = (("22.05", "x86_64", True), ("24.11", "x86_64", True), ("22.05", "x86_64", False))
    keys = [root.key(*each) for each in (*inputs, (*inputs[0], ("gcc",)))]
    assert len(set(keys)) == 4
    assert keys[0] == root.key(*inputs[0])
    assert keys[0].startswith("bookworm-")


def test_slurm_version_is_the_packages_upstream_one() -> None:
    status = "Package: bash\nVersion: 5.2\n\nPackage: slurm-client\nStatus: x\nVersion: 1:22.05.8-4+deb12u3\n\n"
    assert root.slurm_version(status) == "22.05.8"


def test_a_process_inside_knows_its_box(tmp_path: Path) -> None:
    assert inside(tmp_path) == ""
    (tmp_path / "etc/box").mkdir(parents=True)
    (tmp_path / "etc/box/name").write_text(files(name="mine")["etc/box/name"])
    assert inside(tmp_path) == "mine"


KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEB822 = f"""\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: {KEYRING}

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main

Types: deb deb-src
URIs: https://packages.example/debian
Suites: bookworm
Components: main
Signed-By: /etc/apt/keyrings/example.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""
ONE_LINE = f"""\
deb [arch=amd64 signed-by={KEYRING}] http://m.example/debian bookworm main non-free
# deb http://n.example/debian bookworm main
deb-src http://m.example/debian bookworm main
deb https://download.example/linux/ubuntu noble main
"""
WITH_PASSWORD = "deb http://u:planted@m.example/debian bookworm main\n"
DEBIANS = tuple(
    f"{archive} {{0}}{update} main"
    for archive, update in ((root.DEBIAN, ""), (root.DEBIAN, "-updates"), (root.DEBIAN_SECURITY, "-security"))
)
SIGNED = f"[signed-by={KEYRING}] "
MIRROR = "http://mirror.example/debian"
MIRRORED = [f"{SIGNED}{MIRROR} bookworm main", f"{SIGNED}{MIRROR} bookworm-updates main"]
MIRRORED += [f"{MIRROR}-security bookworm-security main"]


@pytest.mark.parametrize(
    ("suite", "host_files", "lines"),
    [
        pytest.param("bookworm", [DEB822], MIRRORED, id="deb822"),
        pytest.param("bookworm", [ONE_LINE], [f"{SIGNED}http://m.example/debian bookworm main"], id="one line"),
        pytest.param("trixie", [DEB822, ONE_LINE], [each.format("trixie") for each in DEBIANS], id="another suite"),
        pytest.param("unstable", [], [f"{root.DEBIAN} unstable main"], id="a rolling suite has no updates"),
        pytest.param("bookworm", [WITH_PASSWORD], [each.format("bookworm") for each in DEBIANS], id="a password"),
    ],
)
def test_sources_are_the_hosts_where_they_have_the_suite(suite: str, host_files: list[str], lines: list[str]) -> None:
    assert [entry.line for entry in root.sources(suite, host_files)] == [f"deb {line}" for line in lines]


def test_only_how_the_archive_is_reached_is_taken_over_and_no_password_stands_on_a_command_line() -> None:
    dump = (
        'APT::Architecture "amd64";\nAcquire::http::Proxy "http://u:planted@p:3142";\n'
        'Acquire::https::Proxy "http://p:3142";\nAcquire::Check-Valid-Until "false";\nAcquire::Languages "none";\n'
    )
    options = root.reach_options(dump)
    assert options == ('Acquire::https::Proxy "http://p:3142";', 'Acquire::Check-Valid-Until "false";')
    assert root.proxy_variables(dump) == {"http_proxy": "http://u:planted@p:3142"}
    argv = root.mmdebstrap_argv("bookworm", ("munge",), Path("/t.tar"), "root", (root.Source("u", "s"),), options)
    assert '--aptopt=Acquire::Check-Valid-Until "false"' in argv
    assert argv[-3:] == ["bookworm", "/t.tar", "deb u s main"]


def test_a_box_is_found_by_its_name_and_by_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's file may have any, and who wrote it could lead it to programs of another user's."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    (up := tmp_path / "boxes/up").mkdir(parents=True)
    mark = process_identity.entry(os.getpid())
    assert mark is not None
    (up / "pid").write_text(f"{mark.pid} {mark.start} x\n")
    record = {"spec": {"name": "up"}, "root": "/", "version": "1"}
    (up / "spec.json").write_bytes(msgspec.json.encode(record))
    found = lifecycle.find("up")
    assert found is not None and found.bin_dir == up / "bin"
    assert lifecycle.find("../boxes/up") is None and lifecycle.find(str(up)) is None
