"""The options of a program are read from its source."""

from __future__ import annotations

from runner.preparation.program_source import ProgramOption, program_options

SOURCE = """
import argparse
PRECISIONS = ("fp32", "bf16")
TABLE = {"adam": 1, "sgd": 2}
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("-b", "--batch-size", type=int, default=32)
parser.add_argument("--precision", choices=PRECISIONS)
parser.add_argument("--optimizer", choices=TABLE, default="sgd")
parser.add_argument("--model", choices=sorted(models()))
parser.add_argument("--amp", action="store_true")
parser.add_argument("--amp", action="store_true")
"""


def test_long_names_defaults_flags_and_choices_are_read() -> None:
    assert program_options(SOURCE) == (
        ProgramOption("batch-size", default=32),
        ProgramOption("precision", choices=("fp32", "bf16")),
        ProgramOption("optimizer", default="sgd", choices=("adam", "sgd")),
        ProgramOption("model"),
        ProgramOption("amp", is_flag=True),
    )


def test_what_is_no_python_has_no_options() -> None:
    assert program_options("def f(:\n") == ()
    assert program_options("\0") == ()
    assert program_options("(" * 5000) == ()
