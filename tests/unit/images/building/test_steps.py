"""A Dockerfile as steps, and what engines say of them; and which of NVIDIA's bases a driver carries."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from runner.core import paths
from runner.core.errors import RefusedError, UsageError
from runner.images.building import apptainer, dockerfile
from runner.images.building.bases import BASES, newest
from runner.images.building.build import DEFAULT_ARGS
from runner.images.building.buildlog import BuildLog, Event, Failed, Line, Made, Step
from runner.images.building.dockerfile import Arg, Copy, Env, Label, Run, Stage, environment, parse_stages
from runner.images.building.engine_build import pull_error
from runner.images.reference import DEFAULT_BASES

TEXT = r"""
# A comment.
ARG BASE=first:1
FROM ${BASE} AS one
ARG MODE=fast
ENV LEVEL=${MODE} OTHER="a b"
RUN echo "${MODE}" \
    && true
# Another, inside.
COPY a b/*.py /there/

FROM ${BASE}
LABEL part=two
ARG BASE
ARG NEVER
COPY --from=one /made/ /taken/
"""


def test_every_step_arrives_in_its_stage() -> None:
    one, two = parse_stages(TEXT, {"MODE": "slow"})
    run, copy = Run('echo "${MODE}"     && true'), Copy(("a", "b/*.py"), "/there/")
    settings = (Arg("MODE", "slow"), Env("LEVEL", "slow"), Env("OTHER", "a b"))
    assert one == Stage("first:1", "one", (*settings, run, copy))
    taken = Copy(("/made/",), "/taken/", "one")
    assert two == Stage("first:1", "", (Label("part", "two"), Arg("BASE", "first:1"), taken))
    assert environment(one) == {"LEVEL": "slow", "OTHER": "a b"}
    with pytest.raises(UsageError, match="no argument TYPO"):
        parse_stages(TEXT, {"TYPO": "1"})


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("USER ordinary", "USER is none of the plain instructions"),
        ("RUN --mount=type=cache true", "RUN takes no option"),
        ('RUN ["true"]', "RUN takes no option and no list"),
        ("COPY --chown=1 a b", "COPY takes --from"),
        ("COPY a", "COPY takes --from"),
        ("ENV A", "ENV takes NAME=VALUE"),
        ("ENV A=${UNKNOWN}", "UNKNOWN has no value"),
        ("run true", "no instruction"),
    ],
)
def test_what_some_builder_would_not_do_is_refused_with_its_line(line: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        parse_stages(f"FROM x\n{line}\n", {})
    assert caught.value.where == "Dockerfile, line 2"


@pytest.mark.parametrize("framework", sorted(DEFAULT_BASES))
def test_the_projects_own_dockerfiles_keep_to_plain_instructions(framework: str) -> None:
    text = (paths.share("containers") / framework / "Dockerfile").read_text("utf-8")
    stages = parse_stages(text, {**DEFAULT_ARGS[framework], "BASE_DIGEST": "sha256:1", "SOURCE": "0"})
    instructions = "".join(line for line in text.splitlines() if not line.startswith("#"))
    for kind, word in ((Run, "RUN "), (Copy, "COPY ")):
        steps = [step for stage in stages for step in stage.steps if isinstance(step, kind)]
        assert len(steps) == instructions.count(word)
    assert [stage.base for stage in stages] == [DEFAULT_BASES[framework]] * 2


def test_a_script_does_what_an_engine_does(tmp_path: Path) -> None:
    """Run by a real shell, its places moved: directories by content, values as they are, the first failure ends it."""
    (tmp_path / "context/a").mkdir(parents=True)
    (tmp_path / "context/a/in a").write_text("1")
    (tmp_path / "context/b.py").write_text("2")
    there = tmp_path / "there"
    value = 'it\'s $HOME `id` "x"'
    steps = (Arg("NOTE", value), Copy(("a", "*.py"), f"{there}/"), Run(f'printf %s "$NOTE" >{there}/note && true'))
    done = shell(Stage("base", "", steps), tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_text() for path in there.iterdir()} == {"in a": "1", "b.py": "2", "note": value}
    assert "Step 2/3 : COPY a *.py" in done.stdout
    failing = Stage("base", "", (Run("false && true"), Run(f"touch {there}/late")))
    assert shell(failing, tmp_path).returncode == 1
    assert not (there / "late").exists()


def shell(stage: Stage, work: Path) -> subprocess.CompletedProcess[str]:
    text = dockerfile.stage_script(stage, lambda source: (work / "context" / source).is_dir())
    text = text.replace(f"/{dockerfile.BROUGHT}", str(work))
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)


def test_what_a_format_cannot_say_is_refused() -> None:
    for stage in (Stage("x", "", (Env("A", "one\ntwo"),)), Stage("x", "", (Run("echo {{ a }}"),))):
        with pytest.raises(RefusedError, match="a definition file cannot contain"):
            apptainer.definition([stage], Path("/c"), lambda _: False, ("x",))
    with pytest.raises(RefusedError, match="cannot name '/my context/a'"):
        apptainer.definition([Stage("x", "", (Copy(("a",), "/a/"),))], Path("/my context"), lambda _: False, ("x",))


@pytest.mark.parametrize(
    ("chunks", "events"),
    [
        pytest.param(
            [{"stream": "Step 2/9 : RUN python3 x.py \\"}, {"stream": "\n"},
             {"stream": " ---> Running in 0123456789ab\n"}, {"stream": "one\ntw"}, {"stream": "o\n"},
             {"stream": "\x1b[91mred\x1b[0m\n"}, {"stream": "Removing intermediate container 0123456789ab\n"},
             {"stream": " ---> ba9876543210\n"}, {"aux": {"ID": "sha256:" + "ab" * 32}},
             {"stream": "Successfully built ba9876543210\n"}],
            [Step(2, 9, "RUN python3 x.py \\"), Made("containers", "0123456789ab"), Line("one"), Line("two"),
             Line("red"), Made("images", "ba9876543210"), Line("Successfully built ba9876543210")],
            id="docker sends a step and its newline apart",
        ),
        pytest.param(
            [{"stream": "[2/2] STEP 3/8: COPY a b\n"}, {"stream": "STEP 1/8: FROM x\n"},
             {"stream": "--> 0123456789ab\n"}, {"stream": "--> Using cache 0123456789ab\n"}],
            [Step(3, 8, "COPY a b"), Step(1, 8, "FROM x"), Made("images", "0123456789ab"),
             Line("--> Using cache 0123456789ab")],
            id="podman writes steps its own way",
        ),
        pytest.param(
            [{"stream": "last words"},
             {"errorDetail": {"code": 7, "message": "returned a non-zero code: 7"}, "error": "x"}],
            [Line("last words"), Failed("returned a non-zero code: 7", 7)],
            id="a failure carries the code where the engine says it",
        ),
        pytest.param(
            [{"error": "building at STEP: exit status 7\n"}],
            [Failed("building at STEP: exit status 7", None)],
            id="and none where it does not",
        ),
        pytest.param(
            [{"stream": "10%\r50%\r100%\n"}, {"status": "Pulling", "id": "ab12"}],
            [Line("100%"), Line("ab12 Pulling")],
            id="progress bars show their last state",
        ),
    ],
)  # fmt: skip
def test_what_engines_say_of_a_build(chunks: list[dict[str, Any]], events: list[Event]) -> None:
    log = BuildLog()
    assert [event for chunk in chunks for event in log.feed(chunk)] + list(log.end()) == events


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("manifest for 127.0.0.1:40343/a/b:1.403 not found: manifest unknown", "has no image"),
        ("manifest for h:401/a/b@sha256:401403 not found", "has no image"),
        ("unexpected status from HEAD request: 403 Forbidden", "denies access"),
        ("error parsing HTTP 403 response body: x", "denies access"),
        ("received unexpected HTTP status code 401: x", "requires a login"),
    ],
)
def test_digits_of_a_name_are_no_status_of_the_registry(message: str, what: str) -> None:
    assert what in pull_error("h.example:40343/a/b:1", message).what


@pytest.mark.parametrize(
    ("framework", "driver", "tag", "how"),
    [
        ("pytorch", "570.86.10", "25.02-py3", "natively"),
        ("pytorch", "575.57.08", "25.02-py3", "natively"),
        ("pytorch", "580.65.06", "26.07-py3", "natively"),
        ("tensorflow", "595.58.03", "25.02-tf2-py3", "natively"),
        ("tensorflow", "535.104.05", "25.02-tf2-py3", "by its compat package"),
        ("pytorch", "535.54.03", "23.10-py3", "natively"),
        ("pytorch", "530.30.02", "23.03-py3", "natively"),
        ("tensorflow", "525.105.17", "25.02-tf2-py3", "by its compat package"),
        ("tensorflow", "515.65.01", "23.03-tf2-py3", "by its compat package"),
        ("tensorflow", "470.57.02", "25.02-tf2-py3", "by its compat package"),
        ("pytorch", "450.51.06", "23.10-py3", "by its compat package"),
    ],
)
def test_the_newest_base_that_a_driver_carries(framework: str, driver: str, tag: str, how: str) -> None:
    chosen, why = newest(framework, driver, "here")
    assert chosen.reference == f"nvcr.io/nvidia/{framework}:{tag}"
    assert how in why
    assert driver in why


def test_a_driver_that_is_not_known_gets_the_usual_one_with_a_note_and_one_that_carries_nothing_is_refused() -> None:
    chosen, why = newest("pytorch", "", "there")
    assert chosen.reference == DEFAULT_BASES["pytorch"]
    assert "there does not say" in why
    for driver in ("418.87", "none"):
        with pytest.raises(RefusedError) as caught:
            newest("pytorch", driver, "old")
        assert "hardware.driver" in caught.value.where


def test_the_table_is_newest_first_and_holds_the_defaults() -> None:
    for framework, default in DEFAULT_BASES.items():
        releases = [base.tag for base in BASES if base.framework == framework]
        assert releases == sorted(releases, reverse=True)
        assert default in {base.reference for base in BASES}
