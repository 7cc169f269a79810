"""The meter of this process; and the one of ``submit --meter``, for which no line of the script changes.

``install`` prepares for the time when torch is imported: then torch calls the meter after each step of an optimizer. It
counts the steps of the optimizer that ended one first, or took its place, and those that a gradient scaler skipped:
their samples were computed, too.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import weakref
from typing import Any, Callable

from gpu_runner_inside import records
from gpu_runner_inside.meter import optimizer_steps, siblings
from gpu_runner_inside.meter.meter import Meter, Settings

VARIABLE = "RUNNER_METER"  # set by submit --meter
BATCH_VARIABLE = "RUNNER_METER_BATCH"  # samples of a rank in a step; unset: as the model's input shows
OWNER_VARIABLE = "RUNNER_METER_OWNER"  # the process that measures: those that it starts do not
_OPTIMIZERS = "torch.optim.optimizer"
_MOST_BEGUN = 8  # measurements of one program; each looks for the model in the process
_MOST_LOOKED_FOR = 4  # parameters whose model is looked for in the process, which takes a while
_SCALERS = ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler")


class _State:
    """Of this process.

    Attributes:
        meter: the one that measures, or has measured.
        pid: of the process that prepared for torch; what it forks counts nothing.
        stepping: the optimizers whose steps are under way, each with torch's frame: one may call another's.
        counted: the optimizer whose steps are counted; parameters: of the measurement's first. Not kept alive.
        other: identity of the one whose step ended last, where that is another one.
        ended: how many steps of all ended; begun: how many measurements began.
    """

    def __init__(self) -> None:
        self.meter: Meter | None = None
        self.pid = 0
        self.stepping: list[tuple[Any, Any]] = []
        self.counted: Any = None
        self.parameters: list[Any] = []
        self.other = self.ended = self.begun = 0
        self.off = False

    @property
    def trained(self) -> set[int]:
        """Identities of what the measurement's first optimizer trains; of None for what is gone."""
        return {id(each()) for each in self.parameters}

    def counts(self, optimizer: Any) -> bool:
        """Whether it is the one, or takes its place: that one is gone, or this one trains the same and steps alone."""
        counted = None if self.counted is None else self.counted()
        before, self.other = self.other, 0 if counted is optimizer else id(optimizer)
        if counted is None or counted is optimizer:
            return True
        return before == id(optimizer) and not self.trained.isdisjoint(
            map(id, optimizer_steps.parameters_of(optimizer))
        )


_state = _State()


def begin(settings: Settings, training: Any, source: str) -> Meter:
    """The meter of this process. A second one measures nothing, but the script's own takes the place of the hook's."""
    siblings.leave_line()
    made = Meter(settings, training, source, why_not=_why_not(source))
    if made.active:
        os.environ[OWNER_VARIABLE] = str(os.getpid())
        _state.meter = made
    return made


def _why_not(source: str) -> str:
    """Why no further meter can measure here; empty where it can."""
    owner, old = os.environ.get(OWNER_VARIABLE), _state.meter
    if owner not in (None, str(os.getpid())):
        return f"this process was started by process {owner}, which measures"
    if old is not None and old.active and old.source == "hook" and source == "script":
        old.replace()
        return ""
    if (old is not None and old.active) or _has_measured():
        return "this process has a meter already, and a run has one figure"
    return ""


def _has_measured() -> bool:
    """Whether this rank has left the report of an earlier measurement in this job step, before an exec perhaps."""
    run_dir, rank = os.environ.get("RUNNER_RUN_DIR"), os.environ.get("RUNNER_RANK") or "0"
    if run_dir is None:
        return False
    try:
        with open(records.rank_record(run_dir, int(rank), "report"), "rb") as file:
            return bool(json.load(file).get("token") == os.environ.get("RUNNER_TOKEN"))
    except (OSError, ValueError, AttributeError):
        return False


def install(after_import: Callable[[str, Callable[[Any], None]], None]) -> None:
    """Prepare for the import of torch. ``after_import`` calls what it is given once a module is executed."""
    _state.pid = os.getpid()
    after_import(_OPTIMIZERS, _attach_optimizers)
    for name in _SCALERS:
        after_import(name, _attach_scaler)


def _attach_optimizers(module: Any) -> None:
    try:
        optimizer_steps.before(_step_begins)
        module.register_optimizer_step_post_hook(optimizer_steps.uncompiled(_step_ends))
    except ImportError:
        _say("--meter measures nothing: torch before 2.0 has no hook after a step; import runner_meter in the script")


def _attach_scaler(module: Any) -> None:
    """A scaler that skips the step of an optimizer has computed its samples all the same."""
    scaler = module.GradScaler
    original = vars(scaler).get("step")
    if original is None:  # it inherits one that is attached already
        return

    def step(self: Any, optimizer: Any, *args: Any, **named: Any) -> Any:
        before = _state.ended
        result = original(self, optimizer, *args, **named)
        counted = None if _state.counted is None else _state.counted()
        if counted is not None and getattr(optimizer, "param_groups", None) is counted.param_groups:
            optimizer = counted  # a wrapper of it, such as one that has a schedule
        if _state.ended == before and _state.counts(optimizer):
            _count(optimizer)
        return result

    step.__doc__, step.__wrapped__ = original.__doc__, original  # type: ignore[attr-defined]
    scaler.step = step


def _step_begins(optimizer: Any) -> None:
    of_torch: Any = sys._getframe(1)
    while of_torch.f_globals.get("__package__") == __package__:
        of_torch = of_torch.f_back
    if _state.stepping:
        # Not its own: a list in that would hold all of them, and the script's tensors, until a collection.
        frames = [frame for frame, _line in traceback.walk_stack(of_torch)]
        # A wrapper of a class of its own, such as Horovod's, is the same optimizer; an earlier step may have raised.
        _state.stepping = [(each, at) for each, at in _state.stepping if each is not optimizer and at in frames]
    _state.stepping.append((optimizer, of_torch))


def _step_ends(optimizer: Any) -> None:
    place = next((at for at, (each, _frame) in enumerate(_state.stepping) if each is optimizer), None)
    if place is None:  # the outer half of a wrapper's step
        return
    del _state.stepping[place:]
    _state.ended += 1
    if _state.pid != os.getpid():
        if not _state.off:
            siblings.leave_line()
        _state.off = True
    elif not _state.stepping:
        if _state.counts(optimizer):
            _count(optimizer)
        elif _state.meter is not None:
            _state.meter.steps_of_others += 1


def _count(optimizer: Any) -> None:
    """A step of this optimizer has ended. Nothing that happens here reaches the script."""
    if _state.off or _state.pid != os.getpid():
        return
    try:
        if _state.counted is None or _state.counted() is not optimizer:
            _take_over(optimizer)
        meter = _state.meter
        if meter is not None and meter.source == "hook":
            meter.step()
    except Exception as error:
        _state.off = True
        _say(f"--meter measures nothing: {error!r}")


def _take_over(optimizer: Any) -> None:
    """Its steps count from now on: in a new measurement, unless one before trained the same."""
    is_gone = _state.counted is not None and _state.counted() is None
    _state.counted = weakref.ref(optimizer)
    old, parameters = _state.meter, optimizer_steps.parameters_of(optimizer)
    if _state.begun > 0 if old is None else old.source != "hook" or not old.active:
        return
    before, trained = _state.trained, set(map(id, parameters))
    if old is not None and (trained == before or (is_gone and trained <= before and id(None) not in before)):
        old.follow(optimizer)
        return
    _state.parameters = [*map(weakref.ref, parameters)]
    _state.begun += 1
    if old is None:
        _begin_for(optimizer)
    elif _state.begun > _MOST_BEGUN:
        old.give_up(
            f"optimizers of different parameters took turns {_state.begun} times before a window was over; fix: "
            "runner_meter.start with the model and the optimizer whose steps count"
        )
    else:
        old.replace()
        _begin_for(optimizer)


def _begin_for(optimizer: Any) -> None:
    from gpu_runner_inside.meter import torch_training

    if torch_training.is_worker():
        _state.off = True
        return
    parameters = optimizer_steps.parameters_of(optimizer)
    # The first may be a temperature or a prompt, in no module.
    models = next(filter(None, map(torch_training.models_with, parameters[:_MOST_LOOKED_FOR])), [])
    batch = int(os.environ.get(BATCH_VARIABLE) or 0)
    # ZeRO's optimizer has parts of its own, which no module has.
    divided = "DeepSpeed" if not models and "deepspeed" in sys.modules else ""
    training = torch_training.TorchTraining(models[0] if models else None, parameters, optimizer, models[1:])
    begin(Settings(batch, sharded=divided), training, "hook")


def _say(what: str) -> None:
    print(f"runner_meter: {what}", file=sys.stderr, flush=True)
