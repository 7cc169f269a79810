"""The catalogue of failures: every row is reached by an example of its own."""

from __future__ import annotations

import re

import pytest

from runner.diagnosis.catalogue import FAILURES, Failure, Source, classify, find
from runner.model.exit_codes import codes
from tests.support.cases import for_each

# (text, context) that shows the failure: one for each row, or a new row fails here. Those of launchers are their codes.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "node-failed": ("NODE_FAIL", "NodeDown"),
    "node-not-booted": ("BOOT_FAIL",),
    "preempted": ("PREEMPTED",),
    "job-not-launched": ("LAUNCH_FAILED",),
    "allocation-revoked": ("REVOKED",),
    "script-not-started": ("FAILED", "JobLaunchFailure"),
    "script-killed": ("FAILED", "JobLaunchFailure begun"),
    "time-limit": ("TIMEOUT", "TimeLimit"),
    "deadline-missed": ("DEADLINE",),
    "job-out-of-memory": ("OUT_OF_MEMORY", "OutOfMemory"),
    "job-cancelled": ("CANCELLED", "by uid 0"),
    "job-killed": ("KILLED",),
    "job-unknown": ("missing", "unknown"),
    "state-unexplained": ("SPECIAL_EXIT",),
    "script-in-container": ("70",),
    "node-not-ready": ("71",),
    "no-run-directory": ("72",),
    "anothers-directory": ("82",),
    "wrong-nodes": ("73",),
    "not-loaded": ("74",),
    "run-directory-not-written": ("116",),
    "srun-killed": ("137", "lib/common.sh: line 85: 35933 Killed                  srun --mpi=none --nodes=2"),
    "srun-plugin-not-loaded": ("1", "srun: error: Plug-in initialization failed"),
    "job-exit-code": ("9",),
    "disk-full": ("full",),
    "python-not-found": ("program-not-found", "python: No such file or directory"),
    "script-with-crlf": ("program-not-found",
        "./a: No such file or directory: it has Windows line ends (CRLF): its first"),
    "interpreter-not-found": ("program-not-found", "./a: No such file: its interpreter is not there: its first"),
    "launcher-error": ("of-a-later-launcher",),
    "token-of-another-job": ("differ",),
    "program-out-of-memory": ("SIGKILL", "slurmstepd: error: Detected 1 oom_kill event"),
    "ended-by-others": ("SIGTERM",),
    "bus-error": ("SIGBUS",),
    "program-killed": ("SIGKILL", "Killed"),
    "program-signal": ("SIGSEGV", "Segmentation fault"),
    "script-lines-with-crlf": ("127", "/usr/bin/env: ‘python3\\r’: No such file or directory"),
    "python-not-in-path": ("127", "train.sh: line 2: python: command not found"),
    "interpreter-not-in-path": ("127", "/usr/bin/env: 'pythn': No such file or directory"),
    "program-exit-code": ("3",),
    "logs-not-writable": ("launch failed: Slurmd could not connect IO",),
    "rank-killed": ("Killed",),
    "rank-stopped": ("Terminated",),
    "rank-bus-error": ("Bus error",),
    "rank-lost-its-image": ("Exited with exit code 127",
        "/bin/bash: error while loading shared libraries: libtinfo.so.6: cannot open it: Error 107"),
    "rank-left-no-record": ("Exited with exit code 3",),
    "plugin-not-loaded": ("launch failed: Plugin initialization failed",),
    # As seen in public threads, and provoked with torch 2.13 (tests/unit/diagnosis/test_logs.py).
    "gpu-out-of-memory": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.26 GiB. GPU 0 has a total",),
    "gpu-hardware": ("RuntimeError: CUDA error: uncorrectable ECC error encountered",),
    "collective-timeout": ("[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600061 milliseconds",),
    "module-not-found": ("/usr/bin/python3: No module named torch.distributed",),
    "nccl-not-built-in": ("[rank1]: RuntimeError: Distributed package doesn't have NCCL built in",),
    "no-process-group": ("ValueError: Default process group has not been initialized, please make sure to call "
        "init_process_group.",),
    "file-not-found": ("FileNotFoundError: [Errno 2] No such file or directory: '/home/u/my data/x.pt'",),
    "library-not-found": ("OSError: libcudart.so.12: cannot open shared object file: No such file or directory",),
    "wrong-arguments": ("train.py: error: unrecognized arguments: --lrr 3",),
    "quota-exceeded": ("OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache/huggingface/x y'",),
    "shared-memory-full": ("RuntimeError: unable to write to file </torch_8_6_0>: No space left on device (28)",),
    "worker-killed": ("RuntimeError: DataLoader worker (pid 31653) is killed by signal: Killed. ",),
    "address-in-use": ("The server socket has failed to bind to 0.0.0.0:29500 (errno: 98 - Address already in use)",),
    "no-space-left": ("OSError: [Errno 28] No space left on device: 'out/model.pt'",),
    "gpu-xid-hardware": ("79",),
    "gpu-xid": ("31",),
    "program-read-error": ("1", "OSError: [Errno 5] Input/output error: '/opt/lib.so'"),
    "no-user-namespace": ("enroot-nsenter: failed to create user namespace: No space left on device",),
    "stage-image-differs": ("dgx01: cannot stage the image: /i.sqsh is not what was converted: its SHA-256 differs",),
    "stage-failed": ("dgx01: cannot stage the image: no room: 9 bytes needed, 1 free in /tmp",),
    "pyxis-not-loaded": ("srun: unrecognized option '--container-image=/i.sqsh'",),
    "runtime-not-on-node": ("bash: line 1: exec: enroot: not found",),
    "no-python-in-image": ("bash: line 1: exec: python3: not found",),
    "python-does-not-run": ("python3: error while loading shared libraries: libz.so.1: cannot open shared object file: "
        "No such file or directory", "some"),
    "image-needs-newer-driver": ("pyxis:     nvidia-container-cli: requirement error: unsatisfied condition: "
        "cuda>=12.8, please update your driver to a newer version, or use an earlier cuda container",),
    "gpu-hook-failed": ("pyxis:     [ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1",),
    "fabric-hook-failed": ("pyxis:     [ERROR] /etc/enroot/hooks.d/99-mellanox.sh exited with return code 1",),
    "own-hook-failed": ("pyxis:     [ERROR] /root/.config/enroot/hooks.d/10-mine.sh exited with return code 3",),
    "hook-failed": ("pyxis:     [ERROR] /etc/enroot/hooks.d/50-slurm-pmi.sh exited with return code 1",),
    "runtime-tool-missing": ("pyxis:     [ERROR] Command not found: unsquashfs",),
    "mount-source-missing": ("pyxis: --container-mounts: source path does not exist: /data/in",),
    "mount-target-of-another-kind": (
        "enroot-mount: failed to mount: /data/a file at /var/tmp/data/pyxis_12.1/usr/lib: Not a directory",
    ),
    "mount-failed": (
        "enroot-mount: failed to mount: /data/in at /var/tmp/data/runner-92/data: No such file or directory",
        "some",
    ),
    "run-directory-not-on-node": ("[ERROR] No such file or directory: /runs/my run/enroot.rc",),
    "run-directory-read-only": ("/r/lib/keeper.sh: line 8: logs/node-dgx02.log: Read-only file system",),
    "container-gone": ("[ERROR] No such file or directory: /var/tmp/data/runner-92",),
    "image-gone": ("ch-run[6]: error: can't stat: /my image.sqsh: No such file or directory", "none gone"),
    "image-missing": ("pyxis:     [ERROR] No such file or directory: /lustre/my image.sqsh", "some"),
    "container-name-taken": ("[ERROR] File already exists: /home/u/data/runner-92",),
    "no-room-for-image": ("pyxis:     Write on output file failed because No space left on device",),
    "data-path-not-writable": ("pyxis:     mkdir: cannot create directory '/run/enroot': Permission denied",),
    "no-fuse": ("[WARN] fuse: device not found, try 'modprobe fuse' first",),
    "image-damaged": ("pyxis:     gzip uncompress failed with error code -5", "some"),
    "image-with-devices": ("pyxis:     create_inode: could not create character device /data/pyxis_3.0/null, "
        "because you're not superuser!",),
    "image-not-mounted": ("pyxis:     [ERROR] Failed to mount: /i.sqsh",),
    "unpacking-killed": ("pyxis: child 6731 failed with error code: 137",),
    "image-not-executable": ("pyxis:     enroot-switchroot: failed to execute: /bin/sh: Permission denied",),
    "no-shell-in-image": ("pyxis:     enroot-switchroot: failed to execute: /bin/sh: Exec format error",),
    "tmp-not-writable": ("pyxis: couldn't create enroot start configuration script",),
    "no-working-directory": ("pyxis: couldn't chdir to /results/recipe: No such file or directory", "some"),
    "start-script-failed": ("pyxis:     /etc/rc: 3: cd: can't cd to /work",),
    "enroot-silent": ("Enroot ended without a message", "some"),
    "image-lost": ("ch-run[7]: error: can't execve(2): /bin/bash: Transport endpoint is not connected",),
    "runtime-failed": ("pyxis: couldn't join mount namespace: Operation not permitted", "some"),
    "container-not-started": ("FATAL: container creation failed: no such device",),
    "nccl-on-sockets": ("Socket",),
    "libfabric-on-sockets": ("libfabric tcp;ofi_rxm",),
}  # fmt: skip


def test_every_row_has_a_code_of_its_own() -> None:
    assert len({failure.code for failure in FAILURES}) == len(FAILURES)
    assert set(EXAMPLES) <= {failure.code for failure in FAILURES}


@for_each(FAILURES)
def test_a_row_is_reached_by_its_example_and_hidden_by_no_row_before_it(failure: Failure) -> None:
    if failure.code not in EXAMPLES:
        assert failure.source == "launcher error", "it has no example in EXAMPLES"
    text, *context = EXAMPLES.get(failure.code, (failure.code,))
    context = context or (["none"] if failure.source == "container log" else [])
    assert classify(failure.source, text, *context) is failure


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("scheduler state", "COMPLETED"), ("scheduler state", "FAILED"), ("unexplained state", "COMPLETED"),
        ("unexplained state", ""), ("end marker", "present"), ("batch script", "0"), ("batch script", "171"),
        ("run directory", ""), ("rank tokens", "agree"), ("NCCL log", "IB"),
        ("container log", "pyxis: importing docker image"), ("container log", "slurmstepd: error: nothing"),
        ("container log", "pyxis: child 12 failed with error code: 1"), ("container log", "my container is full"),
        ("container log", "pyxis: container was not started successfully by another task"),
        ("container log", "python3: error while loading shared libraries: libz.so.1: cannot open: Error 107"),
        ("program log", "ValueError: No such module"), ("program log", "DataLoader worker 3 is slow"),
    ],
)  # fmt: skip
def test_what_is_no_failure_matches_no_row(source: Source, text: str) -> None:
    assert find(source, text) is None
    with pytest.raises(LookupError, match=re.escape(f"no failure of source {source!r} matches {text!r}")):
        classify(source, text)


def test_every_exit_code_of_the_launcher_has_a_row() -> None:
    assert {entry.name for entry in codes("launcher").values()} <= {failure.code for failure in FAILURES}
