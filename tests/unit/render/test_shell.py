"""What stands in a script arrives at the program byte for byte: the judge is a real bash."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.core.errors import UsageError
from runner.model.step import Export, Text, Var, text, texts
from runner.render import folded, quote, quoted_argument, statement
from tests.support.hostile import HOSTILE


def arrives(script: str, *, cwd: Path | None = None) -> list[bytes]:
    """The NUL-separated words that a real bash passes to printf."""
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", script.encode("utf-8", "surrogateescape")],
        capture_output=True, check=True, cwd=cwd, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    return done.stdout.split(b"\0")[:-1]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(HOSTILE, min_size=1, max_size=24))
def test_arguments_and_exported_values_arrive_unchanged(values: list[str]) -> None:
    exports = "\n".join(statement(Export(f"NAME_{at}", text(value))) for at, value in enumerate(values))
    names = " ".join(f'"$NAME_{at}"' for at in range(len(values)))
    script = folded((*texts("printf", r"%s\0"), *texts(*values)), width=40)
    assert arrives(f"{script}\n{exports}\nprintf '%s\\0' {names}") == 2 * [os.fsencode(value) for value in values]


def test_a_variable_is_never_split_or_globbed(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    mount = (Text("--mounts="), Var("run"), Text(":/results,a b:/c"))
    assert arrives(f"run='/x  *'; printf '%s\\0' {quoted_argument(mount)}", cwd=tmp_path) == [
        b"--mounts=/x  *:/results,a b:/c"
    ]


def test_plain_arguments_stay_readable() -> None:
    assert quote("--nodes=2") == "--nodes=2"
    assert quote("a b") == "'a b'"
    assert quote("") == "''"


def test_nul_is_refused() -> None:
    with pytest.raises(UsageError, match="NUL"):
        quote("a\0b")


@pytest.mark.parametrize("name", ["1A", "A-B", "A B", "", "A=B", "Ä"])
def test_a_name_that_no_shell_takes_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(name))):
        statement(Export(name, text("x")))
