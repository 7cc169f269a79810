"""What the launcher sees of its program's connections: real sockets, real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_runner_inside.launcher.contact import Contact, is_connected

from tests.support.sshd import free_port


def program(text: str, port: int) -> int:
    return subprocess.run([sys.executable, "-c", text, str(port)], check=False).returncode


MEETS = """
import socket, sys, time
here = ("127.0.0.1", int(sys.argv[1]))
with socket.create_server(here) as server, socket.create_connection(here), server.accept()[0]:
    time.sleep(float({}))
"""
SERVES_IN_VAIN = """
import socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    time.sleep(0.8)
"""


@pytest.mark.parametrize(
    ("text", "seen"),
    [(MEETS.format(0.0), True), (MEETS.format(1.5), True), (SERVES_IN_VAIN, False), ("", False)],
    ids=["over before the first look", "open for a while", "listens in vain", "does nothing"],
)
def test_a_connection_with_the_port_is_seen(text: str, seen: bool) -> None:
    contact, port = Contact(), free_port()
    assert contact.during(port, lambda: program(text, port)) == 0
    assert contact.seen is seen


def test_without_a_port_nothing_is_claimed() -> None:
    contact = Contact()
    assert contact.during(0, lambda: 7) == 7
    assert contact.seen is None


def test_the_alarm_neither_ends_the_waiting_nor_stays() -> None:
    began = time.monotonic()
    assert Contact().during(free_port(), lambda: program("import time; time.sleep(1.2)", 0)) == 0
    assert time.monotonic() - began >= 1.2
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def table_of(*rows: tuple[str, int]) -> str:
    """As the kernel writes it, of the ends, state and user of each."""
    heading = Path("/proc/net/tcp").read_text().splitlines()[0]
    of_each = "\n   0: {} 00000000:00000000 00:00000000 00000000 {:5d}        0 1 1 0 20 4 30 10 -1"
    return heading + "".join(of_each.format(*row) for row in rows)


def test_another_users_connection_is_not_the_programs() -> None:
    other = os.getuid() + 1
    assert not is_connected(table_of(("0100007F:2F09 0100007F:D431 01", other)), 0x2F09)
    assert not is_connected(table_of(("0100007F:2F09 0100007F:D431 08", other)), 0x2F09)
    assert is_connected(table_of(("0100007F:2F09 0100007F:D431 06", 0)), 0x2F09), "the kernel says of none whose it was"


@pytest.mark.parametrize("both", ["", "0000000000000000FFFF0000"], ids=["IPv4", "a port of both"])
def test_a_strangers_connection_to_the_program_is_not_the_ranks(both: str) -> None:
    here, there, mine = f"{both}0100007F:2F09", f"{both}0100007F:D431", os.getuid()
    served, called = (f"{here} {there} 01", mine), "0100007F:D431 0100007F:2F09 01"
    assert not is_connected(table_of(served, (called, mine + 1)), 0x2F09)
    assert is_connected(table_of(served, (called, mine)), 0x2F09)
    assert is_connected(table_of(served, ("0100007F:D432 0100007F:2F09 01", mine + 1)), 0x2F09)
    assert is_connected(table_of(served), 0x2F09), "from another node"


def test_the_table_is_read_by_whole_port_numbers() -> None:
    table = table_of(("0100007F:2F09 0100007F:D431 01", os.getuid()), ("00000000:2EE0 00000000:0000 0A", os.getuid()))
    assert is_connected(table, 0x2F09)
    assert is_connected(table, 0xD431)
    assert not is_connected(table, 0x2EE0)
    assert not is_connected(table, 0x2F0)
