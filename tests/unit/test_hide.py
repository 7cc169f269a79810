"""Messages repeat no password."""

from __future__ import annotations

import pytest

from runner.cli import run
from runner.errors import Exit
from runner.hide import hidden, hidden_command


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("tcp://user:planted@host:2375 is silent", "tcp://***@host:2375 is silent"),
        ("https://planted@host/x", "https://***@host/x"),
        ("pulling 'user:planted@host/image:1'", "pulling '***@host/image:1'"),
        ("docker://user:planted@host/image", "docker://***@host/image"),
        ("nvcr.io/nvidia/pytorch:25.02-py3@sha256:00ff", "nvcr.io/nvidia/pytorch:25.02-py3@sha256:00ff"),
        ("ssh user@host, 12:30 @ noon", "ssh user@host, 12:30 @ noon"),
    ],
)
def test_user_and_password_are_hidden(said: str, shown: str) -> None:
    assert hidden(said) == shown


@pytest.mark.parametrize(
    "words",
    [
        ["build", "pytorch", "--engine", "tcp://user:planted@127.0.0.1:9"],
        ["build", "pytorch", "--engine", "user:planted@nowhere"],
        ["convert", "user:planted@registry.invalid/image:1"],
        ["submit", "--gpus", "1", "--site", "technion", "--image", "https://user:planted@registry.invalid/image"],
        ["submit", "--gpus", "1", "--site", "https://user:planted@host/site.yaml"],
        ["submit", "--gpus", "1", "--site", "technion", "--recipe", "git+https://user:planted@host/recipe"],
        ["https://user:planted@host/"],
    ],
)
def test_no_error_repeats_a_password(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(words) != Exit.GOOD
    said = capfd.readouterr()
    assert said.err
    assert "planted" not in said.out + said.err


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["sh", "-c", "HF_TOKEN=planted x"], ["sh", "-c", "HF_TOKEN=*** x"]),
        (["sh", "-c", "export WANDB_API_KEY='planted it'; x"], ["sh", "-c", "export WANDB_API_KEY=***; x"]),
        (["sh", "-c", "x --password planted -y"], ["sh", "-c", "x --password *** -y"]),
        (["login", "--token", "planted", "--x"], ["login", "--token", "***", "--x"]),
        (["curl", "-H", "Authorization: Basic planted"], ["curl", "-H", "Authorization: Basic ***"]),
        (["curl", "-H", "PRIVATE-TOKEN: planted", "u"], ["curl", "-H", "PRIVATE-TOKEN: ***", "u"]),
        (["pip", "install", "https://me:planted@host/x"], ["pip", "install", "https://***@host/x"]),
        (["pip", "install", "tokenizers==1"], ["pip", "install", "tokenizers==1"]),
        (["x", "--tokenizer", "gpt2", "basic", "usage"], ["x", "--tokenizer", "gpt2", "basic", "usage"]),
    ],
)
def test_values_of_secret_names_are_hidden_in_a_command(words: list[str], shown: list[str]) -> None:
    assert hidden_command(words) == tuple(shown)
