"""``enroot import dockerd://IMAGE`` step by step, as src/docker.sh of Enroot 4.1.2 does it: to be compared with.

Its start-up files (a few hundred bytes) are left out.
"""

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from runner.core import process

DEFAULT_OPTIONS = ("-comp", "lzo", "-noD", "-exit-on-error")  # ENROOT_SQUASH_OPTIONS
_LIMIT_S = 3600.0


def import_image(
    image: str, engine: str, scratch: Path, out: Path, options: tuple[str, ...], step_ended: Callable[[str], None]
) -> int:
    """Make ``out`` of an engine's image the way Enroot does; returns the bytes that its tree took on disk.

    Args:
        engine: URL. scratch: where the tree is extracted and removed again. options: of mksquashfs.
        step_ended: is called with the name of each step that has ended.
    """
    name = f"enroot.{uuid.uuid4().hex[:10]}"
    rootfs = scratch / name / "rootfs"
    rootfs.mkdir(parents=True)
    docker = ("docker", "--host", engine)
    words = ("create", "--name", name, "--network", "none", image, "true")
    process.run([*docker, *words], timeout_s=_LIMIT_S)
    try:
        exporter = process.start([*docker, "export", name], stderr=process.DEVNULL)
        assert exporter.stdout is not None
        tar = ["tar", "-C", str(rootfs), "--warning=no-timestamp", "--anchored"]
        tar += ["--exclude=dev/*", "--exclude=.dockerenv", "-px"]
        extractor = process.start(tar, stdin=exporter.stdout, stdout=process.DEVNULL, stderr=process.DEVNULL)
        exporter.stdout.close()
        assert (extractor.wait(), exporter.wait()) == (0, 0)
        process.run(["chmod", "-f", "-R", "u+rX", rootfs], timeout_s=_LIMIT_S, check=False)
        writable = ["-type", "d", "!", "-perm", "-u=w", "-exec", "chmod", "-f", "u+w", "{}", "+"]
        process.run(["find", rootfs, "-maxdepth", "15", *writable], timeout_s=_LIMIT_S, check=False)
        step_ended("extract")
        squash = ["mksquashfs", str(rootfs), str(out), "-all-root", "-no-progress", "-processors", str(os.cpu_count())]
        process.run([*squash, *options], timeout_s=_LIMIT_S, env=_plain_environment())
        step_ended("squash")
        used = process.run(["du", "-sk", str(rootfs)], timeout_s=_LIMIT_S).out
        step_ended("")
        return int(used.split()[0]) * 1024
    finally:
        process.run(["rm", "--one-file-system", "--preserve-root", "-rf", rootfs.parent], timeout_s=_LIMIT_S)
        with suppress(process.CommandFailedError):
            process.run([*docker, "rm", "-f", "-v", name], timeout_s=_LIMIT_S)
        step_ended("remove")


def _plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
