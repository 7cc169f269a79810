"""How a rank's program ended."""

from __future__ import annotations

from runner.diagnosis.failure import Failure

_BY_SIGNAL = "{who} was ended by signal {signal} ({name})"

FAILURES = (
    # The kernel's killer takes a program by SIGKILL, and slurmstepd or srun report it.
    Failure(
        code="program-out-of-memory",
        source="program signal",
        pattern=r"^SIGKILL$",
        context=r"(?i)out of memory|oom.kill",
        cause=_BY_SIGNAL,
        detail="it ran out of memory: the kernel ended it at {rss_mib:.0f} MiB{limit}",
        fix="a smaller batch, fewer data workers, or whole nodes, which have all their memory",
        who="user",
        outcome="failed",
    ),
    Failure(
        code="program-killed",
        source="program signal",
        pattern=r"^SIGKILL$",
        cause=_BY_SIGNAL,
        detail="often out of memory: it had used {rss_mib:.0f} MiB{limit}",
        fix="compare the memory that it used ({maxrss}) with what the job had",
        who="user",
        outcome="failed",
    ),
    # kill-on-bad-exit and time limits end the other ranks so. A SIGKILL of theirs takes the launcher, too: a program
    # that was killed and whose launcher could record it was killed by itself, by the kernel for one.
    Failure(
        code="ended-by-others",
        source="program signal",
        pattern=r"^SIGTERM$",
        cause=_BY_SIGNAL,
        fix="find what stopped first, another rank or the job: its log has the cause",
        who="user",
        outcome="failed",
        consequence="yes",
    ),
    # A rank of the node that has ended may have served the image to this one.
    Failure(
        code="bus-error",
        source="program signal",
        pattern=r"^SIGBUS$",
        cause=_BY_SIGNAL,
        fix="see whether /dev/shm or the disk is full, the image whole (`images verify`), and which rank ended first",
        who="user",
        outcome="failed",
        consequence="perhaps",
    ),
    Failure(
        code="program-signal",
        source="program signal",
        pattern=r"",
        cause=_BY_SIGNAL,
        fix="see the rank's log, which `logs` prints",
        who="user",
        outcome="failed",
    ),
    # EIO is no program's fault. A damaged image shows so where it is mounted, not unpacked (squashfuse).
    Failure(
        code="program-read-error",
        source="program exit code",
        pattern=r"",
        context=r"Input/output error",
        cause="{who} exited with code {code}: it met an input/output error, of its image or of a file system",
        fix="`images verify` tells whether the image is whole; else report the node and the file to the site",
        who="user",
        outcome="infrastructure",
    ),
    # env(1) of a first line `#!/usr/bin/env python3`, and bash, which shows a carriage return so.
    Failure(
        code="script-lines-with-crlf",
        source="program exit code",
        pattern=r"",
        context=r"\\r['’]+: (No such file or directory|command not found)",
        cause="{who} exited with code {code}",
        detail="its script has Windows line ends (CRLF)",
        fix="convert it: sed -i 's/\\r$//' SCRIPT",
        who="user",
        outcome="failed",
    ),
    # The launcher itself was started by python3.
    Failure(
        code="python-not-in-path",
        source="program exit code",
        pattern=r"^127$",
        context=r"\bpython: (command )?not found|\benv: ['‘]python['’]: No such file or directory",
        cause="{who} exited with code {code}",
        detail="{place} has python3, not python",
        fix="call python3 in its script",
        who="user",
        outcome="failed",
    ),
    Failure(
        code="interpreter-not-in-path",
        source="program exit code",
        pattern=r"^127$",
        context=r"\benv: ['‘][^'’]+['’]: No such file or directory",
        cause="{who} exited with code {code}",
        detail="the interpreter that its script's first line names is not there",
        fix="let the script's first line name an interpreter that is in the image (#!/usr/bin/env python3)",
        who="user",
        outcome="failed",
    ),
    Failure(
        code="program-exit-code",
        source="program exit code",
        pattern=r"",
        cause="{who} exited with code {code}",
        fix="see the rank's log, which `logs` prints",
        who="user",
        outcome="failed",
    ),
)
