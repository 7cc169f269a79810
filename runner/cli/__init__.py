"""The command line: one module for a verb, or for two that belong together, imported only when one is called.

A verb parses, calls, prints; it decides nothing. Errors of the RunnerError family end with their own exit code
and no traceback.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import click

from runner import __version__
from runner.core.errors import Exit, InfrastructureError, RefusedError, RunnerError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import instead, plain

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# verb -> (what runs it, one line for --help): a module below runner.cli, and in it the click command of this name, or
# the one named ``command``.
VERBS: dict[str, tuple[str, str]] = {
    "submit": ("submit", "Submit a job (or print its script with --dry-run)."),
    "run": ("submit.run", "Run a step in an existing allocation."),
    "shell": ("shell", "Open a shell on a GPU node, or beside a job that runs."),
    "serve": ("serve", "Serve Jupyter, TensorBoard or a command from a GPU node."),
    "status": ("status", "List the runs, or show the state of one."),
    "logs": ("logs", "Print a run's logs."),
    "show": ("show_run", "Show what a run was: code, image, nodes, verdict; or two compared."),
    "wait": ("wait", "Wait for a run to finish, then print its verdict."),
    "cancel": ("wait.cancel", "Cancel a run's job."),
    "rerun": ("rerun", "Submit a run again, with changes."),
    "scale": ("scale", "Measure how a program scales: a study of many runs."),
    "report": ("report", "Report a study or runs: a page, a picture, tables and JSON."),
    "compare": ("compare", "Compare measured figures with each other, or with a reference."),
    "export": ("export", "Write measured runs for other programs, or as a bundle with proof."),
    "verify": ("export.verify", "Verify a bundle: every byte, figure and verdict, and who signed it."),
    "build": ("build", "Build an image: an NGC framework and a tested Horovod."),
    "convert": ("convert", "Convert an image to a squashfs that every node can use."),
    "images": ("images", "List, show, edit, verify, serve and prune stored images."),
    "env": ("env", "Create, check and list environments for jobs without a container."),
    "site": ("site", "Show, check and detect sites: the clusters that jobs go to."),
    "recipe": ("recipe", "List, show, make and check recipes, and say what they should reach."),
    "box": ("box", 'Run a real Slurm on this machine, to try jobs on ("the box").'),
    "prove": ("prove", "Test step by step what works on GPUs, and keep a record of it."),
    "docs": ("docs", "List the pages of the documentation, or what they say of a word."),
}
# Headings of --help, each above this verb and those that follow.
HEADINGS = {
    "submit": "Jobs",
    "scale": "Measure and report",
    "build": "Images and environments",
    "site": "Sites and recipes",
    "box": "This machine",
    "docs": "Documentation",
}
# `serve --notebook`, and older spellings of `images importer`, `recipe expect`, `show A B`, `box clean`, `box
# quickstart`, --completion and --json-schema, which scripts call.
ALIASES = {
    "jupyter": "serve", "importer": "importer", "expect": "expect", "diff": "rerun.diff", "clean": "box.clean",
    "quickstart": "quickstart", "completion": "completion", "schema": "results.schema",
}  # fmt: skip


SHELLS = ("bash", "zsh", "fish")
COLLECT_EVERY = 50_000  # objects: a verb's modules are 100 000, of which none is garbage
_HELP = "--help shows the options"
_REPORT = "report it, with the traceback that is on standard error"
# What other tools call the list of runs.
_LISTS = frozenset(("history", "jobs", "list", "ls", "ps", "qstat", "queue", "runs", "sacct", "squeue"))
_ELSEWHERE = "use another directory: RUNNER_CACHE, RUNNER_STATE, RUNNER_STORE or --runs"
_FIXES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR), _ELSEWHERE),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f"free space there, or {_ELSEWHERE}"),
    errno.EKEYREJECTED: "nothing is run or ended by it; submit the job anew",
}


class LazyVerbs(click.Group):
    """Imports a command's module only when it is run; the help and completion need none of them."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS and name not in ALIASES:
            return None
        module, _, attribute = (VERBS[name][0] if name in VERBS else ALIASES[name]).partition(".")
        command = getattr(importlib.import_module(f"runner.cli.{module}"), attribute or "command")
        assert isinstance(command, click.Command)
        if name in VERBS:
            command.epilog = importlib.import_module("runner.cli.examples").epilog(name)
        return command

    def shell_complete(self, _ctx: click.Context, typed: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name, help=line) for name, (_, line) in VERBS.items() if name.startswith(typed)]

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        starts = sorted(map(list(VERBS).index, HEADINGS))
        width = max(map(len, VERBS))  # of all headings alike
        rows = [(name.ljust(width), line) for name, (_, line) in VERBS.items()]
        for heading, start, end in zip(HEADINGS.values(), starts, (*starts[1:], None), strict=True):
            with formatter.section(heading):
                formatter.write_dl(rows[start:end])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in VERBS and args[0] not in ALIASES:
            if args[0] in _LISTS:
                raise click.UsageError(f'no command "{args[0]}"; to list runs: {PROGRAM} status')
            hint = instead(args[0], VERBS, f"one of: {', '.join(VERBS)}")
            raise click.UsageError(f"no command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)


def _print(context: click.Context, option: click.Parameter, value: str | bool | None) -> None:
    """The options that print something about the program itself, and end it: by the verbs that do the same."""
    if value:
        command = cli.get_command(context, "schema" if option.name == "json_schema" else "completion")
        assert command is not None
        context.invoke(command, **({} if value is True else {"shell": value}))
        context.exit()


@click.group(cls=LazyVerbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpu-runner")
@click.option(
    "--completion", type=click.Choice(SHELLS), is_eager=True, expose_value=False, callback=_print,
    help="Print the script that makes a shell complete command lines, and exit.",
)  # fmt: skip
@click.option(
    "--json-schema", is_flag=True, is_eager=True, expose_value=False, callback=_print,
    help="Print the JSON Schema of what --json prints, and exit.",
)  # fmt: skip
def cli() -> None:
    """Run and measure training jobs on GPU clusters."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with a code of runner.core.errors.Exit."""
    if sys.stdin is None:  # the caller has closed it: it is empty, and no terminal
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115  (pathlib takes a tenth of the help's time)
    for name, otherwise in (("PATH", "/usr/bin:/bin"), ("PYTHONPATH", ""), ("LD_LIBRARY_PATH", "")):
        value = os.environ.get(name, "")
        value = value.replace(";", ":") if name == "LD_LIBRARY_PATH" else value  # ld.so(8) parts it at both
        if (value or otherwise) and not all(each.startswith("/") for each in value.split(":")):
            from runner.core.ownership import whole_parts

            os.environ[name] = whole_parts(value) or otherwise
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # paths may hold any byte
    gc.set_threshold(COLLECT_EVERY)
    if "_GPU_RUNNER_COMPLETE" in os.environ:
        from runner.cli import completion

        sys.exit(completion.answer(cli, os.environ[completion.VARIABLE]))
    guard: AbstractContextManager[None] = nullcontext()
    if (sys.argv[1:] if argv is None else argv)[:1] not in (["-h"], ["--help"]):  # it makes nothing, and is to be fast
        from runner.core.files import guarded

        guard = guarded()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup
            signal.signal(number, _end)
    with guard:
        code = int(run(argv))
    gc.freeze()  # the process ends: nothing is worth to be looked through once more
    sys.exit(code)


def _end(number: int, _frame: object) -> NoReturn:
    """As after Ctrl-C, temporary files are removed first; the exit code is a shell's for this signal."""
    sys.exit(128 + number)


def run(argv: list[str] | None = None) -> int:  # noqa: PLR0911 (one for each way to end)
    """Run the command line; returns the exit code (see runner.core.errors.Exit)."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if _may_be_remote(words):
            from runner.cli import remote

            if (code := remote.hand_on(words)) is not None:
                return code
        result: Any = cli.main(args=words, prog_name=PROGRAM, standalone_mode=False)
        return result if isinstance(result, int) else Exit.GOOD
    except click.ClickException as error:
        message = io.StringIO("\n")
        message.seek(1)
        error.show(message)
        shown = message.getvalue().replace("\nError: ", "\nerror: ", 1)[1:]  # as all other errors begin
        click.echo(_shown(shown), err=True, nl=False)
        return _document(UsageError(error.format_message(), fix=_HELP), words)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return _document(RunnerError("interrupted", code=Exit.INTERRUPTED), words)
    except RunnerError as error:
        click.echo(f"error: {_shown(str(error))}", err=True)
        return _document(error, words)
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:
        # A disk, a permission, a path: for the user to fix; the system's message says what is wrong.
        is_gone = error.errno == errno.ENOENT and not error.filename  # as getcwd(2) reports it
        where = "the working directory" if is_gone else str(error.filename or "this command")
        fix = getattr(error, "fix", "") or ("cd to one that is there" if is_gone else _FIXES.get(error.errno or 0, ""))
        kind = RefusedError if error.errno == errno.EKEYREJECTED else InfrastructureError
        reported = kind(error.strerror or str(error), where=where, fix=fix)
        click.echo(f"error: {_shown(str(reported))}", err=True)
        return _document(reported, words)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "runner":
            raise
        from runner.core.invocation import missing_module

        click.echo(missing_module(error.name), err=True)
        return Exit.USAGE
    except Exception as error:
        _document(RunnerError(f"a fault of gpu-runner: {type(error).__name__}: {error}", fix=_REPORT), words)
        raise


def _may_be_remote(words: Sequence[str]) -> bool:
    """Whether a site that is reached by ssh may have been chosen; to read its file takes time."""
    if "RUNNER_REMOTE_LOGIN" in os.environ or not words or {"-h", "--help"} & {*words[:2]}:
        return False
    if os.environ.get("RUNNER_SITE") or any(word.partition("=")[0] == "--site" for word in words):
        return True
    from runner.core.paths import config_files

    return any(map(os.path.isfile, config_files()))


def _shown(message: str) -> str:
    """A message that quotes what a file or a person wrote: without passwords, and without control characters."""
    from runner.core.hide import hidden

    return plain(hidden(message), keep="\n\t")


def _document(error: RunnerError, words: Sequence[str]) -> int:
    """Print the error as JSON, too, if the command line requests JSON; returns its exit code."""
    if "--json" not in (words[: words.index("--")] if "--" in words else words):
        return int(error.code)
    from runner.cli import json_output

    try:
        return json_output.show_error(error, _command_of(words))
    except BrokenPipeError:
        return _reader_gone()


def _reader_gone() -> int:
    """Standard output has no reader any more: what Python still has for it is dropped."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _command_of(words: Sequence[str]) -> str:
    """The command of a command line that may be wrong: ``images list``; empty where it names none."""
    names: list[str] = []
    command: click.Command | None = cli
    while isinstance(command, click.Group) and len(names) < len(words):
        command = command.get_command(click.Context(command), words[len(names)])
        names += [words[len(names)]] if command is not None else []
    return " ".join(names)
