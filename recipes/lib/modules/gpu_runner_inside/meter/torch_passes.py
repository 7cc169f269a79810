"""The forward passes of the trained model in PyTorch, seen by hooks outside of what torch.compile has compiled."""

from __future__ import annotations

import gc
import sys
import traceback
import weakref
from contextlib import nullcontext, suppress
from functools import lru_cache
from itertools import islice
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import torch

from gpu_runner_inside.benchmark.torch_checksum import checksum_of
from gpu_runner_inside.meter.counting import (
    NONE,
    Step,
    across_of,
    is_time_lost,
    is_time_major,
    numbers_of,
    samples_of,
)
from gpu_runner_inside.meter.torch_model import CHECKPOINTING, VARYING, of_inputs, of_modules, precision, recomputes

_WRAPS = ("module", "_orig_mod", "_fsdp_wrapped_module")  # the one child of DDP, torch.compile, FSDP
is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
_JOINS = ("StackBackward0", "CatBackward0")
_DEEPEST = 4  # objects within objects of an output
_MOST_NODES = 200_000  # of a graph that are looked at, once
_OF_FUNCTION = vars(torch.autograd.function.BackwardCFunction)  # runs a Function's backward method
_FUNCTIONS = {_OF_FUNCTION[name].__code__ for name in ("apply", "apply_boxed") if name in _OF_FUNCTION}
backward_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # -1 outside of one


def _nothing(_module: Any, _inputs: Any, _more: Any) -> None:
    pass


class _Hook:
    """Calls one of ours, and where a compiler traces it, nothing. It stays where it is attached: what torch.compile has
    compiled around the module would be compiled again.
    """

    def __init__(self, call: Callable[[Any, Any, Any], None]) -> None:
        self._call = call

    def __call__(self, module: Any, inputs: Any, more: Any = None) -> None:
        while module.training is False and (inner := _wrapped(module)) is not None:  # its own flag may be an old one
            module = inner
        if not is_compiling() and module.training and torch.is_grad_enabled() and not torch._C._is_tracing():
            self._call(module, inputs, more)

    def end(self) -> None:
        """Call nothing any more."""
        self._call = _nothing

    def __reduce__(self) -> Any:
        """A model that is saved whole or copied holds a call that does nothing, and needs no module of ours."""
        return getattr, (nullcontext(), "__exit__")


class Passes:
    """The forward passes of models in training that build a graph: those of an evaluation, of a copy of the model or
    of data that a policy makes are not trained on. One that activation checkpointing repeats counts where the first
    built no graph.

    Args:
        models: the first is the trained one; others share a part of it.
        parameters: of which the optimizer takes gradients; hidden: those are where torch does not show them; whole:
            each rank has all of them.
        tokens: as counting.samples_of has it. began: is called as each begins.

    Attributes:
        accumulated: most passes of a step that only accumulated gradients, each followed by its own backward pass; 0
            where a step did something else. None until a step was seen.
        between: steps that had a pass after another optimizer's step, or in which that one stepped again without a
            pass that is seen, since the warm-up.
        inputs: checksum of what the model was given in the first pass; None where that cannot be read.
        sees_time: an output showed that the first dimension of the inputs may be the time.
        trained: what is trained, at the first pass (torch_model). shapes: digest of those of a sample, or
            that they vary; empty where they are unknown.
    """

    def __init__(
        self,
        models: Sequence[Any],
        parameters: Sequence[Any],
        began: Callable[[], None],
        *,
        hidden: bool,
        whole: bool,
        tokens: bool,
    ) -> None:
        self._parameters = [weakref.ref(each) for each in parameters if each.requires_grad]
        self._hidden, self._began = hidden, began
        self._models = [*map(weakref.ref, models)]
        self._tokens = tokens
        below = (each for model in models for each in modules_of(model))
        self._time_major = is_time_major(below)
        self.accumulated: int | None = None
        self.inputs: str | None = None
        self.shapes: str | None = "" if self._time_major else None
        self.trained: dict[str, str] = {}
        self._whole = whole
        self._is_first = True
        self.sees_time = False
        self._mixed, self._open = False, False  # in this step; a pass whose backward pass has not begun
        self._versions = self.between = 0
        self._stepped_after = 0  # passes of this step
        self._stepped: dict[int, int] = {}  # in this step: another optimizer -> after so many passes
        self._unseen = False  # one of them again after no further pass
        self._first: list[Step] = []  # passes of this step; those that activation checkpointing repeats
        self._repeated: list[Step] = []
        self._repeated_in, self._solves = -1, False  # which backward pass; whether one repeats several
        self._given: list[tuple[Any, int]] = []  # tensors of the last pass in the warm-up, not kept alive; versions
        self._shapes: Any = None  # of the last pass's inputs; what they show
        self._shown, self._only_places = NONE, True
        self._close: list[Callable[[], None]] = []
        self._looks = True
        self._outputs: list[Any] = []  # hooks of this step's; that of a parameter would stay
        self._late: list[Any] = []  # of the step before, in the warm-up: another loss of it may come after its step
        self.tasks: set[int] = set()  # in the warm-up: backward passes through outputs
        self._attached: list[tuple[Any, Any]] = []  # a module, and ours around what was compiled in its place
        self._outer: set[int] = set()  # identities of those that nothing holds that is looked at
        self._running: int | None = None  # the module whose pass is under way; after an error, until the step's end
        self._running_in = -1  # which backward pass
        _hide_from_torchscript()
        self._attach()

    @property
    def models(self) -> list[Any]:
        """Those whose passes are seen. As parameters, they are not kept alive by this."""
        return living(self._models)

    def _attach(self) -> None:
        """See the passes of what is called in the models' place now, and of what that holds, which a script may call
        without it: what DDP wraps, or a network within a module of its loss.
        """
        for model in self.models:
            module = outermost(model)
            if not any(module is one() for one, _ in self._attached):  # else its wrapper is not found any more
                self._outer.add(id(module))
            while module is not None:
                compiled = getattr(module, "_compiled_call_impl", None)
                if not any(module is one() and compiled is (call and call()) for one, call in self._attached):
                    self._attached.append((weakref.ref(module), self._attach_to(module, compiled)))
                module = _held_alone(module)

    def _descend(self) -> None:
        """None was called in a step: they may hold the one that is, as an object does that keeps a moving average."""
        own = {id(each()) for each in self._parameters}
        holders = [each for each in self.models if not isinstance(each, torch.nn.TransformerEncoderLayer)]  # no hooks
        below = (vars(each).get("_modules", {}).values() for each in holders)
        held = [child for children in below for child in children if child is not None]
        having = [weakref.ref(each) for each in held if any(id(one) in own for one in parameters_of(each))]
        self._models = having or self._models
        self._attach()

    def _attach_to(self, module: Any, compiled: Any) -> Any:
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            return None  # with a hook it computes in another way
        before, after = _Hook(self._before), _Hook(self._after)
        if compiled is not None:  # compiled in its place: a hook would be inside

            def call(*inputs: Any, **named: Any) -> Any:
                before(module, inputs, named)
                output = compiled(*inputs, **named)
                after(module, inputs, output)
                return output

            def restore() -> None:
                if module._compiled_call_impl is call:
                    module._compiled_call_impl = compiled

            module._compiled_call_impl = call
            call.restore = restore  # type: ignore[attr-defined]  # the module keeps both
            return weakref.ref(call)
        try:
            module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        except TypeError:  # before torch 2.0
            module.register_forward_pre_hook(before)
        except (AttributeError, RuntimeError):  # a ScriptModule takes none: nothing is known of its forward passes
            return None
        module.register_forward_hook(after)
        self._close += [before.end, after.end]
        return None

    def _before(self, module: Any, inputs: Any, named: Any) -> None:
        backward = backward_task()
        if self._running_in not in (-1, backward):  # activation checkpointing leaves a pass that it repeats by an error
            self._running = None
        if self._running is not None and id(module) not in self._outer:  # within it, or a copy on another device
            return
        self._running, self._running_in = id(module), backward
        given = (*inputs, *named.values()) if named else inputs
        try:
            shapes = [(each.shape, each.dtype) for each in given if isinstance(each, torch.Tensor)]
            again = self._looks and self._only_places  # by chance, perhaps: numbers of samples that were not shuffled
            if again or len(shapes) < len(given) or shapes != self._shapes:
                self._shown, self._shapes = self._show(given), shapes
                if self.shapes not in ("", VARYING):
                    own = of_inputs(given)
                    self.shapes = own if self.shapes in (None, own) else VARYING
        except Exception:  # a shape that cannot be read
            self._shown, self._shapes = self._show(given), None
        if backward != -1:
            self._solves = self._solves or backward == self._repeated_in  # as adjoint methods do, which take no more
            self._repeated_in = backward
            self._repeated.append(self._shown)
            return
        self._began()
        if self._is_first:
            self._is_first = False
            with suppress(Exception):  # parameters without a shape, modules that are none
                self.trained["precision"] = precision(next((each.device.type for each in living(self._parameters)), ""))
                self.trained.update(self.kind())
            with suppress(Exception), torch.no_grad():
                self.inputs = checksum_of(tensors) if (tensors := list(_tensors((inputs, named)))) else None
        if self._looks:
            repeats = self._repeats((inputs, named))
            if not self._first:
                self._versions = self._version()
            elif self._open or repeats or self._versions != self._version():
                self._mixed = True
            elif not self._accumulates():
                self._mixed = True  # the first gradients are thrown away
            self._open = True
        elif self._has_several:
            self._mixed = self._mixed or (self._open and bool(self._first))  # no backward pass of the last one's own
            self._open = True
        self._first.append(self._shown)

    @property
    def _has_several(self) -> bool:
        """Whether a step accumulates over several passes, by the warm-up: so it must in the window."""
        return (self.accumulated or 0) > 1

    def _repeats(self, given: Any) -> bool:
        """Whether a pass has the very tensors of the last one, and no samples of its own."""
        last, self._given = self._given, []
        with suppress(Exception):  # a tensor without a version
            tensors = [*_tensors(given)]
            self._given = [(weakref.ref(each), each._version) for each in tensors]
            same = (ref() is each and then == each._version for each, (ref, then) in zip(tensors, last))
            return 0 < len(tensors) == len(last) and all(same)
        return False

    def kind(self) -> dict[str, str]:
        """What the trained model is now."""
        return of_modules([*modules_of(self.models[0])], whole=self._whole)

    def _show(self, given: Sequence[Any]) -> Step:
        """A pass with these inputs."""
        samples, across, numbers = 0, NONE.across, 0
        with suppress(Exception):  # a tensor without a shape that can be read
            self._only_places = self._only_places and _are_places(given)
            hides = _is_of_one_sample() or self._only_places
            samples = 0 if hides else samples_of(given, tokens=self._tokens, time_major=self._time_major)
            across, numbers = across_of(given), numbers_of(given)
        return Step(1, samples, samples, across, numbers=numbers)

    def _after(self, module: Any, _inputs: Any, output: Any) -> None:
        if self._running != id(module):
            return
        self._running = None
        if not (self._looks or self._has_several) or compiles_backward() or backward_task() != -1:
            return
        every = (each for each in _tensors(output, _DEEPEST) if each.requires_grad)
        outputs = [*every] if self._looks else [*islice(every, 1)]
        # That of a parameter, which may be an output, is called in any backward pass.
        computed = [each for each in outputs if not each.is_leaf]
        for each in (self._looks and computed) or outputs[:1]:
            self._outputs.append(each.register_hook(untraced(self._backward_began)))
        if outputs and self._looks:
            with suppress(Exception):  # a shape, or a graph, that cannot be read
                self._look_for_time(outputs[0])
            if CHECKPOINTING not in self.trained:
                self.trained[CHECKPOINTING] = str(recomputes())

    def _look_for_time(self, output: torch.Tensor) -> None:
        """Whether an output shows that the first dimension of the inputs is the time; by its graph, in one pass."""
        if self._tokens or self._time_major:
            return
        is_first = CHECKPOINTING not in self.trained
        if is_time_lost(self._shown, output.shape) or (is_first and _joins_time(output, self._shown)):
            self.sees_time = self._time_major = True
            self._shapes = None  # of the next pass they show something else

    def stepped(self, optimizer: int) -> None:
        """Another optimizer steps: a further pass before the step that counts is none of an accumulation, and where it
        has stepped since the last pass, it did so by samples of its own.
        """
        self._open = True
        passes = len(self._first) + len(self._repeated)
        self._unseen = self._unseen or self._stepped.get(optimizer) == passes
        self._stepped[optimizer] = passes
        self._stepped_after = self._stepped_after or len(self._first)

    def _backward_began(self, _gradient: Any) -> None:
        self._open = False
        if self._looks:
            self.tasks.add(backward_task())

    def _accumulates(self) -> bool:
        """Whether an earlier pass has left gradients: they are None, or zero, where they were thrown away."""
        model = next(iter(self.models), None)
        if self._hidden:
            accumulation = getattr(model, "gradient_accumulation_steps", None)  # of DeepSpeed's engine
            return accumulation is None or len(self._first) < accumulation()
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False
        gradients = [each.grad for each in living(self._parameters)] + [*_unreduced(model)]
        return any(each is not None and bool(local(each).any()) for each in gradients)

    def _version(self) -> int:
        """Changes with each change of a parameter in its place."""
        return sum(each._version for each in living(self._parameters))

    def take(self) -> Step:
        """Those since the last call."""
        self._running = None
        passes = self._first or self._repeated
        self._mixed = self._mixed or (self._solves and not self._first)
        self._repeated_in, self._solves = -1, False
        if self._looks and self._is_first and not passes:
            self._descend()
        self._mixed = self._mixed or (len(passes) > 1 and self._open and not self._stepped_after)
        self._open = False
        if self._looks and passes:
            before = 0 if self.accumulated == 0 else max(self.accumulated or 1, len(passes))
            self.accumulated = 0 if self._mixed else before
        remove(self._late)
        if self._looks:
            self._late, self._outputs = self._outputs, self._late
        remove(self._outputs)
        stepped_after, self._stepped_after = self._stepped_after, 0
        unseen, self._unseen = self._unseen, False
        self._stepped = {}
        self.between += unseen or 0 < stepped_after < len(passes)
        self._first, self._repeated = [], []
        if len(passes) < 2:
            return passes[0] if passes else NONE
        samples = [0 if self._mixed else each.samples for each in passes]
        numbers = sum(each.numbers for each in passes)
        return Step(len(passes), sum(samples) if all(samples) else 0, max(samples), passes[-1].across, numbers=numbers)

    def end_of_look(self) -> None:
        """The warm-up is over. What torch.compile has compiled in it hides the hooks that are within."""
        remove(self._late)
        if self._looks:
            self._looks, self.between = False, 0
            self._attach()

    def close(self) -> None:
        """Look at nothing any more."""
        self._looks = False
        remove(self._late)
        for each in self._close:
            each()
        for call in living(call for _, call in self._attached if call is not None):
            call.restore()
        self._close, self._attached = [], []


@lru_cache(maxsize=None)
def _hide_from_torchscript() -> None:
    """TorchScript compiles the hooks of a module, which ours cannot be, nor what stands for them in a copy."""
    recursive: Any = torch.jit._recursive
    create = recursive.create_script_module

    def without_hooks(module: Any, *given: Any, **named: Any) -> Any:
        places = [
            (vars(each), name, hooks)
            for each in modules_of(module)
            for name in ("_forward_pre_hooks", "_forward_hooks")
            if (hooks := vars(each).get(name))
        ]
        for place, name, hooks in places:
            own = (_Hook, nullcontext)
            place[name] = type(hooks)(
                (k, v) for k, v in hooks.items() if not isinstance(getattr(v, "__self__", v), own)
            )
        try:
            return create(module, *given, **named)
        finally:
            for place, name, hooks in places:
                place[name] = hooks

    recursive.create_script_module = without_hooks


def untraced(call: Callable[[torch.Tensor], None]) -> Any:
    """A tensor's hook that calls it, and that torch.compile does not compile where a backward pass lies in a function
    that it compiled. An optimizer has imported _dynamo.
    """
    dynamo = sys.modules.get("torch._dynamo")

    def look(gradient: torch.Tensor) -> None:
        call(gradient)

    hook: Any = look if dynamo is None else dynamo.disable(look)
    hook.__torch_unserializable__ = True  # torch.save leaves it out, without a warning
    return hook


def compiles_backward() -> bool:
    """Whether torch.compile compiles the backward pass by itself, hooks of tensors included."""
    return bool(getattr(getattr(sys.modules.get("torch._dynamo"), "config", None), "compiled_autograd", False))


@lru_cache(maxsize=1)
def is_within_another(_task: int) -> bool:
    """Whether this backward pass is a part of another one, as of a Function that computes its activations again."""
    return any(frame.f_code in _FUNCTIONS for frame, _line in traceback.walk_stack(sys._getframe(1)))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that may be divided among the ranks."""
    to_local = getattr(tensor.detach(), "to_local", None)
    return tensor.detach() if to_local is None else to_local()


def _unreduced(model: Any) -> Iterator[Any]:
    """Whole gradients that FSDP2 accumulates until it reduces them."""
    with suppress(Exception):  # not as torch has it here
        for state in (each._get_fsdp_state() for each in model.modules() if hasattr(each, "_get_fsdp_state")):
            for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
                for each in getattr(group, "fsdp_params", ()):  # None: no parameters of its own
                    yield each.unsharded_accumulated_grad
                    yield getattr(getattr(each, "_unsharded_param", None), "grad", None)


def _joins_time(output: torch.Tensor, step: Step) -> bool:
    """Whether a pass computed a part for each index of its inputs' first dimension, one by one, and joined them, or
    wrote each to its place: steps of time, perhaps. Torch before 2.1 does not show what is joined.
    """
    shapes = [(step.samples, each) for each in step.across]
    nodes: list[Any] = [output.grad_fn]
    seen: set[Any] = {None}
    written = 0
    while nodes and len(seen) < _MOST_NODES:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            name, below = node.name(), node.next_functions
            written += name.endswith("CopySlices")
            if len(below) == step.samples > 1 and name in _JOINS and node._saved_dim == 0:
                (joined,) = node._input_metadata  # of the backward pass: what it joins
                if tuple(joined.shape[:2]) in shapes:
                    return True
            nodes += [each for each, _ in below]
    return written == step.samples > 1 and step.across != () and step.samples not in step.across


def _is_of_one_sample() -> bool:
    """Whether torch.func.vmap gives the model a sample at a time, and hides the dimension of the batch."""
    with suppress(AttributeError):  # torch before 2.1
        layers = torch._C._functorch.get_interpreter_stack() or ()
        return any(each.key() == torch._C._functorch.TransformType.Vmap for each in layers)
    return False


def _are_places(given: Sequence[Any]) -> bool:
    """Whether a model takes numbered places alone, as an embedding of positions does, and no samples."""
    only = given[0] if len(given) == 1 else None
    if not isinstance(only, torch.Tensor) or only.dtype not in (torch.int32, torch.int64) or only.dim() != 1:
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return True  # it cannot be read
    return bool(torch.equal(only, torch.arange(len(only), dtype=only.dtype, device=only.device)))


def _tensors(value: Any, deep: int | None = None) -> Iterator[torch.Tensor]:
    """Those in a model's inputs, which may be lists and mappings; with ``deep``, the most that lie in each other, in
    its output, which may be objects, too, such as a distribution.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif deep != 0:
        held = value if isinstance(value, (list, tuple, Mapping)) else getattr(value, "__dict__", ()) if deep else ()
        for each in held.values() if isinstance(held, Mapping) else held:
            yield from _tensors(each, deep and deep - 1)


def living(parts: Iterable[Callable[[], Any]]) -> list[Any]:
    """What these weak references have, but for what is gone."""
    return [each for part in parts if (each := part()) is not None]


def remove(handles: list[Any]) -> None:
    """Take hooks away."""
    while handles:
        handles.pop().remove()


def _wrapped(module: Any) -> Any:
    """What DDP, torch.compile or FSDP wraps; None for another module."""
    return next((own[name] for own in [vars(module).get("_modules", {})] for name in _WRAPS if name in own), None)


def _held_alone(module: Any) -> Any:
    """The one module in this one that has all its parameters; None where that is compiled with it."""
    own = vars(module)
    children = own.get("_modules", {})
    if (
        "_orig_mod" in children
        or own.get("_compiled_call_impl") is not None
        or any(each is not None for each in own.get("_parameters", {}).values())
    ):
        return None
    having = [each for each in children.values() if each is not None and any(True for _ in parameters_of(each))]
    return having[0] if len(having) == 1 else None


def modules_of(module: Any) -> Iterator[Any]:
    """It, and all below: of any module of the process, whatever its class overrides or leaves out."""
    seen: dict[int, Any] = {}
    below = [module]
    while below:
        each = below.pop()
        if each is not None and id(each) not in seen:
            seen[id(each)] = each
            below += vars(each).get("_modules", {}).values()
    yield from seen.values()


def parameters_of(module: Any) -> Iterator[torch.Tensor]:
    """Those of it and of all below; a shared one several times."""
    for each in modules_of(module):
        yield from (own for own in vars(each).get("_parameters", {}).values() if own is not None)


def outermost(model: Any) -> Any:
    """What wraps the model as its one child, and is called in its place; the model itself where nothing does."""
    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    wrapper = model
    while wrapper is not None:
        model = wrapper
        wrapper = next((each for each in modules if _wrapped(each) is model), None)
    return model
