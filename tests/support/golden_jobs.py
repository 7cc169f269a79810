"""The jobs for a scheduler whose scripts are kept in tests/golden/scripts, and how each script is made."""

from pathlib import Path

import msgspec

from runner.backends.runtimes import common, runtime
from runner.backends.schedulers import render
from runner.environments.script import EnvironmentSpec, setup_of_jobs
from runner.model.backends import RUNTIMES
from runner.model.image import Environment, Horovod, ImageFacts, Mpi
from runner.model.plan import Plan, PlannedImage
from runner.model.request import ImageForm, Mount, Request
from runner.model.site import RuntimeAtSite, Site
from runner.model.step import JobScript, StepSpec
from runner.planning.placement import with_queue
from runner.planning.plan import plan
from runner.preparation.choices import as_image
from runner.recipes.loader import read_recipe
from runner.sites.loader import read_site
from runner.sites.user import Personal, account, expand_placeholders
from runner.study.chain import with_attempt

FILE = PlannedImage(
    reference="gpu-runner/horovod-pytorch:25.02-py3",
    digest="sha256:1f0ce1d2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6",
    path="/lustre/u/images/sha256-1f0ce1d2a3b4.sqsh",
    size_bytes=7_100_000_000,
    sha256="0badc0ffee" * 6 + "0bad",
)
IMAGES: dict[ImageForm, PlannedImage] = {
    "squashfs": FILE,
    "sif": PlannedImage(reference="/lustre/u/images/horovod.sif", digest="", path="/lustre/u/images/horovod.sif"),
    "registry": PlannedImage(reference="registry.example.org/m1234/horovod-pytorch:25.02", digest="", path=""),
    "none": PlannedImage(reference="", digest="", path=""),
}
ELVIS = Personal(account="m1234", project="hvd", scratch="/scratch/e/elvis", field="nlp", user="elvis")
TRAIN = read_recipe("horovod-pytorch").recipe
PLAIN = Request(gpus=16)
HOSTILE = Request(
    gpus=16,
    mounts=(Mount("/data/My 'Sets'", "/data set", read_only=True), Mount("/scratch/(id);x&y#*", "/scratch")),
    env=(("NOTE", 'it\'s "quoted" $HOME `id` \\ # % é'), ("LINES_", "one\ntwo\t*")),
    options=(("steps", "a b'c"), ("seed", "-1")),
    arguments=("--note", "$(touch /tmp/x); 'q' \"d\"", "", "-n", "*"),
)
# What a runtime cannot express is refused; tests/unit/backends/schedulers/test_hostile_scripts.py says what.
SHIFTER = msgspec.structs.replace(HOSTILE, mounts=(Mount("/data/My.Sets", "/data", read_only=True),))
ENROOT = msgspec.structs.replace(
    HOSTILE, mounts=(Mount("/data/'$HOME'", "/data", read_only=True),), env=(HOSTILE.env[0], ("PAIR", '"a" "b"'))
)
CHARLIECLOUD = msgspec.structs.replace(HOSTILE, mounts=(Mount("/data/My Sets/$HOME", "/data set"),))
NATIVE = msgspec.structs.replace(
    HOSTILE, mounts=(Mount("/data/My 'Sets'", "/data/My 'Sets'"),), env=(*HOSTILE.env, ("OWN", "/results/own.log"))
)
ENVIRONMENT = "/scratch/e/elvis/gpu-runner/environments/horovod-pytorch"
ASKED = Request(
    gpus=2,
    gpu_type="a100_1g.5gb",
    cpus_per_gpu=3,
    queue="long queue",
    scheduler_options=(
        ("dependency", "afterok:41:42"),
        ("mail-type", "END,FAIL"),
        ("mail-user", "e@example.org"),
        ("nodelist", "n[01-04]"),
        ("reservation", "ours # 1"),
    ),
)
ASKED_OF_PBS = Request(
    gpus=8,
    walltime_s=1800,
    scheduler_options=(
        ("begin", "2027-01-02T03:04"),
        ("dependency", "afterok:41.pbs:42"),
        ("mail-type", "END,FAIL"),
        ("mail-user", "o'brien@example.org"),
    ),
)
SNAPSHOT = Request(gpus=2, directory="/home/e/project", program=("python",), copied_start="my code/$(id);*")
CASES: dict[str, tuple[str, str, Request]] = {
    "technion-16": ("technion", "pyxis", PLAIN),
    "technion-2": ("technion", "pyxis", Request(gpus=2, walltime_s=600)),
    "technion-13-uneven": ("technion", "pyxis", Request(gpus=13)),
    "technion-hostile": ("technion", "pyxis", msgspec.structs.replace(HOSTILE, account="m1234_g")),
    "technion-pmix-hostile": ("technion", "pyxis", msgspec.structs.replace(HOSTILE, wireup="pmix")),
    "technion-pmix-16": ("technion", "pyxis", Request(gpus=16, wireup="pmix")),
    "alpha-pmix-hostile": ("alpha", "singularity", msgspec.structs.replace(HOSTILE, wireup="pmix")),
    "alpha-virtualenv-pmix-hostile": ("alpha", "native", msgspec.structs.replace(NATIVE, wireup="pmix")),
    "perlmutter-shared-2": ("perlmutter", "shifter", Request(gpus=2)),
    "polaris-capacity-16": ("polaris", "apptainer", Request(gpus=16, walltime_s=600_000)),
    "box-16": ("box", "charliecloud", PLAIN),
    "box-hostile": ("box", "charliecloud", msgspec.structs.replace(CHARLIECLOUD, account="m1234_g")),
    "box-pyxis-16": ("box", "pyxis", PLAIN),
    "perlmutter-shifter-16": ("perlmutter", "shifter", PLAIN),
    "perlmutter-shifter-hostile": ("perlmutter", "shifter", SHIFTER),
    "perlmutter-podman-16": ("perlmutter", "podman-hpc", PLAIN),
    "perlmutter-podman-hostile": ("perlmutter", "podman-hpc", HOSTILE),
    "perlmutter-podman-pmi2": ("perlmutter", "podman-hpc", Request(gpus=16, wireup="pmi2", queue="debug")),
    "alpha-16": ("alpha", "singularity", PLAIN),
    "alpha-13-uneven": ("alpha", "singularity", Request(gpus=13)),
    "alpha-hostile": ("alpha", "singularity", HOSTILE),
    "neuron-16": ("neuron", "singularity", PLAIN),
    "neuron-hostile": ("neuron", "singularity", HOSTILE),
    "neuron-pyxis-hostile": ("neuron", "pyxis", HOSTILE),
    "neuron-enroot-hostile": ("neuron", "enroot", ENROOT),
    "neuron-podman-16": ("neuron", "podman", PLAIN),
    "neuron-podman-hostile": ("neuron", "podman", HOSTILE),
    "neuron-v100-16": ("neuron", "singularity", Request(gpus=16, gpu_type="v100")),
    "neuron-own-8": ("neuron", "singularity", Request(gpus=8, wireup="own")),
    "polaris-16": ("polaris", "apptainer", PLAIN),
    "polaris-15-uneven": ("polaris", "apptainer", Request(gpus=15)),
    "polaris-hostile": (
        "polaris",
        "apptainer",
        msgspec.structs.replace(HOSTILE, scheduler_options=(("M", "o'brien@x.org"), ("filesystems", "home:grand"))),
    ),
    "polaris-asked": ("polaris", "apptainer", ASKED_OF_PBS),
    "polaris-mpich": ("polaris", "apptainer", Request(gpus=16, wireup="mpich")),
    "slurm-apptainer-16": ("slurm", "apptainer", PLAIN),
    "slurm-enroot-16": ("slurm", "enroot", PLAIN),
    "slurm-enroot-hostile": ("slurm", "enroot", ENROOT),
    "slurm-asked": ("slurm", "apptainer", ASKED),
    "box-staged-16": ("box", "charliecloud", Request(gpus=16, stage=True)),
    "technion-staged-2": ("technion", "pyxis", Request(gpus=2, stage=True)),
    "box-pyxis-hostile": ("box", "pyxis", HOSTILE),
    "perlmutter-shifter-pmi2-hostile": ("perlmutter", "shifter", msgspec.structs.replace(SHIFTER, wireup="pmi2")),
    "perlmutter-podman-pmi2-hostile": ("perlmutter", "podman-hpc", msgspec.structs.replace(HOSTILE, wireup="pmi2")),
    "perlmutter-shifter-mpich-hostile": ("perlmutter", "shifter", msgspec.structs.replace(SHIFTER, wireup="mpich")),
    "perlmutter-podman-mpich-hostile": ("perlmutter", "podman-hpc", msgspec.structs.replace(HOSTILE, wireup="mpich")),
    "polaris-mpich-hostile": ("polaris", "apptainer", msgspec.structs.replace(HOSTILE, wireup="mpich")),
    "slurm-apptainer-hostile": ("slurm", "apptainer", HOSTILE),
    "slurm-singularity-hostile": ("slurm", "singularity", HOSTILE),
    "slurm-pyxis-hostile": ("slurm", "pyxis", HOSTILE),
    "slurm-charliecloud-hostile": ("slurm", "charliecloud", CHARLIECLOUD),
    "slurm-podman-hostile": ("slurm", "podman-hpc", HOSTILE),
    "slurm-rootless-hostile": ("slurm", "podman", HOSTILE),
    "slurm-shifter-hostile": ("slurm", "shifter", SHIFTER),
    "perlmutter-conda-16": ("perlmutter", "native", PLAIN),
    "perlmutter-conda-hostile": ("perlmutter", "native", NATIVE),
    "perlmutter-conda-pmi2-hostile": ("perlmutter", "native", msgspec.structs.replace(NATIVE, wireup="pmi2")),
    "perlmutter-conda-mpich-hostile": ("perlmutter", "native", msgspec.structs.replace(NATIVE, wireup="mpich")),
    "capella-8": ("capella", "singularity", Request(gpus=8)),
    "capella-hostile": ("capella", "singularity", HOSTILE),
    "alpha-virtualenv-16": ("alpha", "native", PLAIN),
    "alpha-virtualenv-hostile": ("alpha", "native", NATIVE),
    "neuron-conda-16": ("neuron", "native", PLAIN),
    "neuron-conda-hostile": ("neuron", "native", NATIVE),
    "neuron-conda-own-8": ("neuron", "native", Request(gpus=8, wireup="own")),
    "polaris-conda-16": ("polaris", "native", PLAIN),
    "polaris-conda-hostile": ("polaris", "native", NATIVE),
    "polaris-conda-mpich-hostile": ("polaris", "native", msgspec.structs.replace(NATIVE, wireup="mpich")),
    "box-native-hostile": ("box", "native", NATIVE),
    "technion-snapshot": ("technion", "pyxis", SNAPSHOT),
    "slurm-enroot-snapshot": ("slurm", "enroot", SNAPSHOT),
    "box-native-snapshot": ("box", "native", SNAPSHOT),
    "technion-attempt-2": ("technion", "pyxis", PLAIN),
}
CHAIN = Path("/scratch/e/elvis/my runs/20261127-120000-x-chain")


def environment_of(site: Site) -> Environment | None:
    """The environment that `env create` makes there, where the site's way names one."""
    way = site.ways.get("native", RuntimeAtSite())
    if not way.environment:
        return None
    wanted = EnvironmentSpec(way.environment, way.kind, "pytorch", way.setup, ())
    directory = f"{ENVIRONMENT}/{way.kind}"
    about = ImageFacts(framework="pytorch", mpi=Mpi("openmpi"), horovod=Horovod(controllers=("MPI", "Gloo")))
    return Environment(wanted.name, way.kind, "pytorch", directory, "0bad", setup_of_jobs(wanted, directory), about)


def planned(name: str) -> tuple[Plan, StepSpec]:
    """The plan of a golden script, and the step that its runtime makes of it."""
    site, via, request = CASES[name]
    shipped = read_site(site)
    charged = request.account or (account(shipped, ELVIS) if "account" in shipped.needs else None)
    site_of_elvis, asked = with_queue(expand_placeholders(shipped, ELVIS), request)
    asked = msgspec.structs.replace(asked, runtime=via, account=charged)
    form = RUNTIMES[via].image
    environment = environment_of(site_of_elvis) if form == "none" else None
    image = as_image(environment) if environment else IMAGES[form]
    decided = plan(TRAIN, site_of_elvis, asked, image, environment)
    if "attempt" in name:
        decided = with_attempt(decided, CHAIN, 2, 5)
    return decided, common.staged_step(decided, runtime(via))


def script(name: str) -> JobScript:
    return render(*planned(name))
