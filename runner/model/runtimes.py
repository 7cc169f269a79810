"""What is known of each runtime besides how it runs a step: one row each, in the order in which a site prefers them.

A new runtime is a module in ``runner.backends.runtimes`` and its row here.
"""

from __future__ import annotations

import msgspec

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
        module: in ``runner.backends.runtimes``.
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
    """

    module: str
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

    @property
    def is_container(self) -> bool:
        """Whether it runs images."""
        return self.image != "none"


# Enroot's hook reads these variables as NVIDIA's container runtime does (Enroot 4.1, conf/hooks/98-nvidia.sh).
_BY_ENROOTS_HOOK = (
    "Enroot's hook 98-nvidia.sh brings the driver, if the image sets NVIDIA_VISIBLE_DEVICES=all and "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility, as NVIDIA's do; if it does, ask the site for the hook and for "
    "nvidia-container-cli (libnvidia-container)"
)
_APPTAINER = RuntimeFacts(
    module="apptainer",
    title="Apptainer",
    image="sif",
    mounts=MountSyntax(forbidden=",:\\"),  # --bind splits at ',' and ':'; newer versions take '\' for an escape
    program="apptainer",
    driver="--nv, which the job has, brings the driver: on that node `nvidia-smi` must work, and `ldconfig -p` list "
    "libcuda",
    versions={"apptainer": ("apptainer", "--version")},
)

# Name -> what to do instead, of runtimes that were here.
GONE = {
    "sarus": "sites with Sarus now have Podman, or the Container Engine, which takes Enroot's images as Pyxis does: "
    "--runtime podman-hpc, enroot or pyxis"
}


class _Rows(dict[str, RuntimeFacts]):
    def __missing__(self, name: str) -> RuntimeFacts:
        """Of a container runtime that is not here any more: what was run in it can still be read."""
        return RuntimeFacts(module="", title=name, image="registry")


RUNTIMES: dict[str, RuntimeFacts] = _Rows()
RUNTIMES |= {
    "pyxis": RuntimeFacts(
        module="pyxis",
        title="Pyxis",
        image="squashfs",
        # It splits mounts at ',' and ':', and hands them to Enroot through a shell's double quotes (0.24).
        mounts=MountSyntax(forbidden=',:"$`\\'),
        srun_option="container-image",
        plugin="spank_pyxis.so",
        user_namespaces=True,
        driver=_BY_ENROOTS_HOOK,
        failure="pyxis: ",
        versions={"enroot": ("enroot", "version")},  # its own is among the ranks' variables (PYXIS_VERSION)
    ),
    "shifter": RuntimeFacts(
        module="shifter",
        title="Shifter",
        image="registry",
        mounts=MountSyntax(only="A-Z a-z 0-9 _ . + / -"),  # userInputPathFilter drops all else without a message
        program="shifter",
        driver="Shifter's module for GPUs brings the driver (`gpu` at NERSC: `ways.shifter.modules` of the site file); "
        "ask the site for its name",
        srun_option="image",
        shows_home=True,
        versions={"shifter": ("shifter", "--version")},
    ),
    "apptainer": _APPTAINER,
    # Apptainer by its older name. Neither is listed with user_namespaces: it may be installed set-uid instead.
    "singularity": msgspec.structs.replace(
        _APPTAINER, program="singularity", versions={"singularity": ("singularity", "--version")}
    ),
    "enroot": RuntimeFacts(
        module="enroot",
        title="Enroot",
        image="squashfs",
        # --mount is a line of an fstab whose fields are separated by ':' (4.1, runtime.sh).
        mounts=MountSyntax(
            forbidden=": \t\n\v\f\r\\",
            pair="{source}:{target}:none:x-create=auto,rbind",
            read_only=",ro",
            writable=",rw",
        ),
        program="enroot",
        user_namespaces=True,
        driver=_BY_ENROOTS_HOOK,
        failure=r"(?:^|[\s/])enroot(?:-\w+)?: |/enroot/\S+\.sh: line",
        versions={"enroot": ("enroot", "version")},
    ),
    "podman-hpc": RuntimeFacts(
        module="podman_hpc",
        title="podman-hpc",
        image="registry",
        # --volume splits at ':' and has no escape; a relative path would name a volume of Podman's.
        mounts=MountSyntax(forbidden=":"),
        program="podman-hpc",
        driver="--gpu, which the job has, brings the driver (podman-hpc's module `gpu`); ask the site",
        versions={"podman-hpc": ("podman-hpc", "--version")},
        user_namespaces=True,
    ),
    "charliecloud": RuntimeFacts(
        module="charliecloud",
        title="Charliecloud",
        image="squashfs",
        mounts=MountSyntax(
            forbidden=":", absolute=False, read_only=""
        ),  # ch-run --bind splits at ':' and has no escape
        program="ch-run",
        user_namespaces=True,
        without_scheduler=True,
        driver="ch-run brings no driver: put it into the image with `ch-fromhost --nvidia`, on a machine that has it, "
        "or choose another runtime (--runtime)",
        # ch-run mounts nothing of the host's GPU driver; ch-fromhost changes the image, which our store does not do.
        brings_driver=False,
        install="apt-get install charliecloud-runtime squashfuse",
        failure=r"ch-run\[\d+\]: error",
        versions={"charliecloud": ("ch-run", "--version")},
    ),
    NATIVE: RuntimeFacts(
        module="native",
        title=NATIVE,
        image="none",
        mounts=MountSyntax(absolute=False),  # host paths are visible under the same path
        program="python3",
        shows_home=True,
        without_scheduler=True,
        driver="the node itself has the driver: `nvidia-smi` must work there, and `ldconfig -p` list libcuda; some "
        "sites have a module for it",
        brings_driver=True,
        install="apt-get install python3",
    ),
}
# Runtime -> its program, of the containers that have one.
PROGRAMS = {name: facts.program for name, facts in RUNTIMES.items() if facts.is_container and facts.program}
