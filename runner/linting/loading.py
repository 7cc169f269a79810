"""Which data a loop goes over, and which loops train. Pure."""

from __future__ import annotations

from runner.linting.names import RANK, SIZE
from runner.linting.trace import NOTHING, Event, Trace, Value

BACKWARD = frozenset((".backward", ".apply_gradients", ".minimize", ".train_on_batch", ".train_step", ".gradient"))
_READS = frozenset(
    ("load", "load_data", "load_dataset", "memmap", "fromfile", "loadtxt", "read_csv", "read_parquet", "imread")
)
FITS = frozenset((".fit", ".fit_generator"))


def is_backward(event: Event) -> bool:
    """Whether this computes gradients."""
    return event.name in BACKWARD or event.name == "torch.autograd.backward"


def training_loops(trace: Trace) -> set[int]:
    """The innermost loops that compute gradients, and go over something."""
    return {event.loops[-1] for event in trace.events if is_backward(event) and event.loops}


def trained_on(trace: Trace) -> list[Value]:
    """What the loops that compute gradients go over: the innermost that has a loader, else the innermost."""
    found: list[Value] = []
    for event in trace.events:
        if is_backward(event) and event.loops:
            overs = [trace.loops[number].over for number in reversed(event.loops)]
            found.append(next((over for over in overs if over.numbered("loader")), overs[0]))
    return found


def loaders(trace: Trace) -> dict[str, Event]:
    """The DataLoaders, by their tags."""
    return {
        f"loader:{event.number}": event
        for event in trace.events
        if event.last == "DataLoader" and "class " not in event.name
    }


def reads_data(trace: Trace) -> bool:
    """Whether data can be seen: a loader, what is given to ``fit``, a file's, or a loop over more than a count."""
    if loaders(trace) or any(event.name in FITS or event.last in _READS for event in trace.events):
        return True
    overs = [trace.loops[number].over for number in training_loops(trace)]
    return any(over != NOTHING and "count" not in over.tags for over in overs)


def samplers(trace: Trace) -> dict[str, Event]:
    """The distributed samplers, by their tags."""
    return {
        f"sampler:{event.number}": event
        for event in trace.events
        if "Sampler" in event.last
        and ("Distributed" in event.last or "Elastic" in event.last)
        and "class " not in event.name
    }


def sharding(loader: Event) -> str:
    """``sampler``, ``rank`` (the data depend on it), ``size`` (on the size alone), or empty for the whole data."""
    given = [
        value
        for value in (
            loader.argument(0, "dataset"), loader.argument(None, "sampler"), loader.argument(None, "batch_sampler"),
            loader.argument(3), loader.argument(4),
        )
        if value is not None
    ]  # fmt: skip
    tags = frozenset[str]().union(*(value.tags for value in given))
    if any(tag.startswith("sampler:") for tag in tags):
        return "sampler"
    return "rank" if RANK in tags else "size" if SIZE in tags else ""
