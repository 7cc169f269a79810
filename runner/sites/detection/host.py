"""One host, the login node or a GPU node, as ``host.sh`` describes it. Pure, but for reading that script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.core.text import gpus_text
from runner.model.backends import runtime_programs
from runner.sites.detection.facts import Answer, Entry, Fact, Note, Unknown

_OF_INTEREST = re.compile(r"horovod|pytorch|tensorflow|conda|nccl", re.IGNORECASE)
SCRIPT = (Path(__file__).parent / "host.sh").read_text()
# `module` is a function that a login shell defines; it answers on the second stream.
MODULES = ("bash", "--noprofile", "--norc", "-c", "type module &>/dev/null || . /etc/profile; module -t avail 2>&1")


@dataclass(frozen=True)
class Host:
    """What a host has.

    Attributes:
        libc: ``glibc 2.36``. driver: of NVIDIA's kernel module; empty without one.
        gpus: name, compute capability and MIG mode of each, as nvidia-smi says.
        namespaces: ordinary users may make user namespaces; None where the kernel does not say.
        fabrics: of its ports: ``InfiniBand``, ``Ethernet``, ``Slingshot``.
        scratch: what $PSCRATCH or $SCRATCH says.
    """

    name: str
    os: str
    kernel: str
    cpu: str
    libc: str
    programs: tuple[str, ...]
    driver: str
    gpus: tuple[tuple[str, ...], ...]
    namespaces: bool | None
    fabrics: frozenset[str]
    scratch: str
    user: str

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Container runtimes whose program is on PATH there."""
        return tuple(name for name, program in runtime_programs().items() if program in self.programs)


def here() -> tuple[str, ...]:
    """The command that describes the host on which it runs."""
    return ("sh", "-c", SCRIPT, "host.sh", *runtime_programs().values())


def read(answer: Answer) -> Host | None:
    """The host that said this; None where it said nothing."""
    said: dict[str, list[str]] = {}
    for line in answer.out.splitlines():
        name, equals, value = line.partition("=")
        if equals and value:
            said.setdefault(name, []).append(value)
    if "host" not in said:
        return None

    def one(name: str) -> str:
        return said.get(name, [""])[0]

    driver = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", one("driver"))
    return Host(
        name=one("host"),
        os=one("os"),
        kernel=one("kernel"),
        cpu=one("cpu"),
        libc=one("libc"),
        programs=tuple(said.get("program", ())),
        driver=driver[0] if driver else "",
        gpus=tuple(tuple(part.strip() for part in line.split(",")) for line in said.get("gpu", ())),
        namespaces=_namespaces(one("max_user_namespaces"), one("unprivileged_userns_clone")),
        fabrics=frozenset(said.get("fabric", ())),
        scratch=one("scratch"),
        user=one("user"),
    )


def modules(answer: Answer) -> tuple[str, ...]:
    """The modules that ``module -t avail`` lists, without the headings of directories and the marks of defaults."""
    if answer.problem and not answer.out:
        return ()
    words = (line.strip().removesuffix("(default)").rstrip("/") for line in answer.out.splitlines())
    return tuple(dict.fromkeys(word for word in words if re.fullmatch(r"[A-Za-z][\w.+/-]*", word)))


def entries(login: Host | None, node: Host | None, available: tuple[str, ...], day: str) -> Iterator[Entry]:
    """What hosts tell for a site file.

    Args:
        login: where the file is written. node: a GPU node, if one was asked.
        available: modules.
        day: when they were asked.
    """
    for host, what in ((login, "here"), (node, "a GPU node")):
        if host is not None:
            allowed = {True: "allowed", False: "OFF", None: "unknown"}[host.namespaces]
            text = f"{what}: {host.os or 'unknown system'}, {host.libc or 'no glibc'}, kernel {host.kernel}, {host.cpu}"
            yield Note("description", f"{text}; user namespaces {allowed}")
    yield from _hardware(login, node, day)
    yield from _fabric(node, day)
    yield from _scratch(login, day)
    interesting = [name for name in available if _OF_INTEREST.search(name)]
    if interesting:
        yield Note("ways", f"modules found, {day}: {', '.join(interesting[:20])}")


def _hardware(login: Host | None, node: Host | None, day: str) -> Iterator[Entry]:
    if node is None:
        if login is not None:
            yield Fact("hardware.cpu", login.cpu, f"uname -m here, {day}; a GPU node was not asked (--on-node)")
        yield Unknown("hardware.driver", "`srun --gpus=1 nvidia-smi` on a GPU node, or detect with --on-node")
        yield Unknown("hardware.compute_capability", "8.0 for A100, 9.0 for H100, 7.0 for V100 (NVIDIA's table)")
        return
    source = f"{node.name}, {day}"
    yield Fact("hardware.cpu", node.cpu, f"uname -m on {source}")
    if not node.driver:
        yield Unknown(
            "device", f"cuda or cpu: {node.name} has no NVIDIA driver loaded; cpu where its GPUs are fake", needed=True
        )
        return
    yield Fact("hardware.driver", node.driver, f"NVIDIA's driver on {source}")
    capabilities = sorted({gpu[1] for gpu in node.gpus if len(gpu) > 1})
    if len(capabilities) == 1:
        yield Fact("hardware.compute_capability", capabilities[0], f"nvidia-smi on {source}")
        yield Fact("node.gpu_model", node.gpus[0][0], f"nvidia-smi on {source}")
    else:
        yield Unknown("hardware.compute_capability", "`nvidia-smi --query-gpu=compute_cap --format=csv` on a GPU node")
    sliced = sum(1 for gpu in node.gpus if gpu[2:] == ("Enabled",))
    if sliced:
        yield Note("node.gpus", f"MIG is on for {sliced} of {gpus_text(len(node.gpus))} of {node.name}")


def _fabric(node: Host | None, day: str) -> Iterator[Entry]:
    if node is not None and "Slingshot" in node.fabrics:
        yield Fact("transport", "libfabric", f"Slingshot ports of {node.name}, {day}")
        yield Fact("env", {"NCCL_SOCKET_IFNAME": "hsn"}, f"ports of {node.name}, {day}")
    elif node is not None and "InfiniBand" in node.fabrics:
        yield Fact("transport", "verbs", f"InfiniBand ports on {node.name}, {day}")
    else:
        yield Unknown(
            "transport",
            "what carries data between nodes: verbs for InfiniBand and RoCE, libfabric for Slingshot and EFA, sockets "
            "for Ethernet alone (`ls /sys/class/infiniband /sys/class/cxi` on a node)",
        )


def _scratch(login: Host | None, day: str) -> Iterator[Entry]:
    scratch = login.scratch if login is not None else ""
    if login is not None and scratch.startswith("/"):
        general = re.sub(rf"(?<=/){re.escape(login.user)}(?=/|$)", "{user}", scratch)
        yield Fact("scratch.path", general, f"$PSCRATCH or $SCRATCH here, {day}")
    else:
        yield Unknown("scratch.path", "each user's large directory that all nodes see ({user} stands for the name)")
    yield Unknown("scratch.purge_days", "after how many days an unused file is removed there; null for never")
    yield Unknown("home.quota_gb", "how much a home directory may hold: `quota -s`, or the site's guide; null for all")


def _namespaces(most: str, ordinary: str) -> bool | None:
    """/proc/sys/user/max_user_namespaces (namespaces(7)); Debian's switch for ordinary users."""
    if not most:
        return None
    return most != "0" and ordinary != "0"
