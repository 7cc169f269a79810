"""Further packages of an image: what may be asked for, and what is written down of what pip installed."""

from __future__ import annotations

import pytest

from runner.cli import run
from runner.core.errors import Exit, UsageError
from runner.images.building import more_packages
from runner.model.image import Package, facts_of
from tests.support.container_programs import Programs


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("einops==0.8.1", "einops==0.8.1"),
        (" scikit-learn == 1.7.2 ", "scikit-learn==1.7.2"),
        ("ray[default, tune]==2.9.0", "ray[default,tune]==2.9.0"),
        ("x==1!2.0.post1+cpu; python_version<'3.9'", "x==1!2.0.post1+cpu ; python_version<'3.9'"),
    ],
)
def test_a_package_with_its_version(text: str, line: str) -> None:
    assert more_packages.requirement(text, "here") == line


@pytest.mark.parametrize(
    "text",
    [
        "", "einops", "einops>=0.8", "einops==0.*", "-r more.txt", "--index-url=https://evil", "./local",
        "x==1 --hash=sha256:0", "git+https://host/x", "x @ https://host/x.whl", "x==1\ny==2", "x==$(id)",
        "x==1 ; a \\\n-e .",
    ],
)  # fmt: skip
def test_what_is_no_package_with_its_version(text: str) -> None:
    with pytest.raises(UsageError, match="is no package with its version"):
        more_packages.requirement(text, "--requirement")


def test_a_file_of_requirements() -> None:
    assert more_packages.requirements_of_file("# ours\n\neinops==0.8.1  # for views\nx==1\n", "r.txt") == [
        "einops==0.8.1",
        "x==1",
    ]
    with pytest.raises(UsageError, match="'numpy' is no package") as refused:
        more_packages.requirements_of_file("x==1\nnumpy\n", "r.txt")
    assert refused.value.where == "r.txt:2"


def test_each_package_once_whatever_the_order() -> None:
    assert more_packages.together(["b==1", "a==1", "b==1"]) == ("a==1", "b==1")
    with pytest.raises(UsageError, match=r"A_b==2 and a-b==1 are both asked for"):
        more_packages.together(["a-b==1", "A_b==2"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--with", "ch-image"), "--requirement does not go with --with ch-image"),
        (("--definition",), "--requirement does not go with --definition"),
        (("--wheels", "/nowhere"), "further packages need the package index"),
    ],
)
def test_builds_that_take_no_further_packages(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", "pytorch", *words, "--requirement", "einops==0.8.1"]) == Exit.USAGE
    assert says in capsys.readouterr().err


def test_what_pip_installed_is_written_down(programs: Programs) -> None:
    """With its hash, in pip's form of today and of before 23.1; what came along is marked."""
    new = {"hashes": {"sha256": "ab"}}
    report = {
        "install": [
            {"metadata": {"name": "b", "version": "2"}, "requested": True, "download_info": {"archive_info": new}},
            {"metadata": {"name": "A", "version": "1"}, "download_info": {"archive_info": {"hash": "sha256=cd"}}},
            {"metadata": {"name": "c", "version": "3"}, "download_info": {"vcs_info": {}}},
        ]
    }
    found = programs["more_packages"].installed(report)
    assert found == [
        {"name": "A", "version": "1", "sha256": "cd", "requested": False},
        {"name": "b", "version": "2", "sha256": "ab", "requested": True},
        {"name": "c", "version": "3", "sha256": "", "requested": False},
    ]
    facts = facts_of({"framework": "pytorch", "packages": found})
    assert facts is not None
    assert facts.packages[1] == Package("b", "2", "ab", requested=True)


def test_what_the_image_has_is_held(programs: Programs) -> None:
    """Of two with one name, the one that Python imports: Debian has pip's setuptools before its own."""
    have = [("torch", "2.13.0+cpu"), ("setuptools", "84.2.1"), ("-e", "1"), ("gpg", "1.18.0-unknown"), ("", "")]
    constraints = programs["more_packages"].constraints([*have, ("Setuptools", "66.1.1")])
    assert constraints == "setuptools==84.2.1\ntorch==2.13.0+cpu\n"


@pytest.mark.parametrize(
    ("files", "top_level", "names"),
    [
        (("sklearn/__init__.py", "sklearn/svm/x.py", "scikit_learn.libs/lib.so"), "", ["sklearn"]),
        (("six.py", "six-1.dist-info/METADATA"), "", ["six"]),
        (("_cffi_backend.cpython-311-x86_64-linux-gnu.so", "cffi/__init__.py", "tests/__init__.py"), "", ["cffi"]),
        ((), "yaml\n_yaml\n", ["yaml"]),
    ],
)
def test_what_is_imported_of_a_package(
    programs: Programs, files: tuple[str, ...], top_level: str, names: list[str]
) -> None:
    assert programs["more_packages"].modules(files, top_level) == names
