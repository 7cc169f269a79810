"""Make a stand-in base: a Debian root shaped like NVIDIA's image of a framework, with no registry. For tests.

It imitates what NVIDIA's images do to a job: an entry point that prints a banner, a working directory, variables
that win over the job's, a pip constraint file, compilers and an MPI. The CA bundle and the index settings of the
machine that makes it go in, so that pip works inside; nothing built for users comes from here.
"""

from __future__ import annotations

import io
import os
import platform
import re
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from runner.core import files, paths, process
from runner.core.errors import InfrastructureError, ProgramFailedError, RefusedError
from runner.core.files import files_below, key_of, tree_hash
from runner.core.hide import names_user
from runner.core.lock import locked
from runner.core.progress import Progress
from runner.images.building.standins import StandIn

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

REPOSITORY = "gpu-runner/standins"
_MIRROR = "http://deb.debian.org/debian"
_CUDA = "standin-cuda"  # the folder of containers/ with what CUDA adds
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def ensure(wanted: StandIn, client: docker.DockerClient, progress: Progress) -> str:
    """The stand-in base's reference in this engine, made first where it is not there yet.

    Raises:
        RefusedError: mmdebstrap is absent, pip brought NVIDIA packages for a base without CUDA, or a base with CUDA
            is wanted on another processor than x86_64.
        ProgramFailedError, InfrastructureError: a step failed; its last lines are in the message.
    """
    if wanted.cuda and platform.machine() != "x86_64":
        raise RefusedError(
            f"{wanted.name} is made for x86_64, and this is {platform.machine()}",
            where=str(paths.share("containers") / _CUDA / "requirements.txt"),
            fix="make it on a machine of that processor",
        )
    reference = reference_of(wanted)
    if _present(client, reference) and not paths.caches_ignored():
        return reference
    with locked(paths.ensure_directory(paths.cache("standin")) / "lock", progress.step):
        if _present(client, reference) and not paths.caches_ignored():
            return reference
        root = _debian_root(wanted, progress)
        wheels = _wheels(wanted, progress) if wanted.requirements or wanted.cuda else None
        _assemble(wanted, client, reference, root, wheels, progress)
        _remove_older(wanted, client, reference)
    return reference


def reference_of(wanted: StandIn) -> str:
    """The name of the stand-in base in an engine that has it."""
    return f"{_prefix(wanted)}{image_key(wanted)}"


def image_key(wanted: StandIn) -> str:
    """Key of everything that goes into the stand-in base."""
    source = paths.share("containers") / "standin"
    settings = "\n".join(f"{name}={value}" for name, value in sorted(wanted.variables.items()))
    facts = (wanted.product, *wanted.requirements, "pinned", *wanted.pinned, settings)
    cuda = (tree_hash(files_below(paths.share("containers") / _CUDA)),) if wanted.cuda else ()
    return key_of(_root_key(wanted), *facts, tree_hash(files_below(source)), *cuda)


def _prefix(wanted: StandIn) -> str:
    return f"{REPOSITORY}:{wanted.framework}.{wanted.name}."


def _root_key(wanted: StandIn) -> str:
    return key_of(wanted.suite, *wanted.packages, *_LEFT_OUT)


def _present(client: docker.DockerClient, reference: str) -> bool:
    import docker

    with suppress(docker.errors.ImageNotFound):
        client.images.get(reference)
        return True
    return False


def _remove_older(wanted: StandIn, client: docker.DockerClient, reference: str) -> None:
    """Drop the names of earlier makes of this stand-in; what images still use stays."""
    import docker

    for image in client.images.list(name=REPOSITORY):
        for tag in image.tags:
            if tag != reference and tag.startswith(_prefix(wanted)):
                with suppress(docker.errors.APIError):
                    client.images.remove(tag)


def _debian_root(wanted: StandIn, progress: Progress) -> Path:
    """A tar of the plain Debian root, from the cache or made by mmdebstrap (about a minute, no daemon)."""
    kept = paths.cache("standin") / f"root-{_root_key(wanted)}.tar"
    if kept.exists() and not paths.caches_ignored():
        return kept
    if process.find("mmdebstrap") is None:
        raise RefusedError("mmdebstrap is not installed", fix="install the package mmdebstrap")
    progress.step(f"stand-in base: a Debian root ({wanted.suite}) with compilers and Python")
    with files.replacement(kept) as made:
        command = ["mmdebstrap", "--variant=minbase", "--format=tar", f"--include={','.join(wanted.packages)}"]
        command += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
        command += [wanted.suite, str(made), *_apt_sources(wanted.suite)]
        _stream(command, progress, "mmdebstrap")
    return kept


def _apt_sources(suite: str) -> list[str]:
    """The host's own source files for this suite (its mirror is the one it can reach), else Debian's mirror."""
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    wanted = re.compile(rf"(?<![\w-]){suite}(?![\w-])")
    readable = [place for place in places if place.suffix in (".list", ".sources") and place.is_file()]
    texts = {place: place.read_text("utf-8", "replace") for place in readable}
    # They are copied into the root unchanged, so one with a password must not be used.
    fit = [str(place) for place, text in texts.items() if wanted.search(text) and not names_user(text)]
    return fit or [_MIRROR]


def _wheels(wanted: StandIn, progress: Progress) -> Path:
    """Directory of the framework's wheel and what it needs, by this machine's pip (a CPU build, where offered).

    With CUDA: exactly the listed files, whatever else this machine's pip is offered.
    """
    listed = paths.share("containers") / _CUDA / "requirements.txt"
    sought = (listed.read_text("utf-8"),) if wanted.cuda else wanted.requirements
    kept = paths.cache("standin") / f"wheels-{key_of(wanted.python, *sought)}"
    if kept.is_dir() and not paths.caches_ignored():
        return kept
    progress.step("stand-in base: fetching " + (f"what {listed} lists" if wanted.cuda else ", ".join(sought)))
    with tempfile.TemporaryDirectory(dir=kept.parent) as work:
        target = Path(work) / "wheels"
        command = [sys.executable, "-m", "pip", "download", "--dest", str(target), "--only-binary=:all:"]
        command += ["--python-version", wanted.python, "--implementation", "cp"]
        command += ["--no-deps", "--require-hashes", "-r", str(listed)] if wanted.cuda else wanted.requirements
        _stream(command, progress, "pip download")
        foreign = ("nvidia_", "nvidia-", "triton")
        unwanted = sorted(path.name for path in target.iterdir() if path.name.startswith(foreign))
        if unwanted and not wanted.cuda:
            raise RefusedError(
                f"pip brought a CUDA build of {wanted.product} ({unwanted[0]} and {len(unwanted) - 1} more)",
                where=", ".join(wanted.requirements),
                fix="offer pip a CPU build (PIP_FIND_LINKS or an index with CPU wheels), or name a --base",
            )
        if kept.is_dir():
            process.run(["rm", "-rf", str(kept)], timeout_s=60)
        target.rename(kept)
    return kept


def _assemble(
    wanted: StandIn, client: docker.DockerClient, reference: str, root: Path, wheels: Path | None, progress: Progress
) -> None:
    """Import the root, install into a container of it, and commit that with NVIDIA's configuration."""
    import docker

    progress.step("stand-in base: importing the root")
    plain = _import(wanted, client, root)
    container: Container | None = None
    try:
        progress.step(f"stand-in base: installing {wanted.product}, files and variables")
        installer = "/standin/cuda/install.sh" if wanted.cuda else "/standin/install.sh"
        command = ["sh", installer, wanted.product, "|".join(wanted.pinned), *wanted.requirements]
        # A committed image has the container's environment: it must not contain the proxies that the user configured.
        container = client.containers.create(plain, command, network_mode="none", use_config_proxy=False)
        with tempfile.TemporaryFile() as archive:
            _pack(archive, wanted, wheels)
            archive.seek(0)
            container.put_archive("/", archive)
        container.start()
        for line in container.logs(stream=True, follow=True):
            progress.line(line.decode("utf-8", "replace").rstrip())
        code = container.wait()["StatusCode"]
        if code != 0:
            output = container.logs(tail=15).decode("utf-8", "replace")
            raise ProgramFailedError(
                f"installing {wanted.product} in the stand-in base failed:\n{output}", where="install.sh"
            )
        progress.step("stand-in base: committing")
        repository, tag = reference.rsplit(":", 1)
        changes = [f"ENV {name}={_quoted(value)}" for name, value in wanted.variables.items()]
        changes += ['ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]', 'CMD ["/bin/bash"]', "WORKDIR /workspace"]
        changes += ["LABEL gpu-runner.part=standin"]
        container.commit(repository=repository, tag=tag, changes=changes)
    finally:
        if container is not None:
            with suppress(docker.errors.APIError):
                container.remove(force=True, v=True)
        with suppress(docker.errors.APIError):
            client.images.remove(plain, noprune=True)  # only the extra name: the committed image keeps its layer


def _import(wanted: StandIn, client: docker.DockerClient, root: Path) -> str:
    """Import the root's tar under a separate name and return that name."""
    name = f"gpu-runner/standin-root:{_root_key(wanted)}"
    # The tag is part of the name: Podman 4.3 ignores it as a separate parameter.
    answer = str(client.api.import_image(src=str(root), repository=name))
    if '"error"' in answer:
        raise InfrastructureError(f"the engine refused the stand-in root: {answer.strip()}", where=str(root))
    return name


def _pack(archive: IO[bytes], wanted: StandIn, wheels: Path | None) -> None:
    """Tar of /standin: the shipped directories, the wheels, and the host's CA bundle and index settings."""
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(paths.share("containers") / "standin", "standin")
        if wanted.cuda:
            tar.add(paths.share("containers") / _CUDA, "standin/cuda")
        if wheels is not None:
            tar.add(wheels, "standin/wheels")
        for bundle in (os.environ.get("SSL_CERT_FILE", ""), "/etc/ssl/certs/ca-certificates.crt"):
            if bundle and Path(bundle).is_file():
                tar.add(Path(bundle).resolve(), "standin/host/ca-certificates.crt")
                break
        settings = _pip_settings().encode()
        entry = tarfile.TarInfo("standin/host/pip.conf")
        entry.size = len(settings)
        tar.addfile(entry, io.BytesIO(settings))


def _pip_settings() -> str:
    """The host's package index, where it is one that a container can reach and that holds no credentials."""
    output = process.run([sys.executable, "-m", "pip", "config", "list"], timeout_s=60, check=False).out
    lines = []
    for name, value in re.findall(r"(?m)^\S*\.(index-url|extra-index-url|trusted-host)='([^']*)'", output):
        reachable = [word for word in value.split() if not word.startswith("file:") and "@" not in word]
        if reachable:
            lines.append(f"{name} = {' '.join(reachable)}")
    return "[global]\n" + "\n".join(lines) + "\n" if lines else ""


def _stream(command: list[str], progress: Progress, name: str) -> None:
    last: list[str] = []

    def keep(line: str) -> None:
        last.append(line)
        del last[:-15]
        progress.line(line)

    code = process.stream(command, keep, timeout_s=1800)
    if code != 0:
        raise ProgramFailedError(f"{name} failed with exit code {code}:\n" + "\n".join(last), where=name)


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
