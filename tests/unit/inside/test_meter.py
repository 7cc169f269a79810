"""The meter of a user's script, without a framework: what it counts, what it leaves, how it ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_runner_inside.launcher import metering, rendezvous, rendezvous_server
from gpu_runner_inside.meter.channel import ByRendezvous, Channel, GaveUpError

from tests.support.json_schema import check
from tests.support.rank_records import records

LIB = Path(__file__).parents[3] / "recipes" / "lib"
TOKEN = "0123456789abcdef"


def run(code: str, run_dir: Path, *, good: bool = True, **env: str) -> str:
    """What a program that measures itself as rank 0 of a job says on standard error; it ends well, or does not."""
    own = {"PATH": os.environ["PATH"], "RUNNER_RUN_DIR": str(run_dir), "RUNNER_TOKEN": "t", "RUNNER_RANK": "0"}
    made = metering.variables({}, {"result": "if-left"}, "rendezvous")
    done = subprocess.run([sys.executable, "-c", code], env={**own, **made, **env}, capture_output=True, text=True,
                          check=False, timeout=60)  # fmt: skip
    assert (done.returncode == 0) is good, done.stderr
    return done.stderr


TRAINS = "import runner_meter\nmeter = runner_meter.start(batch_size=10{more})\nfor _ in range({steps}): meter.step()\n"


def left(run_dir: Path, kind: str) -> dict[str, Any]:
    """The record of this kind that rank 0 left, which is as the schema says."""
    (record,) = records(run_dir, kind).values()
    check(record)
    return record


def test_a_script_leaves_raw_times_and_no_claim(tmp_path: Path) -> None:
    """Without a model and an optimizer there is a report, and no result: the run only ran."""
    said = run(TRAINS.format(more="", steps=40), tmp_path)
    report = left(tmp_path, "report")
    assert (report["synchronisation"], report["unit"], report["meter"]) == ("not-given", "samples", "script")
    assert (report["warmup_steps"], report["steps"], report["batch_size"]) == (3, 20, 10)
    assert len(report["ends_s"]) == report["steps"] // report["group_steps"] == len(report["group_samples"])
    assert sum(report["group_samples"]) == 200
    assert "gradient_checksum" not in report
    assert "parameters_moved" not in report
    assert left(tmp_path, "meter")["state"] == "measured"
    assert not (tmp_path / "result.json").exists()
    assert "synchronisation not proven" in said


def test_a_smaller_last_batch_and_accumulation_count_as_they_are(tmp_path: Path) -> None:
    code = (
        "import runner_meter\n"
        "meter = runner_meter.start(batch_size=10, accumulate=3, unit='tokens', steps=20)\n"
        "for step in range(40): meter.step(7 if step % 10 == 9 else None)\n"
    )
    run(code, tmp_path)
    report = left(tmp_path, "report")
    assert (report["batch_size"], report["unit"]) == (30, "tokens")
    assert sum(report["group_samples"]) == 18 * 30 + 2 * 7


def test_a_claim_needs_the_lengths_of_the_benchmarks(tmp_path: Path) -> None:
    """Too few steps for a warm-up of 50: it says so, and leaves no figure."""
    run(TRAINS.format(more=", demonstration=False", steps=49), tmp_path)
    meter = left(tmp_path, "meter")
    assert (meter["state"], meter["why"]) == ("given-up", "the program ended after 49 steps, in the warm-up")
    assert records(tmp_path, "report") == {}


@pytest.mark.parametrize(
    ("end", "state", "why"),
    [
        ("raise SystemExit(3)", "given-up", "the program ended after 10 steps, in the window"),
        ("raise ValueError('mine')", "given-up", "the program ended after 10 steps, in the window"),
        ("import os; os._exit(0)", "window", ""),
    ],
)
def test_a_program_that_ends_half_way(tmp_path: Path, end: str, state: str, why: str) -> None:
    said = run(TRAINS.format(more="", steps=10) + end, tmp_path, good="os._exit" in end)
    meter = left(tmp_path, "meter")
    assert (meter["state"], meter["why"]) == (state, why)
    assert records(tmp_path, "report") == {}
    assert "runner_meter" not in said, "its last line stays its own"


@pytest.mark.parametrize("samples", ["'many'", "-5", "float('nan')", "[]"])
def test_a_step_of_no_number_of_samples_ends_the_meter_and_not_the_program(tmp_path: Path, samples: str) -> None:
    code = TRAINS.format(more="", steps=10) + f"meter.step({samples})\nfor _ in range(40): meter.step()\n"
    run(code, tmp_path)
    assert left(tmp_path, "meter")["why"].endswith(" is no number of samples")
    assert records(tmp_path, "report") == {}


LIGHTNING = """
import types, runner_meter
callback = runner_meter.lightning_callback(batch_size=10)
trainer = types.SimpleNamespace(accumulate_grad_batches=4, optimizers=[], global_step=0)
callback.on_train_start(trainer, None)
for batch in range(400):  # epochs of ten batches: the third step of each has only two
    trainer.global_step += batch % 10 in (3, 7, 9)
    callback.on_train_batch_end(trainer, None, None, None, batch)
"""
TRANSFORMERS = """
import types, runner_meter
callback = runner_meter.transformers_callback()
args = types.SimpleNamespace(train_batch_size=10, gradient_accumulation_steps=4)
callback.on_train_begin(args, None, None)
for batch in range(400):
    (callback.on_step_end if batch % 10 in (3, 7, 9) else callback.on_substep_end)(args, None, None)
"""


@pytest.mark.parametrize(
    ("package", "name", "code"),
    [("lightning/pytorch", "Callback", LIGHTNING), ("transformers", "TrainerCallback", TRANSFORMERS)],
)
def test_the_last_step_of_an_epoch_has_the_batches_that_are_left(
    tmp_path: Path, package: str, name: str, code: str
) -> None:
    """Both frameworks end a step with an epoch, however few batches it then has accumulated."""
    directory = tmp_path / "packages" / package
    directory.mkdir(parents=True)
    (directory / "__init__.py").write_text(f"class {name}: pass\n")
    if directory.parent != tmp_path / "packages":
        (directory.parent / "__init__.py").touch()
    run(f"import sys; sys.path.insert(0, {str(tmp_path / 'packages')!r})\n{code}", tmp_path)
    report = left(tmp_path, "report")
    assert report["group_steps"] == 1
    assert set(report["group_samples"]) == {40, 20}
    assert sum(sorted(report["group_samples"])[:6]) == 120


def test_a_second_meter_measures_nothing(tmp_path: Path) -> None:
    code = (
        TRAINS.format(more="", steps=1) + "runner_meter.start(batch_size=99)\n" + "for _ in range(40): meter.step()\n"
    )
    said = run(code, tmp_path)
    assert left(tmp_path, "report")["batch_size"] == 10
    assert "this process has a meter already" in said


def test_what_was_measured_stands_when_the_program_begins_anew(tmp_path: Path) -> None:
    """It replaces itself by exec after its training, and trains again."""
    code = TRAINS.format(more="", steps=40) + (
        "import os, sys\nif len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, '-c', CODE, 'again'])\n"
    )
    said = run(f"CODE = {code!r}\nexec(CODE)", tmp_path)
    assert said.count("preliminary throughput") == 1
    assert "this process has a meter already" in said


def test_a_process_that_the_program_starts_counts_nothing(tmp_path: Path) -> None:
    """Forked, as workers of a loader are, with the meter in it; and started anew, with one of its own."""
    code = TRAINS.format(more="", steps=2) + (
        "import os, subprocess, sys\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    for _ in range(50): meter.step()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "other = 'import runner_meter; m = runner_meter.start(batch_size=1); [m.step() for _ in range(50)]'\n"
        "subprocess.run([sys.executable, '-c', other], check=True)\n"
        "for _ in range(8): meter.step()\n"
    )
    said = run(code, tmp_path)
    assert left(tmp_path, "meter")["why"] == "the program ended after 10 steps, in the window"
    assert "which measures" in said
    assert records(tmp_path, "report") == {}


BAD = {
    "batch_size": ("0", "-1", "True", "2.5", "'32'", "None", "float('nan')", "10**30"),
    "accumulate": ("0", "False", "None", "1.0"),
    "unit": ("'images'", "None", "['samples']"),
    "sharded": ("'no'", "1", "None"),
    "flops_per_sample": ("0", "-1.0", "float('nan')", "float('inf')", "'1e9'", "True", "10**400"),
    "peak_flops": ("0", "[]"),
    "warmup_steps": ("-1", "2.0", "True", "'3'"),
    "warmup_seconds": ("-0.1", "float('nan')", "float('inf')", "'5'", "1e300", "True"),
    "steps": ("0", "-3", "20.0", "'20'", "True", "10**400"),
    "window_seconds": ("-1", "float('nan')", "10**400"),
    "demonstration": ("'no'", "0", "1.5"),
}


def test_what_cannot_be_right_is_refused_by_name(tmp_path: Path) -> None:
    code = (
        f"import runner_meter\nfor name, values in {BAD!r}.items():\n    for value in values:\n"
        "        try: runner_meter.start(**{'batch_size': 2, name: eval(value)})\n"
        "        except ValueError as error: assert str(error).startswith(f'runner_meter: {name}='), (value, error)\n"
        "        else: raise AssertionError((name, value))\n"
    )
    run(code, tmp_path)
    assert records(tmp_path, "meter") == {}


def test_the_least_and_the_most_that_can_be_right_are_taken(tmp_path: Path) -> None:
    """A number of NumPy's, too, which is no int."""
    code = (
        "import runner_meter\nclass Whole:\n    def __index__(self): return 3\n    def __int__(self): return 3\n"
        "meter = runner_meter.start(batch_size=Whole(), warmup_steps=0, warmup_seconds=0, steps=1, window_seconds=0)\n"
        "for _ in range(3): meter.step()\n"
    )
    run(code, tmp_path)
    report = left(tmp_path, "report")
    assert (report["batch_size"], report["steps"], report["group_samples"]) == (3, 1, [3])


def test_clocks_that_are_replaced_later_change_nothing(tmp_path: Path) -> None:
    """As libraries do that freeze time for a test; each step still takes a millisecond and more."""
    code = (
        "import time, runner_meter\nsleep = time.sleep\n"
        "time.monotonic = time.perf_counter = time.time = lambda: 1.0\n"
        "time.sleep = lambda seconds: None\n"
        "meter = runner_meter.start(batch_size=10)\n"
        "for _ in range(40): sleep(0.001); meter.step()\n"
    )
    run(code, tmp_path)
    assert left(tmp_path, "report")["ends_s"][-1] > 0.02


@pytest.mark.parametrize("clock", ["lambda: 1.0", "time.process_time"])
def test_clocks_that_were_replaced_before_are_not_believed(tmp_path: Path, clock: str) -> None:
    code = f"import time\ntime.monotonic = {clock}\n" + TRAINS.format(more="", steps=40)
    run(code, tmp_path)
    meter = left(tmp_path, "meter")
    assert meter["state"] == "given-up"
    assert meter["why"].startswith("time.monotonic had been replaced before the meter was imported")
    assert records(tmp_path, "report") == {}


def test_its_clock_brackets_the_marks_of_the_window(tmp_path: Path) -> None:
    run(TRAINS.format(more="", steps=40), tmp_path)
    report = left(tmp_path, "report")
    before_s, after_s = report["marked_monotonic_s"]
    began_s = report["window_began_monotonic_s"]
    assert before_s <= began_s < began_s + report["ends_s"][-1] <= after_s


def test_steps_of_two_threads_end_the_meter_and_not_the_program(tmp_path: Path) -> None:
    code = TRAINS.format(more="", steps=5) + (
        "import threading\nother = threading.Thread(target=meter.step)\nother.start(); other.join()\n"
        "for _ in range(40): meter.step()\n"
    )
    run(code, tmp_path)
    assert left(tmp_path, "meter")["why"].startswith("step() was called by more than one thread; fix: ")


def test_a_meter_that_is_never_called_says_so(tmp_path: Path) -> None:
    run(TRAINS.format(more="", steps=0), tmp_path)
    assert left(tmp_path, "meter")["why"] == "the program ended after 0 steps, in the warm-up"


@pytest.mark.parametrize("stated", ["soon", "nan", "-1", "inf", "0"])
def test_a_patience_that_is_no_number_is_named(tmp_path: Path, stated: str) -> None:
    run(TRAINS.format(more="", steps=40), tmp_path, RUNNER_METER_PATIENCE_S=stated)
    why = left(tmp_path, "meter")["why"]
    assert why.startswith(f"RUNNER_METER_PATIENCE_S='{stated}' is no number of seconds above 0; fix: ")


def test_outside_of_a_job_it_prints_and_leaves_nothing(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(LIB / 'modules')!r})\n" + TRAINS.format(more="", steps=40)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    assert "preliminary throughput" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def store() -> Iterator[rendezvous.Store]:
    """The launcher's rendezvous of two ranks, in a thread."""
    sock = rendezvous_server.listen("127.0.0.1", 0)
    mine, its = socket.socketpair()
    server = rendezvous_server.Server(sock, TOKEN, 2, {"token": TOKEN}, wait_s=0.2)
    thread = threading.Thread(target=server.serve, args=(its.fileno(),))
    thread.start()
    yield rendezvous.Store("127.0.0.1", sock.getsockname()[1], TOKEN)
    mine.close()
    thread.join(10)
    for each in (sock, its):
        each.close()


def channels(store: rendezvous.Store, life: str = "1") -> list[Channel]:
    return [Channel(rank, 2, ByRendezvous(store), life) for rank in range(2)]


def test_two_meters_agree_through_the_launchers_rendezvous(store: rendezvous.Store) -> None:
    for life in ("1", "2"):  # after an exec, nothing of the earlier life counts
        zero, one = channels(store, life)
        found: list[Any] = []
        thread = threading.Thread(target=lambda one=one, found=found: found.append(one.agreed("warm-up/0", 7.0)))
        thread.start()
        assert zero.agreed("warm-up/0", float(life)) == float(life)
        thread.join()
        assert found == [float(life)]
        thread = threading.Thread(target=lambda one=one, found=found: found.append(one.gather("end", {"of": 1})))
        thread.start()
        assert zero.gather("end", {"of": 0}) == [{"of": 0}, {"of": 1}]
        thread.join()
        assert found[1] == []


def test_ranks_without_a_framework_measure_together(tmp_path: Path, store: rendezvous.Store) -> None:
    """In JAX, or in TensorFlow without Horovod: the ranks as they were started, with a window that begins for both."""
    env = {
        "PATH": os.environ["PATH"], "RUNNER_RUN_DIR": str(tmp_path), "RUNNER_TOKEN": "t", "RUNNER_WORLD": "2",
        "RUNNER_RENDEZVOUS": f"{store.address}:{store.port}/{TOKEN}",
        **metering.variables({}, {"result": "if-left"}, "rendezvous"),
    }  # fmt: skip
    code = TRAINS.format(more="", steps=40)
    ranks = [subprocess.Popen([sys.executable, "-c", code], env={**env, "RUNNER_RANK": each}) for each in "01"]
    assert [each.wait(60) for each in ranks] == [0, 0]
    made = records(tmp_path, "report")
    assert {rank: (each["world_rank"], each["world_size"]) for rank, each in made.items()} == {0: (0, 2), 1: (1, 2)}
    assert {each["synchronisation"] for each in made.values()} == {"not-given"}


def test_a_meter_whose_program_ended_lets_the_others_know(store: rendezvous.Store) -> None:
    zero, one = channels(store)
    one.leave("the program ended after 10 steps")
    with pytest.raises(GaveUpError, match="rank 1 left: the program ended after 10 steps"):
        zero.gather("window", None)


def test_a_rank_that_never_comes_makes_none_wait_for_ever(
    store: rendezvous.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_METER_PATIENCE_S", "0.1")
    _zero, one = channels(store)
    with pytest.raises(GaveUpError, match=r"rank 0 did not come to the same step within 0.1 s: every rank must do"):
        one.gather("window", None)


def test_a_lost_rendezvous_ends_the_measurement_only() -> None:
    lost = Channel(1, 2, ByRendezvous(rendezvous.Store("127.0.0.1", 1, TOKEN)), "1")
    with pytest.raises(GaveUpError, match="the ranks' meters cannot reach each other"):
        lost.agreed("warm-up/0", 1.0)
    lost.leave("too late")


def test_the_module_is_importable_in_a_users_program_only() -> None:
    modules = str(LIB / "modules")
    assert metering.variables({}, {"result": "throughput"}, "rendezvous") == {}
    assert metering.variables({}, {"result": "if-left"}, "rendezvous") == {"PYTHONPATH": modules}
    mine = metering.variables({"PYTHONPATH": "/mine"}, {"result": "if-left"}, "torchrun")
    assert mine == {"PYTHONPATH": f"/mine:{modules}"}
    hooked = metering.variables({"PYTHONPATH": "/mine", "RUNNER_METER": "1"}, {}, "own")
    assert hooked == {"PYTHONPATH": f"{LIB / 'meter_start'}:/mine:{modules}", "RUNNER_METER_UNWATCHED": "1"}


@pytest.mark.parametrize("own", ["print('mine')", "import no_such_module", None])
def test_the_users_own_sitecustomize_runs_too(tmp_path: Path, own: str | None) -> None:
    """As Python would have run it without us, with its errors, which end nothing; there may be none."""
    if own is not None:
        (tmp_path / "sitecustomize.py").write_text(own)
    said = []
    for env in ({"PYTHONPATH": str(tmp_path)}, {"PYTHONPATH": str(tmp_path), "RUNNER_METER": "1"}):
        made = {**env, **(metering.variables(env, {}, "rendezvous") if "RUNNER_METER" in env else {})}
        code = "import sys; print('after', [type(each).__name__ for each in sys.meta_path if 'After' in str(each)])"
        done = subprocess.run([sys.executable, "-c", code], env=made, capture_output=True, text=True, check=True)
        said.append((done.stdout, done.stderr))
    without, with_meter = said
    assert with_meter == (without[0].replace("[]", "['_AfterImport']"), without[1])


def test_in_a_virtual_environment_too(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    env = {"RUNNER_METER": "1"}
    code = "import sys, runner_meter; print(type(sys.meta_path[0]).__name__, json.dumps(sys.prefix))"
    done = subprocess.run(
        [str(tmp_path / "bin" / "python"), "-c", f"import json; {code}"],
        env={**env, **metering.variables(env, {}, "rendezvous")}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"_AfterImport {json.dumps(str(tmp_path))}\n"
