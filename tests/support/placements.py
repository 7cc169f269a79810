"""One job for each way in which sites are asked for nodes and GPUs, and where its ranks must be."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import Runner
from tests.support.documents import result

# Site -> how it asks, and the ranks of each node that 12 or 13 GPUs become.
ASKED = {
    "zih": ("tasks: total, gpus: gres, memory: per-node", "12", [6, 6]),
    "zih-uneven": ("tasks: total, gpus: gres, memory: per-node", "13", [8, 5]),
    "neuron": ("gpus: gres, memory: none, exclusive: false, directives: {comment: pytorch}", "12", [6, 6]),
    "tutorials": ("gpus: total, memory: per-cpu, exclusive: false", "16", [8, 8]),
}


def submit_one_of_each(runner: Runner, directory: Path) -> dict[str, Path]:
    """Submit one of each, none waited for; returns the runs."""
    submitted: dict[str, Path] = {}
    for name, (slurm, gpus, _) in ASKED.items():
        site = directory / f"{name}.yaml"
        site.write_text(f"name: {name}\nextends: {json.dumps(str(runner.site))}\nslurm: {{{slurm}}}\n")
        said = runner("submit", "--recipe", "probe", "--gpus", gpus, "--json", code=0, site=site)
        submitted[name] = Path(result(said.out)["directory"])
    return submitted


def assert_placed_as_planned(runner: Runner, submitted: dict[str, Path]) -> None:
    """Each ends well, and its ranks lie as they should."""
    for name, run in submitted.items():
        runner("wait", str(run), code=0)
        hosts = [json.loads(path.read_text())["host"] for path in (run / "ranks").glob("*.start.json")]
        assert sorted((hosts.count(host) for host in set(hosts)), reverse=True) == ASKED[name][2], name
