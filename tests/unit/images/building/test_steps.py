"""A Dockerfile as steps: everything that it says arrives, and what a builder might not do is refused."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from runner.core import paths
from runner.core.errors import InfrastructureError, RefusedError, UsageError
from runner.images.building import apptainer, dockerfile
from runner.images.building.build import DEFAULT_ARGS, DEFAULT_BASES
from runner.images.building.dockerfile import Arg, Copy, Env, Label, Run, Stage, environment, parse_stages
from runner.images.writable_root import archived

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
    assert one == Stage(
        "first:1",
        "one",
        (
            Arg("MODE", "slow"),
            Env("LEVEL", "slow"),
            Env("OTHER", "a b"),
            Run('echo "${MODE}"     && true'),
            Copy(("a", "b/*.py"), "/there/"),
        ),
    )
    assert two == Stage(
        "first:1", "", (Label("part", "two"), Arg("BASE", "first:1"), Copy(("/made/",), "/taken/", "one"))
    )
    assert environment(one) == {"LEVEL": "slow", "OTHER": "a b"}


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


def test_an_argument_that_nothing_declares_is_refused() -> None:
    with pytest.raises(UsageError, match="no argument TYPO"):
        parse_stages(TEXT, {"TYPO": "1"})


@pytest.mark.parametrize("framework", sorted(DEFAULT_BASES))
def test_the_projects_own_dockerfiles_keep_to_plain_instructions(framework: str) -> None:
    text = (paths.share("containers") / framework / "Dockerfile").read_text("utf-8")
    values = {**DEFAULT_ARGS[framework], "BASE_DIGEST": "sha256:1", "SOURCE": "0"}
    first, last = parse_stages(text, values)
    said = "".join(line for line in text.splitlines() if not line.startswith("#"))
    assert len([step for step in (*first.steps, *last.steps) if isinstance(step, Run)]) == said.count("RUN ")
    assert len([step for step in (*first.steps, *last.steps) if isinstance(step, Copy)]) == said.count("COPY ")
    assert {first.base, last.base} == {DEFAULT_BASES[framework]}


def test_a_script_does_what_an_engine_does(tmp_path: Path) -> None:
    """Run by a real shell, its places moved: directories by content, values as they are, the first failure ends it."""
    (tmp_path / "context/a").mkdir(parents=True)
    (tmp_path / "context/a/in a").write_text("1")
    (tmp_path / "context/b.py").write_text("2")
    there = tmp_path / "there"
    value = 'it\'s $HOME `id` "x"'
    stage = Stage(
        "base",
        "",
        (Arg("NOTE", value), Copy(("a", "*.py"), f"{there}/"), Run(f'printf %s "$NOTE" >{there}/note && true')),
    )
    done = shell(stage, tmp_path)
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


def test_a_tree_comes_out_of_the_archive_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "deep/er").mkdir(parents=True)
    (root / "deep/er/file").write_bytes(b"x" * 3_000_000)
    (root / "deep/er/file").chmod(0o4755)
    (root / "twin").hardlink_to(root / "deep/er/file")
    (root / "soft").symlink_to("../elsewhere")
    (root / "grüße").write_text("ü")
    (root / "own/inner").mkdir(parents=True)
    (root / "own/inner/x").write_text("x")
    raw = b"".join(archived(root, frozenset(("own/inner",))))
    with tarfile.open(fileobj=BytesIO(raw)) as tar:
        found = {member.name: member for member in tar}
        content = tar.extractfile("deep/er/file")
        assert content is not None
        assert content.read() == b"x" * 3_000_000
    assert sorted(found) == ["deep", "deep/er", "deep/er/file", "grüße", "own", "soft", "twin"]
    assert found["deep/er/file"].mode == 0o4755
    assert (found["twin"].type, found["twin"].linkname) == (tarfile.LNKTYPE, "deep/er/file")
    assert found["soft"].linkname == "../elsewhere"
    assert {(member.uid, member.gid) for member in found.values()} == {(0, 0)}


def test_a_file_that_shrinks_while_it_is_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    chunks = archived(tmp_path)
    next(chunks)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InfrastructureError, match="changed while it was read"):
        list(chunks)
