"""What container runtimes say of a container that did not start, or could not be prepared.

Rows of Enroot and Pyxis: their messages as in Enroot 3.4 to 4.1 and Pyxis 0.15 to 0.24, read in their sources and
caused on purpose (docs/proofs.md). The context says whether ``some`` ranks had started or ``none``. The names in braces
of ``cause`` are those of the pattern's groups; besides: ``where``, the nodes; ``image``, the job's; ``before``, the
runtime's line before.
"""

from __future__ import annotations

from runner.diagnosis.failure import Consequence, Failure, Who
from runner.model.backends import RUNTIMES
from runner.model.verdict import Outcome

_OF_RUNTIMES = tuple(facts.failure for facts in RUNTIMES.values() if facts.failure)
_PROGRAM = "|".join(sorted(facts.program for facts in RUNTIMES.values() if facts.is_container and facts.program))
_NOT_STARTED = "the container did not start{where}"
_DATA_PATH = "ENROOT_DATA_PATH, ENROOT_CACHE_PATH and ENROOT_RUNTIME_PATH"


def _not_started(
    code: str,
    pattern: str,
    why: str,
    fix: str,
    who: Who = "site",
    *,
    outcome: Outcome = "infrastructure",
    context: str = "",
    unless: str = "",
    detail: str = "",
    consequence: Consequence = "no",
) -> Failure:
    cause = f"{_NOT_STARTED}: {why}" if why else _NOT_STARTED
    return Failure(
        code, "container log", pattern, cause, fix, who, outcome, context, unless, detail, consequence
    )  # fmt: skip


FAILURES = (
    # Of a disk this is not: ENOSPC of unshare(2) means that there are too many namespaces.
    _not_started(
        "no-user-namespace",
        r"failed to create user namespace: (?P<why>.+)|ch-run\[\d+\]: error: can't init user\+mount namespaces",
        "the node lets this user make no user namespaces",
        "ask the site to allow them (user.max_user_namespaces), or choose another runtime (--runtime)",
    ),
    _not_started(
        "stage-image-differs",
        r"cannot stage the image: (?P<why>.*(?:SHA-256 differs|another size).*)",
        "the image could not be copied to the node's disk: {why}",
        "`images verify` tells whether the image is whole; convert it again if it is not",
        "user",
    ),
    _not_started(
        "stage-failed",
        r"cannot stage the image: (?P<why>.+)",
        "the image could not be copied to the node's disk: {why}",
        "free space there, or leave out --stage",
        "user",
    ),
    _not_started(
        "pyxis-not-loaded",
        r"srun: (?:unrecognized option|error: .*unrecognized option).*--(?:no-)?container-",
        "srun does not know Pyxis's options",
        "choose another runtime (--runtime), or ask the site to load Pyxis (plugstack.conf)",
    ),
    _not_started(
        "runtime-not-on-node",
        rf"(?:execve\(\): |exec: |line \d+: |: )(?:/\S*/)?(?P<program>{_PROGRAM}): "
        r"(?:No such file or directory|(?:command )?not found)",
        "{program} is not there, or not in PATH",
        "name the site's module in its `setup`, choose other nodes, or ask the site to install it there",
    ),
    _not_started(
        "no-python-in-image",
        r"(?:exec: |line \d+: |: )python3: (?:command )?not found",
        "the image {image} has no python3, which starts the ranks",
        "use an image with Python 3.8 or newer",
        "user",
        outcome="failed",
    ),
    _not_started(
        "gpu-hook-failed",
        r"\[ERROR\] (?P<hook>/\S*98-nvidia\S*) exited with return code",
        "Enroot's hook for NVIDIA's GPUs failed ({before})",
        "report the node to the site: `nvidia-smi` and `nvidia-container-cli info` must work there",
    ),
    _not_started(
        "fabric-hook-failed",
        r"\[ERROR\] (?P<hook>/\S*99-mellanox\S*) exited with return code",
        "Enroot's hook for InfiniBand failed ({before})",
        "leave MELLANOX_VISIBLE_DEVICES unset where the nodes have no InfiniBand adapter of Mellanox or NVIDIA",
        "user",
    ),
    _not_started(
        "hook-failed",
        r"\[ERROR\] (?P<hook>/\S+) exited with return code (?P<code>\d+)",
        "Enroot's hook {hook} failed ({before})",
        "report the node and the hook to the site",
    ),
    _not_started(
        "runtime-tool-missing",
        r"\[ERROR\] Command not found: (?P<tool>[^\s,]+)",
        "Enroot needs {tool}, which is not there",
        "ask the site to install it on that node",
    ),
    _not_started(
        "mount-source-missing",
        r"--container-mounts: source path does not exist: (?P<path>.+)",
        "{path}, which is to be mounted, is not there",
        "name a path that every node has (--mount, or `mounts` of the site), or have it mounted on that node",
    ),
    _not_started(
        "mount-failed",
        r"enroot-mount: failed to mount: (?P<path>/.+?) at \S+: (?P<why>[^:]+)$",
        "{path} could not be mounted: {why}",
        "name a path that every node has and you may read (--mount, or `mounts` of the site)",
    ),
    _not_started(
        "run-directory-not-on-node",
        r"(?:\[ERROR\] No such file or directory: (?P<path>\S.*/enroot\.rc)"
        r"|/bin/bash: /\S.*/lib/[a-z-]+\.sh: No such file or directory)$",
        "it does not see the run directory",
        "name a run directory that every node sees (--runs)",
        "user",
    ),
    _not_started(
        "container-gone",
        r"\[ERROR\] No such file or directory: (?P<path>\S.*/(?:runner-[^/]+|pyxis_[\d.]+))$",
        "{path}, which was unpacked for this job, is gone",
        "see what cleans Enroot's data path there; a home that nodes share must not hold it (ENROOT_DATA_PATH)",
    ),
    _not_started(
        "image-missing",
        r"(?i)\[ERROR\] No such file or directory: (?P<path>/.+)|could not open image .*no such file or directory",
        "the image {image} is not there",
        "keep images on a file system that every node mounts (--store, --image), or report the node to the site",
    ),
    _not_started(
        "container-name-taken",
        r"\[ERROR\] File already exists: (?P<path>.+)|because File exists|Could not acquire rootfs lock"
        r"|rm: cannot remove .*(?:Directory not empty|resource busy)",
        "another node, or another job, uses the same container in Enroot's data path",
        "the data path must be on each node's own disk (ENROOT_DATA_PATH), not in a home that nodes share",
    ),
    _not_started(
        "no-room-for-image",
        r"No space left on device|Disk quota exceeded",
        "there is no room to unpack the image (space, files or quota)",
        "free some in Enroot's data path there (ENROOT_DATA_PATH; `df -h` and `df -i`), or ask the site",
    ),
    _not_started(
        "data-path-not-writable",
        r"(?:cannot create directory ['\u2018]|failed to (?:make directory|create file) )(?P<path>[^,'\u2019]+).?"
        r"(?:: |, because )(?P<why>Read-only file system|Permission denied|No such file or directory)",
        "{path} cannot be written: {why}",
        f"{_DATA_PATH} must name directories of the node's own disk that you may write to: ask the site",
    ),
    _not_started(
        "no-fuse",
        r"fuse: device not found|fuse: failed to open /dev/fuse|fusermount3?: .*(?:not permitted|[Pp]ermission denied)",
        "the node has no FUSE for this user, by which the image would be mounted",
        "ask the site: /dev/fuse and fusermount3 must be usable there",
    ),
    _not_started(
        "image-damaged",
        r"\[ERROR\] Invalid (?:image format|argument): /|File system corruption detected|uncompress failed with error"
        r"|failed to read/uncompress|Can't find a valid SQUASHFS superblock|FATAL ERROR: ?read_|Input/output error"
        r"|failed to read (?:block|inode|fragment)",
        "the image {image} is damaged, or cannot be read there",
        "`images verify` tells whether the image is whole; convert it again, or report the node to the site",
        "user",
    ),
    _not_started(
        "image-not-mounted",
        r"\[ERROR\] Failed to mount: (?P<path>.+)",
        "the image {path} could not be mounted ({before})",
        "`images verify` tells whether the image is whole; squashfuse and /dev/fuse must be usable there",
    ),
    _not_started(
        "unpacking-killed",
        r"Killed\s+unsquashfs|child \d+ (?:failed with error code: 137|terminated with signal 9\b)",
        "the unpacking of the image was killed, often for lack of memory",
        "ask for more memory or whole nodes; see the kernel's log of that node",
        "user",
    ),
    _not_started(
        "no-shell-in-image",
        r"enroot-switchroot: failed to execute: (?P<path>\S+): (?P<why>.+)",
        "the image {image} has no shell that runs there ({path}: {why})",
        "use an image for this processor with /bin/sh and /bin/bash in it",
        "user",
        outcome="failed",
    ),
    _not_started(
        "no-working-directory",
        r"pyxis: couldn't chdir to (?P<path>/.+): (?P<why>[^:]+)$",
        "{path} is not in the container ({why})",
        "name a run directory that every node sees (--runs)",
        "user",
    ),
    # A text of runner.diagnosis.logs: what is not there leaves no line.
    _not_started(
        "enroot-silent",
        r"^Enroot ended without a message$",
        "Enroot ended without a message, as where it is not installed",
        "see that `enroot version` works there; if not, choose other nodes or ask the site",
    ),
    _not_started(
        "image-lost",
        # ENOTCONN: the process that served the image to the ranks of this node is gone. No PID: the rank is gone whose
        # container others of the node join.
        r"(?i)^(?=.*(?:ch-run|container|squashfuse)).*transport endpoint is not connected"
        r"|^ch-run\[\d+\]: error: join: no PID \d",
        "",
        "see the rank that ended first on that node: it served the image to the others",
        "user",
        context=r"^none$",
        consequence="perhaps",
    ),
    _not_started(
        "runtime-failed",
        "(?i)" + "|".join((*_OF_RUNTIMES, "cannot stage the image")),
        "",
        "see the runtime's line; `images verify` tells whether the image is whole; or ask the site about the runtime",
        # What they say besides: of a container that does start, and of one whose cause stands elsewhere.
        unless=r"printing enroot log file|child \d+ (failed|terminated)|was not started|\[INFO\]|import(ing|ed)"
        r"|starting container|pyxis:     |spank: |couldn't create enroot start config",
    ),
    _not_started(
        "container-not-started",
        # Of a runtime, by its name or its level (Apptainer, Enroot, Podman): a site's greeting may speak of containers.
        rf"^(?:\x1b\[[\d;]*m)*(?:(?:\S*/)?(?:{_PROGRAM})(?:\[\d+\])?: "
        r"|\[?(?:FATAL|ERROR|Error)\]?:? |time=\S+ level=(?:error|fatal) )(?i:.*container)",
        "",
        "see the runtime's line; convert the image again if it is damaged, or ask the site about the runtime",
        context=r"^none$",
        unless=r"was not started|\[INFO\]|import(ing|ed)|starting container|pyxis: |spank: ",
    ),
)
