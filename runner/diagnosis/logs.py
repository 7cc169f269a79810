"""What logs tell of a failure, of containers that did not start, and of NCCL's network. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from runner.core.text import counted
from runner.diagnosis.catalogue import FAILURES, find
from runner.diagnosis.failure import AFTERMATH, END, ENDED, ERROR, IMAGE_LOST, PROGRAM_ERROR, Failure

SILENT = "Enroot ended without a message"
_STARTER = re.compile(r"^(?:slurmstepd(?:-(?P<node>\S+))?: error: )")
_AFTERMATH = re.compile(
    r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT|pyxis: received SIGTERM|terminated with signal 15\b"
    r"|failed with error code: 143\b|exited with return code 143\b|srun: forcing job termination"
)
_LOG_BEGINS = "pyxis: printing enroot log file:"
_LOG_LINE = "pyxis:     "
_UNTELLING = ("[INFO]", "Parallel unsquashfs")


@dataclass(frozen=True)
class ContainerFault:
    """What one log says of a container that did not start.

    Attributes:
        line: without what the task starter and Pyxis put before it.
        values: what the failure's pattern found in it; ``before``: the runtime's line before.
        node: as the line itself names it; empty where it does not.
        rank: whose log it is; None for a log of a node or of the batch script.
        file: name of the log.
    """

    failure: Failure
    line: str
    values: dict[str, str] = field(default_factory=dict)
    node: str = ""
    rank: int | None = None
    file: str = ""

    @property
    def is_specific(self) -> bool:
        """It names a cause, not only that there is one."""
        return "{where}:" in self.failure.cause and self.failure.code != "enroot-silent"


def container_fault(lines: Iterable[str], *, some_started: bool) -> ContainerFault | None:
    """The most specific failure of the catalogue that a log shows, its first line; None where it shows none.

    Args:
        some_started: ranks of the same job have started: then a line that only holds the word "container" counts no
            more.
    """
    context = "some" if some_started else "none"
    best: tuple[int, ContainerFault] | None = None
    before = ""
    for text, node in _telling(lines):
        failure = find("container log", text, context)
        if failure is not None:
            place = FAILURES.index(failure)
            if best is None or place < best[0]:
                best = (place, ContainerFault(failure, _short(text), _values(failure, text, before), node))
        if text.startswith((_LOG_LINE, "enroot", "nvidia-container-cli", "[WARN]")):
            before = _short(text)
    return best[1] if best else None


def _telling(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    """The lines before the aftermath, without the task starter's prefix, each with the node that the prefix names; an
    Enroot log of no lines as a line of its own.
    """
    in_log = empty = False
    node = ""
    for line in lines:
        if _AFTERMATH.search(line):
            return  # what an interrupted Enroot has not written, it would not have written
        starter = _STARTER.match(line)
        text = (line[starter.end() :] if starter else line).rstrip()
        if in_log and not text.startswith(_LOG_LINE.rstrip()):
            in_log = False
        elif in_log and text.startswith(_LOG_LINE):
            empty = False
        if empty and not in_log:
            yield SILENT, node
            empty = False
        node = (starter["node"] or "") if starter else ""
        if text == _LOG_BEGINS:
            in_log = empty = True
        elif not any(word in text for word in _UNTELLING):
            yield text, node
    if empty:
        yield SILENT, node


def _values(failure: Failure, text: str, before: str) -> dict[str, str]:
    match = re.search(failure.pattern, text)
    groups = match.groupdict() if match else {}
    return {name: value for name, value in groups.items() if value} | {"before": before or _short(text)}


def _short(text: str) -> str:
    return text.removeprefix(_LOG_LINE).strip()


def of_script(lines: Iterable[str]) -> str:
    """The last line of the batch script's log that reports an error and no consequence of one; where there is none the
    first that reports a consequence; empty for none.
    """
    telling: list[str] = []
    consequences: list[str] = []
    has_ended = False
    for line in map(str.strip, lines):
        has_ended = has_ended or END.search(line) is not None
        if ERROR.search(line):
            follows = AFTERMATH.search(line) or IMAGE_LOST.search(line) or (has_ended and ENDED.search(line))
            (consequences if follows else telling).append(line)
    return telling[-1] if telling else consequences[0] if consequences else ""


def before_end(lines: Iterable[str]) -> str:
    """Of a rank's log that ends with its step's end, or with the loss of its image, the telling line before: the last
    before the step's end, and the last error before that loss. Empty for any other log, and where there is none.
    """
    shown = [line.strip() for line in lines if line.strip()]
    own = list(shown)
    while own and END.search(own[-1]):
        own.pop()
    line = own[-1] if len(own) < len(shown) and own else ""
    if own and IMAGE_LOST.search(own[-1]):
        first = next(at for at, each in enumerate(own) if IMAGE_LOST.search(each))
        return next((each for each in reversed(own[:first]) if PROGRAM_ERROR.search(each)), line)
    return line


_LINE = re.compile(r"NCCL INFO (?:\[[^\]]*\] )?(.+)")
_NETWORK = re.compile(r"(?:Using network|Assigned NET plugin) (.+?)(?: to comm)?$")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([^\s,(]+)")
_ADAPTERS = re.compile(r"NET/IB ?: Using (.+?)(?:; OOB|$)")
_ADAPTER = re.compile(r"\[\d+\] ?([\w.-]+:\d+)[:\d]*/(?:IB|RoCE)")
# "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(4)/GDRDMA(PCI)/Shared". A peer's bus id instead of its index before
# 2.15. Names of networks may hold a blank ("AWS Libfabric").
_CHANNEL = re.compile(
    r"(?:Channel|CollNet) \d+(?:/\d+)? ?: \d+(?:\[\w+\])?(?: -> \d+\[\w+\])?(?: \[(?P<direction>send|receive)\])? "
    r"via (?P<way>.+)$"
)
_NETWORK_WAY = re.compile(r"(?:NET|COLLNET)/.+?/\d+(?:\(\d+\))?(?P<flags>(?:/.*)?)$")
_BY_COLLNET = re.compile(r"Connected Coll[nN]et|via COLLNET/")
_BY_NVLS = re.compile(r"Connected NVLS tree|NVLS comm 0x")


@dataclass(frozen=True)
class NcclLog:
    """What the logs of a run's processes say together.

    Attributes:
        networks: names, as NCCL gives them: ``IB``, ``Socket``, ``AWS Libfabric``.
        providers: what libfabric runs over, by its plugin for NCCL: ``cxi``, ``efa``, ``tcp;ofi_rxm``.
        processes: how many of them name their network.
        adapters: ports that NCCL's own verbs transport uses: ``mlx5_0:1``.
        with_gdr, without_gdr: connections between nodes with and without GPUDirect RDMA.
        p2p, shm: connections inside nodes that go from GPU to GPU, and through the host's memory.
        mnnvl: NVLink connects GPUs of several nodes.
        nvls: NVLink SHARP between the GPUs of a node was set up; collnet: reductions in the network (SHARP) were.
    """

    networks: frozenset[str] = frozenset()
    adapters: frozenset[str] = frozenset()
    with_gdr: int = 0
    without_gdr: int = 0
    p2p: int = 0
    shm: int = 0
    mnnvl: bool = False
    nvls: bool = False
    collnet: bool = False
    providers: frozenset[str] = frozenset()
    processes: int = 0

    @property
    def sentence(self) -> str:
        """The ways in words; empty where nothing is known."""
        parts = []
        if self.with_gdr or self.without_gdr:
            parts.append(
                f"GPUDirect RDMA on {self.with_gdr} of {counted(self.with_gdr + self.without_gdr, 'connection')}"
            )
        if self.p2p or self.shm:
            parts.append(
                f"inside nodes {counted(self.p2p, 'connection')} from GPU to GPU, {self.shm} through the host's memory"
            )
        if self.mnnvl:
            parts.append("NVLink between nodes")
        if self.nvls:
            parts.append("NVLink SHARP")
        if self.collnet:
            parts.append("reductions in the network (CollNet)")
        if self.providers:
            parts.append("libfabric's provider " + ", ".join(sorted(self.providers)))
        if self.adapters:
            parts.append("ports " + ", ".join(sorted(self.adapters)))
        return "; ".join(parts)


def parse(text: str) -> NcclLog:
    """One process's log. O(n); lines of other programs are passed over."""
    networks: set[str] = set()
    adapters: set[str] = set()
    providers: set[str] = set()
    counts: Counter[str] = Counter()
    mnnvl = nvls = collnet = False
    # Rare, and dear to look for in every line: a job of 16,384 ranks has millions.
    rare = any(word in text for word in ("MNNVL", "NVLS", "COLLNET", "Connected Coll"))
    for found in _LINE.findall(text):
        said = found.rstrip()
        if said.startswith(("Channel", "CollNet")):  # most lines
            if channel := _CHANNEL.match(said):
                counts[_way(channel["way"], channel["direction"])] += 1
        elif network := _NETWORK.match(said):
            networks.add(network[1])
        elif used := _ADAPTERS.match(said):
            adapters.update(_ADAPTER.findall(used[1]))
        elif provider := _PROVIDER.match(said):
            providers.add(provider[1])
        if not rare:
            continue
        mnnvl = mnnvl or "via P2P/MNNVL" in said
        nvls = nvls or _BY_NVLS.search(said) is not None
        collnet = collnet or _BY_COLLNET.search(said) is not None
    return NcclLog(
        frozenset(networks), frozenset(adapters), counts["gdr"], counts["net"], counts["p2p"], counts["shm"],
        mnnvl, nvls, collnet, frozenset(providers), int(bool(networks)),
    )  # fmt: skip


def together(logs: Iterable[NcclLog]) -> NcclLog:
    """The logs of several processes as one."""
    every = list(logs)
    return NcclLog(
        networks=frozenset[str]().union(*(log.networks for log in every)),
        adapters=frozenset[str]().union(*(log.adapters for log in every)),
        with_gdr=sum(log.with_gdr for log in every),
        without_gdr=sum(log.without_gdr for log in every),
        p2p=sum(log.p2p for log in every),
        shm=sum(log.shm for log in every),
        mnnvl=any(log.mnnvl for log in every),
        nvls=any(log.nvls for log in every),
        collnet=any(log.collnet for log in every),
        providers=frozenset[str]().union(*(log.providers for log in every)),
        processes=sum(log.processes for log in every),
    )


def _way(way: str, direction: str | None) -> str:
    """``gdr`` or ``net`` for what a process sends to another node, ``p2p`` or ``shm`` inside one; else empty."""
    if way.startswith("P2P/"):
        return "p2p"
    if way.startswith(("SHM", "direct shared memory")):
        return "shm"
    sent = _NETWORK_WAY.match(way)
    if sent is None or direction == "receive":  # a connection shows at both its ends: it counts where it sends
        return ""
    return "gdr" if "GDRDMA" in sent["flags"] else "net"
