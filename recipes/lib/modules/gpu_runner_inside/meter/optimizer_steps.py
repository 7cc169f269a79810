"""What is called before the steps of PyTorch's optimizers: by one hook that stays, whatever it calls.

torch.compile compiles an optimizer's step again where the number of its hooks changes, and nothing of ours may be in
what it compiles. This needs no torch before it is called.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from contextlib import suppress
from functools import lru_cache
from typing import Any, Callable

_calls: Any = OrderedDict()


def before(call: Callable[[Any], None]) -> Any:
    """Call it with the optimizer before each step that is not compiled; ``remove()`` of what this returns ends that.

    Raises:
        ImportError: torch before 2.0.
    """
    _attach()
    from torch.utils.hooks import RemovableHandle

    handle = RemovableHandle(_calls)
    _calls[handle.id] = call
    return handle


@lru_cache(maxsize=None)
def _attach() -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def call_all(optimizer: Any) -> None:
        for call in [*_calls.values()]:
            with suppress(Exception):  # such as of an optimizer that has no hash
                call(optimizer)

    register_optimizer_step_pre_hook(uncompiled(call_all))


def parameters_of(optimizer: Any) -> list[Any]:
    """Those that it steps."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def uncompiled(call: Callable[[Any], Any]) -> Callable[[Any, Any, Any], None]:
    """A hook of an optimizer's step that calls it, and does nothing where torch.compile traces that step."""
    torch = sys.modules["torch"]

    def hook(optimizer: Any, _given: Any, _named: Any) -> None:
        if not (hasattr(torch, "compiler") and torch.compiler.is_compiling()):
            call(optimizer)

    return hook
