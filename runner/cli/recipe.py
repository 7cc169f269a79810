"""``recipe``: what jobs run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from runner.cli.expect import command as expect
from runner.cli.options import JSON, answer, by_shell
from runner.core.errors import UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import printable
from runner.model.output import Problem
from runner.model.request import Option, Recipe
from runner.preparation.new_recipe import commands_at_sites, new_recipe, write_recipe
from runner.recipes import loader as recipes
from runner.sites import loader as sites

if TYPE_CHECKING:
    from runner.linting.check import Report


@click.group()
def command() -> None:
    """Recipes: what jobs run (submit --recipe NAME)."""


@command.command("list")
@JSON
def list_recipes(as_json: bool) -> int:
    """List all recipes: shipped, of yours, of the machine."""
    listed = [recipes.read_recipe(name).recipe for name in recipes.every_name()]
    width = max(len(recipe.name) for recipe in listed)
    rows = [{"name": recipe.name, "description": recipe.description} for recipe in listed]
    return answer(
        rows, (f"{each.name:{width}}  {' '.join(each.description.split())}" for each in listed), as_json=as_json
    )


@command.command("show")
@click.argument("recipe", shell_complete=by_shell("recipes"))
@JSON
def show_recipe(recipe: str, as_json: bool) -> int:
    """Show what RECIPE, a name or a folder, runs. Prints the command at each site, too."""
    loaded = recipes.read_recipe(recipe)
    at_sites = commands_at_sites(recipe, loaded.recipe, [sites.read_site(name) for name in sites.names()])
    facts = msgspec.to_builtins(loaded.recipe) | {"directory": str(loaded.directory), "sites": at_sites}
    lines = [*_lines(loaded.recipe, str(loaded.directory)), "  at each site (--dry-run prints the script):"]
    for at in at_sites:
        needs = f"   # needs your {', '.join(at.needs)}" if at.needs else ""
        lines.append(f"    {shlex.join(at.command)}{needs}")
    return answer(facts, lines, as_json=as_json)


@command.command("new", context_settings={"ignore_unknown_options": True})
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("program", metavar="-- PROGRAM", nargs=-1, type=click.UNPROCESSED)
@JSON
def make_recipe(directory: Path, program: tuple[str, ...], as_json: bool) -> int:
    """Make the folder DIR, a recipe that runs your PROGRAM.

    The program's files are copied: those that it names, and those that they import from beside them. Nothing is
    overwritten. `submit --recipe DIR` runs it, and `--set KEY=VALUE` changes an option of the program.
    """
    start = Path.cwd()
    new = new_recipe(directory.absolute().name, program, start)
    try:
        copied = write_recipe(new, directory.absolute(), start)
    except OSError as error:
        raise UsageError(
            f"the folder cannot be written: {error.strerror}", where=str(directory), fix="name another folder"
        ) from None
    name = str(directory) if "/" in str(directory) else f"./{directory}"
    lines = [f"{directory / 'recipe.yaml'}: runs {shlex.join(new.recipe.program)} in {new.recipe.image}"]
    lines += [f"  copied: {', '.join(map(str, copied))}"] if copied else []
    lines += (
        f"  not copied: {path} ({why}); submit --mount SRC:DST makes it visible to a job" for path, why in new.left_out
    )
    lines.append(f"  next: {PROGRAM} recipe show {shlex.quote(name)}")
    lines.append(f"        {PROGRAM} submit --gpus 2 --site local --recipe {shlex.quote(name)} --wait")
    facts = {"directory": str(directory.absolute()), "copied": [str(file) for file in copied]}
    return answer(facts | {"left_out": dict(new.left_out), "recipe": new.recipe}, lines, as_json=as_json)


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@JSON
def check_script(file: Path, as_json: bool) -> int:
    """Say what the training script FILE lacks for several GPUs.

    Of the eight steps it says which the script has, lacks or does wrongly. Nothing of it is run or imported. Exits
    with 3 if something is missing or wrong.
    """
    from runner.linting.check import check

    report = check(file)
    steps = [{key: getattr(row, key) for key in _KEYS} for row in report.steps]
    facts = {"file": report.file, "way": report.way, "done_by": report.does_it_itself, "steps": steps}
    lines = _report_lines(report)
    return answer(facts, lines, as_json=as_json, exit_code=report.exit_code, error=_problem(report))


_KEYS = ("step", "name", "state", "place", "reason", "fix")
_WAYS = {"horovod": "Horovod", "ddp": "torch.distributed", "none": "neither Horovod nor torch.distributed"}


def _problem(report: Report) -> Problem | None:
    """The first step that is wrong or missing."""
    for row in report.steps:
        if row.state in ("missing", "wrong"):
            where = f"{report.file}, line {row.place}" if row.place else report.file
            what = f"step {row.step}, {row.name}: {row.reason}"
            return Problem(f"step-{row.state}", what, where, row.fix, "user")
    return None


def _report_lines(report: Report) -> Iterator[str]:
    width = max(len(row.name) for row in report.steps)
    places = max(4, *(len(row.place) for row in report.steps))
    by = report.does_it_itself or _WAYS[report.way]
    yield f"{printable(report.file)}: {by}"
    yield f"  {'step':{width + 2}}  {'state':11}  {'line':{places}}  reason"
    for row in report.steps:
        shown = f"{row.state:11}  {printable(row.place):{places}}  {printable(row.reason)}"
        yield f"  {row.step} {row.name:{width}}  {shown}"
    for row in report.steps:
        for line in row.fix.splitlines() if row.state in ("missing", "wrong") else ():
            yield f"  fix, step {row.step}: {printable(line)}"
    bad = sum(row.state in ("missing", "wrong") for row in report.steps)
    unknown = sum(row.state == "cannot tell" for row in report.steps)
    yield f'  {bad} wrong or missing, {unknown} "cannot tell" (gpu-runner docs recipe-check)'


command.add_command(expect, "expect")


def _lines(recipe: Recipe, directory: str) -> Iterator[str]:
    results = {
        "throughput": "a measured figure, which every rank's records confirm",
        "none": "it only runs",
        "if-left": "it runs; a result that it leaves is held to proof",
    }
    yield f"{recipe.name}: {' '.join(recipe.description.split())}"
    yield f"  runs: {shlex.join(recipe.program)}, in {directory}"
    starts = "one rank for each GPU" if recipe.processes == "per-gpu" else "once a node; it starts its own processes"
    yield f"  ranks: {starts}; world: {recipe.framework}"
    yield f"  result: {results[recipe.result]}"
    yield f"  image: {recipe.image}" + (f"; needs {', '.join(recipe.needs)}" if recipe.needs else "")
    yield "  options (--set KEY=VALUE):" if recipe.options else "  options: none"
    width = max(map(len, recipe.options), default=0)
    for key, value in recipe.options.items():
        choices = recipe.choices.get(key, ())
        one_of = f"   one of: {', '.join(map(str, choices))}" if choices else ""
        yield f"    {key:{width}}  {_default(value)}{one_of}"
    for key, by_value in recipe.limits.items():
        for value, others in by_value.items():
            left = (f"{other}={' or '.join(map(_default, allowed))}" for other, allowed in others.items())
            yield f"    with {key}={value} goes only {', '.join(left)}"


def _default(value: Option) -> str:
    return "the program's default" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
