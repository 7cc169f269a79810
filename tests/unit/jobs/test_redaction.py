"""Secrets of a run are taken out of what is shown of it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.jobs.directory import PLAN as PLAN_FILE
from runner.jobs.directory import REQUEST, Run
from runner.jobs.redaction import redacted_json, redacted_text, secrets_of, without_secrets
from runner.model.request import Request, RequestRecord
from runner.model.verdict import Verdict
from runner.render import quote
from tests.support.plans import PLAN

ROOT = Path(__file__).resolve().parents[3]


def run_of(tmp_path: Path, **plan: Any) -> Run:
    """A run that took OURS from the shell, by ``--env OURS``."""
    run = Run(tmp_path)
    run.write(PLAN_FILE, msgspec.structs.replace(PLAN, **plan))
    run.write(REQUEST, RequestRecord(Request(gpus=1, env=(("OURS", ""),), env_of_shell=("OURS",))))
    return run


def test_what_the_shell_gave_is_secret_but_for_paths_and_plain_words(tmp_path: Path) -> None:
    for value in ("/data/run-2026", "disabled", "16", "20261130", "v1.2"):
        assert secrets_of(run_of(tmp_path, env=(("OURS", value),))) == (), value
    assert secrets_of(run_of(tmp_path, env=(("OTHER", "5ec4et-value"),))) == ()


def test_a_line_that_a_verdict_quotes_has_no_secret(tmp_path: Path) -> None:
    run = run_of(tmp_path, env=(("OURS", "5ec4et-value"),))
    line = "logs/rank-0.err, line 3: login failed for 5ec4et-value at https://me:pw@host"
    verdict = without_secrets(Verdict("failed", (line, line), remarks=(line,), log=line), run)
    clean = "logs/rank-0.err, line 3: login failed for *** at https://***@host"
    assert verdict == Verdict("failed", (clean, clean), remarks=(clean,), log=clean)


@pytest.mark.parametrize("value", ["it's a 5ec4et", "'5ec4et'", 'a"5ec4et', "5ec4et-\u00e4", "5ec4et\nof two lines"])
def test_a_secret_is_taken_out_in_whatever_quotes_it_stands(value: str, tmp_path: Path) -> None:
    program = ("python3", "train.py", f"--api-key={value}")
    for changes in ({"env": (("MY_PASSWORD", value),)}, {"env": (("OURS", value),)}, {"program": program}):
        secrets = secrets_of(run_of(tmp_path, **changes))
        for text in (quote(value), shlex.quote(value), repr(value), json.dumps(value), value):
            clean = redacted_text(f"started with {text}\n", secrets)
            assert not [part for part in ("it", "5ec4et", "two") if part in clean.removeprefix("started with")], clean


@pytest.mark.parametrize(
    "word",
    [
        "python3 q.py --api-key 5ec4et-1 --lr 1; HF_TOKEN=5ec4et-2 python3 q.py",
        "q --api-key '5ec4et-1' --password \"5ec4et-2\" --lr 1",
        '{"api_key": "5ec4et-1", "lr": 1, "password": "5ec4et-2"}',
        "{api_key: 5ec4et-1, lr: 1, password: 5ec4et-2}",
        "5ec4et-2: q --dsn postgres://someone:5ec4et-1@db/run --api-key 5ec4et-2",
    ],
)
def test_a_secret_within_an_argument_is_taken_out(word: str, tmp_path: Path) -> None:
    secrets = secrets_of(run_of(tmp_path, program=("bash", "-c", word)))
    assert redacted_text("someone: 5ec4et-1 or 5ec4et-2 refused", secrets) == "someone: *** or *** refused"


def test_scripts_of_every_site_hold_nothing_that_looks_like_a_secret() -> None:
    for path in (ROOT / "tests/golden/scripts").iterdir():
        text = path.read_text("utf-8", "surrogateescape")
        assert redacted_text(text, ()) == text, path.name


def test_a_step_s_token_tells_steps_apart_and_stays() -> None:
    record = {"token": "t", "environment": {"HF_TOKEN": "x", "HOME": "/h"}, "argv": ["p", "--password", "y"]}
    assert redacted_json(record, ()) == {
        "token": "t", "environment": {"HF_TOKEN": "***", "HOME": "/h"}, "argv": ["p", "--password", "***"],
    }  # fmt: skip
