"""Counters of this node's ways to other nodes, as raw readings. ``root`` is ``/`` but in tests.

Sources:
- InfiniBand and RoCE: ``/sys/class/infiniband/NAME/ports/N/counters`` (kernel, Documentation/ABI/stable/
  sysfs-class-infiniband): ``port_xmit_data`` and ``port_rcv_data`` count words of 4 bytes. On an Ethernet port they
  count RDMA alone (mlx5: drivers/infiniband/hw/mlx5/mad.c), and netdev's counters leave RDMA out.
- On an InfiniBand port they count IP over InfiniBand, too: the bytes of its network interfaces are read beside.
- EFA: ``hw_counters`` of the port (before Linux 5.15 of the device): ``tx_bytes`` and ``rx_bytes``, and those of each
  operation (drivers/infiniband/hw/efa/efa_verbs.c). Whether the first hold RDMA's bytes is not documented: the larger
  of both is read, so that no byte counts twice and a difference of two readings is never too large.
- Slingshot: ``/sys/class/cxi/NAME/device/telemetry/hni_sts_{tx,rx}_ok_octets``, bytes, written ``VALUE@TIME``; IP over
  the same adapter is counted, too.
- Sockets: ``/proc/net/dev``, which holds the interfaces of the reader's own network namespace.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict

from gpu_runner_inside.launcher import fabric

Reading = Dict[str, Any]

_WORD_BYTES = 4
_ERRORS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors",
    "port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
)  # fmt: skip
_HARDWARE_ERRORS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")
_EFA_SENT = ("send_bytes", "rdma_write_bytes", "rdma_read_resp_bytes")
_EFA_RECEIVED = ("recv_bytes", "rdma_write_recv_bytes", "rdma_read_bytes")
_EFA_ERRORS = (
    "rx_drops",
    "rdma_read_wr_err",
    "rdma_write_wr_err",
    "retrans_timeout_events",
    "unresponsive_remote_events",
)
_AMAZON, _MELLANOX = 0x1D0F, 0x15B3
# Virtual functions of ConnectX-4 to -7 and BlueField (pci.ids): a virtual machine shows them without their physfn.
_VIRTUAL = frozenset((0x1014, 0x1016, 0x1018, 0x101A, 0x101C, 0x101E, 0xA2D3))
_MOST_INTERFACES = 64


def read(root: str = "/") -> list[Reading]:
    """Every port and interface: what it is, and its counters now.

    ``sent_bytes`` and ``received_bytes`` are None where they cannot be read; ``ip_*_bytes`` are the bytes of IP that
    they contain, 0 for none. ``wait_ticks`` counts ticks in which data waited for the switch (port_xmit_wait).
    """
    interfaces = _interfaces(root)
    return [*_infiniband(root, interfaces), *_slingshot(root, interfaces), *_sockets(root, interfaces)]


def _infiniband(root: str, interfaces: dict[str, tuple[int, int]]) -> list[Reading]:
    found = []
    seen = fabric.ports(root)
    chosen = fabric.compute(seen)
    for port in seen:
        adapter, number = port.name.rsplit(":", 1)
        device = os.path.join(root, "sys/class/infiniband", adapter)
        counters = os.path.join(device, "ports", number, "counters")
        if _hexadecimal(os.path.join(device, "device/vendor")) == _AMAZON:
            found.append(_efa(port, device, number, port in chosen))
            continue
        is_ethernet = port.link == "Ethernet"
        sent, received = (_number(os.path.join(counters, name)) for name in ("port_xmit_data", "port_rcv_data"))
        errors = {name: _number(os.path.join(counters, name)) for name in _ERRORS}
        hardware = os.path.join(device, "ports", number, "hw_counters")
        errors.update((name, _number(os.path.join(hardware, name))) for name in _HARDWARE_ERRORS)
        ip_sent, ip_received = (0, 0) if is_ethernet else _ip(os.path.join(device, "device"), number, interfaces)
        found.append(
            {
                "name": port.name,
                "kind": "roce" if is_ethernet else "infiniband",
                "active": port.active,
                "gbit_s": port.gbit_s,
                "for_ranks": port in chosen,
                "virtual": _is_virtual(os.path.join(device, "device")),
                "sent_bytes": None if sent is None else sent * _WORD_BYTES,
                "received_bytes": None if received is None else received * _WORD_BYTES,
                "ip_sent_bytes": ip_sent,
                "ip_received_bytes": ip_received,
                "wait_ticks": _number(os.path.join(counters, "port_xmit_wait")),
                "errors": {name: count for name, count in errors.items() if count is not None},
            }
        )
    return found


def _efa(port: fabric.Port, device: str, number: str, for_ranks: bool) -> Reading:
    places = [os.path.join(device, "ports", number, "hw_counters"), os.path.join(device, "hw_counters")]

    def count(name: str) -> int | None:
        values = (_number(os.path.join(place, name)) for place in places)
        return next((value for value in values if value is not None), None)

    def moved(total: str, parts: tuple[str, ...]) -> int | None:
        whole = count(total)
        return None if whole is None else max(whole, sum(count(name) or 0 for name in parts))

    errors = {name: count(name) for name in _EFA_ERRORS}
    return {
        "name": port.name,
        "kind": "efa",
        "active": port.active,
        "gbit_s": port.gbit_s,
        "for_ranks": for_ranks,
        "virtual": False,
        "sent_bytes": moved("tx_bytes", _EFA_SENT),
        "received_bytes": moved("rx_bytes", _EFA_RECEIVED),
        "ip_sent_bytes": 0,
        "ip_received_bytes": 0,
        "wait_ticks": None,
        "errors": {name: value for name, value in errors.items() if value is not None},
    }


def _is_virtual(device: str) -> bool:
    """Whether a PCI device is a virtual function, whose counters are not the port's."""
    vendor, kind = (_hexadecimal(os.path.join(device, name)) for name in ("vendor", "device"))
    return os.path.exists(os.path.join(device, "physfn")) or (vendor == _MELLANOX and kind in _VIRTUAL)


def _slingshot(root: str, interfaces: dict[str, tuple[int, int]]) -> list[Reading]:
    directory = os.path.join(root, "sys/class/cxi")
    found = []
    for name in sorted(_listed(directory)):
        device = os.path.join(directory, name, "device")
        telemetry = os.path.join(device, "telemetry")
        ip_sent, ip_received = _ip(device, None, interfaces)
        speed = re.search(r"(\d+)", _text(os.path.join(device, "port/speed")))
        found.append(
            {
                "name": name,
                "kind": "cxi",
                "active": True,
                "gbit_s": float(speed.group(1)) if speed else 0.0,
                "for_ranks": True,
                "virtual": os.path.exists(os.path.join(device, "physfn")),
                "sent_bytes": _number(os.path.join(telemetry, "hni_sts_tx_ok_octets")),
                "received_bytes": _number(os.path.join(telemetry, "hni_sts_rx_ok_octets")),
                "ip_sent_bytes": ip_sent,
                "ip_received_bytes": ip_received,
                "wait_ticks": None,
                "errors": {},
            }
        )
    return found


def _sockets(root: str, interfaces: dict[str, tuple[int, int]]) -> list[Reading]:
    found = []
    for name, (received, sent) in sorted(interfaces.items())[:_MOST_INTERFACES]:
        if name == "lo":
            continue
        speed = _number(os.path.join(root, "sys/class/net", name, "speed"))
        found.append(
            {
                "name": name,
                "kind": "interface",
                "active": True,
                "gbit_s": 0.0 if speed is None else speed / 1000.0,
                "for_ranks": os.path.exists(os.path.join(root, "sys/class/net", name, "device")),
                "virtual": False,
                "sent_bytes": sent,
                "received_bytes": received,
                "ip_sent_bytes": 0,
                "ip_received_bytes": 0,
                "wait_ticks": None,
                "errors": {},
            }
        )
    return found


def _interfaces(root: str) -> dict[str, tuple[int, int]]:
    """Network interfaces of this namespace: name -> bytes received, bytes sent (proc(5), /proc/net/dev)."""
    found = {}
    for line in _text(os.path.join(root, "proc/net/dev")).splitlines():
        name, colon, rest = line.partition(":")
        numbers = rest.split()
        if colon and len(numbers) >= 9 and numbers[0].isdigit() and numbers[8].isdigit():
            found[name.strip()] = (int(numbers[0]), int(numbers[8]))
    return found


def _ip(device: str, port: str | None, interfaces: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Bytes of IP (sent, received) over the interfaces of an adapter's port; all its interfaces without a port."""
    sent = received = 0
    for name in _listed(os.path.join(device, "net")):
        own = _text(os.path.join(device, "net", name, "dev_port")).strip()  # counts from 0
        if port is not None and own.isdigit() and int(own) + 1 != int(port):
            continue
        there = interfaces.get(name)
        if there is None:  # in another network namespace than the reader
            statistics = os.path.join(device, "net", name, "statistics")
            there = (
                _number(os.path.join(statistics, "rx_bytes")) or 0,
                _number(os.path.join(statistics, "tx_bytes")) or 0,
            )
        received += there[0]
        sent += there[1]
    return sent, received


def _number(path: str) -> int | None:
    """The number that a file starts with; None where there is none, or the file cannot be read."""
    match = re.match(r"\d+", _text(path))
    return int(match.group(0)) if match else None


def _hexadecimal(path: str) -> int | None:
    """The number in a file of PCI's, ``0x15b3``; None where there is none."""
    match = re.match(r"0x([0-9a-fA-F]{1,8})\s*\Z", _text(path))
    return int(match.group(1), 16) if match else None


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except (OSError, ValueError):
        return ""
