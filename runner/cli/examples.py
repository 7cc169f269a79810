"""What the help of each verb ends with: examples, and the page that says more."""

from runner.core.invocation import PROGRAM

# verb -> (its page, below docs unless it is README.md; examples without the program's name).
EXAMPLES: dict[str, tuple[str, ...]] = {
    "submit": (
        "jobs.md",
        "submit --gpus 2 --wait -- python train.py --lr 0.1",
        "submit --gpus 16 --image nvcr.io/nvidia/pytorch:25.02-py3 -- torchrun train.py",
        "submit job.sbatch --check    # what is wrong with a batch script",
    ),
    "run": ("jobs.md", "run --gpus 8 --nodes 2 -- python train.py", "run --gpus 8 --recipe probe"),
    "status": ("jobs.md", "status train", "status --state failed --since 2d"),
    "logs": ("jobs.md", "logs --follow", "logs train --rank 0,3-5 -n 20"),
    "shell": ("jobs.md", "shell --gpus 1 --time 1:00:00", "shell train -- nvidia-smi    # beside a run"),
    "serve": ("jobs.md", "serve --notebook --time 2:00:00", "serve --tensorboard logs --idle 60"),
    "show": ("jobs.md", "show @2    # the newest run but one", "show @2 @1    # what differs"),
    "wait": ("jobs.md", "wait train", "wait @1 @2 --timeout 600"),
    "cancel": ("jobs.md", "cancel train", "cancel 4711    # a job's id"),
    "rerun": ("jobs.md", "rerun train --gpus 8 --dry-run", "rerun train -- python train.py --lr 0.2"),
    "scale": (
        "scale.md",
        "scale --gpus 1,2,4,8,16 --wait -- python train.py",
        "scale --gpus 1,8 --set batch-size=128,256 --repeats 3",
    ),
    "report": ("report.md", "report train", "report scaling -o DIR    # of a study"),
    "compare": ("compare.md", "compare A B", "compare A1,A2,A3 B1,B2,B3 --fail-below 0.95"),
    "export": ("report.md", "export train --format csv -o runs.csv", "export train --bundle figures.tar"),
    "verify": ("report.md", "verify figures.tar", "verify figures.tar --allowed-signers FILE"),
    "build": ("images.md", "build pytorch", "build pytorch --with ch-run    # without Docker, on a login node"),
    "convert": (
        "images.md",
        "convert gpu-runner/horovod-pytorch:25.02-py3",
        "convert docker://nvcr.io#nvidia/pytorch:25.02-py3",
    ),
    "images": ("images.md", "images list", "images edit IMAGE -- pip install einops"),
    "env": ("jobs.md", "env create hvd --at DIR", "env check hvd"),
    "site": ("sites.md", "site detect -o ours.yaml", "site check ours.yaml"),
    "recipe": ("recipes/README.md", "recipe check train.py", "recipe new DIR -- python train.py --lr 0.1"),
    "box": (
        "README.md",
        "box quickstart    # all of it: the box, an image, the main job",
        "box up",
        "box clean --dry-run    # of all that is kept on this machine",
    ),
    "prove": ("gpu.md", "prove --quick", "prove --site ours.yaml --at DIR"),
    "docs": ("README.md", "docs jobs", "docs image-damaged    # what they say of a word"),
}


def epilog(verb: str) -> str:
    """As click prints it after the options: the lines as they are."""
    page, *examples = EXAMPLES[verb]
    lines = "\n".join(f"  {PROGRAM} {example}" for example in examples)
    more = page if page == "README.md" else f"{PROGRAM} docs {page.removesuffix('.md').removesuffix('/README')}"
    return f"\b\nExamples:\n{lines}\n\nMore: {more}"
