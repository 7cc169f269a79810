"""Command lines that submit to a site, of a machine with no Slurm, and the image that they name."""

import atexit
import shutil
import tempfile
from pathlib import Path


def submit(*words: str) -> list[str]:
    return ["submit", "--site", "technion", "--gpus", "16", *words]


IMAGE = str(Path(tempfile.mkdtemp(prefix="runner-bad-")) / "image.sqsh")  # written by each test
atexit.register(shutil.rmtree, Path(IMAGE).parent, ignore_errors=True)


def sound(*words: str) -> list[str]:
    """A submission that nothing is wrong with but what ``words`` say, and that there is no Slurm."""
    return submit("--image", IMAGE, *words)
