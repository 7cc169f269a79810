"""Faults of a node or of an image, planted under a real Pyxis and a real Enroot, and what the verdict must say.

A fault is planted by a mount in the namespace of one node of the box, where nothing else sees it.
"""

from __future__ import annotations

from dataclasses import dataclass

DATA = "/var/tmp/enroot-data-0"  # of root, by the box's configuration
BOTH = ("pyxis", "enroot")


@dataclass(frozen=True)
class ContainerFault:
    """One fault.

    Attributes:
        on: where it is mounted, on the second node; empty for a fault of the image or of the job.
        source: what is mounted there: ``tmpfs`` with options after a colon, or a file. DIR stands for the test's own
            directory.
        says: stands in the verdict's first reason, after "the container did not start on NODE: ".
        fix: stands in the fix.
        everywhere: all nodes have it.
        runtimes: under which it can occur.
        image: name of the image's file.
        options: further ones of ``submit``.
        code: exit code of the verdict.
        squashfuse: in a box whose Pyxis mounts images instead of unpacking them.
    """

    says: str
    fix: str
    on: str = ""
    source: str = "tmpfs"
    everywhere: bool = False
    runtimes: tuple[str, ...] = BOTH
    image: str = "small.sqsh"
    options: tuple[str, ...] = ()
    code: int = 8
    squashfuse: bool = False


_IMAGE, _SIZE = "DIR/images/small.sqsh", "tmpfs:size=10m"
_DAMAGED = "is damaged, or cannot be read there"
_NOT_WRITTEN = "cannot be written: Read-only file system"
CONTAINER_FAULTS = {
    "image not on the node": ContainerFault("small.sqsh is not there", "every node mounts", "DIR/images"),
    "image is no squashfs there": ContainerFault(_DAMAGED, "images verify", _IMAGE, "DIR/zeros"),
    "image with damaged blocks": ContainerFault(_DAMAGED, "images verify", _IMAGE, "DIR/damaged"),
    "image cut in half": ContainerFault(_DAMAGED, "images verify", _IMAGE, "DIR/half"),
    "no space in the data path": ContainerFault("no room to unpack", "ENROOT_DATA_PATH", DATA, _SIZE),
    "no inodes in the data path": ContainerFault("no room to unpack", "df -i", DATA, "tmpfs:nr_inodes=100"),
    "data path read-only": ContainerFault(_NOT_WRITTEN, "ENROOT_DATA_PATH", DATA, "tmpfs:ro"),
    "data path cannot be made": ContainerFault(_NOT_WRITTEN, "ENROOT_DATA_PATH", "/var/tmp", "tmpfs:ro"),
    "no enroot on the node": ContainerFault(
        "Enroot ended without a message, as where it is not installed", "enroot version", "/usr/local/bin",
        runtimes=("pyxis",),
    ),
    "no enroot on the node (bare)": ContainerFault(
        "enroot is not there, or not in PATH", "install it", "/usr/local/bin", runtimes=("enroot",)
    ),
    "unpacking is killed": ContainerFault("was killed, often for lack of memory", "memory", "/usr/bin/unsquashfs",
                                          "DIR/killed"),
    "mount source not on the node": ContainerFault(
        "DIR/data/in, which is to be mounted, is not there", "every node has", "DIR/data", runtimes=("pyxis",),
        options=("--mount", "DIR/data/in:/data"),
    ),
    "mount source not on the node (bare)": ContainerFault(
        "DIR/data/in could not be mounted: No such file or directory", "every node has", "DIR/data",
        runtimes=("enroot",), options=("--mount", "DIR/data/in:/data"),
    ),
    "GPU hook without a driver": ContainerFault(
        "Enroot's hook for NVIDIA's GPUs failed", "nvidia-smi", image="gpu.sqsh", everywhere=True, runtimes=("pyxis",)
    ),
    "image without a shell": ContainerFault(
        "has no shell that runs there", "/bin/sh", image="no-shell.sqsh", everywhere=True, runtimes=("pyxis",), code=5
    ),
    "image without Python": ContainerFault(
        "has no python3", "Python 3.8", image="no-python.sqsh", everywhere=True, runtimes=("pyxis",), code=5
    ),
    "squashfuse: image not on the node": ContainerFault(
        _DAMAGED, "images verify", "DIR/images", runtimes=("pyxis",), squashfuse=True
    ),
    "squashfuse: image is no squashfs there": ContainerFault(
        _DAMAGED, "images verify", _IMAGE, "DIR/zeros", runtimes=("pyxis",), squashfuse=True
    ),
}  # fmt: skip
