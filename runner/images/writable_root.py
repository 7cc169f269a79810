"""Writable copies of images, and what runs a command in them as root: Enroot, Apptainer or Charliecloud."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.core import paths, process, process_identity
from runner.core.errors import InfrastructureError, RefusedError
from runner.core.files import open_named
from runner.images.conversion import sif
from runner.images.packing import mksquashfs, rootfs
from runner.images.packing.mksquashfs import PackJob, Source
from runner.images.packing.tarstream import BLOCK, END, entry
from runner.images.sources import manifests
from runner.images.store import image_files
from runner.images.store.stored_image import form_of

ENROOT, APPTAINER, CHARLIECLOUD = "enroot", "apptainer", "ch-run"
TOOLS = (ENROOT, APPTAINER, CHARLIECLOUD)
# What a work directory holds. Values are in files of it and not in arguments: they may be secrets.
ROOT, ENVIRONMENT, SHELL_ENVIRONMENT, RC = "root", "environment", "environment.sh", "rc"
_INSTALL = "`module load` enroot, apptainer or charliecloud; Debian: apt install charliecloud-runtime"
_QUERY_S = 60.0
# Of ours: what finds the programs, their own settings, and what reaches the network.
_KEPT = re.compile(r"PATH|HOME|USER|LOGNAME|TMPDIR|XDG_\w+|(?:ENROOT|APPTAINER|SINGULARITY|CH)_\w+")
_PROXIES = re.compile(r"(?:https?|ftp|all|no)_proxy", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_HISTORY = {"HISTFILE": "", "LESSHISTFILE": "-"}  # of what is typed, as that goes into the image
LEFT_OUT = frozenset((".lock",))  # Enroot's mark of a root that is in use
_WRITABLE = ("--writable", "--contain", "--no-home")
_CHUNK = 1 << 20
_UNPACK_S = 6 * 3600.0
_NOT_ROOT = "because you're not superuser"  # unsquashfs, of device files: a copy has none


def own_file(root: Path, name: str) -> Path | None:
    """A file of the image below ``root``; None where it is none, or where a link is on the way."""
    return _own(root, name, stat.S_ISREG)


def own_directory(root: Path, name: str) -> Path | None:
    """A directory of the image below ``root``; None where it is none, or where a link is on the way."""
    return _own(root, name, stat.S_ISDIR)


def _own(root: Path, name: str, is_kind: Callable[[int], bool]) -> Path | None:
    path = root
    with suppress(OSError):
        for part in name.split("/"):
            if not stat.S_ISDIR(path.lstat().st_mode):
                return None
            path /= part
        return path if is_kind(path.lstat().st_mode) else None
    return None


def tree_image(
    root: Path,
    name: str,
    digest: str,
    created: str,
    config: rootfs.Config,
    left_out: frozenset[str] = frozenset(),
    architecture: str = "",
) -> Source:
    """A source whose files are below ``root`` and belong to this user; in the store they are root's. left_out: relative
    paths that are the builder's own, with all below them. architecture: empty: this machine's.
    """

    def packed(job: PackJob) -> rootfs.Passed:
        job.progress.step(f"squashing {name}: its tree, as a stream")
        return mksquashfs.packed_stream(archived(root, left_out), job)

    return Source(name, digest, created, architecture or manifests.platform(None).architecture, config, packed)


def states(root: Path) -> dict[str, tuple[int, int]]:
    """What tells whether something in a tree was changed: its inode's number, and when that changed last, which no
    program can set. Empty where not all can be read.
    """
    try:
        return {name: (about.st_ino, about.st_ctime_ns) for name, _, about in _walked(root, "")}
    except OSError:
        return {}


def archived(
    root: Path, left_out: frozenset[str] = frozenset(), only: Collection[str] | None = None
) -> Iterator[bytes]:
    """A tar archive of a tree, sorted as a walk meets it; owners are root's, sockets and devices are left out. only:
    names, others are left out, too.
    """
    first: dict[tuple[int, int], str] = {}
    try:
        for name, path, about in _walked(root, ""):
            if (
                (only is None or name in only)
                and name not in left_out
                and not any(parent in left_out for parent in rootfs.parents(name))
            ):
                yield from _member(name, path, about, first)
    except OSError as error:
        raise InfrastructureError(
            f"the image's tree cannot be read: {error.strerror}",
            where=str(error.filename or root),
            fix="a file that its owner may not read is made readable in the image: RUN chmod u+r FILE",
        ) from error
    yield END


def _walked(directory: Path, prefix: str) -> Iterator[tuple[str, Path, os.stat_result]]:
    for each in sorted(os.scandir(directory), key=lambda each: os.fsencode(each.name)):
        about = each.stat(follow_symlinks=False)
        yield prefix + each.name, Path(each.path), about
        if stat.S_ISDIR(about.st_mode):
            yield from _walked(Path(each.path), f"{prefix}{each.name}/")


def _member(name: str, path: Path, about: os.stat_result, first: dict[tuple[int, int], str]) -> Iterator[bytes]:
    mode, mtime = stat.S_IMODE(about.st_mode), int(about.st_mtime)
    known = first.setdefault((about.st_dev, about.st_ino), name)
    if stat.S_ISDIR(about.st_mode):
        yield entry(name, tarfile.DIRTYPE, mode, mtime)
    elif known != name:
        yield entry(name, tarfile.LNKTYPE, mode, mtime, link=known)
    elif stat.S_ISLNK(about.st_mode):
        yield entry(name, tarfile.SYMTYPE, mode, mtime, link=os.readlink(path))  # noqa: PTH115  # as it is written, which Path's is not
    elif stat.S_ISFIFO(about.st_mode):
        yield entry(name, tarfile.FIFOTYPE, mode, mtime)
    elif stat.S_ISREG(about.st_mode):
        left = about.st_size
        yield entry(name, tarfile.REGTYPE, mode, mtime, left)
        with path.open("rb") as file:
            while left and (block := file.read(min(left, _CHUNK))):
                left -= len(block)
                yield block
        if left:
            raise InfrastructureError("a file of the image changed while it was read", where=str(path))
        yield b"\0" * (-about.st_size % BLOCK)


@dataclass(frozen=True)
class Tool:
    """A program that is here. name: of TOOLS. program: what is called. options: further ones that it wants here."""

    name: str
    program: str
    version: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copy:
    """A writable copy of an image. work: the directory with its root, and beside it what the programs want. workdir:
    where the command starts. environment: variables that the command gets besides the proxies. before: ``states`` of
    the root as it was unpacked; empty unless asked for.
    """

    work: Path
    workdir: str = "/"
    environment: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The writable root."""
        return self.work / ROOT


def find_tool(wanted: str | None) -> Tool:
    """The program of that name, or the first that is here; RefusedError: it is not here."""
    for name in (wanted,) if wanted else TOOLS:
        if name == APPTAINER:
            try:
                program = sif.apptainer_program()
            except RefusedError:
                if wanted:
                    raise
                continue
            return Tool(name, program, _version(program), () if os.geteuid() == 0 else ("--fakeroot",))
        if process.find(name) is not None:
            # Where this Charliecloud has it, it lets package managers change owners.
            seccomp = name == CHARLIECLOUD and "--seccomp" in _answer(name, "--help")
            return Tool(name, name, _version(name), ("--seccomp",) if seccomp else ())
    what = f"{wanted} was not found" if wanted else f"none of {', '.join(TOOLS)} was found"
    raise RefusedError(what, where="PATH", fix=_INSTALL)


def tool_command(tool: Tool, copy: Copy, words: Sequence[str], ours: Mapping[str, str]) -> tuple[str, ...]:
    """The command line; ``ours``: this process's environment."""
    if tool.name == ENROOT:
        # NVIDIA's images ask for GPUs, and Enroot's hook fails where there is no nvidia-container-cli: a login node.
        more = ("--env", "NVIDIA_VISIBLE_DEVICES=void", *(word for name in _proxies(ours) for word in ("--env", name)))
        return (tool.program, "start", "--root", "--rw", "--rc", str(copy.work / RC), *more, ROOT, *words)
    if tool.name == APPTAINER:
        # It passes the proxies on by itself, also with --cleanenv.
        own = ("--cleanenv", "--env-file", str(copy.work / SHELL_ENVIRONMENT))
        return (tool.program, "exec", *_WRITABLE, *tool.options, *own, "--pwd", copy.workdir, str(copy.root), *words)
    options = ("--write", "--private-tmp", "--no-passwd", "--uid=0", "--gid=0", "--cd", copy.workdir, *tool.options)
    environment = ("--unset-env=*", "--env-no-expand", f"--set-env={copy.work / ENVIRONMENT}")
    return (tool.program, *options, *environment, str(copy.root), "--", *words)


def tool_environment(tool: Tool, copy: Copy, ours: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the program runs."""
    kept = {name: value for name, value in ours.items() if _KEPT.fullmatch(name) or _PROXIES.fullmatch(name)}
    own = {"TERM": ours.get("TERM", "dumb"), "USER": ours.get("USER") or "root"}
    if tool.name == ENROOT:
        own |= {"ENROOT_DATA_PATH": str(copy.work), "ENROOT_MOUNT_HOME": "n"}
    return {**kept, **own}


def tool_files(copy: Copy, ours: Mapping[str, str]) -> dict[str, str]:
    """Files that the programs want in the work directory: name -> content."""
    inside, history = {**_NO_HISTORY, **copy.environment}, " ".join(map("=".join, _NO_HISTORY.items()))
    variables = {"HOME": "/root", "TERM": ours.get("TERM", "dumb"), **inside, **_proxies(ours)}
    # The command itself, not the image's entry point: a banner has no place in an edit.
    return {
        ENVIRONMENT: rootfs.charliecloud_environment(variables),
        # Apptainer's shell, outside of the container, reads this: no name of the image's may be anything else to it.
        SHELL_ENVIRONMENT: "".join(
            f"{name}={_twice(value)}\n" for name, value in inside.items() if _NAME.fullmatch(name)
        ),
        RC: f'cd {shlex.quote(copy.workdir)} && export {history} && exec "$@"\n',
    }


def _twice(value: str) -> str:
    """Quoted for a shell, and again for the shell to which Apptainer gives what that one has read."""
    return shlex.quote(re.sub(r"([\\$`])", r"\\\1", value))


def _proxies(ours: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(ours.items()) if _PROXIES.fullmatch(name)}


def _version(program: str) -> str:
    match = re.search(r"[0-9]+\.[0-9][\w.+~-]*", _answer(program, "version" if program == ENROOT else "--version"))
    return match[0] if match else ""


def _answer(program: str, option: str) -> str:
    named = {**os.environ, "USER": os.environ.get("USER") or "root"}  # without it ch-run says nothing else
    done = process.run((program, option), timeout_s=_QUERY_S, check=False, env=named)
    return done.out + done.err


@contextmanager
def work_directory() -> Iterator[Path]:
    """A private directory in the cache for this build, removed at its end; those of killed builds are removed first."""
    home = paths.ensure_directory(paths.cache("builds"))
    for left in home.iterdir():
        if process_identity.state(left.name) == "dead":
            _removed(left)
    mine = home / process_identity.unique()
    try:
        mine.mkdir(0o700)
        yield mine
    finally:
        _removed(mine)


def unpack(file: Path, root: Path) -> None:
    """The root of an image file, for its user to write to; device files are left out. Raises UsageError: another user's
    link leads to it; OSError: it cannot be read; InfrastructureError: it cannot be unpacked.
    """
    with open_named(file) as image:
        opened = Path(f"/proc/{os.getpid()}/fd/{image.fileno()}")
        head = image_files.head(opened, "sif") if form_of(file) == "sif" else None
        offset = head.offset if head else 0
        # Not -xattrs: what a store packs has none but file capabilities, and a copy belongs to an ordinary user.
        words = ("unsquashfs", "-quiet", "-no-progress", "-no-xattrs", "-o", str(offset), "-d", root, opened)
        done = process.run(words, timeout_s=_UNPACK_S, check=False)
    problems = [line for line in (done.out + done.err).splitlines() if line.strip() and _NOT_ROOT not in line]
    # 2: something that is not fatal, such as a device file.
    if done.code == 0 or (done.code == 2 and not problems):
        return
    text = "\n".join(problems[-8:])
    full = "No space left" in text or "quota exceeded" in text
    raise InfrastructureError(
        f"the image cannot be unpacked (unsquashfs, exit code {done.code}): {text}",
        where=str(root),
        fix="free space there, or set RUNNER_CACHE to a directory with room"
        if full
        else "check the image and the disk",
    )


def tool_call(tool: Tool, copy: Copy, words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """What runs a command as root in the copy, and in which environment; the files that it needs are written."""
    for name, content in tool_files(copy, os.environ).items():
        (copy.work / name).write_text(content, "utf-8", "surrogateescape")
    return tool_command(tool, copy, words, os.environ), tool_environment(tool, copy, os.environ)


def make_readable(root: Path) -> None:
    """Make readable what could not be packed otherwise; and the lists of users, which Enroot leaves to root alone."""
    for path in filter(None, (own_file(root, name) for name in ("etc/passwd", "etc/group"))):
        with suppress(OSError):
            path.chmod(0o644)
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(directory, name)
            with suppress(OSError):
                mode = path.lstat().st_mode
                wanted = 0o500 if stat.S_ISDIR(mode) else 0o400
                if not stat.S_ISLNK(mode) and mode & wanted != wanted:
                    path.chmod(stat.S_IMODE(mode) | wanted)


def _removed(tree: Path) -> None:
    """Remove a tree, directories in it that their owner may not read or write to included."""
    shutil.rmtree(tree, ignore_errors=True)
    if not tree.exists():
        return
    for directory, names, _ in os.walk(tree):  # from the top: what is in a directory is read after it was made readable
        for path in (Path(directory, name) for name in names):
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(tree, ignore_errors=True)
