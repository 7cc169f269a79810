"""What a box is to be, and its files, as pure functions of that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from runner.core.errors import UsageError
from runner.model.request import PLAIN_NAME, PLAIN_NAME_FIX
from runner.model.site import FAKE_GPUS

# Slurm version -> the Debian suite whose packages have it (2026-11). That of unstable has no PMIx plugin.
SUITES: dict[str, str] = {"22.05": "bookworm", "24.11": "trixie", "26.05": "unstable"}
DEFAULT_SLURM = "22.05"
DEFAULT_NAME = "box"  # the one that the shipped site "box" means
MAX_NODES = 99

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")  # Debian Policy 5.6.7


class Bind(msgspec.Struct, frozen=True):
    """A host path seen inside the box: both absolute."""

    source: str
    target: str

    @classmethod
    def parse(cls, text: str) -> Bind:
        """``SRC`` or ``SRC:DST``, absolute, and without tab or newline, which the box's start cannot carry."""
        source, _, target = text.partition(":")
        bind = cls(source, target or source)
        if not (PurePosixPath(bind.source).is_absolute() and PurePosixPath(bind.target).is_absolute()):
            fix = "--bind /SRC:/DST, or --bind /DIR"
            raise UsageError("a bind needs two absolute paths", where=f"--bind {text}", fix=fix)
        if re.search(r"[\t\n\0]", text) or ".." in PurePosixPath(bind.target).parts:
            raise UsageError("a bind may hold no tab, newline or '..'", where=f"--bind {text!r}")
        return bind


class NodeShape(msgspec.Struct, frozen=True):
    """The hardware that each node reports; the default is a DGX A100 (facts: 2 x 64 cores, 2 threads, 8 GPUs).

    Attributes:
        memory_mb: RealMemory, MiB. Nothing of it is reserved on this machine.
        features: what a job may name in ``--constraint``.
    """

    sockets: int = 2
    cores_per_socket: int = 64
    threads_per_core: int = 2
    memory_mb: int = 1_000_000
    gpus: int = 8
    gpu_type: str = "a100"
    features: tuple[str, ...] = ()

    @property
    def cpus(self) -> int:
        """Hardware threads."""
        return self.sockets * self.cores_per_socket * self.threads_per_core


class BoxSpec(msgspec.Struct, frozen=True):
    """One box: name, size, Slurm version, and what is put into it.

    Attributes:
        nodes: number of nodes, named dgx01 ....
        slurm: a key of SUITES.
        spank: lines for plugstack.conf.
        binds: host paths seen inside besides the host's own top-level directories.
        partition: name of the one partition, which all nodes are in.
        packages: Debian packages that its root has besides those of every box; such a root is made and kept apart.
    """

    name: str = DEFAULT_NAME
    nodes: int = 2
    slurm: str = DEFAULT_SLURM
    spank: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    shape: NodeShape = NodeShape()
    partition: str = "batch"
    packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError: no box can be like this."""
        check_name(self.name)
        if not 1 <= self.nodes <= MAX_NODES:
            raise UsageError(f"a box has 1 to {MAX_NODES} nodes, not {self.nodes}", where="--nodes")
        if self.slurm not in SUITES:
            raise UsageError(f"no Slurm {self.slurm!r} for a box", where="--slurm", fix=f"one of: {', '.join(SUITES)}")
        for word in (self.partition, *self.shape.features):
            if not PLAIN_NAME.match(word):
                raise UsageError(f"not a name of a partition or a feature: {word!r}", fix=PLAIN_NAME_FIX)
        for package in self.packages:
            if not _PACKAGE.fullmatch(package):
                raise UsageError(f"not a name of a Debian package: {package!r}")
        for line in self.spank:
            if not re.fullmatch(r"(required|optional|include)\s+\S[^\n\0]*", line):
                fix = "--spank 'required /path/to/plugin.so arguments'"
                raise UsageError(f"not a line of plugstack.conf: {line!r}", where="--spank", fix=fix)

    @property
    def node_names(self) -> tuple[str, ...]:
        """dgx01, dgx02, ..."""
        return tuple(f"dgx{number:02d}" for number in range(1, self.nodes + 1))


def check_name(name: str) -> None:
    """A box's name is also a directory's; raises UsageError where it cannot be one."""
    if not _NAME.fullmatch(name):
        fix = "up to 32 of a-z, 0-9 and '-', not '-' first"
        raise UsageError(f"not a name for a box: {name!r}", where="--name", fix=fix)


HOSTNAME = "box"  # of the machine where the clients and the controller run
# Of the first slurmd: below Linux's ephemeral range, and alone in the box's own network namespace.
FIRST_PORT = 27001
CLIENTS = ("sbatch", "srun", "salloc", "squeue", "scontrol", "sinfo", "scancel", "sacct", "sbcast", "sattach")
WRAPPERS = (*CLIENTS, "apptainer", "in-box")  # as far as the root has them
# Top-level directories that are the system's own, hier(7): the box has its own.
_OF_ANY_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "lost+found")
SYSTEM = frozenset((*_OF_ANY_SYSTEM, "proc", "run", "sbin", "sys", "usr", "var"))

_SCRIPTS = Path(__file__).parent / "scripts"
_GPU = "/var/box/gpu/nvidia{}"


class Account(msgspec.Struct, frozen=True):
    """Who jobs run as: the user that started the box."""

    uid: int
    gid: int
    name: str
    home: str

    @property
    def mode(self) -> str:
        """``root``, or ``user`` where the box lies in a user namespace."""
        return "root" if self.uid == 0 else "user"

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of the box's daemons, which jobs inherit: nothing of the starting shell's."""
        return {
            "HOME": self.home,
            "LANG": "C.UTF-8",
            "LOGNAME": self.name,
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "SHELL": "/bin/bash",
            "USER": self.name,
        }


def slurm_conf(spec: BoxSpec, account: Account) -> str:
    """slurm.conf, as slurm.conf(5) and Slurm 22.05.8, 24.11 and 26.05 of Debian have it; daemons run as the account."""
    shape, addressed = spec.shape, addresses(spec)
    # How slurmd finds a task's processes to end them: as descendants, whatever they do to their process group. In
    # unstable there is Charliecloud 0.45, whose process between slurmstepd and a rank calls itself ``ch-run (FUSE)``,
    # with a blank. Slurm's reader of /proc/PID/stat knows no blank there: it would lose all ranks below, and a job that
    # must be killed would last minutes.
    tracking = "pgid" if spec.slurm == "26.05" else "linuxproc"
    features = ",".join((*shape.features, *((FAKE_GPUS,) if shape.gpus else ())))
    lines = [
        "ClusterName=box",
        f"SlurmctldHost={HOSTNAME}({addressed[HOSTNAME]})",
        f"SlurmUser={account.name}",
        f"SlurmdUser={account.name}",
        "AuthType=auth/munge",
        "AuthInfo=socket=/var/box/munge/socket",
        "StateSaveLocation=/var/box/state",
        "SlurmdSpoolDir=/var/box/spool/%n",
        "SlurmctldPidFile=/var/box/slurmctld.pid",
        "SlurmdPidFile=/var/box/slurmd.%n.pid",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.%n.log",
        "PlugStackConfig=/etc/slurm/plugstack.conf",
        f"ProctrackType=proctrack/{tracking}",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "AccountingStorageType=accounting_storage/none",
        "JobCompType=jobcomp/filetxt",
        "JobCompLoc=/var/log/slurm/jobcomp.log",
        "EnforcePartLimits=ALL",
        "MpiDefault=none",
        "MailProg=/bin/true",
        "ReturnToService=2",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerParameters=sched_min_interval=0,bf_interval=1,batch_sched_delay=0",
        "SlurmdParameters=config_overrides",
        "GresTypes=gpu",
        # Seconds between SIGTERM and SIGKILL: Pyxis unmounts and removes a container after the first.
        "KillWait=10",
        "MessageTimeout=20",
    ]
    if account.mode == "user":
        lines.append("TaskProlog=/etc/box/task-prolog.sh")
    lines += [
        f"NodeName={name} NodeHostname={name} NodeAddr={addressed[name]} Port={FIRST_PORT + index}"
        f" CPUs={shape.cpus} Boards=1 SocketsPerBoard={shape.sockets} CoresPerSocket={shape.cores_per_socket}"
        f" ThreadsPerCore={shape.threads_per_core} RealMemory={shape.memory_mb}"
        + (f" Gres=gpu:{shape.gpu_type}:{shape.gpus}" if shape.gpus else "")
        + (f" Feature={features}" if features else "")
        + " State=UNKNOWN"
        for index, name in enumerate(spec.node_names)
    ]
    lines.append(
        f"PartitionName={spec.partition} Nodes={','.join(spec.node_names)}"
        " Default=YES MaxTime=INFINITE DefaultTime=30 State=UP"
    )
    return _text(lines)


def gres_conf(spec: BoxSpec) -> str:
    """gres.conf: a device for each GPU, so that each has an index."""
    if not spec.shape.gpus:
        return ""
    return _text(
        f"NodeName={','.join(spec.node_names)} Name=gpu Type={spec.shape.gpu_type} File={_GPU.format(number)}"
        for number in range(spec.shape.gpus)
    )


def addresses(spec: BoxSpec) -> dict[str, str]:
    """Host name -> IPv4 address, alone in the box's own network namespace."""
    nodes = {name: f"10.0.0.{number}" for number, name in enumerate(spec.node_names, start=11)}
    return {HOSTNAME: "10.0.0.1", **nodes}


def hosts(spec: BoxSpec) -> str:
    """/etc/hosts of every machine of the box."""
    return _text(["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses(spec).items())])


def passwd(account: Account, pristine: str) -> str:
    """/etc/passwd of the root, with the account in it (its shell is one that the box has)."""
    others = [line for line in pristine.splitlines() if line.split(":")[0] != account.name]
    return _text([*others, f"{account.name}:x:{account.uid}:{account.gid}::{account.home}:/bin/bash"])


def group(account: Account, pristine: str) -> str:
    """/etc/group of the root, with the account's own group in it."""
    taken = any(line.split(":")[2:3] == [str(account.gid)] for line in pristine.splitlines())
    return pristine if taken else _text([*pristine.splitlines(), f"{account.name}:x:{account.gid}:"])


def files(spec: BoxSpec, account: Account, pristine: Mapping[str, str]) -> dict[str, str]:
    """Every file that a box adds to its root: path without the leading slash -> content.

    Args:
        pristine: content of the root's own ``etc/passwd`` and ``etc/group``.
    """
    cgroup = {} if spec.slurm == "22.05" else {"etc/slurm/cgroup.conf": "CgroupPlugin=disabled\n"}
    return cgroup | {
        "etc/slurm/slurm.conf": slurm_conf(spec, account),
        "etc/slurm/gres.conf": gres_conf(spec),
        "etc/slurm/mpi.conf": "PMIxCliTmpDirBase=/run\n",
        "etc/slurm/plugstack.conf": _text(spec.spank),
        "etc/hosts": hosts(spec),
        "etc/hostname": f"{HOSTNAME}\n",
        "etc/passwd": passwd(account, pristine["etc/passwd"]),
        "etc/group": group(account, pristine["etc/group"]),
        "etc/box/name": f"{spec.name}\n",
        "etc/box/nodes": _text(spec.node_names),
        "etc/box/gpus": _text(_GPU.format(number) for number in range(spec.shape.gpus)),
        "etc/box/user": f"{account.name}\n",
        "etc/box/uid": f"{account.uid}\n",
        "etc/box/gid": f"{account.gid}\n",
        "etc/box/as.sh": script(f"as-{account.mode}"),
        **{f"etc/box/{name}.sh": script(name) for name in ("init", "node", "client", "task-prolog")},
    }


def binds(spec: BoxSpec, top_level: Iterable[str], needed: Iterable[Path], logs: Path) -> tuple[Bind, ...]:
    """Which host paths are visible inside, outermost first.

    Args:
        top_level: names of the real directories of the host's root.
        needed: directories that must be seen wherever they lie (home, cache, checkout).
        logs: the box's log directory on the host; it is the daemons' /var/log/slurm.
    """
    data = tuple(f"/{name}" for name in sorted(top_level) if name not in SYSTEM)
    further = {str(path) for path in needed if not any(path.is_relative_to(top) for top in data)}
    return (*(Bind(path, path) for path in (*data, *sorted(further))), *spec.binds, Bind(str(logs), "/var/log/slurm"))


def script(name: str) -> str:
    """The text of a shell script beside this module; its input comes as arguments and files."""
    return (_SCRIPTS / f"{name}.sh").read_text()


def unshare_argv(account: Account, state: Path, root: Path) -> tuple[str, ...]:
    """The command that becomes a box: its first process gets namespaces of its own for all but time and cgroups."""
    user = () if account.mode == "root" else ("--user", "--map-root-user")
    return (
        *("setsid", "--fork", "unshare", *user, "--mount", "--propagation", "slave"),
        *("--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"),
        *("/bin/sh", str(_SCRIPTS / "enter.sh"), str(state), str(root), account.mode),
    )


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
