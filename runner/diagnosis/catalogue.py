"""The catalogue of failures: how each is recognised, what causes it, how it is fixed and by whom.

Of the rows of one source the first that matches counts: the specific ones stand before the general one. Rows of Enroot
and Pyxis: their messages as in Enroot 3.4 to 4.1 and Pyxis 0.15 to 0.24, read in their sources and caused on purpose
(docs/proofs.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from runner.core.invocation import PROGRAM
from runner.model.backends import RUNTIMES
from runner.model.exit_codes import (
    ANOTHERS_DIRECTORY,
    NO_RUN_DIRECTORY,
    NODE_NOT_READY,
    NOT_LOADED,
    RECORD_NOT_WRITTEN,
    SCRIPT_IN_CONTAINER,
    WRONG_NODES,
    codes,
)
from runner.model.job import JobState
from runner.model.verdict import Outcome

# Where a failure is looked for, and what the text is that its pattern is matched with.
Source = Literal[
    "scheduler state",  # the scheduler's last state of the job; context: its reason
    "unexplained state",  # the same, where no rank and no script explains it
    "end marker",  # "missing", where the batch script left none; context: the phase that the scheduler reports
    "batch script",  # the batch script's own exit code
    "job exit code",  # the job's exit code, where no rank's record explains it; context: the script's telling line
    "run directory",  # "full", where no record fits into it
    "launcher error",  # the launcher's own failure, in a rank's exit record (``error``)
    "rank tokens",  # "differ", where ranks came with tokens of several job steps
    "program signal",  # the signal that ended a rank's program; context: what srun and the rank's log say of it
    "program exit code",  # a rank's program's own; context: the telling line of the rank's log
    "program log",  # the telling line of a rank's log, whatever its program ended with
    "GPU driver",  # the number of an XID error that the driver reported on the node of the rank that failed first
    "task starter",  # what srun reports of a rank that left no exit record; context: the last line of the rank's log
    "container log",  # a line of a rank's or the batch script's log; context: whether "some" ranks
    # started, or "none", and "gone" where the job's image is not there any more
    "NCCL log",  # a network that NCCL reports
]
Who = Literal["user", "site", "infrastructure"]
# Whether the end of a rank is only what follows from another one's: never, perhaps, always.
Consequence = Literal["no", "perhaps", "yes"]


@dataclass(frozen=True)
class Failure:
    """A row of the catalogue.

    Attributes:
        code: its name in docs/failures.md, kebab-case.
        pattern: searched in the source's text; a regular expression.
        cause: the verdict's sentence; names in braces are filled in with what is known of the run. Of a container log
            they are the pattern's groups, ``where`` (the nodes), ``image`` (the job's) and ``before`` (the runtime's
            line before).
        fix: what to do about it; ``{driver}`` is what brings NVIDIA's driver into the run's runtime, and
            ``{maxrss}`` what tells the memory that it used.
        who: who can do so.
        outcome: of a run that fails by it.
        context: searched in the source's context; empty where any will do.
        unless: the row does not match where this is in the text; empty for no exception.
        detail: a second sentence of the verdict; empty for none.
        consequence: whether it only follows from another rank's end.
    """

    code: str
    source: Source
    pattern: str
    cause: str
    fix: str
    who: Who = "user"
    outcome: Outcome = "failed"
    context: str = ""
    unless: str = ""
    detail: str = ""
    consequence: Consequence = "no"

    def matches(self, text: str, context: str) -> bool:
        """Whether the row describes this text, seen in this context."""
        return (
            re.search(self.pattern, text) is not None
            and re.search(self.context, context) is not None
            and not (self.unless and re.search(self.unless, text))
        )


_REPORTED = "the scheduler reports {state}{where}{reason}"
_NOT_RECORDED = "{who} left no exit record; srun reports: {end}"
_NO_PROGRAM = "{who} did not start its program: {error}: {message}"
_BY_SIGNAL = "{who} was ended by signal {signal} ({name})"
_WITHOUT_NODE = "submit again without that node, by an option of the scheduler, and report the GPU to the site"
_OF_RUNTIMES = tuple(facts.failure for facts in RUNTIMES.values() if facts.failure)
_NO_IMAGE = (
    r"(?i)\[ERROR\] No such file or directory: (?P<path>/.+)|could not open image .*no such file or directory"
    r"|ch-run\[\d+\]: error: can't stat: /.*: no such file or directory"
)
_PROGRAMS = "|".join(sorted(facts.program for facts in RUNTIMES.values() if facts.is_container and facts.program))


def _said(code: str, pattern: str, what: str, fix: str, who: Who = "user", outcome: Outcome = "failed") -> Failure:
    return Failure(code, "program log", pattern, f"{{who}} {{end}}: {what}", fix, who, outcome)


def _stopped(number: int, fix: str, who: Who = "user") -> Failure:
    """The script stopped itself before the ranks, with one of its own codes."""
    entry = codes("batch script")[number]
    return Failure(entry.name, "batch script", rf"^{number}$", entry.meaning, fix, who, "infrastructure")


def _error(code: str, fix: str, who: Who = "user", outcome: Outcome = "failed", **more: Any) -> Failure:
    return Failure(code, "launcher error", rf"^{code}$", _NO_PROGRAM, fix, who, outcome, **more)


def _not_started(code: str, pattern: str, why: str, fix: str, who: Who = "site", **more: Any) -> Failure:
    cause = "the container did not start{where}" + (f": {why}" if why else "")
    return Failure(code, "container log", pattern, cause, fix, who, **{"outcome": "infrastructure", **more})


# fmt: off
FAILURES = (
    Failure("node-failed", "scheduler state", r"^NODE_FAIL$", _REPORTED,
        "submit again; report the node to the site if it fails again", "infrastructure", "infrastructure"),
    Failure("node-not-booted", "scheduler state", r"^BOOT_FAIL$", _REPORTED,
        "submit again; report the node to the site if it fails again", "infrastructure", "infrastructure"),
    Failure("preempted", "scheduler state", r"^PREEMPTED$", _REPORTED,
        "submit again, or to a queue whose jobs are not preempted (--queue)", outcome="infrastructure"),
    Failure("job-not-launched", "scheduler state", r"^(LAUNCH_FAILED|RECONFIG_FAIL)$", _REPORTED,
        "submit again; report it to the site if it happens again", "infrastructure", "infrastructure"),
    Failure("allocation-revoked", "scheduler state", r"^REVOKED$", _REPORTED, "ask the site why it revoked the job",
        "site", "infrastructure"),
    # Slurm (22.05) gives a script that was killed, and had begun, the reason of one that it could not start.
    Failure("script-killed", "scheduler state", r"", "the job's script was killed outright on {nodes}",
        "submit again; the kernel's log of that node says what killed it: often a lack of memory", "infrastructure",
        "infrastructure", context=r"^JobLaunchFailure begun$"),
    # Slurm's, where slurmstepd cannot open the script's output (ExitCode 0:53).
    Failure("script-not-started", "scheduler state", r"",
        "the scheduler could not start the script on {nodes} (JobLaunchFailure)",
        "name a run directory that every node sees and you may write to (--runs)", outcome="infrastructure",
        context=r"^JobLaunchFailure$", detail="the node does not see the run directory, or may not write to it"),
    Failure("time-limit", "scheduler state", r"^TIMEOUT$", "the job ran into its time limit",
        "ask for more time (--time); a program with checkpoints goes on by itself with --until-done; if it hung, see "
        "which rank it waited for"),
    Failure("deadline-missed", "scheduler state", r"^DEADLINE$", "the job missed its deadline",
        "submit with a later deadline, or with none"),
    Failure("job-out-of-memory", "scheduler state", r"^OUT_OF_MEMORY$", "the job ran out of memory",
        "a smaller batch, fewer data workers, or whole nodes, which have all their memory"),
    Failure("job-cancelled", "scheduler state", r"^CANCELLED$", "the job was cancelled{by}",
        "submit again, unless you cancelled it yourself", outcome="cancelled"),
    Failure("job-killed", "scheduler state", r"^KILLED$", "the job was killed outright: its script left no end marker",
        "see the machine's log for what killed it: often a lack of memory"),
    Failure("job-unknown", "end marker", r"^missing$",
        "the scheduler does not know the job, and its script left no end marker",
        "ask the site's accounting (sacct, qstat -x); submit again, if yours", outcome="unknown",
        context=r"^unknown$"),
    Failure("state-unexplained", "unexplained state", r"^(?!COMPLETED$).",
        "the scheduler reports {state}, and no rank's record explains it",
        "see the scheduler's documentation of this state, and logs/batch.err", outcome="unknown"),
    _stopped(NODE_NOT_READY, "see the runtime's line in the logs, and the nodes' space", "site"),
    _stopped(SCRIPT_IN_CONTAINER, "take PYXIS_CONTAINER_IMAGE out of your login shell's files (~/.bashrc, ~/.profile)"),
    _stopped(NO_RUN_DIRECTORY, "name a run directory that every node sees (--runs)"),
    _stopped(ANOTHERS_DIRECTORY, "submit again; logs/batch.err names it"),
    _stopped(WRONG_NODES, "submit again; report it to the site if it happens again", "infrastructure"),
    _stopped(NOT_LOADED,
        "correct --module, or the setup in the site file (`module avail` lists what there is); every node must see an "
        "environment of your own; submit again where logs/batch.err names a file of lib/"),
    Failure("run-directory-not-written", "job exit code", rf"^{RECORD_NOT_WRITTEN}$",
        "the job could not write to its run directory (exit code {code})",
        "name a run directory that every node sees and you may write to (--runs)", outcome="infrastructure"),
    Failure("srun-killed", "job exit code", r"^137$",
        "srun was killed on {node}, which ended all ranks",
        "ask for more memory or whole nodes; the kernel's log of that node says what killed it",
        outcome="infrastructure", context=r"\bKilled +srun "),
    Failure("srun-plugin-not-loaded", "job exit code", r"",
        "srun could not load a plugin of Slurm on {node} (exit code {code})",
        "ask the site: plugstack.conf of that node names the plugin, and slurmd's log the reason", "site",
        "infrastructure",
        context=r"(?<!launch failed: )Plug-?in initialization failed|Failed to initialize plugin stack"),
    Failure("disk-full", "run directory", r"^full$", "the disk of the run directory is full",
        "remove what you no longer need there, or name another directory (--runs)", outcome="infrastructure"),
    Failure("job-exit-code", "job exit code", r"", "the job ended with exit code {code}",
        "see logs/batch.err and the ranks' logs"),
    _error("environment-differs",
        "make it of a Python that every node has, where every node sees it under the same path",
        outcome="infrastructure"),
    _error("start-exchanged", "submit again"),
    _error("world-mismatch", "start the ranks by the script that was submitted, unchanged", outcome="not-proven"),
    _error("world-unknown", "start the ranks by srun, mpiexec or the script that was submitted"),
    _error("rendezvous-timeout", "see the log of the rank it waited for, then submit again", outcome="infrastructure"),
    _error("rendezvous-port-taken", "submit again: a new job uses another port", "infrastructure", "infrastructure"),
    _error("rendezvous-address", "the first node's name must resolve on all nodes", "site", "infrastructure"),
    _error("record-not-written", "name a run directory that every node may write to (--runs)",
        outcome="infrastructure"),
    _error("horovod-without-gloo",
        f"start the ranks by MPI (--wireup pmix, pmi2 or mpich), or build the image: {PROGRAM} build"),
    _error("cuda-driver-missing",
        "{driver}; a program that uses no GPU: --env RUNNER_DRIVER_TIMEOUT_S=0 leaves the look out; nodes whose GPUs "
        "are fake: `device: cpu` in the site file", "site", "infrastructure"),
    _error("cuda-driver-unusable",
        "run `nvidia-smi` on that node, and report it to the site; no other libcuda may stand before the node's "
        "(LD_LIBRARY_PATH)", "site", "infrastructure"),
    _error("cuda-driver-too-old",
        f"build on an older base ({PROGRAM} build ... --base auto --site SITE), with `hardware.driver` in the "
        "site file", outcome="infrastructure"),
    _error("gpus-missing",
        "compare with `nvidia-smi -L` on that node, and report a GPU that is gone; CUDA_VISIBLE_DEVICES hides those "
        "that it does not name; {driver}", "site", "infrastructure"),
    # The launcher itself was started by python3.
    Failure("python-not-found", "launcher error", r"^program-not-found$", _NO_PROGRAM,
        "start the program with python3", context=r"^python: ", detail="{place} has python3, not python"),
    Failure("script-with-crlf", "launcher error", r"^program-not-(found|executable)$", _NO_PROGRAM,
        "convert it: sed -i 's/\\r$//' SCRIPT", context=r": it has Windows line ends \(CRLF\)"),
    Failure("interpreter-not-found", "launcher error", r"^program-not-(found|executable)$", _NO_PROGRAM,
        "let its first line name an interpreter that is in the image (#!/usr/bin/env python3), or start it by one",
        context=r": its (interpreter is not there|first line names no interpreter)"),
    _error("program-not-found", "name a program that is in the image, or in the recipe's directory"),
    _error("program-not-executable", "make the program executable, or start it by its interpreter"),
    _error("launcher-fault", "report it with the rank's exit record: this is an error in the launcher"),
    _error("stopped-before-start", "find what stopped first, another rank or the job: its log has the cause",
        consequence="yes"),
    Failure("launcher-error", "launcher error", r"", _NO_PROGRAM, "see the message in the rank's exit record"),
    Failure("token-of-another-job", "rank tokens", r"^differ$", "{ranks} presented the token of another job step",
        "remove RUNNER_* and the scheduler's variables from what the job's environment carries over",
        outcome="infrastructure"),
    # The kernel's killer takes a program by SIGKILL, and slurmstepd or srun report it.
    Failure("program-out-of-memory", "program signal", r"^SIGKILL$", _BY_SIGNAL,
        "a smaller batch, fewer data workers, or whole nodes, which have all their memory",
        context=r"(?i)out of memory|oom.kill",
        detail="it ran out of memory: the kernel ended it at {rss_mib:.0f} MiB{limit}"),
    Failure("program-killed", "program signal", r"^SIGKILL$", _BY_SIGNAL,
        "compare the memory that it used ({maxrss}) with what the job had",
        detail="for lack of memory, or by hand: it had used {rss_mib:.0f} MiB{limit}"),
    # kill-on-bad-exit and time limits end the other ranks so. A SIGKILL of theirs takes the launcher, too: a program
    # that was killed and whose launcher could record it was killed by itself, by the kernel for one.
    Failure("ended-by-others", "program signal", r"^SIGTERM$", _BY_SIGNAL,
        "find what stopped first, another rank or the job: its log has the cause", consequence="yes"),
    # A rank of the node that has ended may have served the image to this one.
    Failure("bus-error", "program signal", r"^SIGBUS$", _BY_SIGNAL,
        "see whether /dev/shm or the disk is full, the image whole (`images verify`), and which rank ended first",
        consequence="perhaps"),
    Failure("program-signal", "program signal", r"", _BY_SIGNAL, "see the rank's log, which `logs` prints"),
    # Messages as torch 2.1 to 2.13, JAX, TensorFlow and NCCL print them.
    _said("gpu-out-of-memory", r"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|OutOfMemoryError"
        r"|CUBLAS_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory|ResourceExhaustedError",
        "its GPU's memory was full",
        "a smaller batch, activation checkpointing, or a model that is divided over the GPUs (FSDP, ZeRO)"),
    _said("gpu-hardware", r"uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE|fallen off the bus",
        "its GPU failed, not its program", _WITHOUT_NODE, "site", "infrastructure"),
    _said("collective-timeout", r"(?i)watchdog caught collective operation timeout"
        r"|timed out waiting \d+ ?ms for (?:recv|send)",
        "a collective operation did not end in time: a rank was stuck, gone or late, or ranks called different ones",
        "see what the other ranks did last (`logs --rank`): often one alone evaluates or saves, or has fewer batches; "
        "a longer limit is init_process_group's `timeout`"),
    _said("module-not-found", r"No module named ['\"]?(?P<module>[\w.]+)", "{module} is not in {environment}",
        "install it there, or name the environment or image that has it (--env-name, --image); a module of your own "
        "must lie beside the script, or in PYTHONPATH"),
    _said("nccl-not-built-in", r"package doesn't have NCCL built in|ProcessGroupNCCL is only supported with GPUs",
        "NCCL works with GPUs only: torch is a build for processors, or sees no GPU",
        'init_process_group("nccl" if torch.cuda.is_available() else "gloo"), or a torch with CUDA'),
    _said("no-process-group", r"Default process group has not been initialized",
        "init_process_group is missing", "call it first (`recipe check FILE`)"),
    _said("file-not-found", r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<file>[^']+)'",
        "it does not find {file}",
        "correct the path, absolute where a copy runs (a recipe's, --snapshot's); a container shows the directory of "
        "`submit` (/workspace), the run directory (/results) and what --mount DIR:DIR names"),
    _said("library-not-found", r"(?P<library>[\w.+-]+\.so[\w.]*): cannot open shared object file: No such file",
        "{library} is not in {environment}, or not where libraries are looked for",
        "use an image or environment with the CUDA, MPI or other library that the program was built for "
        "(LD_LIBRARY_PATH where it lies elsewhere)"),
    _said("wrong-arguments", r": error: (?:unrecognized arguments|the following arguments are required|argument "
        r"|ambiguous option|one of the arguments)|^(?:Error: |│ )(?:No such option|Missing option|Invalid value)",
        "it does not take its arguments", "correct what stands after the program's name"),
    _said("quota-exceeded", r"(?i)disk quota exceeded|\[Errno 122\]", "a quota of space or of files is used up",
        "free some there (`quota -s`, `lfs quota`), or write elsewhere; caches in the home: HF_HOME, XDG_CACHE_HOME"),
    _said("shared-memory-full", r"unable to (?:write to file|mmap|allocate shared memory).*(?:/torch_|shared)"
        r"|(?:extend|segment) /dev/shm/|/dev/shm/.*No space left|DataLoader worker .*Bus error|Signal 7 \(SIGBUS\)",
        "/dev/shm, the memory that processes of a node share, was full",
        "fewer data workers or smaller batches; a container needs the host's /dev/shm, or a larger one"),
    _said("worker-killed", r"^traceback : Signal 9 |exits with return code = -9"
        r"|DataLoader worker .*(?:killed by signal|exited unexpectedly)",
        "a process that it started was ended, often for lack of memory{limit}",
        "a smaller batch, fewer data workers, or whole nodes, which have all their memory"),
    _said("address-in-use", r"(?i)address already in use|EADDRINUSE", "another process of the node has the port",
        "leave out --master-port and the like: MASTER_PORT is a free one; else submit again"),
    _said("no-space-left", r"(?i)no space left on device", "a disk was full, or had no more room for files",
        "free some (`df -h` and `df -i` of the path in that line), or write elsewhere"),
    # https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (2026-11): errors of memory (48, 64, 94, 95,
    # 140), of links (74, 79, 136) and of the GPU's own controllers (62, 119, 120); programs can cause others.
    Failure("gpu-xid-hardware", "GPU driver", r"^(?:48|62|64|74|79|94|95|119|120|136|140)$",
        "the driver of {host} reported XID {xid}, an error of a GPU itself, its memory or its links", _WITHOUT_NODE,
        "site", "infrastructure"),
    Failure("gpu-xid", "GPU driver", r"", "the driver of {host} reported XID {xid}", "see the rank's log"),
    # EIO is no program's fault. A damaged image shows so where it is mounted, not unpacked (squashfuse).
    Failure("program-read-error", "program exit code", r"",
        "{who} exited with code {code}: it met an input/output error, of its image or of a file system",
        "`images verify` tells whether the image is whole; else report the node and the file to the site",
        outcome="infrastructure", context=r"Input/output error"),
    # env(1) of a first line `#!/usr/bin/env python3`, and bash, which shows a carriage return so.
    Failure("script-lines-with-crlf", "program exit code", r"", "{who} exited with code {code}",
        "convert it: sed -i 's/\\r$//' SCRIPT", context=r"\\r['’]+: (No such file or directory|command not found)",
        detail="its script has Windows line ends (CRLF)"),
    # The launcher itself was started by python3.
    Failure("python-not-in-path", "program exit code", r"^127$", "{who} exited with code {code}",
        "call python3 in its script",
        context=r"\bpython: (command )?not found|\benv: ['‘]python['’]: No such file or directory",
        detail="{place} has python3, not python"),
    Failure("interpreter-not-in-path", "program exit code", r"^127$", "{who} exited with code {code}",
        "let the script's first line name an interpreter that is in the image (#!/usr/bin/env python3)",
        context=r"\benv: ['‘][^'’]+['’]: No such file or directory",
        detail="the interpreter that its script's first line names is not there"),
    Failure("program-exit-code", "program exit code", r"", "{who} exited with code {code}",
        "see the rank's log, which `logs` prints"),
    Failure("logs-not-writable", "task starter", r"could not connect IO",
        _NOT_RECORDED + " (its node may not write to logs/ in the run directory)",
        "name a run directory that every node may write to (--runs), or report the node to the site",
        outcome="infrastructure"),
    # Of the node's slurmd; srun then waits for the other nodes' ranks.
    Failure("plugin-not-loaded", "task starter", r"Plugin initialization failed",
        _NOT_RECORDED + " (a plugin of Slurm could not be loaded on its node)",
        "ask the site: slurmd's log of that node names the plugin; with Pyxis it is often its runtime_path", "site",
        "infrastructure"),
    # By the kernel, which takes the launcher along; or by srun, after another rank or at the end of the job.
    Failure("rank-killed", "task starter", r"^Killed$", _NOT_RECORDED,
        "find what stopped first, another rank or the job; where nothing did, compare the memory that it used "
        "({maxrss}) with what the job had", detail="often out of memory{limit}", consequence="yes"),
    Failure("rank-stopped", "task starter", r"^Terminated$", _NOT_RECORDED,
        "find what stopped first, another rank or the job: its log has the cause", consequence="yes"),
    # A bus error may well come from the image's going away with another rank.
    Failure("rank-bus-error", "task starter", r"^Bus error$", _NOT_RECORDED,
        "see what ended first, and whether /dev/shm or the disk is full", consequence="perhaps"),
    # A rank that another one's end took the image from before its launcher had begun: bash finds no library (ENOTCONN),
    # or the container that it joins is gone.
    Failure("rank-lost-its-image", "task starter", r"^Exited with exit code", _NOT_RECORDED + " (its image went away)",
        "find what ended first, another rank of its node or the job: its log has the cause",
        context=r"Error 107$|Transport endpoint is not connected|ch-run\[\d+\]: error: (?:join: no PID \d|.* abort)",
        consequence="perhaps"),
    Failure("rank-left-no-record", "task starter", r"", _NOT_RECORDED, "see the rank's log, which `logs` prints"),
    # Of a disk this is not: ENOSPC of unshare(2) means that there are too many namespaces.
    _not_started("no-user-namespace",
        r"failed to create user namespace: (?P<why>.+)|ch-run\[\d+\]: error: can't init user\+mount namespaces",
        "the node lets this user make no user namespaces",
        "ask the site to allow them (user.max_user_namespaces), or choose another runtime (--runtime)"),
    _not_started("image-gone", _NO_IMAGE + r"|cannot stage the image: the copy of .* failed",
        "the image {image} is gone: something removed it after the job was submitted",
        "make it again (`convert`, `build`), and keep it until the job has started", "user", outcome="failed",
        context="gone"),
    _not_started("stage-image-differs", r"cannot stage the image: (?P<why>.*(?:SHA-256 differs|another size).*)",
        "the image could not be copied to the node's disk: {why}",
        "`images verify` tells whether the image is whole; convert it again if it is not", "user"),
    _not_started("stage-failed", r"cannot stage the image: (?P<why>.+)",
        "the image could not be copied to the node's disk: {why}", "free space there, or leave out --stage", "user"),
    _not_started("pyxis-not-loaded",
        r"srun: (?:unrecognized option|error: .*unrecognized option).*--(?:no-)?container-",
        "srun does not know Pyxis's options",
        "choose another runtime (--runtime), or ask the site to load Pyxis (plugstack.conf)"),
    _not_started("runtime-not-on-node", rf"(?:execve\(\): |exec: |line \d+: |: )(?:/\S*/)?(?P<program>{_PROGRAMS}): "
        r"(?:No such file or directory|(?:command )?not found)", "{program} is not there, or not in PATH",
        "name the site's module in its `setup`, choose other nodes, or ask the site to install it there"),
    _not_started("no-python-in-image", r"(?:exec: |line \d+: |: )python3: (?:command )?not found",
        "the image {image} has no python3, which starts the ranks", "use an image with Python 3.8 or newer", "user",
        outcome="failed"),
    _not_started("python-does-not-run",
        r"python3: (?P<why>error while loading shared libraries: .+ No such file.*|cannot execute binary file.*)$",
        "the python3 of the image {image} does not run ({why})",
        "use an image for this processor whose Python has its libraries (nothing may hide them: --mount, "
        "LD_LIBRARY_PATH)", "user", outcome="failed"),
    _not_started("image-needs-newer-driver", r"requirement error: unsatisfied condition: (?P<what>[^,]+)",
        "the image {image} requires {what} of the node's GPUs and driver",
        "use an older image (`build ... --base auto`), or other nodes; --env NVIDIA_DISABLE_REQUIRE=1 starts it anyway",
        "user"),
    _not_started("gpu-hook-failed", r"\[ERROR\] (?P<hook>/\S*98-nvidia\S*) exited with return code",
        "Enroot's hook for NVIDIA's GPUs failed ({before})",
        "report the node to the site: `nvidia-smi` and `nvidia-container-cli info` must work there"),
    _not_started("fabric-hook-failed", r"\[ERROR\] (?P<hook>/\S*99-mellanox\S*) exited with return code",
        "Enroot's hook for InfiniBand failed ({before})",
        "leave MELLANOX_VISIBLE_DEVICES unset where the nodes have no InfiniBand adapter of Mellanox or NVIDIA",
        "user"),
    _not_started("own-hook-failed", r"\[ERROR\] (?P<hook>/\S*/\.config/enroot/\S+) exited with return code",
        "Enroot's hook {hook}, which is your own, failed ({before})", "correct it, or remove it", "user",
        outcome="failed"),
    _not_started("hook-failed", r"\[ERROR\] (?P<hook>/\S+) exited with return code (?P<code>\d+)",
        "Enroot's hook {hook} failed ({before})", "report the node and the hook to the site"),
    _not_started("runtime-tool-missing", r"\[ERROR\] Command not found: (?P<tool>[^\s,]+)",
        "Enroot needs {tool}, which is not there", "ask the site to install it on that node"),
    _not_started("mount-source-missing", r"--container-mounts: source path does not exist: (?P<path>.+)",
        "{path}, which is to be mounted, is not there",
        "name a path that every node has (--mount, or `mounts` of the site), or have it mounted on that node"),
    _not_started("mount-target-of-another-kind",
        r"enroot-mount: failed to mount: (?P<path>/.+?) at (?P<target>\S+): (?:Not|Is) a directory$",
        "{path} could not be mounted at {target}: one of them is a file, the other a directory",
        "mount it at another path (--mount)", "user", outcome="failed"),
    _not_started("mount-failed", r"enroot-mount: failed to mount: (?P<path>/.+?) at \S+: (?P<why>[^:]+)$",
        "{path} could not be mounted: {why}",
        "name a path that every node has and you may read (--mount, `mounts` of the site, or mounts.d of Enroot, which "
        "~/.config/enroot may have, too)"),
    _not_started("run-directory-not-on-node", r"(?:\[ERROR\] No such file or directory: (?P<path>\S.*/enroot\.rc)"
        r"|/bin/bash: /\S.*/lib/[a-z-]+\.sh: No such file or directory)$", "it does not see the run directory",
        "name a run directory that every node sees (--runs)", "user"),
    _not_started("run-directory-read-only",
        r"/lib/keeper\.sh: line \d+: logs/node-(?P<node>\S+)\.log: (?P<why>.+)$",
        "{node} may not write to logs/ in the run directory ({why})",
        "name a run directory that every node may write to (--runs), or report the node to the site", "user"),
    _not_started("container-gone",
        r"\[ERROR\] No such file or directory: (?P<path>\S.*/(?:runner-[^/]+|pyxis_[\d.]+))$",
        "{path}, which was unpacked for this job, is gone",
        "see what cleans Enroot's data path there; a home that nodes share must not hold it (ENROOT_DATA_PATH)"),
    _not_started("image-missing", _NO_IMAGE + r"|^Error: \S+: image not known$", "the image {image} is not there",
        "convert it again if it was removed; keep images on a file system that every node mounts (--store, --image), "
        "or report the node to the site"),
    _not_started("container-name-taken",
        r"\[ERROR\] File already exists: (?P<path>.+)|because File exists|Could not acquire rootfs lock"
        r"|rm: cannot remove .*(?:Directory not empty|resource busy)",
        "another node or job uses the same container in Enroot's data path, or flock does not work there",
        "the data path must be on each node's own disk (ENROOT_DATA_PATH), not in a home that nodes share"),
    _not_started("no-room-for-image", r"No space left on device|Disk quota exceeded",
        "there is no room to unpack the image (space, files or quota)",
        "free some in Enroot's data path there (ENROOT_DATA_PATH; `df -h` and `df -i`), or ask the site"),
    _not_started("data-path-not-writable",
        r"(?:cannot create directory ['\u2018]|failed to (?:make directory|create file) )(?P<path>[^,'\u2019]+).?"
        r"(?:: |, because )(?P<why>Read-only file system|Permission denied|No such file or directory|File exists)",
        "{path} cannot be written: {why}",
        "ENROOT_DATA_PATH, ENROOT_CACHE_PATH and ENROOT_RUNTIME_PATH must name directories of the node's own disk that "
        "you may write to: ask the site"),
    _not_started("no-fuse",
        r"fuse: device not found|fuse: failed to open /dev/fuse|fusermount3?: .*(?:not permitted|[Pp]ermission denied)",
        "the node has no FUSE for this user, by which the image would be mounted",
        "ask the site: /dev/fuse and fusermount3 must be usable there"),
    _not_started("image-damaged",
        r"\[ERROR\] Invalid (?:image format|argument): /|File system corruption detected|uncompress failed with error"
        r"|failed to read/uncompress|Can't find a valid SQUASHFS superblock|FATAL ERROR: ?read_|Input/output error"
        r"|failed to read (?:block|inode|fragment)|went wrong trying to read the squashfs image",
        "the image {image} is damaged, or cannot be read there",
        "`images verify` tells whether the image is whole: if not, convert it again, else report the node to the site, "
        "where unsquashfs may be missing", "user"),
    _not_started("image-with-devices",
        r"could not create \w+ device (?P<path>\S+), because you're not superuser!",
        "the image {image} has device files ({path}), which only root may make",
        "store it again: `convert` and `images edit` leave them out", "user", outcome="failed"),
    _not_started("image-not-mounted", r"\[ERROR\] Failed to mount: (?P<path>.+)",
        "the image {path} could not be mounted ({before})",
        "`images verify` tells whether the image is whole; squashfuse and /dev/fuse must be usable there"),
    _not_started("unpacking-killed",
        r"Killed\s+unsquashfs|child \d+ (?:failed with error code: 137|terminated with signal 9\b)",
        "the unpacking of the image was killed, often for lack of memory",
        "ask for more memory or whole nodes; see the kernel's log of that node", "user"),
    _not_started("image-not-executable", r"enroot-switchroot: failed to execute: (?P<path>\S+): Permission denied",
        "{path} of the image may not be executed there: often Enroot's data path is mounted noexec",
        "ask the site to let programs run in ENROOT_DATA_PATH (`findmnt -T` shows its options)"),
    _not_started("no-shell-in-image",
        r"(?:enroot-switchroot: failed to execute: |(?:execve\(\)|exec): (?=/bin/bash:))(?P<path>\S+): (?P<why>.+)",
        "the image {image} has no shell that runs there ({path}: {why})",
        "use an image for this processor with /bin/sh and /bin/bash in it", "user", outcome="failed"),
    _not_started("tmp-not-writable", r"pyxis: couldn't create enroot start configuration script",
        "/tmp is full or cannot be written, where Pyxis writes the container's configuration",
        "report the node to the site, or choose another: `df -h /tmp` and `df -i /tmp` show it"),
    _not_started("no-working-directory", r"pyxis: couldn't chdir to (?P<path>/.+): (?P<why>[^:]+)$",
        "{path} is not in the container ({why})", "name a run directory that every node sees (--runs)", "user"),
    # Pyxis has an image's /etc/rc run without its entry point, too: it is to source /etc/rc.local.
    _not_started("start-script-failed", r"^pyxis: +(?P<script>/etc/rc(?:\.local)?): (?:line )?\d+: (?P<why>.+)",
        "{script} of the image {image} failed ({why})",
        "correct it, or take it out; where there is none, `enroot version` must work there", "user", outcome="failed"),
    # A text of runner.diagnosis.logs: what is not there leaves no line.
    _not_started("enroot-silent", r"^Enroot ended without a message$",
        "Enroot ended without a message, as where it is not installed",
        "see that `enroot version` works there; if not, choose other nodes or ask the site"),
    # ENOTCONN, ECONNABORTED: the process that served the image to the ranks of this node is gone, or goes. No PID: the
    # rank is gone whose container others of the node join.
    _not_started("image-lost", r"(?i)^(?=.*(?:ch-run|container|squashfuse)).*(?:transport endpoint is not connected"
        r"|software caused connection abort)|^ch-run\[\d+\]: error: join: no PID \d", "",
        "see the rank that ended first on that node: it served the image to the others", "user", context=r"^none$",
        consequence="perhaps"),
    # What they say besides: of a container that does start, and of one whose cause stands elsewhere.
    _not_started("runtime-failed", "(?i)" + "|".join((*_OF_RUNTIMES, "cannot stage the image")), "",
        "see the runtime's line; `images verify` tells whether the image is whole; or ask the site about the runtime",
        unless=r"printing enroot log file|child \d+ (failed|terminated)|was not started|\[INFO\]|import(ing|ed)"
        r"|starting container|pyxis:     |spank: "),
    # Of a runtime, by its name or its level (Apptainer, Enroot, Podman): a site's greeting may speak of containers.
    _not_started("container-not-started", rf"^(?:\x1b\[[\d;]*m)*(?:(?:\S*/)?(?:{_PROGRAMS})(?:\[\d+\])?: "
        r"|\[?(?:FATAL|ERROR|Error)\]?:? |time=\S+ level=(?:error|fatal) )(?i:.*container)", "",
        "see the runtime's line; convert the image again if it is damaged, or ask the site about the runtime",
        context=r"^none$", unless=r"was not started|\[INFO\]|import(ing|ed)|starting container|pyxis: |spank: "),
    Failure("nccl-on-sockets", "NCCL log", r"^Socket$",
        "NCCL used sockets between nodes, not the planned fabric (see nccl/)",
        "see in nccl/ why NCCL took no fabric: often NCCL_IB_HCA, a missing plugin, or the memlock limit", "site",
        "not-proven"),
    Failure("libfabric-on-sockets", "NCCL log", r"^libfabric (ofi_\w+;)?(tcp|sockets|udp)\b",
        "NCCL used libfabric over sockets between nodes, not the planned fabric (see nccl/)",
        "see in nccl/ why libfabric took no fabric: its provider (FI_PROVIDER: cxi, efa) is not in the container, "
        "or cannot open the device", "site", "not-proven"),
)
# fmt: on


def find(source: Source, text: str, context: str = "") -> Failure | None:
    """The failure that this text, of this source and in this context, shows; None where it shows none."""
    return next((row for row in FAILURES if row.source == source and row.matches(text, context)), None)


def classify(source: Source, text: str, context: str = "") -> Failure:
    """As ``find``, for a source whose last row matches everything. Raises LookupError: the source has no such row."""
    if (failure := find(source, text, context)) is None:
        raise LookupError(f"no failure of source {source!r} matches {text!r}")
    return failure


def state_cause(failure: Failure, state: JobState, *, where: str = "", by: str = "") -> str:
    """The cause of an end that the scheduler explains. ``where``, ``by``: what is known better than by its state."""
    known = {
        "where": where or (f" on {state.nodes}" if state.nodes else ""),
        "by": by or (f" {state.reason}" if state.reason.startswith("by ") else "; the scheduler does not say by whom"),
        "reason": f" ({state.reason})" if state.reason else "",
    }
    return failure.cause.format(state=state.name, nodes=state.nodes, **known)
