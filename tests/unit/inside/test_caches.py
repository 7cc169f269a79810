"""A job's caches on a node: a directory of its own, shared by its ranks, removed by the last of them."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from gpu_runner_inside.launcher import caches, places
from gpu_runner_inside.launcher.failure import LaunchError

from tests.support.commands import ran
from tests.support.users import ALICE, AS_ROOT, BOB, CAROL, open_directory, outcome_as, run_as
from tests.support.waiting import until

LAUNCH = str(Path(__file__).parents[3] / "recipes/lib/launch.py")
NODE = "n-1"
SHOW = "import os; m = os.umask(0); print(f'{m:03o}', os.environ.get('XDG_CACHE_HOME', '-'))"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's directory for temporary files."""
    monkeypatch.setattr(caches, "_BASES", ())
    monkeypatch.setenv("HOME", "/proc/1")  # to which none may write
    return tmp_path


@pytest.fixture
def shared(base: Path) -> Iterator[Path]:
    """Such a one that other users can enter, and write to, as /tmp."""
    with open_directory() as place:
        place.chmod(0o1777)
        yield place


@contextmanager
def job(base: Path, number: str = "7", *, home: bool = False, **env: str) -> Iterator[caches.Caches]:
    """A rank of that job with its caches, which it leaves at its end."""
    made = caches.prepare({"TMPDIR": str(base), **env}, NODE, number, home=home)
    assert made is not None
    yield made
    made.leave()


def own_variables(base: Path) -> dict[str, str]:
    """Those of a login shell that has placed no cache."""
    kept = {name: os.environ[name] for name in os.environ.keys() - {*caches.HOME, *caches.ALWAYS, *caches.PLACED}}
    return {**kept, "TMPDIR": str(base), "RUNNER_JOB_ID": "5", "SLURMD_NODENAME": NODE}


def of_user(base: Path) -> Path:
    return base / f"gpu-runner-{places.outside(os.getuid())}"


def own(base: Path, job: str = "7") -> Path:
    return of_user(base) / f"{NODE}+{job}"


@AS_ROOT
def test_no_other_user_can_take_a_name_that_a_jobs_processes_have_after_its_end(shared: Path) -> None:
    """They may outlive it; what cleans /tmp leaves what has a lock."""
    with job(shared) as first:
        handle = os.open(of_user(shared), os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)
        Path(first.variables["TMPDIR"]).rmdir()  # as a program may that ends
        with job(shared) as second:
            assert second.variables == first.variables and Path(first.variables["TMPDIR"]).is_dir()
        given = {first.path, *first.variables.values()}
    assert list(of_user(shared).iterdir()) == []
    for path in given:
        assert outcome_as(CAROL, os.makedirs, path).what.startswith("PermissionError"), path


@AS_ROOT
def test_a_name_that_another_user_has_taken_holds_up_nothing_and_all_ranks_have_one_place(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another user holds the lock by which ranks that begin at once take turns."""
    mkdtemp = tempfile.mkdtemp

    def delayed(**words: str) -> str:
        time.sleep(0.05)  # until all have begun
        return mkdtemp(**words)

    monkeypatch.setattr(tempfile, "mkdtemp", delayed)
    run_as(CAROL, of_user(shared).mkdir)
    with ThreadPoolExecutor(8) as pool:
        made = [*pool.map(lambda _: caches.prepare({"TMPDIR": str(shared)}, NODE, "7", home=True), range(8))]
    (place,) = {Path(each.path).parent for each in made if each is not None}
    assert (place.name.startswith(f"{of_user(shared).name}+"), place.stat().st_mode & 0o777) == (True, 0o700)
    for each in made:
        assert each is not None
        each.leave()
    of_user(shared).rmdir()
    with job(shared) as later:
        assert Path(later.path).parent == place, "it is found again, and used, though the other name is free"
    place.rename(of_user(shared))
    os.chown(of_user(shared), CAROL, CAROL)
    handle = os.open(shared, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with job(shared) as alone:
        assert Path(alone.path).parent.name.startswith(f"{of_user(shared).name}+")
    os.close(handle)


def test_without_the_home_directory_all_caches_are_the_jobs_own(base: Path) -> None:
    with job(base) as made:
        assert made.path == str(own(base))
        assert made.variables == {
            "XDG_CACHE_HOME": made.path,
            "MPLCONFIGDIR": f"{made.path}/matplotlib",
            "TRITON_CACHE_DIR": f"{made.path}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{made.path}/inductor",
            "CUDA_CACHE_PATH": f"{made.path}/cuda",
            "HOME": f"{made.path}/home",
            "KERAS_HOME": f"{made.path}/home/.keras",
            "CUTE_DSL_CACHE_DIR": f"{made.path}/cutlass",
            "WANDB_CONFIG_DIR": f"{made.path}/wandb",
        }
        for path in made.variables.values():
            assert Path(path).stat().st_mode & 0o777 == 0o700
    assert list(base.rglob("*")) == [of_user(base)]


def test_what_the_user_has_placed_stays_unless_it_is_not_there(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the home directory is seen, only compilers have theirs on the node, and what lies in /tmp else."""
    on_node = ["CUDA_CACHE_PATH", "CUTE_DSL_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"]
    (base / "image").mkdir()
    (base / "image/data").touch()
    for mode, seen in ((0o755, {".keras", "data"}), (0o777, {".keras"})):  # where others may write, it may be theirs
        (base / "image").chmod(mode)
        with monkeypatch.context() as patch:
            patch.setenv("HOME", f"{base}/image")
            patch.setattr(os, "access", lambda path, _mode: not path.endswith("image"))  # a container's is read-only
            made = caches.prepare({"TMPDIR": str(base)}, NODE, "8", home=False)
            assert made is not None
            assert {path.name for path in Path(made.variables["HOME"]).iterdir()} == seen
            made.leave()
    for at, more in ((base, []), (Path("/proc/1"), ["KERAS_HOME", "WANDB_CONFIG_DIR"])):
        monkeypatch.setenv("HOME", str(at))
        with job(base, home=True, TRITON_CACHE_DIR="/mine") as made:
            assert sorted(made.variables) == sorted(on_node + more)
    (base / "mine").mkdir()
    (base / "file").touch()
    placed = {"XDG_CACHE_HOME": f"{base}/mine", "HF_HOME": f"{base}/mine/hf", "TORCH_HOME": f"{base}/file/x"}
    with job(base, "7", home=False, **placed) as made:
        assert made.variables["TORCH_HOME"] == f"{made.path}/torch"
        assert made.variables.keys().isdisjoint({"XDG_CACHE_HOME", "HF_HOME"})
    assert caches.prepare(dict.fromkeys((*caches.ALWAYS, *caches.HOME), str(base)), NODE, "7", home=False) is None


@pytest.mark.parametrize("home", [True, False])
@pytest.mark.parametrize(
    ("named", "mode", "stays"),
    [("own", 0o700, True), ("own", 0o755, True), ("own", 0o1777, False), ("own", 0o770, True), ("none", 0, False),
     ("", 0, False), ("open/own", 0o777, False)],
)  # fmt: skip
def test_temporary_files_are_where_no_other_user_may_have_put_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: bool, named: str, mode: int, stays: bool
) -> None:
    """Also where the host's directory is named, in a container that does not have it."""
    monkeypatch.setattr(caches, "_BASES", (str(tmp_path),))
    if mode:
        first = tmp_path / named.partition("/")[0]
        (tmp_path / named).mkdir(parents=True)
        first.chmod(mode)
    made = caches.prepare({"TMPDIR": f"{tmp_path}/{named}" if named else ""}, NODE, "7", home=home)
    assert made is not None
    given = made.variables.get("TMPDIR")
    assert given == (None if stays else made.place("tmp"))
    assert not given or (Path(given).parent, Path(given).stat().st_mode & 0o777) == (Path(made.path).parent, 0o700)
    made.leave()
    assert not given or not Path(given).exists()


def test_the_ranks_of_a_node_share_it_and_the_last_removes_it(base: Path) -> None:
    with job(base) as second, job(base, "../8 x"):
        assert {*of_user(base).iterdir()} == {own(base, ".._8_x"), own(base)}, "each job its own"
        with job(base) as first:
            assert first.path == second.path
            Path(first.path, "triton/kernel").write_text("compiled")
        assert Path(second.path, "triton/kernel").exists()
    assert list(of_user(base).iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "open to others"])
def test_a_name_that_is_taken_is_not_used(base: Path, kind: str) -> None:
    elsewhere, taken = base / "elsewhere", of_user(base)
    elsewhere.mkdir(mode=0o700)
    if kind == "file":
        taken.touch()
    elif kind == "open to others":
        taken.mkdir()
        taken.chmod(0o770)
    else:
        taken.symlink_to(elsewhere if kind == "link" else base / "nowhere")
    with job(base) as made:
        assert made.path.startswith(f"{taken}+")
        assert Path(made.path).stat().st_mode & 0o777 == 0o700
    assert not Path(made.path).exists()
    assert os.path.lexists(taken)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("above", [False, True], ids=["itself", "above it"])
def test_a_directory_in_which_others_could_replace_it_is_passed_over(
    base: Path, above: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can rename it can put another in its place, from which programs would load compiled code."""
    inner = base / "inner"
    inner.mkdir()
    tmp = inner if above else base

    def is_taken(mode: int) -> bool:
        base.chmod(mode)
        made = caches.prepare({"TMPDIR": str(tmp)}, NODE, "7", home=False)
        if made is not None:
            made.leave()
        return made is not None

    assert [is_taken(mode) for mode in (0o777, 0o1777, 0o775)] == [False, True, True]
    (base / "link").symlink_to(tmp)
    with monkeypatch.context() as patch:  # it was a directory when it was looked up
        patch.setattr(os.path, "realpath", lambda path: path)
        assert caches.prepare({"TMPDIR": f"{base}/link"}, NODE, "7", home=False) is None
    if base != tmp:  # in a container of an ordinary user, root looks like any other
        monkeypatch.setattr(places, "unmapped_user", lambda: 65534)
        os.chown(base, 65534, 65534)
        assert not is_taken(0o755)
        monkeypatch.setattr(places, "unmapped_user", lambda: None)
        os.chown(base, 0, 0)
    if os.getuid() == 0:
        os.chown(base, 1, 1)
        assert [is_taken(mode) for mode in (0o775, 0o755, 0o1777)] == [False, False, False]
        os.chown(base, 1, os.getgid())  # of the login's group, which all may have
        assert [is_taken(mode) for mode in (0o775, 0o755, 0o1777)] == [False, False, False]


@AS_ROOT
@pytest.mark.parametrize(
    ("mode", "of_all", "others"),
    [(0o1777, {BOB}, True), (0o2775, {BOB}, True), (0o2775, set(), False), (0o2755, {BOB}, False)],
)
def test_what_a_stranger_has_put_where_all_may_write_is_not_used(
    mode: int, of_all: set[int], others: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a group that all may have; in a container of an ordinary user root looks like a stranger, too."""
    monkeypatch.setattr(places, "groups_of_all", lambda: (BOB, of_all))
    (tmp_path / "open/hf").mkdir(parents=True)
    os.chown(tmp_path / "open", 0, BOB)
    (tmp_path / "open").chmod(mode)
    for owner, unmapped in ((BOB, None), (65534, 65534)):
        monkeypatch.setattr(places, "unmapped_user", lambda unmapped=unmapped: unmapped)
        os.chown(tmp_path / "open/hf", owner, owner)
        assert places.is_others(str(tmp_path / "open/hf"), image=False) == others


@AS_ROOT
def test_no_program_starts_in_a_directory_that_has_become_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that others could make anew, as the plan's owners say; not where all users look the same."""
    monkeypatch.chdir(tmp_path)
    for user, trust in ((0, ""), (1, ""), (ALICE, ""), (BOB, f"{BOB}"), (65534, ""), (2**32 - 2, ""), (BOB, "")):
        monkeypatch.setenv("RUNNER_TRUST", trust)
        os.chown(tmp_path, user, user)
        with nullcontext() if user != BOB or trust else pytest.raises(LaunchError):
            places.check_start([["/scratch/own", ALICE]])
    places.check_start([])
    with pytest.raises(LaunchError, match=f"{tmp_path} is user {BOB}'s by now, .*; submit again, from") as refused:
        places.check_start([["/scratch/own", ALICE]])
    assert (refused.value.code, refused.value.status) == ("start-exchanged", 123)


def test_no_code_is_loaded_from_a_cache_where_others_may_write(base: Path) -> None:
    """As numba and Triton would; a directory of all above one of this user's does not matter, nor one of data."""
    (base / "open").mkdir()
    (base / "open").chmod(0o1777)
    (base / "open/own").mkdir(mode=0o700)
    names = caches.OF_CODE
    of_data = ("HF_HOME", "TORCH_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE")
    for at, others in ((base / "open", sorted(names)), (base / "open/own", [])):
        with job(base, home=True, **dict.fromkeys((*names, *of_data), str(at))) as made:
            assert sorted(made.of_others) == others
            assert [name for name in names if name in made.variables] == [name for name in names if others]
            assert made.variables.keys().isdisjoint(of_data)


def test_what_a_killed_job_has_left_is_removed_by_the_next_and_a_living_ones_stays(base: Path) -> None:
    words = [sys.executable, LAUNCH, "--caches", "node", "--", "sh", "-c", f"touch {base.parent}/begun; exec sleep 60"]
    with subprocess.Popen(words, env=own_variables(base), stderr=subprocess.DEVNULL) as dead:
        until((base.parent / "begun").exists, "its program, which holds no lock of the caches")
        with job(base, "6") as alive:
            assert own(base, "5").exists()
            dead.send_signal(signal.SIGKILL)
            dead.wait()
            (others := base / f"gpu-runner-{os.getuid() + 1}/{NODE}+5").mkdir(parents=True)
            assert own(base, "5").exists()
            with job(base, "7") as made:
                assert others.exists()
                assert {*map(str, of_user(base).iterdir())} == {alive.path, made.path}


@pytest.mark.parametrize("name", ["n-2+5", "n-1-2+5", "n+7"])
def test_what_another_node_has_in_a_shared_directory_stays_though_its_lock_is_not_seen(base: Path, name: str) -> None:
    """TMPDIR may be on a parallel file system whose locks are each node's own."""
    of_user(base).mkdir(mode=0o700)
    (other := of_user(base) / name).mkdir(mode=0o700)
    with job(base):
        assert other.exists()
    assert list(of_user(base).iterdir()) == [other]


def test_no_rank_fails_for_a_cache_that_cannot_be_made(base: Path) -> None:
    """As on a full disk; here a file is in the way, which an earlier job of the same number has left."""
    of_user(base).mkdir(mode=0o700)
    own(base).mkdir(mode=0o700)
    (own(base) / "triton").touch()
    assert caches.prepare({"TMPDIR": str(base)}, NODE, "7", home=True) is None


@pytest.mark.parametrize(("umask", "given"), [("002", "002"), ("027", "027"), (None, "077")])
def test_a_program_gets_the_users_umask_and_hears_where_its_caches_are(
    tmp_path: Path, umask: str | None, given: str
) -> None:
    options = ["--umask", umask] if umask else []
    words = [sys.executable, LAUNCH, *options, "--caches", "node", "--", sys.executable, "-c", SHOW]
    done = ran(words, env=own_variables(tmp_path), umask=0o077)
    assert done.out == f"{given} {own(tmp_path, '5')}\n"
    assert "note: the home directory is not visible in here" in done.err
    assert not own(tmp_path, "5").exists()


@pytest.mark.parametrize("where", ["shell", "home"])
def test_where_the_home_directory_is_seen_nothing_is_printed(tmp_path: Path, where: str) -> None:
    words = [sys.executable, LAUNCH, "--caches", where, "--", sys.executable, "-c", SHOW]
    assert ran(words, env=own_variables(tmp_path), umask=0o022) == ("022 -\n", "")


@pytest.mark.parametrize("name", caches.TRACES)
def test_what_torch_leaves_of_a_hang_is_in_the_run_directory_unless_it_is_placed(tmp_path: Path, name: str) -> None:
    placed = ("--run", str(tmp_path), "--caches", "home")
    words = [sys.executable, LAUNCH, *placed, "--", "sh", "-c", f'echo "${caches.TRACES[0]}"']
    (tmp_path / "ranks").mkdir()
    assert ran(words, env=own_variables(tmp_path)).out == f"{tmp_path}/nccl/trace_rank_\n"
    assert ran(words, env=own_variables(tmp_path) | {name: "/x"}).out in ("/x\n", "\n")


def test_temporary_files_have_short_names_and_go_with_the_caches(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's sockets need 65 of the 107 bytes that a name may have. All ranks of the node have the same directory."""
    monkeypatch.setattr(caches, "_BASES", ("/tmp",))
    number = "1234567.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"
    first, second = (caches.prepare({}, "queue1-dy-compute-1", number, home=True) for _ in range(2))
    assert first is not None
    assert second is not None
    place = Path(first.variables["TMPDIR"])
    assert second.variables["TMPDIR"] == str(place)
    assert len(str(place)) <= 107 - 65
    (place / "x").mkdir()
    first.leave()
    assert place.is_dir(), "another rank uses it"
    mounted = os.fsencode(f"1 2 0:1 / {place}/x rw - fuse x x")
    with monkeypatch.context() as patch:
        patch.setattr(caches, "_has_mounts", lambda path: mounted.split()[4].startswith(os.fsencode(path)))
        second.leave()
    assert place.is_dir(), "what is mounted there is no cache"
    third = caches.prepare({}, "queue1-dy-compute-1", number, home=True)
    assert third is not None
    third.leave()
    assert not place.exists()
    assert not Path(third.path).exists()


def test_the_next_place_is_taken_where_one_is_full_or_parts_lists_of_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run directory is the last; else a program would use names in /tmp that another user may have taken."""
    monkeypatch.setattr(caches, "_BASES", (str(tmp_path / "second"),))
    bases = {name: tmp_path / name for name in ("a:b", "first", "second", "run")}
    for place in bases.values():
        place.mkdir()
        place.chmod(0o1777)
    mkdir, full = os.mkdir, {"first"}
    monkeypatch.setattr(os, "mkdir", lambda path, *mode: mkdir(*(path, *mode) if not any(
        str(bases[each]) in path and path.endswith("/triton") for each in full) else ("/dev/full/x",)))  # fmt: skip
    for given, used in (("a:b", "second"), ("first", "second"), ("second", "run")):
        made = caches.prepare({"TMPDIR": str(bases[given])}, NODE, "7", str(bases["run"]), home=True)
        assert made is not None
        assert Path(made.path).parent == of_user(bases[used])
        assert Path(made.variables["TRITON_CACHE_DIR"]).is_dir()
        made.leave()
        full.add("second") if given == "first" else None
    assert {path for place in bases.values() for path in place.rglob("*")} <= {*map(of_user, bases.values())}


def test_what_another_jobs_launcher_has_set_counts_as_not_set(base: Path) -> None:
    """A job that a program submits outlives that program's job, whose directory is removed at its end."""
    with job(base) as outer:
        for own_tmp in (of_user(base) / "+12345678", base / "gpu-runner-tmp-x"):  # the second: an earlier version's
            own_tmp.mkdir(0o700)
            first = {**outer.variables, "TMPDIR": str(own_tmp), "HF_HOME": f"{outer.path}/huggingface"}
            inner = caches.prepare(first, NODE, "8", home=False)
            assert inner is not None
            given = {name: value.replace("+7", "+8") for name, value in first.items()}
            assert inner.variables == given | {"TMPDIR": inner.place("tmp")}
            assert Path(inner.path).parent == of_user(base)
            inner.leave()


def test_a_schedulers_directory_of_a_job_stays_where_root_looks_like_any_stranger(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a link, whose target is given then: the link may lead elsewhere by the time that it is used."""
    (place := base / "closed/job7").mkdir(parents=True)
    os.chown(base / "closed", 65534, 65534)
    monkeypatch.setattr(places, "unmapped_user", lambda: 65534)
    (link := base / "link").symlink_to(place)
    base.chmod(0o755)
    for at, mode, given in ((place, 0o755, None), (link, 0o755, str(place)), (place, 0o1777, "")):
        (base / "closed").parent.chmod(mode)
        made = caches.prepare({"TMPDIR": str(at)}, NODE, "7", str(base), home=True)
        assert made is not None
        assert made.variables.get("TMPDIR") == (given if given != "" else made.place("tmp"))
        assert made.of_others == (() if given != "" else ("TMPDIR",))
        made.leave()


def test_what_an_image_has_is_no_strangers(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NGC's /workspace, which all may write to; but what is mounted in a container may be another user's."""
    (models := base / "workspace/hf").mkdir(parents=True)
    models.parent.chmod(0o777)
    for image, mount, replaced in ((True, "/", ()), (True, "/tmp", ("HF_HOME",)), (False, "/", ("HF_HOME",))):
        monkeypatch.setattr(places, "_mount_of", lambda _path, mount=mount: mount)
        made = caches.prepare({"TMPDIR": str(base), "HF_HOME": str(models)}, NODE, "7", home=True, image=image)
        assert made is not None
        assert made.of_others == replaced
        made.leave()


def test_of_the_names_in_an_open_directory_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user makes and removes them: it would be that user's choice, also one with a colon."""
    names = ("abcdefgh", "a:bcdefg")
    monkeypatch.setattr(caches, "_beginning", lambda start: [f"{start}{name}" for name in names])
    found = caches.of_user(str(tmp_path))
    assert found is not None
    os.close(found[1])
    assert [path.name for path in tmp_path.iterdir()] == [f"gpu-runner-{os.geteuid()}"]
