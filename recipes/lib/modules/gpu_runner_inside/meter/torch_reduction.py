"""The look at one step's gradients: this rank's own whole ones, as autograd has them before DistributedDataParallel or
Horovod gets them, and what of them the optimizer gets.

Parameters may be divided among the ranks: FSDP2 (fully_shard) gathers a module's before its forward pass, FSDP1 has one
flat parameter for a unit. Torch's ZeroRedundancyOptimizer leaves parameters and gradients whole. Of the values only
sums in buckets are kept, so that the look needs 16 MB at once, whatever the model's size.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from functools import partial
from typing import Any, Callable, Iterable, Sequence

import torch

from gpu_runner_inside.benchmark.proof import checksum
from gpu_runner_inside.benchmark.torch_checksum import checksum_of, values_of
from gpu_runner_inside.meter import optimizer_steps
from gpu_runner_inside.meter.reduction import BUCKETS
from gpu_runner_inside.meter.torch_passes import compiles_backward, is_compiling, living, untraced

WHOLE = "ZeroRedundancyOptimizer"
_MOST_LOOKS = 20  # steps that may have gradients that are not finite (a loss scale that is still too large)
_PIECE = BUCKETS * (1 << 12)  # values added up at once


class _Whole:
    """A parameter that every rank has whole."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self.parameter: Any = weakref.ref(parameter)  # here and below: it is the optimizer that keeps it alive

    def watch(self, look: Callable[[torch.Tensor], None], handles: list[Any]) -> None:
        handles.append(self.parameter().register_hook(look))

    def gradient(self) -> torch.Tensor | None:
        return self.parameter().grad

    def part(self) -> tuple[int, int]:
        return 0, self.parameter().numel()


class _Flat:
    """The flat parameter of a unit of FSDP1."""

    def __init__(self, handle: Any) -> None:
        self._handle: Any = weakref.ref(handle)

    def watch(self, look: Callable[[torch.Tensor], None], handles: list[Any]) -> None:
        handles.append(self._handle().flat_param.register_hook(look))

    def gradient(self) -> torch.Tensor | None:
        found: torch.Tensor | None = self._handle().sharded_grad
        return found

    def part(self) -> tuple[int, int]:
        length = int(self._handle().flat_param._sharded_size.numel())
        return (int(self._handle().rank) * length if self._handle().uses_sharded_strategy else 0), length

    def gathered(self) -> torch.Tensor:
        handle = self._handle()
        own = handle.flat_param.detach().contiguous()
        if not handle.uses_sharded_strategy:
            return own
        parts = [torch.empty_like(own) for _ in range(handle.process_group.size())]
        torch.distributed.all_gather(parts, own, group=handle.process_group)
        return torch.cat(parts)


class _Divided:
    """A distributed tensor, of FSDP2: whole in its modules from their forward pass on, or from that of the modules
    around them, which may use it themselves (nn.MultiheadAttention). What torch.compile compiles gets no hook.
    """

    def __init__(self, parameter: Any, places: Sequence[tuple[Any, str]], modules: Sequence[Any]) -> None:
        self._parameter: Any = weakref.ref(parameter)
        self._places = [(weakref.ref(owner), name) for owner, name in places]
        self._modules = [*map(weakref.ref, modules)]

    def watch(self, look: Callable[[torch.Tensor], None], handles: list[Any]) -> None:
        hooked: list[torch.Tensor] = []  # kept, so that no other tensor gets the identity of one

        def before_forward(_module: Any, _inputs: Any) -> None:
            if is_compiling():  # nothing of it may be in what the script compiles
                return
            for owner, name in self._places:
                whole = getattr(owner(), "_parameters", {}).get(name)
                if (
                    whole is None
                    or not whole.requires_grad
                    or hasattr(whole, "device_mesh")
                    or any(each is whole for each in hooked)
                ):
                    continue
                hooked.append(whole)
                handles.append(whole.register_hook(look))

        handles += [module.register_forward_pre_hook(before_forward) for module in living(self._modules)]

    def gradient(self) -> torch.Tensor | None:
        gradient = self._parameter().grad
        return None if gradient is None else gradient.to_local()

    def part(self) -> tuple[int, int]:
        """Where this rank's part begins, and its length.

        Raises:
            ValueError: it is divided in another way than by its first dimension.
        """
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        placed = self._parameter()
        divisions = [each for each in placed.placements if not each.is_replicate()]
        if any(type(each) is not Shard or each.dim != 0 for each in divisions) or len(divisions) > 1:
            raise ValueError(f"placements {placed.placements}")
        shape, offset = compute_local_shape_and_global_offset(placed.shape, placed.device_mesh, placed.placements)
        row = 1
        for length in placed.shape[1:]:
            row *= int(length)
        return int(offset[0]) * row, int(shape[0]) * row

    def gathered(self) -> torch.Tensor:
        whole: torch.Tensor = self._parameter().detach().full_tensor()
        return whole


class ReductionLook:
    """Looks at the steps of the warm-up until one has finite gradients before and after the reduction.

    Args:
        is_alone: whether this is the only rank: what the optimizer gets is its own, where autograd shows none
            (torch.func computes without it).

    Attributes:
        seen: what reduction.error_of compares; empty before it, and where it could not be seen.
        own: checksum of this rank's own gradients, of the last step in which all were finite; None for none.
    """

    def __init__(
        self,
        model: Any,
        parameters: Sequence[torch.Tensor],
        sharded: str,
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_alone = is_alone
        self.seen: dict[str, Any] = {}
        self.own: str | None = None
        self._tensors: list[Any] = []
        self._handles: list[Any] = []
        self._looks = 0
        self._possible = True
        self._begin_step()
        with suppress(Exception):  # what is not as torch has it here is not examined
            whole = sharded in ("", WHOLE)
            self._tensors = [_Whole(each) for each in parameters] if whole else _divided(model, parameters)
        for each in () if compiles_backward() else self._tensors:
            # A lazy parameter takes no hook before it has a shape; then there is no proof, and no error.
            with suppress(RuntimeError, ValueError):
                each.watch(untraced(partial(self._seen, each)), self._handles)
        try:
            if self._handles:
                self._handles.append(optimizer_steps.before(self._before_step))
        except ImportError:  # torch before 2.0
            self._possible = False

    @property
    def is_open(self) -> bool:
        """Whether it looks at the next step."""
        return bool(self._handles)

    def _begin_step(self) -> None:
        # By tensor: the whole own gradient and the part; these, and what was reduced.
        self._own: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._stepped: dict[int, tuple[torch.Tensor, ...]] = {}
        self._versions: dict[int, int] = {}  # of whole parameters, as the step of their optimizer begins
        self._given: dict[int, torch.Tensor] = {}  # what it gets where this rank is alone, and no own one was seen

    def _seen(self, tensor: Any, gradient: torch.Tensor) -> None:
        """A backward pass has this whole gradient of a tensor, before it is reduced. It must not end that pass."""
        if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        try:
            with torch.no_grad():
                flat = values_of(gradient).reshape(-1)
                begin, length = tensor.part()
                whole = _in_buckets(flat, 0)
                part = whole if length == flat.numel() else _in_buckets(flat[begin : begin + length], begin)
                if isinstance(tensor, _Whole) and self._versions.get(id(tensor)) == tensor.parameter()._version:
                    self._stepped.pop(id(tensor), None)  # a pass within the step, by its closure: it gets more
                before = self._own.get(id(tensor))
                if before is None or (isinstance(tensor, _Whole) and tensor.gradient() is None):  # none to add to
                    self._own[id(tensor)] = whole, part
                else:
                    self._own[id(tensor)] = before[0] + whole, before[1] + part
        except Exception:  # not examined
            self._possible = False

    def _before_step(self, optimizer: Any) -> None:
        """Of what it steps: the last call counts, as a wrapper may reduce between its own begin and the optimizer's."""
        if not self._possible:
            return
        try:
            held = {*map(id, optimizer_steps.parameters_of(optimizer))}
            for tensor in self._tensors:
                if isinstance(tensor, _Whole):
                    if id(tensor.parameter()) not in held:
                        continue
                    self._versions[id(tensor)] = tensor.parameter()._version
                if self._own:
                    self._reduced(tensor)
                elif isinstance(tensor, _Whole) and self._is_alone() and tensor.parameter().grad is not None:
                    self._given[id(tensor)] = _in_buckets(values_of(tensor.parameter().grad).reshape(-1), 0)
        except Exception:  # not examined
            self._possible = False

    def _reduced(self, tensor: Any) -> None:
        """The optimizer gets this gradient."""
        none = torch.zeros(BUCKETS, dtype=torch.float64, device="cpu")  # the script may have another default
        reduced, own = tensor.gradient(), self._own.get(id(tensor))
        if not isinstance(tensor, _Whole) and (own is None) != (reduced is None):
            raise ValueError("a gradient of which only one side was seen")
        if reduced is not None and reduced.layout == torch.strided:
            begin = tensor.part()[0]
            with torch.no_grad():
                self._stepped[id(tensor)] = (*(own or (none, none)), _in_buckets(reduced.reshape(-1), begin))

    def after_step(self) -> None:
        """A step has ended: keep what was seen of it, or look at the next one."""
        if not self.is_open:
            return
        self._looks += 1
        own = [self._own[id(each)][0] for each in self._tensors if id(each) in self._own] or [*self._given.values()]
        if own and _are_finite(own):
            self.own = checksum(each.numpy().tobytes() for each in own)
            with suppress(Exception):  # after a closure, which is after the step
                for each in self._tensors if self._possible else ():
                    if id(each) in self._own and id(each) in self._versions and id(each) not in self._stepped:
                        self._reduced(each)
            sums = [torch.stack(each).sum(0) for each in zip(*self._stepped.values())]
            if self._possible and sums and _are_finite(sums):
                named = zip(("own", "own_part", "reduced"), (each.tolist() for each in sums))
                whole = isinstance(self._tensors[0], _Whole)
                self.seen = {name: each for name, each in named if not (whole and name == "own_part")}
                self.seen["step"] = self._looks
        if self.seen or (self.own and not self._possible) or self._looks >= _MOST_LOOKS:
            self.end()
        self._begin_step()

    def end(self) -> None:
        """Look no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def gathered_checksum(self) -> str | None:
        """Of all parameters, whole; every rank takes part. None where they cannot be gathered."""
        return checksum_of(each.gathered() for each in self._tensors) if self._tensors else None


def divides(optimizer: Any) -> str:
    """What divides the optimizer's state among the ranks; empty for nothing."""
    return WHOLE if any(each.__name__ == WHOLE for each in type(optimizer).__mro__) else ""


def _divided(model: Any, parameters: Iterable[torch.Tensor]) -> list[Any]:
    """All that is divided, in the model's order.

    Raises:
        ValueError: not every parameter is one of these.
    """
    handles = [
        module._handle
        for module in model.modules()
        if type(module).__name__ == "FullyShardedDataParallel" and module._handle is not None
    ]
    if handles:
        return [_Flat(each) for each in handles]
    places: dict[int, list[tuple[Any, str]]] = {}
    around = {id(child): module for module in model.modules() for child in module.children()}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    parameters = list(parameters)
    if not all(hasattr(each, "device_mesh") and id(each) in places for each in parameters):
        raise ValueError("a parameter that is not divided by fully_shard")
    compiled = {
        id(below)
        for module in model.modules()
        if getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")
        for below in module.modules()
    }
    found = []
    for each in parameters:
        modules = [one for module, _name in places[id(each)] for one in (module, around.get(id(module)))]
        called = [one for one in modules if one is not None and id(one) not in compiled]
        found.append(_Divided(each, places[id(each)], called))
    return found


def _are_finite(sums: Iterable[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(each).all()) for each in sums)


def _in_buckets(values: torch.Tensor, begin: int) -> torch.Tensor:
    """The sums of flat values (of complex ones of both parts) by their place modulo BUCKETS, the first of which has the
    place ``begin``.
    """
    if values.is_complex():
        values = values.real + values.imag
    found = torch.zeros(BUCKETS, dtype=torch.float64, device=values.device)
    for at in range(0, values.numel(), _PIECE):
        piece = values[at : at + _PIECE].double()
        before = (begin + at) % BUCKETS
        after = -(before + piece.numel()) % BUCKETS
        if before or after:
            piece = torch.nn.functional.pad(piece, (before, after))
        found += piece.reshape(-1, BUCKETS).sum(0)
    return found.cpu()
