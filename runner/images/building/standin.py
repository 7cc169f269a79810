"""The stand-in bases that can be made with no registry, as data: what lies in each, and which trap it is there for."""

from __future__ import annotations

import io
import os
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from runner.core import files, paths, process
from runner.core.errors import InfrastructureError, ProgramFailedError, RefusedError
from runner.core.files import files_below, key_of, tree_hash
from runner.core.hide import names_user
from runner.core.lock import locked
from runner.core.progress import Progress
from runner.images.building.buildlog import followed
from runner.images.engine import best_effort, find_image

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container


# In the image's configuration, as NVIDIA's images have them. NVIDIA_VISIBLE_DEVICES is left out: Enroot's hook
# refuses to start an image that has it where nvidia-container-cli is absent.
_VARIABLES = {
    "CUDA_VERSION": "12.8.0.038",
    "NCCL_VERSION": "2.25.1",
    "OMPI_MCA_coll_hcoll_enable": "0",
    "PIP_CONSTRAINT": "/etc/pip/constraint.txt",
    "BASH_ENV": "/etc/bash.bashrc",
    "ENV": "/etc/shinit_v2",
    "SHELL": "/bin/bash",
    "PYTHONIOENCODING": "utf-8",
    "LC_ALL": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
# What containers/standin-cuda/requirements.txt brings: nvcc and CUDA's runtime of release 13.0.2.
_CUDA_13 = {
    "CUDA_VERSION": "13.0.2",
    "CUDA_HOME": "/usr/local/cuda",
    "NCCL_VERSION": "2.29.7",
    "PATH": f"/usr/local/cuda/bin:{_VARIABLES['PATH']}",
}
_COMPILERS = ("ca-certificates", "cmake", "g++", "make", "procps", "python3", "python3-dev", "python3-pip")
_OPEN_MPI = ("libopenmpi-dev", "openmpi-bin")
_DEBIANS_TORCH = ("libtorch-dev", "pybind11-dev", "python3-numpy", "python3-setuptools", "python3-torch")


@dataclass(frozen=True)
class StandIn:
    """A base made of a Debian release and a framework's build for CPUs, or for CUDA.

    Attributes:
        framework: ``pytorch`` or ``tensorflow``. name: what ``--base`` calls it.
        product: how the banner calls it. suite: Debian's release; python: its Python, ``3.11``.
        packages: of Debian. requirements: of the package index, as wheels; none where Debian packages the framework.
        pinned: what the constraint file names, as NVIDIA's images pin what they ship.
        variables: of the image's configuration.
        cuda: whether CUDA's toolkit, NCCL and a CUDA build of the framework lie in it; they are listed, with their
            hashes, in ``containers/standin-cuda/requirements.txt``, and ``requirements`` is empty.
    """

    framework: str
    name: str
    product: str
    packages: tuple[str, ...]
    requirements: tuple[str, ...]
    pinned: tuple[str, ...]
    suite: str = "bookworm"
    python: str = "3.11"
    variables: Mapping[str, str] = field(default_factory=dict)
    cuda: bool = False


def _variables(product: str, name: str, version: str) -> dict[str, str]:
    """``PYTORCH_VERSION`` and its relatives beside what every image of NVIDIA's sets."""
    return {
        f"{name}_VERSION": version,
        f"{name}_BUILD_VERSION": f"{version}+cpu",
        f"NVIDIA_{name}_VERSION": "standin",
        "NVIDIA_PRODUCT_NAME": f"{product} (stand-in)",
        **_VARIABLES,
    }


_TORCH = StandIn(
    framework="pytorch",
    name="standin",
    product="PyTorch",
    packages=tuple(sorted((*_COMPILERS, *_OPEN_MPI))),
    requirements=("torch==2.13.0", "numpy"),
    pinned=("torch", "numpy", "setuptools"),
    variables=_variables("PyTorch", "PYTORCH", "2.13.0"),
)
_TENSORFLOW = StandIn(
    framework="tensorflow",
    name="standin",
    product="TensorFlow",
    packages=_TORCH.packages,
    requirements=("tensorflow-cpu==2.21.0",),
    pinned=("tensorflow-cpu", "keras", "numpy", "setuptools"),
    variables=_variables("TensorFlow", "TENSORFLOW", "2.21.0"),
)
STAND_INS = (
    _TORCH,
    # No MPI, so Gloo only; and a CMake that refuses what Horovod's own files ask for.
    replace(_TORCH, name="standin-gloo", packages=_COMPILERS, requirements=(*_TORCH.requirements, "cmake>=4,<5")),
    # Debian 13 as it is: Python 3.13, GCC 14, CMake 3.31, and a torch built by Debian, not by PyTorch.
    replace(
        _TORCH,
        name="standin-trixie",
        suite="trixie",
        python="3.13",
        packages=tuple(sorted((*_TORCH.packages, *_DEBIANS_TORCH))),
        requirements=(),
        variables=_variables("PyTorch", "PYTORCH", "2.6.0"),
    ),
    # Horovod is compiled with CUDA and NCCL here, and nothing of it can run on a GPU: all other libraries are stubs.
    replace(
        _TORCH,
        name="standin-cuda",
        requirements=(),
        variables={**_TORCH.variables, "PYTORCH_BUILD_VERSION": "2.13.0+cu130", **_CUDA_13},
        cuda=True,
    ),
    _TENSORFLOW,
)


def find_standin(framework: str, name: str) -> StandIn | None:
    """The stand-in of that name for a framework; None where there is none."""
    return next((each for each in STAND_INS if (each.framework, each.name) == (framework, name)), None)


_REPOSITORY = "gpu-runner/standins"
_MIRROR = "http://deb.debian.org/debian"
_CUDA = "standin-cuda"  # the folder of containers/ with what CUDA adds
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def ensure_standin(wanted: StandIn, client: docker.DockerClient, progress: Progress) -> str:
    """The stand-in base's reference in this engine, made first where it is not there yet."""
    if wanted.cuda and platform.machine() != "x86_64":
        raise RefusedError(
            f"{wanted.name} is made for x86_64, and this is {platform.machine()}",
            where=str(paths.share("containers") / _CUDA / "requirements.txt"),
            fix="make it on a machine of that processor",
        )
    reference = standin_reference(wanted)

    def present() -> bool:
        return not paths.caches_ignored() and find_image(client, reference) is not None

    if present():
        return reference
    with locked(paths.ensure_directory(paths.cache("standin")) / "lock", progress.step):
        if present():
            return reference
        root = _debian_root(wanted, progress)
        wheels = _wheels(wanted, progress) if wanted.requirements or wanted.cuda else None
        _assemble(wanted, client, reference, root, wheels, progress)
        # The names of earlier makes of this stand-in are dropped; what images still use stays.
        for image in client.images.list(name=_REPOSITORY):
            for tag in image.tags:
                if tag != reference and tag.startswith(_prefix(wanted)):
                    with best_effort():
                        client.images.remove(tag)
    return reference


def standin_reference(wanted: StandIn) -> str:
    """The name of the stand-in base in an engine that has it; it has the key of everything that goes into the base."""
    containers = paths.share("containers")
    settings = "\n".join(f"{name}={value}" for name, value in sorted(wanted.variables.items()))
    facts = (wanted.product, *wanted.requirements, "pinned", *wanted.pinned, settings)
    cuda = (tree_hash(files_below(containers / _CUDA)),) if wanted.cuda else ()
    return _prefix(wanted) + key_of(_root_key(wanted), *facts, tree_hash(files_below(containers / "standin")), *cuda)


def _prefix(wanted: StandIn) -> str:
    return f"{_REPOSITORY}:{wanted.framework}.{wanted.name}."


def _root_key(wanted: StandIn) -> str:
    return key_of(wanted.suite, *wanted.packages, *_LEFT_OUT)


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
        followed(command, progress, what="mmdebstrap", room=str(kept.parent))
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
        command = [sys.executable, "-I", "-m", "pip", "download", "--dest", str(target), "--only-binary=:all:"]
        command += ["--python-version", wanted.python, "--implementation", "cp"]
        command += ["--no-deps", "--require-hashes", "-r", str(listed)] if wanted.cuda else wanted.requirements
        followed(command, progress, what="pip download", room=work, env={**os.environ, "TMPDIR": work})
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
    progress.step("stand-in base: importing the root")
    # The tag is part of the name: Podman 4.3 ignores it as a separate parameter.
    plain = f"gpu-runner/standin-root:{_root_key(wanted)}"
    answer = str(client.api.import_image(src=str(root), repository=plain))
    if '"error"' in answer:
        raise InfrastructureError(f"the engine refused the stand-in root: {answer.strip()}", where=str(root))
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
        quoted = {name: re.sub(r'(["\\])', r"\\\1", value) for name, value in wanted.variables.items()}
        changes = [f'ENV {name}="{value}"' for name, value in quoted.items()]
        changes += ['ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]', 'CMD ["/bin/bash"]', "WORKDIR /workspace"]
        changes += ["LABEL gpu-runner.part=standin"]
        container.commit(repository=repository, tag=tag, changes=changes)
    finally:
        if container is not None:
            with best_effort():
                container.remove(force=True, v=True)
        with best_effort():
            client.images.remove(plain, noprune=True)  # only the extra name: the committed image keeps its layer


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
    output = process.run([sys.executable, "-I", "-m", "pip", "config", "list"], timeout_s=60, check=False).out
    lines = []
    for name, value in re.findall(r"(?m)^\S*\.(index-url|extra-index-url|trusted-host)='([^']*)'", output):
        reachable = [word for word in value.split() if not word.startswith("file:") and "@" not in word]
        if reachable:
            lines.append(f"{name} = {' '.join(reachable)}")
    return "[global]\n" + "\n".join(lines) + "\n" if lines else ""
