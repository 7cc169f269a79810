"""Which ranks come to a call that ends when all of them have come. Pure."""

from __future__ import annotations

from runner.linting.trace import Event, Trace

_SOME = frozenset(("root", "not_root", "local_root"))


def is_left_waiting(event: Event, trace: Trace) -> bool:
    """Whether only some ranks come to a collective, and the others to no other call of it.

    ``if rank == 0: dist.gather(x, parts)``, ``else: dist.gather(x)`` brings all of them together, as
    ``if rank != 0: dist.barrier()`` does with a later one on rank 0. A group of its own is not judged.
    """
    guards = event.guards & _SOME
    if not guards or event.argument(None, "group", "process_group", "process_set") is not None:
        return False
    others = [each for each in trace.events if each.name == event.name and each is not event]
    if "root" in guards:
        return not any("not_root" in each.guards for each in others)
    if "not_root" in guards:
        return not any("root" in each.guards for each in others)
    return not any(each.function == event.function and not each.guards & _SOME for each in others)
