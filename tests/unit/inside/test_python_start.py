"""What every Python of a user's program runs first: the worlds that it sees, and that it changes nothing else.

These stand-ins have the names that the hook looks for; what it sees of real ones stands in docs/proofs.md.
"""

import json
import sys
from pathlib import Path

import pytest
from gpu_runner_inside.launcher import python_start

from tests.support.commands import ran

MODULES = {
    "torch/distributed/distributed_c10d.py": (
        "def init_process_group(backend, n, r=0):\n    global name, size, rank\n    name, size, rank = backend, n, r\n"
        "    return 1 / n\ndef get_rank(): return rank\ndef get_world_size(): return size\n"
        "def get_backend(): return name\n"
    ),
    "jax/_src/distributed.py": (
        "class State:\n    def initialize(self, address, num_processes, process_id):\n"
        "        self.num_processes, self.process_id = num_processes, process_id\n"
    ),
    "horovod/common/basics.py": (
        "class HorovodBasics:\n    def init(self, *args): pass\n    def rank(self): return 3\n"
        "    def size(self): return 4\n"
    ),
    "mpi4py/MPI.py": (
        "class COMM_WORLD:\n    Get_rank, Get_size = (lambda: 1), (lambda: 2)\ndef Is_initialized(): return True\n"
    ),
}
TORCH = "from torch.distributed.distributed_c10d import init_process_group as init; "


@pytest.fixture
def program(tmp_path: Path) -> Path:
    for name, text in MODULES.items():
        path = tmp_path / "my $modules" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "my $modules"


def prepared(tmp_path: Path, program: Path, **env: str) -> tuple[str, dict[str, str]]:
    place = python_start.prepare(str(tmp_path))
    assert place is not None
    return place, env | python_start.variables({"PYTHONPATH": str(program)}, "torchrun", place)


@pytest.mark.parametrize(
    ("code", "env", "worlds"),
    [
        (f"{TORCH}init('gloo', 2, 1)", {"LOCAL_RANK": "7"}, [("torch", 1, 2)]),
        # Of one local rank the largest: a script may train and then evaluate alone.
        (f"{TORCH}init('gloo', 1), init('gloo', 4, 2), init('gloo', 1)", {"LOCAL_RANK": "2"}, [("torch", 2, 4)]),
        (f"{TORCH}init('fake', 512)", {}, []),
        ("from jax._src.distributed import State; State().initialize('n0:1', 2, process_id=1)", {}, [("jax", 1, 2)]),
        ("from horovod.common.basics import HorovodBasics; HorovodBasics().init()", {}, [("horovod", 3, 4)]),
        ("from mpi4py import MPI", {}, [("mpi", 1, 2)]),
        ("import torch.distributed.distributed_c10d as c; assert c.init_process_group.__name__ == 'init_process_group'",
            {}, []),
    ],
)  # fmt: skip
def test_the_worlds_that_a_program_forms_are_left(
    tmp_path: Path, program: Path, code: str, env: dict[str, str], worlds: list[tuple[str, int, int]]
) -> None:
    place, given = prepared(tmp_path, program, **env)
    assert ran([sys.executable, "-c", code], env=given) == ("", "")
    assert [(each["kind"], each["rank"], each["size"]) for each in python_start.worlds(place)] == worlds


def test_it_changes_nothing_else(tmp_path: Path, program: Path) -> None:
    """What fails in the program fails there; what cannot be left, or is not seen, is left out."""
    place, env = prepared(tmp_path, program)
    code = f"{TORCH}\ntry: init('gloo', 0)\nexcept ZeroDivisionError: print('its own')"
    assert ran([sys.executable, "-c", code], env=env) == ("its own\n", "")
    formed = f"import sys; sys.path.append({str(program)!r}); {TORCH}init('gloo', 2)"
    for mode in ("-I", "-S", "-E"):
        assert ran([sys.executable, mode, "-c", formed], env=env) == ("", "")
    for nowhere in ({"RUNNER_WORLDS": "/nowhere/at all"}, {"RUNNER_WORLDS": ""}):
        assert ran([sys.executable, "-c", formed], env=env | nowhere, cwd=tmp_path) == ("", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [program.name, Path(place).name]
    assert python_start.worlds(place) == python_start.worlds(None) == []
    assert python_start.prepare("/proc/no directory") is None
    assert python_start.prepare(str(tmp_path)) not in (None, place)  # another step of the job
    # Each of many processes pays for what is imported.
    loaded = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    with_it, without = (json.loads(ran([sys.executable, "-c", loaded], env=each).out) for each in (env, {}))
    assert set(with_it) - set(without) <= {"sitecustomize", "__future__", "atexit"}


def test_no_module_is_taken_from_where_a_program_is_that_it_does_not_import(tmp_path: Path, program: Path) -> None:
    """It may be a scratch of all."""
    place, env = prepared(tmp_path, program)
    for name in ("hashlib", "gpu_runner_inside", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / name)!r}, 'w')")
    ran([sys.executable, "-c", ""], env=env, cwd=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name in ("hashlib", "gpu_runner_inside", "json")]
    assert list(Path(place).glob("ran-*"))


@pytest.mark.parametrize(
    ("words", "env", "stays"),
    [([], {"RANK": "0"}, False), ([], {}, True), (["torchrun"], {"RANK": "0"}, True)],
)
def test_what_a_rank_starts_does_not_load_it(
    tmp_path: Path, program: Path, words: list[str], env: dict[str, str], stays: bool
) -> None:
    place, given = prepared(tmp_path, program, **env)
    path = ran([sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])", *words], env=given).out.strip()
    assert path.split(":") == given["PYTHONPATH"].split(":")[0 if stays else 1 :]
    assert (place in path.split(":")) == stays


def test_what_has_a_colon_is_not_in_pythonpath(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the run directory exp-05:14 has, where exp-05 is another user's."""
    monkeypatch.setattr(python_start, "IMPORT_DIRECTORY", "/runs/exp-05:14/lib/modules")
    given = {"PYTHONPATH": "/a:/b", "RUNNER_METER": "1"}
    monkeypatch.setattr(python_start, "START", "/runs/exp-05:14/lib/python_start")
    assert python_start.variables(given, "env", None)["PYTHONPATH"] == "/a:/b"
    assert python_start.variables(given, "env", "/tmp/x")["PYTHONPATH"] == "/tmp/x:/a:/b"
