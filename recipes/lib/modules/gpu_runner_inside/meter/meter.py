"""One measurement of a training script that is not ours: warm-up, window, proof, records, as in the benchmarks.

The script calls ``step`` once after each step of its optimizer (or the hook of ``--meter`` does). What the meter does
takes place in those calls alone. It never ends or fails the program: where it cannot measure, it says why, once, and
does nothing more.
"""

from __future__ import annotations

import argparse
import atexit
import math
import os
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Iterator

from gpu_runner_inside import inputs, records, window
from gpu_runner_inside.benchmark import figures, lengths, proof
from gpu_runner_inside.benchmark.options import WARMUP, WINDOW
from gpu_runner_inside.launcher.rendezvous import Store
from gpu_runner_inside.meter import channel, clocks, counting, reduction
from gpu_runner_inside.meter.siblings import Siblings

LIFE_VARIABLE = "RUNNER_METER_LIFE"  # how often a meter has begun in this process, which exec keeps
UNWATCHED_VARIABLE = "RUNNER_METER_UNWATCHED"  # the launcher started what started this process
_DEMONSTRATION_WARMUP, _DEMONSTRATION_WINDOW = (3, 0.0), (20, 0.0)
_NOT_EXAMINED, _REFUTED = -1, -2  # in place of an error of the reduction
_PARAMETERS = "parameters"  # synchronisation: it is for the judge to prove


@dataclass(frozen=True)
class Settings:
    """What the script says of its training.

    Attributes:
        batch_size: of a rank in one step of its optimizer, in ``unit``: samples or tokens; 0: not stated.
        sharded: what divides the parameters among the ranks, so that they cannot be compared; empty for nothing.
        flops_per_sample: of one unit through the model, forward and backward; peak_flops: of one device, per second.
            Both as the script states them; None where it does not.
        accumulate: forward passes of a step.
        lengths: of warm-up and window that the script asks for: options of the benchmarks; None: as usual.
    """

    batch_size: int
    unit: str = "samples"
    sharded: str = ""
    flops_per_sample: float | None = None
    peak_flops: float | None = None
    warmup_steps: int | None = None
    warmup_seconds: float | None = None
    steps: int | None = None
    window_seconds: float | None = None
    demonstration: bool | None = None
    accumulate: int = 1


class Meter:
    """Measures from the first call of ``step`` on; one in a process.

    Args:
        training: what it sees of the framework (torch_training.TorchTraining, other_training.OtherTraining).
        source: ``script`` or ``hook``: what calls ``step``.
        why_not: why this one measures nothing; empty for one that measures.
    """

    def __init__(self, settings: Settings, training: Any, source: str, why_not: str = "") -> None:
        self.settings, self.source = settings, source
        self._batch, self._unit = settings.batch_size, settings.unit
        self._training = training
        self._pid = os.getpid()
        # The program's own processes, as torchrun's, are no ranks of the launcher's.
        self._watched = not os.environ.get(UNWATCHED_VARIABLE)
        self._rank = int((os.environ.get("RUNNER_RANK") if self._watched else None) or os.environ.get("RANK") or 0)
        self._channel: channel.Channel | None = None
        self._left = 1
        self._steps = self.steps_of_others = 0  # of other optimizers, as the hook sees them
        self._given = counting.NOT_GIVEN  # samples of this step, by a framework's callback
        self._own_s = 0.0  # in our calls, less _device_s
        self._device_s = 0.0  # waiting for the device, which is the program's own time
        self._begins = False  # this call begins the window
        self._ended_s: float | None = None  # when the last step ended, until the next forward pass begins
        self._waiting_s, self._longest_s, self._forwards = 0.0, 0.0, 0
        self._counting = counting.Count(settings.batch_size, settings.accumulate, is_part=training.is_part)
        self._thread: int | None = None  # the one that calls step
        self._state, self._why = "begun", why_not
        self._course: Iterator[int] | None = None
        self._life = ""
        if why_not:
            training.close()
            self._say(f"measures nothing: {why_not}")
            return
        training.watch_forward(self.forward_began, tokens=settings.unit == "tokens")
        life = int(os.environ.get(LIFE_VARIABLE) or 0) + 1
        self._life = str(life)
        os.environ[LIFE_VARIABLE] = self._life
        self._course = self._measure()
        self._note()
        atexit.register(self._at_exit)
        if clocks.REPLACED:
            self.give_up(
                f"{' and '.join(clocks.REPLACED)} had been replaced before the meter was imported, so that no time can "
                "be trusted; fix: import runner_meter before what freezes time"
            )

    @property
    def pid(self) -> int:
        """Of the process that it measures."""
        return self._pid

    @property
    def active(self) -> bool:
        """Whether it still measures."""
        return self._course is not None

    def step(self, samples: int | None = None) -> None:
        """A step of the optimizer has ended. ``samples``: that it took on this rank, where not the batch size."""
        if self._course is None or os.getpid() != self._pid:
            return
        if self._thread is None:
            self._thread = threading.get_ident()
        elif self._thread != threading.get_ident():
            self.give_up(
                "step() was called by more than one thread; fix: call it in the one that trains"
                if self.source == "script"
                else "its optimizer steps in several threads, whose samples cannot be kept apart"
            )
            return
        began_s, device_s = clocks.perf_counter(), self._device_s
        self._steps += 1
        try:
            self._count(samples)
        except Exception as error:  # whatever it is, the training goes on
            self.give_up(f"an unforeseen error of the meter: {error!r}")
            return
        self._left -= 1
        if self._left == 0 and self._course is not None:
            self._go_on()
        now_s = clocks.perf_counter()
        self._own_s = 0.0 if self._begins else self._own_s + now_s - began_s - (self._device_s - device_s)
        self._begins = False
        self._ended_s = now_s

    def _count(self, samples: Any) -> None:
        """One step, of as many samples as the script says, or as are known."""
        said = samples
        if samples is not None:
            try:
                said = int(samples)  # of a tensor, too
            except (TypeError, ValueError, RuntimeError):
                said = -1
            if said < 0:
                self.give_up(f"step({samples!r}) is no number of samples")
                return
        self._counting.add(self._training.take(), said, self._given)

    def given(self, samples: int, stated: int) -> None:
        """A framework made batches of so many samples (or tokens) for the next step; 0 where they do not show it.
        ``stated``: as its arguments have them.
        """
        self._given = 0 if self._course is None or self._training.sees_time else samples, stated

    def forward_began(self) -> None:
        """The model begins a forward pass in training: what lies between it and the last step's end was waiting."""
        if self._ended_s is None:
            return
        waited_s, self._ended_s = clocks.perf_counter() - self._ended_s, None
        self._forwards += 1
        self._waiting_s += waited_s
        self._longest_s = max(self._longest_s, waited_s)

    def follow(self, optimizer: Any) -> None:
        """This one trains the same from now on."""
        self._training.follow(optimizer)

    def replace(self) -> None:
        """The script's own meter measures instead."""
        atexit.unregister(self._at_exit)
        self._close()

    def give_up(self, why: str, *, quietly: bool = False) -> None:
        """Measure no more; the program goes on."""
        if self._course is None:
            return
        self._state, self._why = "given-up", why
        self._close()
        if not quietly:
            self._say(f"measures nothing: {why}")
        if self._channel is not None:
            self._channel.leave(why)

    def _go_on(self) -> None:
        assert self._course is not None
        try:
            self._left = next(self._course)
        except StopIteration:
            self._state = "measured"
            self._close()
        except channel.GaveUpError as error:
            self.give_up(str(error))
        except Exception as error:  # whatever it is, the training goes on
            self.give_up(f"an unforeseen error of the meter: {error!r}")

    def _measure(self) -> Iterator[int]:
        """The course of a measurement: yields how many steps until it goes on."""
        training = self._training
        world = self._world()
        self._channel = channel.Channel(world.rank, world.size, self._values(world), self._life)
        device = training.device()
        options = self._options(device.kind)
        first, checksum_s = clocks.timed(training.parameters_checksum)
        self._channel.gather("begin", None)
        parts: list[lengths.Part] = []
        began_s, done_s = clocks.perf_counter(), 0.0
        while count := lengths.next_part(parts, options):
            yield count
            self._synchronize()
            now_s = self._channel.agreed(f"warm-up/{len(parts)}", clocks.perf_counter() - began_s)
            parts.append((count, now_s - done_s))
            done_s = now_s
        length = lengths.planned(parts, options)
        training.end_of_look()
        self._state = "window"
        self._note()
        ends_s: list[float] = []
        waiting_s: list[float] = []
        sees_forward, siblings = True, Siblings()
        self._synchronize()
        before_s = clocks.monotonic()
        window.mark("begin")
        self._channel.gather("window", None)
        start_s = clocks.monotonic()
        self._counting.begin(training.accumulated)
        self._waiting_s, self._longest_s, self._forwards = 0.0, 0.0, 0
        self._begins = True
        for _ in range(length.groups):
            yield length.group_steps
            self._synchronize()
            ends_s.append(clocks.monotonic() - start_s)
            self._counting.begin_group()
            waiting_s.append(self._waiting_s)
            sees_forward = sees_forward and self._forwards >= length.group_steps
            self._waiting_s, self._forwards = 0.0, 0
        window.mark("end")
        after_s = clocks.monotonic()
        timed = figures.Timed(start_s, ends_s, [], 0.0, max(self._own_s, 0.0))
        last, more_s = clocks.timed(training.last_checksum)
        of_all = self._of_all()  # now every rank is here, so that a collective ends
        counted = self._counting.window(length.groups, of_all)
        self._batch, self._unit = counted.batch, "steps" if counted.samples is None else self._unit
        gathered = training.gathered_checksum()
        error, examined = self._reduced(world, gathered)
        facts = proof.RankFacts(
            rank=world.rank,
            size=world.size,
            host=os.environ.get("RUNNER_HOST") or os.uname().nodename,
            device=device.identity,
            gradients=training.gradients or "",
            parameters=gathered or last or "",
            moved=first != last,
            onehot=training.onehot_holds(world),
            finite=training.all_finite(),
        )
        own = {
            "group_samples": counted.samples or [length.group_steps] * length.groups,
            "reduced_gradients_error": error,
            "reduction_unseen": world.size > 1 and error is None and bool(training.parameters),
            "inputs_checksum": training.inputs,
            "checksum_s": checksum_s + more_s,
            "synchronisation": self._synchronisation(examined=examined),
            "marked_monotonic_s": [before_s, after_s],
            "forwards_seen": None if of_all == counting.NONE_SEEN else self._counting.forwards and self._counting.done,
            "samples_seen": counted.seen,
            "batch_seen": counted.by_input,
            "batch_stated": self.settings.batch_size or None,
            "waiting_s": waiting_s if sees_forward else [],
            "longest_waiting_s": self._longest_s if sees_forward else None,
            "steps_beside": training.steps_beside + siblings.trained,
        }
        self._record(world, device, facts, timed, length, options, own)

    def _world(self) -> Any:
        """The framework's. Processes that the program started, as by torch.multiprocessing, have their rank of it."""
        world = self._training.world()
        if not self._watched:
            self._rank = world.rank
        return world

    def _record(
        self,
        world: Any,
        device: Any,
        facts: proof.RankFacts,
        timed: figures.Timed,
        length: lengths.Lengths,
        options: argparse.Namespace,
        own: dict[str, Any],
    ) -> None:
        """Leave the records, as benchmark.run does, and say on rank 0 what they give."""
        settings, training = self.settings, self._training
        synchronisation = own["synchronisation"]
        versions = training.versions(world)
        data_parallel = world.framework == "horovod" or training.data_parallel
        report = figures.report_of(versions, asdict(device), facts, timed, length, self._batch)
        for derived in ("loss_final", "loss_finite"):  # a meter sees no loss
            del report[derived]
        if not training.gradients or synchronisation != _PARAMETERS:
            del report["gradient_checksum"]
        if not facts.parameters:
            del report["parameter_checksum"], report["parameters_moved"]
        report.update(
            own,
            token=os.environ.get("RUNNER_TOKEN"),
            world_local_rank=world.local_rank,
            gradients_device=device.kind,
            allreduce_bytes_per_step=None,
            peak_memory_bytes=training.peak_memory_bytes(),
            meter=self.source,
            unit=self._unit,
            sharded=settings.sharded or training.sharded,
            parameters_finite=facts.finite,
            trained_beside=training.trained_beside,
            data_parallel=data_parallel,
            trained={**training.trained, **self._counting.means}
            if world.size == 1 or data_parallel or not (settings.sharded or training.sharded)
            else {},  # each rank has a part
            flops_per_sample=settings.flops_per_sample,
            peak_flops=settings.peak_flops,
        )
        inputs.leave_measured()
        run_dir = self._run_dir() if self._watched else None
        if run_dir is not None:
            records.write(records.rank_record(run_dir, self._rank, "report"), "report", {"rank": self._rank, **report})
        assert self._channel is not None
        gathered = self._channel.gather(
            "facts", {"facts": asdict(facts), "window_s": timed.ends_s[-1], "samples": sum(own["group_samples"])}
        )
        if world.rank != 0:
            return
        window_s = max(each["window_s"] for each in gathered)
        rate = sum(each["samples"] for each in gathered) / window_s
        expected = int((os.environ.get("RUNNER_WORLD") if self._watched else None) or world.size)
        proven = proof.judge([proof.RankFacts(**each["facts"]) for each in gathered], expected)
        if own["reduced_gradients_error"] is not None and own["reduced_gradients_error"] > reduction.LARGEST:
            proven = replace(proven, reasons=(*proven.reasons, "the gradients were not reduced over all ranks"))
        reasons = proven.reasons if synchronisation == _PARAMETERS else ()
        if run_dir is not None and synchronisation != "not-given":
            result = _result(versions, device, length, world.size, window_s, None if reasons else rate, proven, reasons)
            result.update(demonstration=options.demonstration, batch_size=self._batch, model=training.name)
            records.write(records.result_path(run_dir), "result", result)
        what = f"{world.size} ranks, {length.groups * length.group_steps} steps in {window_s:.1f} s"
        if reasons:
            self._say(f"NOT PROVEN, so no throughput: {'; '.join(reasons)}")
        else:
            label = "" if synchronisation == _PARAMETERS else ", synchronisation not proven"
            figure = f"{rate:.1f} {self._unit}/s ({what}{label}; not judged)"
            self._say(f"preliminary throughput: {figure}")
            if not self._watched:
                self._why = (
                    f"the program started its processes by itself, so this is what it printed, and no verdict: "
                    f"{figure}; "
                    "fix: --wireup torchrun, and no torchrun in the command"
                )

    def _of_all(self) -> int:
        """What the ranks see of their forward passes (counting.Count.window). Raises as Channel.gather."""
        assert self._channel is not None
        views = self._channel.gather("end", None if self._training.is_gone else self._counting.view)
        if None in views:  # some ranks may have collected it, and others not yet
            raise channel.GaveUpError(
                "the model that start() was given was gone at the window's end; fix: give it the one that trains"
            )
        least, most = min(views, default=0), max(views, default=0)
        return int(self._channel.agreed("counted", least if least == counting.KNOWN else min(most, counting.SEEN)))

    def _synchronisation(self, *, examined: bool) -> str:
        if not self._training.parameters:
            return "not-given"
        divided = self.settings.sharded or self._training.sharded
        return "not-examined" if divided and not examined else _PARAMETERS

    def _reduced(self, world: Any, gathered: str | None) -> tuple[float | None, bool]:
        """How far the reduced gradients are from the mean of the ranks' own, and whether that, or different gathered
        parameters, shows how ranks are synchronised among which something is divided. Raises as Channel.gather.
        """
        training, own_channel = self._training, self._channel
        assert own_channel is not None
        if world.size == 1 or not training.parameters or self.settings.sharded:
            return None, False
        seen = {"gathered": gathered, "own": training.gradients, "look": training.reduction}
        looks = own_channel.gather("reduction", seen)
        error = float(_NOT_EXAMINED)
        if world.rank == 0 and (gathered is not None or not training.sharded):
            found = reduction.error_of([each["look"] for each in looks])
            unequal = len({each["gathered"] for each in looks}) > 1
            same_data = None not in (owns := {each["own"] for each in looks}) and len(owns) == 1
            refuted = training.sharded and (unequal or same_data)
            error = found if found is not None else float(_REFUTED if refuted else _NOT_EXAMINED)
        error = own_channel.agreed("reduced", error)
        return (error if error >= 0.0 else None), error != _NOT_EXAMINED

    def _values(self, world: Any) -> channel.KeyValue | None:
        """Where the ranks' meters meet; None for one rank.

        Raises:
            GaveUpError: nowhere.
        """
        if world.size == 1:
            return None
        if os.environ.get("RUNNER_RENDEZVOUS"):
            return channel.ByRendezvous(Store.of_environment())
        if world.framework == "torch":
            return channel.ByTorch(self._training.store())
        raise channel.GaveUpError(
            "the ranks were started without our rendezvous (--wireup), through which meters agree"
        )

    def _options(self, device_kind: str) -> argparse.Namespace:
        """Lengths as the benchmarks have them. A figure on processors makes no claim, so that it is a short one."""
        settings = self.settings
        demonstration = settings.demonstration if settings.demonstration is not None else device_kind == "cpu"
        warmup = _DEMONSTRATION_WARMUP if demonstration else WARMUP
        timed = _DEMONSTRATION_WINDOW if demonstration else WINDOW
        return argparse.Namespace(
            demonstration=demonstration,
            warmup_steps=warmup[0] if settings.warmup_steps is None else settings.warmup_steps,
            warmup_seconds=warmup[1] if settings.warmup_seconds is None else settings.warmup_seconds,
            steps=timed[0] if settings.steps is None else settings.steps,
            window_seconds=timed[1] if settings.window_seconds is None else settings.window_seconds,
        )

    def _synchronize(self) -> None:
        began_s = clocks.perf_counter()
        self._training.synchronize()
        self._device_s += clocks.perf_counter() - began_s

    def _run_dir(self) -> str | None:
        """Where records go; nowhere outside of a job."""
        return os.environ.get("RUNNER_RUN_DIR")

    def _note(self) -> None:
        """Leave in the run directory how far the measurement is: the judge says so where there is no figure."""
        run_dir = self._run_dir()
        if run_dir is None or not (self._watched or self._rank == 0):
            return
        fields = {
            "rank": self._rank,
            "token": os.environ.get("RUNNER_TOKEN"),
            "source": self.source,
            "state": self._state,
            "steps": self._steps,
            "why": self._why,
        }
        with suppress(OSError):
            records.write(records.rank_record(run_dir, self._rank, "meter"), "meter", fields)

    def _close(self) -> None:
        self._course = None
        self._training.close()
        self._training = None  # its weights may be dropped
        self._note()

    def _at_exit(self) -> None:
        """The program ends before its measurement does."""
        if self._course is not None and os.getpid() == self._pid:
            where = "in the window" if self._state == "window" else "in the warm-up"
            if self.steps_of_others > self._steps:
                where += (
                    f", and {self.steps_of_others} of other optimizers, as of a later stage; fix: runner_meter.start "
                    "with the model and the optimizer whose steps count"
                )
            # The last line of a program that failed must stay its own.
            self.give_up(f"the program ended after {self._steps} steps, {where}", quietly=True)

    def _say(self, what: str) -> None:
        if self._rank == 0 or self._state == "given-up":
            with suppress(OSError, ValueError):
                print(f"runner_meter: {what}", file=sys.stderr, flush=True)


def _result(
    versions: dict[str, Any],
    device: Any,
    length: lengths.Lengths,
    size: int,
    window_s: float,
    rate: float | None,
    proven: proof.Proof,
    reasons: tuple[str, ...],
) -> dict[str, Any]:
    steps = length.groups * length.group_steps
    return {
        **versions,
        "recipe": "meter",
        "device_kind": device.kind,
        "device_name": device.name,
        "size": size,
        "preliminary_images_per_s": rate,
        "window_s": window_s,
        "steps": steps,
        "group_steps": length.group_steps,
        "warmup_steps": length.warmup_steps,
        "warmup_s": length.warmup_s,
        "compute_p50_s": None,
        "step_p50_s": window_s / steps if math.isfinite(window_s) else None,
        "proven": not reasons,
        "proof_reasons": list(reasons),
        **{f"proof_{name}": value for name, value in asdict(proven).items() if name != "reasons"},
        "image": figures.about_image(),
    }
