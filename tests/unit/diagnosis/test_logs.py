"""What logs tell: of containers, as Pyxis 0.24, Enroot 4.1.2 and Slurm 22.05 write; of failures; of NCCL's network."""

from __future__ import annotations

from typing import Any

import pytest

from runner.diagnosis import logs
from runner.diagnosis.logs import NcclLog, before_end, parse, script_line, telling, together
from runner.model.request import transport_of

NODE1, NODE2 = "slurmstepd-dgx01: error: ", "slurmstepd-dgx02: error: "
PLUGIN = "spank: required plugin spank_pyxis.so: task_init() failed with rc=-1"


CREATE = "pyxis: failed to create container filesystem for image: /i.sqsh"


def pyxis(node: str, *enroot: str, first: str = "pyxis: child 1032 failed with error code: 1") -> list[str]:
    """A rank's log, with what Enroot said."""
    lines = [
        first,
        CREATE,
        "pyxis: printing enroot log file:",
        *(f"pyxis:     {line}" for line in enroot),
        PLUGIN,
        "Failed to invoke spank plugin stack",
    ]
    return [node + line for line in lines]


def code(lines: list[str], *, some_started: bool = False) -> str:
    fault = logs.container_fault(lines, some_started=some_started)
    return fault.failure.code if fault else ""


UNPACKING = "[INFO] Extracting squashfs filesystem..."
STOPPED = "pyxis: child 1026 terminated with signal 15"
CANCELLED_1 = f"{NODE1}*** STEP 7.0 ON dgx01 CANCELLED AT 2026-11-22T02:06:49 ***"
CANCELLED_2 = f"{NODE2}*** STEP 7.0 ON dgx02 CANCELLED AT 2026-11-22T02:06:49 ***"
# Lines -> the code of the cause; empty for none.
FAULTS: dict[str, tuple[list[str], str]] = {
    "ended by others": ([CANCELLED_1, *pyxis(NODE1, UNPACKING, first=STOPPED)], ""),
    "srun was killed": ([NODE1 + "*** STEP 7.0 ON dgx01 FAILED (non-zero exit code or other failure mode) ***",
        NODE1 + "pyxis: container exited too soon", *pyxis(NODE1)], ""),
    "no bash, by bare Enroot": (["/proc/self/fd/3: 1: exec: /bin/bash: not found"], "no-shell-in-image"),
    "silent, as others ended it": ([CANCELLED_1, NODE1 + "pyxis: container exited too soon", *pyxis(NODE1)], ""),
    "stopped": (pyxis(NODE1, UNPACKING, first=STOPPED), ""),
    "failed before the step was ended": ([*pyxis(NODE2, "[ERROR] Invalid image format: /i.sqsh"), CANCELLED_2],
        "image-damaged"),
    "waited for the one that unpacks": ([NODE2 + "pyxis: container was not started successfully by another task",
        NODE2 + PLUGIN, NODE2 + "Failed to invoke spank plugin stack"], ""),
    # Pyxis shows an empty log where it could not start Enroot at all.
    "silent": (pyxis(NODE2), "enroot-silent"),
    "silent as it starts": (pyxis(NODE2, first="pyxis: container start failed with error code: 3"),
        "start-script-failed"),
    "silent to the end": (pyxis(NODE2)[:3], "enroot-silent"),
    # A container that was running: another node's failure ended it, and the log may not say so.
    "silent, as it was stopped": ([NODE1 + "pyxis: container exited too soon", *pyxis(NODE1)[2:]], "runtime-failed"),
    "only unpacks": (pyxis(NODE2, UNPACKING), "runtime-failed"),
    # As seen with images whose python3 is of another processor, and that have /bin/sh alone.
    "a Python of another processor": ([f"/results/lib/rank.sh: line 18: /usr/bin/python3: {why}" for why in
        ("cannot execute binary file: Exec format error", "Success")], "python-does-not-run"),
    "no bash": ([NODE2 + "execve(): /bin/bash: No such file or directory"], "no-shell-in-image"),
    "an image that is gone": (["ch-run[7]: error: can't stat: /my image.sqfs: No such file or directory (core.c:474)"],
        "image-missing"),
    "an image that Podman does not have": (["Error: nvcr.io/nvidia/torch:1: image not known"], "image-missing"),
    "a node without NVIDIA's CDI file": (["Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"],
        "runtime-failed"),
    # A runtime's own line about its container.
    **{line: ([line], "container-not-started") for line in ("ERROR: cannot open container file",
        "FATAL:   container creation failed: no such device",
        "\x1b[31mFATAL:  \x1b[0m while opening container file /i.sif", "podman-hpc: no container of this name",
        "Error: OCI runtime error: crun: creating container: operation not permitted",
        'time="2026-11-22T06:00:00Z" level=error msg="joining the container"', "shifter: cannot set up the container",
        "[ERROR] The container is busy")},
    # What a site greets with.
    **{line: ([line], "") for line in ("Welcome! Containers: see https://docs.example.org/containers",
        "* Enroot and Pyxis are now 4.1 and 0.24: your containers stay", "Loading container/1.2",
        "no errors in container.log")},
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_cause_is_what_a_runtime_says_before_others_end_it(name: str) -> None:
    lines, expected = FAULTS[name]
    assert code(lines) == expected
    # A program's own words are no cause once ranks have started.
    assert expected != "container-not-started" or code(lines, some_started=True) == ""


UNKNOWN = "enroot-switchroot: failed to change directory: /root: No such file or directory"
MISSING = "[ERROR] No such file or directory: /i.sqsh"
TMPFS = "enroot-mount: failed to mount: tmpfs at /data/pyxis_5.0/sys/class/infiniband: No such file or directory"
HOOK = "[ERROR] /etc/enroot/hooks.d/99-mellanox.sh exited with return code 1"
DEMAND = (
    "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer "
    "version, or use an earlier cuda container"
)
SOURCE = "pyxis: --container-mounts: source path does not exist: /data/in put"


@pytest.mark.parametrize(
    ("lines", "failure", "line", "value"),
    [
        (pyxis(NODE2, MISSING), "image-missing", MISSING, ("path", "/i.sqsh")),
        (pyxis(NODE2, TMPFS, HOOK), "fabric-hook-failed", HOOK, ("before", TMPFS)),
        # The image's demand of libnvidia-container, and no broken hook.
        (pyxis(NODE2, DEMAND, HOOK.replace("99-mellanox", "98-nvidia")), "image-needs-newer-driver", DEMAND,
            ("what", "cuda>=12.8")),
        # Of what the catalogue does not know, the first line that tells no progress.
        (pyxis(NODE2, UNPACKING, "Parallel unsquashfs: Using 1 processor", "1126 inodes (1301 blocks) to write",
            "", "[=====|] 2427/2427 100%", "created 1121 files", UNKNOWN),
            "runtime-failed", UNKNOWN, ("before", CREATE)),
        # It outweighs a good unpacking.
        (pyxis(NODE2, UNPACKING, "created 0 hardlinks", first=SOURCE), "mount-source-missing", SOURCE,
            ("path", "/data/in put")),
    ],
)  # fmt: skip
def test_the_cause_has_its_line_its_node_and_what_stands_in_it(
    lines: list[str], failure: str, line: str, value: tuple[str, str]
) -> None:
    fault = logs.container_fault(lines, some_started=failure == "mount-source-missing")
    assert fault is not None
    assert (fault.failure.code, fault.node, fault.line) == (failure, "dgx02", line)
    assert value in fault.values.items()


@pytest.mark.parametrize(
    ("enroot", "expected"),
    [
        (("Write on output file failed because No space left on device", "FATAL ERROR: writer: failed to write file "
          "/data/pyxis_2.0/a"), "no-room-for-image"),
        (("FATAL ERROR: write_file: failed to create file /data/p/a b, because No space left on device",),
         "no-room-for-image"),
        (("FATAL ERROR: dir_scan: failed to make directory /data/pyxis_3.0, because Read-only file system",),
         "data-path-not-writable"),
        (("mkdir: cannot create directory \u2018/var/data\u2019: Permission denied",), "data-path-not-writable"),
        (("mkdir: cannot create directory '/var/tmp/enroot-data-0': File exists",), "data-path-not-writable"),
        (("gzip uncompress failed with error code -5", "FATAL ERROR: writer: failed to read/uncompress file /data/p/a"),
         "image-damaged"),
        (("Read on filesystem failed because EOF", "read_id_table: failed to read id index table",
          "FATAL ERROR: File system corruption detected"), "image-damaged"),
        (("get_metadata: failed to read block", "FATAL ERROR: read_inode: failed to read inode 17858102:31"),
         "image-damaged"),
        (("/usr/lib/enroot/runtime.sh: line 391:  6770 Killed                  unsquashfs -d",), "unpacking-killed"),
        (("enroot-switchroot: failed to execute: /bin/sh: No such file or directory",), "no-shell-in-image"),
        (("[ERROR] Command not found: unsquashfs",), "runtime-tool-missing"),
        (("[WARN] Something went wrong trying to read the squashfs image.", "[ERROR] Failed to mount: /i.sqsh"),
         "image-damaged"),
        (("[WARN] fuse: device not found, try 'modprobe fuse' first", "[ERROR] Failed to mount: /i.sqsh"), "no-fuse"),
    ],
)  # fmt: skip
def test_causes_by_enroots_own_lines(enroot: tuple[str, ...], expected: str) -> None:
    assert code(pyxis(NODE2, *enroot)) == expected
    assert code(list(enroot)) == expected  # without Pyxis
    assert code(["slurmstepd: error: " + line for line in enroot], some_started=True) == expected


FAILED = "srun: error: dgx01: task 3: Exited with exit code 1"
CANCELLED = "slurmstepd: error: *** JOB 5 ON dgx01 CANCELLED AT 2026-11-21T20:53:49 ***"
LOST = (
    "Exception ignored in: <finalize object at 0x7f>",
    "Traceback (most recent call last):",
    '  File "/usr/lib/python3.11/weakref.py", line 590, in __call__',
    "OSError: [Errno 107] Transport endpoint is not connected",
)


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        ((FAILED, "srun: Terminating StepId=5.0", CANCELLED, "srun: error: dgx01: task 0: Bus error"), FAILED),
        ((CANCELLED, "srun: forcing job termination", "srun: error: dgx01: tasks 0-7: Bus error"), CANCELLED),
        ((CANCELLED, "srun: error: dgx01: task 0: Exited with exit code 1"), CANCELLED),
        (("srun: error: dgx01: task 0: Bus error", "srun: Terminating StepId=5.0"),
            "srun: error: dgx01: task 0: Bus error"),
        ((CANCELLED, "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0"),
            "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0"),
        (("job.sh: line 107: 30422 Bus error   ( exec ch-run )", "fatal: planted"), "fatal: planted"),
        (("fatal: planted", "job.sh: line 107: 30422 Bus error   ( exec ch-run )"), "fatal: planted"),
        ((CANCELLED, "srun: error: dgx01: task 3: Aborted", "srun: error: dgx02: tasks 6-7: Bus error"), CANCELLED),
        ((CANCELLED, "srun: error: dgx01: task 3: Out Of Memory"), "srun: error: dgx01: task 3: Out Of Memory"),
        (("script: line 37: module: command not found",), "script: line 37: module: command not found"),
        (("hello",), ""),
        ((), ""),
    ],
)  # fmt: skip
def test_of_the_scripts_log_what_came_before_the_end_counts(lines: tuple[str, ...], quoted: str) -> None:
    assert script_line(lines) == quoted


STEP = "slurmstepd-dgx01: error: *** STEP 9.1 ON dgx01 CANCELLED AT 2026-11-22T09:55:25 ***"
ERROR = "ValueError: planted"


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        *((("epoch 1", error, "cleaning up", *lost, ""), error)
            for error in (ERROR, "my.module.CustomError: x", "main.c:7: fatal: no GPU")
            for lost in (LOST, LOST[-1:], ("bash: Bus error",))),
        # Without such an end, or without another error, it is quoted as ever.
        ((), ""), ((ERROR,), ""), (("epoch 1", *LOST), ""), (("ValueError: x", *LOST, "after it"), ""),
        # What Slurm writes of the end into a rank's log.
        ((ERROR, STEP), ERROR), ((ERROR, *LOST, STEP, STEP), ERROR), (("epoch 1", *LOST, STEP), LOST[-1]),
        ((STEP,), ""), ((STEP, "ValueError: while it ended"), ""),
    ],
)  # fmt: skip
def test_of_a_ranks_log_the_error_before_its_end_counts(lines: tuple[str, ...], quoted: str) -> None:
    assert before_end(lines) == quoted


# Of torch 2.13's torchrun, whose second rank failed; shortened.
CLOSED = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:17310. This is typically caused by"


def of_rank(rank: int, *exceptions: str) -> list[str]:
    """A traceback for each exception, those before the last as causes of the next."""
    lines: list[str] = []
    for exception in exceptions:
        chain = ["", "The above exception was the direct cause of the following exception:", ""] if lines else []
        lines += [*chain, "Traceback (most recent call last):", '  File "my $train.py", line 8, in <module>',
            "    step()", "    ^^^^^^", exception]  # fmt: skip
    return [f"[rank{rank}]: {line}" for line in lines]


def by_torchrun(*lines: str, traceback: str = "To enable traceback see: https://pytorch.org/docs") -> list[str]:
    return [
        *lines,
        "W1123 20:03:35.725000 30771 torch/distributed/elastic/api.py:1028] Sending process 9 closing signal SIGTERM",
        *(line.removeprefix("[rank0]: ") for line in of_rank(0, "torch.distributed.elastic.ChildFailedError: ")),
        "=" * 60, "train.py FAILED", "-" * 60, "Failures:", "[1]:", "  rank      : 0 (local_rank: 0)",
        "  exitcode  : -15 (pid: 30809)  (SIGTERM)", "  traceback : Signal 15 (SIGTERM) received by PID 30809",
        "-" * 60, "Root Cause (first observed failure):", "[0]:", "  rank      : 1 (local_rank: 1)",
        "  exitcode  : 1 (pid: 30810) ", "  error_file: <N/A>", f"  traceback : {traceback}", "=" * 60,
    ]  # fmt: skip


WORKER = "RuntimeError: DataLoader worker (pid 31988) is killed by signal: Bus error. It is possible"
WATCHDOG = (
    "[rank0]:[E1206 18:44:12.7 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: W"
)


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        (by_torchrun(*of_rank(1, "ValueError: a 'b' $c"), *of_rank(0, CLOSED)), "[rank1]: ValueError: a 'b' $c"),
        # A rank that came later has another exception of its own.
        (by_torchrun(*of_rank(1, "ValueError: x"), *of_rank(0, "KeyError: 'y'")), "[rank1]: ValueError: x"),
        (by_torchrun(*of_rank(0, CLOSED), traceback="Signal 9 (SIGKILL) received by PID 31"),
            "traceback : Signal 9 (SIGKILL) received by PID 31"),
        (by_torchrun(WATCHDOG, traceback="Signal 6 (SIGABRT) received by PID 31"), WATCHDOG),
        ([*of_rank(1, "ValueError: x"), *of_rank(0, CLOSED)], "[rank1]: ValueError: x"),
        (of_rank(0, CLOSED), f"[rank0]: {CLOSED}"),
        ([*of_rank(0, WORKER, "RuntimeError: DataLoader worker (pid(s) 31988) exited unexpectedly"), "wandb: bye"],
            f"[rank0]: {WORKER}"),
        # One that was caught and logged before is not the cause, whatever the catalogue knows of it.
        ([*of_rank(0, "ModuleNotFoundError: No module named 'apex'"), *of_rank(0, "KeyError: 'lr'")],
            "[rank0]: KeyError: 'lr'"),
        (of_rank(0, "KeyError: 'lr'", "RuntimeError: no rate"), "[rank0]: RuntimeError: no rate"),
        ([*of_rank(0, "KeyError: 'lr'"), *LOST], "[rank0]: KeyError: 'lr'"),
        (["usage: t.py [-h]", "t.py: error: unrecognized arguments: --lrr", "wandb: bye", "====="],
            "t.py: error: unrecognized arguments: --lrr"),
        (["[W] error: no tensorboard", "train.sh: line 2: python: command not found"],
            "train.sh: line 2: python: command not found"),
        (["Fatal Python error: Segmentation fault", "", "Current thread 0x0 (most recent call first):", '  File "t"'],
            "Fatal Python error: Segmentation fault"),
        (['  File "t.py", line 1', "    def f(:", "SyntaxError: invalid syntax"], "SyntaxError: invalid syntax"),
        # Colours: of rich, of Python 3.13, of wandb.
        (["\x1b[31m╭─\x1b[0m \x1b[1mTraceback \x1b[0m\x1b[2m(most recent call last)\x1b[0m", "\x1b[31m│\x1b[0m fatal:",
            "\x1b[1;91mKeyError: \x1b[0m\x1b[32m'lr'\x1b[0m", "\x1b[34mwandb\x1b[0m: bye"], "KeyError: 'lr'"),
        # What fails as a program ends, in a thread, or because another rank is gone.
        *(([*of_rank(0, "KeyError: 'lr'"), said, *of_rank(0, "EOFError")], "[rank0]: KeyError: 'lr'")
            for said in ("Error in atexit._run_exitfuncs:", "Exception in thread Thread-3 (_pin_memory_loop):")),
        (["Exception in thread Thread-3:", *of_rank(0, "EOFError")], "[rank0]: EOFError"),
        *(([*of_rank(1, "KeyError: 'lr'"), *of_rank(0, f"RuntimeError: {said}")], "[rank1]: KeyError: 'lr'")
            for said in ("NCCL communicator was aborted on rank 0.", "processes exited with non-zero status")),
        ([*of_rank(0, "torch.distributed.DistBackendError: NCCL error in: x.cpp:77, unhandled system error"),
            "[rank0]: ncclSystemError: x", "[rank0]: Last error:", "[rank0]: Duplicate GPU"], "Duplicate GPU"),
        (["terminate", "  what():  no eth9", "Fatal Python error: Aborted", "", "Thread 0x7f"], "what():  no eth9"),
        (["WARNING: No module named 'apex'", "t.py:1: UserWarning: x not found", "cannot go on"], "cannot go on"),
        (["In 'config': Could not find 'model/x'", "Search path:", "Set the environment variable HYDRA_FULL_ERROR=1"],
            "In 'config': Could not find 'model/x'"),
        (["[n1:7] *** Process received signal ***", "[n1:7] Signal: Segmentation fault (11)", "[n1:7] *** End ***"],
            "[n1:7] Signal: Segmentation fault (11)"),
        (["epoch 1", "cannot go on", "wandb: bye", "====", ""], "cannot go on"), (["===="], "===="), ([], ""),
    ],
)  # fmt: skip
def test_the_telling_line_of_a_ranks_log(lines: list[str], quoted: str) -> None:
    assert telling(lines) == quoted


# 2.30.7: src/init.cc (Using network), src/plugin/net.cc (Initialized, Assigned), src/transport/net_ib/init.cc,
# src/transport/net.cc, p2p.cc, nvls.cc. The prefix "host:pid:tid [device] NCCL INFO": src/debug.cc.
INFINIBAND = """\
dgx01:311:342 [0] NCCL INFO NCCL_DEBUG_FILE set by environment
dgx01:311:342 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_6:1/IB [RO]; OOB ib0:10.0.0.1<0>
dgx01:311:342 [0] NCCL INFO Initialized NET plugin IB
dgx01:311:342 [0] NCCL INFO Assigned NET plugin IB to comm
dgx01:311:342 [0] NCCL INFO Using network IB
dgx01:311:342 [0] NCCL INFO NVLS multicast support is not available on dev 0
dgx01:311:342 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA
dgx01:311:342 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
dgx01:311:342 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1(3)/GDRDMA(PCI)/Shared
dgx01:311:342 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
dgx01:311:342 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/IPC
dgx01:311:342 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/direct pointer/read
dgx01:311:342 [0] NCCL INFO Connected all rings
"""
# 2.12.12: src/transport/net.cc (bus ids in the place of indexes), src/transport/shm.cc of 2.18.5.
WITHOUT_GDR = """\
n1:9:9 [1] NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE ; OOB eth0:10.1.0.1<0>
n1:9:9 [1] NCCL INFO Using network IBext_v8
n1:9:9 [1] NCCL INFO Channel 00/0 : 1[4f000] -> 2[4f000] [send] via NET/IBext_v8/0
n1:9:9 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct
n1:9:9 [1] NCCL INFO Channel 01 : 1[1] -> 0[0] via SHM/direct
"""
# 2.30.7: the same; the name of aws-ofi-nccl before 1.15 holds a blank.
SLINGSHOT = """\
nid1:7:8 [2] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.9.1-aws
nid1:7:8 [2] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)
nid1:7:8 [2] NCCL INFO Using network AWS Libfabric
nid1:7:8 [2] NCCL INFO Channel 03/0 : 2[2] -> 6[2] [send] via NET/AWS Libfabric/1/GDRDMA
"""
# 2.30.7: src/transport/coll_net.cc, nvls.cc.
IN_THE_NETWORK = """\
h1:5:6 [0] NCCL INFO CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA
h1:5:6 [0] NCCL INFO Connected Collnet Chains 0
h1:5:6 [0] NCCL INFO NVLS multicast support is available on dev 0
h1:5:6 [0] NCCL INFO Connected NVLS tree
"""
# 2.21.5: src/transport/net_ib.cc, dual-port adapters that are used as one.
MERGED = "h:1:2 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} ; OOB ib0:10.0.0.1<0>"


def log_of(*networks: str, adapters: str = "", providers: str = "", processes: int = 1, **fields: Any) -> NcclLog:
    fields |= {"adapters": frozenset(adapters.split()), "providers": frozenset(providers.split())}
    return NcclLog(frozenset(networks), processes=processes, **fields)


@pytest.mark.parametrize(
    ("text", "log", "sentence"),
    [
        (INFINIBAND, log_of("IB", adapters="mlx5_0:1 mlx5_1:1 mlx5_6:1", with_gdr=2, p2p=3),
            "GPUDirect RDMA on 2 of 2 connections; inside nodes 3 connections from GPU to GPU, 0 through the host's "
            "memory; ports mlx5_0:1, mlx5_1:1, mlx5_6:1"),
        (WITHOUT_GDR, log_of("IBext_v8", adapters="mlx5_2:1", without_gdr=1, shm=2),
            "GPUDirect RDMA on 0 of 1 connection; inside nodes 0 connections from GPU to GPU, 2 through the host's "
            "memory; ports mlx5_2:1"),
        (SLINGSHOT, log_of("AWS Libfabric", providers="cxi", with_gdr=1),
            "GPUDirect RDMA on 1 of 1 connection; libfabric's provider cxi"),
        (IN_THE_NETWORK, log_of(with_gdr=1, nvls=True, collnet=True, processes=0),
            "GPUDirect RDMA on 1 of 1 connection; NVLink SHARP; reductions in the network (CollNet)"),
        # aws-ofi-nccl 1.1, 1.14 and 1.17
        *((f"n1:7:8 [2] NCCL INFO NET/OFI Selected {line}\n", log_of(providers=provider, processes=0),
            f"libfabric's provider {provider}") for line, provider in (("Provider is efa", "efa"),
            ("Provider is tcp;ofi_rxm (found 1 nics)", "tcp;ofi_rxm"),
            ("provider is efa, fabric is efa-direct (found 16 nics)", "efa"))),
        (MERGED, log_of(adapters="mlx5_0:1 mlx5_1:1", processes=0), "ports mlx5_0:1, mlx5_1:1"),
        ("Using network IB\nvia P2P/IPC\n\x00\xff garbage\nNCCL INFO\n", NcclLog(), ""),  # lines of programs
    ],
)  # fmt: skip
def test_a_log_says_which_networks_ports_and_ways_were_used(text: str, log: NcclLog, sentence: str) -> None:
    assert parse(text) == log
    assert log.sentence == sentence


# Lines of public logs: what NCCL says that it uses -> the networks between nodes that it used.
SHARP_PLUGIN = "NET/Plugin: Loaded net plugin NCCL RDMA Plugin", "Plugin Path : /opt/hpcx/lib/libnccl-net.so"
OF_VERSIONS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "2.18, H100": (("Using network IBext", "Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IBext/0/GDRDMA"), {"IBext"}),
    "2.20, GH200": (("P2P plugin IBext_v8", "NET/IB : Using [0]mlx5_2:1/IB/SHARP [RO]; OOB bond0:10.0.0.1<0>",
        "Using non-device net plugin version 0", "Using network IBext_v8"), {"IBext_v8"}),
    "2.21, A100": (("Using network IB", "Channel 03/0 : 5[5] -> 12[4] [send] via NET/IB/3"), {"IB"}),
    "2.22, GB200": (("Using network IB", "MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 2",
        "Channel 00/0 : 4[0] -> 3[3] via P2P/MNNVL"), {"MNNVL"}),
    "2.22, GB200, two of its domains": (("Using network IB", "Channel 00/0 : 4[0] -> 3[3] via P2P/MNNVL/read",
        "Channel 00/0 : 4[0] -> 72[0] [send] via NET/IB/0/GDRDMA"), {"IB", "MNNVL"}),
    "2.26, H100": ((f"{SHARP_PLUGIN[0]} v8 (v8)", SHARP_PLUGIN[1], "P2P plugin v8 IBext_v8",
        "Using network NCCL RDMA Plugin v8"), {"IBext_v8"}),
    "2.26, H20": (("P2P plugin IBext", "Using network NCCL RDMA Plugin v6",
        "Channel 01/1 : 3[0] -> 0[1] [send] via NET/NCCL RDMA Plugin v6/0(2)/GDRDMA/Shared"), {"IBext"}),
    "2.26, HPC-X by UCX": (("P2P plugin v8 UCX", "Using network NCCL RDMA Plugin v8"), {"UCX"}),
    "2.26, H200 by EFA": (("NET/OFI Selected Provider is efa (found 16 nics)", "Using network Libfabric"),
        {"Libfabric"}),
    "2.27, EFA's plugin fails": (("NET/IB : Using [RO]; OOB eth0:10.0.4.51<0>", "Initialized NET plugin Socket",
        "Assigned NET plugin Socket to comm", "Using network Socket"), {"Socket"}),
    "2.28, B300": ((f"{SHARP_PLUGIN[0]} v10 (v10)", "P2P plugin v10 IBext_v10", "Using network NCCL RDMA Plugin v10"),
        {"IBext_v10"}),
    "2.28, H200 by Google's": (("NET/gIB : Initializing gIB v1.0.2", "Assigned NET plugin gIB to comm",
        "Using network gIB", "Channel 00/0 : 0[0] -> 8[0] [send] via NET/gIB/0/GDRDMA"), {"gIB"}),
    "2.30, RoCE": (("Initialized NET plugin IB", "Using network IB"), {"IB"}),
}  # fmt: skip


@pytest.mark.parametrize("version", OF_VERSIONS)
def test_the_networks_by_the_connections_else_by_what_was_chosen(version: str) -> None:
    lines, networks = OF_VERSIONS[version]
    assert parse("".join(f"h:1:2 [0] NCCL INFO {line}\n" for line in lines)).networks == networks


def test_reductions_in_the_network_whose_setup_failed_are_none() -> None:
    channel = "h:1:2 [5] NCCL INFO CollNet 05/0 : 5 [receive] via COLLNET/SHARP/5/GDRDMA\n"
    failed = "h:1:2 [3] transport.cc:301 NCCL WARN Cannot initialize CollNet, using point-to-point network instead\n"
    by_plugin = "h:1:2 [3] sharp_plugin.c:354 NCCL WARN SHARP group create: Streaming Tree lock failed (-18)\n"
    made = "h:1:2 [5] NCCL INFO Connected collnet + chain\n"
    assert "CollNet" in together([parse(channel + made), parse(channel)]).sentence
    for each in (failed, by_plugin):
        assert "CollNet" not in together([parse(channel), parse(each)]).sentence


def test_logs_of_processes_add_up() -> None:
    log = together([parse(INFINIBAND), parse(WITHOUT_GDR), NcclLog()])
    assert log.networks == {"IB", "IBext_v8"}
    assert log.processes == 2
    assert (log.with_gdr, log.without_gdr, log.p2p, log.shm, log.nvls) == (2, 1, 3, 2, False)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("IB", "verbs"), ("IBext", "verbs"), ("IBext_v10", "verbs"), ("Spectrum-X", "verbs"),
        ("Libfabric", "libfabric"), ("AWS Libfabric", "libfabric"), ("OFI", "libfabric"), ("Socket", "sockets"),
        ("UCX", None), ("FasTrak", None), ("GPUDirectTCPX_v7", None), ("", None),
    ],
)  # fmt: skip
def test_the_class_of_a_network_by_its_name(name: str, kind: str | None) -> None:
    assert transport_of(name) == kind
