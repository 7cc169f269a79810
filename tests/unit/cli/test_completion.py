"""What a shell completes: by a real bash, and by the protocol that bash, zsh and fish share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from runner.cli import VERBS, cli, completion, run
from runner.core.errors import Exit
from runner.images.store import store
from runner.images.store.stored_image import StoredImage
from runner.jobs import creation
from runner.model.job import Submitted
from tests.support.commands import ran
from tests.support.studies import on_disk, study

CHECKOUT = Path(__file__).resolve().parents[3]
Complete = Callable[..., list[str]]


@pytest.fixture
def complete(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Complete:
    """The words that complete a command line, whose last word is begun."""

    def call(*words: str, shell: str = "bash") -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(("gpu-runner", *words)))
        monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words)))
        completion.answer(cli, f"{shell}_complete")
        out, err = capfd.readouterr()
        assert err == ""
        if shell == "zsh":
            return out.split("\n")[1:-1:3]
        return [line.partition(",")[2].partition("\t")[0] for line in out.split("\n") if line]

    return call


def make_run(root: Path, name: str, *, refused: str = "") -> str:
    run_directory = creation.create(root / "runs", f"{name}-2", 1.8e9)
    record = Submitted("slurm", "" if refused else "7", "", "", 1.8e9, refused)
    run_directory.write("job.json", record)
    return run_directory.run_id


WORDS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "a verb": (("sub",), ["submit"]),
    "a verb of a group": (("images", "ver"), ["verify"]),
    "an option": (("submit", "--wire"), ["--wireup"]),
    "an option's value": (("submit", "--wireup", "pm"), ["pmix", "pmi2"]),
    "a site": (("submit", "--site", "tec"), ["technion"]),
    "a site's argument": (("site", "show", "tec"), ["technion"]),
    "a recipe": (("submit", "--recipe", "horovod-te"), ["horovod-tensorflow"]),
    "an option of the recipe": (("submit", "--recipe", "horovod-pytorch", "--set", "mo"), ["model="]),
    "a runtime": (("submit", "--runtime", "charlie"), ["charliecloud"]),
    "a code": (("submit", "--force", "mount-s"), ["mount-source-missing"]),
    "a queue of the site": (("submit", "--site", "perlmutter", "--queue", "deb"), ["debug", "debug_preempt"]),
    "a queue without a site": (("submit", "--queue", ""), []),
    "a queue of a site that is none": (("submit", "--site", "/no/such.yaml", "--queue", ""), []),
    "the program's files": (("submit", "--gpus", "2", "--", "python", "tr"), ["tr"]),
    "a file that is a site": (("submit", "--site", "./our"), ["./our"]),
    "no such verb": (("sumbit", ""), []),
    "a shell": (("completion", "z"), ["zsh"]),
    "an option of logs": (("logs", "--follo"), ["--follow"]),
}


@pytest.mark.parametrize("case", WORDS)
def test_words_are_completed(case: str, complete: Complete) -> None:
    words, expected = WORDS[case]
    assert complete(*words) == expected


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "cancel"])
def test_runs_are_completed_by_id_and_by_name_without_those_that_were_refused(
    verb: str, complete: Complete, tmp_path: Path
) -> None:
    first, second = make_run(tmp_path, "alpha"), make_run(tmp_path, "beta")
    make_run(tmp_path, "gamma", refused="no such account")
    assert complete(verb, "") == [second, first]
    assert complete(verb, second[:-3]) == [second]
    assert complete(verb, "al") == ["alpha"]
    assert complete(verb, "ga") == []
    made = on_disk(tmp_path / "runs", study()).path.name
    assert complete(verb, "")[0] == made
    assert [complete("scale", "--resume", begun) for begun in ("", "tr")] == [[made], ["train"]]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script_and_its_answers(
    shell: str, complete: Complete, capfd: pytest.CaptureFixture[str]
) -> None:
    assert complete("submit", "--site", "tec", shell=shell) == ["technion"]
    assert run(["--completion", shell]) == Exit.GOOD
    script = capfd.readouterr().out
    assert run(["completion", shell]) == Exit.GOOD
    assert capfd.readouterr().out == script
    assert f"_GPU_RUNNER_COMPLETE={shell}_complete" in script
    assert "gpu-runner" in script


def test_a_state_that_cannot_be_read_shows_no_error(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RUNNER_STATE", "RUNNER_STORE"):
        monkeypatch.setenv(variable, "/dev/null")
    assert complete("status", "") == complete("images", "show", "") == []


COMPLETED = {"run", "first", "second", "site", "recipe", "runtime", "queue"}


def test_every_such_argument_and_option_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new command takes part: what is called so is completed."""
    make_run(tmp_path, "alpha")
    context = click.Context(cli)
    for verb in VERBS:
        command = cli.get_command(context, verb)
        assert command is not None
        for each in command.commands.values() if isinstance(command, click.Group) else (command,):
            inner = click.Context(each)
            inner.params = {"site": "perlmutter"}
            for parameter in each.params:
                if parameter.name in COMPLETED:
                    assert parameter.shell_complete(inner, ""), f"{verb} {each.name}: {parameter.name}"


def test_in_a_real_bash_and_no_scheduler_is_contacted(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    code = f"import sys\nsys.path.insert(0, {str(CHECKOUT)!r})\nfrom runner.cli import main\nmain()\n"
    (programs / "gpu-runner").write_text(f"#!{sys.executable}\n{code}")
    for name in ("squeue", "sbatch", "sinfo", "scontrol", "qstat", "qsub", "ssh", "docker"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/contacted\n")
    for path in programs.iterdir():
        path.chmod(0o755)
    newest = make_run(tmp_path, "alpha")
    script = """
    eval "$(gpu-runner --completion bash)"
    complete -p gpu-runner
    for line in "submit --site tec" "status "; do
        read -ra COMP_WORDS <<<"gpu-runner $line"
        [[ $line == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )) COMPREPLY=()
        _gpu_runner_completion gpu-runner
        echo "${COMPREPLY[*]}"
    done
    """
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = ran(["bash", "-c", script], env=environment)
    registered = "complete -o nosort -F _gpu_runner_completion gpu-runner"
    assert (done.out.splitlines(), done.err) == ([registered, "technion", newest], "")
    assert not (tmp_path / "contacted").exists()


def test_what_a_shell_would_run_completes_nothing(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    """bash expands the words that it is given; anybody may put an image into a shared store."""
    stored = [StoredImage(path=Path("/x.sqsh"), reference=name) for name in ("x:1", "x:$(id)", "x:`id`", "x:2;id")]
    monkeypatch.setattr(store, "everything", lambda _: stored)
    assert complete("submit", "--image", "x") == ["x:1"]
