"""What logs tell: of containers, as Pyxis 0.24, Enroot 4.1.2 and Slurm 22.05 write; of failures; of NCCL's network."""

from __future__ import annotations

import pytest

from runner.diagnosis import logs
from runner.diagnosis.logs import NcclLog, before_end, of_script, parse, together
from runner.model.request import transport_of

NODE1, NODE2 = "slurmstepd-dgx01: error: ", "slurmstepd-dgx02: error: "
PLUGIN = "spank: required plugin spank_pyxis.so: task_init() failed with rc=-1"


def pyxis(node: str, *enroot: str, first: str = "pyxis: child 1032 failed with error code: 1") -> list[str]:
    """A rank's log, with what Enroot said."""
    lines = [
        first,
        "pyxis: failed to create container filesystem for image: /i.sqsh",
        "pyxis: printing enroot log file:",
        *(f"pyxis:     {line}" for line in enroot),
        PLUGIN,
        "Failed to invoke spank plugin stack",
    ]
    return [node + line for line in lines]


def code(lines: list[str], *, some_started: bool = False) -> str:
    fault = logs.container_fault(lines, some_started=some_started)
    return fault.failure.code if fault else ""


def test_the_cause_stands_behind_pyxis_own_lines() -> None:
    fault = logs.container_fault(pyxis(NODE2, "[ERROR] No such file or directory: /i.sqsh"), some_started=False)
    assert fault is not None
    assert (fault.failure.code, fault.node) == ("image-missing", "dgx02")
    assert fault.line == "[ERROR] No such file or directory: /i.sqsh"


def test_a_container_that_others_ended_is_no_cause() -> None:
    unpacking = "[INFO] Extracting squashfs filesystem..."
    cancelled = f"{NODE1}*** STEP 7.0 ON dgx01 CANCELLED AT 2026-11-22T02:06:49 ***"
    assert code([cancelled, *pyxis(NODE1, unpacking, first="pyxis: child 1026 terminated with signal 15")]) == ""
    assert code([cancelled, NODE1 + "pyxis: container exited too soon", *pyxis(NODE1)]) == ""
    assert code(pyxis(NODE1, unpacking, first="pyxis: child 1026 terminated with signal 15")) == ""


def test_what_failed_before_the_step_was_ended_is_the_cause() -> None:
    ended = f"{NODE2}*** STEP 7.0 ON dgx02 CANCELLED AT 2026-11-22T02:06:49 ***"
    assert code([*pyxis(NODE2, "[ERROR] Invalid image format: /i.sqsh"), ended]) == "image-damaged"


def test_ranks_that_only_waited_for_the_one_that_unpacks_say_nothing() -> None:
    waiting = "pyxis: container was not started successfully by another task"
    assert code([NODE2 + waiting, NODE2 + PLUGIN, NODE2 + "Failed to invoke spank plugin stack"]) == ""


def test_an_enroot_that_says_nothing() -> None:
    """Pyxis shows an empty log where it could not start Enroot at all."""
    assert code(pyxis(NODE2)) == "enroot-silent"
    assert code(pyxis(NODE2)[:3]) == "enroot-silent"


def test_an_enroot_that_only_unpacks_is_not_silent() -> None:
    assert code(pyxis(NODE2, "[INFO] Extracting squashfs filesystem...")) == "runtime-failed"


def test_the_line_before_tells_why_a_hook_failed() -> None:
    mount = "enroot-mount: failed to mount: tmpfs at /data/pyxis_5.0/sys/class/infiniband: No such file or directory"
    hook = "[ERROR] /etc/enroot/hooks.d/99-mellanox.sh exited with return code 1"
    fault = logs.container_fault(pyxis(NODE2, mount, hook), some_started=False)
    assert fault is not None
    assert (fault.failure.code, fault.values["before"]) == ("fabric-hook-failed", mount)


def test_a_mount_source_that_is_missing_outweighs_a_good_unpacking() -> None:
    lines = [
        "pyxis: --container-mounts: source path does not exist: /data/in put",
        "pyxis: couldn't create enroot start configuration script",
        "pyxis: printing enroot log file:",
        "pyxis:     [INFO] Extracting squashfs filesystem...",
        "pyxis:     created 0 hardlinks",
        PLUGIN,
    ]
    fault = logs.container_fault([NODE2 + line for line in lines], some_started=True)
    assert fault is not None
    assert (fault.failure.code, fault.values["path"]) == ("mount-source-missing", "/data/in put")


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
        (("gzip uncompress failed with error code -5", "FATAL ERROR: writer: failed to read/uncompress file /data/p/a"),
         "image-damaged"),
        (("Read on filesystem failed because EOF", "read_id_table: failed to read id index table",
          "FATAL ERROR: File system corruption detected"), "image-damaged"),
        (("get_metadata: failed to read block", "FATAL ERROR: read_inode: failed to read inode 17858102:31"),
         "image-damaged"),
        (("/usr/lib/enroot/runtime.sh: line 391:  6770 Killed                  unsquashfs -d",), "unpacking-killed"),
        (("enroot-switchroot: failed to execute: /bin/sh: No such file or directory",), "no-shell-in-image"),
        (("[ERROR] Command not found: unsquashfs",), "runtime-tool-missing"),
        (("[WARN] fuse: device not found, try 'modprobe fuse' first", "[ERROR] Failed to mount: /i.sqsh"), "no-fuse"),
    ],
)  # fmt: skip
def test_causes_by_enroots_own_lines(enroot: tuple[str, ...], expected: str) -> None:
    assert code(pyxis(NODE2, *enroot)) == expected
    assert code(list(enroot)) == expected  # without Pyxis
    assert code(["slurmstepd: error: " + line for line in enroot], some_started=True) == expected


def test_a_programs_own_words_are_no_cause_once_ranks_have_started() -> None:
    assert code(["ERROR: cannot open container file"], some_started=True) == ""
    assert code(["ERROR: cannot open container file"]) == "container-not-started"


@pytest.mark.parametrize(
    "line",
    [
        "FATAL:   container creation failed: no such device",
        "\x1b[31mFATAL:  \x1b[0m while opening container file /i.sif",
        "podman-hpc: no container of this name",
        "Error: OCI runtime error: crun: creating container: operation not permitted",
        'time="2026-11-22T06:00:00Z" level=error msg="joining the container"',
        "shifter: cannot set up the container",
        "[ERROR] The container is busy",
    ],
)
def test_a_runtimes_own_line_about_its_container(line: str) -> None:
    assert code([line]) == "container-not-started"


@pytest.mark.parametrize(
    "line",
    [
        "Welcome! Containers: see https://docs.example.org/containers",
        "* Enroot and Pyxis are now 4.1 and 0.24: your containers stay",
        "Loading container/1.2",
        "no errors in container.log",
    ],
)
def test_what_a_site_greets_with_is_no_cause(line: str) -> None:
    assert code([line]) == ""


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
        (("hello",), ""),
        ((), ""),
    ],
)  # fmt: skip
def test_of_the_scripts_log_what_came_before_the_end_counts(lines: tuple[str, ...], quoted: str) -> None:
    assert of_script(lines) == quoted


@pytest.mark.parametrize("error", ["ValueError: planted", "my.module.CustomError: x", "main.c:7: fatal: no GPU"])
@pytest.mark.parametrize("lost", [LOST, LOST[-1:], ("bash: Bus error",)])
def test_of_a_ranks_log_the_error_before_the_loss_of_its_image_counts(error: str, lost: tuple[str, ...]) -> None:
    assert before_end(("epoch 1", error, "cleaning up", *lost, "")) == error


@pytest.mark.parametrize(
    "lines", [(), ("ValueError: planted",), ("epoch 1", *LOST), ("ValueError: x", *LOST, "after it")]
)
def test_a_log_without_such_an_end_or_without_another_error_is_quoted_as_ever(lines: tuple[str, ...]) -> None:
    assert before_end(lines) == ""


STEP = "slurmstepd-dgx01: error: *** STEP 9.1 ON dgx01 CANCELLED AT 2026-11-22T09:55:25 ***"


@pytest.mark.parametrize(
    ("lines", "quoted"),
    [
        (("ValueError: planted", STEP), "ValueError: planted"),
        (("ValueError: planted", *LOST, STEP, STEP), "ValueError: planted"),
        (("epoch 1", *LOST, STEP), LOST[-1]),
        ((STEP,), ""),
        ((STEP, "ValueError: while it ended"), ""),
    ],
)
def test_what_slurm_writes_of_the_end_into_a_ranks_log_is_not_quoted(lines: tuple[str, ...], quoted: str) -> None:
    assert before_end(lines) == quoted


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


def test_infiniband_with_gpudirect() -> None:
    log = parse(INFINIBAND)
    assert log == NcclLog(frozenset({"IB"}), frozenset({"mlx5_0:1", "mlx5_1:1", "mlx5_6:1"}), 2, 0, 3, processes=1)
    assert log.sentence == (
        "GPUDirect RDMA on 2 of 2 connections; inside nodes 3 connections from GPU to GPU, 0 through the host's "
        "memory; ports mlx5_0:1, mlx5_1:1, mlx5_6:1"
    )


def test_a_way_through_the_hosts_memory_is_counted() -> None:
    assert parse(WITHOUT_GDR) == NcclLog(
        frozenset({"IBext_v8"}), frozenset({"mlx5_2:1"}), without_gdr=1, shm=2, processes=1
    )


def test_a_networks_name_may_hold_a_blank() -> None:
    log = parse(SLINGSHOT)
    assert log == NcclLog(frozenset({"AWS Libfabric"}), with_gdr=1, providers=frozenset({"cxi"}), processes=1)
    assert log.sentence == "GPUDirect RDMA on 1 of 1 connection; libfabric's provider cxi"


@pytest.mark.parametrize(
    ("line", "provider"),
    [
        # aws-ofi-nccl 1.1, 1.14 and 1.17
        ("NET/OFI Selected Provider is efa", "efa"),
        ("NET/OFI Selected Provider is tcp;ofi_rxm (found 1 nics)", "tcp;ofi_rxm"),
        ("NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)", "efa"),
    ],
)
def test_libfabrics_provider(line: str, provider: str) -> None:
    assert parse(f"n1:7:8 [2] NCCL INFO {line}\n").providers == {provider}


def test_reductions_in_the_network_and_in_nvlink() -> None:
    assert parse(IN_THE_NETWORK) == NcclLog(with_gdr=1, nvls=True, collnet=True)


def test_merged_ports_are_all_named() -> None:
    """2.21.5: src/transport/net_ib.cc, dual-port adapters that are used as one."""
    log = parse("h:1:2 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} ; OOB ib0:10.0.0.1<0>")
    assert log.adapters == {"mlx5_0:1", "mlx5_1:1"}


def test_logs_of_processes_add_up() -> None:
    log = together([parse(INFINIBAND), parse(WITHOUT_GDR), NcclLog()])
    assert log.networks == {"IB", "IBext_v8"}
    assert log.processes == 2
    assert (log.with_gdr, log.without_gdr, log.p2p, log.shm, log.nvls) == (2, 1, 3, 2, False)


def test_lines_of_programs_are_passed_over() -> None:
    assert parse("Using network IB\nvia P2P/IPC\n\x00\xff garbage\nNCCL INFO\n") == NcclLog()


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
