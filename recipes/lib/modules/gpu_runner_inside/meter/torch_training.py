"""What the meter sees of a training in PyTorch: its world, device, parameters and each rank's own gradients.

It only looks. The look at the gradients (torch_reduction.py) is a hook on each parameter, which autograd calls with
this rank's own gradient before that is accumulated. No pass of the meter's own is done: the weights, gradients,
BatchNorm statistics and random state stay as they are.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import resource
import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Callable, Iterable, Sequence

import torch

from gpu_runner_inside.benchmark.benchmark import Device
from gpu_runner_inside.benchmark.cuda_uuid import device_uuid
from gpu_runner_inside.benchmark.torch_checksum import checksum_of
from gpu_runner_inside.meter import optimizer_steps, torch_model
from gpu_runner_inside.meter.counting import NONE, STEPPED, Step
from gpu_runner_inside.meter.torch_passes import (
    Passes,
    backward_task,
    compiles_backward,
    is_within_another,
    living,
    local,
    modules_of,
    outermost,
    parameters_of,
    remove,
    untraced,
)
from gpu_runner_inside.meter.torch_reduction import WHOLE, ReductionLook, divides

DEEPSPEED = "DeepSpeed"
_MOST_LOOKED_AT = 256  # parameters of another optimizer
_DATA_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")


@dataclass(frozen=True)
class World:
    """This rank as its framework knows it. ``framework``: ``torch``, ``horovod``, or ``none`` for a world of one."""

    framework: str
    rank: int
    size: int
    local_rank: int


def _world() -> World:
    """The world that the program's framework has formed; of one rank where it has formed none."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        local = int(os.environ.get("LOCAL_RANK") or 0)
        return World("torch", distributed.get_rank(), distributed.get_world_size(), local)
    horovod = sys.modules.get("horovod.torch")
    if horovod is not None and horovod.is_initialized():
        return World("horovod", horovod.rank(), horovod.size(), horovod.local_rank())
    return World("none", 0, 1, 0)


def _device_of(parameters: Sequence[torch.Tensor]) -> Device:
    """Where the parameters are; where there are none, the GPU that the program has chosen."""
    first = parameters[0].device if parameters else torch.device("cuda" if _cuda_in_use() else "cpu")
    if first.type != "cuda":
        return Device("cpu", platform.processor() or platform.machine(), f"cpu-{os.getpid()}", None)
    index = first.index if first.index is not None else torch.cuda.current_device()
    identity = device_uuid(index)
    return Device("cuda", torch.cuda.get_device_name(index), identity or f"index-{index}", index)


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def _versions(framework: str) -> dict[str, Any]:
    """Of what computed, by the names of schema.json."""
    horovod = sys.modules.get("horovod") if framework == "horovod" else None
    through = sys.modules.get("horovod.torch") if framework == "horovod" else None
    backend = torch.distributed.get_backend() if framework == "torch" else ""
    nccl = through.nccl_built() if through is not None else backend == "nccl"
    return {
        "framework": "torch" if framework == "none" else framework,
        "framework_version": torch.__version__,
        "horovod_version": getattr(horovod, "__version__", None),
        "python_version": platform.python_version(),
        "cuda_version": torch.version.cuda,
        "nccl_version": None,
        "nccl_built": bool(nccl),
        "gloo_enabled": bool(through.gloo_enabled()) if through is not None else "gloo" in backend,
        "mpi_enabled": bool(through.mpi_enabled()) if through is not None else backend == "mpi",
    }


def _sharding_of(model: Any, parameters: Iterable[torch.Tensor]) -> str:
    """What divides the parameters among the ranks, so that they differ by right; empty where nothing is known to."""
    if model is not None and any(type(each).__name__ == "DeepSpeedEngine" for each in model.modules()):
        return DEEPSPEED
    if model is not None and any("FullyShardedDataParallel" in type(each).__name__ for each in model.modules()):
        return "FullyShardedDataParallel"
    for each in parameters:
        if type(each).__name__ == "DTensor" or hasattr(each, "device_mesh"):
            return "distributed tensors (FSDP2, tensor parallelism)"
        if hasattr(each, "_fsdp_flattened") or type(each).__name__ == "FlatParameter":
            return "FullyShardedDataParallel"
    return ""


class TorchTraining:
    """A training as the meter sees it.

    Args:
        model: of which forward passes are seen; None where none is known.
        parameters: those that the proof compares; empty where the script gave neither model nor optimizer.
        optimizer: that steps them; None where none is known.
        others: models that have parameters of it, too.

    Attributes:
        sharded: what divides them, or the optimizer's state, among the ranks; empty for nothing.
        name: the model's class.
        trained_beside: values of the parameters that an optimizer stepped in the warm-up, and no proof covers.
        is_part: most of what the optimizer steps lies outside of the model: that may take a part of each batch.
    """

    def __init__(self, model: Any, parameters: Sequence[torch.Tensor], optimizer: Any = None, others: Any = ()) -> None:
        # As the models, not kept alive: the program may want the memory.
        self._parameters = [weakref.ref(each) for each in parameters if not each.is_meta]
        self._models = [weakref.ref(each) for each in (model, *others) if each is not None]
        self.sharded = _sharding_of(model, self.parameters) or divides(optimizer)
        self.name = "" if model is None else type(getattr(model, "module", model)).__name__
        self._passes: Passes | None = None
        self._watch: Callable[[], Passes] | None = None
        self._kind_of_optimizer = "" if self.sharded else torch_model.of_optimizer(optimizer)
        self._look = ReductionLook(model, self.parameters, self.sharded, lambda: _world().size == 1)
        self._covered = {id(each) for each in self.parameters}
        held = {id(each) for module in (model, *others) if module is not None for each in parameters_of(module)}
        self.is_part = 2 * len(self._covered - held) >= len(self._covered) > 0
        self.trained_beside = self._steps_beside = 0
        self._optimizer, self._has_stepped = id(optimizer), False  # not kept alive; in this step
        self._alive: Callable[[], Any] = lambda: None
        self.follow(optimizer)
        self._held = set() if optimizer is None else {id(each) for each in optimizer_steps.parameters_of(optimizer)}
        self._own: set[int] | None = None  # its parameters, from the warm-up's end on
        self._is_beside: Any = weakref.WeakKeyDictionary()  # optimizer -> whether it steps others, too
        self._tasks: Any = weakref.WeakKeyDictionary()  # optimizer -> backward passes for it since its step
        self._looks_at: list[Any] = []  # hooks of those
        self._is_apart = False  # in the warm-up one stepped after a backward pass through nothing that is seen
        self._is_hidden = False  # so did this one
        self._stepped: Any = None
        if self.parameters and not self.sharded:
            with suppress(ImportError):  # torch before 2.0
                self._stepped = optimizer_steps.before(self._before_step)

    @property
    def parameters(self) -> list[Any]:
        """Those that the proof compares."""
        return living(self._parameters)

    @property
    def _model(self) -> Any:
        return next(iter(living(self._models)), None)

    def follow(self, optimizer: Any) -> None:
        """This one trains."""
        with suppress(TypeError):  # none, or one that takes no weak reference
            self._alive = weakref.ref(optimizer)

    @property
    def is_gone(self) -> bool:
        """Whether all that was trained is, so that nothing can be proven of it."""
        lost_parts = bool(self.sharded and self._models) and self._model is None
        return lost_parts or (bool(self._parameters) and not self.parameters)

    @property
    def gradients(self) -> str | None:
        """Checksum of this rank's own gradients."""
        return self._look.own

    @property
    def reduction(self) -> dict[str, Any]:
        """What was seen of the reduction of gradients (reduction.error_of); empty for nothing."""
        return self._look.seen

    def _before_step(self, optimizer: Any) -> None:
        """See which parameters any optimizer steps."""
        is_own = id(optimizer) == self._optimizer
        if is_own:
            self._has_stepped = True
        elif self._passes is not None:
            self._passes.stepped(id(optimizer))
        if self._passes is not None and self._own is None and not compiles_backward():
            self._look_at(optimizer, self._passes, is_own=is_own)
        if self._own is not None:
            if optimizer not in self._is_beside:
                held = map(id, optimizer_steps.parameters_of(optimizer))
                self._is_beside[optimizer] = not self._own.issuperset(held)
            self._steps_beside += self._is_beside[optimizer]
            return
        self._cover(optimizer, is_own=is_own)

    def _look_at(self, optimizer: Any, passes: Passes, *, is_own: bool) -> None:
        """In the warm-up: whether another optimizer has backward passes of its own, as by samples that are not seen.
        It does not show where this one's are through no output, as of forces, which are a derivative.
        """
        held = (each for each in optimizer_steps.parameters_of(optimizer) if each.requires_grad)
        if (tasks := self._tasks.get(optimizer)) is not None:
            if is_own:
                self._is_hidden = self._is_hidden or (len(tasks) > 0 and tasks.isdisjoint(passes.tasks))
            elif passes.tasks:
                self._is_apart = self._is_apart or not tasks <= passes.tasks
            tasks.clear()
        else:
            self._tasks[optimizer] = tasks = set()

            def look(_gradient: torch.Tensor) -> None:
                if not is_within_another(task := backward_task()):
                    tasks.add(task)

            hook = untraced(look)
            for each in islice(held, _MOST_LOOKED_AT):
                self._looks_at.append(each.register_hook(hook))

    def _cover(self, optimizer: Any, *, is_own: bool) -> None:
        """In the warm-up: of the one that counts also what it was given after its first step."""
        held = {id(each) for each in optimizer_steps.parameters_of(optimizer)}
        if is_own and not self._held < held:  # no more, or others in their place
            return
        for each in optimizer_steps.parameters_of(optimizer):
            if id(each) not in self._covered and isinstance(each, torch.nn.Parameter):
                self._covered.add(id(each))
                if is_own:
                    self._parameters.append(weakref.ref(each))
                else:
                    self.trained_beside += each.numel()
        self._held = held if is_own else self._held

    @property
    def steps_beside(self) -> int:
        """After the warm-up: of optimizers of other parameters than the model's, and those between its passes."""
        apart = self._is_apart and not self._is_hidden
        return self._steps_beside + apart + (0 if self._passes is None else self._passes.between)

    def gathered_checksum(self) -> str | None:
        """Of parameters that are divided, gathered: every rank takes part. None where they cannot be gathered."""
        if not self.sharded:
            return None
        return self.parameters_checksum() if self.sharded == WHOLE else self._look.gathered_checksum()

    def watch_forward(self, began: Callable[[], None], *, tokens: bool) -> None:
        """Call ``began`` at the begin of each of the model's forward passes in training, from the next step on: what
        torch.compile compiles is compiled then, and no hook of ours is in it. Others: as of torch_passes.Passes.
        """
        if models := living(self._models):
            hidden = self.sharded == DEEPSPEED
            options = {"hidden": hidden, "whole": not self.sharded, "tokens": tokens}
            self._watch = partial(Passes, models, self.parameters, began, **options)

    def take(self) -> Step:
        """A step has ended: the model's forward passes since the last one."""
        step = NONE if self._passes is None else self._passes.take()
        step = STEPPED if self._has_stepped and step is NONE else step
        self._has_stepped = False
        if self._own is None:  # in the warm-up
            self._look.after_step()
            if self._watch is not None:
                self._passes, self._watch = self._watch(), None
        return step

    @property
    def inputs(self) -> str | None:
        """As of torch_passes.Passes."""
        return None if self._passes is None else self._passes.inputs

    @property
    def sees_time(self) -> bool:
        """As of torch_passes.Passes."""
        return self._passes is not None and self._passes.sees_time

    @property
    def trained(self) -> dict[str, str]:
        """What is trained, as of torch_model; empty without a model."""
        if self._model is None:
            return {}
        own = {"optimizer": self._kind_of_optimizer, "compiled": str(torch_model.is_compiled())}
        if (seen := self._passes) is None:
            return own
        with suppress(Exception):  # as in the first pass
            own["parameters at the end"] = seen.kind()["parameters"]
        return {**own, **seen.trained, "inputs": seen.shapes or ""}

    @property
    def accumulated(self) -> int | None:
        """As of torch_passes.Passes."""
        return None if self._passes is None else self._passes.accumulated

    def end_of_look(self) -> None:
        """The warm-up is over."""
        self._end_look()
        models = [self._model] if self._passes is None else self._passes.models  # whose passes are watched
        held = [each for model in models for each in parameters_of(model)]
        self._own = {id(each) for each in [*self.parameters, *held]}
        if self._passes is not None:
            self._passes.end_of_look()

    def _end_look(self) -> None:
        self._look.end()
        remove(self._looks_at)

    def world(self) -> World:
        """The world that the framework has formed."""
        return _world()

    def store(self) -> Any:
        """The store by which torch.distributed met."""
        return torch.distributed.distributed_c10d._get_default_store()

    def device(self) -> Device:
        """Where the training computes."""
        self._device = _device_of(self.parameters)
        return self._device

    def synchronize(self) -> None:
        """Wait for the device; not while a CUDA graph is captured, which that would end."""
        if self._device.index is not None and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(self._device.index)

    def parameters_checksum(self) -> str | None:
        """Of all parameters; BatchNorm's running statistics, which differ between correct ranks, are no parameters."""
        return checksum_of(map(local, self.parameters)) if self.parameters else None

    def last_checksum(self) -> str | None:
        """The same after the window, with what the optimizer was given in it."""
        if (optimizer := self._alive()) is not None and not self.sharded:
            known = {id(each) for each in self.parameters}
            held = optimizer_steps.parameters_of(optimizer)
            self._parameters += [weakref.ref(each) for each in held if id(each) not in known]
        return self.parameters_checksum()

    def all_finite(self) -> bool:
        """Whether every parameter that is trained is; torch asks none of a byte, which no optimizer trains."""
        trained = (local(each) for each in self.parameters if each.requires_grad and each.element_size() > 1)
        with torch.no_grad():
            return all(bool(torch.isfinite(each).all()) for each in trained)

    def onehot_holds(self, here: World) -> bool:
        """Whether the sum of all ranks' unit vectors is all ones: every rank took part exactly once."""
        if here.size == 1:
            return True
        vector = torch.zeros(here.size, device=torch.device(self._device.kind, self._device.index))
        vector[here.rank] = 1.0
        if here.framework == "torch":
            torch.distributed.all_reduce(vector)
        else:
            horovod = sys.modules["horovod.torch"]
            vector = horovod.allreduce(vector, op=horovod.Sum, name="runner.meter.onehot")
        return bool((vector == 1.0).all())

    @property
    def data_parallel(self) -> bool:
        """Whether something was seen that gives each rank a batch of its own: not those of a pipeline's stage alone."""
        modules = [] if self._model is None else modules_of(outermost(self._model))
        having = [each for each in modules if any(base.__name__ in _DATA_PARALLEL for base in type(each).__mro__)]
        meshes = [each.device_mesh.size() for each in self.parameters if hasattr(each, "device_mesh")]
        return any(max(meshes, default=_ranks_of(each)) >= _world().size for each in having)

    def versions(self, here: World) -> dict[str, Any]:
        """Of what computed."""
        return _versions(here.framework)

    def peak_memory_bytes(self) -> int:
        """Of the device as torch knows it; of the process on a processor."""
        if self._device.index is not None:
            return int(torch.cuda.max_memory_allocated(self._device.index))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def close(self) -> None:
        """Look at nothing any more."""
        self._end_look()
        if self._passes is not None:
            self._passes.close()
        if self._stepped is not None:
            self._stepped.remove()


def _ranks_of(module: Any) -> float:
    """How many reduce their gradients by it; infinite where it does not say."""
    groups = [getattr(module, name, None) for name in ("process_group", "_inter_node_pg")]  # of FSDP one or both
    sizes = [each.size() for each in groups if each is not None] or [getattr(module, "dp_world_size", math.inf)]
    return float(math.prod(sizes))


def is_worker() -> bool:
    """Whether this process only loads data for another one."""
    return torch.utils.data.get_worker_info() is not None


def models_with(parameter: torch.Tensor) -> list[Any]:
    """The outermost modules of this process that have the parameter."""
    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    having = [each for each in modules if any(own is parameter for own in parameters_of(each))]
    inner = {id(child) for each in having for child in modules_of(each) if child is not each}
    return [each for each in having if id(each) not in inner]
