"""A site that is reached by ssh (``login`` of its file): the command line is handed on to its login node.

One connection of ssh's own (ControlMaster) carries all: ssh asks for passwords, and nothing of them is kept. The
program, copied there once under a hash of its files, and your configuration go first; before a verb that starts jobs,
the working files that differ; then the words, as they were typed. ``remote.sh`` is what runs there.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from runner.cli.batch_script import others_script
from runner.cli.options import say
from runner.core import files, ownership, paths, process
from runner.core.errors import InfrastructureError, RefusedError, RunnerError, UnknownStateError, UsageError
from runner.core.invocation import PROGRAM
from runner.core.text import counted, first_of
from runner.model.site import Site
from runner.sites import loader

_STARTS = frozenset(("submit", "run", "shell", "serve", "jupyter", "scale", "rerun", "build", "env"))
_KERNELS = frozenset(("serve", "jupyter"))
_ASKS = frozenset(("status", "logs", "wait", "show", "diff"))  # again after a lost connection: they change nothing
_OTHERS = frozenset(("cancel", "report", "compare", "export", "convert", "images", "importer"))
_WRITTEN = ("-o", "--output", "--bundle", "--junit", "--markdown")  # of _FETCHED: files that come back
_FETCHED = frozenset(("report", "compare", "export"))
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOST = 255  # of ssh: it has no connection
_NOT_THERE = 3
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOST_NAMED, _MOST_BYTES = 3, 1 << 33  # of a file that comes back: a bundle may have as many
_PAUSES_S = (1, 2, 5, 10, 30, 60)
_LONGEST_SOCKET = 107 - len("/0123456789abcdef.0123456789abcdef")  # bytes of its directory (unix(7)); ssh adds the end
_OPTIONS = {
    "ControlMaster": "auto", "ControlPersist": "10m", "ForwardAgent": "no", "ForwardX11": "no",
    "ServerAliveInterval": "15", "ServerAliveCountMax": "3", "ConnectTimeout": "30", "LogLevel": "ERROR",
}  # fmt: skip
# Beside runner, recipes, containers and docs, what a checkout is installed from; a wheel has them in _share.
_FILES = ("gpu_runner.py", "pyproject.toml", "requirements.lock", "README.md", "LICENSE")


@dataclass(frozen=True)
class Call:
    """A command line for another machine.

    Attributes:
        words: without ``--site``. verb: the first of them.
        program: what the user calls, with ``--site`` where they typed it.
        site: by its file. documents: its own files, by name: the shipped ones are there anyhow.
    """

    words: tuple[str, ...]
    program: str
    site: Site
    documents: Mapping[str, str]

    @property
    def verb(self) -> str:
        return self.words[0]


def hand_on(words: Sequence[str]) -> int | None:
    """Give the command line to its site, if that has a login; returns its exit code, None where it is for us.

    Raises InfrastructureError: there is no connection; UnknownStateError: it was lost; RefusedError.
    """
    call = call_of(words)
    if call is None and words and words[0].partition("=")[0] == "--site":
        name, _ = _without("--site", words)
        loader.read_documents(name)  # raises where there is none
        fix = f"{PROGRAM} VERB --site {name}; what stands first is a site with `login`"
        raise UsageError(f"the site {name} has no login: it is an option of a verb", where="--site", fix=fix)
    return None if call is None else _handed_on(call)


def call_of(words: Sequence[str]) -> Call | None:
    """What is to be handed on; None where nothing is."""
    at = words.index("--") if "--" in words else len(words)
    named, rest = _without("--site", words[:at])
    if not rest or rest[0] not in _STARTS | _ASKS | _OTHERS or {"-h", "--help", "--help-all"} & {*rest}:
        return None
    with suppress(UsageError):  # the verb itself will say what is wrong
        name = named or paths.site_of_shell() or loader.read_config().site
        if not name or name in loader.names():
            return None
        documents = loader.read_documents(name)
        site = loader.site_of(documents)
        if site.login:
            shipped = Path(loader.__file__).resolve().parent
            own = {Path(each.name).stem: each.text for each in documents if shipped not in Path(each.name).parents}
            own[site.name] = own.pop(Path(documents[0].name).stem)
            program = f"{PROGRAM} --site {shlex.quote(named)}" if named else PROGRAM
            return Call((*rest, *words[at:]), program, site, own)
    return None


def _without(option: str, words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The value of an option where it is first, and the other words."""
    for at, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2], (*words[:at], *words[at + 1 :])
        if word == option and at + 1 < len(words):
            return words[at + 1], (*words[:at], *words[at + 2 :])
    return "", tuple(words)


def remote_command(words: Iterable[str]) -> str:
    """The words as one that every login shell reads alike, csh and fish too: ssh gives it to that shell."""
    text = base64.b64encode(f"exec {shlex.join(words)}".encode("utf-8", "surrogateescape")).decode()
    return f"""sh -c 'eval "$(echo {text} | base64 -d)"'"""


def _handed_on(call: Call) -> int:
    from runner.jobs import mirror

    written = _written(call)
    connection = _Connection(call.site)
    code_files = _program_files()
    code = files.tree_hash(code_files.items())[:16]
    sites = {f"sites/{name}.yaml": text for name, text in call.documents.items()}
    configuration = {"config.yaml": _configuration(call.site.name), **sites}
    config = files.key_of(*(part for each in sorted(configuration.items()) for part in each))[:16]
    check_working_directory(call.words)
    top, start, names = _working_files(call.verb)
    key = files.key_of(os.uname().nodename, str(top))[:8]
    home = f"{call.site.remote_dir}/{re.sub(r'[^A-Za-z0-9._-]+', '-', top.name)}-{key}"
    there = f"{home}/{start}"
    wanted = mirror.described(top, names) if call.verb in _STARTS else {}
    variables = _named_variables(call.words)
    key_of_variables = files.key_of(os.urandom(16).hex())[:16] if variables else ""

    def prepare() -> None:
        connection.open()
        texts = {name: text.encode("utf-8", "surrogateescape") for name, text in configuration.items()}
        status = connection.give(("ready", code, config), _tar(texts))
        if status == _NOT_THERE:
            say(f"{call.site.login}: installing gpu-runner there, once for this version of it")
            content = {name: path.read_bytes() for name, path in code_files.items()}
            status = connection.give(("install", code), _tar(content, code_files))
        if status:
            what = "gpu-runner could not be prepared there: what was said is above"
            raise InfrastructureError(what, where=call.site.login, fix="correct it, and try again: nothing is left")
        if call.verb in _STARTS:
            sent = connection.mirror(code, home, top, wanted)
            if sent:
                say(f"{call.site.login}: {sent} of {len(wanted)} files copied to {home}")
        if variables and connection.give(("variables", key_of_variables), variables.encode("utf-8", "surrogateescape")):
            raise InfrastructureError("variables could not be handed on", where="--env", fix="see what was said above")

    prepare()
    budget = os.environ.get("RUNNER_BUDGET", "")
    command = (
        code, config, call.site.name, call.site.login, call.program, budget, key_of_variables, there, *call.words,
    )  # fmt: skip
    status = connection.call(command)
    pauses = iter(_PAUSES_S if call.verb in _ASKS else ())
    while status == _LOST and (pause := next(pauses, None)) is not None:
        say(f"the connection to {call.site.login} was lost: trying again in {pause} s")
        time.sleep(pause)
        with suppress(InfrastructureError):
            prepare()
            status = connection.call(command)
    if status == _LOST:
        what = f"the connection to {call.site.login} was lost, or the command was killed there"
        fix = f"{call.program} status says what runs there; before that, do not submit again: it may be running"
        raise UnknownStateError(what, where=" ".join(call.words[:1]), fix=fix)
    if written and status in (0, 7):
        connection.fetch(there, written)
    return status if status >= 0 else 128 - status


def check_working_directory(words: Sequence[str]) -> None:
    """Refuse what would be refused here, before it is copied: all files are this user's then. Raises UsageError."""
    verb = words[0]
    if verb == "jupyter" or (verb == "serve" and "--notebook" in words):
        from runner.jobs.service import check_kernels

        check_kernels(Path.cwd())
    at = words.index("--") if "--" in words else len(words)
    for word in words[1:at] if verb == "submit" else ():
        if whose := others_script(word):
            fix = f"write ./{word} if you mean it"
            raise UsageError(f"it would be submitted as a batch script, and {whose} can write it", where=word, fix=fix)
    if recipe := _without("--recipe", words[:at])[0]:
        from runner.recipes.loader import directory_of

        directory_of(recipe, Path.cwd())


def _named_variables(words: Sequence[str]) -> str:
    """Lines of a shell that set the variables of this one which ``--env NAME`` names, where they are not set there: in
    no argument list, as they may be secret.
    """
    options = words[: words.index("--")] if "--" in words else words
    named = {word.removeprefix("--env=") for word in options if word.startswith("--env=")}
    named |= {value for word, value in pairwise(options) if word == "--env"}
    own = {name: os.environ[name] for name in sorted(named) if _VARIABLE.fullmatch(name) and name in os.environ}
    return "".join(f'[ "${{{name}+x}}" ] || export {name}={shlex.quote(value)}\n' for name, value in own.items())


def _written(call: Call) -> list[str]:
    """The files that the command line writes. Raises RefusedError: one that cannot be fetched to the same path here."""
    if call.verb not in _FETCHED:
        return []
    found = []
    for word, value in zip(call.words, (*call.words[1:], ""), strict=True):
        option, _, joined = word.partition("=")
        if option in _WRITTEN:
            found.append(joined or value)
    if call.verb == "report" and not {"-o", "--output"} & {word.partition("=")[0] for word in call.words}:
        raise RefusedError("where shall the report be put?", where="report", fix="name a directory: -o DIR")
    for name in found:
        if name.startswith(("/", "-")) or ".." in name.split("/"):
            what, fix = f"{name} is not below the working directory", "name it relative to it, without `..`"
            raise RefusedError(what, where="what is written at the site is fetched", fix=fix)
        paths.check_output(Path(name), new=True)
    return found


def _configuration(site: str) -> str:
    """The user's, of all files, with this site as its default; as JSON, which is YAML."""
    config: dict[str, Any] = msgspec.to_builtins(loader.read_config())
    config["site"] = site
    return json.dumps({key: value for key, value in config.items() if value not in ("", None, {})})


def _working_files(verb: str) -> tuple[Path, str, Sequence[str]]:
    """The directory that is copied, the working directory in it, and names of files: of the repository those that git
    tracks or would track; without one all, for verbs that start jobs.

    Raises RefusedError: that would be a whole home directory, or git cannot read the repository.
    """
    from runner.jobs.code_record import GitError, repository_of
    from runner.preparation.snapshot import names_of

    here = Path.cwd()
    try:
        repository = repository_of(here)
        if repository is not None:
            start = here.resolve().relative_to(repository.top).as_posix()
            names = names_of(repository, new=True) if verb in _STARTS else ()
            return repository.top, start, _own(repository.top, names, kernels=verb in _KERNELS)
    except (GitError, OSError) as error:
        raise RefusedError(f"the files cannot be listed: {error}", where=str(here), fix="correct it") from None
    if verb not in _STARTS:
        return here, ".", ()
    if here in (paths.home(), *paths.home().parents):
        fix = "go to the directory of your program, or `git init` one"
        raise RefusedError("all of it would be copied to the site", where=str(here), fix=fix)
    return here, ".", _own(here, [name for name, _ in files.files_below(here)], kernels=verb in _KERNELS)


def _own(top: Path, names: Iterable[str], *, kernels: bool = False) -> list[str]:
    """Without ``ownership.own_and_others``'s others, and without run directories: those there are others."""
    from runner.jobs.directory import is_whole_id

    copied = (name for name in names if not any(map(is_whole_id, Path(name).parts)))
    own, others = ownership.own_and_others(top, copied, kernels=kernels)
    if others:
        say(f"{counted(len(others), 'file')} of other users not copied: {first_of(tuple(others), _MOST_NAMED)}")
    return own


def _program_files() -> dict[str, Path]:
    """The files that gpu-runner is installed from, as they lie in a checkout."""
    package = Path(loader.__file__).parents[1]
    share = package / "_share"
    below = {"runner": package, **{name: paths.share(name) for name in ("recipes", "containers", "docs")}}
    found = {f"{name}/{each}": path for name, root in below.items() for each, path in files.files_below(root)}
    found = {name: path for name, path in found.items() if not name.startswith("runner/_share/")}
    top = share if share.is_dir() else package.parent
    return found | {
        name: path for name in _FILES if (path := top / name).is_file() or (path := package.parent / name).is_file()
    }


def _tar(contents: Mapping[str, bytes], modes: Mapping[str, Path] | None = None) -> bytes:
    """Whole only with its last file, ``complete``."""
    import tarfile

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in (*contents.items(), ("complete", b"")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o700 if modes and name in modes and os.access(modes[name], os.X_OK) else 0o600
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


class _Connection:
    """ssh to one login: the user's own configuration of it holds."""

    def __init__(self, site: Site) -> None:
        if process.find("ssh") is None:
            raise RefusedError("there is no ssh here", where="PATH", fix="install OpenSSH's client")
        self._login = site.login
        own = Path(os.environ.get("XDG_RUNTIME_DIR") or paths.ensure_directory(paths.cache_dir()))
        directory = own / "gpu-runner-ssh"
        if len(os.fsencode(directory)) > _LONGEST_SOCKET:
            name = f"gpu-runner-ssh-{os.geteuid()}-"
            ours = filter(ownership.is_private, sorted(Path("/tmp").glob(f"{name}*")))  # another user may make any
            directory = next(ours, None) or Path(tempfile.mkdtemp("", name, "/tmp"))
        files.make_closed(directory)
        if not ownership.is_private(directory):
            fix = "remove it; it is made anew, for you alone"
            raise RefusedError("ssh's sockets would lie where others can reach them", where=str(directory), fix=fix)
        if site.ssh.config and (whose := ownership.exchangeable_by(Path(site.ssh.config))):
            what, fix = f"this is {whose}, and may name any program", "name one of your own: `config:` below `ssh:`"
            raise RefusedError(what, where=f"{site.ssh.config}, of the site {site.name}", fix=fix)
        options = [word for each in _OPTIONS.items() for word in ("-o", "=".join(each))]
        config = ["-F", site.ssh.config] if site.ssh.config else []
        socket = f"{directory}/{files.key_of(site.login, site.ssh.config)[:16]}"
        self._ssh = ["ssh", *config, *options, "-o", f"ControlPath={socket}"]
        self._script = Path(__file__).with_name("remote.sh").read_text()

    def _argv(self, words: Sequence[str], *options: str) -> list[str]:
        command = remote_command(("sh", "-c", self._script, "sh", *words))
        return [*self._ssh, *options, "--", self._login, command]

    def open(self) -> None:
        """Raises InfrastructureError: there is none; ssh has said why."""
        if process.run([*self._ssh, "-O", "check", "--", self._login], timeout_s=60, check=False).code == 0:
            return
        code = process.foreground([*self._ssh, "-n", "--", self._login, "true"], env=os.environ, to_stderr=True)
        if code:
            what = f"no connection to {self._login}: ssh has said why, above" if code == _LOST else "ssh was ended"
            fix = f"see that `{shlex.join(['ssh', self._login, 'true'])}` works, in a terminal; then try again"
            raise InfrastructureError(what, where="ssh; nothing was started", fix=fix)

    def give(self, words: Sequence[str], content: bytes) -> int:
        """Run an action with this standard input; returns its status. Raises InfrastructureError: lost."""
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.seek(0)
            child = process.start(self._argv(words, "-T"), stdin=file, stdout=process.DEVNULL, stderr=process.PIPE)
            try:
                said = child.communicate()[1].decode("utf-8", "replace")
            except BaseException:
                process.kill_group(child)
                raise
        if child.returncode in (0, _NOT_THERE):
            return child.returncode
        say(said.rstrip())
        if child.returncode == _LOST:
            self._lost()
        return child.returncode

    def mirror(self, code: str, directory: str, top: Path, wanted: Mapping[str, str]) -> int:
        """Returns how many files were sent. Raises InfrastructureError: lost half-way; nothing was started.
        RefusedError: others could exchange them there.
        """
        from runner.jobs import mirror

        child = process.start(
            self._argv(("mirror", code, directory), "-T"), stdin=process.PIPE, stdout=process.PIPE, stderr=2
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            sent = mirror.send(top, wanted, child.stdin, child.stdout)
            if child.wait() == mirror.REFUSED:
                fix = "name a directory of yours at the site (site file: `remote_dir`)"
                raise RefusedError("no files were copied: why was said above", where=directory, fix=fix)
            if child.returncode or sent is None:
                self._lost()
            return sent or 0
        finally:
            with suppress(OSError):
                child.stdin.close()
            if child.poll() is None:
                process.kill_group(child)

    def _lost(self) -> None:
        what = f"the connection to {self._login} was lost while files were copied"
        raise InfrastructureError(what, where="ssh; nothing was started", fix="try again: what is there already stays")

    def call(self, words: Sequence[str]) -> int:
        """Returns its status. What would end us ends it: without a terminal it is sent what Ctrl-C sends."""
        if all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            return process.foreground(self._argv(("call", "terminal", *words), "-tt"), env=os.environ)
        name = files.key_of(os.urandom(16).hex())[:16]

        def interrupt(_number: int, _frame: object) -> None:
            with suppress(RunnerError):
                process.run(self._argv(("interrupt", name), "-T"), timeout_s=20, check=False)

        child = process.start(self._argv(("call", name, *words), "-T"), stdin=0, stdout=1, stderr=2)
        signals = (number for number in _ENDS if signal.getsignal(number) != signal.SIG_IGN)
        before = {number: signal.signal(number, interrupt) for number in signals}
        try:
            return child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if child.poll() is None:
                process.kill_group(child)

    def fetch(self, directory: str, names: Sequence[str]) -> None:
        """Fetch files to the same names below the working directory; of a directory, which is a report, closed to
        others. Raises InfrastructureError; UsageError: another user could exchange them here.
        """
        with tempfile.TemporaryFile() as file, files.temporary_directory() as own:
            child = process.start(self._argv(("send", directory, *names), "-T"), stdout=file, stderr=2)
            code = child.wait()
            file.seek(0)
            unpack = ["tar", "-xf", "-", "-C", str(own), "--", *names]
            code = code or process.start(unpack, stdin=file, stdout=2, stderr=2).wait()
            for name, _ in () if code else files.files_below(own):
                try:
                    content = files.read_below(own, name, _MOST_BYTES)  # a link leads to files of this machine
                except OSError:
                    code = 1
                    break
                above, is_closed = Path(name).parent, Path(name) not in map(Path, names)
                with suppress(OSError):  # the next line says what is wrong
                    files.make_closed(above) if is_closed else above.mkdir(parents=True, exist_ok=True)
                paths.write_output(Path(name), content, mode=files.PRIVATE if is_closed else None)
        if code:
            what, fix = "what it wrote could not be fetched", f"scp -r {self._login}:{directory}/{names[0]} ."
            raise InfrastructureError(what, where=self._login, fix=fix)
        say(f"fetched: {', '.join(names)}")
