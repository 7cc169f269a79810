"""``submit``: from a request to a job, or to its script."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import duration_s, environment, mount, setting
from runner.errors import Exit
from runner.model.finding import Finding
from runner.model.names import Wireup
from runner.model.request import Mount, Request

if TYPE_CHECKING:
    from runner.cli.prepare import Prepared


@click.command()
@click.option("--gpus", type=int, required=True, help="GPUs in all: one rank each.")
@click.option("--nodes", type=int, help="Nodes to spread them over. [default: the fewest]")
@click.option("--recipe", default="horovod-pytorch", show_default=True, help="A shipped recipe, or a directory.")
@click.option(
    "--site",
    default=lambda: os.environ.get("RUNNER_SITE"),
    help="A shipped site, or a site file. [default: $RUNNER_SITE, your configuration's, or box]",
)
@click.option("--runtime", help="Container runtime. [default: the site's first]")
@click.option("--image", help="Image reference, digest, or a squashfs file. [default: the recipe's]")
@click.option("--mount", "mounts", multiple=True, metavar="SRC:DST[:ro]", callback=mount, help="Mount a host path.")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", callback=environment, help="Variable for every rank.")
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=setting,
    help="Option of the recipe's program.",
)
@click.option(
    "--time", "walltime_s", metavar="[D-][H:]M:S", callback=duration_s, help="Time limit. [default: the site's]"
)
@click.option(
    "--queue", "--partition", "queue", help="Queue, partition or QOS, as the site has it. [default: one that fits]"
)
@click.option("--account", help="Account to charge. [default: your configuration's]")
@click.option("--project", help="Project, where a site's paths need it. [default: your configuration's]")
@click.option("--scratch", help="Your scratch directory at the site. [default: your configuration's]")
@click.option("--gpu-type", help="GPU type for the scheduler, MIG slices included. [default: the site's]")
@click.option("--cpus-per-gpu", type=int, help="CPUs of each rank. [default: the node's share]")
@click.option(
    "--wireup",
    type=click.Choice(("rendezvous", "pmix", "pmi2", "mpich", "own")),
    help="How ranks find each other; own: the program starts processes itself. [default: rendezvous, without MPI]",
)
@click.option(
    "-S",
    "--scheduler-option",
    "scheduler_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=setting,
    help="Further option for sbatch or qsub: dependency=afterok:7, reservation=X, nodelist=n1, mail-user=me@x.",
)
@click.option("--force", multiple=True, metavar="CODE", help="Submit although the check CODE refuses; it is recorded.")
@click.option("--name", "job_name", help="Job name. [default: the recipe's]")
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where run directories are made; every node must see it.",
)
@click.option("--dry-run", is_flag=True, help="Print the script and touch nothing.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the verdict.")
@click.option("--cancel-on-interrupt", is_flag=True, help="Ctrl-C while waiting cancels the job, too.")
@click.option("--json", "as_json", is_flag=True, help="Print facts as JSON.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    gpus: int,
    nodes: int | None,
    recipe: str,
    site: str | None,
    runtime: str | None,
    image: str | None,
    mounts: tuple[Mount, ...],
    env: tuple[tuple[str, str], ...],
    options: tuple[tuple[str, str], ...],
    walltime_s: int | None,
    queue: str | None,
    account: str | None,
    project: str | None,
    scratch: str | None,
    gpu_type: str | None,
    cpus_per_gpu: int | None,
    wireup: Wireup | None,
    scheduler_options: tuple[tuple[str, str], ...],
    force: tuple[str, ...],
    job_name: str | None,
    runs: Path,
    dry_run: bool,
    wait: bool,
    cancel_on_interrupt: bool,
    as_json: bool,
    arguments: tuple[str, ...],
) -> int:
    """Submit a job of GPUS ranks, one for each GPU.

    Arguments after -- go to the recipe's program as they are.
    """
    from runner.cli.prepare import prepare

    request = Request(
        gpus=gpus,
        nodes=nodes,
        runtime=runtime,
        image=image,
        job_name=job_name,
        queue=queue,
        account=account,
        project=project,
        scratch=scratch,
        gpu_type=gpu_type,
        cpus_per_gpu=cpus_per_gpu,
        wireup=wireup,
        scheduler_options=scheduler_options,
        walltime_s=walltime_s,
        mounts=mounts,
        env=env,
        options=options,
        arguments=arguments,
    )
    prepared = prepare(site, recipe, request, runs, force=force)
    _print_findings(prepared.findings)
    if dry_run:
        sys.stdout.buffer.write(prepared.script.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()
        return Exit.REFUSED if prepared.refused else Exit.GOOD
    if prepared.refused:
        click.echo("refused: nothing was submitted", err=True)
        return Exit.REFUSED
    return _submit(prepared, runs, wait=wait, cancel_on_interrupt=cancel_on_interrupt, as_json=as_json)


def _submit(prepared: Prepared, runs: Path, *, wait: bool, cancel_on_interrupt: bool, as_json: bool) -> int:
    import json

    from runner.cli.prepare import scheduler_for
    from runner.cli.show import wait_and_judge
    from runner.jobs.submission import scheduler_of, submit
    from runner.recipes.loader import library

    scheduler = scheduler_for(prepared.site)
    run = submit(
        prepared.plan,
        prepared.script,
        prepared.findings,
        root=runs,
        library=library(),
        recipe=prepared.recipe_directory,
        scheduler=scheduler,
    )
    _, job_id = scheduler_of(run)
    plan = prepared.plan
    if not as_json:
        click.echo(
            f"job {job_id}: {plan.tasks} ranks on {plan.nodes} nodes ({plan.site}, {plan.runtime}), "
            f"image {plan.image.digest or plan.image.path}"
        )
        click.echo(f"run {run.run_id}: {run.path}")
    elif not wait:
        click.echo(json.dumps({"run": run.run_id, "directory": str(run.path), "job": job_id}))
    if not wait:
        return Exit.GOOD
    return wait_and_judge(run, timeout_s=None, as_json=as_json, cancel_on_interrupt=cancel_on_interrupt)


def _print_findings(findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        word = "forced" if finding.forced else "refused" if finding.severity == "refuse" else "warning"
        click.echo(f"{word} [{finding.code}]: {finding.what}\n  mend ({finding.who}): {finding.mend}", err=True)
