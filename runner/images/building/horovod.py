"""Which Horovod an image gets: the base's own, a kept wheel, or one that is compiled first."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.core import package_directory, paths
from runner.core.errors import InfrastructureError, ProgramFailedError, RefusedError
from runner.core.files import files_below
from runner.core.package_directory import PackageDirectory
from runner.core.progress import Progress
from runner.images.building import engine_build, wheels
from runner.images.building.buildlog import LAST_LINES
from runner.images.building.engine_build import EngineBase, container_of, remove_image, tar_of
from runner.images.building.wheels import SHIPPED

if TYPE_CHECKING:
    import docker

VERSION = "0.28.1"
_WHEEL_DIR = "/opt/wheel"


@dataclass(frozen=True)
class Horovod:
    """Which Horovod an image gets.

    Attributes:
        key: of its wheel, or SHIPPED. wheel: the kept wheel; None for the base's own.
        facts: about the base. fixes: patches that the wheel was built with.
    """

    key: str
    wheel: Path | None
    facts: Mapping[str, Any]
    fixes: Sequence[str]


def horovod_for(
    client: docker.DockerClient, base: EngineBase, files: Sequence[tuple[str, Path]], progress: Progress
) -> Horovod:
    """The base's own Horovod where that is proven, else a kept wheel for this base, compiled first where none is.

    Args:
        files: the build's context.

    Raises:
        ProgramFailedError: the base cannot be one, or the compile failed. InfrastructureError: the engine failed.
    """
    progress.step("finding out which Horovod the base needs")
    answer = _query_base(client, base)
    key, facts, fixes = str(answer["key"]), answer["facts"], answer["fixes"]
    if base.packages is not None:
        _ensure_fit(base, base.packages, facts)
    progress.line(answer["why"] or "the base's own Horovod passes the proof: nothing is built")
    if key == SHIPPED:
        return Horovod(key, None, facts, fixes)
    if (kept := wheels.find(base.identity, key, progress.line)) is not None:
        progress.line(f"taking the wheel kept under {key}")
        return Horovod(key, kept, facts, fixes)
    progress.step("compiling Horovod (3 to 20 minutes on two cores; kept afterwards)")
    stage = f"gpu-runner/horovod-wheel:{key}"
    engine_build.run(client, base, progress, files=files, tag=stage, target="wheel", args={"HOROVOD": "build"})
    try:
        name, content = _read_wheel(client, stage)
    finally:
        remove_image(client, stage)
    return Horovod(key, wheels.keep(base.identity, key, name, content), facts, fixes)


def _ensure_fit(base: EngineBase, packages: PackageDirectory, facts: Mapping[str, Any]) -> None:
    why = package_directory.misfit(packages.manifest, str(facts["python"]), str(facts["arch"]))
    if why:
        raise RefusedError(
            f"the packages do not fit {base.reference}: {why} in the base",
            where=f"--wheels {packages.path}",
            fix=f"collect those of every Python where there is a network: "
            f"{package_directory.collect_command(packages.path)} --image --framework {base.framework}",
        )


def _query_base(client: docker.DockerClient, base: EngineBase) -> dict[str, Any]:
    """``key``, ``why`` (not the base's own Horovod), ``facts`` and ``fixes``, from ``build.py`` run in the base."""
    import docker

    arguments = ["/opt/runner/build.py", "key", "--framework", base.framework]
    arguments += ["--cxx-standard", base.args["CXX_STANDARD"], "--cuda-archs", base.args["CUDA_ARCHS"]]
    arguments += ["--nccl", base.args["NCCL"]]
    env = {"TF_USE_LEGACY_KERAS": base.args["LEGACY_KERAS"]} if "LEGACY_KERAS" in base.args else {}
    source = paths.share("containers") / "horovod"
    command, network = ["python3", *arguments], base.packages is None
    with container_of(client, base.identity, command, platform=base.platform, env=env, network=network) as container:
        files = [*files_below(source), *base.package_files]
        programs = tar_of([(f"opt/runner/{name}", path) for name, path in files])
        container.put_archive("/", programs.getvalue())
        try:
            container.start()
        except docker.errors.APIError as error:
            raise _unfit_base(base, str(error.explanation)) from error
        code = container.wait()["StatusCode"]
        out = container.logs(stdout=True, stderr=False).decode("utf-8", "replace")
        if code != 0:
            raise _unfit_base(base, container.logs(tail=LAST_LINES).decode("utf-8", "replace"))
    answer = json.loads(out.strip().splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def _unfit_base(base: EngineBase, output: str) -> ProgramFailedError | RefusedError:
    if (refused := engine_build.no_emulation(output, base.reference)) is not None:
        return refused
    usual = f"choose a base image that carries {base.framework}, such as NVIDIA's nvcr.io/nvidia/{base.framework}"
    problem, _, fix = output.strip().partition("; fix: ")
    return ProgramFailedError(
        f"{base.reference} cannot be a base for {base.framework}:\n{problem}", where=base.reference, fix=fix or usual
    )


def _read_wheel(client: docker.DockerClient, image: str) -> tuple[str, bytes]:
    with container_of(client, image, ["true"]) as container:
        chunks, _ = container.get_archive(_WHEEL_DIR)
        archive = io.BytesIO(b"".join(chunks))
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name.endswith(".whl") else None
            if content is not None:
                return Path(member.name).name, content.read()
    raise InfrastructureError("the compile left no wheel", where=f"{image}:{_WHEEL_DIR}")


def labels_of(horovod: Horovod) -> dict[str, str]:
    """Facts about the base as labels, which engines and registries show; all facts are in /opt/runner/image.json."""
    mpi = horovod.facts["mpi"]
    facts = {
        "framework.version": horovod.facts["framework_version"],
        "python": horovod.facts["python"],
        "arch": horovod.facts["arch"],
        "cuda": horovod.facts["cuda"],
        "nccl": horovod.facts["nccl"],
        "mpi": f"{mpi['flavour']} {mpi['version']}".strip(),
        "horovod.version": VERSION if horovod.wheel is not None else "",  # that of the base's own is in image.json
        "horovod.wheel": horovod.key,
        "horovod.fixes": ",".join(horovod.fixes),
    }
    return {f"gpu-runner.{name}": str(value or "") for name, value in facts.items()}
