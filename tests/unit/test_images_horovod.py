"""The programs that build and prove Horovod inside a base, where they decide without one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

CONTAINERS = Path(__file__).parents[2] / "containers" / "horovod"
BASE: dict[str, object] = {
    "cuda": None,
    "nccl": None,
    "nccl_headers": False,
    "mpi": {"flavour": "", "version": ""},
    "python": "3.11.2",
}
NGC: dict[str, object] = {
    **BASE,
    "cuda": "12.8",
    "nccl": "2.25.1",
    "nccl_headers": True,
    "mpi": {"flavour": "openmpi", "version": "4"},
}


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(CONTAINERS))
    names = ("frameworks", "build", "prove")
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(CONTAINERS))
        for name in names:
            del sys.modules[name]


def test_mends_fit_the_source_they_were_written_for_and_nothing_else(
    programs: dict[str, ModuleType], tmp_path: Path
) -> None:
    build = programs["build"]
    patch = (CONTAINERS / "mends" / "cxx-standard.patch").read_text()
    (tmp_path / "horovod" / "torch").mkdir(parents=True)
    top, torch = tmp_path / "CMakeLists.txt", tmp_path / "horovod" / "torch" / "CMakeLists.txt"
    top.write_text("project(horovod CXX)\n\nset(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n")
    torch.write_text('if(NOT Pytorch_VERSION VERSION_LESS "1.5.0")\n    set(CMAKE_CXX_STANDARD 14)\nendif()\n')
    assert build.apply_patch(patch, tmp_path) == 2
    assert "$ENV{HOROVOD_CXX_STANDARD}" in top.read_text()
    assert "$ENV{HOROVOD_CXX_STANDARD}" in torch.read_text()
    with pytest.raises(SystemExit, match="does not fit"):
        build.apply_patch(patch, tmp_path)


def test_every_mend_names_its_error_and_all_are_small(programs: dict[str, ModuleType]) -> None:
    patches = sorted((CONTAINERS / "mends").glob("*.patch"))
    changed = 0
    for patch in patches:
        assert patch.read_text().startswith("Removes: ")
        changed += sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in patch.read_text().splitlines())
    assert 0 < changed <= 20
    known = {mend for framework in programs["frameworks"].FRAMEWORKS.values() for mend in framework.mends}
    assert known == {patch.stem for patch in patches}


def test_what_is_promised_is_required(programs: dict[str, ModuleType]) -> None:
    torch = programs["frameworks"].FRAMEWORKS["pytorch"]
    plain = programs["build"].switches(torch, BASE, "17", "80,90")
    assert plain["HOROVOD_WITH_PYTORCH"] == plain["HOROVOD_WITH_GLOO"] == plain["HOROVOD_WITHOUT_MPI"] == "1"
    assert "HOROVOD_GPU_OPERATIONS" not in plain
    gpu = programs["build"].switches(torch, NGC, "20", "80")
    assert gpu["HOROVOD_WITH_MPI"] == "1"
    assert (gpu["HOROVOD_GPU_OPERATIONS"], gpu["HOROVOD_NCCL_LINK"]) == ("NCCL", "SHARED")
    assert (gpu["HOROVOD_BUILD_CUDA_CC_LIST"], gpu["HOROVOD_CXX_STANDARD"]) == ("80", "20")


def test_the_wheels_key_follows_what_goes_into_it(programs: dict[str, ModuleType]) -> None:
    build, torch = programs["build"], programs["frameworks"].FRAMEWORKS["pytorch"]

    def key(facts: dict[str, object], standard: str = "17") -> str:
        return str(build.wheel_key(torch, facts, build.switches(torch, facts, standard, "80,90")))

    keys = {key(BASE), key(NGC), key(BASE, "20"), key({**BASE, "python": "3.12.3"})}
    assert len(keys) == 4
    assert key(BASE) == key(dict(reversed(BASE.items())))


def test_check_build_is_read_by_section(programs: dict[str, ModuleType]) -> None:
    text = """Horovod v0.28.1:

Available Frameworks:
    [ ] TensorFlow
    [X] PyTorch

Available Controllers:
    [ ] MPI
    [X] Gloo

Available Tensor Operations:
    [X] NCCL
    [ ] MPI
    [X] Gloo
"""
    assert programs["prove"].parse_check_build(text) == {
        "frameworks": ["PyTorch"],
        "controllers": ["Gloo"],
        "operations": ["NCCL", "Gloo"],
    }


@pytest.mark.parametrize(
    ("answers", "codes", "complaint"),
    [
        (['{"proof": 1, "rank": 0, "size": 1, "local_size": 1, "sum": [11, 11, 1, 1]}'], [0, 0], "1 of 2 ranks"),
        (['{{"proof": 1, "rank": {}, "size": 1, "local_size": 1, "sum": [1, 1, 1, 1]}}'], [0, 0], "world of size 1"),
        (['{{"proof": 1, "rank": {}, "size": 2, "local_size": 2, "sum": [11, 12, 1, 1]}}'], [0, 0], "reduced to"),
        (['{{"proof": 1, "rank": {}, "size": 2, "local_size": 2, "sum": [11, 11, 1, 1]}}'], [0, 1], "exit codes"),
    ],
)
def test_a_proof_that_proves_nothing_fails(
    programs: dict[str, ModuleType], answers: list[str], codes: list[int], complaint: str
) -> None:
    outputs = answers if len(answers) == 1 and "{{" not in answers[0] else [answers[0].format(n) for n in (0, 1)]
    with pytest.raises(SystemExit, match=complaint):
        programs["prove"].verify("test", outputs, codes)


def test_ranks_that_agree_and_are_right_are_proof(programs: dict[str, ModuleType]) -> None:
    line = 'noise {{"proof": 1, "rank": {}, "size": 2, "local_size": 2, "sum": [11.0, 11.0, 1.0, 1.0]}}'
    programs["prove"].verify("test", [f"banner\n{line.format(n)}\n" for n in (0, 1)], [0, 0])
