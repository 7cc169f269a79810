"""The look at one step's gradients where parameters or the optimizer's state are divided among the ranks: this rank's
own whole gradients, as autograd has them, and the part that it keeps, as the optimizer gets it.

FSDP2 (fully_shard) gathers a module's parameters before its forward pass, FSDP1 has one flat parameter for a unit, and
torch's ZeroRedundancyOptimizer leaves parameters and gradients whole. All else is not examined.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Callable, Iterable, Sequence

import torch

from gpu_runner_inside.benchmark.proof import checksum
from gpu_runner_inside.meter.reduction import BUCKETS

WHOLE = "ZeroRedundancyOptimizer"
_MOST_LOOKS = 20  # steps that may have gradients that are not finite
_PIECE = BUCKETS * (1 << 16)  # values added up at once


class _Flat:
    """The flat parameter of a unit of FSDP1."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def watch(self, seen: Callable[[Any, torch.Tensor], None]) -> list[Any]:
        return [self._handle.flat_param.register_hook(lambda gradient: seen(self, gradient))]

    def gradient(self) -> torch.Tensor | None:
        found: torch.Tensor | None = self._handle.sharded_grad
        return found

    def part(self) -> tuple[int, int]:
        length = int(self._handle.flat_param._sharded_size.numel())
        return (int(self._handle.rank) * length if self._handle.uses_sharded_strategy else 0), length

    def gathered(self) -> torch.Tensor:
        handle = self._handle
        own = handle.flat_param.detach().contiguous()
        if not handle.uses_sharded_strategy:
            return own
        parts = [torch.empty_like(own) for _ in range(handle.process_group.size())]
        torch.distributed.all_gather(parts, own, group=handle.process_group)
        return torch.cat(parts)


class _Divided:
    """A distributed tensor, of FSDP2: whole in its modules from their forward pass on."""

    def __init__(self, parameter: Any, places: Sequence[tuple[Any, str]]) -> None:
        self._parameter, self._places = parameter, places

    def watch(self, seen: Callable[[Any, torch.Tensor], None]) -> list[Any]:
        handles: list[Any] = []
        hooked: list[torch.Tensor] = []  # kept, so that no other tensor gets the identity of one

        def before_forward(module: Any, _inputs: Any) -> None:
            for owner, name in self._places:
                whole = owner._parameters.get(name)
                if (
                    owner is not module
                    or whole is None
                    or not whole.requires_grad
                    or hasattr(whole, "device_mesh")
                    or any(each is whole for each in hooked)
                ):
                    continue
                hooked.append(whole)
                handles.append(whole.register_hook(lambda gradient: seen(self, gradient)))

        handles += [module.register_forward_pre_hook(before_forward) for module, _name in self._places]
        return handles

    def gradient(self) -> torch.Tensor | None:
        gradient = self._parameter.grad
        return None if gradient is None else gradient.to_local()

    def part(self) -> tuple[int, int]:
        """Where this rank's part begins, and its length.

        Raises:
            ValueError: it is divided in another way than by its first dimension.
        """
        from torch.distributed.tensor import Shard
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        placed = self._parameter
        divisions = [each for each in placed.placements if not each.is_replicate()]
        if any(type(each) is not Shard or each.dim != 0 for each in divisions) or len(divisions) > 1:
            raise ValueError(f"placements {placed.placements}")
        shape, offset = compute_local_shape_and_global_offset(placed.shape, placed.device_mesh, placed.placements)
        row = 1
        for length in placed.shape[1:]:
            row *= int(length)
        return int(offset[0]) * row, int(shape[0]) * row

    def gathered(self) -> torch.Tensor:
        whole: torch.Tensor = self._parameter.detach().full_tensor()
        return whole


class ReductionLook:
    """Looks at one step: the first whose gradients are finite.

    Attributes:
        seen: what reduction.error_of compares; empty before it, and where it could not be seen.
        own: checksum of this rank's own gradients.
    """

    def __init__(self, model: Any, parameters: Sequence[torch.Tensor], sharded: str) -> None:
        self.seen: dict[str, Any] = {}
        self.own: str | None = None
        self._parameters = list(parameters)
        self._whole = sharded == WHOLE
        self._tensors: list[Any] = []
        self._handles: list[Any] = []
        self._looks = 0
        self._possible = True
        self._begin_step()
        with suppress(Exception):  # what is not as torch has it here is not examined
            self._tensors = [] if self._whole else _divided(model, self._parameters)
            for each in self._tensors:
                self._handles += each.watch(self._seen)
            if self._tensors or self._whole:
                from torch.optim.optimizer import register_optimizer_step_pre_hook

                self._handles.append(register_optimizer_step_pre_hook(self._before_step))

    def _begin_step(self) -> None:
        self._own: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by tensor: the whole own gradient, and the part
        self._found: dict[str, Any] = {}

    def _seen(self, tensor: Any, gradient: torch.Tensor) -> None:
        """A backward pass has this whole gradient of a tensor, before it is reduced."""
        try:
            with torch.no_grad():
                flat = gradient.detach().reshape(-1)
                begin, length = tensor.part()
                whole, part = _in_buckets(flat, 0), _in_buckets(flat[begin : begin + length], begin)
                before = self._own.get(id(tensor))
                self._own[id(tensor)] = (whole, part) if before is None else (before[0] + whole, before[1] + part)
        except Exception:  # not examined
            self._possible = False

    def _before_step(self, _optimizer: Any, _args: Any, _named: Any) -> None:
        if self._found or not (self._whole or self._own):
            return
        try:
            with torch.no_grad():
                self._found = self._whole_gradients() if self._whole else self._buckets()
        except Exception:  # not examined
            self._possible = False

    def _whole_gradients(self) -> dict[str, Any]:
        found = [each.grad.detach() for each in self._parameters if each.grad is not None]
        if not found or not all(bool(torch.isfinite(each).all()) for each in found):
            return {}
        return {"whole": checksum(each.cpu().contiguous().numpy().tobytes() for each in found)}

    def _buckets(self) -> dict[str, Any]:
        sums = {name: torch.zeros(BUCKETS, dtype=torch.float64) for name in ("own", "own_part", "reduced")}
        digests: list[bytes] = []
        for tensor in self._tensors:
            reduced, own = tensor.gradient(), self._own.get(id(tensor))
            if reduced is None and own is None:
                continue
            if reduced is None or own is None:
                raise ValueError("a gradient of which only one side was seen")
            digests.append(own[0].numpy().tobytes())
            sums["own"] += own[0]
            sums["own_part"] += own[1]
            sums["reduced"] += _in_buckets(reduced.reshape(-1), tensor.part()[0])
        if not digests or not all(bool(torch.isfinite(each).all()) for each in sums.values()):
            return {}
        self.own = checksum(digests)
        return {name: each.tolist() for name, each in sums.items()}

    def after_step(self) -> None:
        """A step has ended: keep what was seen of it, or look at the next one."""
        if not self._handles:
            return
        self._looks += 1
        if self._found and self._possible:
            self.seen = self._found
        if self._found or not self._possible or self._looks >= _MOST_LOOKS:
            self.end()
        self._begin_step()

    def end(self) -> None:
        """Look no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def gathered_checksum(self) -> str | None:
        """Of all parameters, whole; every rank takes part. None where they cannot be gathered."""
        if not self._tensors:
            return None
        return checksum(
            each.gathered().cpu().contiguous().view(torch.uint8).numpy().tobytes() for each in self._tensors
        )


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
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    parameters = list(parameters)
    if not all(hasattr(each, "device_mesh") and id(each) in places for each in parameters):
        raise ValueError("a parameter that is not divided by fully_shard")
    return [_Divided(each, places[id(each)]) for each in parameters]


def _in_buckets(values: torch.Tensor, begin: int) -> torch.Tensor:
    """The sums of flat values by their place modulo BUCKETS, the first of which has the place ``begin``."""
    found = torch.zeros(BUCKETS, dtype=torch.float64, device=values.device)
    for at in range(0, values.numel(), _PIECE):
        piece = values[at : at + _PIECE].double()
        before = (begin + at) % BUCKETS
        after = -(before + piece.numel()) % BUCKETS
        found += torch.nn.functional.pad(piece, (before, after)).reshape(-1, BUCKETS).sum(0)
    return found.cpu()
