"""Build an image: a base with a framework, plus a Horovod that is proven inside it.

A build is skipped where an image with the same inputs exists, and compiles nothing where the wheel is kept or the
base ships a Horovod that passes the proof. What
a failed or interrupted build leaves (containers, untagged images of ours) is removed.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from runner import paths, process
from runner.errors import InfrastructureError, ProgramFailedError, RefusedError, UsageError
from runner.images import buildlog, reference, standin, standins
from runner.images.engine import needs_host_network
from runner.images.keys import cold, files_below, key_of, tree_hash
from runner.images.locks import held
from runner.images.progress import Progress

if TYPE_CHECKING:
    import docker
    from docker.models.images import Image

DEFAULT_BASES = {
    "pytorch": "nvcr.io/nvidia/pytorch:25.02-py3",
    "tensorflow": "nvcr.io/nvidia/tensorflow:25.02-tf2-py3",
}
INPUTS_LABEL = "gpu-runner.inputs"
PART_LABEL = "gpu-runner.part"
_HOROVOD_VERSION = "0.28.1"
_WHEEL_DIR = "/opt/wheel"
_LAST_LINES = 25
_STOP_S = 15.0
_TAG_LIMIT = 128  # characters that a tag may have
_FULL_MEND = "free space on the engine's disk: docker system df shows what takes it"
_SHIPPED = "shipped"  # the key of a Horovod that is the base's own (containers/horovod/build.py)
_DEFAULT_ARGS = {
    "pytorch": {"CXX_STANDARD": "auto", "CUDA_ARCHS": "80,90"},
    "tensorflow": {"CXX_STANDARD": "auto", "CUDA_ARCHS": "80,90", "LEGACY_KERAS": "1"},
}


@dataclass(frozen=True)
class BuiltImage:
    """An image that was built, or was there already.

    Attributes:
        reference: its name in the engine. digest: its id, ``sha256:...``.
        labels: as in its configuration.
        base: the base's reference. base_digest: registry digest, or the id of a local base.
        up_to_date: nothing was built.
        seconds: how long it took. size_bytes: unpacked size.
    """

    reference: str
    digest: str
    labels: Mapping[str, str]
    base: str
    base_digest: str
    up_to_date: bool
    seconds: float
    size_bytes: int


@dataclass(frozen=True)
class _Horovod:
    """Which Horovod an image gets.

    Attributes:
        key: of its wheel, or _SHIPPED. wheel: the kept wheel; None for the base's own.
        facts: what the base says of itself. mends: patches that the wheel was built with.
    """

    key: str
    wheel: Path | None
    facts: Mapping[str, Any]
    mends: Sequence[str]


@dataclass(frozen=True)
class _Plan:
    """One image to build: everything decided, nothing done."""

    framework: str
    target: str
    base: str
    base_id: str
    args: Mapping[str, str]
    labels: Mapping[str, str]
    inputs: str
    platform: str | None


def build(
    framework: str,
    base: str | None,
    client: docker.DockerClient,
    progress: Progress,
    *,
    platform: str | None = None,
    args: Mapping[str, str] | None = None,
) -> BuiltImage:
    """Build ``framework``'s image on ``base`` (a stand-in's name, a reference, or None for the framework's default).

    Args:
        platform: such as ``linux/arm64``, passed through to the engine.
        args: build arguments (CXX_STANDARD, CUDA_ARCHS, for TensorFlow LEGACY_KERAS) over the defaults.

    Raises:
        UsageError: no such framework. RefusedError: the base cannot be had.
        ProgramFailedError: a build step failed, its proof included. InfrastructureError: the engine failed.
    """
    if framework not in DEFAULT_BASES:
        raise UsageError(f"no framework named {framework!r}", mend=f"one of: {', '.join(DEFAULT_BASES)}")
    started = time.monotonic()
    wanted = base or DEFAULT_BASES[framework]
    stand_in = standins.find(framework, wanted)
    base_reference = standin.ensure(stand_in, client, progress) if stand_in else str(reference.parse(wanted))
    base_image = _base_image(client, base_reference, platform, progress)
    plan = _plan(framework, wanted, base_reference, base_image, {**_DEFAULT_ARGS[framework], **(args or {})}, platform)
    made = None if cold() else _existing(client, plan)
    if made is not None:
        return _built(made, plan, started, up_to_date=True)
    with held(paths.made(paths.cache_dir() / "locks") / "build.lock", progress.step):
        made = None if cold() else _existing(client, plan)
        if made is None:
            made = _build_final(client, plan, _horovod(client, plan, progress), progress)
    return _built(made, plan, started, up_to_date=False)


def image_name(framework: str, base: str, *, keras3: bool = False) -> str:
    """``gpu-runner/horovod-pytorch:25.02-py3``: the tag says the base, with its owner where that is not the default's.

    ``docker.io/someone/pytorch:25.02-py3`` becomes ``gpu-runner/horovod-pytorch:someone-pytorch-25.02-py3``, and an
    image that keeps Keras 3 ends in ``-keras3``.
    """
    keras = "-keras3" if keras3 else ""
    if standins.find(framework, base):
        return f"gpu-runner/horovod-{framework}:{base}{keras}"
    parsed = reference.parse(base)
    version = parsed.tag or parsed.digest.removeprefix("sha256:")[:12]
    usual = reference.parse(DEFAULT_BASES[framework])
    origin = [parsed.registry, parsed.repository]
    words = [] if origin == [usual.registry, usual.repository] else origin
    tag = re.sub(r"[^A-Za-z0-9_.-]", "-", "-".join(filter(None, [*words, version]))) + keras
    if len(tag) > _TAG_LIMIT:
        tag = f"{key_of(tag)}-{tag[-64:].lstrip('.-')}"
    return f"gpu-runner/horovod-{framework}:{tag}"


def context_files(framework: str) -> list[tuple[str, Path]]:
    """(name in the build context, path) of everything the Dockerfile copies, and the Dockerfile."""
    containers, recipes = paths.share("containers"), paths.share("recipes")
    parts = [("containers/horovod", containers / "horovod"), (f"containers/{framework}", containers / framework)]
    parts.append(("recipes", recipes))
    return [(f"{prefix}/{name}", path) for prefix, root in parts for name, path in files_below(root)]


def _plan(
    framework: str, wanted: str, base_reference: str, base_image: Image, args: Mapping[str, str], platform: str | None
) -> _Plan:
    base_id = str(base_image.id)
    inputs = key_of(
        tree_hash(context_files(framework)),
        base_id,
        platform or "",
        *(f"{name}={value}" for name, value in sorted(args.items())),
    )
    revision, dirty = _source_state()
    labels = {
        INPUTS_LABEL: inputs,
        "gpu-runner.framework": framework,
        "gpu-runner.horovod.version": _HOROVOD_VERSION,
        "gpu-runner.source.dirty": dirty,
        "org.opencontainers.image.revision": revision,
        "org.opencontainers.image.base.name": base_reference,
        "org.opencontainers.image.base.digest": _digest(base_image),
    }
    target = image_name(framework, wanted, keras3=args.get("LEGACY_KERAS") == "0")
    return _Plan(framework, target, base_reference, base_id, args, labels, inputs, platform)


def _source_state() -> tuple[str, str]:
    """(commit, ``true``/``false``/``unknown`` for local changes) of the checkout that this runs from."""
    root = paths.source_root()
    if root is None or process.find("git") is None:
        return "unknown", "unknown"
    commit = process.run(["git", "-C", root, "rev-parse", "HEAD"], timeout_s=10, check=False)
    status = process.run(["git", "-C", root, "status", "--porcelain"], timeout_s=10, check=False)
    return (
        commit.out.strip() if commit.code == 0 else "unknown",
        "unknown" if status.code != 0 else str(bool(status.out.strip())).lower(),
    )


def _digest(image: Image) -> str:
    """Registry digest of a pulled image; the id of one that never saw a registry."""
    pulled = image.attrs.get("RepoDigests") or []
    return str(pulled[0]).rsplit("@", 1)[-1] if pulled else str(image.id)


def _existing(client: docker.DockerClient, plan: _Plan) -> Image | None:
    """An image with these inputs, under its name."""
    import docker

    with suppress(docker.errors.ImageNotFound):
        image = client.images.get(plan.target)
        if image.labels.get(INPUTS_LABEL) == plan.inputs:
            return image
    return None


def _built(image: Image, plan: _Plan, started: float, *, up_to_date: bool) -> BuiltImage:
    return BuiltImage(
        reference=plan.target,
        digest=str(image.id),
        labels=dict(image.labels),
        base=plan.base,
        base_digest=plan.labels["org.opencontainers.image.base.digest"],
        up_to_date=up_to_date,
        seconds=time.monotonic() - started,
        size_bytes=int(image.attrs["Size"]),
    )


def _base_image(client: docker.DockerClient, name: str, platform: str | None, progress: Progress) -> Image:
    """The base in the engine, pulled where it is absent."""
    import docker

    with suppress(docker.errors.ImageNotFound):
        return client.images.get(name)
    progress.step(f"pulling {name}")
    try:
        for chunk in client.api.pull(name, stream=True, decode=True, platform=platform):
            if "error" in chunk:
                raise _pull_error(name, str(chunk["error"]))
            if chunk.get("status") and not chunk.get("progress"):
                progress.line(" ".join(str(chunk[key]) for key in ("id", "status") if chunk.get(key)))
        return client.images.get(name)
    except docker.errors.APIError as error:
        raise _pull_error(name, str(error.explanation or error)) from error


def _pull_error(name: str, said: str) -> RefusedError | InfrastructureError:
    """What to do about a pull that failed, from what the engine said."""
    lower = said.lower()
    host = reference.parse(name).registry or "docker.io"
    if any(word in lower for word in ("unauthorized", "denied", "401", "authentication required")):
        user = " (user name $oauthtoken, password your NGC API key)" if host == "nvcr.io" else ""
        return RefusedError(
            f"{host} does not give out {name}: {said}",
            where=name,
            mend=f"check the name, then log the engine in: docker login {host}{user}",
        )
    if any(word in lower for word in ("not found", "manifest unknown", "no such image")):
        return RefusedError(f"{host} has no image {name}: {said}", where=name, mend="check the name and the tag")
    if "no space left" in lower:
        return InfrastructureError(f"the engine's disk is full: {said}", where=name, mend=_FULL_MEND)
    return InfrastructureError(
        f"pulling {name} failed: {said}",
        where=name,
        mend=f"check that the engine reaches {host}; with no registry, `--base standin` makes a test base locally",
    )


def _horovod(client: docker.DockerClient, plan: _Plan, progress: Progress) -> _Horovod:
    """The base's own Horovod where that is proven, else a kept wheel for this base, compiled first where none is."""
    progress.step("asking the base what a Horovod for it is made of")
    answer = _asked_of_base(client, plan)
    key, facts, mends = str(answer["key"]), answer["facts"], answer["mends"]
    progress.line(answer["why"] or "the base's own Horovod passes the proof: nothing is built")
    if key == _SHIPPED:
        return _Horovod(key, None, facts, mends)
    shelf = paths.cache_dir() / "wheels" / key
    kept = sorted(shelf.glob("*.whl"))
    if kept and not cold():
        progress.line(f"taking the wheel kept under {key}")
        return _Horovod(key, kept[0], facts, mends)
    progress.step("compiling Horovod (3 to 20 minutes on two cores; kept afterwards)")
    stage = f"gpu-runner/horovod-wheel:{key}"
    args = {**plan.args, "HOROVOD": "build"}
    _run_build(client, plan, progress, files=context_files(plan.framework), tag=stage, target="wheel", args=args)
    try:
        name, content = _read_wheel(client, stage)
    finally:
        _remove_image(client, stage)
    shelf.mkdir(parents=True, exist_ok=True)
    made = shelf / f".{name}.{os.getpid()}"
    made.write_bytes(content)
    return _Horovod(key, made.rename(shelf / name), facts, mends)


def _asked_of_base(client: docker.DockerClient, plan: _Plan) -> dict[str, Any]:
    """``key``, ``why`` (not the base's own Horovod), ``facts`` and ``mends``, by the program that would build there."""
    import docker

    words = ["/opt/runner/build.py", "key", "--framework", plan.framework]
    words += ["--cxx-standard", plan.args["CXX_STANDARD"], "--cuda-archs", plan.args["CUDA_ARCHS"]]
    env = {"TF_USE_LEGACY_KERAS": plan.args["LEGACY_KERAS"]} if "LEGACY_KERAS" in plan.args else {}
    source = paths.share("containers") / "horovod"
    with _container(client, plan.base_id, ["python3", *words], platform=plan.platform, env=env) as container:
        programs = _tar([(f"opt/runner/{name}", path) for name, path in files_below(source)])
        container.put_archive("/", programs.getvalue())
        try:
            container.start()
        except docker.errors.APIError as error:
            raise _unfit_base(plan, str(error.explanation)) from error
        code = container.wait()["StatusCode"]
        out = container.logs(stdout=True, stderr=False).decode("utf-8", "replace")
        if code != 0:
            raise _unfit_base(plan, container.logs(tail=_LAST_LINES).decode("utf-8", "replace"))
    answer = json.loads(out.strip().splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def _unfit_base(plan: _Plan, said: str) -> ProgramFailedError:
    return ProgramFailedError(
        f"{plan.base} cannot be a base for {plan.framework}:\n{said.strip()}",
        where=plan.base,
        mend=f"choose a base image that carries {plan.framework}, such as {DEFAULT_BASES[plan.framework]}",
    )


def _read_wheel(client: docker.DockerClient, image: str) -> tuple[str, bytes]:
    with _container(client, image, ["true"]) as container:
        chunks, _ = container.get_archive(_WHEEL_DIR)
        archive = io.BytesIO(b"".join(chunks))
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name.endswith(".whl") else None
            if content is not None:
                return Path(member.name).name, content.read()
    raise InfrastructureError("the compile left no wheel", where=f"{image}:{_WHEEL_DIR}")


@contextmanager
def _container(
    client: docker.DockerClient,
    image: str,
    words: Sequence[str],
    *,
    platform: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """A created container, removed at the end whatever happens."""
    import docker

    more: dict[str, Any] = {"environment": dict(env or {})}
    if needs_host_network(client):
        more["network_mode"] = "host"
    if platform:
        more["platform"] = platform
    container = client.containers.create(image, list(words[1:]), entrypoint=[words[0]], **more)
    try:
        yield container
    finally:
        with suppress(docker.errors.APIError):
            container.remove(force=True, v=True)


def _build_final(client: docker.DockerClient, plan: _Plan, horovod: _Horovod, progress: Progress) -> Image:
    """The finished image under its name; an image that bore the name before is removed if nothing else uses it."""
    import docker

    before = None
    with suppress(docker.errors.ImageNotFound):
        before = client.images.get(plan.target).id
    files = context_files(plan.framework)
    if horovod.wheel is not None:
        files.append((f"containers/horovod/wheels/{horovod.key}/{horovod.wheel.name}", horovod.wheel))
    args = {
        **plan.args,
        "HOROVOD": _SHIPPED if horovod.wheel is None else "build",
        "BASE_DIGEST": plan.labels["org.opencontainers.image.base.digest"],
        "SOURCE": plan.labels["org.opencontainers.image.revision"],
    }
    labels = {**plan.labels, **_labels(horovod)}
    _run_build(client, plan, progress, files=files, tag=plan.target, target=None, args=args, labels=labels)
    image = client.images.get(plan.target)
    if before and before != image.id:
        _remove_image(client, before)
    _sweep(client, [])
    return image


def _labels(horovod: _Horovod) -> dict[str, str]:
    """What the base said of itself, where engines and registries show it; all of it is in /opt/runner/image.json."""
    mpi = horovod.facts["mpi"]
    said = {
        "framework.version": horovod.facts["framework_version"],
        "python": horovod.facts["python"],
        "arch": horovod.facts["arch"],
        "cuda": horovod.facts["cuda"],
        "nccl": horovod.facts["nccl"],
        "mpi": f"{mpi['flavour']} {mpi['version']}".strip(),
        "horovod.wheel": horovod.key,
        "horovod.mends": ",".join(horovod.mends),
    }
    return {f"gpu-runner.{name}": str(value or "") for name, value in said.items()}


def _run_build(
    client: docker.DockerClient,
    plan: _Plan,
    progress: Progress,
    *,
    files: Sequence[tuple[str, Path]],
    tag: str,
    target: str | None,
    args: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
) -> None:
    """Stream one build; raises with the failing step and its last lines, leaving nothing behind."""
    import docker

    containers: list[str] = []
    try:
        with tempfile.TemporaryFile() as context:
            context.write(_tar(files).getbuffer())
            context.seek(0)
            chunks = client.api.build(
                fileobj=context,
                custom_context=True,
                dockerfile=f"containers/{plan.framework}/Dockerfile",
                tag=tag,
                target=target or "",
                buildargs={"BASE": plan.base, **args},
                labels=dict(labels or {}),
                network_mode="host" if needs_host_network(client) else None,
                platform=plan.platform,
                nocache=cold(),
                rm=True,
                forcerm=True,
                decode=True,
            )
            _follow(chunks, containers, progress)
    except BaseException as error:
        _sweep(client, containers)
        if isinstance(error, docker.errors.APIError):
            raise InfrastructureError(f"the engine refused the build: {error.explanation}", where=tag) from error
        raise


def _follow(chunks: Iterator[Mapping[str, Any]], containers: list[str], progress: Progress) -> None:
    log = buildlog.BuildLog()
    step = buildlog.Step(0, 0, "the beginning")
    last: list[str] = []

    def take(event: buildlog.Event) -> None:
        nonlocal step
        match event:
            case buildlog.Step():
                step = event
                last.clear()
                progress.step(event.text, event.number, event.total)
            case buildlog.Line(text):
                last.append(text)
                del last[:-_LAST_LINES]
                progress.line(text)
            case buildlog.Started(container):
                containers.append(container)
            case buildlog.Failed():
                raise _failure(event, step, last)

    for chunk in chunks:
        for event in log.feed(chunk):
            take(event)
    for event in log.end():
        take(event)


def _failure(
    event: buildlog.Failed, step: buildlog.Step, last: Sequence[str]
) -> ProgramFailedError | InfrastructureError:
    said = "\n".join([*last, event.message])
    if "no space left" in said.lower():
        return InfrastructureError("the engine's disk is full", where=step.text, mend=_FULL_MEND)
    return ProgramFailedError(
        f"build step {step.number}/{step.total} failed"
        + (f" with exit code {event.code}" if event.code else "")
        + f":\n{said}",
        where=step.text,
        mend="the lines above are the step's last ones; mend what they name and build again",
    )


def _sweep(client: docker.DockerClient, containers: Sequence[str]) -> None:
    """Remove what a build leaves: its steps' containers, and untagged images of ours that nothing uses.

    The build lock is held, so no other build of ours has untagged images that it still needs.
    """
    import docker

    # An engine needs a moment to stop the step of a build whose client went away.
    deadline = time.monotonic() + _STOP_S
    left = [name for name in containers if _exists(client.containers.get, name)]
    while left and time.monotonic() < deadline:
        for name in left:
            with suppress(docker.errors.APIError):
                client.api.remove_container(name, force=True, v=True)
        time.sleep(0.2)
        left = [name for name in left if _exists(client.containers.get, name)]
    with suppress(docker.errors.APIError):
        client.images.prune(filters={"dangling": True, "label": [PART_LABEL]})


def _exists(get: Callable[[str], Any], name: str) -> bool:
    import docker

    try:
        get(name)
    except docker.errors.NotFound:
        return False
    return True


def _remove_image(client: docker.DockerClient, name: str) -> None:
    """Remove an image, unless another name or a container still uses it."""
    import docker

    with suppress(docker.errors.APIError):
        client.images.remove(name)


def _tar(files: Sequence[tuple[str, Path]]) -> io.BytesIO:
    """A tar that depends on names, contents and the permission to execute alone, so that engines' caches hit."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, path in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            content: IO[bytes]
            with path.open("rb") as content:
                tar.addfile(entry, content)
    archive.seek(0)
    return archive
