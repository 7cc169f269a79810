"""The host's mirror is used where it serves the suite; third parties are not."""

from __future__ import annotations

from pathlib import Path

from runner.box import root

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
