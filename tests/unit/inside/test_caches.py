"""A job's caches on a node: a directory of its own, shared by its ranks, removed by the last of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_runner_inside.launcher import caches

from tests.support.waiting import until

LAUNCH = str(Path(__file__).parents[3] / "recipes/lib/launch.py")
NODE = "n-1"
SHOW = "import os; m = os.umask(0); print(f'{m:03o}', os.environ.get('XDG_CACHE_HOME', '-'))"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's directory for temporary files."""
    monkeypatch.setattr(caches, "_BASES", ())
    return tmp_path


def of(base: Path, job: str = "7", *, home: bool = False, **env: str) -> caches.Caches:
    found = caches.prepare({"TMPDIR": str(base), **env}, NODE, job, home=home)
    assert found is not None
    return found


def own(base: Path, job: str = "7") -> Path:
    return base / f"gpu-runner-cache-{os.getuid()}-{NODE}+{job}"


def test_without_the_home_directory_all_caches_are_the_jobs_own(base: Path) -> None:
    found = of(base)
    assert found.path == str(own(base))
    assert found.variables == {
        "XDG_CACHE_HOME": found.path,
        "MPLCONFIGDIR": f"{found.path}/matplotlib",
        "TRITON_CACHE_DIR": f"{found.path}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{found.path}/inductor",
        "CUDA_CACHE_PATH": f"{found.path}/cuda",
    }
    for path in found.variables.values():
        assert Path(path).stat().st_mode & 0o777 == 0o700
    found.leave()
    assert list(base.iterdir()) == []


def test_where_the_home_directory_is_seen_only_compilers_have_theirs_on_the_node(base: Path) -> None:
    found = of(base, home=True, TRITON_CACHE_DIR="/mine")
    assert sorted(found.variables) == ["CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR"]
    found.leave()


def test_what_the_user_has_placed_stays_unless_it_is_not_there(base: Path) -> None:
    (base / "mine").mkdir()
    (base / "file").touch()
    placed = {"XDG_CACHE_HOME": f"{base}/mine", "HF_HOME": f"{base}/mine/hf", "TORCH_HOME": f"{base}/file/x"}
    found = caches.prepare({"TMPDIR": str(base), **placed}, NODE, "7", home=False)
    assert found is not None
    assert found.variables["TORCH_HOME"] == f"{found.path}/torch"
    assert found.variables.keys().isdisjoint({"XDG_CACHE_HOME", "HF_HOME"})
    found.leave()
    assert caches.prepare(dict.fromkeys((*caches.COMPILERS, *caches.HOME), str(base)), NODE, "7", home=False) is None


def test_a_directory_for_temporary_files_that_is_not_there_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's own, of a login shell or of the scheduler, in a container that does not have it."""
    monkeypatch.setattr(caches, "_BASES", (str(tmp_path),))
    for env, replaced in (({"TMPDIR": "/host/tmp"}, str(tmp_path)), ({"TMPDIR": "/tmp"}, None), ({}, None)):
        found = caches.prepare(env, NODE, "7", home=False)
        assert found is not None
        assert found.variables.get("TMPDIR") == replaced
        found.leave()
    natively = caches.prepare({"TMPDIR": "/host/tmp"}, NODE, "7", home=True)
    assert natively is not None
    assert "TMPDIR" not in natively.variables
    natively.leave()


def test_the_ranks_of_a_node_share_it_and_the_last_removes_it(base: Path) -> None:
    first, second = of(base), of(base)
    assert first.path == second.path
    Path(first.path, "triton/kernel").write_text("compiled")
    first.leave()
    assert Path(second.path, "triton/kernel").exists()
    second.leave()
    assert list(base.iterdir()) == []


def test_jobs_of_one_user_have_one_each(base: Path) -> None:
    first, second = of(base, "7"), of(base, "../8 x")
    assert [path.name for path in sorted(base.iterdir())] == [
        own(base, ".._8_x").name, own(base, "7").name,
    ]  # fmt: skip
    first.leave()
    second.leave()


@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "open to others"])
def test_a_name_that_is_taken_is_not_used(base: Path, kind: str) -> None:
    elsewhere = base / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if kind == "file":
        own(base).touch()
    elif kind == "open to others":
        own(base).mkdir()
        own(base).chmod(0o770)
    else:
        own(base).symlink_to(elsewhere if kind == "link" else base / "nowhere")
    found = of(base)
    assert found.path.startswith(f"{own(base)}-")
    assert Path(found.path).stat().st_mode & 0o777 == 0o700
    found.leave()
    assert not Path(found.path).exists()
    assert os.path.lexists(own(base))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("above", [False, True], ids=["itself", "above it"])
def test_a_directory_in_which_others_could_replace_it_is_passed_over(base: Path, above: bool) -> None:
    """Whoever can rename it can put another in its place, from which programs would load compiled code."""
    inner = base / "inner"
    inner.mkdir()
    base.chmod(0o777)
    tmp = inner if above else base
    assert caches.prepare({"TMPDIR": str(tmp)}, NODE, "7", home=False) is None
    base.chmod(0o1777)
    of(tmp).leave()
    base.chmod(0o775)
    of(tmp).leave()
    if os.getuid() == 0:
        os.chown(base, 1, 1)
        assert caches.prepare({"TMPDIR": str(tmp)}, NODE, "7", home=False) is None
        base.chmod(0o755)
        of(tmp).leave()


def test_what_a_killed_job_has_left_is_removed_by_the_next_and_a_living_ones_stays(base: Path) -> None:
    env = {**os.environ, "TMPDIR": str(base), "RUNNER_JOB_ID": "5", "SLURMD_NODENAME": NODE}
    words = [sys.executable, LAUNCH, "--caches", "node", "--", "sleep", "60"]
    with subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL) as dead:
        until(lambda: own(base, "5").exists(), "its caches")
        alive = of(base, "6")
        assert own(base, "5").exists()
        dead.send_signal(signal.SIGKILL)
    other = f"gpu-runner-cache-{os.getuid() + 1}-{NODE}+5"
    (base / other).mkdir()
    (base / "mine").mkdir()
    assert own(base, "5").exists()
    found = of(base, "7")
    names = {other, "mine", Path(alive.path).name, Path(found.path).name}
    assert {path.name for path in base.iterdir()} == names
    alive.leave()
    found.leave()


@pytest.mark.parametrize("name", ["n-2+5", "n-1-2+5", "n+7"])
def test_what_another_node_has_in_a_shared_directory_stays_though_its_lock_is_not_seen(base: Path, name: str) -> None:
    """TMPDIR may be on a parallel file system whose locks are each node's own."""
    other = base / f"gpu-runner-cache-{os.getuid()}-{name}"
    other.mkdir(mode=0o700)
    found = of(base)
    assert other.exists()
    found.leave()
    assert list(base.iterdir()) == [other]


def test_no_rank_fails_for_a_cache_that_cannot_be_made(base: Path) -> None:
    """As on a full disk; here a file is in the way, which an earlier job of the same number has left."""
    own(base).mkdir(mode=0o700)
    (own(base) / "triton").touch()
    found = of(base)
    assert "TRITON_CACHE_DIR" not in found.variables
    assert found.variables["CUDA_CACHE_PATH"] == f"{own(base)}/cuda"
    found.leave()


@pytest.mark.parametrize(("umask", "given"), [("002", "002"), ("027", "027"), (None, "077")])
def test_a_program_gets_the_users_umask_and_hears_where_its_caches_are(
    tmp_path: Path, umask: str | None, given: str
) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path), "RUNNER_JOB_ID": "5", "SLURMD_NODENAME": NODE}
    for name in (*caches.HOME, *caches.COMPILERS, *caches.PLACED):
        env.pop(name, None)
    options = ["--umask", umask] if umask else []
    words = [sys.executable, LAUNCH, *options, "--caches", "node", "--", sys.executable, "-c", SHOW]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True, umask=0o077)
    assert done.stdout == f"{given} {own(tmp_path, '5')}\n"
    assert "note: the home directory is not visible in here" in done.stderr
    assert not own(tmp_path, "5").exists()


@pytest.mark.parametrize("where", ["shell", "home"])
def test_where_the_home_directory_is_seen_nothing_is_printed(tmp_path: Path, where: str) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    env.pop("XDG_CACHE_HOME", None)
    words = [sys.executable, LAUNCH, "--caches", where, "--", sys.executable, "-c", SHOW]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True, umask=0o022)
    assert (done.stdout, done.stderr) == ("022 -\n", "")
