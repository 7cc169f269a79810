"""Why a container did not start, out of logs as Pyxis 0.24, Enroot 4.1.2 and Slurm 22.05 wrote them."""

from __future__ import annotations

import pytest

from runner.diagnosis import logs

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
