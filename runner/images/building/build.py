"""Build an image: a base with a framework, plus a Horovod that is proven inside it.

A build is skipped where an image with the same inputs exists. Nothing is compiled where a wheel for the base is kept
or the base ships a Horovod that passes the proof. What a failed or interrupted build leaves in an engine is removed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.core import package_directory, paths
from runner.core.checkout import commit_and_changes
from runner.core.errors import InfrastructureError, ProgramFailedError, RefusedError, UsageError
from runner.core.files import files_below, key_of, tree_hash
from runner.core.lock import locked
from runner.core.package_directory import PackageDirectory
from runner.core.progress import Progress
from runner.images import reference
from runner.images.building import engine_build, standin, wheels
from runner.images.building.buildlog import LAST_LINES
from runner.images.building.engine_build import EngineBase, container_of, tar_of
from runner.images.building.wheels import SHIPPED
from runner.images.engine import find_image
from runner.model.image import INPUTS_LABEL

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image


_REVISION, _BASE_DIGEST = "org.opencontainers.image.revision", "org.opencontainers.image.base.digest"
_TAG_LIMIT = 128  # characters that a tag may have
_VERSION = "0.28.1"
_WHEEL_DIR = "/opt/wheel"
DEFAULT_ARGS = {
    "pytorch": {"CXX_STANDARD": "auto", "CUDA_ARCHS": "auto", "NCCL": "auto"},
    "tensorflow": {"CXX_STANDARD": "auto", "CUDA_ARCHS": "auto", "NCCL": "auto", "LEGACY_KERAS": "1"},
}


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """What every build says of its image."""

    reference: str
    base: str
    base_digest: str
    up_to_date: bool
    seconds: float
    size_bytes: int
    about: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BuiltImage(BuildResult):
    """An image in an engine that was built now or before.

    Attributes:
        reference: its name in the engine. digest: its id, ``sha256:...``. labels: as in its configuration.
        base: the base's reference. base_digest: registry digest, or the id of a local base.
        up_to_date: nothing was built. seconds: how long it took. size_bytes: unpacked. about: what it says of itself.
    """

    digest: str
    labels: Mapping[str, str]


def build(
    framework: str,
    base: str | None,
    client: docker.DockerClient,
    progress: Progress,
    *,
    platform: str | None = None,
    args: Mapping[str, str] | None = None,
    packages: PackageDirectory | None = None,
) -> BuiltImage:
    """Build ``framework``'s image on ``base`` (a stand-in's name, a reference, or None for the framework's default).

    Args:
        args: build arguments (CXX_STANDARD, CUDA_ARCHS, NCCL, for TensorFlow LEGACY_KERAS) over the defaults.
        packages: what pip takes packages from; nothing then uses a network.

    Raises:
        RefusedError: the base is not available, or the packages are not those that were collected, or for another base.
        ProgramFailedError: a build step failed, its proof included. InfrastructureError: the engine failed.
    """
    if framework not in reference.DEFAULT_BASES:
        raise UsageError(f"no framework named {framework!r}", fix=f"one of: {', '.join(reference.DEFAULT_BASES)}")
    started = time.monotonic()
    wanted = base or reference.DEFAULT_BASES[framework]
    stand_in = standin.find_standin(framework, wanted)
    base_reference = standin.standin_reference(stand_in) if stand_in else str(reference.parse(wanted))
    if packages is not None:
        _check_packages(framework, packages, progress)
        base_image = engine_build.present_image(client, base_reference, platform)
    else:
        if stand_in:
            standin.ensure_standin(stand_in, client, progress)
        base_image = engine_build.base_image(client, base_reference, platform, progress)
    base_id = str(base_image.id)
    pulled = base_image.attrs.get("RepoDigests") or []
    base_digest = str(pulled[0]).rsplit("@", 1)[-1] if pulled else base_id
    chosen = {**DEFAULT_ARGS[framework], **(args or {})}
    settings = (f"{name}={value}" for name, value in sorted(chosen.items()))
    inputs = key_of(tree_hash(context_files(framework)), base_id, platform or "", *settings)
    labels = build_labels(framework, inputs, base_reference, base_digest)
    target = image_name(framework, wanted, chosen)

    engine_base = EngineBase(framework, base_reference, base_id, chosen, platform, packages)
    made, up_to_date = made_once(
        client, target, inputs, progress, lambda: _build_final(client, engine_base, target, labels, progress)
    )
    return BuiltImage(
        reference=target,
        base=base_reference,
        base_digest=base_digest,
        up_to_date=up_to_date,
        seconds=time.monotonic() - started,
        **described(client, made),
    )


def made_once(
    client: docker.DockerClient, target: str, inputs: str, progress: Progress, make: Callable[[], Image]
) -> tuple[Image, bool]:
    """The image with these inputs under its name, made by one process at a time; and whether it was there."""

    def existing() -> Image | None:
        image = None if paths.caches_ignored() else find_image(client, target)
        return image if image is not None and image.labels.get(INPUTS_LABEL) == inputs else None

    if (there := existing()) is not None:
        return there, True
    with locked(paths.ensure_directory(paths.cache("locks")) / "build.lock", progress.step):
        return existing() or make(), False


def described(client: docker.DockerClient, image: Image) -> dict[str, Any]:
    """What a BuiltImage says of the image itself."""
    return {
        "digest": str(image.id),
        "labels": dict(image.labels),
        "size_bytes": int(image.attrs["Size"]),
        "about": engine_build.about(client, str(image.id)),
    }


def image_name(framework: str, base: str, args: Mapping[str, str] | None = None) -> str:
    """``gpu-runner/horovod-pytorch:25.02-py3``: the tag says the base, with its owner where that is not the default's.

    ``docker.io/someone/pytorch:25.02-py3`` becomes ``gpu-runner/horovod-pytorch:someone-pytorch-25.02-py3``, and an
    image that keeps Keras 3 ends in ``-keras3``, one that is to have no NCCL in ``-without-nccl``.
    """
    endings = (("LEGACY_KERAS", "0", "-keras3"), ("NCCL", "none", "-without-nccl"))
    ending = "".join(text for name, value, text in endings if (args or {}).get(name) == value)
    if standin.find_standin(framework, base):
        return f"gpu-runner/horovod-{framework}:{base}{ending}"
    parsed = reference.parse(base)
    version = parsed.tag or parsed.digest.removeprefix("sha256:")[:12]
    usual = reference.parse(reference.DEFAULT_BASES[framework])
    origin = [parsed.registry, parsed.repository]
    owner = [] if origin == [usual.registry, usual.repository] else origin
    tag = re.sub(r"[^A-Za-z0-9_.-]", "-", "-".join(filter(None, [*owner, version]))) + ending
    if len(tag) > _TAG_LIMIT:
        tag = f"{key_of(tag)}-{tag[-64:].lstrip('.-')}"
    return f"gpu-runner/horovod-{framework}:{tag}"


def context_files(framework: str) -> list[tuple[str, Path]]:
    """(name in the build context, path) of everything the Dockerfile copies, and the Dockerfile."""
    containers, recipes = paths.share("containers"), paths.share("recipes")
    parts = [("containers/horovod", containers / "horovod"), (f"containers/{framework}", containers / framework)]
    parts.append(("recipes", recipes))
    return [(f"{prefix}/{name}", path) for prefix, root in parts for name, path in files_below(root)]


def _check_packages(framework: str, packages: PackageDirectory, progress: Progress) -> None:
    if framework == "tensorflow" != packages.manifest.framework:
        raise RefusedError(
            f"these packages are for {packages.manifest.framework}: the Keras of TensorFlow is not among them",
            where=f"--wheels {packages.path}",
            fix=f"collect where there is a network: {package_directory.collect_command(packages.path)} --image "
            "--framework tensorflow",
        )
    # Those of a framework may be gigabytes, and are not used here: the base has its own.
    parts = (package_directory.HOROVOD, package_directory.COMPILED)
    package_directory.check(packages.path, packages.manifest, progress, parts=parts)
    wheels.keep_collected(packages, progress.line)


def build_labels(framework: str, inputs: str, base: str, base_digest: str, builder: str = "") -> dict[str, str]:
    """What every built image is labelled with."""
    revision, dirty = source_state()
    return {
        INPUTS_LABEL: inputs,
        **({"gpu-runner.builder": builder} if builder else {}),
        "gpu-runner.framework": framework,
        "gpu-runner.source.dirty": dirty,
        _REVISION: revision,
        "org.opencontainers.image.base.name": base,
        _BASE_DIGEST: base_digest,
    }


def source_state() -> tuple[str, str]:
    """(commit, ``true``/``false``/``unknown`` for local changes) of the checkout that this runs from."""
    commit, changed = commit_and_changes() or ("unknown", None)
    return commit, "unknown" if changed is None else str(changed).lower()


def _build_final(
    client: docker.DockerClient, base: EngineBase, target: str, labels: Mapping[str, str], progress: Progress
) -> Image:
    files = context_files(base.framework)
    horovod = _horovod_for(client, base, files, progress)
    if horovod.wheel is not None:
        files.append((f"containers/horovod/wheels/{horovod.key}/{horovod.wheel.name}", horovod.wheel))
    args = {"HOROVOD": horovod.key, "BASE_DIGEST": labels[_BASE_DIGEST], "SOURCE": labels[_REVISION]}
    all_labels = {**labels, **_labels_of(horovod)}
    return engine_build.run(client, base, progress, files=files, tag=target, args=args, labels=all_labels)


@dataclass(frozen=True)
class _Horovod:
    """Which Horovod an image gets. key: of its wheel, or SHIPPED. wheel: the kept one; None for the base's own."""

    key: str
    wheel: Path | None
    facts: Mapping[str, Any]
    fixes: Sequence[str]


def _horovod_for(
    client: docker.DockerClient, base: EngineBase, files: Sequence[tuple[str, Path]], progress: Progress
) -> _Horovod:
    """The base's own Horovod where that is proven, else a kept wheel for this base, compiled first where none is."""
    progress.step("finding out which Horovod the base needs")
    answer = _query_base(client, base)
    key, facts, fixes = str(answer["key"]), answer["facts"], answer["fixes"]
    if (packages := base.packages) is not None and (
        why := package_directory.misfit(packages.manifest, str(facts["python"]), str(facts["arch"]))
    ):
        raise RefusedError(
            f"the packages do not fit {base.reference}: {why} in the base",
            where=f"--wheels {packages.path}",
            fix=f"collect those of every Python where there is a network: "
            f"{package_directory.collect_command(packages.path)} --image --framework {base.framework}",
        )
    progress.line(answer["why"] or "the base's own Horovod passes the proof: nothing is built")
    if key == SHIPPED:
        return _Horovod(key, None, facts, fixes)
    if (kept := wheels.find(base.identity, key, progress.line)) is not None:
        progress.line(f"taking the wheel kept under {key}")
        return _Horovod(key, kept, facts, fixes)
    progress.step("compiling Horovod (3 to 20 minutes on two cores; kept afterwards)")
    stage = f"gpu-runner/horovod-wheel:{key}"
    engine_build.run(client, base, progress, files=files, tag=stage, target="wheel", args={"HOROVOD": "build"})
    try:
        made = engine_build.files_of(client, stage, _WHEEL_DIR)
    finally:
        engine_build.remove_image(client, stage)
    name = next((name for name in made if name.endswith(".whl")), None)
    if name is None:
        raise InfrastructureError("the compile left no wheel", where=f"{stage}:{_WHEEL_DIR}")
    return _Horovod(key, wheels.keep(base.identity, key, Path(name).name, made[name]), facts, fixes)


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
        files: list[tuple[str, Path | bytes]] = [*files_below(source), *base.package_files()]
        programs = tar_of([(f"opt/runner/{name}", content) for name, content in files])
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


def _labels_of(horovod: _Horovod) -> dict[str, str]:
    """Facts about the base as labels, which engines and registries show; all facts are in /opt/runner/image.json."""
    mpi = horovod.facts["mpi"]
    facts = {
        "framework.version": horovod.facts["framework_version"],
        "python": horovod.facts["python"],
        "arch": horovod.facts["arch"],
        "cuda": horovod.facts["cuda"],
        "nccl": horovod.facts["nccl"],
        "mpi": f"{mpi['flavour']} {mpi['version']}".strip(),
        "horovod.version": _VERSION if horovod.wheel is not None else "",  # that of the base's own is in image.json
        "horovod.wheel": horovod.key,
        "horovod.fixes": ",".join(horovod.fixes),
    }
    return {f"gpu-runner.{name}": str(value or "") for name, value in facts.items()}
