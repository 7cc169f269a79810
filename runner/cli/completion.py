"""``completion``: what a shell completes behind ``gpu-runner``: the script for it, and the answers.

An answer takes what this machine knows at once: no scheduler is contacted, no image is opened, and no error is shown.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from runner.cli import SHELLS
from runner.core.errors import Exit, RunnerError

PROGRAM = "gpu-runner"
VARIABLE = "_GPU_RUNNER_COMPLETE"
_MOST_RUNS = 50
_PLAIN = re.compile(r"[\w.@:/+=,%-]*\Z")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that makes SHELL complete commands, options, runs, sites, recipes and codes.

    \b
    bash:  gpu-runner completion bash >~/.local/share/bash-completion/completions/gpu-runner
    zsh:   gpu-runner completion zsh >DIR/_gpu-runner     (DIR: one of $fpath)
    fish:  gpu-runner completion fish >~/.config/fish/completions/gpu-runner.fish
    """
    from runner.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None, shell
    script = kind(cli, {}, PROGRAM, VARIABLE)
    # Not source(): that of bash starts a bash to see how old it is.
    click.echo(script.source_template % script.source_vars())


def answer(cli: click.Command, instruction: str) -> int:
    """Print what completes the command line that the shell has put into COMP_WORDS; nothing if anything goes wrong."""
    try:
        return shell_complete(cli, {}, PROGRAM, VARIABLE, instruction)
    except Exception:
        return Exit.BUG


def values(kind: str, context: click.Context, typed: str) -> list[CompletionItem]:
    """What can stand where the user has begun to type: those of a kind that begin so; none if they are unknown."""
    if kind == "files" or (_is_path(typed) and kind in _PATHS):
        return [CompletionItem(typed, type=_PATHS[kind])]
    with suppress(RunnerError, OSError):
        items = _KINDS[kind](context, typed) if kind in _KINDS else _named(*_TABLES[kind])
        # bash expands what it is given: names in a store that others write to may be commands.
        return [item for item in items if item.value.startswith(typed) and _PLAIN.match(item.value)]
    return []


def _is_path(typed: str) -> bool:
    return typed.startswith((".", "~")) or "/" in typed


def _runs(_context: click.Context, typed: str) -> Iterable[CompletionItem]:
    from runner.jobs.directory import linked
    from runner.jobs.lookup import kept_outcome, was_refused

    independent = (run for run in linked() if typed or run.group is None)
    begin_so = (run for run in independent if run.run_id.startswith(typed) or run.name.startswith(typed))
    matching = (run for run in begin_so if not was_refused(run))
    return _newest(((run.run_id, run.name, kept_outcome(run)) for run in matching), typed)


def _studies(_context: click.Context, typed: str) -> Iterable[CompletionItem]:
    from runner.study.directory import ids, name_of

    begin_so = (each for each in ids() if each.startswith(typed) or name_of(each).startswith(typed))
    return _newest(((each, name_of(each), "study") for each in begin_so), typed)


def _newest(matching: Iterable[tuple[str, str, str]], typed: str) -> Iterable[CompletionItem]:
    """Of (id, name, help), the newest first: by their ids, and by their names once one is begun."""
    recent = tuple(islice(matching, _MOST_RUNS))
    names = dict.fromkeys(name for _, name, _ in recent) if typed else ()
    return [*(CompletionItem(each, help=help) for each, _, help in recent), *map(CompletionItem, names)]


def _runs_and_studies(context: click.Context, typed: str) -> Iterable[CompletionItem]:
    """Studies first; a name that both have stands for the study."""
    items: dict[str, CompletionItem] = {}
    for item in (*_studies(context, typed), *_runs(context, typed)):
        items.setdefault(item.value, item)
    return items.values()


def _named(module: str, table: str) -> Iterable[CompletionItem]:
    names = getattr(importlib.import_module(module), table)
    return map(CompletionItem, sorted(names() if callable(names) else names))


def _queues(context: click.Context, _typed: str) -> Iterable[CompletionItem]:
    """Of the site that the command line names before."""
    from runner.sites.loader import read_site

    site = context.params.get("site")
    return map(CompletionItem, read_site(site).queues if site else ())


def _options_of_recipe(context: click.Context, _typed: str) -> Iterable[CompletionItem]:
    """``KEY=`` of the recipe that the command line names before, or of the default one."""
    from runner.preparation.options import DEFAULT_RECIPE
    from runner.recipes.loader import read_recipe

    recipe = read_recipe(context.params.get("recipe") or DEFAULT_RECIPE).recipe
    return [CompletionItem(f"{key}=") for key in recipe.options]


def _images(_context: click.Context, _typed: str) -> Iterable[CompletionItem]:
    from runner.images.store import store
    from runner.images.store.stored_image import StoredImage

    stored = store.everything(store.directory())
    return map(CompletionItem, dict.fromkeys(each.reference for each in stored if isinstance(each, StoredImage)))


_KINDS: Mapping[str, Callable[[click.Context, str], Iterable[CompletionItem]]] = {
    "runs": _runs,
    "studies": _studies,
    "runs and studies": _runs_and_studies,
    "queues": _queues,
    "recipe options": _options_of_recipe,
    "images": _images,
}
# Kinds of which all that there are is named by this function or table of this module.
_TABLES = {
    "sites": ("runner.sites.loader", "every_name"),
    "recipes": ("runner.recipes.loader", "every_name"),
    "runtimes": ("runner.model.backends", "RUNTIMES"),
    "codes": ("runner.checks.registry", "codes"),
    "pages": ("runner.cli.docs", "pages_by_name"),
    "compare codes": ("runner.figures.compare.compare", "CODES"),
}
# What may be a path instead, and of what.
_PATHS = {
    "files": "file",
    "runs": "dir",
    "studies": "dir",
    "runs and studies": "dir",
    "sites": "file",
    "recipes": "dir",
    "images": "file",
}
