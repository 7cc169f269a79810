"""The options of every verb that runs a job, as click has them, and the request that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runner.cli.options import JSON, Decorator, by_shell, on_command_line, together
from runner.core.errors import UsageError
from runner.core.paths import site_of_shell
from runner.preparation.options import FIELDS, GPUS, OPTIONS, Kind, Option, by_fields, default_of, words_of

if TYPE_CHECKING:
    from runner.jobs.directory import Run
    from runner.model.job import CommandLine
    from runner.model.request import Request, RequestRecord
    from runner.preparation.job import PreparedJob

_SBATCH = "sbatch_"  # before a field: its value as sbatch reads it
_FIELD = {name: name if option.of_scheduler else option.field or name for name, option in OPTIONS.items()}
_OF_REQUEST = {"gpus", *_FIELD.values(), *(f"{_SBATCH}{field}" for field in FIELDS), "arguments"}
_LONGER = "Longer than the time limit"
# The usual options of a job, by their longest names, below the headings of help; --help-all shows the others, too.
_HEADINGS = {
    "What": ("gpus", "nodes", "N", "time", "t", "recipe", "set", "env", "sweep", "at-once", "check"),
    "Where": ("site", "partition", "account", "hosts", "constraint", "dependency", "scheduler-option", "force"),
    "Container, or environment": ("image", "runtime", "mount", "stage", "env-name", "module", "wireup"),
    "Measure": ("meter", "meter-batch"),
    _LONGER: ("until-done", "attempts", "gpu-hours"),
    "Output": ("job-name", "runs", "dry-run", "full", "write", "json", "wait", "follow", "cancel-on-interrupt"),
}
_OWN, _RARE, _HELP = "Options", "Rarely needed", "Help"
_ALSO_OWN = ("gpus", "site", "dry-run", "json", "wait")  # of verbs that refer to ``submit`` for the others
_ALL = "runner.all"  # key of what click's contexts share: whether help shows all options
_TYPED = "runner.typed"  # key of what click's contexts share: the arguments as they were typed


def _longest(names: Iterable[str]) -> str:
    return max(names, key=len).lstrip("-").replace("_", "-")


_OF_JOBS = {_longest((name, *option.flags)) for name, option in OPTIONS.items()}


def job_options(*, by_hand: str = "", **gpus: Any) -> Decorator:
    """Decorates a click command with the options of ``runner.preparation.options``; ``given`` has their values.

    Args:
        by_hand: of a verb with a person before it, who gets no JSON, and one GPU if no number is given: how help shows
            its arguments.
        gpus: settings of --gpus in place of the usual ones.
    """
    usual: dict[str, Any] = {"type": int, "help": GPUS.help, **({"default": 1} if by_hand else {"required": True})}
    return together(
        click.option("--gpus", **(usual | gpus)),
        *(made for name, option in OPTIONS.items() for made in _click_options(_FIELD[name], name, option)),
        click.option("--nsys", hidden=True, expose_value=False, callback=_nsys),
        click.option("--dry-run", is_flag=True, help="Print the script and touch nothing."),
        click.option("--full", is_flag=True, help="With --dry-run: print the files, too, that the script reads."),
        *(() if by_hand else (JSON,)),
        click.option(
            "--help-all",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options, and exit.",
        ),
        click.argument(
            "arguments", nargs=-1, type=click.UNPROCESSED, metavar=by_hand or None, shell_complete=by_shell("files")
        ),
    )


def _show_all(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def _nsys(_context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        fix = "-- nsys profile -o '%q{RUNNER_RUN_DIR}/rank-%q{RANK}' python3 train.py (gpu-runner docs jobs)"
        raise UsageError("there is no --nsys: a profiler is a part of the command", where="--nsys", fix=fix)


def some_job_options(*names: str) -> Decorator:
    """Decorate a click command with some of the options, by their names."""
    return together(*(made for name in names for made in _click_options(_FIELD[name], name, OPTIONS[name])))


def _click_options(field: str, name: str, option: Option) -> Iterator[Decorator]:
    kind = option.kind
    settings: dict[str, Any] = {"help": option.help, "metavar": option.metavar or None}
    if kind.is_flag:
        settings["is_flag"] = True
    elif kind.key is not None:
        settings["multiple"] = True
    else:
        settings |= {
            "default": None if option.of_scheduler else default_of(field),
            "show_default": option.shows_default,
        }
        settings["type"] = int if kind.is_number else click.Choice(kind.choices) if kind.choices else str
    if kind.read is not str:
        settings["callback"] = _reading(kind)
    if option.complete:
        settings["shell_complete"] = by_shell(option.complete)
    if name == "site":  # a shell completes the queues of this one
        settings["default"] = lambda: site_of_shell() or None
    long = f"--{name.replace('_', '-')}"
    yield click.option(*sorted((long, *option.flags), key=lambda flag: flag.startswith("--")), field, **settings)
    if option.sbatch is not None:
        letter, metavar, read = option.sbatch
        help = f"As {long}, in the forms of sbatch."
        yield click.option(letter, f"{_SBATCH}{field}", metavar=metavar, callback=_reading(Kind(read)), help=help)


def _reading(kind: Kind) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def read(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:
        try:
            if kind.key is not None:
                return tuple(map(kind.read, value))
            return None if value is None else kind.read(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return read


class JobCommand(click.Command):
    """A command that runs a job: it knows what was typed, and is called without what ``given`` has."""

    refers = False  # whether its help has its own options, and refers to ``submit`` for the job's

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = tuple(args)
        own = args[: args.index("--")] if "--" in args else args
        for before, word in zip(("", *own), own, strict=False):
            if len(word) > 2 and word[0] == "-" != word[1] and before != "--env":  # mpirun's -ppn 8 would be -p pn
                _refuse_other(word)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            _refuse_other(error.option_name)
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By headings; without --help-all no rare option, and of a verb that refers to ``submit`` few of the job's."""
        options = (each for each in self.get_params(ctx) if isinstance(each, click.Option))
        rows = {_longest(each.opts): row for each in options if (row := each.get_help_record(ctx))}
        headings = {flag: self._heading(flag, shows_all=_ALL in ctx.meta) for flag in rows}
        for heading in (_OWN, *_HEADINGS, _RARE, _HELP):
            in_order = _HEADINGS.get(heading, rows)
            if shown := [rows[flag] for flag in in_order if headings.get(flag) == heading]:
                with formatter.section(heading):
                    formatter.write_dl(shown)

    def _heading(self, flag: str, *, shows_all: bool) -> str:
        """The heading of an option; empty for one that is not shown."""
        usual = next((heading for heading, flags in _HEADINGS.items() if flag in flags), "")
        if flag in ("help", "help-all"):
            return _HELP
        if (not usual and flag not in _OF_JOBS) or (self.refers and usual == _LONGER):  # --attempts of `scale`
            return _OWN
        if self.refers and not shows_all:
            return _OWN if flag in _ALSO_OWN else ""
        return usual or (_RARE if shows_all else "")

    def invoke(self, ctx: click.Context) -> Any:
        assert self.callback is not None
        return ctx.invoke(self.callback, **{k: value for k, value in ctx.params.items() if k not in _OF_REQUEST})


class ReferringCommand(JobCommand):
    """One with options of its own, such as ``scale``: its help refers to ``submit`` for the job's."""

    refers = True


def _refuse_other(word: str) -> None:
    """Raises UsageError where it is another program's name of an option: what does it here."""
    from runner.preparation.other_names import instead_of

    name = word.partition("=")[0]
    if fix := instead_of(name):
        raise UsageError(f"there is no {name}", where=word, fix=fix)


def given(context: click.Context) -> dict[str, Any]:
    """The fields of a request that a command line gives, as ``make_request`` takes them; none that have defaults."""
    names = on_command_line(context) & _OF_REQUEST
    values = {name: value for name, value in context.params.items() if name in names}
    for name in [name for name in values if name.startswith(_SBATCH)]:
        field = name.removeprefix(_SBATCH)
        if field in values:
            raise UsageError("it is given twice", where=f"--{FIELDS[field][0]}", fix="use one of its names")
        values[field] = values.pop(name)
    return by_fields(values)


def request_of_call(*, step: bool = False) -> Request:
    """The request of the command line that runs now.

    Raises:
        UsageError: a value is wrong.
    """
    from runner.preparation.request import make_request

    return make_request(given(click.get_current_context()), step=step)


def command_line(prepared: PreparedJob, first: Run | None = None) -> CommandLine:
    """The command line that asked for a job, for a reader; ``first``: the run that it repeats."""
    from runner.model.job import CommandLine

    request = prepared.request
    words = typed() if first is None else words_of(request)
    site = "" if request.site else prepared.site_file
    verb = "run" if request.step else "submit"
    return CommandLine((verb, *words), request.directory, site, "" if first is None else first.run_id)


def typed() -> tuple[str, ...]:
    """The arguments of the command that runs now, as they were typed."""
    return tuple(click.get_current_context().meta[_TYPED])


def recorded(run: Run) -> RequestRecord:
    """What a run was asked for.

    Raises:
        UsageError: it is not recorded.
    """
    from runner.jobs.directory import REQUEST
    from runner.model.request import RequestRecord

    kept = run.read(REQUEST, RequestRecord)
    return upgraded(run.needed_command()) if kept is None else kept


def upgraded(line: CommandLine) -> RequestRecord:
    """The request of a run or a study that has only its command line (of ``submit``, ``run`` or ``scale``): it is older
    than ``request.json``. Raises UsageError: it is of another verb.
    """
    from runner.cli import cli
    from runner.model.request import RequestRecord
    from runner.preparation.request import make_request

    verb, *words = line.arguments or ("",)
    command = cli.get_command(click.Context(cli), verb) if verb in ("submit", "run", "scale") else None
    if command is None:
        what = f"the command line that is recorded begins with {verb!r}, which runs no job"
        raise UsageError(what, where=line.directory, fix="start it anew, by `submit` or `scale`")
    with command.make_context(verb, words) as context:
        values = {**given(context), "gpus": context.params["gpus"] if verb != "scale" else 1}
    return RequestRecord(make_request(values, Path(line.directory), step=verb == "run"), line.site)
