"""Step 4: the learning rate is scaled by the number of ranks."""

from __future__ import annotations

from runner.linting.findings import Finding, Script, ok, unclear, wrong
from runner.linting.loading import loaders, reads_data
from runner.linting.names import LOCAL_SIZE, SIZE, is_optimizer
from runner.linting.results import rate_of
from runner.linting.trace import NOTHING, Event

_WARM_UP = ("warmup", "warm_up", "warm-up")


def judge(script: Script) -> list[Finding]:
    """Whether a rate depends on the number of ranks."""
    trace = script.trace
    fix = (
        "lr = base_lr * hvd.size(), with a warm-up of some epochs"
        if script.way != "ddp"
        else "lr = base_lr * dist.get_world_size()"
    )
    made = [event for event in trace.events if is_optimizer(event.name)]
    rates = [(event, event.argument(_place(event), "lr", "learning_rate")) for event in made]
    warm = any(
        any(word in text.lower() for word in _WARM_UP)
        for text in (*trace.texts, *(event.name for event in trace.events))
    )
    note = "" if warm else "; no warm-up that can be seen"
    for event, rate in rates:
        if rate is not None and rate.has("over_size"):
            return [wrong("the rate is divided by the number of ranks", event, fix)]
    for event, rate in rates:
        if rate is not None and rate.has(SIZE):
            return [ok(f"by the number of ranks{note}", event)]
    later = [event for event in trace.events if event.name in ("set lr", "set learning_rate") and event.tags & {SIZE}]
    later += [event for event in trace.events if _is_schedule(event) and _given(event) & {SIZE}]
    if later:
        return [ok(f"by the number of ranks{note}", later[0])]
    if trace.names & {"hvd.Adasum", "hvd.DistributedAdasumOptimizer"}:
        return [ok("Adasum needs no scaling", made[0] if made else None)]
    smaller = [
        event for event in loaders(trace).values() if (event.argument(1, "batch_size") or NOTHING).has("over_size")
    ]
    batches = [event for event in trace.by_name(".batch") if any(value.has("over_size") for value in event.arguments)]
    if smaller or batches:
        return [ok("the batch is divided instead", (smaller or batches)[0])]
    if script.way == "ddp":
        return [
            unclear(
                "the rate does not depend on the number of ranks; with DDP many leave it to the user",
                made[0] if made else None,
                fix,
            )
        ]
    local = [event for event, rate in rates if rate is not None and rate.has(LOCAL_SIZE)]
    if local:
        return [wrong("the rate is scaled by the ranks of one node only", local[0], fix)]
    if not made:
        wrapped = trace.by_name("hvd.DistributedOptimizer")
        if script.way == "none":
            return [script.missing("the rate does not depend on the number of ranks", fix)]
        return [unclear("no optimizer whose rate can be seen", wrapped[0] if wrapped else None, fix)]
    event, rate = rates[0]
    if rate is None and event.has_unknown_arguments:
        return [unclear("the optimizer's arguments could not be followed", event, fix)]
    if trace.uncertain:
        return [unclear(trace.uncertain, event, fix)]
    if script.way == "none":
        return [Finding("missing", "the rate does not depend on the number of ranks", event.place, fix)]
    if not reads_data(trace):
        return [unclear("no data set that can be seen: a benchmark needs no scaled rate", event, fix)]
    return [wrong("the rate does not depend on the number of ranks", event, fix)]


def _place(event: Event) -> int:
    return 0 if event.name.startswith(("keras.", "tensorflow.")) else 1


def _given(event: Event) -> frozenset[str]:
    """What a schedule is made with; what a class of the script asks for elsewhere is not for its method."""
    given = rate_of(event.last, event.arguments, event.keywords)
    return given if event.name.startswith("local ") else given | event.receiver.tags


def _is_schedule(event: Event) -> bool:
    name = event.name.lower()
    return "schedule" in name or "lr_scheduler" in name or "warmup" in name or name.endswith("lr") or "decay" in name
