"""What is known of each runtime besides how it runs a step. Each runtime's own module has it as FACTS."""

from __future__ import annotations

import msgspec

from runner.core.registry import Registry, UnknownNameError
from runner.model.names import ImageForm

NATIVE = "native"  # no container: the program runs in an environment


class MountSyntax(msgspec.Struct, frozen=True):
    """The value of a runtime's mount option, and which paths it can hold.

    Attributes:
        forbidden: characters that its syntax gives a meaning and cannot escape.
        only: the characters that it accepts, as of a regular expression's class, with blanks between; empty for all.
        absolute: a path must start with ``/``.
        pair: how the option's value says what is mounted where, a format.
        read_only: what is appended to it for a mount that cannot be written to; empty where there is no such mount.
        writable: what is appended to it for any other.
    """

    forbidden: str = ""
    only: str = ""
    absolute: bool = True
    pair: str = "{source}:{target}"
    read_only: str = ":ro"
    writable: str = ""


class RuntimeFacts(msgspec.Struct, frozen=True):
    """One runtime.

    Attributes:
        title: its name in messages.
        image: the form in which it takes an image.
        mounts: the host paths that it can mount.
        program: its program in PATH; empty where it is only a plugin of srun.
        srun_option: the long option, without dashes, that its plugin adds to srun; empty without a plugin.
        plugin: file of that plugin, where it is needed.
        user_namespaces: it works only where ordinary users may make user namespaces.
        shows_home: programs see the home directory without a mount.
        without_scheduler: it works, without root, on a machine that no scheduler manages.
        brings_driver: GPUs of such a machine can be used in it with no further steps.
        driver: what brings NVIDIA's driver to its programs, and what to look at where it is not there.
        install: what installs it on such a machine.
        failure: regular expression of its lines that say why a container did not start; empty where unknown.
        versions: name -> command whose first line of output has the version of what runs its containers on a node.
        preference: where a site has several runtimes, the one with the lowest number is proposed first.
        version_variable: variable of the ranks that has the version of the runtime itself; empty without one.
        builds_images: it runs images that it built itself, ``localhost/NAME``.
        blanks: why a path with a blank may be no mount; empty where it is one.
    """

    title: str
    image: ImageForm
    mounts: MountSyntax = MountSyntax()
    program: str = ""
    srun_option: str = ""
    plugin: str = ""
    user_namespaces: bool = False
    shows_home: bool = False
    without_scheduler: bool = False
    driver: str = ""
    brings_driver: bool = False
    install: str = ""
    failure: str = ""
    versions: dict[str, tuple[str, ...]] = {}
    preference: int = 70
    version_variable: str = ""
    builds_images: bool = False
    blanks: str = ""

    @property
    def is_container(self) -> bool:
        """Whether it runs images."""
        return self.image != "none"


# Name -> what to do instead, of runtimes that were here.
GONE = {
    "sarus": "sites with Sarus now have Podman, or the Container Engine, which takes Enroot's images as Pyxis does: "
    "--runtime podman-hpc, enroot or pyxis"
}
RUNTIMES: Registry[RuntimeFacts] = Registry(
    "runtime", "runner.backends.runtimes", "gpu_runner.runtimes", RuntimeFacts, where="--runtime", gone=GONE
)


def facts_of_run(name: str) -> RuntimeFacts:
    """Of the runtime that a run was in. Of one that is not here any more nothing is known but that it ran images."""
    try:
        return RUNTIMES[name]
    except UnknownNameError:
        return RuntimeFacts(title=name, image="registry")


def programs() -> dict[str, str]:
    """Runtime -> its program, of the containers that have one."""
    facts = {name: RUNTIMES[name] for name in RUNTIMES.every()}
    return {name: each.program for name, each in facts.items() if each.is_container and each.program}
