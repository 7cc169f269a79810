"""A small plan, site and recipe for tests that need any one."""

from runner.model.plan import Plan, PlannedImage
from runner.model.request import Recipe
from runner.model.site import NodeShape, Site

PLAN = Plan(
    job_name="j", recipe="r", framework="horovod", result="throughput", site="s", scheduler="slurm", runtime="pyxis",
    tasks_per_node=(2, 2), gpus_per_node=2, gpu_type="", cpus_per_task=1, memory_mb=0, whole_nodes=True, walltime_s=60,
    queue=None, account=None, mpi="none", directives=(), image=PlannedImage("i", "", "/i.sqsh"), mounts=(), env=(),
    program=("p",), wireup="rendezvous", device="cuda", demonstration="", transport="verbs",
)  # fmt: skip
SITE = Site(
    name="s", description="", scheduler="slurm", runtimes=("pyxis",), max_walltime_s=3600,
    node=NodeShape(cores=128, threads_per_core=2, memory_mb=1_000_000, gpus=8),
    env={"FROM_SITE": "1", "BOTH": "site"}, image_tags={"img": "tag"}, options={"r": {"batch": 2}},
)  # fmt: skip
RECIPE = Recipe(
    name="r", description="", image="img", program=("python3", "main.py"), env={"BOTH": "recipe"},
    options={"model": "resnet50", "batch": 256, "compile": False, "lr": 0.1},
)  # fmt: skip
PROGRAM = Recipe(name="r", description="", image="i", program=("p",))
