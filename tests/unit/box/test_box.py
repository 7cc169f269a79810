"""A box's files are functions of what it is to be; its packages come from the host's mirror where that has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from runner.box import Bind, BoxSpec, NodeShape, config, inside, root
from runner.core.errors import UsageError

ROOT = config.Account(0, 0, "root", "/root")
USER = config.Account(1000, 1001, "ada", "/home/ada")
PRISTINE = {"etc/passwd": "root:x:0:0:root:/root:/bin/bash\nbin:x:2:2::/:/bin/sh\n", "etc/group": "root:x:0:\n"}


def test_default_nodes_are_two_dgx_a100() -> None:
    lines = config.slurm_conf(BoxSpec(), ROOT).splitlines()
    assert [line for line in lines if line.startswith("NodeName=")] == [
        f"NodeName=dgx0{n} NodeHostname=dgx0{n} NodeAddr=10.0.0.1{n} Port=2700{n} CPUs=256 Boards=1"
        " SocketsPerBoard=2 CoresPerSocket=64 ThreadsPerCore=2 RealMemory=1000000"
        " Gres=gpu:a100:8 Feature=fake-gpus State=UNKNOWN"
        for n in (1, 2)
    ]
    assert lines[-1] == ("PartitionName=batch Nodes=dgx01,dgx02 Default=YES MaxTime=INFINITE DefaultTime=30 State=UP")
    assert "EnforcePartLimits=ALL" in lines


def test_every_gpu_has_a_device() -> None:
    lines = config.gres_conf(BoxSpec(nodes=1, shape=NodeShape(gpus=2, gpu_type="h100"))).splitlines()
    assert lines == [f"NodeName=dgx01 Name=gpu Type=h100 File=/var/box/gpu/nvidia{n}" for n in (0, 1)]


def test_nodes_without_gpus_name_none() -> None:
    spec = BoxSpec(shape=NodeShape(gpus=0))
    assert config.gres_conf(spec) == ""
    assert "Gres=" not in config.slurm_conf(spec, ROOT)
    assert "Feature=" not in config.slurm_conf(spec, ROOT)


def test_nodes_have_the_features_and_the_partition_of_a_site() -> None:
    spec = BoxSpec(nodes=1, shape=NodeShape(features=("gpu", "hbm40g")), partition="amd_a100nv_8")
    node, partition = config.slurm_conf(spec, ROOT).splitlines()[-2:]
    assert " Gres=gpu:a100:8 Feature=gpu,hbm40g,fake-gpus State=UNKNOWN" in node
    assert partition.startswith("PartitionName=amd_a100nv_8 Nodes=dgx01 Default=YES ")


def test_daemons_run_as_the_user() -> None:
    text = config.slurm_conf(BoxSpec(), USER)
    assert "SlurmUser=ada\nSlurmdUser=ada\n" in text
    assert "TaskProlog=" in text, "or a job with --export=NONE would have no PATH"
    assert "TaskProlog=" not in config.slurm_conf(BoxSpec(), ROOT)


def test_daemons_have_an_environment_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example")
    assert USER.environment == {
        "HOME": "/home/ada",
        "LANG": "C.UTF-8",
        "LOGNAME": "ada",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SHELL": "/bin/bash",
        "USER": "ada",
    }


def test_a_container_has_time_to_be_removed() -> None:
    assert "KillWait=10\n" in config.slurm_conf(BoxSpec(), ROOT)


def test_every_machine_has_an_address_of_its_own() -> None:
    lines = config.hosts(BoxSpec(nodes=99)).splitlines()
    addresses = [line.split()[0] for line in lines]
    assert lines[:2] == ["127.0.0.1 localhost", "10.0.0.1 box"]
    assert len(set(addresses)) == len(lines) == 101


def test_account_replaces_its_namesake_and_gets_a_group() -> None:
    assert config.passwd(ROOT, PRISTINE["etc/passwd"]) == ("bin:x:2:2::/:/bin/sh\nroot:x:0:0::/root:/bin/bash\n")
    assert config.group(ROOT, PRISTINE["etc/group"]) == "root:x:0:\n"
    assert config.group(USER, PRISTINE["etc/group"]) == "root:x:0:\nada:x:1001:\n"


def test_files_hold_the_spank_lines_and_the_way_to_run_as_the_user() -> None:
    spec = BoxSpec(spank=("required /opt/spank_x.so a=b", "optional /opt/y.so"))
    files = config.files(spec, USER, PRISTINE)
    assert files["etc/slurm/plugstack.conf"] == "required /opt/spank_x.so a=b\noptional /opt/y.so\n"
    assert files["etc/box/name"] == "box\n", "by it a program inside knows where it is"
    assert "--map-user" in files["etc/box/as.sh"]
    assert "--map-user" not in config.files(spec, ROOT, PRISTINE)["etc/box/as.sh"]


def test_host_directories_are_seen_but_the_systems_own_are_not() -> None:
    spec = BoxSpec(binds=(Bind.parse("/opt/x:/usr/lib/x"),))
    seen = config.binds(
        spec,
        ["home", "work", "usr", "etc", "proc", "lib64"],
        [Path("/home/ada"), Path("/var/cache/ada")],
        Path("/home/ada/logs"),
    )
    assert [(bind.source, bind.target) for bind in seen] == [
        ("/home", "/home"),
        ("/work", "/work"),
        ("/var/cache/ada", "/var/cache/ada"),
        ("/opt/x", "/usr/lib/x"),
        ("/home/ada/logs", "/var/log/slurm"),
    ]


def test_user_namespace_only_for_those_who_need_one() -> None:
    assert "--user" not in config.unshare_argv(ROOT, Path("/s"), Path("/r"))
    assert "--user" in config.unshare_argv(USER, Path("/s"), Path("/r"))


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
        (partial(BoxSpec, nodes=0), "not 0"),
        (partial(BoxSpec, nodes=100), "not 100"),
        (partial(BoxSpec, slurm="21.08"), r"21\.08"),
        (partial(BoxSpec, name="../x"), r"name.*'\.\./x'"),
        (partial(BoxSpec, spank=("hello x.so",)), r"plugstack\.conf: 'hello x\.so'"),
        (partial(BoxSpec, spank=("required /x.so\nrequired /y.so",)), r"plugstack\.conf: .*\\nrequired /y\.so"),
        (partial(BoxSpec, partition="a b"), "partition.*'a b'"),
        (partial(BoxSpec, shape=NodeShape(features=("a,b",))), "feature.*'a,b'"),
        (partial(BoxSpec, packages=("gcc -o x",)), "package.*'gcc -o x'"),
    ],
)
def test_bad_specs_are_usage_errors(wrong: Callable[[], BoxSpec], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        wrong()


def test_the_key_of_a_root_follows_what_goes_into_it() -> None:
    keys = {root.key(slurm, "x86_64", as_root) for slurm in ("22.05", "24.11") for as_root in (True, False)}
    assert len(keys) == 4
    assert root.key("22.05", "x86_64", True) == root.key("22.05", "x86_64", True)
    assert root.key("22.05", "x86_64", True).startswith("bookworm-")
    assert root.key("22.05", "x86_64", True, ("gcc",)) != root.key("22.05", "x86_64", True)


def test_slurm_version_is_the_packages_upstream_one() -> None:
    status = "Package: bash\nVersion: 5.2\n\nPackage: slurm-client\nStatus: x\nVersion: 1:22.05.8-4+deb12u3\n\n"
    assert root.slurm_version(status) == "22.05.8"


def test_a_process_inside_knows_its_box(tmp_path: Path) -> None:
    assert inside(tmp_path) == ""
    (tmp_path / "etc/box").mkdir(parents=True)
    (tmp_path / "etc/box/name").write_text(config.files(BoxSpec(name="mine"), ROOT, PRISTINE)["etc/box/name"])
    assert inside(tmp_path) == "mine"


DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

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
ONE_LINE = """\
deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://m.example/debian bookworm main non-free
# deb http://n.example/debian bookworm main
deb-src http://m.example/debian bookworm main
deb https://download.example/linux/ubuntu noble main
"""


def test_deb822_sources_of_the_host() -> None:
    assert [entry.line for entry in root.sources("bookworm", [DEB822])] == [
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian bookworm main",
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://mirror.example/debian"
        " bookworm-updates main",
        "deb http://mirror.example/debian-security bookworm-security main",
    ]


def test_one_line_sources_of_the_host() -> None:
    assert root.sources("bookworm", [ONE_LINE]) == (
        root.Source("http://m.example/debian", "bookworm", "/usr/share/keyrings/debian-archive-keyring.gpg"),
    )


def test_another_suite_comes_from_debian() -> None:
    assert [entry.line for entry in root.sources("trixie", [DEB822, ONE_LINE])] == [
        "deb http://deb.debian.org/debian trixie main",
        "deb http://deb.debian.org/debian trixie-updates main",
        "deb http://deb.debian.org/debian-security trixie-security main",
    ]


def test_a_rolling_suite_has_no_updates() -> None:
    assert root.sources("unstable", []) == (root.Source(root.DEBIAN, "unstable"),)


def test_only_how_the_archive_is_reached_is_taken_over() -> None:
    dump = (
        'APT::Architecture "amd64";\nAcquire::http::Proxy "http://p:3142";\n'
        'Acquire::Check-Valid-Until "false";\nAcquire::Languages "none";\n'
    )
    kept = root.reach_options(dump)
    assert kept == ('Acquire::http::Proxy "http://p:3142";', 'Acquire::Check-Valid-Until "false";')
    argv = root.mmdebstrap_argv("bookworm", ("munge",), Path("/t.tar"), "root", (root.Source("u", "s"),), kept)
    assert '--aptopt=Acquire::Check-Valid-Until "false"' in argv
    assert argv[-3:] == ["bookworm", "/t.tar", "deb u s main"]


def test_a_password_stands_on_no_command_line_and_in_no_root() -> None:
    dump = 'Acquire::http::Proxy "http://u:planted@p:3142";\nAcquire::https::Proxy "http://p:3142";\n'
    assert root.reach_options(dump) == ('Acquire::https::Proxy "http://p:3142";',)
    assert root.proxy_variables(dump) == {"http_proxy": "http://u:planted@p:3142"}
    of_host = ["deb http://u:planted@m.example/debian bookworm main\n"]
    assert all(entry.uri.startswith(root.DEBIAN) for entry in root.sources("bookworm", of_host))
