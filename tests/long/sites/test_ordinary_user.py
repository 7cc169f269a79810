"""What the page of each site begins with, typed by an ordinary user in a box of the site's shape: the script, a job to
its verdict, its state, and what is done by hand. As root: ``test_ways.py``.
"""

import json
import shlex
from collections.abc import Callable

import pytest

from runner.images.store.stored_image import StoredImage
from runner.model.backends import RUNTIMES
from runner.sites.loader import GENERIC, read_site
from tests.support.documents import result
from tests.support.sites.clusters import MACHINES, Cluster
from tests.support.sites.kestrel import Kestrel, make_known
from tests.support.sites.ways import own_values
from tests.support.users import AS_ROOT, open_directory

pytestmark = AS_ROOT


@pytest.mark.parametrize("site", [site for site in MACHINES if site != GENERIC])
def test_the_first_commands_of_a_page_by_an_ordinary_user(
    at_site: Callable[[str], Cluster], squashfs: StoredImage, site: str
) -> None:
    here = at_site(site)
    here.load(MACHINES[site].plugins)
    here.daemons.inside("mkdir", "-p", "/results")  # the containers' commands are stand-ins, on the node itself
    with open_directory() as home:
        make_known(here.daemons, home)
        changed = {"submit_below": [str(home)]} if site == "neuron" else {}
        file = here.runner(squashfs.path, **changed).site
        option, value = own_values(site) or ("--project", "unused")
        (home / ".config/gpu-runner").mkdir(parents=True)
        config = {"sites": {site: {option.removeprefix("--"): value, "scratch": str(home)}}}
        (home / ".config/gpu-runner/config.yaml").write_text(json.dumps(config))  # which is YAML
        user = Kestrel(here.daemons, home)
        image = here.image(RUNTIMES[read_site(site).runtimes[0]].image)
        job = ("submit", "--gpus", "16", "--site", str(file), "--image", image, "--recipe", "probe")
        assert "#SBATCH --nodes=" in user(*job, "--dry-run").out
        verdict = result(user(*job, "--wait", "--json", code=6).out)["verdict"]
        assert len(verdict["reasons"]) == 1 and verdict["reasons"][0].endswith("saw no GPU"), verdict
        assert "not-proven" in user("status").out

        # By hand: two runs in the shell of the `salloc` line that `run` prints. A shell needs a real container.
        run = ("run", "--gpus", "1", *job[3:])
        salloc = user(*run, code=3).err.partition("fix:")[2].splitlines()[0]
        twice = (*shlex.split(salloc), "sh", "-c", '"$@"; "$@"', "sh")
        assert user(*run, code=6, before=twice).out.count("saw no GPU") == 2
        for verb in ("shell", "jupyter"):
            assert "#SBATCH --nodes=1\n" in user(verb, "--site", str(file), "--image", image, "--dry-run").out
