"""From what a user gives to an expectation: the site, the rate of one GPU, the times of allreduces."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from runner.core.errors import UsageError
from runner.jobs import expected
from runner.jobs.directory import Run
from runner.jobs.lookup import find
from runner.model.expectation import Expectation
from runner.model.request import Request
from runner.planning.wireup import BY_MPI
from runner.preparation.options import DEFAULT_RECIPE
from runner.preparation.site import read_user_site
from runner.recipes import loader as recipes
from runner.sites import loader as sites


def expectation(
    gpus: Sequence[int],
    *,
    nodes: int | None = None,
    site: str | None = None,
    recipe: str | None = None,
    settings: Sequence[tuple[str, str]] = (),
    one_gpu: str | None = None,
    images_per_s: float | None = None,
    step_ms: float | None = None,
    input_images_per_s: float | None = None,
    nccl_tests: Path | None = None,
    nccl_gpus: int | None = None,
    allreduce: str | None = None,
    wireup: str | None = None,
    assumed: Mapping[str, tuple[float, float, float]] | None = None,
) -> Expectation:
    """What a recipe should reach on each number of GPUs; nothing is run.

    Args:
        one_gpu, allreduce: measured runs. images_per_s, step_ms: of one GPU alone, in place of such a run.
        input_images_per_s: the most that the input pipeline of a node delivers.
        nccl_tests: what all_reduce_perf printed, on ``nccl_gpus`` GPUs where it does not list them.
        assumed: input -> (low, value, high).

    Raises UsageError: options that exclude each other, no such run, or as ``runner.jobs.expected.expect``;
    RefusedError: nothing can be expected.
    """
    _one_of({"--one-gpu": one_gpu, "--images-per-s": images_per_s, "--step-ms": step_ms})
    _one_of({"--nccl-tests": nccl_tests, "--allreduce": allreduce})
    if nccl_gpus is not None and nccl_tests is None:
        raise UsageError(
            "--nccl-gpus says on how many GPUs a file was measured", fix="give the file: --nccl-tests FILE"
        )
    given = dict(assumed or {})
    if input_images_per_s is not None:
        given = {"input-images-per-s": (input_images_per_s,) * 3, **given}
        expected.check_assumptions(given)
    base = None
    if one_gpu is not None:
        run = find(one_gpu)
        plan = run.needed_plan()
        base = expected.one_gpu_of(run)
        recipe = recipe if recipe is not None else _of_run(run, "recipe", plan.recipe, recipes.every_name())
        site = site if site is not None else _of_run(run, "site", plan.site, sites.every_name())
        settings = expected.with_settings(base, settings)
    named = recipe if recipe is not None else DEFAULT_RECIPE
    curve = expected.curve_of_file(nccl_tests, nccl_gpus) if nccl_tests is not None else None
    curve = expected.curve_of_run(find(allreduce)) if allreduce is not None else curve
    place = read_user_site(site, Request(gpus=max(gpus)), for_job=True, keep=False).site
    if images_per_s is not None or step_ms is not None:
        base = expected.given_rate(place, named, settings, images_per_s, step_ms)
    return expected.expect(place, named, settings, gpus, base, curve, given, nodes=nodes, by_mpi=wireup in BY_MPI)


def _of_run(run: Run, option: str, name: str, known: Collection[str]) -> str:
    if not expected.may_name(run, name, known):
        what = f"the {option} of another user's run is not read by its path: {name}"
        raise UsageError(what, where=str(run.path), fix=f"--{option} NAME or PATH: the one that you mean")
    return name


def _one_of(options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", where="expect", fix="give one of them")
