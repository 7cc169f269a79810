"""The meter of a user's script, without a framework: what it counts, what it leaves, how it ends."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from gpu_runner_inside.launcher import python_start, rendezvous
from gpu_runner_inside.meter.channel import ByRendezvous, Channel, GaveUpError

from tests.support.commands import Output, ran
from tests.support.json_schema import check
from tests.support.rank_records import records
from tests.support.rendezvous import TOKEN

LIB = Path(__file__).parents[3] / "recipes" / "lib"
IF_LEFT = python_start.variables({}, "rendezvous", None)


def run(code: str, run_dir: Path, *, status: int = 0, **env: str) -> str:
    """What a program that measures itself as rank 0 of a job says on standard error."""
    own = {"PATH": os.environ["PATH"], "RUNNER_RUN_DIR": str(run_dir), "RUNNER_TOKEN": "t", "RUNNER_RANK": "0"}
    done = subprocess.run([sys.executable, "-c", code], env={**own, **IF_LEFT, **env}, capture_output=True, text=True,
                          check=False, timeout=60)  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stderr


def trains(steps: int, more: str = "") -> str:
    start = f"import os, runner_meter, time\nmeter = runner_meter.start(batch_size=10{more})\n"
    return f"{start}for _ in range({steps}): meter.step()\n"


def left(run_dir: Path, kind: str) -> dict[str, Any]:
    """The record of this kind that rank 0 left, which is as the schema says."""
    (record,) = records(run_dir, kind).values()
    check(record)
    return record


def test_a_script_leaves_raw_times_and_no_claim(tmp_path: Path) -> None:
    """Without a model and an optimizer there is a report, and no result: the run only ran."""
    said = run(trains(40), tmp_path)
    report = left(tmp_path, "report")
    assert (report["synchronisation"], report["unit"], report["meter"]) == ("not-given", "samples", "script")
    assert (report["warmup_steps"], report["steps"], report["batch_size"]) == (3, 20, 10)
    assert len(report["ends_s"]) == report["steps"] // report["group_steps"] == len(report["group_samples"])
    assert sum(report["group_samples"]) == 200
    assert not {"gradient_checksum", "parameters_moved"} & set(report)
    before_s, after_s = report["marked_monotonic_s"]
    began_s = report["window_began_monotonic_s"]
    assert before_s <= began_s < began_s + report["ends_s"][-1] <= after_s, "its clock brackets the window's marks"
    assert left(tmp_path, "meter")["state"] == "measured"
    assert not (tmp_path / "result.json").exists()
    assert "synchronisation not proven" in said


# Forked, as workers of a loader are, with the meter in it; and started anew, with one of its own.
CHILDREN = """
import subprocess, sys
child = os.fork()
if child == 0:
    for _ in range(50): meter.step()
    os._exit(0)
os.waitpid(child, 0)
other = 'import runner_meter; m = runner_meter.start(batch_size=1); [m.step() for _ in range(50)]'
subprocess.run([sys.executable, '-c', other], check=True)
for _ in range(8): meter.step()
"""
IN_WINDOW = "the program ended after 10 steps, in the window"


@pytest.mark.parametrize(
    ("code", "why", "env", "status"),
    [
        (trains(0), "the program ended after 0 steps, in the warm-up", {}, 0),
        # A claim needs the lengths of the benchmarks: 50 steps of warm-up.
        (trains(49, ", demonstration=False"), "the program ended after 49 steps, in the warm-up", {}, 0),
        (trains(10) + "raise SystemExit(3)", IN_WINDOW, {}, 3),
        (trains(10) + "raise ValueError('mine')", IN_WINDOW, {}, 1),
        (trains(2) + CHILDREN, IN_WINDOW, {}, 0),
        *((trains(10) + f"meter.step({samples})\nfor _ in range(40): meter.step()", " is no number of samples", {}, 0)
          for samples in ("'many'", "-5", "float('nan')", "[]")),
        *((f"import time\ntime.monotonic = {clock}\n" + trains(40),
           "time.monotonic had been replaced before the meter was imported", {}, 0)
          for clock in ("lambda: 1.0", "time.process_time")),
        (trains(5) + "import threading\nother = threading.Thread(target=meter.step)\nother.start(); other.join()\n"
         "for _ in range(40): meter.step()", "step() was called by more than one thread; fix: ", {}, 0),
        *((trains(40), f"RUNNER_METER_PATIENCE_S='{stated}' is no number of seconds above 0; fix: ",
           {"RUNNER_METER_PATIENCE_S": stated}, 0) for stated in ("soon", "nan", "-1", "inf", "0")),
    ],
)  # fmt: skip
def test_a_measurement_that_is_given_up_says_why_and_ends_no_program(
    tmp_path: Path, code: str, why: str, env: dict[str, str], status: int
) -> None:
    said = run(code, tmp_path, status=status, **env)
    meter = left(tmp_path, "meter")
    assert meter["state"] == "given-up"
    assert why in meter["why"]
    assert records(tmp_path, "report") == {}
    assert status == 0 or "runner_meter" not in said, "a failed program's last line stays its own"
    assert ("which measures" in said) is ("os.fork" in code)


def test_a_program_that_ends_without_pythons_end_is_in_the_window_for_ever(tmp_path: Path) -> None:
    assert "runner_meter" not in run(trains(10) + "os._exit(0)", tmp_path)
    assert (left(tmp_path, "meter")["state"], records(tmp_path, "report")) == ("window", {})


LIGHTNING = """
import types, runner_meter
callback = runner_meter.lightning_callback(batch_size=10)
trainer = types.SimpleNamespace(accumulate_grad_batches=4, optimizers=[], global_step=0)
callback.on_train_start(trainer, None)
callback.on_train_start(trainer, None)  # fit again
for batch in range(400):  # epochs of ten batches: the third step of each has only two
    trainer.global_step += batch % 10 in (3, 7, 9)
    callback.on_train_batch_end(trainer, None, None, BATCH, batch)
"""
TRANSFORMERS = """
import types, runner_meter
callback = runner_meter.transformers_callback()
args = types.SimpleNamespace(train_batch_size=10, gradient_accumulation_steps=4)
callback.on_train_begin(args, None, None)
for batch in range(400):
    (callback.on_step_end if batch % 10 in (3, 7, 9) else callback.on_substep_end)(args, None, None)
"""


KERAS = """
import runner_meter
callback = runner_meter.keras_callback(batch_size=10)
callback.params = {"steps": 6}
for fit in range(2):  # the first is too short
    callback.on_train_begin()
    for epoch in range(1 + 19 * fit):  # the second execution of each has two batches of four
        callback.on_epoch_begin(epoch)
        for batch in (3, 7): callback.on_train_batch_end(batch)
"""


# Of images and labels, the last of each epoch with three of them.
SHOWN = "[types.SimpleNamespace(shape=(3 if batch % 10 == 9 else 10, *more)) for more in ((8, 8), ())]"
SEVERAL = LIGHTNING.replace("BATCH", SHOWN).replace("global_step=0", "global_step=0, train_dataloader={}")
LIGHTNING_PACKAGE = ("lightning/pytorch", "Callback")


@pytest.mark.parametrize(
    ("package", "name", "code", "samples"),
    [
        (*LIGHTNING_PACKAGE, LIGHTNING.replace("BATCH", "None"), {40, 20}),
        (*LIGHTNING_PACKAGE, LIGHTNING.replace("BATCH", SHOWN), {40, 13}),
        (*LIGHTNING_PACKAGE, SEVERAL, {40, 20}),
        ("transformers", "TrainerCallback", TRANSFORMERS, {40, 20}),
        ("keras/callbacks", "Callback", KERAS, {40, 20}),
    ],
)
def test_the_last_step_of_an_epoch_has_the_samples_that_are_left(
    tmp_path: Path, package: str, name: str, code: str, samples: set[int]
) -> None:
    """A step ends with an epoch, however few batches it then has; a training that begins anew is measured."""
    directory = tmp_path / "packages" / package
    directory.mkdir(parents=True)
    (directory.parent / "__init__.py").touch()
    (directory / "__init__.py").write_text(f"class {name}: pass\n")
    run(f"import sys; sys.path.insert(0, {str(tmp_path / 'packages')!r})\n{code}", tmp_path)
    report = left(tmp_path, "report")
    assert report["group_steps"] == 1
    assert set(report["group_samples"]) == samples
    assert report["group_samples"].count(40) == (10 if code is KERAS else 13)
    assert report["samples_seen"] == (sum(report["group_samples"]) if 13 in samples else None)


# The smaller last batch of ten, and accumulation, count as they are.
SMALLER = """
import runner_meter
meter = runner_meter.start(batch_size=10, accumulate=3, unit='tokens', steps=20)
for step in range(40): meter.step(7 if step % 10 == 9 else None)
"""
# The least that can be right, and a number of NumPy's, which is no int.
LEAST = """
import runner_meter
class Whole:
    def __index__(self): return 3
    def __int__(self): return 3
meter = runner_meter.start(batch_size=Whole(), warmup_steps=0, warmup_seconds=0, steps=1, window_seconds=0)
for _ in range(3): meter.step()
"""
SECOND = trains(1) + "runner_meter.start(batch_size=99)\nfor _ in range(40): meter.step()\n"


@pytest.mark.parametrize(
    ("code", "fields", "samples"),
    [
        (SMALLER, {"batch_size": 30, "unit": "tokens"}, 18 * 30 + 2 * 7),
        (LEAST, {"batch_size": 3, "steps": 1, "group_samples": [3]}, 3),
        (SECOND, {"batch_size": 10}, 200),
    ],
)
def test_what_was_counted(tmp_path: Path, code: str, fields: dict[str, object], samples: int) -> None:
    said = run(code, tmp_path)
    report = left(tmp_path, "report")
    assert {name: report[name] for name in fields} == fields
    assert sum(report["group_samples"]) == samples
    assert ("this process has a meter already" in said) is (code == SECOND)


def test_what_was_measured_stands_when_the_program_begins_anew(tmp_path: Path) -> None:
    """It replaces itself by exec after its training, and trains again."""
    code = trains(40) + (
        "import sys\nif len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, '-c', CODE, 'again'])\n"
    )
    said = run(f"CODE = {code!r}\nexec(CODE)", tmp_path)
    assert said.count("preliminary throughput") == 1
    assert "this process has a meter already" in said


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


def test_outside_of_a_job_it_prints_and_leaves_nothing(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(LIB / 'modules')!r})\n" + trains(40)
    assert "preliminary throughput" in ran([sys.executable, "-c", code], cwd=tmp_path, env={}).err
    assert list(tmp_path.iterdir()) == []


def channels(store: rendezvous.Store, life: str = "1") -> list[Channel]:
    return [Channel(rank, 2, ByRendezvous(store), life) for rank in range(2)]


def test_two_meters_agree_through_the_launchers_rendezvous(store: rendezvous.Store) -> None:
    for life in ("1", "2"):  # after an exec, nothing of the earlier life counts
        zero, one = channels(store, life)
        heard: list[Any] = []

        def answer(one: Channel = one, heard: list[Any] = heard) -> None:
            heard.append(one.agreed("warm-up/0", 7.0))
            heard.append(one.gather("end", {"of": 1}))

        thread = threading.Thread(target=answer)
        thread.start()
        assert zero.agreed("warm-up/0", float(life)) == float(life)
        assert zero.gather("end", {"of": 0}) == [{"of": 0}, {"of": 1}]
        thread.join()
        assert heard == [float(life), []]


def test_ranks_without_a_framework_measure_together(tmp_path: Path, store: rendezvous.Store) -> None:
    """In JAX, or in TensorFlow without Horovod: the ranks as they were started, with a window that begins for both."""
    env = {
        "PATH": os.environ["PATH"], "RUNNER_RUN_DIR": str(tmp_path), "RUNNER_TOKEN": "t", "RUNNER_WORLD": "2",
        "RUNNER_RENDEZVOUS": f"{store.address}:{store.port}/{TOKEN}", **IF_LEFT,
    }  # fmt: skip
    ranks = [subprocess.Popen([sys.executable, "-c", trains(40)], env={**env, "RUNNER_RANK": each}) for each in "01"]
    assert [each.wait(60) for each in ranks] == [0, 0]
    made = records(tmp_path, "report")
    assert {rank: (each["world_rank"], each["world_size"]) for rank, each in made.items()} == {0: (0, 2), 1: (1, 2)}
    assert {each["synchronisation"] for each in made.values()} == {"not-given"}


def test_a_meter_that_cannot_agree_with_the_others_says_why(
    store: rendezvous.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another's program has ended; it never comes to this step; the rendezvous is lost."""
    monkeypatch.setenv("RUNNER_METER_PATIENCE_S", "0.1")
    zero, one = channels(store)
    with pytest.raises(GaveUpError, match=r"rank 0 did not come to the same step within 0.1 s: every rank must do"):
        one.gather("window", None)
    one.leave("the program ended after 10 steps")
    with pytest.raises(GaveUpError, match="rank 1 left: the program ended after 10 steps"):
        zero.gather("end", None)
    lost = Channel(1, 2, ByRendezvous(rendezvous.Store("127.0.0.1", 1, TOKEN)), "1")
    with pytest.raises(GaveUpError, match="the ranks' meters cannot reach each other"):
        lost.agreed("warm-up/0", 1.0)
    lost.leave("too late")


def test_the_module_is_importable_in_a_users_program_only() -> None:
    modules = str(LIB / "modules")
    assert not python_start.is_wanted({}, {"result": "throughput"})
    assert python_start.is_wanted({}, {"result": "if-left"})
    assert python_start.is_wanted({"RUNNER_METER": "1"}, {})
    assert {"PYTHONPATH": modules} == IF_LEFT
    mine = python_start.variables({"PYTHONPATH": "/mine"}, "torchrun", "/node/a b")
    assert mine == {"PYTHONPATH": f"/node/a b:/mine:{modules}", "RUNNER_WORLDS": "/node/a b"}
    hooked = python_start.variables({"PYTHONPATH": "/mine", "RUNNER_METER": "1"}, "own", None)
    assert hooked == {"PYTHONPATH": f"{LIB / 'python_start'}:/mine:{modules}", "RUNNER_METER_UNWATCHED": "1"}


def hooked(python: Path | str, code: str, **env: str) -> Output:
    """What a program prints in the environment that ``--meter`` gives it."""
    env |= {"RUNNER_METER": "1", "RUNNER_LIB": str(LIB / "modules")}
    return ran([python, "-c", f"import json, sys; {code}"], env=env | python_start.variables(env, "rendezvous", None))


@pytest.mark.parametrize("own", ["print('mine')", "import no_such_module", None])
def test_the_users_own_sitecustomize_runs_too(tmp_path: Path, own: str | None) -> None:
    """As Python would have run it without us, with its errors, which end nothing; there may be none."""
    if own is not None:
        (tmp_path / "sitecustomize.py").write_text(own)
    code = "print('after', [type(each).__name__ for each in sys.meta_path if 'After' in str(each)])"
    without = subprocess.run([sys.executable, "-c", f"import sys; {code}"], env={"PYTHONPATH": str(tmp_path)},
                             capture_output=True, text=True, check=True)  # fmt: skip
    with_meter = hooked(sys.executable, code, PYTHONPATH=str(tmp_path))
    assert with_meter == (without.stdout.replace("[]", "['AfterImport']"), without.stderr)


def test_in_a_virtual_environment_too(tmp_path: Path) -> None:
    ran([sys.executable, "-m", "venv", "--without-pip", tmp_path])
    code = "import runner_meter; print(type(sys.meta_path[0]).__name__, json.dumps(sys.prefix))"
    assert hooked(tmp_path / "bin/python", code).out == f"AfterImport {json.dumps(str(tmp_path))}\n"
