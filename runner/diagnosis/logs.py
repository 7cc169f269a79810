"""What logs tell: which line says most of a failure, why a container did not start, and the network of NCCL. Pure.

Pyxis writes a line that hides the cause, and the cause behind it, as Enroot's log. What stands after the end of a step
or job (SIGTERM, CANCELLED), or after its image was unmounted, only follows from that end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, NamedTuple

from runner.core.text import counted
from runner.diagnosis.catalogue import FAILURES, Failure, find

# A line of the batch script's log that reports an error.
ERROR = re.compile(r"error|fatal|slurmstepd|killed|no such|denied|command not found", re.IGNORECASE)
# What only follows when a step is ended.
AFTERMATH = re.compile(r"CANCELLED AT|Terminat(?:ed|ing)|Killed|exit code 143|forcing job|Job step aborted")
# Where a step or job is ended from outside: what follows in the log follows from it.
END = re.compile(r"CANCELLED AT|forcing job termination|Job step aborted|Terminating (?:StepId|job)")
# How programs end whose container's image is unmounted under them, as at the end of a job.
IMAGE_LOST = re.compile(r"\[Errno 107\]|\bError 107\b|Transport endpoint is not connected|\bBus error\b")
# What an ended step's tasks report.
ENDED = re.compile(r"srun: error: (?:\S+: )?tasks? [\d,-]+: (?!Out Of Memory)")
# A line with which a program says what failed: "ValueError: ...", "error: ...".
PROGRAM_ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Interrupt|Fault)\b(?::|$)|\b(?i:error|fatal):")
# What torch and the starters of ranks put before a line: "[rank1]: ", "[default0]:", "[1]<stderr>:".
_TRACEBACK = re.compile(r"(\s*(?:\[[\w.,-]+\](?:<std(?:err|out)>)?: ?|\d+: )*).*Traceback \(most recent call last\)")
_FRAMES = tuple(" \t│╭╰|+")  # what the lines begin with between a traceback's head and its exception; also of rich
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::|$)")
# Of a program that starts ranks, and of one that was stopped: another one failed.
_OF_STARTERS = re.compile(r"(?:ChildFailedError|CalledProcessError|SignalException|KeyboardInterrupt|SystemExit)\b")
# What the others report when a rank is gone: Gloo, NCCL, torch's store; and what started them.
_BROKEN = re.compile(
    r"(?i)connection (?:was likely )?(?:closed|reset)|broken pipe|ncclRemoteError|remote process exit"
    r"|communicator was aborted|processes exited with non-zero status"
)
_CHAINED = re.compile(r"exception (?:occurred|was the direct cause of the following exception):")
# Python's, of what failed in a destructor, a thread or as the program ended: mostly because it ends.
_ASIDE = re.compile(r"Exception ignored |Exception in thread |Error in atexit")
_LAST_ERROR = "Last error:"  # NCCL's, two lines or three below torch's exception; the next line is its cause
_ROOT_CAUSE = "Root Cause (first observed failure)"  # torchrun's, and what stands below it
_FIRST_RANK, _BY_SIGNAL = re.compile(r"rank\s+: (\d+) \("), re.compile(r"traceback : (Signal \d+ .*)")
_NOISE = re.compile(
    r"[\W_]*\Z|wandb: |Extension modules: |Set the environment variable HYDRA_FULL_ERROR|.*\b(?:WARNING\b|\w*Warning: )"
)
_SAYS_WHY = re.compile(
    rf"{PROGRAM_ERROR.pattern}|not found|No such file|Input/output error|oom.kill|\bKilled\b|Segmentation fault"
    r"|MPI_ERR_\w+:|^(?:In '.*': )?Could not "
)
_COLOUR = re.compile(r"\x1b\[[\d;:]*m")
# How srun reports that tasks ended, or could not start: "srun: error: dgx01: tasks 0-2,5: Exited with exit code 3",
# "srun: error: task 2 launch failed: Slurmd could not connect IO".
TASK_END = re.compile(r"srun: error: (?:(\S+): )?tasks? ([\d,-]+):? ((?<=: ).+|launch failed: .+)")
# srun, and the controller of runner.backends.schedulers.hosts.
FAILED_NODE = re.compile(r"(?:srun|hosts): error: Node failure on ([^\s:]+)")


def script_line(lines: Iterable[str]) -> str:
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


def telling(lines: Sequence[str]) -> str:
    """The line of a rank's log that says most of why it failed; empty for an empty log: as ``reason``, else a line that
    reports an error, else the last line.
    """
    shown = _shown(lines)[::-1]
    errors = (line for line in shown if _SAYS_WHY.search(line) and not _OF_STARTERS.search(line))
    return reason(lines) or next(chain(errors, shown, filter(None, map(str.strip, reversed(lines)))), "")


def reason(lines: Sequence[str]) -> str:
    """The line of a log with which a program says why it failed; empty where there is none.

    The exception of the last traceback, or one of those that led to it if the catalogue knows that; by torchrun's
    report, of the rank that failed first. Else a line that the catalogue knows; what C++ says of its exception; the
    signal in torchrun's report; an exception that follows from another rank's end.
    """
    shown = _shown(lines)
    root = max((at for at, line in enumerate(shown) if _ROOT_CAUSE in line), default=len(shown))
    report = "\n".join(shown[root:])
    first, signal = _FIRST_RANK.search(report), _BY_SIGNAL.search(report)
    raised = list(_raised([_COLOUR.sub("", line) for line in lines]))
    of_first = [each for each in raised if first and each.prefix.strip() == f"[rank{first[1]}]:"]
    own = [each for each in of_first or raised if not each.follows]
    causes = [each.line for each in reversed(own) if each.chain == own[-1].chain]
    by_traceback = [line for row in FAILURES for line in causes if find("program log", line) is row] or causes
    known = (line for line in reversed(shown) if find("program log", line))
    by_cpp = (line for line in reversed(shown) if line.startswith("what(): "))
    first_two, of_signal = ((known, by_traceback), [signal[0]]) if signal else ((by_traceback, known), [])
    return next(chain(*first_two, by_cpp, of_signal, (each.line for each in reversed(raised))), "")


def _shown(lines: Iterable[str]) -> list[str]:
    """Those that may say something of a failure, without colours."""
    return [text for line in lines if not _NOISE.match(text := _COLOUR.sub("", line).strip())]


class _Raised(NamedTuple):
    """A traceback's exception, what stands before its lines, a number that those that led to it share, and whether it
    may only follow from another one.
    """

    prefix: str
    line: str
    chain: int
    follows: bool


def _raised(lines: Sequence[str]) -> Iterator[_Raised]:
    number = 0
    for head, match in ((at, match) for at, line in enumerate(lines) if (match := _TRACEBACK.match(line))):
        number += not any(map(_CHAINED.search, lines[max(0, head - 2) : head]))
        for at in range(head + 1, len(lines)):
            text = lines[at].removeprefix(match[1])
            if not text.strip() or text.startswith(_FRAMES) or (match[1] and text == lines[at]):
                continue
            if _EXCEPTION.match(text) and not _OF_STARTERS.search(text.partition(":")[0]):
                below = [line.removeprefix(match[1]).strip() for line in lines[at + 1 : at + 5]]
                cause = "".join(below[below.index(_LAST_ERROR) + 1 :][:1]) if _LAST_ERROR in below else ""
                follows = bool(_ASIDE.search("".join(lines[max(0, head - 1) : head])) or _BROKEN.search(text + cause))
                yield _Raised(match[1], cause or lines[at].strip(), number, follows)
            break


def without_end(lines: Sequence[str]) -> list[str]:
    """A rank's log without what is said of its step's end, last of all."""
    own = [line for line in lines if line.strip()]
    while own and END.search(own[-1]):
        own.pop()
    return own


def before_end(lines: Sequence[str]) -> str:
    """Of a rank's log that ends with its step's end, or with the loss of its image, the telling line before
    the step's end, and the last error before that loss. Empty for any other log, and where there is none.
    """
    own = [line.strip() for line in without_end(lines)]
    line = telling(own) if len(own) < sum(bool(line.strip()) for line in lines) else ""
    if own and IMAGE_LOST.search(own[-1]):
        first = next(at for at, each in enumerate(own) if IMAGE_LOST.search(each))
        return next((each for each in reversed(own[:first]) if PROGRAM_ERROR.search(each)), line)
    return line


@dataclass(frozen=True)
class ContainerFault:
    """What one log says of a container that did not start.

    Attributes:
        line: without what the task starter and Pyxis put before it.
        values: what the failure's pattern matched in it; ``before``: the runtime's line before.
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


_STARTER = re.compile(r"^(?:slurmstepd(?:-(?P<node>\S+))?: error: )")
_AFTERMATH = re.compile(
    r"\*\*\* (?:STEP|JOB) \S+ ON \S+ (?:CANCELLED AT|FAILED)|pyxis: received SIGTERM|terminated with signal 15\b"
    r"|failed with error code: 143\b|exited with return code 143\b|srun: forcing job termination"
)
_LOG_BEGINS = "pyxis: printing enroot log file:"
_LOG_LINE = "pyxis:     "
_PROGRESS = re.compile(r"\d+ inodes \(|created \d+ |\[[=|/\\ -]*\] *\d|$")  # of unsquashfs
_SILENT = "Enroot ended without a message"
_STOPPED = "pyxis: container exited too soon"  # by a signal: mostly of a step that another node's failure ended


def container_fault(lines: Iterable[str], *, some_started: bool, image_gone: bool = False) -> ContainerFault | None:
    """The most specific failure of the catalogue that a log shows, its first line; None where it shows none.

    Of one that names no cause the line is Enroot's first that tells no progress, if Pyxis shows one.

    Args:
        some_started: ranks of the same job have started: then a line that only holds the word "container" counts no
            more.
        image_gone: the image that the job was submitted with is not there any more.
    """
    context = ("some" if some_started else "none") + (" gone" if image_gone else "")
    faults: list[ContainerFault] = []
    before = by_enroot = ""
    for text, node in _before_aftermath(lines):
        short = text.removeprefix(_LOG_LINE).strip()
        if failure := find("container log", text, context):
            match = re.search(failure.pattern, text)
            values = {name: value for name, value in match.groupdict().items() if value} if match else {}
            faults.append(ContainerFault(failure, short, values | {"before": before or short}, node))
        if text.startswith((_LOG_LINE, "enroot", "nvidia-container-cli", "[WARN]")):
            before = short
        if text.startswith(_LOG_LINE) and not _PROGRESS.match(short):
            by_enroot = by_enroot or short
    fault = min(faults, key=lambda fault: FAILURES.index(fault.failure), default=None)
    return replace(fault, line=by_enroot) if fault and by_enroot and not fault.is_specific else fault


def _before_aftermath(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The lines before the aftermath, without the task starter's prefix, each with the node that the prefix names; an
    Enroot log of no lines as a line of its own.
    """
    in_log = empty = stopped = False
    node, silent = "", _SILENT
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
            yield silent, node
            empty = False
        node = (starter["node"] or "") if starter else ""
        stopped = stopped or text == _STOPPED
        silent = f"{_LOG_LINE}/etc/rc: 0: {_SILENT}" if "pyxis: container start failed with" in text else silent
        if text == _LOG_BEGINS:
            in_log, empty = True, not stopped
        elif "[INFO]" not in text and "Parallel unsquashfs" not in text:
            yield text, node
    if empty:
        yield silent, node


_LINE = re.compile(r"NCCL INFO (?:\[[^\]]*\] )?(.+)")
_NETWORK = re.compile(r"(?:Using network|Assigned NET plugin) (.+?)(?: to comm)?$")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([^\s,(]+)")
# HPC-X calls itself so from NCCL 2.26 on, and says in a line of its own what it runs over: IBext_v8, UCX.
_RDMA_PLUGIN, _RUNS_OVER = "NCCL RDMA Plugin", re.compile(r"P2P plugin (?:v\d+ )?(\S+)$")
_ADAPTERS = re.compile(r"NET/g?IB ?: Using (.+?)(?:; OOB|$)")
_ADAPTER = re.compile(r"\[\d+\] ?([\w.-]+:\d+)[:\d]*/(?:IB|RoCE)")
# "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(4)/GDRDMA(PCI)/Shared". A peer's bus id instead of its index before
# 2.15. Names of networks may hold a blank ("AWS Libfabric").
_CHANNEL = re.compile(
    r"(?:Channel|CollNet) \d+(?:/\d+)? ?: \d+(?:\[\w+\])?(?: -> \d+\[\w+\])?(?: \[(?P<direction>send|receive)\])? "
    r"via (?P<way>.+)$"
)
_NETWORK_WAY = re.compile(r"(?P<kind>NET|COLLNET)/(?P<name>.+?)/\d+(?:\(\d+\))?(?P<flags>(?:/.*)?)$")
_COMMUNICATOR = re.compile(r"rank \d+ nranks (\d+) .*commId (\w+)")  # src/init.cc; older than 2.18: no id
_WITH_COLLNET = re.compile(r"(?i:connected collnet)")
_WITHOUT_COLLNET = re.compile(r"NCCL WARN (?:Cannot initialize CollNet|SHARP .*failed)")  # src/transport.cc, the plugin
_BY_NVLS = re.compile(r"Connected NVLS tree|NVLS comm 0x")


@dataclass(frozen=True)
class NcclLog:
    """What the logs of a run's processes say together.

    Attributes:
        networks: names, as NCCL gives them: ``IB``, ``Socket``, ``AWS Libfabric``; ``MNNVL``: NVLink between nodes.
            Of a process whose connections show them, those; else what it chose when it began.
        providers: what libfabric runs over, by its plugin for NCCL: ``cxi``, ``efa``, ``tcp;ofi_rxm``.
        processes: how many of them name their network.
        adapters: ports that NCCL's own verbs transport uses: ``mlx5_0:1``.
        with_gdr, without_gdr: connections between nodes with and without GPUDirect RDMA.
        p2p, shm: connections inside nodes that go from GPU to GPU, and through the host's memory.
        mnnvl: NVLink connects GPUs of several nodes.
        nvls: NVLink SHARP between the GPUs of a node was set up; collnet: reductions in the network (SHARP) were;
            collnet_failed: their setup failed in a process that then did without.
        communicators: of each process, their ids and sizes.
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
    communicators: frozenset[frozenset[tuple[str, int]]] = frozenset()
    collnet_failed: bool = False

    @property
    def sentence(self) -> str:
        """The ways in words; empty where nothing is known."""
        connections = counted(self.with_gdr + self.without_gdr, "connection")
        inside = counted(self.p2p, "connection")
        parts = {
            f"GPUDirect RDMA on {self.with_gdr} of {connections}": self.with_gdr or self.without_gdr,
            f"inside nodes {inside} from GPU to GPU, {self.shm} through the host's memory": self.p2p or self.shm,
            "NVLink between nodes": self.mnnvl,
            "NVLink SHARP": self.nvls,
            "reductions in the network (CollNet)": self.collnet and not self.collnet_failed,
            "libfabric's provider " + ", ".join(sorted(self.providers)): self.providers,
            "ports " + ", ".join(sorted(self.adapters)): self.adapters,
        }
        return "; ".join(part for part, is_known in parts.items() if is_known)


def parse(text: str) -> NcclLog:
    """One process's log. O(n); lines of other programs are passed over."""
    chosen, connected, adapters, providers = set[str](), set[str](), set[str](), set[str]()
    communicators = set[tuple[str, int]]()
    counts: Counter[str] = Counter()
    runs_over = ""
    mnnvl = nvls = collnet = has_collnet = False
    # Rare, and dear to look for in every line: a job of 16,384 ranks has millions.
    rare = any(word in text for word in ("MNNVL", "NVLS", "COLLNET", "Connected Coll", "Connected coll"))
    for line in map(str.rstrip, _LINE.findall(text)):
        if line.startswith(("Channel", "CollNet")):  # most lines
            if channel := _CHANNEL.match(line):
                counts[_way(channel["way"], channel["direction"])] += 1
                if (way := _NETWORK_WAY.match(channel["way"])) and way["kind"] == "NET":
                    connected.add(way["name"])
        elif network := _NETWORK.match(line):
            chosen.add(network[1])
        elif plugin := _RUNS_OVER.match(line):
            runs_over = plugin[1]
        elif "commId" in line and (communicator := _COMMUNICATOR.search(line)):
            communicators.add((communicator[2], int(communicator[1])))
        elif used := _ADAPTERS.match(line):
            adapters.update(_ADAPTER.findall(used[1]))
        elif provider := _PROVIDER.match(line):
            providers.add(provider[1])
        if rare:
            mnnvl = mnnvl or "via P2P/MNNVL" in line
            nvls = nvls or _BY_NVLS.search(line) is not None
            has_collnet = has_collnet or _WITH_COLLNET.search(line) is not None
            collnet = collnet or "via COLLNET/" in line
    names = (connected | {"MNNVL"} if mnnvl else connected) or chosen
    networks = {runs_over if runs_over and name.startswith(_RDMA_PLUGIN) else name for name in names}
    return NcclLog(
        frozenset(networks), frozenset(adapters), counts["gdr"], counts["net"], counts["p2p"], counts["shm"],
        mnnvl, nvls, collnet or has_collnet, frozenset(providers), int(bool(networks)),
        frozenset({frozenset(communicators)} if communicators else ()),
        not has_collnet and _WITHOUT_COLLNET.search(text) is not None,
    )  # fmt: skip


def together(logs: Iterable[NcclLog]) -> NcclLog:
    """The logs of several processes as one."""
    every = [NcclLog(), *logs]
    columns = {each.name: [getattr(log, each.name) for log in every] for each in fields(NcclLog)}
    return NcclLog(**{name: _merged(values) for name, values in columns.items()})


def _merged(values: list[Any]) -> Any:
    if isinstance(values[0], frozenset):
        return frozenset().union(*values)
    return any(values) if isinstance(values[0], bool) else sum(values)


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
